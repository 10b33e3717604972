"""A staged segment: the batches of one partition with their indexes, ready to be given its place in a log.

Index entries are relative to its base offset, so that they stay right when it gets another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from storage_core.segment.file_names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from storage_core.segment.index_entries import index_entries
from storage_core.segment.time_index import NO_TIMESTAMP_MS
from storage_core.segment.values import TimestampOffset

if TYPE_CHECKING:
    import numpy.typing as npt

    from storage_core.commit.open_files import OpenFiles
    from storage_core.log_config import LogConfig
    from storage_core.record.record_batches import RecordBatches

__all__ = ["StagedSegment"]

_OFFSET_ENTRY: Final = np.dtype([("relative_offset", ">i4"), ("position_bytes", ">i4")])
_TIME_ENTRY: Final = np.dtype([("timestamp_ms", ">i8"), ("relative_offset", ">i4")])
# So much of an index is kept before it is written.
_SPILL_BYTES: Final = 4096


class _IndexFile:
    """The entries of an index, written some at a time."""

    def __init__(self, files: OpenFiles, name: str, entry: np.dtype[np.void], room: int) -> None:
        self._files = files
        self._name = name
        self._entry_size_bytes = entry.itemsize
        self._written_bytes = 0
        self._kept = bytearray()
        self.room = room

    def add(self, entries: npt.NDArray[np.void]) -> None:
        """Add entries; whoever calls has looked whether there is room."""
        self._kept += entries.tobytes()
        self.room -= len(entries)
        if len(self._kept) >= _SPILL_BYTES and self._written_bytes + len(self._kept) > _SPILL_BYTES:
            self._write()

    def complete(self) -> None:
        """Write what is left; make the file if there was nothing."""
        self._write()

    def _write(self) -> None:
        if not self._written_bytes:
            self._files.create(self._name)
        self._files.write(self._name, [bytes(self._kept)], self._written_bytes)
        self._written_bytes += len(self._kept)
        self._kept.clear()


class StagedSegment:
    """A segment that batches are appended to until it is sealed.

    Args:
        files: Where its files are made.
        base_name: Their name without suffix.
        base_offset: What its index entries count from.
        config: Where index entries are due, and how many there may be.
    """

    def __init__(self, files: OpenFiles, base_name: str, base_offset: int, config: LogConfig) -> None:
        self.base_offset = base_offset
        self.size_bytes = 0
        self._files = files
        self._name = base_name + LOG_SUFFIX
        self._interval_bytes = config.index_interval_bytes
        self._bytes_since_last_entry = 0
        self._largest = TimestampOffset(NO_TIMESTAMP_MS, base_offset)
        self._last_indexed_ms = NO_TIMESTAMP_MS
        # In the time index, one place is kept for the last entry.
        self._offsets = _IndexFile(
            files,
            base_name + OFFSET_INDEX_SUFFIX,
            _OFFSET_ENTRY,
            config.segment_index_bytes // _OFFSET_ENTRY.itemsize,
        )
        self._times = _IndexFile(
            files,
            base_name + TIME_INDEX_SUFFIX,
            _TIME_ENTRY,
            config.segment_index_bytes // _TIME_ENTRY.itemsize - 1,
        )
        files.create(self._name)

    @property
    def has_full_index(self) -> bool:
        """Whether an index takes no more entries: then a segment ends."""
        return self._offsets.room <= 0 or self._times.room <= 0

    def append(self, batches: RecordBatches) -> None:
        """Write batches behind the last, with their final distance from the base offset.

        Raises:
            StorageError: The file system refused.
        """
        entries = index_entries(
            batches.last_offsets,
            batches.headers["max_timestamp_ms"],
            batches.sizes_bytes,
            self.size_bytes,
            self._interval_bytes,
            largest_timestamp=self._largest,
            bytes_since_last_entry=self._bytes_since_last_entry,
        )
        self._files.write(self._name, batches.pieces, self.size_bytes)
        self._add_offsets(entries.offsets, entries.positions_bytes)
        self._add_times(entries.timestamps_ms, entries.timestamp_offsets)
        self.size_bytes += batches.size_bytes
        self._largest = entries.largest_timestamp
        self._bytes_since_last_entry = entries.bytes_since_last_entry

    def seal(self) -> None:
        """Complete the indexes, as a broker does when it closes a segment."""
        self._times.room += 1
        self._add_times(
            np.array([self._largest.timestamp_ms], np.int64), np.array([self._largest.offset], np.int64)
        )
        self._times.complete()
        self._offsets.complete()

    def _add_offsets(self, offsets: npt.NDArray[np.int64], positions_bytes: npt.NDArray[np.int64]) -> None:
        count = min(len(offsets), self._offsets.room)
        entries = np.empty(count, _OFFSET_ENTRY)
        entries["relative_offset"] = offsets[:count] - self.base_offset
        entries["position_bytes"] = positions_bytes[:count]
        self._offsets.add(entries)

    def _add_times(self, timestamps_ms: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> None:
        is_new = np.diff(timestamps_ms, prepend=self._last_indexed_ms) > 0
        timestamps_ms, offsets = (
            timestamps_ms[is_new][: self._times.room],
            offsets[is_new][: self._times.room],
        )
        if not len(offsets):
            return
        entries = np.empty(len(offsets), _TIME_ENTRY)
        entries["timestamp_ms"] = timestamps_ms
        entries["relative_offset"] = offsets - self.base_offset
        self._times.add(entries)
        self._last_indexed_ms = int(timestamps_ms[-1])
