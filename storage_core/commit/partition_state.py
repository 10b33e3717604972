"""The state of a partition before a commit: its offsets and leader epochs, and the end of its last segment.

The log directory was closed cleanly, so the last segment has a complete time index and no preallocated space.

An index alone does not prove where the log ends. The last batches are read from its last entry on, and accepted if
they agree with the offset and epoch in the checkpoints, which were written when the log was closed. Otherwise the
whole segment is read, header by header.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from storage_core.checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    EpochEntry,
    read_leader_epoch_checkpoint,
    read_producer_snapshot,
)
from storage_core.directory import PartitionDirectory, PartitionLog
from storage_core.directory.segment_listing import regular_file_names
from storage_core.errors import (
    CorruptCheckpointError,
    CorruptError,
    CorruptRecordError,
    CorruptSnapshotError,
    LogDirectoryError,
)
from storage_core.filesystem.file_system import TEMPORARY_FILE
from storage_core.scan.isolation import open_transactions
from storage_core.segment.batch_walk import BatchWalk
from storage_core.segment.file_names import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    OffsetPosition,
    log_file_name,
    offset_index_file_name,
    snapshot_file_name,
    time_index_file_name,
)
from storage_core.segment.offset_index import ENTRY_SIZE_BYTES as OFFSET_ENTRY_BYTES
from storage_core.segment.offset_index import OffsetIndexFile
from storage_core.segment.time_index import ENTRY_SIZE_BYTES as TIME_ENTRY_BYTES
from storage_core.segment.time_index import TimeIndexFile

if TYPE_CHECKING:
    from collections.abc import Collection

    from storage_core.filesystem import FileSystem
    from storage_core.record.batch_header import BatchHeader


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SegmentTail:
    """The end of a log's last segment.

    Attributes:
        first_timestamp_ms: The max timestamp of its first batch; None without a batch.
        is_open: Whether batches may be appended. False if an index is missing or wrong, and would stay so.
    """

    base_offset: int
    size_bytes: int = 0
    index_size_bytes: int = 0
    time_index_size_bytes: int = 0
    first_timestamp_ms: int | None = None
    is_open: bool = True


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition that a job writes to; by default, one that does not exist yet.

    Attributes:
        is_new: Whether the directory does not exist yet.
        epochs: The entries of its leader epoch checkpoint.
        leader_epoch: The last epoch on disk, or 0.
        snapshot_from: Source of the producer snapshot at the new log end; see `JournalledPartition`.
        has_metadata: Whether its directory has a ``partition.metadata``, or gets one when it is created.
        deleted_files: The names of files in its directory that await their deletion.
    """

    topic: str
    partition: int
    is_new: bool = True
    log_start_offset: int = 0
    log_end_offset: int = 0
    epochs: tuple[EpochEntry, ...] = ()
    leader_epoch: int = 0
    snapshot_from: int | Literal["empty"] | None = "empty"
    tail: SegmentTail | None = None
    has_metadata: bool = True
    deleted_files: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the log has no offsets."""
        return self.log_end_offset <= self.log_start_offset

    @property
    def epochs_after(self) -> tuple[EpochEntry, ...]:
        """The leader epochs after an append."""
        if self.epochs and self.epochs[-1].epoch >= self.leader_epoch:
            return self.epochs
        return (*self.epochs, EpochEntry(self.leader_epoch, self.log_end_offset))


def read_partition_state(
    filesystem: FileSystem, directory: PartitionDirectory, checkpointed_start: int
) -> PartitionState:
    """Read the state of an existing partition, whose log start offset is in the root's checkpoint.

    Raises:
        LogDirectoryError: A transaction is open in it, or a segment is not a regular file.
        CorruptError: The partition is not as a clean shutdown leaves it.
    """
    path = directory.path
    names = regular_file_names(filesystem, path)
    if any(suffix.endswith(SWAP_SUFFIX) for suffix in names.suffixes):
        raise CorruptError(
            "Expected a partition that was closed, found an interrupted compaction. Open the log directory with "
            "LogDirectory.open and close it, which completes the compaction.",
            path=path,
        )
    bases = names.base_offsets(LOG_SUFFIX)
    log_start = max(checkpointed_start, bases[0] if bases else 0)
    epochs = read_leader_epoch_checkpoint(filesystem, os.path.join(path, LEADER_EPOCH_CHECKPOINT))
    checkpointed_epoch = epochs[-1].epoch if epochs else 0
    checkpointed_end = _checkpointed_end(directory)
    tail, log_end, last_epoch = None, log_start, 0
    if bases:
        tail, log_end, last_epoch = _read_tail(
            filesystem, path, bases[-1], names, checkpointed_end, checkpointed_epoch
        )
    _require_reached(directory, log_start, log_end)
    snapshot_from = _check_transactions(filesystem, directory, log_end, names, is_empty=log_end <= log_start)
    leader_epoch = max(0, last_epoch, checkpointed_epoch)
    return PartitionState(
        directory.topic,
        directory.partition,
        False,
        log_start,
        log_end,
        epochs,
        leader_epoch,
        snapshot_from,
        tail,
        PARTITION_METADATA in names,
        tuple(
            f"{base_offset:020d}{suffix}"
            for suffix in names.suffixes
            # Or the copy of a linked file that a kill has left.
            if suffix.endswith(DELETED_SUFFIX) or TEMPORARY_FILE.fullmatch(suffix)
            for base_offset in names.base_offsets(suffix)
        ),
    )


def _require_reached(directory: PartitionDirectory, log_start: int, log_end: int) -> None:
    """Refuse a log that ends before its start or its recovery point."""
    if log_end < log_start:
        raise CorruptError(
            f"Expected the log to end at or after its start offset {log_start}, found its end at {log_end}. Open the "
            "log directory with LogDirectory.open and close it.",
            path=directory.path,
        )
    recovery_point = directory.root.recovery_points.get(directory.topic_partition, 0)
    if log_end < recovery_point:
        raise CorruptError(
            f"Expected the log to reach offset {recovery_point}, as its recovery point says, found its end at {log_end}: "
            "new rows would get the offsets of records that are lost. Restore the log, or open the log directory with "
            "LogDirectory.open and close it, to go on at its end.",
            path=directory.path,
            offset=log_end,
            last_offset=recovery_point - 1,
        )


def _checkpointed_end(directory: PartitionDirectory) -> int:
    root, key = directory.root, directory.topic_partition
    recovery_point = root.recovery_points.get(key, 0)
    if root.clean_shutdown:
        return recovery_point
    # Jobs that do not flush only advance the high watermark.
    try:
        return max(recovery_point, root.high_watermarks.get(key, 0))
    except CorruptCheckpointError:
        return recovery_point


def _read_tail(
    filesystem: FileSystem,
    path: str,
    base_offset: int,
    names: Collection[str],
    checkpointed_end: int,
    checkpointed_epoch: int,
) -> tuple[SegmentTail, int, int]:
    """Return the end of the last segment, the log end offset, and the leader epoch of the last batch."""
    log_path = os.path.join(path, log_file_name(base_offset))
    index_name, time_index_name = offset_index_file_name(base_offset), time_index_file_name(base_offset)
    offsets = OffsetIndexFile(filesystem, os.path.join(path, index_name), base_offset, 0)
    times = TimeIndexFile(filesystem, os.path.join(path, time_index_name), base_offset, 0)
    _require_closed_index(filesystem, offsets.path, len(offsets))
    with filesystem.open(log_path) as log_file:
        size_bytes = log_file.status.size_bytes
        if size_bytes == 0:
            # Its indexes may have stale entries.
            return SegmentTail(base_offset), base_offset, 0
        walk = BatchWalk(log_file, base_offset, size_bytes)
        first = walk.batch_at(0)
        entry = offsets.entry(len(offsets) - 1) if len(offsets) else None
        last = indexed = None if entry is None else _indexed_last_batch(walk, entry)
        if (
            indexed is None
            or indexed.end_position_bytes != size_bytes
            or indexed.next_offset != checkpointed_end
            or indexed.leader_epoch > checkpointed_epoch
        ):
            last = _last_batch(walk, 0)
        if first is None or last is None or last.end_position_bytes != size_bytes:
            raise _torn_end(log_path, size_bytes if last is None else last.end_position_bytes)
    is_indexed = index_name in names and time_index_name in names
    if entry is not None and indexed != last:
        _log.warning(
            "No more batches are appended to %s: the last entry of its offset index does not lead to its end.",
            log_path,
        )
        is_indexed = False
    return (
        SegmentTail(
            base_offset,
            size_bytes,
            len(offsets) * OFFSET_ENTRY_BYTES,
            len(times) * TIME_ENTRY_BYTES,
            first.max_timestamp_ms,
            is_open=is_indexed and (len(times) > 0 or first.max_timestamp_ms < 0),
        ),
        last.next_offset,
        last.leader_epoch,
    )


def _torn_end(path: str, position_bytes: int) -> CorruptError:
    return CorruptError(
        "Expected complete batches up to the end of a log that was closed, found something else there. Delete the file "
        ".kafka_cleanshutdown in the log directory, open it with LogDirectory.open, and close it, which recovers the log.",
        path=path,
        position_bytes=position_bytes,
    )


def _require_closed_index(filesystem: FileSystem, path: str, count: int) -> None:
    """Refuse an index with preallocated space, which closing the log would have removed."""
    status = filesystem.status(path)
    if status is not None and status.size_bytes > count * OFFSET_ENTRY_BYTES:
        raise CorruptError(
            f"Expected an index of {count * OFFSET_ENTRY_BYTES} bytes, as closing a log leaves it, found "
            f"{status.size_bytes}: a broker or another program did not shut down cleanly. Open the log directory with "
            "LogDirectory.open and close it, which recovers it.",
            path=path,
        )


def _indexed_last_batch(walk: BatchWalk, entry: OffsetPosition) -> BatchHeader | None:
    """Return the last batch, found from the last entry of the offset index.

    Returns:
        None if the entry does not match.
    """
    if not 0 <= entry.position_bytes < walk.end_position_bytes:
        return None
    try:
        first, last = walk.batch_at(entry.position_bytes), _last_batch(walk, entry.position_bytes)
    except CorruptRecordError:
        return None
    is_match = (
        first is not None and last is not None and first.base_offset <= entry.offset <= last.last_offset
    )
    return last if is_match else None


def _last_batch(walk: BatchWalk, position_bytes: int) -> BatchHeader | None:
    """Return the last batch of a walk from a boundary on."""
    last = deque(walk.iter_summaries(position_bytes), maxlen=1)
    return walk.batch_at(last[0].position_bytes) if last else None


def _check_transactions(
    filesystem: FileSystem,
    directory: PartitionDirectory,
    log_end: int,
    names: Collection[str],
    *,
    is_empty: bool,
) -> int | Literal["empty"] | None:
    """Refuse an open transaction, which would hide the rows from ``read_committed``; return the snapshot's source."""
    name = snapshot_file_name(log_end)
    if name in names:
        try:
            producers = read_producer_snapshot(filesystem, os.path.join(directory.path, name)) or ()
        except CorruptSnapshotError:
            pass
        else:
            first_offsets = (each.current_transaction_first_offset for each in producers)
            _require_no_transaction(directory, [offset for offset in first_offsets if offset is not None])
            return log_end
    if is_empty:
        return "empty"
    found = open_transactions(PartitionLog.load(filesystem, directory))
    _require_no_transaction(directory, [each.first_offset for each in found])
    return None


def _require_no_transaction(directory: PartitionDirectory, first_offsets: list[int]) -> None:
    if first_offsets:
        raise LogDirectoryError(
            f"Expected no open transaction in {directory.topic}-{directory.partition}, found one from offset "
            f"{min(first_offsets)} on: read_committed consumers would not see the rows after it. Let its producer "
            "commit or abort it first.",
            path=directory.path,
            offset=min(first_offsets),
        )
