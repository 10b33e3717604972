"""Making a log directory that a stock broker loads, with everything that can be saved of another one.

The new directory is built beside the target under another name. `recovery_plan` says which bytes of each log file are
kept; they are copied, or the whole file is linked. Then `LogLoader` loads the result as it would load any directory: it
rebuilds missing indexes, producer state and checkpoints. Only when everything is on disk, and a load would find nothing
to recover, is the clean-shutdown marker written and the directory renamed to its target.

A linked file is one file with two names, so only files are linked that a broker never changes in place: closed segments.
The exception is a follower that truncates its log, which it does above its high watermark; so of a broker's directory
only segments below the high watermark are linked. Indexes are never linked: a broker resizes and rewrites them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from storage_core.check.cluster_topics import TopicIds
from storage_core.check.root_check import RootCheck
from storage_core.checkpoint import (
    CLEANER_OFFSET_CHECKPOINT,
    META_PROPERTIES,
    read_clean_shutdown_file,
    read_offset_checkpoint,
    write_clean_shutdown_file,
    write_offset_checkpoint,
)
from storage_core.checkpoint.checkpoint_file import TEMPORARY_SUFFIX, read_small_file
from storage_core.checkpoint.truncations_file import TRUNCATIONS_FILE, TruncationsFile
from storage_core.commit_files.commits_file import (
    COMMITS_FILE,
    LARGEST_COMMITS_BYTES,
    OWN_PREFIX,
    parse_commits_file,
)
from storage_core.commit_files.journal import require_no_commit
from storage_core.commit_replay.replay import ROOT_CHECKPOINTS
from storage_core.directory import LogDirectoryFiles, PartitionDirectory, find_partitions
from storage_core.directory.log_directory_files import (
    CLUSTER_METADATA_TOPIC,
    INTERNAL_TOPICS,
    LOCK_FILE,
    OTHER_DIRECTORIES,
    parse_partition_directory_name,
)
from storage_core.errors import (
    CorruptCheckpointError,
    LogDirectoryError,
    LogDirectoryLockedError,
    OptionError,
    RecoveryWouldDiscardError,
    SegmentLogError,
    StorageError,
)
from storage_core.filesystem import (
    FileSystem,
    OpenFile,
    ReadableFile,
    ReadableFileSystem,
    WritableFile,
    absolute_path,
)
from storage_core.log.recovery_check import check_directory, list_regular_files
from storage_core.options import ReadOptions
from storage_core.options.paths import path_to_write
from storage_core.recover.both_halves import with_remote_segments
from storage_core.recover.missing_offsets import LeftOut
from storage_core.recover.recovered_logs import cleaner_offsets, load_recovered, write_missing_files
from storage_core.recover.recovery_plan import LeftOutFile, PartitionPlan, Policy, SegmentPlan, plan_partition
from storage_core.segment.file_names import index_file_names, log_file_name
from storage_core.views.files import RECOVERY_MANIFEST, STATE_REASONS, name_in_root, why_not_in_root
from storage_core.views.finding import sentence
from storage_core.views.roots import LogDir, partitions_of, require_empty, require_outside
from storage_core.views.texts import json_value

_log = logging.getLogger(__name__)
IN_PROGRESS_FILE: Final = f"{OWN_PREFIX}recovery-in-progress.json"
"""What a recovery in place leaves out, in the root while it changes it."""
_WORK_SUFFIX: Final = ".segmentlog-recovery"
_LEFT_OUT_EARLIER: Final = "A recovery that was interrupted has left it out"
_MANIFEST_LIMIT_BYTES: Final = 256 << 20
_COPIED_BYTES: Final = 4 << 20
# Files of a KRaft broker's root that are copied as they are.
_BOOTSTRAP_CHECKPOINT: Final = "bootstrap.checkpoint"
_SET_ASIDE_AS_STRAY: Final = (
    "A broker sets the directory aside as a stray one, and begins an empty log in its place."
)
_CUT_COMMITS: Final = (
    "Rows of its commits may be among those that are left out. Without it, a job that is repeated with its txnVersion, or a "
    "stream that starts again, writes its last rows once more, instead of taking them for written."
)
_GIVE_TOPIC_ID: Final = (
    "Write partition.metadata, with the lines 'version: 0' and 'topic_id: <id>': kafka-topics.sh --describe shows the id, "
    "and so does partition.metadata of another replica."
)


@dataclass(frozen=True, slots=True)
class RecoveredPartition:
    """One recovered partition.

    Attributes:
        record_count: The records that are kept, without markers.
        left_out: What is not in the recovered log, and was or may have been in the log.
        compacted: Offsets between its segments that a compaction removed.
        damaged: Damage that is in it, because a broker would keep it.
    """

    topic: str
    partition: int
    log_start_offset: int
    log_end_offset: int
    record_count: int
    batch_count: int
    size_bytes: int
    left_out: tuple[LeftOut, ...]
    compacted: tuple[LeftOut, ...]
    damaged: tuple[LeftOut, ...]
    rebuilt: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """Result of a recovery: what it kept and left out. As JSON, it is the manifest.

    Attributes:
        target: The log directory that was made; None for a dry run. In place, the source.
        aside: Where copies of what was cut were put; None unless the recovery was in place.
        is_complete: Whether each offset from the log start to the log end is accounted for, no damage is in a log, and a
            broker would serve them.
        left_out_files: Files and directories that were left out as a whole.
        unserved: What a broker would not serve, or not start with, and why.
    """

    source: str
    target: str | None
    aside: str | None
    policy: Policy
    is_complete: bool
    partitions: tuple[RecoveredPartition, ...]
    left_out_files: tuple[LeftOutFile, ...]
    unserved: tuple[LeftOutFile, ...]


def recover(  # noqa: PLR0913  (one for each flag)
    filesystem: ReadableFileSystem,
    options: ReadOptions,
    target: str | None,
    *,
    policy: Policy = "kafka",
    link: bool = True,
    manifest: str | None = None,
    is_dry_run: bool = False,
    is_in_place: bool = False,
    advance: Callable[[int], object] = lambda _: None,
) -> RecoveryReport:
    """Recover a log directory into a new one.

    The source, one log directory or one partition's, is only read. With remote storage, the older segments of tiered topics
    are in the new directory, too, which then needs none. Nothing may write to it meanwhile. The target does not
    exist, or is empty; a dry run, also one of a recovery in place, needs none. Files that do not change are linked where the file
    system can. The manifest goes into the new directory unless it has a path of its own.

    Raises:
        OptionError: The path is not one log directory, or the target is inside of it.
        RecoveryWouldDiscardError: The policy is ``tail``, and complete batches would be lost.
        LogDirectoryError: The target is not empty, or the source changed meanwhile.
        StorageError: The file system refused. The target does not exist then.
    """
    found = scan_for_recovery(filesystem, options, is_in_place=is_in_place)
    local = filesystem.local
    if target is not None:
        target = os.path.abspath(path_to_write(target))
        require_outside(filesystem, target, [found.root.path, *(each.path for each in found.directories)])
        require_empty(filesystem, target)
        status = filesystem.status(target)
        if status is not None and not status.is_directory:
            raise LogDirectoryError(
                "The target is a symbolic link, which the new directory cannot "
                "replace. Name the directory itself.",
                path=target,
            )
    if manifest is not None:
        manifest = os.path.abspath(path_to_write(manifest))
        _require_new_file(filesystem, manifest, found.root.path)
    warn_of_damaged_commits(filesystem, found)
    filesystem = with_remote_segments(filesystem, found.directories, options)
    plans = found.plans(filesystem, policy, options.max_decompressed_batch_bytes, advance)
    report = report_of(found, plans, policy, None if is_dry_run else target)
    if target is not None and not is_dry_run:
        with _building(local, target, found.root.path) as work:
            _Copy(filesystem, found, report, work, link, advance).copy(plans)
            ends = load_recovered(local, work, plans, options.max_decompressed_batch_bytes)
            report = with_ends(report, ends)
            write_manifest(local, manifest or os.path.join(work, RECOVERY_MANIFEST), report)
            write_clean_shutdown_file(local, work, found.marker_of(report))
    return report


def _require_new_file(filesystem: ReadableFileSystem, path: str, source: str) -> None:
    require_outside(filesystem, path, [source])
    folder = filesystem.status(os.path.dirname(path), follow_symlinks=True)
    if filesystem.status(path) is not None or folder is None or not folder.is_directory:
        raise LogDirectoryError(
            "The manifest needs the path of a new file in a directory that exists. Choose another one.",
            path=path,
        )


@dataclass(frozen=True, slots=True)
class RecoveryScan:
    """Content of the log directory to recover.

    Attributes:
        metadata: The logs of KRaft controllers, which are copied as they are.
        unserved: What a broker would not serve whatever is in the logs.
        earlier: What a recovery in place has left out that was interrupted.
        marker: The content of the clean-shutdown marker; None without one.
    """

    root: LogDirectoryFiles
    directories: tuple[PartitionDirectory, ...]
    metadata: tuple[PartitionDirectory, ...]
    left_out_files: tuple[LeftOutFile, ...]
    unserved: tuple[LeftOutFile, ...]
    earlier: Mapping[tuple[str, int], tuple[LeftOut, ...]]
    has_commits: bool
    marker: bytes | None
    is_selection: bool

    @property
    def commits_path(self) -> str:
        """Return the path of the file of commits, which is there or not."""
        return os.path.join(self.root.path, COMMITS_FILE)

    def marker_of(self, report: RecoveryReport) -> bytes | None:
        """Return the content of the marker of what was recovered.

        The broker epoch in it says that nothing was lost since that broker stopped (KIP-966).

        Returns:
            None for a marker without a broker epoch.
        """
        return self.marker if report.is_complete else None

    def plans(
        self,
        filesystem: ReadableFileSystem,
        policy: Policy,
        max_batch_bytes: int,
        advance: Callable[[int], object],
    ) -> tuple[PartitionPlan, ...]:
        """Plan what is kept of each partition."""
        if policy == "tail":
            self.require_nothing_discarded(filesystem, max_batch_bytes)
        plans = tuple(
            plan_partition(filesystem, each, policy, max_batch_bytes, advance) for each in self.directories
        )
        lost = [
            f"{plan.directory.path}/{each.file}: bytes {each.start_byte} to {each.end_byte - 1}: {each.reason}"
            for plan in plans
            for each in plan.left_out
            if each.batch_count
        ]
        if policy == "tail" and lost:
            raise _would_discard(lost, self.root.path)
        ids = TopicIds(filesystem, self.root.path)
        return tuple(self._with_topic_id(plan, ids) for plan in plans)

    def _with_topic_id(self, plan: PartitionPlan, ids: TopicIds) -> PartitionPlan:
        """Return the plan with a topic id that was lost, and with why a broker would not serve the partition."""
        topic = plan.directory.topic
        if plan.topic_id is not None:
            problem = ids.contradiction(topic, plan.topic_id)
            return replace(plan, unserved=problem and f"{problem}. {_SET_ASIDE_AS_STRAY}")
        topic_id = ids.lost_id_of(topic)
        if topic_id is not None or self.has_no_ids:
            return replace(plan, topic_id=topic_id)
        problem = f"Its topic id is lost, and nothing here knows it. {_SET_ASIDE_AS_STRAY}"
        return replace(plan, unserved=f"{problem} {_GIVE_TOPIC_ID}")

    @property
    def has_no_ids(self) -> bool:
        """Return True if the log directory is one of a broker with ZooKeeper, which does not need topic ids."""
        with contextlib.suppress(CorruptCheckpointError):
            meta_properties = self.root.meta_properties
            return meta_properties is not None and meta_properties.version == 0
        return False

    def require_nothing_discarded(self, filesystem: ReadableFileSystem, max_batch_bytes: int) -> None:
        """Check that a broker's recovery would discard no complete batch."""
        dropped: list[str] = []
        is_clean = self.root.clean_shutdown
        for each in self.directories:
            recovery_point = max(0, self.root.recovery_points.get(each.topic_partition, 0))
            found = check_directory(
                filesystem, each.path, recovery_point, is_clean=is_clean, max_batch_bytes=max_batch_bytes
            )
            dropped += found.dropped
        if dropped:
            raise _would_discard(dropped, self.root.path)


def _would_discard(lost: Sequence[str], path: str) -> RecoveryWouldDiscardError:
    return RecoveryWouldDiscardError(
        "Expected only torn bytes after the last valid batch of each log, found complete batches that would be lost: "
        f"{'; '.join(lost)}. Recover with the policy salvage to keep every valid batch, or kafka to keep what a broker "
        "would.",
        discarded=tuple(lost),
        path=path,
    )


def scan_for_recovery(
    filesystem: ReadableFileSystem, options: ReadOptions, *, is_in_place: bool = False
) -> RecoveryScan:
    """Examine the one log directory that the options name.

    Raises:
        OptionError: They name none, or several.
        LogDirectoryError: A commit was interrupted.
    """
    if len(options.paths) != 1:
        raise OptionError(f"{len(options.paths)} paths are given. Recover log directories one by one.")
    found = partitions_of(filesystem, replace(options, remote_storage=None))
    path = absolute_path(options.paths[0])
    roots = sorted({each.root.path for each in found}) or [path]
    if len(roots) > 1:
        raise OptionError(f"{len(roots)} log directories are below {path}. Recover them one by one.")
    root = found[0].root if found else LogDirectoryFiles(filesystem, path)
    require_no_commit(filesystem, root.path)
    is_partition = len(found) == 1 and found[0].path == path
    if not (is_partition or options.names_topics):
        _require_no_links(filesystem, root.path)
    everything = [] if is_partition else find_partitions(filesystem, [root.path])
    known = {os.path.basename(each.path) for each in everything}
    return RecoveryScan(
        root,
        tuple(each for each in found if each.topic != CLUSTER_METADATA_TOPIC),
        tuple(each for each in found if each.topic == CLUSTER_METADATA_TOPIC),
        () if is_partition else tuple(_foreign(filesystem, root.path, known)),
        (
            *_refused(filesystem, root.path, is_in_place=is_in_place),
            *(() if is_partition or options.names_topics else _not_found(filesystem, root, known)),
        ),
        _left_out_earlier(filesystem, root.path),
        filesystem.status(os.path.join(root.path, COMMITS_FILE)) is not None,
        read_clean_shutdown_file(filesystem, root.path),
        options.names_topics or is_partition,
    )


def warn_of_damaged_commits(filesystem: ReadableFileSystem, found: RecoveryScan) -> None:
    """Warn of a damaged list of commits, which is kept: without it, repeated jobs would write their rows twice."""
    path = found.commits_path
    try:
        data = read_small_file(filesystem, path, LARGEST_COMMITS_BYTES) or b""
        whole_bytes = parse_commits_file(data, path).size_bytes
    except CorruptCheckpointError as error:
        _log.warning("The list of commits is damaged, and is not mended: %s", error)
        return
    if whole_bytes < len(data):
        _log.warning(
            "%s: the %d bytes from %d on are no whole line, and are not mended: if a job has written them, it does not "
            "count as committed, and would write its rows again.",
            *(path, len(data) - whole_bytes, whole_bytes),
        )


def _require_no_links(filesystem: ReadableFileSystem, root: str) -> None:
    """Check that no partition's directory is a link: a broker follows it, and nothing else here would."""
    for entry in filesystem.list_directory(root):
        name = parse_partition_directory_name(entry.name)
        if entry.is_symlink and name is not None and name.suffix is None:
            raise LogDirectoryError(
                "A partition's directory is a symbolic link. Replace it with the directory itself.",
                path=os.path.join(root, entry.name),
            )


def _foreign(filesystem: ReadableFileSystem, root: str, known: set[str]) -> Iterable[LeftOutFile]:
    """Find what is in a root and belongs to no partition."""
    for entry in filesystem.list_directory(root):
        path = os.path.join(root, entry.name)
        if entry.is_directory:
            name = parse_partition_directory_name(entry.name)
            if name is not None and name.suffix is not None:
                yield LeftOutFile(path, sentence(STATE_REASONS[name.suffix]))
            elif entry.name not in known and entry.name not in OTHER_DIRECTORIES:
                yield LeftOutFile(path, "It is not a partition's directory; a broker does not start with it.")
        elif not entry.is_regular_file:
            yield LeftOutFile(path, "It is neither a file nor a directory.")
        elif not entry.name.endswith(TEMPORARY_SUFFIX):
            reason = why_not_in_root(name_in_root(entry.name), entry.name)
            if reason is not None:
                yield LeftOutFile(path, sentence(reason))


def _refused(filesystem: ReadableFileSystem, root: str, *, is_in_place: bool) -> Iterator[LeftOutFile]:
    """Find what keeps a broker from starting: ``meta.properties``, and in place, directories that must not be moved."""
    kinds = ("metadata", "file") if is_in_place else ("metadata",)
    for each in RootCheck(filesystem, LogDir(root)).report().findings:
        if each.action == "refuse" and each.kind in kinds:
            yield LeftOutFile(each.file, f"{each.reason} A broker does not start with the directory.")


def _not_found(
    filesystem: ReadableFileSystem, root: LogDirectoryFiles, known: set[str]
) -> Iterator[LeftOutFile]:
    """Find the partitions that a checkpoint or a directory names, and that have no log here."""
    present: set[tuple[str, int]] = set()
    for entry in filesystem.list_directory(root.path):
        name = parse_partition_directory_name(entry.name)
        if name is None or not entry.is_directory:
            continue
        present.add((name.topic, name.partition))
        if name.suffix is None and entry.name not in known:
            yield LeftOutFile(
                os.path.join(root.path, entry.name),
                "The directory has the name of a partition and no log in it: a broker begins an empty one.",
            )
    checkpointed: dict[tuple[str, int], int] = {}
    for checkpoint in ROOT_CHECKPOINTS:
        with contextlib.suppress(CorruptCheckpointError):
            for key, offset in read_offset_checkpoint(
                filesystem, os.path.join(root.path, checkpoint)
            ).items():
                checkpointed[key] = max(offset, checkpointed.get(key, 0))
    for (topic, partition), offset in sorted(checkpointed.items()):
        if offset > 0 and (topic, partition) not in present and topic not in INTERNAL_TOPICS:
            yield LeftOutFile(
                os.path.join(root.path, f"{topic}-{partition}"),
                f"The checkpoints say that this log reached offset {offset}, and its directory is missing.",
            )


def _left_out_of(scan: RecoveryScan, plan: PartitionPlan) -> tuple[LeftOut, ...]:
    earlier = scan.earlier.get(plan.directory.topic_partition, ())
    known = [(each.start_offset, each.end_offset) for each in earlier]
    missing = [
        each
        for each in plan.missing
        if not any(start <= each.start_offset and each.end_offset <= end for start, end in known)
    ]
    return (*earlier, *plan.left_out, *missing)


def report_of(
    scan: RecoveryScan, plans: Sequence[PartitionPlan], policy: Policy, target: str | None
) -> RecoveryReport:
    """Report what a recovery by these plans keeps and leaves out."""
    left_out = [_left_out_of(scan, plan) for plan in plans]
    damaged = [plan.damaged + plan.suspect for plan in plans]
    unserved = scan.unserved + tuple(
        LeftOutFile(plan.directory.path, plan.unserved) for plan in plans if plan.unserved is not None
    )
    return RecoveryReport(
        scan.root.path,
        target,
        None,
        policy,
        not any(left_out) and not any(damaged) and not unserved,
        tuple(
            RecoveredPartition(
                plan.directory.topic,
                plan.directory.partition,
                max(plan.log_start_offset, plan.segments[0].base_offset if plan.segments else 0),
                plan.log_end_offset,
                plan.record_count,
                plan.batch_count,
                plan.size_bytes,
                parts,
                plan.compacted,
                kept,
                tuple(log_file_name(each.base_offset) for each in plan.segments if not each.has_indexes),
            )
            for plan, parts, kept in zip(plans, left_out, damaged, strict=True)
        ),
        (
            *scan.left_out_files,
            *(each for plan in plans for each in plan.left_out_files),
            *([LeftOutFile(scan.commits_path, _CUT_COMMITS)] if scan.has_commits and any(left_out) else ()),
        ),
        unserved,
    )


def with_ends(report: RecoveryReport, ends: Mapping[tuple[str, int], int]) -> RecoveryReport:
    """Return the report with the log ends that were found when the logs were loaded."""
    partitions = tuple(
        replace(each, log_end_offset=ends[each.topic, each.partition]) for each in report.partitions
    )
    return replace(report, partitions=partitions)


def manifest_bytes(report: RecoveryReport) -> bytes:
    """Return a report as JSON."""
    return json.dumps(json_value(report), indent=2).encode() + b"\n"


def _left_out_earlier(
    filesystem: ReadableFileSystem, root: str
) -> dict[tuple[str, int], tuple[LeftOut, ...]]:
    """Read what an interrupted recovery in place has left out, by partition.

    Raises:
        LogDirectoryError: Its notes are damaged.
    """
    path = os.path.join(root, IN_PROGRESS_FILE)
    data = filesystem.read_file(path, _MANIFEST_LIMIT_BYTES)
    if data is None:
        return {}
    try:
        report = json.loads(data)
        where = f"{_LEFT_OUT_EARLIER}; a copy is in {report['aside']}."
        return {
            (str(each["topic"]), int(each["partition"])): tuple(
                _earlier(part, where) for part in each["leftOut"]
            )
            for each in report["partitions"]
        }
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise LogDirectoryError(
            "The notes of an interrupted recovery in place are damaged. What was cut is in the "
            "directory that was given as --aside. Remove this file to go on.",
            path=path,
        ) from error


def _earlier(part: Mapping[str, object], where: str) -> LeftOut:
    def number(name: str) -> int:
        return int(str(part[name]))

    reason = str(part["reason"])
    return LeftOut(
        str(part["file"]),
        number("startByte"),
        number("endByte"),
        number("startOffset"),
        number("endOffset"),
        number("batchCount"),
        number("recordCount"),
        reason if _LEFT_OUT_EARLIER in reason else f"{reason} {where}",
    )


def write_manifest(filesystem: FileSystem, path: str, report: RecoveryReport) -> None:
    """Write a report as JSON, durably."""
    with filesystem.open_for_writing(path, create=True) as file:
        file.truncate(0)
        file.write_at([manifest_bytes(report)], 0)
        file.flush()
    filesystem.flush_directory(os.path.dirname(path))


# A new directory.


@contextlib.contextmanager
def _building(filesystem: FileSystem, target: str, source: str) -> Iterator[str]:
    """Create a directory beside the target, and rename it to the target at the end; remove it after an error."""
    parent, name = os.path.split(target)
    work = os.path.join(parent, f".{name}{_WORK_SUFFIX}")
    is_new = filesystem.status(work) is None
    if not is_new:
        _require_interrupted(filesystem, work, source)
    if is_new:
        filesystem.make_directory(work)
        filesystem.make_as_private(work, [source])
    try:
        lock = filesystem.lock(os.path.join(work, LOCK_FILE))
    except LogDirectoryLockedError:
        # It belongs to another recovery.
        raise
    except SegmentLogError:
        if is_new:
            with contextlib.suppress(SegmentLogError):
                _remove_tree(filesystem, work)
                filesystem.delete_directory(work)
        raise
    try:
        # What a recovery left that was interrupted.
        _remove_tree(filesystem, work, keep=LOCK_FILE)
        yield work
        filesystem.flush_directory(work)
        filesystem.rename(work, target)
    except BaseException:
        lock.release()
        with contextlib.suppress(SegmentLogError):
            _remove_tree(filesystem, work)
            filesystem.delete_directory(work)
        raise
    lock.release()
    filesystem.flush_directory(parent)


def _require_interrupted(filesystem: FileSystem, work: str, source: str) -> None:
    """Check that a directory may be what an interrupted recovery left: its content is about to be removed."""
    status = filesystem.status(work)
    if status is None or not status.is_directory or not filesystem.is_own_directory(work):
        raise LogDirectoryError(
            "Something is here that no interrupted recovery of this user left. Rename it.", path=work
        )
    require_outside(filesystem, work, [source])
    require_outside(filesystem, source, [work])


def _remove_tree(filesystem: FileSystem, path: str, keep: str | None = None) -> None:
    for entry in filesystem.list_directory(path):
        each = os.path.join(path, entry.name)
        if entry.is_directory:
            _remove_tree(filesystem, each)
            filesystem.delete_directory(each)
        elif entry.name != keep:
            filesystem.delete(each)


class _Copy:
    """Copies what is kept, without indexes that are made again, and flushes it."""

    def __init__(
        self,
        filesystem: ReadableFileSystem,
        scan: RecoveryScan,
        report: RecoveryReport,
        work: str,
        link: bool,
        advance: Callable[[int], object],
    ) -> None:
        self._filesystem = filesystem
        self._local = filesystem.local
        self._scan = scan
        # Files of the root that are left out.
        self._without = {each.path for each in (*report.unserved, *report.left_out_files)}
        self._work = work
        self._link = link
        self._advance = advance
        self._written: list[str] = []
        self._directories: list[str] = []

    def copy(self, plans: Sequence[PartitionPlan]) -> None:
        for plan in plans:
            self._copy_partition(plan)
        for directory in () if self._scan.is_selection else self._scan.metadata:
            target = self._make(directory)
            for name in list_regular_files(self._filesystem, directory.path):
                self._copy_file(os.path.join(directory.path, name), os.path.join(target, name))
        self._copy_root(plans)
        _require_unchanged(self._filesystem, plans)
        self._flush()

    def _copy_partition(self, plan: PartitionPlan) -> None:
        source, target = plan.directory.path, self._make(plan.directory)
        for number, segment in enumerate(plan.segments):
            following = plan.segments[number + 1] if number + 1 < len(plan.segments) else None
            self._copy_log(plan, segment, following, target)
            for name in index_file_names(segment.base_offset) if segment.has_indexes else ():
                self._copy_file(os.path.join(source, name + segment.suffix), os.path.join(target, name))
        for name in plan.file_names:
            self._copy_file(os.path.join(source, name), os.path.join(target, name))
        write_missing_files(self._local, target, plan)

    def _copy_log(
        self, plan: PartitionPlan, segment: SegmentPlan, following: SegmentPlan | None, target: str
    ) -> None:
        source = os.path.join(plan.directory.path, segment.name)
        target = os.path.join(target, log_file_name(segment.base_offset))
        is_closed, is_linked = following is not None and segment.is_whole, False
        is_local = self._local.status(source) == segment.status
        if self._link and is_local and is_closed and following and _may_link(plan, following.base_offset):
            # Another file system, one without links, or a file of another user.
            with contextlib.suppress(LogDirectoryError, StorageError):
                self._local.link(source, target)
                is_linked = True
        if not is_linked:
            copy_ranges(self._filesystem, source, target, segment)
        self._written.append(target)
        self._advance(segment.size_bytes)

    def _copy_file(self, source: str, target: str) -> None:
        status = self._filesystem.status(source)
        if status is None or not status.is_regular_file:
            return
        copy_parts(self._filesystem, source, target, [(0, status.size_bytes)])
        self._local.set_modified_ms(target, status.modified_ms)
        self._written.append(target)

    def _make(self, directory: PartitionDirectory) -> str:
        target = os.path.join(self._work, f"{directory.topic}-{directory.partition}")
        self._local.make_directory(target)
        self._local.make_as_private(target, [directory.path])
        self._directories.append(target)
        return target

    def _copy_root(self, plans: Sequence[PartitionPlan]) -> None:
        # A commit says how long the list of truncations was: its rows would count as truncated without the list.
        for name in (META_PROPERTIES, _BOOTSTRAP_CHECKPOINT, COMMITS_FILE, TRUNCATIONS_FILE):
            path = os.path.join(self._scan.root.path, name)
            if path not in self._without:
                self._copy_file(path, os.path.join(self._work, name))
        TruncationsFile(self._local, self._work).settle()
        cleaned = cleaner_offsets(plans)
        if cleaned:
            write_offset_checkpoint(self._local, os.path.join(self._work, CLEANER_OFFSET_CHECKPOINT), cleaned)

    def _flush(self) -> None:
        # Makes each of the following flushes quick.
        self._local.sync(self._work)
        for path in self._written:
            with self._local.open_for_writing(path) as file:
                file.flush()
        for path in (*self._directories, self._work):
            self._local.flush_directory(path)


def _may_link(plan: PartitionPlan, end_offset: int) -> bool:
    """Return True if nobody truncates a closed segment that ends at an offset."""
    root = plan.directory.root
    try:
        if root.meta_properties is None:
            # Without a broker there is no leader to follow.
            return True
        return end_offset <= root.high_watermarks.get(plan.directory.topic_partition, -1)
    except CorruptCheckpointError:
        return False


def copy_ranges(filesystem: ReadableFileSystem, source: str, target: str, segment: SegmentPlan) -> None:
    """Copy the kept parts of a log file with its modification time: brokers use it to delete segments without timestamps."""
    copy_parts(filesystem, source, target, segment.kept)
    filesystem.local.set_modified_ms(target, segment.status.modified_ms)


def copy_flushed(
    filesystem: ReadableFileSystem, source: str, target: str, part: tuple[int, int] | None = None
) -> None:
    """Copy a file, or a part of it, and flush the copy. Skip a file that does not exist."""
    status = filesystem.status(source)
    if status is not None and status.is_regular_file:
        copy_parts(filesystem, source, target, [part or (0, status.size_bytes)], is_flushed=True)


def copy_parts(
    filesystem: ReadableFileSystem,
    source: str,
    target: str,
    parts: Iterable[tuple[int, int]],
    *,
    is_flushed: bool = False,
) -> None:
    """Write the parts of a file, from their first byte to before their last, one after the other to another file."""
    with (
        filesystem.open(source) as opened,
        filesystem.local.open_for_writing(target, create=True, like=[source]) as made,
    ):
        made.truncate(0)
        position_bytes = 0
        for start_byte, end_byte in parts:
            if isinstance(opened, OpenFile):
                # In the kernel, where that is possible.
                made.copy_from(opened, start_byte, end_byte - start_byte, position_bytes)
            else:
                _copy_read(opened, made, start_byte, end_byte, position_bytes)
            position_bytes += end_byte - start_byte
        if is_flushed:
            made.flush()


def _copy_read(
    opened: ReadableFile, made: WritableFile, start_byte: int, end_byte: int, position_bytes: int
) -> None:
    opened.expect_reads(start_byte, end_byte)
    for place in range(start_byte, end_byte, _COPIED_BYTES):
        size_bytes = min(_COPIED_BYTES, end_byte - place)
        data = opened.read_at(size_bytes, place)
        if len(data) < size_bytes:
            raise LogDirectoryError(
                f"Expected {end_byte} bytes in a file that is copied, found {place + len(data)}. Recover again.",
                path=opened.path,
            )
        made.write_at([data], position_bytes + place - start_byte)


def _require_unchanged(filesystem: ReadableFileSystem, plans: Sequence[PartitionPlan]) -> None:
    for plan in plans:
        for segment in plan.segments:
            path = os.path.join(plan.directory.path, segment.name)
            if filesystem.status(path) != segment.status:
                raise LogDirectoryError(
                    "A file changed while it was copied, so something writes to the log directory. "
                    "Stop the broker, or recover a snapshot of the file system.",
                    path=path,
                )
