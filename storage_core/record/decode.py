"""Decode the records of a section: by column, or one by one.

The column decoder passes on every section that it does not take. The plain decoder then either finds that
the records are valid, if unusual, or says which one is not. Both give the same columns.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from storage_core.record.arrow_columns import RecordHeaders, Slices
from storage_core.record.batch_header import (
    LOG_APPEND_TIME_FLAG,
    MAGIC_V2,
    MAX_OFFSET,
    SMALLEST_RECORD_BYTES,
    BatchHeader,
)
from storage_core.record.column_decode import UnevenRecordsError, decode_by_column
from storage_core.record.legacy_records import decode_message_sets
from storage_core.record.section import (
    RECORD_COST_BYTES,
    RECORD_HEADER_COST_BYTES,
    RecordColumns,
    RecordSection,
    WantedFields,
    batch_section,
)
from storage_core.record.varint import (
    VARINT_LIMIT_BYTES,
    VARLONG_LIMIT_BYTES,
    MalformedVarintError,
    read_varint,
)

if TYPE_CHECKING:
    import numpy.typing as npt


def decode_records(section: RecordSection, wanted: WantedFields) -> RecordColumns:
    """Decode the wanted fields of all records of a section.

    Raises:
        CorruptRecordError: A batch's records contradict its header or their lengths.
    """
    if len(section.headers) and section.headers["magic"][0] < MAGIC_V2:
        return decode_message_sets(section, wanted)
    try:
        return decode_by_column(section, wanted)
    except (UnevenRecordsError, MalformedVarintError, IndexError):
        return decode_one_by_one(section, wanted)


def batch_timestamps(
    batch: bytes | memoryview, header: BatchHeader, *, path: str, limit_bytes: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the offset and the timestamp (ms) of each record of a batch, control records included. Its CRC is right.

    Raises:
        BatchTooLargeError: They inflate to more than ``limit_bytes``.
        CorruptRecordError: They contradict the header or their lengths.
    """
    if header.record_count == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    section = batch_section(batch, header, path=path, limit_bytes=limit_bytes)
    columns = decode_records(section, WantedFields(key=False, value=False))
    assert columns.timestamps_ms is not None  # noqa: S101  (it was asked for)
    return columns.offsets, columns.timestamps_ms


def decode_one_by_one(section: RecordSection, wanted: WantedFields) -> RecordColumns:
    """Decode the wanted fields of all records of a section.

    Raises:
        CorruptRecordError: A batch's records contradict its header or their lengths.
    """
    rows = _Rows(has_headers=wanted.headers)
    row_counts = [_BatchDecoder(section, index).decode_into(rows) for index in range(len(section.starts))]
    return rows.columns(row_counts, wanted)


class _Rows:
    """The records decoded so far, one array per column; slices alternate start and length."""

    def __init__(self, *, has_headers: bool) -> None:
        self.has_headers = has_headers
        self.offsets = array("q")
        self.timestamps_ms = array("q")
        self.keys = array("q")
        self.values = array("q")
        self.tails = array("q")
        self.header_counts = array("q")
        self.header_keys = array("q")
        self.header_values = array("q")

    def columns(self, row_counts: list[int], wanted: WantedFields) -> RecordColumns:
        headers = None
        if wanted.headers:
            first = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(self.header_counts, np.int64))])
            headers = RecordHeaders(first, _slices(self.header_keys), _slices(self.header_values))
        return RecordColumns(
            np.array(row_counts, np.int64),
            np.array(self.offsets, np.int64),
            np.array(self.timestamps_ms, np.int64) if wanted.timestamp else None,
            _slices(self.keys) if wanted.key else None,
            _slices(self.values) if wanted.value else None,
            headers,
            _slices(self.tails) if wanted.tails else None,
        )


def _slices(pairs: array[int]) -> Slices:
    table = np.frombuffer(pairs, np.int64).reshape(-1, 2)
    return Slices(np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1]))


class _BatchDecoder:
    def __init__(self, section: RecordSection, index: int) -> None:
        self._section = section
        self._index = index
        self._start = int(section.starts[index])
        # The decoder sees nothing after the batch's last record.
        self._data = section.buffer.data[: int(section.ends[index])]
        header = section.headers[index]
        self._base_offset = int(header["base_offset"])
        self._last_offset = self._base_offset + int(header["last_offset_delta"])
        self._count = int(header["record_count"])
        self._base_timestamp_ms = int(header["base_timestamp_ms"])
        is_append_time = bool(int(header["attributes"]) & LOG_APPEND_TIME_FLAG)
        self._append_time_ms = int(header["max_timestamp_ms"]) if is_append_time else None
        self._record_index: int | None = None
        self._header_count = 0
        self._most_headers = section.max_batch_bytes // RECORD_HEADER_COST_BYTES

    def decode_into(self, rows: _Rows) -> int:
        """Append the batch's records to ``rows``, and return their number."""
        if self._count < 1:
            self._fail(f"a record count of at least 1, found {self._count}")
        if self._last_offset > MAX_OFFSET:
            self._fail(f"offsets of 63 bits, found {self._last_offset}")
        # More than the bytes can hold is met below, unless the bytes are many.
        size_bytes = len(self._data) - self._start
        if (
            self._count * SMALLEST_RECORD_BYTES
            > size_bytes
            > self._section.max_batch_bytes // RECORD_COST_BYTES
        ):
            self._fail(f"a record count that fits the {size_bytes} bytes of the batch, found {self._count}")
        if self._count * SMALLEST_RECORD_BYTES <= size_bytes:
            self._check_cost(self._count, RECORD_COST_BYTES, "records")
        position = self._start
        previous_offset = self._base_offset - 1
        for number in range(self._count):
            self._record_index = number
            try:
                position, previous_offset = self._decode_record(position, number, previous_offset, rows)
            except MalformedVarintError as error:
                self._fail(f"record {number} to be well formed, but {error}")
        self._record_index = None
        left_bytes = len(self._data) - position
        if left_bytes:
            self._fail(f"the batch to end with its {self._count} records, found {left_bytes} more bytes")
        return self._count

    def _decode_record(
        self, position: int, number: int, previous_offset: int, rows: _Rows
    ) -> tuple[int, int]:
        length, body = read_varint(self._data, position, VARINT_LIMIT_BYTES)
        end = body + length
        if length < 1 or end > len(self._data):
            self._fail(
                f"record {number} to lie within the batch, found a length of {length} "
                f"with {len(self._data) - body} bytes left"
            )
        record = self._data[:end]
        timestamp_delta, tail_start = read_varint(record, body + 1, VARLONG_LIMIT_BYTES)
        offset_delta, position = read_varint(record, tail_start, VARINT_LIMIT_BYTES)
        offset = self._base_offset + offset_delta
        if not previous_offset < offset <= self._last_offset:
            self._fail(
                f"the offset of record {number} to lie above {previous_offset} and at or below "
                f"{self._last_offset}, found {offset}"
            )
        key, position = self._read_slice(record, position, number, "key")
        value, position = self._read_slice(record, position, number, "value")
        position = self._read_headers(record, position, number, rows)
        if position != end:
            self._fail(f"record {number} to take {length} bytes, but its fields leave {end - position}")
        rows.offsets.append(offset)
        timestamp_ms = self._append_time_ms
        if timestamp_ms is None:
            timestamp_ms = _java_long(self._base_timestamp_ms + timestamp_delta)
        rows.timestamps_ms.append(timestamp_ms)
        rows.keys.extend(key)
        rows.values.extend(value)
        rows.tails.extend((tail_start, end - tail_start))
        return end, offset

    def _read_headers(self, record: memoryview, position: int, number: int, rows: _Rows) -> int:
        count, position = read_varint(record, position, VARINT_LIMIT_BYTES)
        left_bytes = len(record) - position
        if not 0 <= count <= left_bytes:
            self._fail(
                f"the header count of record {number} to fit the {left_bytes} bytes left, found {count}"
            )
        self._header_count += count
        if self._header_count > self._most_headers:
            self._check_cost(self._header_count, RECORD_HEADER_COST_BYTES, "record headers")
        rows.header_counts.append(count)
        for _ in range(count):
            key, position = self._read_slice(record, position, number, "header key")
            if key[1] < 0:
                self._fail(f"each header of record {number} to have a key, found a length of {key[1]}")
            value, position = self._read_slice(record, position, number, "header value")
            if rows.has_headers:
                rows.header_keys.extend(key)
                rows.header_values.extend(value)
        return position

    def _read_slice(
        self, record: memoryview, position: int, number: int, field: str
    ) -> tuple[tuple[int, int], int]:
        length, start = read_varint(record, position, VARINT_LIMIT_BYTES)
        end = start + max(length, 0)
        if end > len(record):
            self._fail(f"the {field} of record {number} to lie within it, found a length of {length}")
        return (start, length), end

    def _check_cost(self, count: int, cost_bytes: int, what: str) -> None:
        counts = np.zeros(self._index + 1, np.int64)
        counts[self._index] = count
        self._section.check_cost(counts, cost_bytes, what)

    def _fail(self, expected: str) -> NoReturn:
        raise self._section.error(self._index, f"Expected {expected}.", self._record_index)


def _java_long(value: int) -> int:
    """Wrap at 64 bits, as the additions of the column decoder do."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
