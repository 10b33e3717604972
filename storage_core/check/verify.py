"""Verifying log directories: every file compared with every other, and what a broker would do about what is wrong.

segments, each in one pass, by several processes → partitions → log directories
"""

from __future__ import annotations

import contextlib
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from multiprocessing import get_context
from typing import Final, TypeAlias

from storage_core.check.broker_start import BrokerStart
from storage_core.check.partition_check import (
    PartitionReport,
    PlannedPartition,
    check_partition,
    with_topic_ids_compared,
)
from storage_core.check.root_check import RootCheck, RootReport, compare_roots
from storage_core.check.segment_check import SegmentFacts, SegmentTask, check_segment
from storage_core.directory.consistent import GONE, list_again_if_gone
from storage_core.directory.segment_listing import FileNames, SegmentFiles, list_segments
from storage_core.errors import LogDirectoryError
from storage_core.filesystem import ReadableFileSystem
from storage_core.filesystem.values import MissingError
from storage_core.options import ReadOptions
from storage_core.options.storage_options import StorageOptions
from storage_core.segment import SegmentReader
from storage_core.segment.file_names import SWAP_SUFFIX
from storage_core.tier import open_file_system
from storage_core.views.finding import SEVERITIES, Finding, Verdict, verdict_of
from storage_core.views.roots import LIVE, LogDir, PartitionLocation, find_roots, selected_locations
from storage_core.views.segments import SegmentFile


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Result of the check of log directories."""

    verdict: Verdict
    counts: Mapping[str, int]
    is_deep: bool
    roots: tuple[RootReport, ...]
    partitions: tuple[PartitionReport, ...]

    @property
    def findings(self) -> Iterator[Finding]:
        """All findings."""
        for root in self.roots:
            yield from root.findings
        for partition in self.partitions:
            yield from partition.findings


@dataclass(frozen=True, slots=True)
class Plan:
    """Partitions and files to verify. A partition that cannot be listed has no tasks, and is among the unreadable."""

    roots: tuple[LogDir, ...]
    partitions: tuple[PlannedPartition, ...]
    root_checks: Mapping[str, RootCheck]
    unreadable: Mapping[str, LogDirectoryError]
    is_deep: bool
    size_bytes: int
    storage: StorageOptions


def plan_verification(filesystem: ReadableFileSystem, options: ReadOptions, *, is_deep: bool = False) -> Plan:
    """Find the partitions to verify, of each the directories of all replicas.

    Raises:
        OptionError: A topic that is named does not exist.
        LogDirectoryError: A path is no log directory.
    """
    roots = find_roots(filesystem, options.paths, follow_symlinks=options.follow_symlinks)
    # Before the segments are listed: a running broker's checkpoints then say nothing of later ones.
    root_checks = {root.path: RootCheck(filesystem, root) for root in roots if root.problem is None}
    compare_roots(filesystem, roots, root_checks)
    named = {location.path for root in roots if not root.is_whole for location in root.locations}
    partitions: list[PlannedPartition] = []
    unreadable: dict[str, LogDirectoryError] = {}
    size_bytes = 0
    for location in selected_locations(filesystem, roots, options):
        if location.state != LIVE and location.path not in named:
            continue
        try:
            planned = _planned(filesystem, location, is_deep, options.max_decompressed_batch_bytes)
            size_bytes += sum(task.size_bytes for task in planned.tasks)
        except MissingError:
            # A broker has deleted it meanwhile.
            continue
        except LogDirectoryError as error:
            unreadable[location.path] = error
            planned = PlannedPartition(location, (), SegmentFiles((), FileNames()), ())
        partitions.append(planned)
    return Plan(roots, tuple(partitions), root_checks, unreadable, is_deep, size_bytes, options.storage)


def _planned(
    filesystem: ReadableFileSystem, location: PartitionLocation, is_deep: bool, max_batch_bytes: int
) -> PlannedPartition:
    path = location.path
    # Before the segments are listed: what a compaction is about to replace is named too.
    names = tuple(sorted(each.name for each in filesystem.list_directory(path) if each.is_regular_file))

    def swap_end_offset(base_offset: int) -> int:
        reader = SegmentReader(filesystem, path, base_offset, None, suffix=SWAP_SUFFIX, skip_damage=True)
        return reader.end().next_offset

    listing = list_segments(filesystem, path, is_clean=True, swap_end_offset=swap_end_offset)
    bases = listing.base_offsets
    tasks = []
    for base_offset, end_offset in zip_longest(bases, bases[1:]):
        suffix = SWAP_SUFFIX if base_offset in listing.swapped else ""
        file = SegmentFile(location.topic, location.partition, path, base_offset, suffix, end_offset)
        status = filesystem.status(file.path)
        tasks.append(SegmentTask(file, 0 if status is None else status.size_bytes, is_deep, max_batch_bytes))
    return PlannedPartition(location, names, listing, tuple(tasks))


def verify(
    filesystem: ReadableFileSystem,
    plan: Plan,
    *,
    jobs: int = 1,
    indexes_only: bool = False,
    advance: Callable[[int], object] = lambda _: None,
) -> VerifyReport:
    """Carry out a plan with several processes. What cannot be read is a finding.

    With ``indexes_only``, only that and what is wrong with index files is reported. ``advance`` receives how many bytes were
    read since its last call.
    """
    tasks = [task for partition in plan.partitions for task in partition.tasks]
    with _checks(filesystem, plan, tasks, jobs) as checks:
        found = [
            _checked_partition(filesystem, plan, partition, checks, advance) for partition in plan.partitions
        ]
    reports = with_topic_ids_compared(each for each in found if each is not None)
    if not reports:
        for root_check in plan.root_checks.values():
            reason = "There is no partition to verify: nothing was looked at."
            root_check.add(_NOTHING_VERIFIED, root_check.path, reason, "suspect")
    roots = tuple(
        plan.root_checks[root.path].report()
        if root.problem is None
        else RootReport(root.path, False, (Finding("unreadable", "file", root.path, root.problem),))
        for root in plan.roots
    )
    if indexes_only:
        roots = tuple(replace(each, findings=_about_indexes(each.findings)) for each in roots)
        reports = [each.with_findings(_about_indexes(each.findings)) for each in reports]
    findings = [
        *(each for root in roots for each in root.findings),
        *(each for partition in reports for each in partition.findings),
    ]
    counts = Counter(each.severity for each in findings)
    return VerifyReport(
        verdict_of(findings),
        # Nothing that is checked is a warning.
        {severity: counts[severity] for severity in SEVERITIES if severity != "warning"},
        plan.is_deep,
        roots,
        tuple(reports),
    )


_NOTHING_VERIFIED: Final = "nothing verified"


def _checked_partition(
    filesystem: ReadableFileSystem,
    plan: Plan,
    partition: PlannedPartition,
    checks: Iterator[_Checked],
    advance: Callable[[int], object],
) -> PartitionReport | None:
    """Check a partition, whose segments are the next ones.

    Returns:
        None if it was deleted meanwhile.
    """
    location, root_check = partition.location, plan.root_checks[partition.location.root]
    facts: list[SegmentFacts | None] = []
    refused = plan.unreadable.get(location.path)
    for task in partition.tasks:
        found = next(checks)
        if isinstance(found, LogDirectoryError):
            refused = refused or found
        else:
            facts.append(found)
        advance(found.size_bytes if isinstance(found, SegmentFacts) else task.size_bytes)
    try:
        if refused is not None:
            raise refused
        partition, facts = _again_if_replaced(filesystem, partition, facts)
        report = check_partition(filesystem, root_check, partition, facts)
        return report if filesystem.status(location.path) is not None else None
    except LogDirectoryError as error:
        return _unreadable_partition(location, error, is_clean=root_check.is_clean)


def _about_indexes(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(
        each
        for each in findings
        if each.kind.endswith(" index") or each.severity == "unreadable" or each.kind == _NOTHING_VERIFIED
    )


def _unreadable_partition(
    location: PartitionLocation, error: LogDirectoryError, *, is_clean: bool
) -> PartitionReport:
    """Report a partition that has an unreadable file, so that nothing is known about it."""
    finding = Finding("unreadable", "file", error.path or location.path, str(error.args[0]))
    nothing = (0,) * 6
    return PartitionReport(
        location.topic,
        location.partition,
        location.path,
        "unreadable",
        None,
        is_clean,
        *nothing,
        BrokerStart(),
        (finding,),
    )


def _again_if_replaced(
    filesystem: ReadableFileSystem, partition: PlannedPartition, facts: list[SegmentFacts | None]
) -> tuple[PlannedPartition, list[SegmentFacts | None]]:
    """Verify a partition again if one of its files was replaced or removed after the listing."""
    if None not in facts:
        return partition, facts
    first = partition.tasks[0]

    def verified() -> tuple[PlannedPartition, list[SegmentFacts | None]]:
        listed = _planned(filesystem, partition.location, first.is_deep, first.max_batch_bytes)
        return listed, [check_segment(filesystem, task) for task in listed.tasks]

    try:
        listed, found = list_again_if_gone(verified)
    except GONE:
        return partition, facts
    return (listed, found) if found else (partition, facts)


# A process takes half a second to start. Decoding takes longer than checksums, above all of compressed records.
_MIN_BYTES_PER_PROCESS: Final = 512 << 20
_MIN_DEEP_BYTES_PER_PROCESS: Final = 64 << 20


_Checked: TypeAlias = "SegmentFacts | LogDirectoryError | None"


@contextlib.contextmanager
def _checks(
    filesystem: ReadableFileSystem, plan: Plan, tasks: Sequence[SegmentTask], jobs: int
) -> Iterator[Iterator[_Checked]]:
    """Check segments in this process or in others.

    Yields:
        For each in order its facts; the error if it cannot be read; None if its file is gone or was replaced.
    """
    share_bytes = _MIN_DEEP_BYTES_PER_PROCESS if plan.is_deep else _MIN_BYTES_PER_PROCESS
    jobs = min(jobs, len(tasks), max(1, plan.size_bytes // share_bytes))
    if jobs <= 1:
        yield map(partial(_check, filesystem), tasks)
        return
    pool = ProcessPoolExecutor(
        jobs,
        # A fork would copy the locks of other threads, such as those of Arrow.
        mp_context=get_context("spawn"),
        # Ctrl-C reaches all of them: this process alone says so.
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        yield pool.map(partial(_check_elsewhere, plan.storage), tasks)
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "A process that checks segments was ended from outside. Verify again, with --jobs 1 "
            "if memory is short."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _check(filesystem: ReadableFileSystem, task: SegmentTask) -> _Checked:
    try:
        return check_segment(filesystem, task)
    except GONE:
        return None
    except LogDirectoryError as error:
        return error


def _check_elsewhere(storage: StorageOptions, task: SegmentTask) -> _Checked:
    return _check(open_file_system(storage), task)
