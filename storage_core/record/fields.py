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

from storage_core.record.boundaries import UnevenRecordsError, find_boundaries
from storage_core.record.section import RecordColumns, RecordHeaders, RecordSection, Slices, WantedFields
from storage_core.record.varint import VARINT_LIMIT_BYTES, VARLONG_LIMIT_BYTES, read_varints

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
    timestamps_ms = batch_timestamps_ms(section, counts) if wanted.timestamp else None
    is_dense = np.array_equal(counts, last_deltas + 1)
    needs_bytes = wanted.key or wanted.value or wanted.headers
    if is_dense and not needs_bytes and (not wanted.timestamp or timestamps_ms is not None):
        # Offsets without gaps: the batch headers say everything.
        offsets = np.repeat(base_offsets, counts) + _row_in_batch(counts)
        return RecordColumns(counts, offsets, timestamps_ms, None, None, None)

    buffer = section.buffer
    bodies, body_ends = find_boundaries(buffer, section.starts, section.ends, counts)
    timestamp_deltas, position = read_varints(buffer, bodies + 1, VARLONG_LIMIT_BYTES)
    if wanted.timestamp and timestamps_ms is None:
        timestamps_ms = _create_times(section, counts, timestamp_deltas)
    offset_deltas, position = read_varints(buffer, position, VARINT_LIMIT_BYTES)
    offsets = np.repeat(base_offsets, counts)
    offsets += offset_deltas
    _check_offsets(offsets, base_offsets, last_offsets, counts)
    if not needs_bytes:
        return RecordColumns(counts, offsets, timestamps_ms, None, None, None)

    keys, position = _read_slices(buffer, position, body_ends)
    values, position = _read_slices(buffer, position, body_ends)
    record_headers = _read_headers(buffer, position, body_ends, decode=wanted.headers)
    return RecordColumns(
        counts,
        offsets,
        timestamps_ms,
        keys if wanted.key else None,
        values if wanted.value else None,
        record_headers,
    )


def batch_timestamps_ms(section: RecordSection, counts: _Int64Array) -> _Int64Array | None:
    """Timestamps that the batch headers alone tell: log append time. None if records must be read."""
    headers = section.headers
    if np.all(headers["attributes"] & 0x08):
        return np.repeat(headers["max_timestamp_ms"].astype(np.int64), counts)
    return None


def _create_times(section: RecordSection, counts: _Int64Array, deltas: _Int64Array) -> _Int64Array:
    headers = section.headers
    timestamps_ms = np.repeat(headers["base_timestamp_ms"].astype(np.int64), counts)
    timestamps_ms += deltas
    is_append_time = (headers["attributes"] & 0x08) != 0
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


def _read_slices(buffer: _Bytes, position: _Int64Array, limits: _Int64Array) -> tuple[Slices, _Int64Array]:
    """One length-prefixed byte string per record; a negative length is null and takes no bytes."""
    lengths, starts = read_varints(buffer, position, VARINT_LIMIT_BYTES)
    ends = starts + lengths
    if lengths.min() < 0:
        ends = np.maximum(ends, starts)
        # Far below -1 the sum above would point before the start; the maximum has mended that.
    if np.any(ends > limits):
        raise UnevenRecordsError
    return Slices(starts, lengths), ends


def _read_headers(
    buffer: _Bytes, position: _Int64Array, limits: _Int64Array, *, decode: bool
) -> RecordHeaders | None:
    has_none = position + 1 == limits
    if has_none.all():
        if buffer[position].any():
            raise UnevenRecordsError
        if not decode:
            return None
        nothing = np.zeros(0, np.int64)
        first = np.zeros(len(position) + 1, np.int64)
        return RecordHeaders(first, Slices(nothing, nothing), Slices(nothing, nothing))
    if np.any(position >= limits):
        raise UnevenRecordsError
    if not decode:
        if buffer[position[has_none]].any():
            raise UnevenRecordsError
        return None
    return _read_each_header(buffer, position, limits)


def _read_each_header(buffer: _Bytes, position: _Int64Array, limits: _Int64Array) -> RecordHeaders:
    counts, position = read_varints(buffer, position, VARINT_LIMIT_BYTES)
    if counts.min() < 0 or np.any(counts > limits - position) or counts.max() > _HEADER_STEPS_LIMIT:
        raise UnevenRecordsError
    first = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=first[1:])
    columns = [np.empty(int(first[-1]), np.int64) for _ in range(4)]
    rows = np.flatnonzero(counts)
    for step in range(int(counts.max())):
        rows = rows[counts[rows] > step]
        row_limits = limits[rows]
        keys, ends = _read_slices(buffer, position[rows], row_limits)
        if len(rows) and keys.lengths.min() < 0:
            raise UnevenRecordsError
        values, ends = _read_slices(buffer, ends, row_limits)
        target = first[rows] + step
        for column, found in zip(
            columns, (keys.starts, keys.lengths, values.starts, values.lengths), strict=True
        ):
            column[target] = found
        position[rows] = ends
    if not np.array_equal(position, limits):
        raise UnevenRecordsError
    return RecordHeaders(first, Slices(columns[0], columns[1]), Slices(columns[2], columns[3]))
