"""Where each record of a batch begins and ends.

A v2 record starts with its own length, so its end is known only once its beginning is.
The boundaries are first found by the quickest walk that the shape of the data allows, then
proven by column: every record must end where the next begins, and the last one with its
batch. So the walks may assume what is usual, and need no checks of their own.
"""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from storage_core.record.lanes import STEPS, walk_in_lanes
from storage_core.record.varint import (
    VARINT_LIMIT_BYTES,
    MalformedVarintError,
    VarintCursor,
    read_varint,
    words_of,
)

__all__ = ["UnevenRecordsError", "find_boundaries"]

# With fewer batches than this in a step, on average, it costs more than the plain loop's steps.
_LOCKSTEP_MINIMUM_BATCHES: Final = 32
# Lockstep keeps a place for as many records per batch as the fullest batch has: so many times what is needed.
_LOCKSTEP_MAXIMUM_WASTE: Final = 4
# A run of equal records shorter than this does not pay for the numpy calls that find it.
_RUN_MINIMUM: Final = 48
# Runs are looked for in this many bytes at first, so that a short run costs little.
_RUN_FIRST_TRY_BYTES: Final = 1 << 14
# And in so many times more while it goes on, so that its end costs no look at all that follows.
_RUN_GROWTH: Final = 8
# So much is walked plainly before the next look for a run.
_LOOP_CHUNK_BYTES: Final = 1 << 16

# A byte for each field behind the length. What is shorter is no record, and need not be walked to the end.
_SMALLEST_BODY_BYTES: Final = 6

# Set in the first byte of a length that takes two.
_CONTINUES: Final = 0x80

_Int64Array = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]
_Item = TypeVar("_Item", bound=np.generic)


class UnevenRecordsError(ValueError):
    """The record lengths do not add up to the batch: the plain decoder says where."""


def find_boundaries(
    buffer: _Bytes, starts: _Int64Array, ends: _Int64Array, counts: _Int64Array
) -> tuple[VarintCursor, _Int64Array]:
    """Find the body of every record, that is what follows its length field.

    Args:
        buffer: The uncompressed records of some batches, padded.
        starts: Per batch, where its records begin.
        ends: Per batch, where they end.
        counts: Per batch, the number of records: at least 1, and no more than its bytes can hold.

    Returns:
        A cursor that stands at the beginning of every body, over all batches in order, and where
        each body ends.

    Raises:
        UnevenRecordsError: Lengths are negative, too long, or do not end with the batch.
    """
    # A record has at least one byte, so this also bounds what is allocated below.
    if np.any(counts > ends - starts):
        raise UnevenRecordsError
    for walk in (_walk_in_lockstep, _walk_in_lanes, _walk_each_batch, _walk_long_records):
        try:
            cursor = walk(buffer, starts, ends, counts)
            if cursor is not None:
                return _prove(cursor, starts, ends, counts)
        except (IndexError, MalformedVarintError, UnevenRecordsError):
            continue
    raise UnevenRecordsError


def _prove(
    cursor: VarintCursor, starts: _Int64Array, ends: _Int64Array, counts: _Int64Array
) -> tuple[VarintCursor, _Int64Array]:
    fields = cursor.positions
    if len(fields) != counts.sum():
        raise UnevenRecordsError
    last_rows = np.cumsum(counts) - 1
    body_ends = np.empty_like(fields)
    body_ends[:-1] = fields[1:]
    body_ends[last_rows] = ends
    lengths = cursor.read(VARINT_LIMIT_BYTES)
    if (
        lengths.min() < 1
        or not np.array_equal(cursor.positions + lengths, body_ends)
        or not np.array_equal(fields[last_rows - counts + 1], starts)
    ):
        raise UnevenRecordsError
    return cursor, body_ends


def _walk_in_lockstep(
    buffer: _Bytes, starts: _Int64Array, _ends: _Int64Array, counts: _Int64Array
) -> VarintCursor | None:
    """All batches step forward together, those with many records longest; None if they are too few."""
    most = int(counts.max())
    total = int(counts.sum())
    if total < most * _LOCKSTEP_MINIMUM_BATCHES or most * len(counts) > total * _LOCKSTEP_MAXIMUM_WASTE:
        return None
    order = np.argsort(-counts, kind="stable")
    ordered_counts = counts[order]
    # active[i]: how many batches have more than i records.
    active = np.searchsorted(-ordered_counts, -np.arange(most), side="left").tolist()
    word_at = words_of(buffer)
    fields = np.empty((most, len(starts)), np.int64)
    words = np.empty((most, len(starts)), np.uint64)
    position = starts[order]
    for row, width in enumerate(active):
        position = position[:width]
        fields[row, :width] = position
        here = word_at[position]
        words[row, :width] = here
        position = position + STEPS[here & 0xFFFF]
    return VarintCursor(buffer, _in_file_order(fields, order, counts), _in_file_order(words, order, counts))


def _in_file_order(matrix: npt.NDArray[_Item], order: _Int64Array, counts: _Int64Array) -> npt.NDArray[_Item]:
    """From a column a batch to all records, batch after batch."""
    by_batch = np.empty((matrix.shape[1], matrix.shape[0]), matrix.dtype)
    by_batch[order] = matrix.T
    if by_batch.size == counts.sum():
        return by_batch.reshape(-1)
    return by_batch[np.arange(matrix.shape[0]) < counts[:, None]]


def _walk_in_lanes(
    buffer: _Bytes, starts: _Int64Array, ends: _Int64Array, _counts: _Int64Array
) -> VarintCursor | None:
    """Large batches are walked from many places at once; None if equal records promise to be quicker still."""
    run, _ = _equal_records(buffer, int(starts[0]), int(ends[0]), _RUN_MINIMUM)
    fields = walk_in_lanes(buffer, starts, ends) if len(run) < _RUN_MINIMUM else None
    return None if fields is None else VarintCursor(buffer, fields)


def _walk_each_batch(
    buffer: _Bytes, starts: _Int64Array, ends: _Int64Array, counts: _Int64Array
) -> VarintCursor:
    """One batch after the other: runs of equal records at once, others by a plain loop."""
    pieces: list[_Int64Array] = []
    for start, end, count in zip(starts.tolist(), ends.tolist(), counts.tolist(), strict=True):
        position, left = start, count
        while position < end:
            run, next_position = _equal_records(buffer, position, end, left)
            if len(run) < _RUN_MINIMUM:
                run, next_position = _walk_chunk(buffer, position, min(end, position + _LOOP_CHUNK_BYTES))
            # A walk that went astray in a value of zeros would find a record at each of its bytes.
            left -= len(run)
            if left < 0 or (left == 0 and next_position < end):
                raise UnevenRecordsError
            pieces.append(run)
            position = next_position
    return VarintCursor(buffer, np.concatenate(pieces))


def _equal_records(buffer: _Bytes, position: int, end: int, most: int) -> tuple[_Int64Array, int]:
    """The records from ``position`` on that are as long as the first of them, up to so many."""
    first, second = int(buffer[position]), int(buffer[position + 1])
    step = int(STEPS[first | second << 8])
    end = min(end, position + most * step)
    limit = min(end, position + _RUN_FIRST_TRY_BYTES)
    while True:
        differs = buffer[position:limit:step] != first
        if first >= _CONTINUES:
            differs |= buffer[position + 1 : limit + 1 : step] != second
        count = int(differs.argmax()) if differs.any() else len(differs)
        if count < len(differs) or limit == end:
            return np.arange(position, position + count * step, step), position + count * step
        limit = min(end, position + (limit - position) * _RUN_GROWTH)


def _walk_chunk(buffer: _Bytes, start: int, end: int) -> tuple[_Int64Array, int]:
    """Walk from ``start`` until the next length field is not wholly before ``end``."""
    data = buffer[start : end + 1].tobytes()
    size = end - start
    fields: list[int] = []
    append = fields.append
    position = 0
    while position < size:
        append(position)
        first = data[position]
        # As the table of steps, spelled out: a look-up would cost more here.
        position += (first >> 1) + (data[position + 1] << 6) - 62 if first >= 128 else 1 + (first >> 1)  # noqa: PLR2004
    found = np.array(fields, np.int64)
    found += start
    return found, start + position


def _walk_long_records(
    buffer: _Bytes, starts: _Int64Array, ends: _Int64Array, counts: _Int64Array
) -> VarintCursor:
    """The walk for lengths of three bytes and more."""
    fields = np.empty(int(counts.sum()), np.int64)
    row = 0
    for start, end, count in zip(starts.tolist(), ends.tolist(), counts.tolist(), strict=True):
        data = buffer.data[start:end]
        position = 0
        for _ in range(count):
            fields[row] = start + position
            row += 1
            length, position = read_varint(data, position, VARINT_LIMIT_BYTES)
            if length < _SMALLEST_BODY_BYTES:
                raise UnevenRecordsError
            position += length
    return VarintCursor(buffer, fields)
