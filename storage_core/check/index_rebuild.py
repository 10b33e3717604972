"""Build the index files of a log directory again.

A broker looks at an index only when it needs it, and believes it. What is wrong with one shows as a slow or an empty
fetch, a wrong offset for a timestamp, or records of an aborted transaction. Rebuilt indexes are those that a broker's
recovery of the segment would write, byte for byte.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from storage_core.commit_files.journal import require_no_commit
from storage_core.directory import PartitionDirectory, PartitionLog
from storage_core.directory.log_directory_files import LOCK_FILE
from storage_core.errors import CorruptError, LogDirectoryError
from storage_core.filesystem import FileSystem, ReadableFileSystem
from storage_core.log.producer_batches import ProducerBatches
from storage_core.log.producer_state_manager import ProducerStateManager
from storage_core.log_config import LogConfig
from storage_core.options import ReadOptions
from storage_core.options.paths import path_to_write
from storage_core.record.batch_window import BatchWindow
from storage_core.segment import AbortedTransaction, DamagedRange, DamageScanner, SegmentReader
from storage_core.segment.file_names import (
    log_file_name,
    log_paths_beside,
    offset_index_file_name,
    time_index_file_name,
    transaction_index_file_name,
)
from storage_core.segment.segment_indexes import SegmentIndexes
from storage_core.segment.segment_reader import DEFAULT_MAX_BATCH_BYTES
from storage_core.segment.segment_recovery import scan_segment
from storage_core.views.finding import Finding
from storage_core.views.index_comparison import IndexComparisons, compare_indexes, index_faults
from storage_core.views.roots import partitions_of, require_empty, require_outside

REBUILT_SUFFIX: Final = ".rebuilt"
"""A rebuilt index that has not replaced the old one yet. Brokers ignore such files."""


@dataclass(frozen=True, slots=True)
class SegmentCheck:
    """The indexes of one segment, and what is wrong with them.

    Attributes:
        suffix: The suffix of its file names, if it is the output of an interrupted compaction.
        aborted: The transactions that are aborted in it, as a broker's recovery would index them.
    """

    base_offset: int
    suffix: str
    compared: IndexComparisons
    findings: tuple[Finding, ...]
    aborted: tuple[AbortedTransaction, ...]


@dataclass(frozen=True, slots=True)
class PartitionIndexes:
    """The index files of one partition.

    Attributes:
        rebuilt: The segments whose indexes were, or would be, rebuilt: names of their log files.
    """

    topic: str
    partition: int
    path: str
    segments: int
    findings: tuple[Finding, ...]
    rebuilt: tuple[str, ...] = ()
    not_rebuilt: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IndexReport:
    """The index files of log directories."""

    partitions: tuple[PartitionIndexes, ...]

    @property
    def finding_count(self) -> int:
        """The number of findings."""
        return sum(len(each.findings) for each in self.partitions)


def check_segments(
    filesystem: ReadableFileSystem,
    path: str,
    segments: Mapping[int, str],
    *,
    is_clean: bool,
    producers: ProducerStateManager | None = None,
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
    observe: Callable[[int, BatchWindow], object] = lambda *_: None,
    advance: Callable[[int], object] = lambda _: None,
) -> Iterator[SegmentCheck]:
    """Check the indexes of a log, segment by segment. All of the log is read, once.

    ``segments`` has the suffix of each segment's file names, usually none, by its base offset, ascending. ``observe`` receives
    the base offset and each window of valid batches, ``advance`` the size of each log file.
    """
    state = producers or new_producers(filesystem, path)

    def see(base_offset: int, aborted: list[AbortedTransaction], item: BatchWindow | DamagedRange) -> None:
        if isinstance(item, BatchWindow):
            aborted += state.update(producer_batches(item))
            observe(base_offset, item)

    ends = (*tuple(segments)[1:], None)
    for (base_offset, suffix), end_offset in zip(segments.items(), ends, strict=False):
        aborted: list[AbortedTransaction] = []
        segment = SegmentReader(
            filesystem,
            path,
            base_offset,
            suffix=suffix,
            max_batch_bytes=max_batch_bytes,
            offset_limit=end_offset,
            skip_damage=True,
        )
        try:
            compared = compare_indexes(filesystem, segment, partial(see, base_offset, aborted))
        except FileNotFoundError:
            # A live broker deletes old segments.
            continue
        is_complete = is_clean or end_offset is not None
        findings = *index_faults(compared, is_complete=is_complete), *_missing_transactions(compared, aborted)
        yield SegmentCheck(base_offset, suffix, compared, findings, tuple(aborted))
        advance(compared.size_bytes)


def new_producers(filesystem: ReadableFileSystem, path: str) -> ProducerStateManager:
    """Return the empty producer state of a log, without its snapshots."""
    expiration_ms = LogConfig().producer_id_expiration_ms
    return ProducerStateManager(filesystem.local, path, expiration_ms=expiration_ms, file_names=())


def producer_batches(window: BatchWindow) -> ProducerBatches:
    """Return the producers' batches in a window: none if it has a marker that cannot be read."""
    try:
        return ProducerBatches.of_window(window)
    except CorruptError:
        return ProducerBatches((), window.header(len(window.starts) - 1).next_offset)


def _missing_transactions(
    compared: IndexComparisons, aborted: Sequence[AbortedTransaction]
) -> Iterator[Finding]:
    index = compared.indexes[2]
    known = set(index.columns["lastOffset"].tolist())
    absent = [each for each in aborted if each.last_offset not in known]
    if absent and not index.is_unusable:
        first = absent[0]
        reason = (
            f"No entry for {len(absent)} aborted transactions, the first one of producer {first.producer_id}, aborted at "
            f"offset {first.last_offset}."
        )
        yield Finding("damage", index.finding_kind, index.path, reason)


def rebuild_indexes(
    filesystem: FileSystem,
    options: ReadOptions,
    *,
    target: str | None = None,
    is_all: bool = False,
    config: LogConfig | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> IndexReport:
    """Rebuild the wrong indexes, or all, in place or in a folder of ``target`` for each partition.

    In place, each file is written beside the old one, flushed, and renamed over it, under the log directory's lock. So
    a crash leaves the old or the new file.

    Raises:
        LogDirectoryLockedError: A broker or another process has the log directory open.
        LogDirectoryError: The target is not empty, or a commit was interrupted.
        StorageError: The file system reported an error.
    """
    if target is not None:
        target = path_to_write(target)
    directories = partitions_of(filesystem, options)
    rebuild = _Rebuild(
        filesystem, target, is_all, config or LogConfig(), options.max_decompressed_batch_bytes
    )
    if target is not None:
        require_empty(filesystem, target)
        require_outside(filesystem, os.path.abspath(target), {each.root.path for each in directories})
        return IndexReport(tuple(rebuild.partition(each, advance) for each in directories))
    roots = sorted({each.root.path for each in directories})
    for root in roots:
        require_no_commit(filesystem, root)
    with contextlib.ExitStack() as locked:
        for root in roots:
            locked.callback(filesystem.lock(os.path.join(root, LOCK_FILE)).release)
        return IndexReport(tuple(rebuild.partition(each, advance) for each in directories))


@dataclass(frozen=True, slots=True)
class _Rebuild:
    filesystem: FileSystem
    target: str | None
    is_all: bool
    config: LogConfig
    max_batch_bytes: int

    def partition(self, directory: PartitionDirectory, advance: Callable[[int], object]) -> PartitionIndexes:
        log = PartitionLog.load(self.filesystem, directory, skip_damage=True)
        findings: list[Finding] = []
        rebuilt: list[str] = []
        failures: list[str] = []
        has_damage = False
        for check in check_segments(
            self.filesystem,
            log.path,
            {segment.base_offset: segment.suffix for segment in log.segments},
            is_clean=log.is_clean,
            max_batch_bytes=self.max_batch_bytes,
            advance=advance,
        ):
            findings += check.findings
            is_after_damage = has_damage
            compared = check.compared
            has_damage |= bool(compared.damage) or compared.end.position_bytes < compared.size_bytes
            if not (check.findings or self.is_all):
                continue
            name = log_file_name(check.base_offset) + check.suffix
            problem = self._problem(log.path, check)
            if problem is None and is_after_damage and (check.aborted or len(check.compared.indexes[2])):
                problem = "an earlier segment is damaged, so where its transactions begin is not known. Recover the log first."
            if problem is None:
                self._write(log.path, check)
                rebuilt.append(name)
            else:
                failures.append(f"{name}: {problem}")
        return PartitionIndexes(
            log.topic,
            log.partition,
            log.path,
            len(log.segments),
            tuple(findings),
            tuple(rebuilt),
            tuple(failures),
        )

    def _problem(self, path: str, check: SegmentCheck) -> str | None:
        if check.suffix:
            return "a compaction was interrupted, and a broker completes it when it starts"
        compared = check.compared
        if compared.damage:
            return f"{compared.damage[0].reason} Recover the log first."
        if compared.end.position_bytes == compared.size_bytes:
            return None
        with self.filesystem.open(os.path.join(path, log_file_name(check.base_offset))) as log_file:
            rest = DamageScanner(log_file, check.base_offset, compared.size_bytes, None, self.max_batch_bytes)
            if rest.is_blank(compared.end.position_bytes):
                return None
        return f"the log ends at byte {compared.end.position_bytes} with a torn batch. Recover the log first."

    def _write(self, path: str, check: SegmentCheck) -> None:
        filesystem, base_offset = self.filesystem, check.base_offset
        directory, suffix = path, REBUILT_SUFFIX
        if self.target is not None:
            directory, suffix = os.path.join(self.target, os.path.basename(path)), ""
            if filesystem.status(os.path.join(directory, offset_index_file_name(base_offset))) is not None:
                raise LogDirectoryError(
                    "There is an index of a topic here whose name differs only in case, and this file system "
                    "ignores case. Write the indexes of the topics to different directories.",
                    path=directory,
                )
            filesystem.make_directories(
                directory, like=(path, os.path.join(path, log_file_name(base_offset)))
            )
        with filesystem.open(os.path.join(path, log_file_name(base_offset))) as log_file:
            scan = scan_segment(
                log_file,
                base_offset,
                check.compared.end.position_bytes,
                self.config.index_interval_bytes,
                max_batch_bytes=self.max_batch_bytes,
            )
        names = [
            name_of(base_offset)
            for name_of in (transaction_index_file_name, time_index_file_name, offset_index_file_name)
        ]
        for name in names:
            # Of a rebuild that was interrupted.
            filesystem.delete(os.path.join(directory, name + REBUILT_SUFFIX))
        indexes = SegmentIndexes(filesystem, directory, base_offset, suffix, self.config.segment_index_bytes)
        try:
            indexes.rebuild(scan.entries, check.aborted)
            indexes.trim(scan.largest_timestamp)
            indexes.flush()
        finally:
            indexes.close()
        filesystem.flush_directory(directory)
        if self.target is None:
            self._replace(path, names, has_aborted=bool(check.aborted))

    def _replace(self, path: str, names: Sequence[str], *, has_aborted: bool) -> None:
        """Rename the new files over the old ones, the transaction index first: readers trust it beside an offset index."""
        for name in names:
            old = os.path.join(path, name)
            if name == names[0] and not has_aborted:
                if self.filesystem.status(old) is None:
                    continue
                # As a recovery leaves it: empty, but there.
                rebuilt = old + REBUILT_SUFFIX
                with self.filesystem.open_for_writing(
                    rebuilt, create=True, like=log_paths_beside(old)
                ) as file:
                    file.flush()
            self.filesystem.rename(old + REBUILT_SUFFIX, old)
            self.filesystem.flush_directory(path)
