"""Which batches of a window a read needs, decided by their headers alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from storage_core.record.batch_header import CONTROL_FLAG, LOG_OVERHEAD_BYTES, MAX_OFFSET, TRANSACTIONAL_FLAG

if TYPE_CHECKING:
    import numpy.typing as npt

    from storage_core.record.batch_window import BatchWindow
    from storage_core.scan.spans import LogSpan
    from storage_core.segment import AbortedTransaction

__all__ = ["AbortedRanges", "BatchSelection", "select_batches"]


class BatchSelection:
    """The batches of a window within a span's offsets.

    Attributes:
        decoded: Indexes of the batches with records that consumers may see.
        misfits: Indexes of the batches that cannot count where they stand: the offsets do not ascend, or lie
            outside of the segment, or the batch is too large.
        base_offsets: Per batch, its base offset.
        last_offsets: Per batch, its last offset.
    """

    __slots__ = ("base_offsets", "decoded", "last_offsets", "misfits")

    def __init__(
        self,
        decoded: npt.NDArray[np.int64],
        misfits: npt.NDArray[np.int64],
        base_offsets: npt.NDArray[np.int64],
        last_offsets: npt.NDArray[np.int64],
    ) -> None:
        self.decoded = decoded
        self.misfits = misfits
        self.base_offsets = base_offsets
        self.last_offsets = last_offsets


def select_batches(
    window: BatchWindow, span: LogSpan, aborted: AbortedRanges, lowest_offset: int, max_batch_bytes: int
) -> BatchSelection:
    """Choose the batches to decode, and find those that cannot be where they are.

    Args:
        window: At least one batch.
        span: The offsets wanted.
        aborted: The transactions to leave out.
        lowest_offset: No batch may begin below it: the segment's base offset, or the offset
            behind the batch before.
        max_batch_bytes: No batch may be larger.
    """
    headers = window.headers
    base_offsets = headers["base_offset"].astype(np.int64)
    last_offsets = base_offsets + headers["last_offset_delta"]
    visible = (last_offsets >= span.start_offset) & (base_offsets < span.end_offset)
    visible &= (headers["record_count"] != 0) & ((headers["attributes"] & CONTROL_FLAG) == 0)
    visible &= ~aborted.cover(headers, base_offsets)
    lowest = np.empty_like(base_offsets)
    lowest[0] = min(lowest_offset, MAX_OFFSET)
    lowest[1:] = last_offsets[:-1] + 1
    misfits = (base_offsets < lowest) | (last_offsets < base_offsets)
    misfits |= headers["batch_length"] > max_batch_bytes - LOG_OVERHEAD_BYTES
    if span.segment_end_offset is not None:
        misfits |= last_offsets > span.segment_end_offset - 1
    return BatchSelection(
        np.flatnonzero(visible),
        np.flatnonzero(misfits),
        base_offsets,
        last_offsets,
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
