"""Completing or undoing a commit: the one just journalled, or one that a crash interrupted.

    interlock, no journal     nothing has begun                → the interlock is removed
    journal, not committed    any step may have been done      → all steps are done again
    journal, committed        the rows are visible             → leftovers are removed
    journal, no interlock     another program removed it       → an error; nothing is changed
    journal, not flushed, and a power cut, or another program  → the journal is removed; recovery keeps
    not everything complete   has written since                  the complete batches

The interlock is created before the journal and removed after it, so no broker runs while there is a journal. No step
depends on how far an earlier attempt came.

A job that does not flush leaves its log directory like that of a running broker, without the clean-shutdown file, so
that the next process to open it recovers its logs. Only another such job need not, because its machine still has all
that was written unless it was rebooted. ``.segmentlog-unflushed`` says so, in two lines, JSON and its CRC:

    {"version":1,"generation":8,"boot":"<boot id>","checkpoints":[[<inode>,<ms>,<bytes>],…]}

The generation is that of the last commit. The checkpoints are those that a broker writes while it runs. A root without
this file, or with one that does not match, is recovered.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from storage_core.checkpoint import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    delete_clean_shutdown_file,
    read_offset_checkpoint,
    write_clean_shutdown_file,
    write_offset_checkpoint,
)
from storage_core.checkpoint.checkpoint_file import TEMPORARY_SUFFIX
from storage_core.commit_files.commits_file import OWN_PREFIX, append_commit, flush_commits, read_commits_file
from storage_core.commit_files.journal import (
    COMMIT_IN_PROGRESS,
    COMMIT_JOURNAL,
    AppendOperation,
    CommitJournal,
    JournalledPartition,
    LinkOperation,
    read_commit_journal,
)
from storage_core.commit_files.json_fields import json_bytes, with_crc_line
from storage_core.commit_files.stage_names import data_suffix_of, job_prefix
from storage_core.commit_replay.publish import (
    PartitionPublisher,
    flush_published,
    former_snapshot,
    is_published_copy,
    require_own_directory,
)
from storage_core.commit_replay.staged_batches import StagedFiles, in_parallel
from storage_core.directory.segment_listing import regular_file_names
from storage_core.errors import (
    CorruptCheckpointError,
    CorruptError,
    LogDirectoryError,
    SegmentLogError,
    UnreadableError,
)
from storage_core.record.batch_header import batch_fingerprint
from storage_core.record.record_batches import RecordBatches
from storage_core.segment.file_names import (
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    base_offset_of,
    snapshot_file_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from storage_core.filesystem import FileSystem, ReadableFile
    from storage_core.log_config import LogConfig


_log = logging.getLogger(__name__)
DEFAULT_THREADS: Final = 16
# More threads make a local file system slower at creating files. Flushes wait for the disk.
_WRITING_THREADS: Final = 2
# For at least this many partitions, one sync of the file system makes their flushes cheap.
_MANY_PARTITIONS: Final = 64
ROOT_CHECKPOINTS: Final = (
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    CLEANER_OFFSET_CHECKPOINT,
)
"""The checkpoints that a commit may change."""
UNFLUSHED_FILE: Final = f"{OWN_PREFIX}unflushed"
_VERSION: Final = 1
# This file reports a size of 0.
_BOOT_ID_FILE: Final = "/proc/sys/kernel/random/boot_id"
_LONGEST_BOOT_ID_BYTES: Final = 64
_BOOT_ID: Final = re.compile(rb"[0-9A-Za-z-]{1,64}")
_LIMIT_BYTES: Final = 4096
_WINDOW_BYTES: Final = 1024 * 1024


def write_root_checkpoints(filesystem: FileSystem, root: str, journal: CommitJournal) -> None:
    """Update the checkpoints in the root after a commit, where they change.

    If the job does not flush, its rows must be recovered, so the recovery points stay.
    """
    ends = {each.topic_partition: each.log_end_after for each in journal.partitions}
    starts = {
        each.topic_partition: each.log_start_after
        for each in journal.partitions
        if each.log_start_after != each.log_start_before
    }
    # Checkpoints may have entries of a deleted partition with the name of a new one.
    stale = frozenset(each.topic_partition for each in journal.partitions if each.is_new)
    points = ends if journal.is_flushed else {}
    for name, offsets in zip(ROOT_CHECKPOINTS, (points, ends, starts, {}), strict=True):
        path = os.path.join(root, name)
        try:
            known = read_offset_checkpoint(filesystem, path)
        except CorruptCheckpointError:
            # Brokers ignore the content of a damaged checkpoint, too.
            known = {}
        merged = {key: offset for key, offset in known.items() if key not in stale} | offsets
        if merged != known:
            write_offset_checkpoint(filesystem, path, merged)


def note_unflushed(filesystem: FileSystem, root: str, generation: int) -> None:
    """Record that a commit has left the root unflushed, unless the machine has no boot id."""
    data = _note(filesystem, root, generation)
    if data is not None:
        with filesystem.open_for_writing(os.path.join(root, UNFLUSHED_FILE), create=True) as file:
            file.truncate(0)
            file.write_at([data], 0)


def is_as_left_unflushed(filesystem: FileSystem, root: str, generation: int) -> bool:
    """Return True if a commit without flush has left the root as it is now, since the machine was booted."""
    try:
        data = filesystem.read_file(os.path.join(root, UNFLUSHED_FILE), _LIMIT_BYTES)
    except LogDirectoryError:
        return False
    return data is not None and data == _note(filesystem, root, generation)


def forget_unflushed(filesystem: FileSystem, root: str) -> None:
    """Remove the note of `note_unflushed`: the next writer then recovers the root unless it is clean."""
    filesystem.delete(os.path.join(root, UNFLUSHED_FILE))


def _note(filesystem: FileSystem, root: str, generation: int) -> bytes | None:
    boot_id = _boot_id_of_machine(filesystem)
    if boot_id is None:
        return None
    # All but the cleaner's.
    found = (filesystem.status(os.path.join(root, name)) for name in ROOT_CHECKPOINTS[:3])
    checkpoints = [status and [status.version, status.modified_ms, status.size_bytes] for status in found]
    values = {"version": _VERSION, "generation": generation, "boot": boot_id, "checkpoints": checkpoints}
    return with_crc_line(json_bytes(values))


def _boot_id_of_machine(filesystem: FileSystem) -> str | None:
    """Read the id that Linux draws when it boots.

    Returns:
        The id, or None on other systems.
    """
    try:
        with filesystem.open(_BOOT_ID_FILE) as file:
            data = file.read_at(_LONGEST_BOOT_ID_BYTES, 0).strip()
    except SegmentLogError:
        return None
    return data.decode("ascii") if _BOOT_ID.fullmatch(data) else None


def can_complete(filesystem: FileSystem, root: str, journal: CommitJournal) -> bool:
    """Return True if a commit without flush can be completed: all batches are intact, and no others were written.

    After a power cut, some of them may be torn or missing. All bytes are read and all CRCs checked.
    """
    try:
        for partition in journal.partitions:
            _CompletionCheck(filesystem, root, partition).run()
    except (CorruptError, FileNotFoundError):
        return False
    return True


@dataclass(eq=False)
class _CompletionCheck:
    """Checks one partition; raises what prevents the commit."""

    filesystem: FileSystem
    root: str
    partition: JournalledPartition

    def __post_init__(self) -> None:
        self._directory = f"{self.root}/{self.partition.topic}-{self.partition.partition}"
        # By base offset, the final size of each log file that the commit writes.
        self._ends_bytes: dict[int, int] = {}
        self._linked: dict[int, dict[str, str]] = {}

    def run(self) -> None:
        partition = self.partition
        if not partition.is_new:
            self._require_file(self._directory)
        if isinstance(partition.snapshot_from, int) and partition.log_end_after != partition.log_end_before:
            self._require_file(f"{self._directory}/{snapshot_file_name(partition.snapshot_from)}")
        for operation in partition.operations:
            if isinstance(operation, LinkOperation):
                self._link(operation)
            else:
                self._append(operation)
        self._require_no_later_appends()

    def _link(self, operation: LinkOperation) -> None:
        """Check that the staged segment, or its published copy, has its batches at their offsets, and both indexes."""
        target = f"{self._directory}/{operation.base_offset:020d}"
        stem = f"{self.root}/{operation.file}"
        is_copy = is_published_copy(self.filesystem, stem, target)
        paths = {
            suffix: target + suffix
            if is_copy and self.filesystem.status(target + suffix) is not None
            else stem + suffix
            for suffix in (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        }
        for path in paths.values():
            self._require_file(path)
        found, next_offset = 0, operation.base_offset
        with self.filesystem.open(paths[LOG_SUFFIX]) as log:
            for batches in _batches(log, 0, operation.size_bytes, next_offset):
                found = batch_fingerprint(batches.headers, found)
                # No CRC covers the fields that were assigned.
                next_offset = _next_offset(
                    log.path, batches, next_offset, has_gaps=self.partition.keep_offsets
                )
                if (batches.headers["leader_epoch"] != self.partition.leader_epoch).any():
                    raise CorruptError("Expected batches of another leader epoch.", path=log.path)
        if found != operation.fingerprint:
            raise CorruptError("Expected a staged segment with another fingerprint.", path=paths[LOG_SUFFIX])
        self._ends_bytes[operation.base_offset] = operation.size_bytes
        self._linked[operation.base_offset] = paths

    def _append(self, operation: AppendOperation) -> None:
        """Check that the ranges are intact, and the segment that they are appended to."""
        segment = operation.segment_base_offset
        linked = self._linked.get(segment)
        stem = f"{self._directory}/{segment:020d}"
        paths = linked or {suffix: stem + suffix for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)}
        for suffix, size_bytes in (
            (OFFSET_INDEX_SUFFIX, operation.index_size_before_bytes),
            (TIME_INDEX_SUFFIX, operation.time_index_size_before_bytes),
        ):
            # An index that begins empty is created.
            if size_bytes:
                self._require_file(paths[suffix], size_bytes)
        if linked is None and operation.size_before_bytes:
            next_offset = segment
            with self.filesystem.open(stem + LOG_SUFFIX) as log:
                for batches in _batches(log, 0, operation.size_before_bytes, next_offset):
                    next_offset = _next_offset(log.path, batches, next_offset, has_gaps=True)
            if next_offset > operation.base_offset:
                raise CorruptError("Expected a log that ends where a commit begins.", path=stem + LOG_SUFFIX)
        next_offset = operation.base_offset if self.partition.keep_offsets else 0
        for staged in operation.ranges:
            end_bytes = staged.position_bytes + staged.size_bytes
            with self.filesystem.open(f"{self.root}/{staged.file}{data_suffix_of(staged.file)}") as pack:
                for batches in _batches(pack, staged.position_bytes, end_bytes, 0):
                    if self.partition.keep_offsets:
                        next_offset = _next_offset(pack.path, batches, next_offset, has_gaps=True)
        appended_bytes = sum(staged.size_bytes for staged in operation.ranges)
        self._ends_bytes[segment] = operation.size_before_bytes + appended_bytes

    def _require_file(self, path: str, size_bytes: int = 0) -> None:
        status = self.filesystem.status(path)
        if status is None or status.size_bytes < size_bytes:
            raise CorruptError(f"Expected at least {size_bytes} bytes.", path=path)

    def _require_no_later_appends(self) -> None:
        """Check that nobody has appended since: a power cut may bring back the journal of a completed job."""
        if self.filesystem.status(self._directory) is None:
            return
        for entry in self.filesystem.list_directory(self._directory):
            base_offset = base_offset_of(entry.name) if entry.name.endswith(LOG_SUFFIX) else None
            if base_offset is None:
                continue
            path = f"{self._directory}/{entry.name}"
            is_foreign = base_offset > self.partition.log_end_before
            if base_offset in self._ends_bytes:
                status = self.filesystem.status(path)
                is_foreign = status is not None and status.size_bytes > self._ends_bytes[base_offset]
            if is_foreign:
                raise CorruptError("Expected no batches after those of the job.", path=path)


def _batches(
    file: ReadableFile, start_bytes: int, end_bytes: int, next_offset: int
) -> Iterator[RecordBatches]:
    """Read the batches between two positions and check their CRCs."""
    window_bytes = _WINDOW_BYTES
    while start_bytes < end_bytes:
        data = file.read_at(min(window_bytes, end_bytes - start_bytes), start_bytes)
        batches = RecordBatches.parse(data, path=file.path, lowest_offset=next_offset)
        if batches.count:
            yield batches
            start_bytes += batches.size_bytes
            next_offset = batches.next_offset
        elif len(data) < window_bytes:
            raise CorruptError("Expected complete batches.", path=file.path, position_bytes=start_bytes)
        else:
            window_bytes *= 2


def _next_offset(path: str, batches: RecordBatches, next_offset: int, *, has_gaps: bool) -> int:
    """Return the offset after some batches, which follow on ``next_offset`` or, with gaps, come after it."""
    gaps = batches.headers["base_offset"] - np.append(next_offset, batches.last_offsets[:-1] + 1)
    if (gaps < 0).any() or (gaps.any() and not has_gaps):
        raise CorruptError("Expected batches with other offsets.", path=path)
    return batches.next_offset


def finish_commit(
    filesystem: FileSystem,
    root: str,
    config_of: Callable[[str], LogConfig],
    *,
    threads: int = DEFAULT_THREADS,
    keeps_note: bool = False,
    fresh: tuple[CommitJournal, StagedFiles] | None = None,
) -> str | None:
    """Complete the journalled commit of a log directory, or undo one without a journal. The caller holds the lock.

    With ``keeps_note``, the record that the last commit did not flush stays, because the caller writes to no log except
    by a commit. A caller that has just written the journal passes it, with the staged files that it has checked.

    Returns:
        The id of the job that was completed; None if there was no journal or its commit was given up.

    Raises:
        CorruptError: The journal is damaged, or the directory has changed since it was written.
        LogDirectoryError: There is a journal, but another program has removed the interlock.
        StorageError: The file system refused. The call can be repeated.
    """
    if not keeps_note:
        forget_unflushed(filesystem, root)
    journal = read_commit_journal(filesystem, root) if fresh is None else fresh[0]
    has_interlock = filesystem.status(os.path.join(root, COMMIT_IN_PROGRESS)) is not None
    if journal is None:
        if has_interlock:
            filesystem.delete(os.path.join(root, COMMIT_JOURNAL + TEMPORARY_SUFFIX))
            # The journal may have been deleted without a flush. It must not reappear without the interlock.
            filesystem.flush_directory(root)
            _remove_interlock(filesystem, root)
        return None
    with contextlib.closing(StagedFiles(filesystem, root) if fresh is None else fresh[1]) as files:
        replay = _CommitReplay(filesystem, root, journal, files, has_interlock)
        return journal.job_id if replay.run(config_of, threads, is_fresh=fresh is not None) else None


def delete_staged_files(filesystem: FileSystem, root: str, job_id: str) -> int:
    """Delete the staged files of a job and return their number."""
    prefix = job_prefix(job_id)
    return sum(
        filesystem.delete(os.path.join(root, entry.name))
        for entry in filesystem.list_directory(root)
        if entry.is_regular_file and entry.name.startswith(prefix)
    )


def _remove_interlock(filesystem: FileSystem, root: str, *, flush: bool = True) -> None:
    filesystem.delete_directory(os.path.join(root, COMMIT_IN_PROGRESS))
    if flush:
        filesystem.flush_directory(root)


@dataclass(frozen=True, slots=True)
class _CommitReplay:
    """Completes one journalled commit."""

    filesystem: FileSystem
    root: str
    journal: CommitJournal
    files: StagedFiles
    has_interlock: bool

    def run(self, config_of: Callable[[str], LogConfig], threads: int, *, is_fresh: bool) -> bool:
        """Complete the commit, which is fresh if this process has prepared it.

        Returns:
            False if the commit had to be given up.
        """
        filesystem, root, journal = self.filesystem, self.root, self.journal
        # All of them before the first change.
        for partition in journal.partitions:
            require_own_directory(filesystem, self._directory(partition), may_be_absent=True)
        commits = read_commits_file(filesystem, root)
        is_committed = commits.has_job(journal.job_id)
        if not journal.is_flushed and not is_committed:
            # A power cut may have removed the interlock, and a broker may have run since.
            if not self.has_interlock or not (is_fresh or can_complete(filesystem, root, journal)):
                self._give_up()
                return False
        elif journal.is_flushed and not self.has_interlock:
            raise LogDirectoryError(
                f"Expected the directory {COMMIT_IN_PROGRESS} next to {COMMIT_JOURNAL}, found none: it was removed "
                f"during the commit of job {journal.job_id}, and a broker may have run since. Nothing was changed. "
                f"Compare the partitions that the journal names with it, and delete {COMMIT_JOURNAL} once they are as "
                "you want them.",
                path=root,
            )
        if is_committed:
            if journal.is_flushed:
                # The line may not be flushed yet. Without it, the staged files are still needed.
                flush_commits(filesystem, root)
        else:
            self._delete_clean_shutdown_file()
            self._publish(config_of, threads)
            append_commit(filesystem, root, journal.entry, commits.size_bytes, flush=journal.is_flushed)
        self._clean_up()
        return True

    def _directory(self, partition: JournalledPartition) -> str:
        return f"{self.root}/{partition.topic}-{partition.partition}"

    def _publish(self, config_of: Callable[[str], LogConfig], threads: int) -> None:
        filesystem, root, journal = self.filesystem, self.root, self.journal
        written = in_parallel(
            lambda partition: PartitionPublisher(
                filesystem, root, partition, config_of(partition.topic), self.files
            ).publish(is_flushed=journal.is_flushed),
            journal.partitions,
            min(threads, _WRITING_THREADS),
        )
        # They are deleted soon, and a file that is open would leave a name behind on NFS.
        self.files.close()
        if journal.is_flushed:
            if len(written) >= _MANY_PARTITIONS:
                filesystem.sync(root)
            in_parallel(lambda paths: flush_published(filesystem, paths), written, threads)
            filesystem.flush_directory(root)
        write_root_checkpoints(filesystem, root, journal)

    def _give_up(self) -> None:
        """Drop a commit that cannot be completed. Its clean-shutdown file was deleted and flushed first."""
        _log.warning(
            "The machine stopped during or soon after job %s, which did not flush its rows, and some of them are lost. "
            "The complete batches stay in %s.",
            self.journal.job_id,
            self.root,
        )
        forget_unflushed(self.filesystem, self.root)
        delete_staged_files(self.filesystem, self.root, self.journal.job_id)
        self._delete_journal(flush=True)

    def _delete_clean_shutdown_file(self) -> None:
        """Flushed before any change: without this file, the logs are recovered after a power cut."""
        if self.journal.is_flushed:
            delete_clean_shutdown_file(self.filesystem, self.root)
        elif self.filesystem.delete(os.path.join(self.root, CLEAN_SHUTDOWN_FILE)):
            self.filesystem.flush_directory(self.root)

    def _clean_up(self) -> None:
        """Remove the commit's files once the rows are visible, the interlock last."""
        filesystem, root = self.filesystem, self.root
        delete_staged_files(filesystem, root, self.journal.job_id)
        self._flush_changed(self._delete_former_snapshots() | self._mark_overwritten_segments())
        if self.journal.is_flushed:
            forget_unflushed(filesystem, root)
            write_clean_shutdown_file(filesystem, root, self.journal.clean_shutdown)
        self._delete_journal(flush=self.journal.is_flushed)

    def _delete_former_snapshots(self) -> set[str]:
        changed = set()
        for partition in self.journal.partitions:
            directory = self._directory(partition)
            require_own_directory(self.filesystem, directory, may_be_absent=True)
            former = former_snapshot(self.filesystem, directory, partition)
            if former is not None and self.filesystem.delete(former):
                changed.add(directory)
        return changed

    def _mark_overwritten_segments(self) -> set[str]:
        """Rename the files of segments that end below a raised log start, as a broker does: a later job deletes them.

        Reads that were planned before find them, for as long as ``file.delete.delay.ms`` says, counted from the commit.
        """
        filesystem, changed = self.filesystem, set()
        for partition in self.journal.partitions:
            if partition.log_start_after <= partition.log_start_before:
                continue
            directory = self._directory(partition)
            names = regular_file_names(filesystem, directory)
            bases = [base for base in names.base_offsets(LOG_SUFFIX) if base <= partition.log_start_after]
            paths = [
                f"{directory}/{base_offset:020d}{suffix}"
                for suffix in ((*INDEX_SUFFIXES, SNAPSHOT_SUFFIX, LOG_SUFFIX) if bases else ())
                for base_offset in names.base_offsets(suffix)
                if base_offset < bases[-1]
            ]
            try:
                for path in paths:
                    filesystem.set_modified_ms(path, self.journal.entry.time_ms)
                    filesystem.rename(path, path + DELETED_SUFFIX)
                    changed.add(directory)
            except UnreadableError as error:
                # Files of another user, perhaps. The rows are committed, and no reader sees these.
                _log.warning("Overwritten segments stay where they are, and take space: %s", error)
        return changed

    def _flush_changed(self, directories: Collection[str]) -> None:
        changed = sorted(directories)
        if self.journal.is_flushed:
            if len(changed) >= _MANY_PARTITIONS:
                self.filesystem.sync(self.root)
            else:
                in_parallel(self.filesystem.flush_directory, changed, DEFAULT_THREADS)

    def _delete_journal(self, *, flush: bool) -> None:
        self.filesystem.delete(os.path.join(self.root, COMMIT_JOURNAL))
        if flush:
            self.filesystem.flush_directory(self.root)
        if self.has_interlock:
            _remove_interlock(self.filesystem, self.root, flush=flush)
