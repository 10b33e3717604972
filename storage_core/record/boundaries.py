"""Where each record of a batch begins and ends.

A v2 record starts with its own length, so its end is known only once its beginning is.
The boundaries are first found by the quickest walk that the shape of the data allows, then
proven by column: every record must end where the next begins, and the last one with its
batch. So the walks may assume what is usual, and need no checks of their own.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from storage_core.record.varint import VARINT_LIMIT_BYTES, MalformedVarintError, read_varint, read_varints

__all__ = ["UnevenRecordsError", "find_boundaries"]

# With fewer batches than this in a step, on average, it costs more than the plain loop's steps.
_LOCKSTEP_MINIMUM_BATCHES: Final = 32
# A run of equal records shorter than this does not pay for the numpy calls that find it.
_RUN_MINIMUM: Final = 48
# Runs are looked for in this many bytes at first, so that a short run costs little.
_RUN_FIRST_TRY_BYTES: Final = 1 << 14
# And in so many times more while it goes on, so that its end costs no look at all that follows.
_RUN_GROWTH: Final = 8
# So much is walked plainly before the next look for a run.
_LOOP_CHUNK_BYTES: Final = 1 << 16

# Set in the first byte of a length that takes two.
_CONTINUES: Final = 0x80

_Int64Array = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]


class UnevenRecordsError(ValueError):
    """The record lengths do not add up to the batch: the plain decoder says where."""


def _step_table() -> npt.NDArray[np.int64]:
    """Per pair of bytes at a length field: the distance to the next length field.

    Lengths of three bytes and more have no entry: their distance leads out of any buffer.
    """
    pair = np.arange(1 << 16)
    first, second = pair & 0xFF, pair >> 8
    one_byte = 1 + (first >> 1)
    two_bytes = 2 + (((first & 0x7F) | (second << 7)) >> 1)
    return np.where(first < _CONTINUES, one_byte, np.where(second < _CONTINUES, two_bytes, 1 << 40))


_STEPS: Final = _step_table()


def find_boundaries(
    buffer: _Bytes, starts: _Int64Array, ends: _Int64Array, counts: _Int64Array
) -> tuple[_Int64Array, _Int64Array]:
    """Find the body of every record, that is what follows its length field.

    Args:
        buffer: The uncompressed records of some batches, padded.
        starts: Per batch, where its records begin.
        ends: Per batch, where they end.
        counts: Per batch, the number of records: at least 1, and no more than its bytes can hold.

    Returns:
        Where each body begins and where it ends, over all batches in order.

    Raises:
        UnevenRecordsError: Lengths are negative, too long, or do not end with the batch.
    """
    in_lockstep = bool(counts.sum() >= counts.max() * _LOCKSTEP_MINIMUM_BATCHES)
    for walk in (_walk_in_lockstep,) * in_lockstep + (_walk_each_batch, _walk_long_records):
        try:
            return _prove(buffer, walk(buffer, starts, ends, counts), starts, ends, counts)
        except (IndexError, MalformedVarintError, UnevenRecordsError):
            continue
    raise UnevenRecordsError


def _prove(
    buffer: _Bytes, fields: _Int64Array, starts: _Int64Array, ends: _Int64Array, counts: _Int64Array
) -> tuple[_Int64Array, _Int64Array]:
    if len(fields) != counts.sum():
        raise UnevenRecordsError
    last_rows = np.cumsum(counts) - 1
    body_ends = np.empty_like(fields)
    body_ends[:-1] = fields[1:]
    body_ends[last_rows] = ends
    if not np.array_equal(fields[last_rows - counts + 1], starts):
        raise UnevenRecordsError
    pairs = _pairs(buffer)[fields]
    first = pairs.astype(np.uint8)
    if np.array_equal(fields + _STEPS[pairs], body_ends) and not np.any(first & 1):
        bodies = fields + 1
        bodies += first >> 7
        return bodies, body_ends
    # Lengths of three bytes, or of more bytes than needed, or wrong.
    lengths, bodies = read_varints(buffer, fields, VARINT_LIMIT_BYTES)
    if lengths.min() < 0 or not np.array_equal(bodies + lengths, body_ends):
        raise UnevenRecordsError
    return bodies, body_ends


def _pairs(buffer: _Bytes) -> npt.NDArray[np.uint16]:
    """Every byte of the buffer with the one behind it, as an (unaligned) view."""
    return np.ndarray((len(buffer) - 1,), "<u2", buffer, 0, (1,))


def _walk_in_lockstep(
    buffer: _Bytes, starts: _Int64Array, _ends: _Int64Array, counts: _Int64Array
) -> _Int64Array:
    """All batches step forward together, those with many records longest."""
    order = np.argsort(-counts, kind="stable")
    ordered_counts = counts[order]
    most = int(ordered_counts[0])
    # active[i]: how many batches have more than i records.
    active = np.searchsorted(-ordered_counts, -np.arange(most), side="left").tolist()
    pairs = _pairs(buffer)
    fields = np.empty(int(counts.sum()), np.int64)
    rows = (np.cumsum(counts) - counts)[order]
    position = starts[order]
    for width in active:
        rows = rows[:width]
        position = position[:width]
        fields[rows] = position
        rows = rows + 1
        position = position + _STEPS[pairs[position]]
    return fields


def _walk_each_batch(
    buffer: _Bytes, starts: _Int64Array, ends: _Int64Array, _counts: _Int64Array
) -> _Int64Array:
    """One batch after the other: runs of equal records at once, others by a plain loop."""
    pieces: list[_Int64Array] = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        position = start
        while position < end:
            run, next_position = _equal_records(buffer, position, end)
            if len(run) < _RUN_MINIMUM:
                run, next_position = _walk_chunk(buffer, position, min(end, position + _LOOP_CHUNK_BYTES))
            pieces.append(run)
            position = next_position
    return np.concatenate(pieces)


def _equal_records(buffer: _Bytes, position: int, end: int) -> tuple[_Int64Array, int]:
    """The records from ``position`` on that are as long as the first of them."""
    first, second = int(buffer[position]), int(buffer[position + 1])
    step = int(_STEPS[first | second << 8])
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
) -> _Int64Array:
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
            if length < 0:
                raise UnevenRecordsError
            position += length
    return fields
