"""Appending staged batches to the end of a segment, as a broker does it: the log file, and the entries of its indexes.

Everything is counted from the sizes in the journal. So it comes to the same however often it was begun.
"""

from __future__ import annotations

import struct
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import numpy as np

from storage_core.checkpoint.stage_names import data_suffix_of
from storage_core.errors import CorruptError
from storage_core.publishing.batch_heads import BatchHeads
from storage_core.publishing.copy_batches import copy_batches
from storage_core.segment.file_names import log_file_name, offset_index_file_name, time_index_file_name
from storage_core.segment.index_entries import index_entries
from storage_core.segment.offset_index import ENTRY_SIZE_BYTES as OFFSET_ENTRY_BYTES
from storage_core.segment.time_index import ENTRY_SIZE_BYTES as TIME_ENTRY_BYTES
from storage_core.segment.values import TimestampOffset

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from storage_core.checkpoint.commit_journal import AppendOperation
    from storage_core.filesystem import FileSystem, WritableFile
    from storage_core.log_config import LogConfig
    from storage_core.segment.index_entries import IndexEntries

__all__ = ["append_staged", "open_cut"]

_NO_TIMESTAMP_MS: Final = -1
_JOINED_BATCHES: Final = 1024
_TIME_ENTRY: Final = struct.Struct(">qi")
_OFFSET_ENTRIES: Final = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
_TIME_ENTRIES: Final = np.dtype([("timestamp_ms", ">i8"), ("relative_offset", ">i4")])


def append_staged(
    filesystem: FileSystem,
    root: str,
    directory: str,
    operation: AppendOperation,
    leader_epoch: int,
    config: LogConfig,
    *,
    keep_offsets: bool = False,
) -> list[str]:
    """Cut a segment's files to their journalled sizes, and append to them. Nothing is flushed.

    Args:
        filesystem: Where to read and write.
        root: The log directory, in which the staged files stand.
        directory: The partition's directory.
        operation: What to append, and where.
        leader_epoch: The epoch that the batches get.
        config: Says how far index entries lie apart, and how many there may be.
        keep_offsets: Whether the batches have the offsets already that they are to have.

    Returns:
        The files to be flushed.

    Raises:
        CorruptError: A file is shorter than the journal says, or a staged batch is damaged.
        StorageError: The file system refused.
    """
    segment = operation.segment_base_offset
    paths = [
        f"{directory}/{name(segment)}"
        for name in (log_file_name, offset_index_file_name, time_index_file_name)
    ]
    log_path, index_path, time_index_path = paths
    indexes = _Entries(segment, config, operation)
    with open_cut(filesystem, time_index_path, operation.time_index_size_before_bytes) as time_index:
        indexes.begin(time_index)
        with open_cut(filesystem, log_path, operation.size_before_bytes) as log:
            offset = None if keep_offsets else operation.base_offset
            for heads in _joined(_appended(filesystem, root, operation, log, offset, leader_epoch)):
                indexes.add(heads)
        with open_cut(filesystem, index_path, operation.index_size_before_bytes) as index:
            index.write_at(indexes.offset_entries, operation.index_size_before_bytes)
        time_index.write_at(indexes.time_entries(), operation.time_index_size_before_bytes)
    return paths


def _appended(
    filesystem: FileSystem,
    root: str,
    operation: AppendOperation,
    log: WritableFile,
    offset: int | None,
    leader_epoch: int,
) -> Iterator[BatchHeads]:
    """Append the ranges, one behind the other."""
    position_bytes = operation.size_before_bytes
    # Those of one file stand together.
    for file, ranges in groupby(operation.ranges, key=attrgetter("file")):
        with filesystem.open(f"{root}/{file}{data_suffix_of(file)}") as pack:
            for staged in ranges:
                for heads in copy_batches(pack, staged, log, position_bytes, offset, leader_epoch):
                    if offset is not None:
                        offset += heads.offset_count
                    yield heads
                position_bytes += staged.size_bytes


def _joined(parts: Iterable[BatchHeads]) -> Iterator[BatchHeads]:
    """The same batches, more of them at a time: what is done with them takes as long for one as for many."""
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


def open_cut(filesystem: FileSystem, path: str, size_bytes: int) -> WritableFile:
    """Open a file, which is made if it is to be empty, and cut it to a size.

    Raises:
        CorruptError: It is shorter.
    """
    file = filesystem.open_for_writing(path, create=size_bytes == 0)
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
            f"{found_bytes}: somebody else has changed it since. Bring it back, then open the log directory "
            "again: the commit is completed then.",
            path=path,
        )
    return file


class _Entries:
    """Collects the entries for the indexes of one segment: those that a broker writes, and the last one on closing."""

    def __init__(self, segment: int, config: LogConfig, operation: AppendOperation) -> None:
        self.offset_entries: list[bytes] = []
        self._segment = segment
        self._interval_bytes = config.index_interval_bytes
        self._size_before_bytes = operation.time_index_size_before_bytes
        offset_room = config.segment_index_bytes // OFFSET_ENTRY_BYTES
        self._offset_room = max(0, offset_room - operation.index_size_before_bytes // OFFSET_ENTRY_BYTES)
        # One is kept for the last entry.
        time_room = config.segment_index_bytes // TIME_ENTRY_BYTES - 1
        self._time_room = max(0, time_room - operation.time_index_size_before_bytes // TIME_ENTRY_BYTES)
        self._times: list[bytes] = []
        self._last_time = self._largest = TimestampOffset(_NO_TIMESTAMP_MS, segment)
        self._bytes_since_last_entry = 0

    def begin(self, time_index: WritableFile) -> None:
        """Take the largest timestamp so far from the time index, which was completed on closing."""
        if self._size_before_bytes >= TIME_ENTRY_BYTES:
            data = time_index.read_at(TIME_ENTRY_BYTES, self._size_before_bytes - TIME_ENTRY_BYTES)
            timestamp_ms, relative_offset = _TIME_ENTRY.unpack(data)
            self._last_time = self._largest = TimestampOffset(timestamp_ms, self._segment + relative_offset)

    def add(self, heads: BatchHeads) -> None:
        """Add the entries for batches that stand in the log, behind those before."""
        entries = index_entries(
            heads.last_offsets,
            heads.headers["max_timestamp_ms"],
            heads.sizes_bytes,
            heads.start_bytes,
            self._interval_bytes,
            largest_timestamp=self._largest,
            bytes_since_last_entry=self._bytes_since_last_entry,
        )
        self._largest = entries.largest_timestamp
        self._bytes_since_last_entry = entries.bytes_since_last_entry
        self._add_offsets(entries)
        self._add_times(entries)

    def time_entries(self) -> list[bytes]:
        """The entries of the time index, with that of the largest timestamp."""
        if self._largest.timestamp_ms > self._last_time.timestamp_ms:
            entry = _TIME_ENTRY.pack(self._largest.timestamp_ms, self._largest.offset - self._segment)
            return [*self._times, entry]
        return self._times

    def _add_offsets(self, entries: IndexEntries) -> None:
        count = min(len(entries.offsets), self._offset_room)
        if count:
            rows = np.empty(count, _OFFSET_ENTRIES)
            rows["relative_offset"] = entries.offsets[:count] - self._segment
            rows["position"] = entries.positions_bytes[:count]
            self.offset_entries.append(rows.tobytes())
            self._offset_room -= count

    def _add_times(self, entries: IndexEntries) -> None:
        is_new = np.diff(entries.timestamps_ms, prepend=self._last_time.timestamp_ms) > 0
        timestamps_ms: NDArray[np.int64] = entries.timestamps_ms[is_new][: self._time_room]
        if len(timestamps_ms):
            offsets = entries.timestamp_offsets[is_new][: self._time_room]
            rows = np.empty(len(offsets), _TIME_ENTRIES)
            rows["timestamp_ms"] = timestamps_ms
            rows["relative_offset"] = offsets - self._segment
            self._times.append(rows.tobytes())
            self._time_room -= len(rows)
            self._last_time = TimestampOffset(int(timestamps_ms[-1]), int(offsets[-1]))
