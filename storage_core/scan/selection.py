"""Which batches of a window a read needs, decided by their headers alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from storage_core.errors import CorruptRecordError
from storage_core.record.batch_header import CONTROL_FLAG, TRANSACTIONAL_FLAG

if TYPE_CHECKING:
    import numpy.typing as npt

    from storage_core.record.batch_window import BatchWindow
    from storage_core.scan.spans import LogSpan
    from storage_core.segment import AbortedTransaction

__all__ = ["AbortedRanges", "BatchSelection", "select_batches"]


class BatchSelection:
    """The batches of a window within a span's offsets.

    Attributes:
        checked: Indexes of the batches within the offsets: their CRC is checked.
        decoded: Of these, the batches with records that consumers may see.
        is_past_end: Whether a batch at or above the span's end was met.
        next_offset: The offset behind the last batch of the window.
    """

    __slots__ = ("checked", "decoded", "is_past_end", "next_offset")

    def __init__(
        self,
        checked: npt.NDArray[np.int64],
        decoded: npt.NDArray[np.int64],
        next_offset: int,
        *,
        is_past_end: bool,
    ) -> None:
        self.checked = checked
        self.decoded = decoded
        self.next_offset = next_offset
        self.is_past_end = is_past_end


def select_batches(
    window: BatchWindow, span: LogSpan, aborted: AbortedRanges, lowest_offset: int
) -> BatchSelection:
    """Choose the batches to check and to decode.

    Args:
        window: At least one batch.
        span: The offsets wanted.
        aborted: The transactions to leave out.
        lowest_offset: No batch may begin below it: the segment's base offset, or the offset
            behind the batch before.

    Raises:
        CorruptRecordError: The batches' offsets do not ascend.
    """
    headers = window.headers
    base_offsets = headers["base_offset"].astype(np.int64)
    last_offsets = base_offsets + headers["last_offset_delta"]
    _check_order(window, base_offsets, last_offsets, lowest_offset)
    within = (last_offsets >= span.start_offset) & (base_offsets < span.end_offset)
    visible = within & (headers["record_count"] != 0) & ((headers["attributes"] & CONTROL_FLAG) == 0)
    visible &= ~aborted.cover(headers, base_offsets)
    return BatchSelection(
        np.flatnonzero(within),
        np.flatnonzero(visible),
        int(last_offsets[-1]) + 1,
        is_past_end=bool(base_offsets[-1] >= span.end_offset),
    )


def _check_order(
    window: BatchWindow,
    base_offsets: npt.NDArray[np.int64],
    last_offsets: npt.NDArray[np.int64],
    lowest_offset: int,
) -> None:
    lowest = np.empty_like(base_offsets)
    lowest[0] = lowest_offset
    lowest[1:] = last_offsets[:-1] + 1
    wrong = np.flatnonzero((base_offsets < lowest) | (last_offsets < base_offsets))
    if not len(wrong):
        return
    header = window.header(int(wrong[0]))
    raise CorruptRecordError(
        f"Expected a record batch with offsets from {lowest[wrong[0]]} on, found one from "
        f"{header.base_offset} to {header.last_offset}: batches are out of order.",
        path=window.path,
        position_bytes=header.position_bytes,
        end_position_bytes=header.end_position_bytes,
        offset=header.base_offset,
        last_offset=header.last_offset,
    )


class AbortedRanges:
    """The aborted transactions of a span, ready to be asked for each window."""

    def __init__(self, transactions: tuple[AbortedTransaction, ...]) -> None:
        by_producer: dict[int, list[tuple[int, int]]] = {}
        for each in transactions:
            by_producer.setdefault(each.producer_id, []).append((each.first_offset, each.last_offset))
        self._by_producer = {
            producer_id: _OffsetRanges(ranges) for producer_id, ranges in by_producer.items()
        }

    def cover(self, headers: npt.NDArray[Any], base_offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Per batch: whether it is a producer's data between a transaction's first offset and its abort marker."""
        covered = np.zeros(len(headers), np.bool_)
        if not self._by_producer:
            return covered
        indexes = np.flatnonzero(headers["attributes"] & TRANSACTIONAL_FLAG)
        producer_ids = headers["producer_id"][indexes].astype(np.int64)
        order = np.argsort(producer_ids, kind="stable")
        found, first_rows = np.unique(producer_ids[order], return_index=True)
        for producer_id, rows in zip(found.tolist(), np.split(order, first_rows[1:]), strict=False):
            ranges = self._by_producer.get(producer_id)
            if ranges is not None:
                own = indexes[rows]
                covered[own] = ranges.cover(base_offsets[own])
        return covered


class _OffsetRanges:
    """Ranges of offsets, both ends included."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        table = np.array(sorted(ranges), np.int64)
        self._first_offsets = table[:, 0]
        # As far as this range or one that begins before it reaches.
        self._last_offsets = np.maximum.accumulate(table[:, 1])

    def cover(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Per offset: whether it lies in one of the ranges."""
        numbers = np.searchsorted(self._first_offsets, offsets, side="right") - 1
        covered: npt.NDArray[np.bool_] = (numbers >= 0) & (offsets <= self._last_offsets[numbers])
        return covered
