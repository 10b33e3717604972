"""Making the index entries of batches that are written where no log is open: those of a broker, as bytes.

What is made comes to the same, byte by byte, as what `LogSegment` writes and closes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from storage_core.segment.index_entries import index_entries
from storage_core.segment.offset_index import ENTRY_SIZE_BYTES as OFFSET_ENTRY_BYTES
from storage_core.segment.offset_index import offset_entries
from storage_core.segment.time_index import ENTRY_SIZE_BYTES as TIME_ENTRY_BYTES
from storage_core.segment.time_index import NO_TIMESTAMP_MS, time_entries
from storage_core.segment.values import TimestampOffset

if TYPE_CHECKING:
    from typing import Any

    import numpy.typing as npt

    from storage_core.log_config import LogConfig
    from storage_core.segment.index_entries import IndexEntries

__all__ = ["IndexBuilder"]


class IndexBuilder:
    """Makes the entries for both indexes of one segment.

    Args:
        base_offset: What they count from.
        config: How far they lie apart, and how many there may be.
        offset_index_bytes: The size that the offset index has already.
        time_index_bytes: The size that the time index has already.
        last_time: The last entry of the time index; None if it has none.
    """

    def __init__(
        self,
        base_offset: int,
        config: LogConfig,
        *,
        offset_index_bytes: int = 0,
        time_index_bytes: int = 0,
        last_time: TimestampOffset | None = None,
    ) -> None:
        self._base_offset = base_offset
        self._interval_bytes = config.index_interval_bytes
        self._offset_room = (config.segment_index_bytes - offset_index_bytes) // OFFSET_ENTRY_BYTES
        # One is kept for the last entry.
        self._time_room = (config.segment_index_bytes - time_index_bytes) // TIME_ENTRY_BYTES - 1
        self._last_time = self._largest = last_time or TimestampOffset(NO_TIMESTAMP_MS, base_offset)
        self._bytes_since_last_entry = 0

    @property
    def is_full(self) -> bool:
        """Whether an index takes no more entries: then a segment ends."""
        return self._offset_room <= 0 or self._time_room <= 0

    def add(
        self,
        last_offsets: npt.NDArray[np.int64],
        max_timestamps_ms: npt.NDArray[Any],
        sizes_bytes: npt.NDArray[np.int64],
        position_bytes: int,
    ) -> tuple[bytes, bytes]:
        """The entries of the offset index and of the time index for batches behind those before.

        Args:
            last_offsets: Last offset of each batch; at least one.
            max_timestamps_ms: Its largest timestamp.
            sizes_bytes: Its size.
            position_bytes: Where the first one begins in the log file.
        """
        entries = index_entries(
            last_offsets,
            max_timestamps_ms,
            sizes_bytes,
            position_bytes,
            self._interval_bytes,
            largest_timestamp=self._largest,
            bytes_since_last_entry=self._bytes_since_last_entry,
        )
        self._largest = entries.largest_timestamp
        self._bytes_since_last_entry = entries.bytes_since_last_entry
        return self._offset_entries(entries), self._time_entries(entries)

    def last_entry(self) -> bytes:
        """What the time index gets in the end: the entry of the largest timestamp, unless it is there."""
        if self._largest.timestamp_ms <= self._last_time.timestamp_ms:
            return b""
        self._last_time = self._largest
        return time_entries(
            np.array([self._largest.timestamp_ms]), np.array([self._largest.offset]), self._base_offset
        )

    def _offset_entries(self, entries: IndexEntries) -> bytes:
        count = min(len(entries.offsets), max(0, self._offset_room))
        if not count:
            return b""
        self._offset_room -= count
        return offset_entries(entries.offsets[:count], entries.positions_bytes[:count], self._base_offset)

    def _time_entries(self, entries: IndexEntries) -> bytes:
        is_new = np.diff(entries.timestamps_ms, prepend=self._last_time.timestamp_ms) > 0
        count = min(int(np.count_nonzero(is_new)), max(0, self._time_room))
        if not count:
            return b""
        timestamps_ms = entries.timestamps_ms[is_new][:count]
        offsets = entries.timestamp_offsets[is_new][:count]
        self._time_room -= count
        self._last_time = TimestampOffset(int(timestamps_ms[-1]), int(offsets[-1]))
        return time_entries(timestamps_ms, offsets, self._base_offset)
