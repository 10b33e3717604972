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
        table = np.array(
            [(each.producer_id, each.first_offset, each.last_offset) for each in transactions], np.int64
        ).reshape(-1, 3)
        self._producer_ids, self._first_offsets, self._last_offsets = table.T

    def cover(self, headers: npt.NDArray[Any], base_offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Per batch: whether it is a producer's data between a transaction's first offset and its abort marker."""
        covered = np.zeros(len(headers), np.bool_)
        near = (self._last_offsets >= base_offsets[0]) & (self._first_offsets <= base_offsets[-1])
        if not near.any():
            return covered
        producer_ids = headers["producer_id"].astype(np.int64)
        for index in np.flatnonzero(near).tolist():
            covered |= (
                (producer_ids == self._producer_ids[index])
                & (base_offsets >= self._first_offsets[index])
                & (base_offsets <= self._last_offsets[index])
            )
        covered &= (headers["attributes"] & TRANSACTIONAL_FLAG) != 0
        return covered
