"""What the checkpoints in the root say of published partitions: all of it is on disk, replicated, and perhaps the log start.

``.segmentlog-unflushed`` in a root: the last commit has left it unflushed, and nobody was at work since.

A job that flushes nothing leaves its log directory like that of a running broker: without the marker of a clean
shutdown, so that whoever opens it next recovers its logs. Only the next such job need not: as long as the machine
runs, what was written is there. Two lines, JSON and its CRC:

    {"version":1,"generation":8,"boot":"<id of this run of the machine>","checkpoints":[[<inode>,<ms>,<bytes>],…]}

The generation is that of the last commit. The checkpoints are those that a broker writes while it runs. Where there
is no such file, or one that does not fit, the root is recovered.

Whether all is there that a journal names: asked where the job did not flush, and somebody else is to finish it.

What was written is there as long as the machine runs, whoever was killed. After a power cut some of it may be torn
or missing, and then the commit cannot be completed. Where somebody has appended since, it must not be.

Finishing, or undoing, a commit: the one that was just journalled, or one that a crash has left.

    interlock, no journal     nothing was begun           → the interlock goes
    journal, not committed    anything may have been done → all is done, as if nothing had been
    journal, committed        the rows are visible        → what is left over goes
    journal, no interlock     somebody took it away       → reported; nothing is changed
    journal, not flushed, and a power cut, or somebody    → the journal goes; recovery finds what is whole
    not all it names is whole has written since

The interlock is made before the journal and removed after it, so no broker has been at work while
there was a journal. Nothing here depends on how far a crash let it come.
"""

from __future__ import annotations

import logging
import os
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from storage_core.checkpoint import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    delete_clean_shutdown_file,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from storage_core.checkpoint.checkpoint_file import TEMPORARY_SUFFIX
from storage_core.commit_files.commits_file import (
    OWN_PREFIX,
    CommitEntry,
    append_commit,
    flush_commits,
    read_commits_file,
)
from storage_core.commit_files.journal import (
    COMMIT_IN_PROGRESS,
    COMMIT_JOURNAL,
    AppendOperation,
    LinkOperation,
    read_commit_journal,
)
from storage_core.commit_files.json_fields import json_file_bytes
from storage_core.commit_files.stage_names import data_suffix_of, job_prefix
from storage_core.commit_replay.publish import flush_published, is_published_copy, publish_partition
from storage_core.commit_replay.staged_batches import in_parallel
from storage_core.errors import CorruptCheckpointError, CorruptError, LogDirectoryError, SegmentLogError
from storage_core.record.batch_header import batch_fingerprint
from storage_core.record.record_batches import RecordBatches
from storage_core.segment.file_names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    base_offset_of,
    snapshot_file_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from storage_core.commit_files.journal import CommitJournal, JournalledPartition
    from storage_core.filesystem import FileSystem, OpenFile
    from storage_core.log_config import LogConfig

__all__ = [
    "DEFAULT_THREADS",
    "UNFLUSHED_FILE",
    "delete_staged_files",
    "finish_commit",
    "forget_unflushed",
    "has_unfinished_commit",
    "is_as_left_unflushed",
    "is_whole",
    "note_unflushed",
    "write_root_checkpoints",
]


def write_root_checkpoints(filesystem: FileSystem, root: str, journal: CommitJournal) -> None:
    """Bring the checkpoints up to a journal; one that says so already is left alone.

    What was not flushed is to be recovered: of that, the recovery points stay.

    Raises:
        StorageError: The file system refused.
    """
    ends = {each.topic_partition: each.log_end_after for each in journal.partitions}
    starts = {
        each.topic_partition: each.log_start_after
        for each in journal.partitions
        if each.log_start_after != each.log_start_before
    }
    # Of a partition that was removed without its checkpoints, a new one of its name knows nothing.
    stale = frozenset(each.topic_partition for each in journal.partitions if each.is_new)
    points = ends if journal.is_flushed else {}
    _update(filesystem, os.path.join(root, RECOVERY_POINT_CHECKPOINT), points, stale)
    _update(filesystem, os.path.join(root, REPLICATION_OFFSET_CHECKPOINT), ends, stale)
    _update(filesystem, os.path.join(root, LOG_START_OFFSET_CHECKPOINT), starts, stale)
    _update(filesystem, os.path.join(root, CLEANER_OFFSET_CHECKPOINT), {}, stale)


def _update(
    filesystem: FileSystem,
    path: str,
    offsets: Mapping[tuple[str, int], int],
    stale: Collection[tuple[str, int]],
) -> None:
    try:
        known = read_offset_checkpoint(filesystem, path)
    except CorruptCheckpointError:
        # As a broker does: what it said is not known any more.
        known = {}
    kept = {key: offset for key, offset in known.items() if key not in stale}
    merged = {**kept, **offsets}
    if merged != known:
        write_offset_checkpoint(filesystem, path, merged)


UNFLUSHED_FILE: Final = f"{OWN_PREFIX}unflushed"
_VERSION: Final = 1
# Linux gives each run of the machine one; the file says that it is empty.
_BOOT_ID_FILE: Final = "/proc/sys/kernel/random/boot_id"
_LONGEST_BOOT_ID_BYTES: Final = 64
_BOOT_ID: Final = re.compile(rb"[0-9A-Za-z-]{1,64}")
_LIMIT_BYTES: Final = 4096


def note_unflushed(filesystem: FileSystem, root: str, generation: int) -> None:
    """Note that a commit has left the root unflushed. Where the machine has no id, nothing is noted.

    Raises:
        StorageError: The file system refused.
    """
    data = _note(filesystem, root, generation)
    if data is not None:
        with filesystem.open_for_writing(os.path.join(root, UNFLUSHED_FILE), create=True) as file:
            file.truncate(0)
            file.write_at([data], 0)


def is_as_left_unflushed(filesystem: FileSystem, root: str, generation: int) -> bool:
    """Whether the root is as the commit with a generation, which did not flush, has left it in this run of the machine."""
    try:
        data = filesystem.read_file(os.path.join(root, UNFLUSHED_FILE), _LIMIT_BYTES)
    except LogDirectoryError:
        return False
    return data is not None and data == _note(filesystem, root, generation)


def forget_unflushed(filesystem: FileSystem, root: str) -> None:
    """Have the root recovered by whoever writes next, unless it is clean.

    Raises:
        StorageError: The file system refused.
    """
    filesystem.delete(os.path.join(root, UNFLUSHED_FILE))


def _note(filesystem: FileSystem, root: str, generation: int) -> bytes | None:
    boot_id = _boot_id_of_machine(filesystem)
    if boot_id is None:
        return None
    checkpoints = [
        _identity(filesystem, os.path.join(root, name))
        for name in (RECOVERY_POINT_CHECKPOINT, REPLICATION_OFFSET_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT)
    ]
    return json_file_bytes(
        {"version": _VERSION, "generation": generation, "boot": boot_id, "checkpoints": checkpoints}
    )


def _identity(filesystem: FileSystem, path: str) -> list[Any] | None:
    status = filesystem.status(path)
    return None if status is None else [status.inode, status.modified_ms, status.size_bytes]


def _boot_id_of_machine(filesystem: FileSystem) -> str | None:
    """What this run of the machine goes by; None where it does not tell."""
    try:
        with filesystem.open(_BOOT_ID_FILE) as file:
            data = file.read_at(_LONGEST_BOOT_ID_BYTES, 0).strip()
    except SegmentLogError:
        return None
    return data.decode("ascii") if _BOOT_ID.fullmatch(data) else None


_WINDOW_BYTES: Final = 1024 * 1024


def is_whole(filesystem: FileSystem, root: str, journal: CommitJournal) -> bool:
    """Whether a commit can be completed: all that it names is whole, and nothing else stands where it goes.

    All bytes are read, and their CRCs checked.

    Raises:
        UnreadableError: This user may not read something.
        StorageError: The file system refused.
    """
    try:
        for partition in journal.partitions:
            _Check(filesystem, root, partition).run()
    except (CorruptError, FileNotFoundError):
        return False
    return True


class _Check:
    """Of one partition. What is wrong is raised."""

    def __init__(self, filesystem: FileSystem, root: str, partition: JournalledPartition) -> None:
        self._filesystem = filesystem
        self._root = root
        self._partition = partition
        self._directory = f"{root}/{partition.topic}-{partition.partition}"
        # How long the log files are that are written to, once all is done.
        self._ends_bytes: dict[int, int] = {}
        self._linked: dict[int, dict[str, str]] = {}

    def run(self) -> None:
        partition = self._partition
        if not partition.is_new:
            self._require_there(self._directory)
        if isinstance(partition.snapshot_from, int) and partition.log_end_after != partition.log_end_before:
            self._require_there(f"{self._directory}/{snapshot_file_name(partition.snapshot_from)}")
        for operation in partition.operations:
            if isinstance(operation, LinkOperation):
                self._link(operation)
            else:
                self._append(operation)
        self._require_no_others()

    def _link(self, operation: LinkOperation) -> None:
        """The staged segment, or what was published of it, has its batches at their places, and both indexes."""
        target = f"{self._directory}/{operation.base_offset:020d}"
        stem = f"{self._root}/{operation.file}"
        is_copy = is_published_copy(self._filesystem, stem, target)
        paths = {
            suffix: target + suffix
            if is_copy and self._filesystem.status(target + suffix) is not None
            else stem + suffix
            for suffix in (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        }
        for path in paths.values():
            self._require_there(path)
        found, next_offset = 0, operation.base_offset
        with self._filesystem.open(paths[LOG_SUFFIX]) as log:
            for batches in _batches(log, 0, operation.size_bytes, next_offset):
                found = batch_fingerprint(batches.headers, found)
                # No CRC covers what was patched.
                next_offset = _next_offset(
                    log.path, batches, next_offset, has_gaps=self._partition.keep_offsets
                )
                if (batches.headers["leader_epoch"] != self._partition.leader_epoch).any():
                    raise CorruptError("Expected batches of another leader epoch.", path=log.path)
        if found != operation.fingerprint:
            raise CorruptError("Expected a staged segment with another fingerprint.", path=paths[LOG_SUFFIX])
        self._ends_bytes[operation.base_offset] = operation.size_bytes
        self._linked[operation.base_offset] = paths

    def _append(self, operation: AppendOperation) -> None:
        """The ranges are whole, and so is what they are appended to."""
        segment = operation.segment_base_offset
        linked = self._linked.get(segment)
        stem = f"{self._directory}/{segment:020d}"
        paths = linked or {suffix: stem + suffix for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)}
        for suffix, size_bytes in (
            (OFFSET_INDEX_SUFFIX, operation.index_size_before_bytes),
            (TIME_INDEX_SUFFIX, operation.time_index_size_before_bytes),
        ):
            # What is to be empty is made.
            if size_bytes:
                self._require_there(paths[suffix], size_bytes)
        if linked is None and operation.size_before_bytes:
            next_offset = segment
            with self._filesystem.open(stem + LOG_SUFFIX) as log:
                for batches in _batches(log, 0, operation.size_before_bytes, next_offset):
                    next_offset = _next_offset(log.path, batches, next_offset, has_gaps=True)
            if next_offset > operation.base_offset:
                raise CorruptError("Expected a log that ends where a commit begins.", path=stem + LOG_SUFFIX)
        next_offset = operation.base_offset if self._partition.keep_offsets else 0
        for staged in operation.ranges:
            end_bytes = staged.position_bytes + staged.size_bytes
            with self._filesystem.open(f"{self._root}/{staged.file}{data_suffix_of(staged.file)}") as pack:
                for batches in _batches(pack, staged.position_bytes, end_bytes, 0):
                    if self._partition.keep_offsets:
                        next_offset = _next_offset(pack.path, batches, next_offset, has_gaps=True)
        appended_bytes = sum(staged.size_bytes for staged in operation.ranges)
        self._ends_bytes[segment] = operation.size_before_bytes + appended_bytes

    def _require_there(self, path: str, size_bytes: int = 0) -> None:
        status = self._filesystem.status(path)
        if status is None or status.size_bytes < size_bytes:
            raise CorruptError(f"Expected at least {size_bytes} bytes.", path=path)

    def _require_no_others(self) -> None:
        """Nobody has appended to the log since: what a power cut brings back may be the journal of a job that was through."""
        if self._filesystem.status(self._directory) is None:
            return
        for entry in self._filesystem.list_directory(self._directory):
            base_offset = base_offset_of(entry.name) if entry.name.endswith(LOG_SUFFIX) else None
            if base_offset is None:
                continue
            path = f"{self._directory}/{entry.name}"
            end_bytes = self._ends_bytes.get(base_offset)
            if end_bytes is None:
                is_others = base_offset > self._partition.log_end_before
            else:
                status = self._filesystem.status(path)
                is_others = status is not None and status.size_bytes > end_bytes
            if is_others:
                raise CorruptError("Expected no more than the job itself has written.", path=path)


def _batches(file: OpenFile, start_bytes: int, end_bytes: int, next_offset: int) -> Iterator[RecordBatches]:
    """Whole batches with right CRCs, from one position to another one."""
    window_bytes = _WINDOW_BYTES
    while start_bytes < end_bytes:
        data = file.read_at(min(window_bytes, end_bytes - start_bytes), start_bytes)
        batches = RecordBatches.parse(data, path=file.path, lowest_offset=next_offset)
        if batches.count:
            yield batches
            start_bytes += batches.size_bytes
            next_offset = batches.next_offset
        elif len(data) < window_bytes:
            raise CorruptError("Expected whole batches.", path=file.path, position_bytes=start_bytes)
        else:
            window_bytes *= 2


def _next_offset(path: str, batches: RecordBatches, next_offset: int, *, has_gaps: bool) -> int:
    """The offset behind some batches, which begin at an offset, or behind it."""
    gaps = batches.headers["base_offset"] - np.append(next_offset, batches.last_offsets[:-1] + 1)
    if (gaps < 0).any() or (gaps.any() and not has_gaps):
        raise CorruptError("Expected batches with other offsets.", path=path)
    return batches.next_offset


_log = logging.getLogger(__name__)
DEFAULT_THREADS: Final = 16
# Making files takes a local file system longer the more threads do it; flushes wait for the disk.
_WRITING_THREADS: Final = 2
# From so many partitions on, one call that writes all makes their flushes cheap.
_MANY_PARTITIONS: Final = 64


def has_unfinished_commit(filesystem: FileSystem, root: str) -> bool:
    """Whether a commit is at work in a log directory, or has left something to finish or to undo."""
    return any(
        filesystem.status(os.path.join(root, name)) is not None
        for name in (COMMIT_IN_PROGRESS, COMMIT_JOURNAL)
    )


def finish_commit(
    filesystem: FileSystem,
    root: str,
    config_of: Callable[[str], LogConfig],
    *,
    threads: int = DEFAULT_THREADS,
    keeps_note: bool = False,
    journal: CommitJournal | None = None,
) -> str | None:
    """Finish the commit that is journalled in a log directory, or undo one that was not. The caller holds its lock.

    Args:
        filesystem: Where to read and write.
        root: The log directory.
        config_of: The configuration of a topic, for the entries of its indexes.
        threads: How many partitions are worked on at a time.
        journal: The one that was written there just now, if the caller knows; otherwise it is read.
        keeps_note: Whether it stays noted that the last commit did not flush: for who writes no log otherwise.

    Returns:
        The id of the job that was finished; None if none was journalled.

    Raises:
        CorruptError: The journal is damaged, or the directory was changed since it was written.
        LogDirectoryError: The interlock was taken away while there was a journal.
        StorageError: The file system refused. It can be tried again.
    """
    if not keeps_note:
        forget_unflushed(filesystem, root)
    is_known_whole = journal is not None
    journal = journal or read_commit_journal(filesystem, root)
    has_interlock = filesystem.status(os.path.join(root, COMMIT_IN_PROGRESS)) is not None
    if journal is None:
        if has_interlock:
            filesystem.delete(os.path.join(root, COMMIT_JOURNAL + TEMPORARY_SUFFIX))
            # Whoever deleted the journal may have been killed before its flush: it must not come back alone.
            filesystem.flush_directory(root)
            _remove_interlock(filesystem, root)
        return None
    commits = read_commits_file(filesystem, root)
    is_committed = commits.has_job(journal.job_id)
    if not journal.is_flushed and not is_committed:
        # A power cut may have taken the interlock, too. Without it, a broker may have been at work.
        if not has_interlock or not (is_known_whole or is_whole(filesystem, root, journal)):
            _give_up(filesystem, root, journal, has_interlock=has_interlock)
            return None
    elif journal.is_flushed and not has_interlock:
        raise _without_interlock(root, journal)
    if is_committed:
        if journal.is_flushed:
            # Whoever wrote the line may have been killed before its flush: without it, staged files are needed.
            flush_commits(filesystem, root)
    else:
        _delete_marker(filesystem, root, journal)
        _publish(filesystem, root, journal, config_of, threads=threads)
        entry = CommitEntry(
            journal.generation, journal.job_id, journal.time_ms, journal.txn_app_id, journal.txn_version
        )
        append_commit(filesystem, root, entry, commits.size_bytes, flush=journal.is_flushed)
    _clear_away(filesystem, root, journal, has_interlock=has_interlock)
    return journal.job_id


def delete_staged_files(filesystem: FileSystem, root: str, job_id: str) -> int:
    """Delete what a job has staged; return how many files that were."""
    prefix = job_prefix(job_id)
    return sum(
        filesystem.delete(os.path.join(root, entry.name))
        for entry in filesystem.list_directory(root)
        if entry.is_regular_file and entry.name.startswith(prefix)
    )


def _without_interlock(root: str, journal: CommitJournal) -> LogDirectoryError:
    return LogDirectoryError(
        f"Expected the directory {COMMIT_IN_PROGRESS} beside {COMMIT_JOURNAL}, found none: somebody took it away "
        f"in the middle of the commit of job {journal.job_id}, and a broker may have been at work since. Nothing "
        "was changed. Compare the partitions that the journal names with it; delete it once they are as you want "
        "them.",
        path=root,
    )


def _publish(
    filesystem: FileSystem,
    root: str,
    journal: CommitJournal,
    config_of: Callable[[str], LogConfig],
    *,
    threads: int,
) -> None:
    written = in_parallel(
        lambda partition: publish_partition(
            filesystem, root, partition, config_of(partition.topic), is_flushed=journal.is_flushed
        ),
        journal.partitions,
        min(threads, _WRITING_THREADS),
    )
    if journal.is_flushed:
        if len(written) >= _MANY_PARTITIONS:
            filesystem.sync(root)
        in_parallel(lambda paths: flush_published(filesystem, paths), written, threads)
        filesystem.flush_directory(root)
    write_root_checkpoints(filesystem, root, journal)


def _give_up(filesystem: FileSystem, root: str, journal: CommitJournal, *, has_interlock: bool) -> None:
    """Forget a commit that flushed nothing and cannot be completed. Its marker was deleted for good first."""
    _log.warning(
        "The machine stopped soon after job %s, or in the middle of it, whose rows were not flushed: not all of them "
        "are there any more. What is whole of them stays in %s.",
        journal.job_id,
        root,
    )
    forget_unflushed(filesystem, root)
    delete_staged_files(filesystem, root, journal.job_id)
    filesystem.delete(os.path.join(root, COMMIT_JOURNAL))
    filesystem.flush_directory(root)
    if has_interlock:
        _remove_interlock(filesystem, root)


def _delete_marker(filesystem: FileSystem, root: str, journal: CommitJournal) -> None:
    """Before anything is changed, for good: without the marker, a power cut has the logs recovered."""
    if journal.is_flushed:
        delete_clean_shutdown_file(filesystem, root)
    elif filesystem.delete(os.path.join(root, CLEAN_SHUTDOWN_FILE)):
        filesystem.flush_directory(root)


def _clear_away(filesystem: FileSystem, root: str, journal: CommitJournal, *, has_interlock: bool) -> None:
    """The rows are visible: remove what led there, the interlock last."""
    delete_staged_files(filesystem, root, journal.job_id)
    if journal.is_flushed:
        forget_unflushed(filesystem, root)
        with filesystem.open_for_writing(os.path.join(root, CLEAN_SHUTDOWN_FILE), create=True) as file:
            file.truncate(0)
            file.write_at([journal.clean_shutdown], 0)
            file.flush()
        filesystem.flush_directory(root)
    filesystem.delete(os.path.join(root, COMMIT_JOURNAL))
    if journal.is_flushed:
        filesystem.flush_directory(root)
    if has_interlock:
        _remove_interlock(filesystem, root, flush=journal.is_flushed)


def _remove_interlock(filesystem: FileSystem, root: str, *, flush: bool = True) -> None:
    filesystem.delete_directory(os.path.join(root, COMMIT_IN_PROGRESS))
    if flush:
        filesystem.flush_directory(root)
