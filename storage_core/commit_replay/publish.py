"""Publishing staged batches in one partition, as the journal says: the replay of a commit, partition by partition.

Batches are appended to a segment with their index entries, as a broker appends them, or a staged segment is linked
into the partition's directory, the log file last. A link is used rather than a rename because POSIX does not
guarantee that the new name is on disk once the old one is gone.

Every step starts from the sizes in the journal, so repeating it has no further effect.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    EpochEntry,
    producer_snapshot_bytes,
    read_leader_epoch_checkpoint,
    write_leader_epoch_checkpoint,
)
from storage_core.checkpoint.partition_files import partition_metadata_bytes
from storage_core.commit_files.journal import (
    COMMIT_IN_PROGRESS,
    COMMIT_JOURNAL,
    AppendOperation,
    JournalledPartition,
    LinkOperation,
)
from storage_core.commit_files.stage_names import data_suffix_of, job_of, job_prefix
from storage_core.commit_replay.staged_batches import (
    BatchHeads,
    StagedFiles,
    batch_heads,
    copy_batches,
    fingerprint,
)
from storage_core.errors import (
    CorruptCheckpointError,
    CorruptError,
    LogDirectoryError,
    StorageError,
    UnreadableError,
)
from storage_core.record.batch_header import batch_sizes_bytes, last_offsets
from storage_core.segment.file_names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    log_file_name,
    snapshot_file_name,
)
from storage_core.segment.segment_indexes import IndexBuilder
from storage_core.segment.time_index import ENTRY_SIZE_BYTES as TIME_ENTRY_BYTES
from storage_core.segment.time_index import parse_time_entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

    from storage_core.filesystem import FileStatus, FileSystem, OpenFile, WritableFile
    from storage_core.log_config import LogConfig


# Index entries are added for at least this many batches at a time.
_JOINED_BATCHES: Final = 1024
_SUFFIXES: Final = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
_MAX_SNAPSHOT_BYTES: Final = 16 * 1024 * 1024


def lost_staged_file(path: str) -> CorruptError:
    """Make the error for a staged file that is missing, so that the commit cannot be completed."""
    job_id = job_of(os.path.basename(path)) or "?"
    return CorruptError(
        f"Expected a staged file that the interrupted commit of job {job_id} needs, found none: it has been deleted. "
        "Restore it, then open the log directory again. Or give the job up: delete "
        f"{COMMIT_JOURNAL}, then the directory {COMMIT_IN_PROGRESS}, then {job_prefix(job_id)}*, all in "
        f"{os.path.dirname(path)}, and open it with LogDirectory.open, which recovers its logs. Earlier rows are kept. "
        "Partitions that the commit completed keep the job's rows, others have none, and the job does not count as "
        "committed: writing it again duplicates those rows.",
        path=path,
    )


def require_own_directory(filesystem: FileSystem, path: str, *, may_be_absent: bool = False) -> None:
    """Refuse a partition's directory that is a symbolic link, or no directory: a commit changes no files elsewhere."""
    status = filesystem.status(path)
    if status is None and may_be_absent:
        return
    if status is None or not status.is_directory:
        raise LogDirectoryError(
            "Expected the directory of a partition that a commit changes, found "
            f"{'nothing' if status is None else 'a symbolic link or a file'}. Put the directory itself there, then open "
            "the log directory again, which completes the commit.",
            path=path,
        )


@dataclass(frozen=True, slots=True)
class PartitionPublisher:
    """Publishes what the journal says of one partition; ``config`` decides where index entries are due."""

    filesystem: FileSystem
    root: str
    partition: JournalledPartition
    config: LogConfig
    files: StagedFiles

    @property
    def directory(self) -> str:
        """The partition's directory."""
        return f"{self.root}/{self.partition.topic}-{self.partition.partition}"

    def publish(self, *, is_flushed: bool = True) -> list[str]:
        """Make all changes to the partition, without a flush.

        Args:
            is_flushed: Whether the caller flushes the result. If not, the log will be recovered. Recovery rebuilds a
                missing leader epoch file from the batches, but a torn one prevents opening the log: a changed one is
                therefore flushed here.

        Returns:
            The files for `flush_published`, the partition's directory last.

        Raises:
            CorruptError: The partition is not as it was when the commit began.
        """
        written = self._create_directory() if self.partition.is_new else []
        require_own_directory(self.filesystem, self.directory)
        for operation in self.partition.operations:
            if isinstance(operation, LinkOperation):
                self.link(operation)
            else:
                written += self.append(operation)
        written += self._write_snapshot()
        written += self._write_epochs(is_flushed=is_flushed)
        return [*dict.fromkeys(written), self.directory] if written or self.partition.operations else []

    def append(self, operation: AppendOperation) -> list[str]:
        """Truncate a segment's files to their journalled sizes, append to them, and return the files to flush.

        Raises:
            CorruptError: A file is shorter than the journal says, or a staged batch is damaged.
        """
        filesystem, directory = self.filesystem, self.directory
        require_own_directory(filesystem, directory)
        stem = f"{directory}/{operation.segment_base_offset:020d}"
        paths = [stem + suffix for suffix in _SUFFIXES]
        log_path, index_path, time_index_path = paths
        if not operation.size_before_bytes:
            # A leftover of a deleted segment.
            filesystem.delete(stem + TRANSACTION_INDEX_SUFFIX)
        # The other name of such a segment is that of the staged one.
        is_linked = any(
            isinstance(each, LinkOperation) and each.base_offset == operation.segment_base_offset
            for each in self.partition.operations
        )
        offset_entries, time_entries = bytearray(), bytearray()
        opened = partial(open_truncated, filesystem, is_linked=is_linked)
        with opened(time_index_path, operation.time_index_size_before_bytes) as time_index:
            indexes = _index_builder(time_index, operation, self.config)
            with opened(log_path, operation.size_before_bytes) as log:
                for heads in _joined(self._append_ranges(operation, log)):
                    timestamps_ms = heads.headers["max_timestamp_ms"]
                    sizes_bytes = batch_sizes_bytes(heads.headers)
                    added = indexes.add(
                        last_offsets(heads.headers), timestamps_ms, sizes_bytes, heads.start_bytes
                    )
                    offset_entries += added[0]
                    time_entries += added[1]
            with opened(index_path, operation.index_size_before_bytes) as index:
                index.write_at([offset_entries], operation.index_size_before_bytes)
            time_entries += indexes.last_entry()
            time_index.write_at([time_entries], operation.time_index_size_before_bytes)
        return paths

    def _append_ranges(self, operation: AppendOperation, log: WritableFile) -> Iterator[BatchHeads]:
        """Append the ranges in order."""
        leader_epoch = self.partition.leader_epoch
        offset = None if self.partition.keep_offsets else operation.base_offset
        position_bytes = operation.size_before_bytes
        for staged in operation.ranges:
            known = self.files.take_heads(staged.file, staged.position_bytes)
            with self._open_staged(staged.file) as pack:
                for heads in copy_batches(pack, staged, log, position_bytes, offset, leader_epoch, known):
                    if offset is not None:
                        offset += heads.offset_count
                    yield heads
            position_bytes += staged.size_bytes

    def _open_staged(self, file: str) -> AbstractContextManager[OpenFile]:
        try:
            return self.files.open(file)
        except FileNotFoundError as error:
            raise lost_staged_file(f"{self.root}/{file}{data_suffix_of(file)}") from error

    def link(self, operation: LinkOperation) -> None:
        """Link the files of a staged segment into the partition's directory, unless they are there already.

        Raises:
            CorruptError: Another segment has its place.
        """
        filesystem = self.filesystem
        require_own_directory(filesystem, self.directory)
        stem, target = f"{self.root}/{operation.file}", f"{self.directory}/{operation.base_offset:020d}"
        is_copy = is_published_copy(filesystem, stem, target)
        if is_copy:
            # Copying a directory may turn links into copies, so the content decides.
            _require_published(filesystem, target + LOG_SUFFIX, operation)
        # A leftover of a deleted segment.
        filesystem.delete(target + TRANSACTION_INDEX_SUFFIX)
        for suffix in reversed(_SUFFIXES):
            existing = filesystem.status(target + suffix)
            if existing is not None and is_copy:
                continue
            try:
                _link(filesystem, stem + suffix, target + suffix, existing)
            except FileNotFoundError as error:
                if filesystem.status(stem + suffix) is None:
                    raise lost_staged_file(stem + suffix) from error
                raise

    def _create_directory(self) -> list[str]:
        filesystem, directory, partition = self.filesystem, self.directory, self.partition
        if filesystem.status(directory) is None:
            filesystem.make_directory(directory)
        require_own_directory(filesystem, directory)
        written = []
        if partition.topic_id is not None:
            path = f"{directory}/{PARTITION_METADATA}"
            _write_file(filesystem, path, partition_metadata_bytes(partition.topic_id, path))
            written.append(path)
        if not partition.operations:
            # A log needs at least one segment.
            for suffix in _SUFFIXES:
                path = f"{directory}/{partition.log_end_after:020d}{suffix}"
                _write_file(filesystem, path, b"")
                written.append(path)
        return written

    def _write_snapshot(self) -> list[str]:
        filesystem, directory, partition = self.filesystem, self.directory, self.partition
        source = partition.snapshot_from
        if source is None or partition.log_end_after == partition.log_end_before:
            return []
        path = f"{directory}/{snapshot_file_name(partition.log_end_after)}"
        if source == partition.log_end_before and self._move_snapshot(path):
            # A job without flush may have written it.
            return [path]
        content: bytes | None = producer_snapshot_bytes(())
        if isinstance(source, int):
            content = filesystem.read_file(f"{directory}/{snapshot_file_name(source)}", _MAX_SNAPSHOT_BYTES)
        if content is None:
            raise CorruptError(
                f"Expected the producer snapshot at offset {source}, which existed when a commit began, found none. "
                "Restore it, then open the log directory again, which completes the commit.",
                path=directory,
            )
        _write_file(filesystem, path, content)
        return [path]

    def _move_snapshot(self, path: str) -> bool:
        """Link the snapshot at the former log end to a path where nothing is yet, if the commit deletes its former name.

        A new file takes several times as long to make.

        Returns:
            False if a file must be written: an earlier attempt was interrupted, the former name stays, or is not the
            only one, so that a later change would reach the others, the file is another user's, or links are not
            supported, as where a directory was copied to.
        """
        filesystem = self.filesystem
        former = former_snapshot(filesystem, self.directory, self.partition)
        status = None if former is None else filesystem.status(former)
        if former is None or status is None or not status.is_regular_file or status.link_count > 1:
            return False
        try:
            # A repetition opens it for writing.
            filesystem.require_writable(former)
            filesystem.link(former, path)
        except (FileExistsError, UnreadableError, StorageError):
            return False
        return True

    def _write_epochs(self, *, is_flushed: bool) -> list[str]:
        partition = self.partition
        if not partition.epochs_after or partition.log_end_after == partition.log_end_before:
            return []
        path = os.path.join(self.directory, LEADER_EPOCH_CHECKPOINT)
        known: tuple[EpochEntry, ...] | None
        try:
            known = read_leader_epoch_checkpoint(self.filesystem, path)
        except CorruptCheckpointError:
            # Torn by an earlier, interrupted attempt.
            known = None
        if not is_flushed and known == ():
            return []
        if known != partition.epochs_after:
            write_leader_epoch_checkpoint(self.filesystem, path, partition.epochs_after, flush=not is_flushed)
        # An unchanged file is flushed, too: an interrupted attempt may have written it without a flush.
        return [path]


def former_snapshot(filesystem: FileSystem, directory: str, partition: JournalledPartition) -> str | None:
    """Return the path of the snapshot at the former log end, which a commit deletes at its end.

    A broker, too, keeps only the newest one and those of segments. Otherwise a partition would have a snapshot for each
    micro-batch of a stream.

    Returns:
        None if it stays, because the log end does, or a segment begins there.
    """
    former_end = partition.log_end_before
    begun = f"{directory}/{log_file_name(former_end)}"
    if former_end == partition.log_end_after or filesystem.status(begun) is not None:
        return None
    return f"{directory}/{snapshot_file_name(former_end)}"


def flush_published(filesystem: FileSystem, paths: list[str]) -> None:
    """Flush what `PartitionPublisher.publish` has returned."""
    if paths:
        require_own_directory(filesystem, paths[-1])
        for path in paths[:-1]:
            with filesystem.open_for_writing(path) as file:
                file.flush()
        filesystem.flush_directory(paths[-1])


def is_published_copy(filesystem: FileSystem, stem: str, target: str) -> bool:
    """Return True if a log file that is not a link to the staged one takes the segment's place, with content.

    ``stem`` and ``target`` are the paths of the staged segment and of its place in the log, without suffix.
    """
    found = filesystem.status(target + LOG_SUFFIX)
    return (
        found is not None
        and found.size_bytes > 0
        and not _is_same(found, filesystem.status(stem + LOG_SUFFIX))
    )


def _link(filesystem: FileSystem, source: str, target: str, existing: FileStatus | None) -> None:
    staged = filesystem.status(source)
    if staged is not None and not staged.is_regular_file:
        raise LogDirectoryError(
            "Expected a staged file, found a link or a directory. Move it away.", path=source
        )
    if existing is None:
        filesystem.link(source, target)
    elif not _is_same(existing, staged):
        # Replace the empty last segment of the log.
        filesystem.replace_by_link(source, target)


def _is_same(one: FileStatus, other: FileStatus | None) -> bool:
    return other is not None and (one.device, one.version) == (other.device, other.version)


def _require_published(filesystem: FileSystem, path: str, operation: LinkOperation) -> None:
    """Refuse a segment that is not the one to be published here."""
    with filesystem.open(path) as file:
        is_long_enough = file.status.size_bytes >= operation.size_bytes
        found = 0
        if is_long_enough:
            try:
                found = fingerprint(batch_heads(file, 0, operation.size_bytes))
            except CorruptError:
                is_long_enough = False
    if not is_long_enough or found != operation.fingerprint:
        raise CorruptError(
            f"Expected no segment, an empty one, or the one that a commit publishes here, with {operation.size_bytes} "
            f"bytes and the fingerprint {operation.fingerprint:08x}, found another one: another program has written "
            "it since. Move it away, then open the log directory again, which completes the commit.",
            path=path,
            offset=operation.base_offset,
        )


def _joined(parts: Iterable[BatchHeads]) -> Iterator[BatchHeads]:
    """Join batches to larger parts, because adding to the indexes costs the same for one batch as for many."""
    pending: list[BatchHeads] = []
    count = 0
    for heads in parts:
        pending.append(heads)
        count += len(heads.headers)
        if count >= _JOINED_BATCHES:
            yield BatchHeads.joined(pending)
            pending, count = [], 0
    if pending:
        yield BatchHeads.joined(pending)


def open_truncated(filesystem: FileSystem, path: str, size_bytes: int, *, is_linked: bool) -> WritableFile:
    """Open a file, which must not be shorter, and truncate it to a size. A file of size 0 is created."""
    file = filesystem.open_for_writing(path, create=size_bytes == 0)
    if is_linked:
        file.keep_links()
    try:
        found_bytes = file.size_bytes()
        if found_bytes > size_bytes:
            file.truncate(size_bytes)
    except BaseException:
        file.close()
        raise
    if found_bytes < size_bytes:
        file.close()
        raise CorruptError(
            f"Expected at least the {size_bytes} bytes that this file had when a commit began, found "
            f"{found_bytes}: another program has changed it since. Restore it, then open the log directory again, "
            "which completes the commit.",
            path=path,
        )
    return file


def _index_builder(time_index: WritableFile, operation: AppendOperation, config: LogConfig) -> IndexBuilder:
    """Continue the segment's indexes. Closing the log has completed its time index."""
    segment, size_bytes = operation.segment_base_offset, operation.time_index_size_before_bytes
    last_time = None
    if size_bytes >= TIME_ENTRY_BYTES:
        data = time_index.read_at(TIME_ENTRY_BYTES, size_bytes - TIME_ENTRY_BYTES)
        last_time = parse_time_entry(data, segment)
    return IndexBuilder(
        segment,
        config,
        offset_index_bytes=operation.index_size_before_bytes,
        time_index_bytes=size_bytes,
        last_time=last_time,
    )


def _write_file(filesystem: FileSystem, path: str, content: bytes) -> None:
    with filesystem.open_for_writing(path, create=True) as file:
        # Existing content is from an earlier attempt at the same commit.
        size_bytes = file.size_bytes()
        if size_bytes == len(content) and file.read_at(size_bytes, 0) == content:
            return
        if size_bytes:
            file.truncate(0)
        file.write_at([content], 0)
