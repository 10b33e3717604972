"""Appending batches to a log file and to its indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from storage_core.record.batch_header import LOG_OVERHEAD_BYTES
from storage_core.segment.index_entries import index_entries
from storage_core.segment.offset_index_file import LARGEST_RELATIVE_OFFSET, offset_overflow
from storage_core.segment.values import TimestampOffset

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    import numpy.typing as npt

    from storage_core.record.batch_header import BytesLike
    from storage_core.record.batch_window import BatchWindow
    from storage_core.record.record_batches import RecordBatches
    from storage_core.segment.log_file import LogFile
    from storage_core.segment.segment_indexes import SegmentIndexes

__all__ = ["SegmentWriter"]


class SegmentWriter:
    """Appends to one segment, and knows what decides about the next index entry.

    Args:
        log: The log file.
        indexes: Its indexes.
        base_offset: The segment's base offset.
        index_interval_bytes: ``index.interval.bytes``.

    Attributes:
        bytes_since_last_entry: How much was appended since the last index entry, or since the segment was
            opened: as with a broker, what was there before does not count.
    """

    __slots__ = (
        "_base_offset",
        "_index_interval_bytes",
        "_indexes",
        "_largest_timestamp",
        "_log",
        "bytes_since_last_entry",
    )

    def __init__(
        self, log: LogFile, indexes: SegmentIndexes, base_offset: int, index_interval_bytes: int
    ) -> None:
        self.bytes_since_last_entry = 0
        self._log = log
        self._indexes = indexes
        self._base_offset = base_offset
        self._index_interval_bytes = index_interval_bytes
        self._largest_timestamp: TimestampOffset | None = None

    @property
    def largest_timestamp(self) -> TimestampOffset:
        """The largest timestamp and its batch's last offset; of what was there before, what the time index ends with."""
        if self._largest_timestamp is None:
            self._largest_timestamp = self._indexes.times.last_entry
        return self._largest_timestamp

    @property
    def known_largest_timestamp(self) -> TimestampOffset | None:
        """The same; None if nobody has asked for it, and nothing was appended."""
        return self._largest_timestamp

    def restart(self, largest_timestamp: TimestampOffset | None) -> None:
        """Go on behind another end: the segment was cut, or recovered."""
        self._largest_timestamp = largest_timestamp
        self.bytes_since_last_entry = 0

    def append(self, batches: RecordBatches) -> None:
        """Write batches, and index them; see `LogSegment.append`."""
        if batches.count == 1:
            self._append_one(batches)
        elif batches.count:
            timestamps_ms = batches.headers["max_timestamp_ms"]
            self._append_many(batches.pieces, batches.last_offsets, timestamps_ms, batches.sizes_bytes)

    def append_pieces(self, headers: npt.NDArray[Any], pieces: Sequence[BytesLike]) -> None:
        """Write batches whose bytes are in pieces of any size, and index them; see `LogSegment.append_pieces`."""
        last_offsets = headers["base_offset"].astype(np.int64) + headers["last_offset_delta"]
        sizes_bytes = headers["batch_length"] + np.int64(LOG_OVERHEAD_BYTES)
        self._append_many(pieces, last_offsets, headers["max_timestamp_ms"], sizes_bytes)

    def append_windows(self, windows: Iterable[BatchWindow]) -> int:
        """Append the batches of windows, up to the first whose last offset does not fit; return their bytes."""
        copied_bytes = 0
        for window in windows:
            headers = window.headers
            last_offsets = headers["base_offset"].astype(np.int64) + headers["last_offset_delta"]
            relative_offsets = last_offsets - self._base_offset
            fits = (relative_offsets >= 0) & (relative_offsets <= LARGEST_RELATIVE_OFFSET)
            count = len(fits) if fits.all() else int(fits.argmin())
            borders = np.append(window.starts, window.end)[: count + 1]
            if count:
                size_bytes = int(borders[-1])
                pieces = [window.buffer.data[:size_bytes]]
                timestamps_ms = headers["max_timestamp_ms"][:count]
                self._append_many(pieces, last_offsets[:count], timestamps_ms, np.diff(borders))
                copied_bytes += size_bytes
            if count < len(fits):
                break
        return copied_bytes

    def _append_one(self, batches: RecordBatches) -> None:
        # Plain numbers: for one batch, numpy takes longer than the write.
        base_offset, batch_length, _, _, _, _, offset_delta, _, max_timestamp_ms, *_ = batches.headers[
            0
        ].item()
        size_bytes = batch_length + LOG_OVERHEAD_BYTES
        last_offset = base_offset + offset_delta
        if not 0 <= last_offset - self._base_offset <= LARGEST_RELATIVE_OFFSET:
            raise offset_overflow(self._log.path, self._base_offset, last_offset)
        largest = self.largest_timestamp
        if max_timestamp_ms > largest.timestamp_ms:
            largest = TimestampOffset(max_timestamp_ms, last_offset)
        indexes = self._indexes
        if not indexes.is_open:
            indexes.open()
        log = self._log
        log.write(batches.pieces, size_bytes)
        counted_bytes = self.bytes_since_last_entry
        if counted_bytes > self._index_interval_bytes:
            indexes.add_one(last_offset, log.size_bytes, largest)
            counted_bytes = 0
        log.advance(size_bytes)
        self._largest_timestamp = largest
        self.bytes_since_last_entry = counted_bytes + size_bytes

    def _append_many(
        self,
        pieces: Sequence[BytesLike],
        last_offsets: npt.NDArray[np.int64],
        max_timestamps_ms: npt.NDArray[Any],
        sizes_bytes: npt.NDArray[np.int64],
    ) -> None:
        for last_offset in (int(last_offsets[0]), int(last_offsets[-1])):
            if not 0 <= last_offset - self._base_offset <= LARGEST_RELATIVE_OFFSET:
                raise offset_overflow(self._log.path, self._base_offset, last_offset)
        indexes = self._indexes
        entries = index_entries(
            last_offsets,
            max_timestamps_ms,
            sizes_bytes,
            self._log.size_bytes,
            self._index_interval_bytes,
            largest_timestamp=self.largest_timestamp,
            bytes_since_last_entry=self.bytes_since_last_entry,
        )
        size_bytes = int(sizes_bytes.sum())
        if not indexes.is_open:
            indexes.open()
        self._log.write(pieces, size_bytes)
        indexes.add(entries)
        self._log.advance(size_bytes)
        self._largest_timestamp = entries.largest_timestamp
        self.bytes_since_last_entry = entries.bytes_since_last_entry
