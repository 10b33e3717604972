"""Where batches end: each takes as many records as its size allows (Kafka's ``hasRoomFor``).

What a record takes depends on how far its batch goes back: on the lengths of its two deltas. So one end has to be
found after the other, some ten thousand times a second.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from storage_core.record.varint import VARINT_LIMIT_BYTES, VARLONG_LIMIT_BYTES
from storage_core.record.varint_encode import varint_lengths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from storage_core.record.record_rows import RecordRows

__all__ = ["batch_runs", "cut_batches"]

# Length, attributes, timestamp delta and offset delta, a byte each.
_LEAST_HEAD_BYTES: Final = 4
_MOST_DELTA_BYTES: Final = VARLONG_LIMIT_BYTES + VARINT_LIMIT_BYTES
# The first value, and the factor to the next one, that a byte more is needed for.
_TWO_BYTES: Final = 64
_NEXT_BYTE: Final = 128
_WRAPS: Final = 1 << 63

_Int64Array = npt.NDArray[np.int64]


def cut_batches(rows: RecordRows, records_limit_bytes: int, *, is_end: bool) -> _Int64Array:
    """Behind which rows batches end.

    Args:
        rows: The first of them begins a batch.
        records_limit_bytes: The most that the records of one batch may take; a single one may take more.
        is_end: Whether there are no more rows: then the last batch ends with the last row. Otherwise it is left
            open, as rows to come may belong to it.
    """
    count = rows.count
    is_sorted = _is_sorted(rows.timestamps_ms)
    finder = _SortedRows(rows, records_limit_bytes) if is_sorted else _AnyRows(rows, records_limit_bytes)
    if len(rows.timestamps_ms) == len(rows.tails_bytes) == 1:
        ends = _equal_batches(finder.end_of, count)
    else:
        ends = _uneven_batches(finder.end_of, count)
    if is_end and count and (not len(ends) or ends[-1] < count):
        ends = np.append(ends, count)
    return ends


def batch_runs(rows: RecordRows, ends: _Int64Array, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Runs of batches of about a size, by number; the size of a record is its tail's, or nearly so."""
    row_ends = np.cumsum(np.broadcast_to(rows.tails_bytes, rows.count))
    batch_ends = row_ends[ends - 1]
    first, before = 0, 0
    while first < len(ends):
        last = max(int(batch_ends.searchsorted(before + size_bytes, "right")), first + 1)
        yield first, last
        first, before = last, int(batch_ends[last - 1])


def _is_sorted(timestamps_ms: _Int64Array) -> bool:
    """Whether timestamps ascend, and no delta between two of them wraps."""
    if not np.all(timestamps_ms[1:] >= timestamps_ms[:-1]):
        return False
    return not len(timestamps_ms) or int(timestamps_ms[-1]) - int(timestamps_ms[0]) < _WRAPS


def _equal_batches(end_of: Callable[[int], int], count: int) -> _Int64Array:
    step = end_of(0)
    return np.arange(step, count + (step < count), step)


def _uneven_batches(end_of: Callable[[int], int], count: int) -> _Int64Array:
    ends = []
    start = 0
    while (end := end_of(start)) < count:
        ends.append(end)
        start = end
    return np.array(ends, np.int64)


class _SortedRows:
    """Rows whose timestamps ascend: the deltas grow within a batch, and there are few lengths of theirs."""

    def __init__(self, rows: RecordRows, limit_bytes: int) -> None:
        self._count = rows.count
        self._limit_bytes = limit_bytes
        self._times = rows.timestamps_ms.data if len(rows.timestamps_ms) > 1 else None
        # With the attributes.
        self._bodies = rows.tails_bytes + 1
        self._sums_by_deltas: dict[int, memoryview] = {}

    def end_of(self, start: int) -> int:
        """Behind which row a batch ends that begins with a row."""
        row, left_bytes = start, self._limit_bytes
        offset_bytes = time_bytes = 1
        longer_offset = start + _TWO_BYTES
        longer_delta_ms = _TWO_BYTES
        times, count, all_sums = self._times, self._count, self._sums_by_deltas
        first_ms = times[start] if times is not None else 0
        while True:
            # Up to this row, the lengths of both deltas stay as they are.
            same_until = min(count, longer_offset)
            if times is not None and times[same_until - 1] - first_ms >= longer_delta_ms:
                same_until = bisect_right(times, first_ms + longer_delta_ms - 1, row, same_until)
            deltas_bytes = offset_bytes + time_bytes
            sums = all_sums.get(deltas_bytes) or self._sums(deltas_bytes)
            fits_until = sums[row] + left_bytes
            if sums[same_until] > fits_until or same_until == count:
                return max(bisect_right(sums, fits_until, row, same_until + 1) - 1, start + 1)
            left_bytes = fits_until - sums[same_until]
            row = same_until
            if row == longer_offset:
                offset_bytes += 1
                longer_offset = start + (row - start) * _NEXT_BYTE
            else:
                time_bytes += 1
                longer_delta_ms *= _NEXT_BYTE

    def _sums(self, deltas_bytes: int) -> memoryview:
        """Before each row, and behind the last: what all before it take, if their deltas take so many bytes."""
        bodies = self._bodies + deltas_bytes
        sizes = np.zeros(self._count + 1, np.int64)
        np.cumsum(np.broadcast_to(bodies + varint_lengths(bodies), self._count), out=sizes[1:])
        sums = self._sums_by_deltas[deltas_bytes] = sizes.data
        return sums


class _AnyRows:
    """Rows in no order: all that might fit a batch are looked at."""

    def __init__(self, rows: RecordRows, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._timestamps_ms = rows.timestamps_ms
        tails = np.broadcast_to(rows.tails_bytes, rows.count)
        self._least_ends = np.cumsum(tails + _LEAST_HEAD_BYTES)
        # With the attributes.
        self._bodies = tails + 1
        self._delta_lengths = varint_lengths(np.arange(rows.count))
        shortest, longest = int(self._bodies.min()) + 2, int(self._bodies.max()) + _MOST_DELTA_BYTES
        least, most = varint_lengths(np.array([shortest, longest])).tolist()
        # Of all bodies, where it is the same whatever the deltas take.
        self._length_bytes = least if least == most else None

    def end_of(self, start: int) -> int:
        """Behind which row a batch ends that begins with a row."""
        before = int(self._least_ends[start - 1]) if start else 0
        # What does not fit at its least is not looked at.
        reach = int(self._least_ends.searchsorted(before + self._limit_bytes, "right"))
        if reach <= start + 1:
            return start + 1
        bodies = self._bodies[start:reach] + self._delta_lengths[: reach - start]
        bodies += varint_lengths(self._timestamps_ms[start:reach] - self._timestamps_ms[start])
        sizes = bodies + (self._length_bytes or varint_lengths(bodies))
        return start + max(1, int(sizes.cumsum().searchsorted(self._limit_bytes, "right")))
