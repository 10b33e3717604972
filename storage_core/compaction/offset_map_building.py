"""Building the offset map of a pass (Kafka's ``Cleaner.buildOffsetMap``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from storage_core.compaction.batch_decisions import read_transactions
from storage_core.compaction.source_windows import last_offsets_of, source_windows
from storage_core.compaction.values import MapStatistics
from storage_core.record.batch_header import CONTROL_FLAG
from storage_core.record.decode import decode_records
from storage_core.record.section import Slices, WantedFields
from storage_core.scan.sections import SectionMaker
from storage_core.segment.segment_files import DEFAULT_MAX_BATCH_BYTES
from storage_core.segment.segment_windows import WINDOW_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.compaction.offset_map import OffsetMap
    from storage_core.compaction.transactions import CleanedTransactions
    from storage_core.compaction.values import Throttle
    from storage_core.record.batch_window import BatchWindow
    from storage_core.segment.log_segment import LogSegment

__all__ = ["build_offset_map"]

_WANTED: Final = WantedFields(timestamp=False, value=False)

_Int64Array = npt.NDArray[np.int64]


def build_offset_map(
    segments: Sequence[LogSegment],
    first_dirty_offset: int,
    end_offset: int,
    offset_map: OffsetMap,
    transactions: CleanedTransactions,
    *,
    throttle: Throttle | None = None,
    window_bytes: int = WINDOW_BYTES,
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
) -> MapStatistics:
    """Clear a map, and put the keys of the dirty records into it, as many as it takes.

    Its ``latest_offset`` is then the last offset that it knows all about: what lies above it is not to be cleaned.

    Args:
        segments: The dirty segments, in order; the first one may begin below the first dirty offset.
        first_dirty_offset: Records below it were cleaned before.
        end_offset: The base offset of the first segment behind them.
        offset_map: The map.
        transactions: Of its own, not that of the cleaning which follows. It has to know the aborted transactions that
            reach into the dirty offsets.
        throttle: Is told of what was read.
        window_bytes: How much is read at once, unless a batch is larger.
        max_batch_bytes: The most that a batch may inflate to.

    Raises:
        CorruptRecordError: Bytes of a segment are no batch, or a CRC is wrong.
        BatchTooLargeError: A batch is larger than may be read, or inflates to more.
    """
    offset_map.clear()
    builder = _MapBuilder(offset_map, transactions, first_dirty_offset, max_batch_bytes)
    next_bases = [*(segment.base_offset for segment in segments[1:]), end_offset]
    for segment, next_base in zip(segments, next_bases, strict=True):
        start_position_bytes = segment.offset_index.lookup(first_dirty_offset).position_bytes
        for window in source_windows(segment, start_position_bytes, window_bytes=window_bytes):
            if throttle is not None:
                throttle(window.end)
            builder.add(window)
            if builder.is_full:
                return builder.statistics()
        # Offsets that are missing at the end of a segment are no reason to come back.
        offset_map.latest_offset = next_base - 1
    return builder.statistics()


class _MapBuilder:
    """Puts the keys of one window after the other into a map."""

    def __init__(
        self,
        offset_map: OffsetMap,
        transactions: CleanedTransactions,
        first_dirty_offset: int,
        max_batch_bytes: int,
    ) -> None:
        self.is_full = False
        self._offset_map = offset_map
        self._transactions = transactions
        self._first_dirty_offset = first_dirty_offset
        self._sections = SectionMaker(max_batch_bytes, _WANTED)
        self._records_read = 0
        self._bytes_read = 0

    def statistics(self) -> MapStatistics:
        """What it took so far."""
        return MapStatistics(self._records_read, self._bytes_read, self.is_full)

    def add(self, window: BatchWindow) -> None:
        """Put the keys of a window, up to where the map is full."""
        headers = window.headers
        last_offsets = last_offsets_of(window)
        may_go, _ = read_transactions(window, self._transactions)
        is_wanted = ~may_go & ((headers["attributes"] & CONTROL_FLAG) == 0)
        is_wanted &= (headers["record_count"] != 0) & (last_offsets >= self._first_dirty_offset)
        self._bytes_read += window.end
        for section in self._sections.sections(window, np.flatnonzero(is_wanted)):
            columns = decode_records(section, _WANTED)
            keys = columns.keys
            assert keys is not None  # noqa: S101  (they were asked for)
            self._records_read += len(columns.offsets)
            rows = np.flatnonzero((keys.lengths >= 0) & (columns.offsets >= self._first_dirty_offset))
            offsets = columns.offsets[rows]
            slices = Slices(keys.starts[rows], keys.lengths[rows])
            taken = self._offset_map.put_many(section.buffer, slices, offsets)
            if taken < len(rows):
                self.is_full = True
                self._end_in_front_of(int(offsets[taken]), last_offsets)
                return
        self._raise_latest_offset(int(last_offsets[-1]))

    def _end_in_front_of(self, offset: int, last_offsets: _Int64Array) -> None:
        """The record at an offset was not taken: all is known up to the last key taken, or the last batch before."""
        number = int(last_offsets.searchsorted(offset))
        if number:
            self._raise_latest_offset(int(last_offsets[number - 1]))

    def _raise_latest_offset(self, last_offset: int) -> None:
        if last_offset >= self._first_dirty_offset:
            self._offset_map.latest_offset = max(self._offset_map.latest_offset, last_offset)
