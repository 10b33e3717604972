"""The lines of records in the text of ``kafka-dump-log.sh``: by column where batches are usual, else one by one."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.dump.log_text import MAX_BATCH_BYTES, MAX_INT32, Batches, RecordFormat, tool_fails
from storage_core.dump.record_iteration import IteratedRecord, header_of, iterate_records
from storage_core.errors import CorruptError, SegmentLogError
from storage_core.internal_records.internal_records import MESSAGE_DECODERS, control_record_text
from storage_core.internal_records.message_schema import java_text
from storage_core.record.arrow_columns import RecordHeaders, Slices, binary_array, number_array
from storage_core.record.batch_header import (
    CONTROL_FLAG,
    HEADER_DTYPE,
    LOG_APPEND_TIME_FLAG,
    MAGIC_V2,
    BatchHeader,
    gather,
)
from storage_core.record.batch_window import BatchWindow
from storage_core.record.column_decode import UnevenRecordsError, decode_by_column
from storage_core.record.control_records import CONTROL_KEY, END_MARKER_VALUE, ControlType
from storage_core.record.section import MAX_ROWS, RecordColumns, RecordSection, SectionMaker, WantedFields
from storage_core.record.varint import MalformedVarintError

_Int64Array = npt.NDArray[np.int64]
_Part: TypeAlias = bytes | pa.Array
_INDENT: Final = b"| "
_PIECE_BYTES: Final = 4 << 20
_END_TYPES: Final = (ControlType.ABORT, ControlType.COMMIT)
_TIMESTAMP_TYPES: Final = (b" CreateTime: ", b" LogAppendTime: ")


class OffsetGaps:
    """Gaps between offsets, which the tool lists at its end: an offset, and the one that came after it."""

    def __init__(self) -> None:
        self.pairs: list[tuple[int, int]] = []
        self._last = -1

    def add(self, offset: int) -> None:
        """Add the offset of the next record."""
        if self._last not in (-1, offset - 1):
            self.pairs.append((self._last, offset))
        self._last = offset

    def add_rows(self, offsets: _Int64Array) -> None:
        """Add the offsets of some records."""
        self.add(int(offsets[0]))
        for row in np.flatnonzero(np.diff(offsets) != 1).tolist():
            self.pairs.append((int(offsets[row]), int(offsets[row + 1])))
        self._last = int(offsets[-1])


class RecordLines:
    """Prints records after the line of their batch; see `log_text.RecordsText`."""

    def __init__(self, path: str, record_format: RecordFormat) -> None:
        self.gaps = OffsetGaps()
        self._path = path
        self._format = record_format
        self._decoder = None if record_format.decoder is None else MESSAGE_DECODERS[record_format.decoder]
        wanted = WantedFields(headers=True)
        self._wanted = wanted
        self._maker = SectionMaker(MAX_BATCH_BYTES, wanted)

    def text_of(self, batches: Batches) -> Iterator[bytes]:
        """Yield the text of batches with their records.

        Raises:
            CorruptError: Kafka's tool fails here.
        """
        pieces: list[bytes | memoryview] = []
        size_bytes = 0
        try:
            for piece in self._pieces(batches):
                pieces.append(piece)
                size_bytes += len(piece)
                if size_bytes >= _PIECE_BYTES:
                    yield b"".join(pieces)
                    pieces, size_bytes = [], 0
        except CorruptError:
            yield b"".join(pieces)
            raise
        yield b"".join(pieces)

    def _pieces(self, batches: Batches) -> Iterator[bytes | memoryview]:
        done = 0
        for number, offsets, rows in self._columnar(batches):
            for other in range(done, number):
                yield from self._iterated(batches, other)
            yield batches.lines[number].encode("ascii")
            self.gaps.add_rows(offsets)
            yield from rows
            done = number + 1
        for other in range(done, len(batches.lines)):
            yield from self._iterated(batches, other)
        yield batches.tail.encode("ascii")

    def _columnar(self, batches: Batches) -> Iterator[tuple[int, _Int64Array, Iterator[bytes | memoryview]]]:
        """Yield the batches that are printed by column: their numbers, and the offsets and lines of their records."""
        numbers, window = self._usual(batches)
        done = 0
        # A batch that cannot be decompressed is left to the iterator, which fails as Kafka's does.
        with contextlib.suppress(SegmentLogError):
            for section in self._maker.sections(window, np.arange(len(numbers))):
                here = numbers[done : done + len(section.starts)]
                done += len(here)
                # So are records that contradict their batch.
                with contextlib.suppress(UnevenRecordsError, MalformedVarintError, IndexError):
                    yield from self._by_batch(section, decode_by_column(section, self._wanted), here)

    def _usual(self, batches: Batches) -> tuple[_Int64Array, BatchWindow]:
        """Return the numbers of the batches of format v2 that hold data, and a window of just these."""
        is_wanted = self._decoder is None
        numbers = np.array(
            [number for number in range(len(batches.lines)) if is_wanted and number not in batches.unusual],
            np.int64,
        )
        buffer = np.frombuffer(batches.buffer, np.uint8)
        starts = np.array(batches.starts, np.int64)[numbers]
        headers = gather(buffer, starts, HEADER_DTYPE)
        is_data = (headers["record_count"] > 0) & ((headers["attributes"] & CONTROL_FLAG) == 0)
        window = BatchWindow(
            self._path,
            batches.position_bytes,
            buffer,
            starts[is_data],
            headers[is_data],
            end=batches.ends[-1] if batches.ends else 0,
            missing_bytes=0,
            is_preallocated_after=False,
        )
        return numbers[is_data], window

    def _by_batch(
        self, section: RecordSection, columns: RecordColumns, numbers: _Int64Array
    ) -> Iterator[tuple[int, _Int64Array, Iterator[bytes | memoryview]]]:
        rows = _SectionText(self._format, section, columns)
        ends = np.cumsum(columns.row_counts)
        for number, first, end in zip(
            numbers.tolist(), (ends - columns.row_counts).tolist(), ends.tolist(), strict=True
        ):
            yield number, columns.offsets[first:end], rows.lines(first, end)

    def _iterated(self, batches: Batches, number: int) -> Iterator[bytes]:
        """Yield the lines of a batch and its records, one record at a time."""
        yield batches.lines[number].encode("ascii")
        start = batches.starts[number]
        batch = memoryview(batches.buffer)[start : batches.ends[number]]
        header = header_of(batch, batches.position_bytes + start, self._path)
        has_fields = self._format.has_metadata or self._format.has_content
        for record in iterate_records(batch, header, path=self._path, has_fields=has_fields):
            self.gaps.add(record.offset)
            yield from self._line(record, header)

    def _line(self, record: IteratedRecord, header: BatchHeader) -> Iterator[bytes]:
        """Yield the parts of a record's line, in the order in which Kafka's tool prints them."""
        prefix = _INDENT.decode()
        is_control = header.magic >= MAGIC_V2 and header.is_control
        if self._format.has_metadata:
            yield _encoded(f"{prefix}{_metadata_text(record, header)}")
            if is_control:
                yield _encoded(self._control_text(record, header))
            prefix = " "
        if self._format.has_content and not is_control:
            key, value = self._content(record, header)
            if key is not None:
                yield _encoded(f"{prefix}key: {key}")
            if value is not None:
                yield _encoded(f" payload: {value}")
        yield b"\n"

    def _content(self, record: IteratedRecord, header: BatchHeader) -> tuple[str | None, str | None]:
        if record.value is None and record.value_size >= 0:
            raise tool_fails("Found a message whose value does not fit it", self._path, header.position_bytes)
        if self._decoder is not None:
            return self._decoder(record.key, record.value, record.offset)
        return (
            None if record.key is None else java_text(record.key),
            None if record.value is None else java_text(record.value),
        )

    def _control_text(self, record: IteratedRecord, header: BatchHeader) -> str:
        version, type_id = self._unpacked(CONTROL_KEY, record.key, header)
        if version < 0:
            raise tool_fails("Found a malformed control record", self._path, header.position_bytes)
        if type_id not in tuple(ControlType):
            # The tool ignores its value.
            return f" controlType: {ControlType.UNKNOWN.name}({type_id})"
        if record.value is None:
            raise tool_fails("Found a control record without a value", self._path, header.position_bytes)
        if type_id in _END_TYPES:
            version, coordinator_epoch = self._unpacked(END_MARKER_VALUE, record.value, header)
            if version < 0:
                raise tool_fails("Found a malformed marker", self._path, header.position_bytes)
            return f" endTxnMarker: {ControlType(type_id).name} coordinatorEpoch: {coordinator_epoch}"
        text = control_record_text(type_id, record.value)
        return f" controlType: {ControlType.UNKNOWN.name}({type_id})" if text is None else f" {text}"

    def _unpacked(self, layout: struct.Struct, data: bytes | None, header: BatchHeader) -> tuple[int, int]:
        if data is None or len(data) < layout.size:
            raise tool_fails(
                f"Found a control record without the {layout.size} bytes that it needs",
                self._path,
                header.position_bytes,
            )
        first, second = layout.unpack_from(data)
        return first, second


def _encoded(text: str) -> bytes:
    return text.encode(errors="replace")


def _metadata_text(record: IteratedRecord, header: BatchHeader) -> str:
    if header.magic == 0:
        kind = "NoTimestampType"
    else:
        kind = "LogAppendTime" if header.attributes & LOG_APPEND_TIME_FLAG else "CreateTime"
    text = (
        f"offset: {record.offset} {kind}: {record.timestamp_ms} keySize: {record.key_size} "
        f"valueSize: {record.value_size}"
    )
    if header.magic < MAGIC_V2:
        return f"{text} isValid: {str(record.is_valid).lower()} crc: {record.crc}}}"
    keys = ",".join(java_text(key) for key, _ in record.headers)
    return f"{text} sequence: {record.sequence} headerKeys: [{keys}]"


class _SectionText:
    """The lines of the records of a section."""

    def __init__(self, record_format: RecordFormat, section: RecordSection, columns: RecordColumns) -> None:
        self._format = record_format
        self._section = section
        self._columns = columns
        # The first row that is formatted, the text from there on, and where each line begins in it.
        self._first = 0
        self._text = memoryview(b"")
        self._borders = np.zeros(1, np.int32)
        self._is_text = True

    def lines(self, first: int, end: int) -> Iterator[bytes | memoryview]:
        """Yield the lines of consecutive rows, which follow those of the last call."""
        while first < end:
            held_end = self._first + len(self._borders) - 1
            if first >= held_end:
                self._format_from(first)
                continue
            stop = min(end, held_end)
            piece = self._text[self._borders[first - self._first] : self._borders[stop - self._first]]
            yield piece if self._is_text else java_text(bytes(piece)).encode()
            first = stop

    def _format_from(self, first: int) -> None:
        text = self._joined(slice(first, first + MAX_ROWS))
        self._first = first
        _, borders, data = text.buffers()
        self._borders = np.frombuffer(borders, np.int32)[text.offset : text.offset + len(text) + 1]
        self._text = memoryview(b"" if data is None else data)
        # ASCII text separates values, so a malformed value does not change how the next one is decoded.
        self._is_text = _is_utf8(text)

    def _joined(self, rows: slice) -> pa.BinaryArray:
        columns = self._columns
        assert columns.keys is not None  # noqa: S101  (they were asked for)
        assert columns.values is not None  # noqa: S101
        keys, values = columns.keys.take(rows), columns.values.take(rows)
        parts: list[_Part] = [_INDENT] if self._format.has_metadata else []
        if self._format.has_metadata:
            parts += self._metadata(rows, keys, values)
        if self._format.has_content:
            buffer = self._section.buffer
            parts.append(_prefixed(b" key: " if parts else b"| key: ", binary_array(buffer, keys)))
            parts.append(_prefixed(b" payload: ", binary_array(buffer, values)))
        parts.append(b"\n")
        return _join(parts, len(keys.starts))

    def _metadata(self, rows: slice, keys: Slices, values: Slices) -> Iterator[_Part]:
        columns, headers = self._columns, self._section.headers
        counts = columns.row_counts
        assert columns.timestamps_ms is not None  # noqa: S101  (it was asked for)
        yield b"offset: "
        yield _numbers(columns.offsets[rows])
        is_append_time = (headers["attributes"] & LOG_APPEND_TIME_FLAG) != 0
        if is_append_time.all() or not is_append_time.any():
            yield _TIMESTAMP_TYPES[int(is_append_time[0])]
        else:
            mask = np.packbits(np.repeat(is_append_time, counts)[rows], bitorder="little")
            is_append = pa.Array.from_buffers(pa.bool_(), len(keys.starts), [None, pa.py_buffer(mask)])
            yield pc.if_else(is_append, _scalar(_TIMESTAMP_TYPES[1]), _scalar(_TIMESTAMP_TYPES[0]))
        yield _numbers(columns.timestamps_ms[rows])
        yield b" keySize: "
        yield _numbers(np.maximum(keys.lengths, -1))
        yield b" valueSize: "
        yield _numbers(np.maximum(values.lengths, -1))
        yield b" sequence: "
        yield _numbers(self._sequences()[rows])
        yield b" headerKeys: ["
        assert columns.headers is not None  # noqa: S101  (they were asked for)
        if len(columns.headers.keys.starts):
            yield _header_keys(self._section.buffer, columns.headers, rows)
        yield b"]"

    def _sequences(self) -> _Int64Array:
        headers, counts = self._section.headers, self._columns.row_counts
        base = headers["base_sequence"].astype(np.int64)
        if (base < 0).all():
            return np.full(len(self._columns.offsets), -1)
        first = np.repeat(base, counts)
        sequences = first + self._columns.offsets - np.repeat(headers["base_offset"].astype(np.int64), counts)
        # The largest is followed by 0.
        sequences[sequences > MAX_INT32] -= MAX_INT32 + 1
        sequences[first < 0] = -1
        return sequences


def _is_utf8(text: pa.BinaryArray) -> bool:
    try:
        text.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _numbers(column: npt.NDArray[Any]) -> _Part:
    """Convert numbers to text; a column of equal numbers to one text."""
    first = int(column[0])
    if (column == first).all():
        return b"%d" % first
    return pc.cast(
        pc.cast(number_array(column.astype(np.int64, copy=False), pa.int64()), pa.string()), pa.binary()
    )


def _prefixed(prefix: bytes, column: pa.BinaryArray) -> pa.BinaryArray:
    """Put a prefix before the values of a column; null becomes empty."""
    joined = pc.binary_join_element_wise(_scalar(prefix), column, _scalar(b""))
    return joined.fill_null(_scalar(b"")) if joined.null_count else joined


def _header_keys(buffer: npt.NDArray[np.uint8], headers: RecordHeaders, rows: slice) -> pa.BinaryArray:
    first = headers.first[rows.start : rows.stop + 1]
    keys = binary_array(buffer, headers.keys.take(slice(int(first[0]), int(first[-1]))))
    lists = pa.ListArray.from_arrays(number_array((first - first[0]).astype(np.int32), pa.int32()), keys)
    return pc.binary_join(lists, _scalar(b","))


def _scalar(part: bytes) -> pa.Scalar:
    """Return a constant without `pyarrow.scalar`, which imports pandas as well."""
    borders = np.array([0, len(part)], np.int32)
    return pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(borders), pa.py_buffer(part)])[0]


def _join(parts: list[_Part], count: int) -> pa.BinaryArray:
    """Join columns and constants, row by row."""
    merged: list[Any] = []
    constant = b""
    for part in parts:
        if isinstance(part, bytes):
            constant += part
        else:
            merged += [_scalar(constant), part]
            constant = b""
    merged.append(_scalar(constant))
    if len(merged) == 1:
        return pa.repeat(merged[0], count)
    return pc.binary_join_element_wise(*merged, _scalar(b""))
