"""Decode the fields of v2 records by column (Kafka's ``DefaultRecord``).

    length           varint   bytes that follow
    attributes       1 byte   unused
    timestamp delta  varlong  from the batch's base timestamp
    offset delta     varint   from the batch's base offset
    key length       varint   -1 null
    key
    value length     varint   -1 null
    value
    header count     varint
    per header: key length varint, key (UTF-8), value length varint (-1 null), value

Anything out of the ordinary raises `UnevenRecordsError` or `MalformedVarintError` here, and
the plain decoder then says precisely what and where.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from storage_core.record.batch_header import LOG_APPEND_TIME_FLAG
from storage_core.record.boundaries import UnevenRecordsError, find_boundaries
from storage_core.record.section import RecordColumns, RecordHeaders, RecordSection, Slices, WantedFields
from storage_core.record.varint import VARINT_LIMIT_BYTES, VARLONG_LIMIT_BYTES, VarintCursor

__all__ = ["batch_timestamps_ms", "decode_by_column"]

# Headers are decoded one step per header of a record: beyond this the plain decoder is as good.
_HEADER_STEPS_LIMIT: Final = 256
# A byte for each field; key, value and headers add nothing.
_SMALLEST_RECORD_BYTES: Final = 7

_Int64Array = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]


def decode_by_column(section: RecordSection, wanted: WantedFields) -> RecordColumns:
    """Decode the wanted fields of all records of a section.

    Raises:
        UnevenRecordsError: Lengths or offsets contradict each other.
        MalformedVarintError: A variable-length integer is too long.
    """
    headers = section.headers
    counts = headers["record_count"].astype(np.int64)
    base_offsets = headers["base_offset"].astype(np.int64)
    last_deltas = headers["last_offset_delta"].astype(np.int64)
    last_offsets = base_offsets + last_deltas
    if counts.min() < 1 or np.any(counts > last_deltas + 1) or np.any(last_offsets < base_offsets):
        raise UnevenRecordsError
    # So a count that is made up cannot make anything below larger than the section.
    if np.any(counts * _SMALLEST_RECORD_BYTES > section.ends - section.starts):
        raise UnevenRecordsError
    offsets = np.repeat(base_offsets, counts)
    timestamps_ms = batch_timestamps_ms(section, counts) if wanted.timestamp else None
    needs_bytes = wanted.key or wanted.value or wanted.headers
    is_told = not needs_bytes and np.array_equal(counts, last_deltas + 1)
    if is_told:
        # As many records as offsets: the headers say which.
        offsets += _row_in_batch(counts)
        if not wanted.timestamp or timestamps_ms is not None:
            return RecordColumns(counts, offsets, timestamps_ms, None, None, None)

    buffer = section.buffer
    cursor, body_ends = find_boundaries(buffer, section.starts, section.ends, counts)
    # The attributes of a record mean nothing.
    cursor.skip_byte()
    timestamp_deltas = cursor.read(VARLONG_LIMIT_BYTES)
    tail_starts = cursor.positions
    if wanted.timestamp and timestamps_ms is None:
        timestamps_ms = _create_times(section, counts, timestamp_deltas)
    if not is_told:
        offsets += cursor.read(VARINT_LIMIT_BYTES)
        _check_offsets(offsets, base_offsets, last_offsets, counts)
    if not needs_bytes:
        # Nothing behind them is read, so nothing else says that they lie within their record.
        if np.any(cursor.positions > body_ends):
            raise UnevenRecordsError
        return RecordColumns(counts, offsets, timestamps_ms, None, None, None)

    keys = _read_slices(cursor, body_ends)
    values = _read_slices(cursor, body_ends)
    record_headers = _read_headers(cursor, buffer, body_ends, decode=wanted.headers)
    return RecordColumns(
        counts,
        offsets,
        timestamps_ms,
        keys if wanted.key else None,
        values if wanted.value else None,
        record_headers,
        Slices(tail_starts, body_ends - tail_starts) if wanted.tails else None,
    )


def batch_timestamps_ms(section: RecordSection, counts: _Int64Array) -> _Int64Array | None:
    """Timestamps that the batch headers alone tell: log append time. None if records must be read."""
    headers = section.headers
    if np.all(headers["attributes"] & LOG_APPEND_TIME_FLAG):
        return np.repeat(headers["max_timestamp_ms"].astype(np.int64), counts)
    return None


def _create_times(section: RecordSection, counts: _Int64Array, deltas: _Int64Array) -> _Int64Array:
    headers = section.headers
    timestamps_ms = np.repeat(headers["base_timestamp_ms"].astype(np.int64), counts)
    timestamps_ms += deltas
    is_append_time = (headers["attributes"] & LOG_APPEND_TIME_FLAG) != 0
    if is_append_time.any():
        rows = np.repeat(is_append_time, counts)
        timestamps_ms[rows] = np.repeat(headers["max_timestamp_ms"].astype(np.int64), counts)[rows]
    return timestamps_ms


def _row_in_batch(counts: _Int64Array) -> _Int64Array:
    first_rows = np.cumsum(counts) - counts
    rows = np.arange(int(counts.sum()))
    rows -= np.repeat(first_rows, counts)
    return rows


def _check_offsets(
    offsets: _Int64Array, base_offsets: _Int64Array, last_offsets: _Int64Array, counts: _Int64Array
) -> None:
    last_rows = np.cumsum(counts) - 1
    if (
        np.any(offsets[1:] <= offsets[:-1])
        or np.any(offsets[last_rows - counts + 1] < base_offsets)
        or np.any(offsets[last_rows] > last_offsets)
    ):
        raise UnevenRecordsError


def _read_slices(cursor: VarintCursor, limits: _Int64Array) -> Slices:
    """One length-prefixed byte string per record; a negative length is null and takes no bytes."""
    lengths = cursor.read(VARINT_LIMIT_BYTES)
    slices = Slices(cursor.positions, lengths)
    cursor.skip(lengths if lengths.min() >= 0 else np.maximum(lengths, 0))
    if np.any(cursor.positions > limits):
        raise UnevenRecordsError
    return slices


def _read_headers(
    cursor: VarintCursor, buffer: _Bytes, limits: _Int64Array, *, decode: bool
) -> RecordHeaders | None:
    positions = cursor.positions
    has_none = positions + 1 == limits
    has_no_headers = bool(has_none.all())
    if np.any(positions >= limits) or buffer[positions if has_no_headers else positions[has_none]].any():
        raise UnevenRecordsError
    if not decode:
        return None
    if has_no_headers:
        none = np.zeros(0, np.int64)
        return RecordHeaders(np.zeros(len(positions) + 1, np.int64), Slices(none, none), Slices(none, none))
    return _read_each_header(cursor, buffer, limits)


def _read_each_header(cursor: VarintCursor, buffer: _Bytes, limits: _Int64Array) -> RecordHeaders:
    counts = cursor.read(VARINT_LIMIT_BYTES)
    positions = cursor.positions
    if counts.min() < 0 or np.any(counts > limits - positions) or counts.max() > _HEADER_STEPS_LIMIT:
        raise UnevenRecordsError
    first = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=first[1:])
    columns = [np.empty(int(first[-1]), np.int64) for _ in range(4)]
    rows = np.flatnonzero(counts)
    for step in range(int(counts.max())):
        rows = rows[counts[rows] > step]
        here = VarintCursor(buffer, positions[rows])
        keys = _read_slices(here, limits[rows])
        if keys.lengths.min() < 0:
            raise UnevenRecordsError
        values = _read_slices(here, limits[rows])
        target = first[rows] + step
        for column, found in zip(
            columns, (keys.starts, keys.lengths, values.starts, values.lengths), strict=True
        ):
            column[target] = found
        positions[rows] = here.positions
    if not np.array_equal(positions, limits):
        raise UnevenRecordsError
    return RecordHeaders(first, Slices(columns[0], columns[1]), Slices(columns[2], columns[3]))
