"""What a partition is before a commit: its offsets and epochs, and the end of its last segment.

Its log directory was closed cleanly, so the last segment has a complete time index, and nothing is preallocated.

No index alone says where the log ends. From its last entry a walk leads to the end of the file; if it finds the offset
and an epoch that the checkpoints say, too, which were written when the log was closed, that is the end. Otherwise the
whole segment is walked over, header by header, from its beginning.
"""

from __future__ import annotations

import logging
import os
import struct
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from storage_core.checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    EpochEntry,
    read_leader_epoch_checkpoint,
    read_producer_snapshot,
)
from storage_core.directory import PartitionLog
from storage_core.directory.segment_listing import regular_file_names
from storage_core.errors import (
    CorruptCheckpointError,
    CorruptError,
    CorruptRecordError,
    CorruptSnapshotError,
    LogDirectoryError,
)
from storage_core.record.batch_header import MAGIC_V2
from storage_core.scan.isolation import open_transactions
from storage_core.segment.batch_walk import BatchWalk
from storage_core.segment.file_names import (
    LOG_SUFFIX,
    SWAP_SUFFIX,
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
    from collections.abc import Collection, Iterable

    from storage_core.directory import PartitionDirectory
    from storage_core.filesystem import FileSystem, OpenFile
    from storage_core.segment.batch_walk import SkimmedBatch
    from storage_core.segment.file_names import OffsetPosition

__all__ = ["PartitionState", "SegmentTail", "new_partition_state", "read_partition_state"]


_log = logging.getLogger(__name__)
# Leader epoch and magic of a batch, from its byte 12 on.
_EPOCH_AND_MAGIC: Final = struct.Struct(">12xib")


@dataclass(frozen=True, slots=True)
class SegmentTail:
    """The end of a log's last segment.

    Attributes:
        base_offset: The segment.
        size_bytes: Of its log file.
        index_size_bytes: Of its offset index.
        time_index_size_bytes: Of its time index.
        first_timestamp_ms: The largest timestamp of its first batch; None without a batch.
        is_open: Whether more may be appended. Not where an index is missing or wrong: it would be wrong from there on.
    """

    base_offset: int
    size_bytes: int = 0
    index_size_bytes: int = 0
    time_index_size_bytes: int = 0
    first_timestamp_ms: int | None = None
    is_open: bool = True


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition that a job writes to.

    Attributes:
        topic: Its topic.
        partition: Its number.
        is_new: Whether there is no directory yet.
        log_start_offset: Where it begins.
        log_end_offset: Where it ends.
        epochs: Its leader epochs.
        leader_epoch: The last one on disk, or 0.
        snapshot_from: Where the producer snapshot at the new log end comes from; see `JournalledPartition`.
        tail: The end of its last segment; None if there is none.
        has_metadata: Whether its directory has a ``partition.metadata``, or gets one when it is made.
    """

    topic: str
    partition: int
    is_new: bool
    log_start_offset: int
    log_end_offset: int
    epochs: tuple[EpochEntry, ...]
    leader_epoch: int
    snapshot_from: int | Literal["empty"] | None
    tail: SegmentTail | None
    has_metadata: bool = True

    @property
    def is_empty(self) -> bool:
        """Whether it holds no offsets."""
        return self.log_end_offset <= self.log_start_offset

    @property
    def epochs_after(self) -> tuple[EpochEntry, ...]:
        """The epochs once batches are appended."""
        if self.epochs and self.epochs[-1].epoch >= self.leader_epoch:
            return self.epochs
        return (*self.epochs, EpochEntry(self.leader_epoch, self.log_end_offset))


def new_partition_state(topic: str, partition: int) -> PartitionState:
    """A partition that does not exist yet."""
    return PartitionState(topic, partition, True, 0, 0, (), 0, "empty", None)


def read_partition_state(
    filesystem: FileSystem, directory: PartitionDirectory, checkpointed_start: int
) -> PartitionState:
    """Read what a commit has to know of a partition.

    Args:
        filesystem: Where to read.
        directory: The partition.
        checkpointed_start: Its log start offset as the root says.

    Raises:
        LogDirectoryError: A transaction is open in it, or a segment is no regular file.
        CorruptError: It is not as a log directory is left when it is closed.
    """
    path = directory.path
    names = regular_file_names(filesystem, path)
    if any(suffix.endswith(SWAP_SUFFIX) for suffix in names.suffixes):
        raise CorruptError(
            "Expected a partition that was closed, found a compaction that was interrupted. Open the log directory "
            "with LogDirectory.open, and close it: that finishes it.",
            path=path,
        )
    bases = names.base_offsets(LOG_SUFFIX)
    log_start = max(checkpointed_start, bases[0] if bases else 0)
    epochs = read_leader_epoch_checkpoint(filesystem, os.path.join(path, LEADER_EPOCH_CHECKPOINT))
    closed = _ClosedLog(_checkpointed_end(directory), epochs[-1].epoch if epochs else 0)
    tail, log_end, last_epoch = (
        _read_tail(filesystem, path, bases[-1], names, closed) if bases else (None, log_start, 0)
    )
    if log_end < log_start:
        raise CorruptError(
            f"Expected the log to end at its start offset {log_start} or behind it, found its end at {log_end}. Open "
            "the log directory with LogDirectory.open, and close it.",
            path=path,
        )
    snapshot_from = _check_transactions(filesystem, directory, log_end, names, is_empty=log_end <= log_start)
    leader_epoch = max(0, last_epoch, epochs[-1].epoch if epochs else 0)
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
    )


@dataclass(frozen=True, slots=True)
class _ClosedLog:
    """What the checkpoints say of a log that was closed.

    Attributes:
        end_offset: Where it ended.
        leader_epoch: Its last epoch; 0 if it has none.
    """

    end_offset: int
    leader_epoch: int

    def ends_with(self, log_file: OpenFile, batch: SkimmedBatch) -> bool:
        """Whether a batch at the end of a file is the last one of the log."""
        return (
            batch[1] == log_file.status.size_bytes
            and batch[3] + 1 == self.end_offset
            and _leader_epoch(log_file, batch) <= self.leader_epoch
        )


def _checkpointed_end(directory: PartitionDirectory) -> int:
    root, key = directory.root, directory.topic_partition
    recovery_point = root.recovery_points.get(key, 0)
    if root.clean_shutdown:
        return recovery_point
    # Left so by jobs that flush nothing: they move the high watermark alone.
    try:
        return max(recovery_point, root.high_watermarks.get(key, 0))
    except CorruptCheckpointError:
        return recovery_point


def _read_tail(
    filesystem: FileSystem, path: str, base_offset: int, names: Collection[str], closed: _ClosedLog
) -> tuple[SegmentTail, int, int]:
    """The end of the last segment, the log end offset, and the last batch's leader epoch."""
    log_path = os.path.join(path, log_file_name(base_offset))
    index_name, time_index_name = offset_index_file_name(base_offset), time_index_file_name(base_offset)
    offsets = OffsetIndexFile(filesystem, os.path.join(path, index_name), base_offset, 0)
    times = TimeIndexFile(filesystem, os.path.join(path, time_index_name), base_offset, 0)
    _require_closed_index(filesystem, offsets.file.path, len(offsets))
    with filesystem.open(log_path) as log_file:
        size_bytes = log_file.status.size_bytes
        if size_bytes == 0:
            # What its indexes may hold belongs to nothing.
            return SegmentTail(base_offset), base_offset, 0
        first = next(BatchWalk(log_file, base_offset, size_bytes).skim(), None)
        entry = offsets.entry(len(offsets) - 1) if len(offsets) else None
        indexed = None if entry is None else _indexed_last_batch(log_file, base_offset, entry)
        last = indexed
        if indexed is None or not closed.ends_with(log_file, indexed):
            last = _last_batch(BatchWalk(log_file, base_offset, size_bytes).skim())
        if first is None or last is None or last[1] != size_bytes:
            raise CorruptError(
                "Expected whole batches up to the end of a log that was closed, found something else there. Delete "
                "the file .kafka_cleanshutdown in the log directory, open it with LogDirectory.open, and close it: "
                "that recovers the log.",
                path=log_path,
                position_bytes=size_bytes if last is None else last[1],
            )
        epoch = _leader_epoch(log_file, last)
    is_indexed = index_name in names and time_index_name in names
    if entry is not None and indexed != last:
        _log.warning(
            "Nothing more is appended to %s: the last entry of its offset index does not lead to its end.",
            log_path,
        )
        is_indexed = False
    return (
        SegmentTail(
            base_offset,
            size_bytes,
            len(offsets) * OFFSET_ENTRY_BYTES,
            len(times) * TIME_ENTRY_BYTES,
            first[4],
            is_open=is_indexed and (len(times) > 0 or first[4] < 0),
        ),
        last[3] + 1,
        epoch,
    )


def _require_closed_index(filesystem: FileSystem, path: str, count: int) -> None:
    """Refuse an index with room for more entries: whoever made the room did not close it."""
    status = filesystem.status(path)
    if status is not None and status.size_bytes > count * OFFSET_ENTRY_BYTES:
        raise CorruptError(
            f"Expected an index of {count * OFFSET_ENTRY_BYTES} bytes, as closing a log leaves it, found "
            f"{status.size_bytes}: a broker, or another program, was at work and did not end in good order. Open the "
            "log directory with LogDirectory.open, and close it: that recovers it.",
            path=path,
        )


def _indexed_last_batch(log_file: OpenFile, base_offset: int, entry: OffsetPosition) -> SkimmedBatch | None:
    """The last batch as the last entry of an index has it; None if no batch after it fits."""
    size_bytes = log_file.status.size_bytes
    if not 0 <= entry.position_bytes < size_bytes:
        return None
    batches = BatchWalk(log_file, base_offset, size_bytes).skim(entry.position_bytes)
    try:
        first = next(batches, None)
        last = _last_batch(batches) or first
    except CorruptRecordError:
        return None
    is_meant = first is not None and last is not None and first[2] <= entry.offset <= last[3]
    return last if is_meant else None


def _last_batch(batches: Iterable[SkimmedBatch]) -> SkimmedBatch | None:
    found = deque(batches, maxlen=1)
    return found[0] if found else None


def _leader_epoch(log_file: OpenFile, batch: SkimmedBatch) -> int:
    epoch, magic = _EPOCH_AND_MAGIC.unpack(log_file.read_at(_EPOCH_AND_MAGIC.size, batch[0]))
    return int(epoch) if magic == MAGIC_V2 else 0


def _check_transactions(
    filesystem: FileSystem,
    directory: PartitionDirectory,
    log_end: int,
    names: Collection[str],
    *,
    is_empty: bool,
) -> int | Literal["empty"] | None:
    """Refuse an open transaction, behind which nobody would see the rows; say which snapshot holds the producers."""
    name = snapshot_file_name(log_end)
    if name in names:
        try:
            producers = read_producer_snapshot(filesystem, os.path.join(directory.path, name)) or ()
        except CorruptSnapshotError:
            pass
        else:
            first_offsets = [
                each.current_transaction_first_offset
                for each in producers
                if each.current_transaction_first_offset is not None
            ]
            if first_offsets:
                raise _open_transaction(directory, min(first_offsets))
            return log_end
    if is_empty:
        return "empty"
    found = open_transactions(PartitionLog.load(filesystem, directory))
    if found:
        raise _open_transaction(directory, found[0].first_offset)
    return None


def _open_transaction(directory: PartitionDirectory, first_offset: int) -> LogDirectoryError:
    return LogDirectoryError(
        f"Expected no open transaction in {directory.topic}-{directory.partition}, found one from offset "
        f"{first_offset} on: who reads committed records would not see what is written behind it. Let its producer "
        "commit or abort it first.",
        path=directory.path,
        offset=first_offset,
    )
