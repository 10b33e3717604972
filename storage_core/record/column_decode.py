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

A record starts with its own length, so its end is known only once its beginning is. The record boundaries are first
found by the quickest walk that the shape of the data allows, and then verified by column: every record must end where
the next one begins, and the last one with its batch. So the walks may assume the usual case without checks.

Unusual records raise `UnevenRecordsError` or `MalformedVarintError` here; the plain decoder then takes the section.
"""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from storage_core.record.arrow_columns import RecordHeaders, Slices
from storage_core.record.batch_header import LOG_APPEND_TIME_FLAG, SMALLEST_RECORD_BYTES, last_offsets
from storage_core.record.section import (
    RECORD_COST_BYTES,
    RECORD_HEADER_COST_BYTES,
    RecordColumns,
    RecordSection,
    WantedFields,
)
from storage_core.record.varint import (
    VARINT_LIMIT_BYTES,
    VARLONG_LIMIT_BYTES,
    MalformedVarintError,
    VarintCursor,
    read_varint,
    words_of,
)

# Distance between the starts of lanes: some hundred records.
_LANE_BYTES: Final = 1 << 14
# Longer lanes would not be much shorter than the batch.
_MAX_LANE_BYTES: Final = 1 << 17
# With fewer lanes, a numpy step costs more than a step of the plain loop.
_MIN_LANES: Final = 24
# The start of a record is searched for in this many bytes: larger records are too few to matter.
_SEARCH_BYTES: Final = 1 << 9
# Starts of lanes are searched for in groups of this many; more would be no quicker.
_LANES_AT_ONCE: Final = 256
# This many records in a row have to be plausible.
_PROBE_RECORDS: Final = 4
# Set in the first byte of a length that takes two.
_CONTINUES: Final = 0x80
_Int64Array = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]
# With fewer batches than this per step, on average, a step costs more than those of the plain loop.
_LOCKSTEP_MIN_BATCHES: Final = 32
# Lockstep allocates as many records per batch as the fullest batch has: at most this many times the need.
_LOCKSTEP_MAX_WASTE: Final = 4
# A run of equal records shorter than this does not pay for the numpy calls that find it.
_RUN_MINIMUM: Final = 48
# The search for a run begins with this many bytes, so that a short run costs little.
_RUN_FIRST_TRY_BYTES: Final = 1 << 14
# It grows by this factor while the run continues, so that the bytes after the run are not all compared.
_RUN_GROWTH: Final = 8
# Records are walked one by one over this many bytes before the next search for a run.
_LOOP_CHUNK_BYTES: Final = 1 << 16
_Item = TypeVar("_Item", bound=np.generic)
# Headers are decoded in one step per header of a record: with more steps the plain decoder is as quick.
_HEADER_STEPS_LIMIT: Final = 256


class UnevenRecordsError(ValueError):
    """The record lengths contradict the batch; the plain decoder says where."""


def _step_table() -> npt.NDArray[np.int64]:
    """Return the distance to the next length field for each pair of bytes at a length field.

    The distance of lengths of three bytes and more is beyond any buffer.
    """
    pair = np.arange(1 << 16)
    first, second = pair & 0xFF, pair >> 8
    one_byte = 1 + (first >> 1)
    two_bytes = 2 + (((first & 0x7F) | (second << 7)) >> 1)
    return np.where(first < _CONTINUES, one_byte, np.where(second < _CONTINUES, two_bytes, 1 << 40))


STEPS: Final = _step_table()


def decode_by_column(section: RecordSection, wanted: WantedFields) -> RecordColumns:
    """Decode the wanted fields of all records of a section.

    Raises:
        UnevenRecordsError: Lengths or offsets contradict each other.
        MalformedVarintError: A variable-length integer is too long.
        BatchTooLargeError: A batch holds more records or headers than its limit allows.
    """
    counts = _record_counts(section)
    base_offsets = section.headers["base_offset"].astype(np.int64)
    last = last_offsets(section.headers)
    offsets = np.repeat(base_offsets, counts)
    timestamps_ms = _append_times(section, counts) if wanted.timestamp else None
    needs_bytes = wanted.key or wanted.value or wanted.headers
    is_without_gaps = not needs_bytes and np.array_equal(base_offsets + counts, last + 1)
    if is_without_gaps:
        # As many records as offsets: the headers have them all.
        offsets += _row_in_batch(counts)
        if not wanted.timestamp or timestamps_ms is not None:
            return RecordColumns(counts, offsets, timestamps_ms, None, None, None)

    buffer = section.buffer
    cursor, body_ends = find_boundaries(buffer, section.starts, section.ends, counts)
    # The attributes of a record are unused.
    cursor.skip_byte()
    timestamp_deltas = cursor.read(VARLONG_LIMIT_BYTES)
    tail_starts = cursor.positions
    if wanted.timestamp and timestamps_ms is None:
        timestamps_ms = _create_times(section, counts, timestamp_deltas)
    if not is_without_gaps:
        offsets += cursor.read(VARINT_LIMIT_BYTES)
        _check_offsets(offsets, base_offsets, last, counts)
    if not needs_bytes:
        # No later field is read, so check here that these are within their record.
        if np.any(cursor.positions > body_ends):
            raise UnevenRecordsError
        return RecordColumns(counts, offsets, timestamps_ms, None, None, None)

    keys, values = _read_slices(cursor), _read_slices(cursor)
    record_headers = _read_headers(cursor, section, counts, body_ends, decode=wanted.headers)
    return RecordColumns(
        counts,
        offsets,
        timestamps_ms,
        keys if wanted.key else None,
        values if wanted.value else None,
        record_headers,
        Slices(tail_starts, body_ends - tail_starts) if wanted.tails else None,
    )


def _record_counts(section: RecordSection) -> _Int64Array:
    """Return the record count of each batch. Refuse one that would make arrays larger than the section."""
    headers = section.headers
    counts: _Int64Array = headers["record_count"].astype(np.int64)
    last_deltas = headers["last_offset_delta"].astype(np.int64)
    if (
        counts.min() < 1
        or np.any(counts > last_deltas + 1)
        or np.any(last_offsets(headers) < headers["base_offset"])
        or np.any(counts * SMALLEST_RECORD_BYTES > section.ends - section.starts)
    ):
        raise UnevenRecordsError
    section.check_cost(counts, RECORD_COST_BYTES, "records")
    return counts


def _append_times(section: RecordSection, counts: _Int64Array) -> _Int64Array | None:
    """Return the log append time of each record.

    Returns:
        Milliseconds; None unless all batches have log append time.
    """
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
    offsets: _Int64Array, base_offsets: _Int64Array, last: _Int64Array, counts: _Int64Array
) -> None:
    last_rows = np.cumsum(counts) - 1
    if (
        np.any(offsets[1:] <= offsets[:-1])
        or np.any(offsets[last_rows - counts + 1] < base_offsets)
        or np.any(offsets[last_rows] > last)
    ):
        raise UnevenRecordsError


def _read_slices(cursor: VarintCursor) -> Slices:
    """Read a byte string of each record, which follows its length. A negative length is null, without bytes.

    One that leaves its record is refused with the headers, which then begin after the record's end.
    """
    lengths = cursor.read(VARINT_LIMIT_BYTES)
    slices = Slices(cursor.positions, lengths)
    cursor.skip(lengths if lengths.min() >= 0 else np.maximum(lengths, 0))
    return slices


def _read_headers(
    cursor: VarintCursor, section: RecordSection, rows: _Int64Array, limits: _Int64Array, *, decode: bool
) -> RecordHeaders | None:
    """Read the headers of all records, or only check their counts. ``rows`` has the records of each batch."""
    positions = cursor.positions
    buffer = section.buffer
    has_none = positions + 1 == limits
    has_no_headers = bool(has_none.all())
    if np.any(positions >= limits) or buffer[positions if has_no_headers else positions[has_none]].any():
        raise UnevenRecordsError
    if has_no_headers:
        return RecordHeaders.none(len(positions)) if decode else None
    counts = cursor.read(VARINT_LIMIT_BYTES)
    left_bytes = limits - cursor.positions
    # A header has at least two bytes.
    if counts.min() < 0 or np.any(2 * counts > left_bytes) or np.any((counts == 0) & (left_bytes > 0)):
        raise UnevenRecordsError
    by_batch = np.add.reduceat(counts, np.cumsum(rows) - rows)
    section.check_cost(by_batch, RECORD_HEADER_COST_BYTES, "record headers")
    return _read_each_header(cursor, buffer, counts, limits) if decode else None


def _read_each_header(
    cursor: VarintCursor, buffer: _Bytes, counts: _Int64Array, limits: _Int64Array
) -> RecordHeaders:
    positions = cursor.positions
    if counts.max() > _HEADER_STEPS_LIMIT:
        raise UnevenRecordsError
    first = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=first[1:])
    columns = [np.empty(int(first[-1]), np.int64) for _ in range(4)]
    rows = np.flatnonzero(counts)
    for step in range(int(counts.max())):
        rows = rows[counts[rows] > step]
        here = VarintCursor(buffer, positions[rows])
        keys = _read_slices(here)
        if keys.lengths.min() < 0:
            raise UnevenRecordsError
        values = _read_slices(here)
        target = first[rows] + step
        for column, found in zip(
            columns, (keys.starts, keys.lengths, values.starts, values.lengths), strict=True
        ):
            column[target] = found
        positions[rows] = here.positions
    if not np.array_equal(positions, limits):
        raise UnevenRecordsError
    return RecordHeaders(first, Slices(columns[0], columns[1]), Slices(columns[2], columns[3]))


def find_boundaries(
    buffer: _Bytes, starts: _Int64Array, ends: _Int64Array, counts: _Int64Array
) -> tuple[VarintCursor, _Int64Array]:
    """Find the body of every record: its bytes after the length field.

    Each batch has at least one record, and no more than its bytes can hold.

    Returns:
        A cursor at the beginning of every body, over all batches in order, and where each body ends.

    Raises:
        UnevenRecordsError: Lengths are negative, too long, or do not end with the batch.
    """
    # A record has at least one byte, so this also bounds the allocations below.
    if np.any(counts > ends - starts):
        raise UnevenRecordsError
    for walk in (_walk_in_lockstep, walk_in_lanes, _walk_each_batch, _walk_long_records):
        try:
            cursor = walk(buffer, starts, ends, counts)
            if cursor is not None:
                return _verified(cursor, starts, ends, counts)
        except (IndexError, MalformedVarintError, UnevenRecordsError):
            continue
    raise UnevenRecordsError


def _verified(
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
    """Step through all batches together, the longest batches last.

    Returns:
        None if there are too few.
    """
    most = int(counts.max())
    total = int(counts.sum())
    if total < most * _LOCKSTEP_MIN_BATCHES or most * len(counts) > total * _LOCKSTEP_MAX_WASTE:
        return None
    order = np.argsort(-counts, kind="stable")
    ordered_counts = counts[order]
    # active[i]: how many batches have more than i records.
    active = np.searchsorted(-ordered_counts, -np.arange(most), side="left").tolist()
    word_at = words_of(buffer)
    # With so few batches the number of numpy calls dominates, so each step writes straight into the result.
    fields = np.empty((most + 1, len(starts)), np.int64)
    words = np.empty((most, len(starts)), "<u8")
    first_two_bytes = words.view("<u2")[:, ::4]
    fields[0] = starts[order]
    for row, width in enumerate(active):
        position = fields[row, :width]
        words[row, :width] = word_at[position]
        np.add(position, STEPS.take(first_two_bytes[row, :width]), out=fields[row + 1, :width])
    return VarintCursor(
        buffer, _in_file_order(fields[:-1], order, counts), _in_file_order(words, order, counts)
    )


def _in_file_order(matrix: npt.NDArray[_Item], order: _Int64Array, counts: _Int64Array) -> npt.NDArray[_Item]:
    """Turn a column per batch into the records of all batches, in file order."""
    by_batch = np.empty((matrix.shape[1], matrix.shape[0]), matrix.dtype)
    by_batch[order] = matrix.T
    if by_batch.size == counts.sum():
        return by_batch.reshape(-1)
    return by_batch[np.arange(matrix.shape[0]) < counts[:, None]]


def _walk_each_batch(
    buffer: _Bytes, starts: _Int64Array, ends: _Int64Array, counts: _Int64Array
) -> VarintCursor:
    """Walk batch by batch: runs of records of one length at once, others by a plain loop."""
    pieces: list[_Int64Array] = []
    for start, end, count in zip(starts.tolist(), ends.tolist(), counts.tolist(), strict=True):
        position, left = start, count
        while position < end:
            run, next_position = _equal_records(buffer, position, end, left)
            if len(run) < _RUN_MINIMUM:
                run, next_position = _walk_chunk(buffer, position, min(end, position + _LOOP_CHUNK_BYTES))
            # A wrong walk would find a record at each byte of zeros.
            left -= len(run)
            if left < 0 or (left == 0 and next_position < end):
                raise UnevenRecordsError
            pieces.append(run)
            position = next_position
    return VarintCursor(buffer, np.concatenate(pieces))


def _equal_records(buffer: _Bytes, position: int, end: int, most: int) -> tuple[_Int64Array, int]:
    """Find the records from a position on that are as long as the first, ``most`` at most.

    Returns:
        Their positions, and the end of the last one.
    """
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
    """Walk record by record until one begins at or after ``end``; return their positions and that of the last one's end."""
    data = buffer[start : end + 1].tobytes()
    size = end - start
    fields: list[int] = []
    append = fields.append
    position = 0
    while position < size:
        append(position)
        first = data[position]
        # Computed, as in `STEPS`: a look-up would cost more here.
        position += (first >> 1) + (data[position + 1] << 6) - 62 if first >= 128 else 1 + (first >> 1)  # noqa: PLR2004
    found = np.array(fields, np.int64)
    found += start
    return found, start + position


def _walk_long_records(
    buffer: _Bytes, starts: _Int64Array, ends: _Int64Array, counts: _Int64Array
) -> VarintCursor:
    """Walk record by record, including those whose length takes three bytes and more."""
    fields = np.empty(int(counts.sum()), np.int64)
    row = 0
    for start, end, count in zip(starts.tolist(), ends.tolist(), counts.tolist(), strict=True):
        data = buffer.data[start:end]
        position = 0
        for _ in range(count):
            fields[row] = start + position
            row += 1
            length, position = read_varint(data, position, VARINT_LIMIT_BYTES)
            if length < SMALLEST_RECORD_BYTES - 1:
                raise UnevenRecordsError
            position += length
    return VarintCursor(buffer, fields)


def walk_in_lanes(
    buffer: _Bytes, starts: _Int64Array, ends: _Int64Array, _counts: _Int64Array
) -> VarintCursor | None:
    """Walk large batches from many places at once.

    A place where a record seems to begin is easy to find: its length is followed by attributes, which are always
    zero, and leads to another such place, and so on. From these places, lanes step forward together. A wrong place
    does no harm: its lane misses the next lane, or the boundaries fail verification, and another walk is tried.

    Returns:
        None if the batches are too few or too small, or if they begin with a run of equal records, which is quicker.

    Raises:
        IndexError: A length leads out of the buffer.
    """
    run, _ = _equal_records(buffer, int(starts[0]), int(ends[0]), _RUN_MINIMUM)
    counts = np.maximum((ends - starts - _SEARCH_BYTES) // _LANE_BYTES, 0)
    if len(run) == _RUN_MINIMUM or counts.sum() < _MIN_LANES:
        return None
    lane_starts, lane_ends = _lanes(buffer, starts, ends, counts)
    longest_bytes = int((lane_ends - lane_starts).max())
    if longest_bytes > _MAX_LANE_BYTES:
        return None
    word_at = words_of(buffer)
    places = []
    # A wrong lane would find a record at each byte of zeros.
    places_left = int((ends - starts).sum()) // SMALLEST_RECORD_BYTES
    positions = lane_starts
    for _ in range(longest_bytes // SMALLEST_RECORD_BYTES + 1):
        places.append(positions)
        places_left -= len(positions)
        if places_left < 0:
            return None
        positions = positions + STEPS[word_at[positions] & 0xFFFF]
        is_inside = positions < lane_ends
        if is_inside.all():
            continue
        if not np.array_equal(positions[~is_inside], lane_ends[~is_inside]):
            return None
        positions, lane_ends = positions[is_inside], lane_ends[is_inside]
        if not len(positions):
            return VarintCursor(buffer, np.sort(np.concatenate(places)))
    return None


def _lanes(
    buffer: _Bytes, starts: _Int64Array, ends: _Int64Array, counts: _Int64Array
) -> tuple[_Int64Array, _Int64Array]:
    """Return the starts and ends of lanes. One starts with each batch, and about every 16 KiB within it."""
    batches = np.repeat(np.arange(len(starts)), counts)
    numbers = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    splits = starts[batches] + (numbers + 1) * _LANE_BYTES
    split_ends = ends[batches]
    # Not all at once: values of zeros make every byte a candidate.
    pieces = [
        _lane_starts(
            buffer, splits[first : first + _LANES_AT_ONCE], split_ends[first : first + _LANES_AT_ONCE]
        )
        for first in range(0, len(splits), _LANES_AT_ONCE)
    ]
    found = np.concatenate([lanes + number * _LANES_AT_ONCE for number, (lanes, _) in enumerate(pieces)])
    lane_starts = np.concatenate([starts, *(begins for _, begins in pieces)])
    order = np.argsort(lane_starts)
    lane_starts = lane_starts[order]
    # A lane ends where the next one begins, or with its batch.
    batch_ends = np.concatenate([ends, ends[batches[found]]])[order]
    return lane_starts, np.minimum(np.append(lane_starts[1:], batch_ends[-1]), batch_ends)


def _lane_starts(buffer: _Bytes, splits: _Int64Array, ends: _Int64Array) -> tuple[_Int64Array, _Int64Array]:
    """Find the first record that seems to begin after each split.

    Returns:
        The indexes of the splits that are followed by one, and its position.
    """
    # Attributes are zero, and follow the last byte of the length.
    searched = np.lib.stride_tricks.sliding_window_view(buffer, _SEARCH_BYTES)[splits]
    lanes, distances = np.nonzero(searched == 0)
    attributes = splits[lanes] + distances
    candidates = attributes - 1 - (buffer[attributes - 2] >= _CONTINUES)
    begins = _begins_record(buffer, candidates, ends[lanes])
    found, first_of_lane = np.unique(lanes[begins], return_index=True)
    return found, candidates[begins][first_of_lane]


def _begins_record(buffer: _Bytes, candidates: _Int64Array, ends: _Int64Array) -> npt.NDArray[np.bool_]:
    """Return True for each candidate where a plausible record begins, with more of them after it."""
    word_at = words_of(buffer)
    is_plausible = np.ones(len(candidates), np.bool_)
    positions = candidates
    for _ in range(_PROBE_RECORDS):
        words = word_at[np.minimum(positions, ends)]
        steps = STEPS[words & 0xFFFF]
        attributes = (words >> (8 + ((words & _CONTINUES) >> 4))) & 0xFF
        positions = positions + steps
        is_plausible &= (attributes == 0) & (steps >= SMALLEST_RECORD_BYTES) & (words & 1 == 0)
        is_plausible &= positions <= ends
    return is_plausible
