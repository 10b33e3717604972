"""Join columns of short integers and of byte strings row by row, at the speed of a copy.

Arrow's views are 16 bytes each: a length, then up to 12 bytes of content, or where a longer content lies. One
view after the other is laid out as the rows have them, and a cast to plain binary copies them all in one go.

    bytes 0-3   length
    bytes 4-15  the content if it has up to 12 bytes, and zeros; otherwise
    bytes 4-7   prefix, which the cast does not look at
    bytes 8-11  number of the buffer
    bytes 12-15 position in it

Encode the records of many batches by column; the format of a record stands in ``fields``.

A row is short pieces (lengths, deltas, counts) by turns with byte strings (key, value, headers). The zero that
ends a record without headers is written as the first byte of the next one, so that a record without a key is
two pieces.

Encode records one by one: what the encoder by column is measured against, and quicker for a few.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from storage_core.record.batch_header import gather
from storage_core.record.record_input import byte_slices, chunks_of, header_rows_of
from storage_core.record.varint import WORD_RANGE, varint_bytes, varint_words

if TYPE_CHECKING:
    from storage_core.record.record_input import HeaderRows, RecordRows, Records

__all__ = [
    "INLINE_BYTES",
    "ByteStrings",
    "EncodedRows",
    "PlainBatch",
    "PlainHeaders",
    "PlainRecord",
    "ShortBytes",
    "ViewJoiner",
    "Views",
    "encode_by_column",
    "encode_one_batch",
    "encode_one_by_one",
    "is_for_columns",
    "put_byte_strings",
    "short_bytes",
    "short_views",
    "views_of",
]


INLINE_BYTES: Final = 12
_WORDS: Final = np.dtype([("low", "<u8"), ("high", "<u4")])
_U64: Final = {number: np.uint64(number) for number in (8, 32, 64)}
_Int64Array = npt.NDArray[np.int64]
_UInt64Array = npt.NDArray[np.uint64]


def _masks(first: int, width: int) -> _UInt64Array:
    """By length: the bits of those bytes of a content, ``width`` of them from ``first`` on, that it has."""
    kept = [min(max(length - first, 0), width) for length in range(INLINE_BYTES + 1)]
    return np.array([(1 << 8 * count) - 1 for count in kept], np.uint64)


_LOW_MASKS: Final = _masks(0, 8)
_HIGH_MASKS: Final = _masks(8, 4)


@dataclass(frozen=True, slots=True)
class ShortBytes:
    """A column of at most 12 bytes a row, in two words, the first byte lowest; or one such row for all."""

    low: _UInt64Array
    high: _UInt64Array
    lengths: _Int64Array


@dataclass(frozen=True, slots=True)
class ByteStrings:
    """A column of byte strings that lie in a buffer of less than 2 GiB. A negative length has no bytes.

    One length stands for equal ones.
    """

    buffer: npt.NDArray[np.uint8]
    starts: _Int64Array
    lengths: _Int64Array


@dataclass(frozen=True, slots=True)
class Views:
    """A column of views as an array has them, and the buffers that they point into; of null, the length is 0."""

    views: _UInt64Array
    buffers: list[pa.Buffer]


def views_of(array: pa.Array) -> Views:
    """The views of an array of type binary_view."""
    _, view_buffer, *buffers = array.buffers()
    views = np.frombuffer(view_buffer, np.uint64).reshape(-1, 2)[array.offset : array.offset + len(array)]
    if array.null_count:
        views = views.copy()
        views[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return Views(views, buffers)


def short_views(column: Views, lengths: _Int64Array) -> ShortBytes:
    """The same in words, if none has more than 12 bytes; a negative length has none."""
    first, second = column.views[:, 0], column.views[:, 1]
    return ShortBytes((first >> _U64[32]) | (second << _U64[32]), second >> _U64[32], np.maximum(lengths, 0))


class ViewJoiner:
    """Joins columns, one time after the other: the views are laid out in the same memory each time."""

    def __init__(self) -> None:
        self._views = np.empty((0, 2), np.uint64)

    def join(
        self, count: int, columns: list[ShortBytes | ByteStrings | Views], last: bytes = b""
    ) -> memoryview:
        """The bytes of all rows, one after the other, and ``last`` (up to 12 bytes) behind them.

        Args:
            count: The number of rows.
            columns: What each row is made of; less than 2 GiB in all.
            last: What is to stand behind all of them.
        """
        view_count = count * len(columns) + 1
        if len(self._views) < view_count:
            self._views = np.empty((view_count, 2), np.uint64)
        views = self._views[:view_count]
        views[-1] = (len(last) | int.from_bytes(last[:4], "little") << 32, int.from_bytes(last[4:], "little"))
        rows = views[:-1].reshape(count, len(columns), 2)
        buffers: list[pa.Buffer] = []
        for number, column in enumerate(columns):
            places = rows[:, number]
            if isinstance(column, ShortBytes):
                _put_short(places, column.low, column.high, column.lengths.view(np.uint64))
            elif isinstance(column, Views):
                _put_views(places, column.views, len(buffers))
                buffers.extend(column.buffers)
            else:
                put_byte_strings(places, column, len(buffers))
                buffers.append(pa.py_buffer(column.buffer))
        array = pa.Array.from_buffers(
            pa.binary_view(), view_count, [None, pa.py_buffer(views), *(buffers or [pa.py_buffer(b"")])]
        )
        joined = array.cast(pa.binary())
        # The array's bytes may lie in a longer buffer.
        end = int(np.frombuffer(joined.buffers()[1], np.int32)[view_count])
        return memoryview(joined.buffers()[2]).cast("B")[:end]


def _put_short(places: _UInt64Array, low: _UInt64Array, high: _UInt64Array, lengths: _UInt64Array) -> None:
    places[:, 0] = lengths | (low << _U64[32])
    places[:, 1] = (low >> _U64[32]) | (high << _U64[32])


def _put_views(places: _UInt64Array, views: _UInt64Array, first_number: int) -> None:
    places[:, 0] = views[:, 0]
    if first_number:
        # The length is the lower half of the first word, the number of the buffer that of the second.
        is_long = views[:, 0].astype(np.uint32) > np.uint32(INLINE_BYTES)
        places[:, 1] = views[:, 1] + is_long * np.uint64(first_number)
    else:
        places[:, 1] = views[:, 1]


def put_byte_strings(places: _UInt64Array, column: ByteStrings, number: int) -> None:
    """Lay out the views of byte strings, whose buffer will have a number."""
    lengths = column.lengths
    shortest, longest = (int(lengths.min()), int(lengths.max())) if len(lengths) else (0, 0)
    if shortest < 0:
        lengths = np.maximum(lengths, 0)
    if longest <= INLINE_BYTES:
        _put_inline(places, column.buffer, column.starts, lengths)
        return
    places[:, 0] = lengths
    places[:, 1] = (column.starts.view(np.uint64) << _U64[32]) | np.uint64(number)
    if shortest <= INLINE_BYTES:
        short = np.flatnonzero(lengths <= INLINE_BYTES)
        inline = np.empty((len(short), 2), np.uint64)
        _put_inline(inline, column.buffer, column.starts[short], lengths[short])
        places[short] = inline


def _put_inline(
    places: _UInt64Array, buffer: npt.NDArray[np.uint8], starts: _Int64Array, lengths: _Int64Array
) -> None:
    short = short_bytes(buffer, starts, lengths)
    _put_short(places, short.low, short.high, lengths.view(np.uint64))


def short_bytes(buffer: npt.NDArray[np.uint8], starts: _Int64Array, lengths: _Int64Array) -> ShortBytes:
    """Byte strings of up to 12 bytes in words; a negative length has no bytes."""
    if len(lengths) and lengths.min() < 0:
        lengths = np.maximum(lengths, 0)
    if len(starts) and int(starts.max()) + INLINE_BYTES > len(buffer):
        # Content is read in full width, beyond the end of the last.
        buffer = np.append(buffer, np.zeros(INLINE_BYTES, np.uint8))
    content = gather(buffer, starts, _WORDS)
    return ShortBytes(content["low"] & _LOW_MASKS[lengths], content["high"] & _HIGH_MASKS[lengths], lengths)


_ZERO: Final = np.zeros(1, np.uint64)
_WORD_BYTES: Final = 8
_WORD_BITS: Final = np.uint64(64)
# What is laid out by views is below 2 GiB.
_LIMIT_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Uncompressed records, and where the batches begin and end in them."""

    data: memoryview
    borders: list[int]

    def bodies(self) -> list[memoryview]:
        """Per batch, its records."""
        return [self.data[start:end] for start, end in zip(self.borders[:-1], self.borders[1:], strict=True)]


def is_for_columns(rows: RecordRows) -> bool:
    """Whether the encoder by column takes some rows: no timestamps of geological distance, no gigabytes."""
    span = int(rows.timestamps_ms.max()) - int(rows.timestamps_ms.min())
    size_bytes = int(np.broadcast_to(rows.tails_bytes, rows.count).sum())
    return span in WORD_RANGE and size_bytes < _LIMIT_BYTES


def encode_by_column(
    records: Records,
    rows: RecordRows,
    ends: _Int64Array,
    joiner: ViewJoiner,
    row_offsets: _Int64Array | None = None,
) -> EncodedRows:
    """Encode rows into batches that end behind the rows of ``ends``, the last one behind the last row.

    Without ``row_offsets``, those of a batch are consecutive.
    """
    counts = np.diff(ends, prepend=0)
    starts = ends - counts
    if row_offsets is None:
        offset_deltas = np.arange(rows.count) - np.repeat(starts, counts)
    else:
        offset_deltas = row_offsets - np.repeat(row_offsets[starts], counts)
    timestamps_ms = rows.timestamps_ms
    if len(timestamps_ms) > 1:
        time_deltas = timestamps_ms - np.repeat(timestamps_ms[starts], counts)
    else:
        time_deltas = np.zeros(1, np.int64)
    times, offsets = varint_words(time_deltas), varint_words(offset_deltas)
    bodies = 1 + times[1] + offsets[1] + rows.tails_bytes
    lengths = varint_words(bodies)

    headers = header_rows_of(chunks_of(records, "headers"), 0)
    layout = _Layout()
    if headers is None:
        layout.skip_byte()
    layout.add(lengths)
    layout.skip_byte()
    layout.add(times)
    layout.add(offsets)
    layout.add_sized(chunks_of(records, "key"), rows.key_lengths)
    layout.add_sized(chunks_of(records, "value"), rows.value_lengths)
    if headers is not None:
        layout.add(varint_words(headers.counts))
        layout.add_bytes(_header_bytes(headers, joiner))
    data = joiner.join(rows.count, layout.columns(), b"" if headers is not None else b"\0")

    row_ends = np.cumsum(np.broadcast_to(bodies + lengths[1], rows.count))
    # The first row has a zero before it that ends no record.
    first = 0 if headers is not None else 1
    borders = [first, *(row_ends[ends - 1] + first).tolist()]
    return EncodedRows(data, borders)


def _header_bytes(headers: HeaderRows, joiner: ViewJoiner) -> ByteStrings:
    """The headers of each row, all of them one behind the other."""
    layout = _Layout()
    layout.add_sized(headers.keys, headers.key_lengths)
    layout.add_sized(headers.values, headers.value_lengths)
    data = joiner.join(len(headers.key_lengths), layout.columns())
    sizes_bytes = headers.sizes_bytes()
    return ByteStrings(np.frombuffer(data, np.uint8), np.cumsum(sizes_bytes) - sizes_bytes, sizes_bytes)


class _Layout:
    """What a row is made of, piece after piece; short pieces are put together as far as there is room."""

    def __init__(self) -> None:
        self._columns: list[ShortBytes | ByteStrings | Views] = []
        self._begin()

    def _begin(self) -> None:
        self._low, self._high = _ZERO, _ZERO
        self._lengths = np.zeros(1, np.int64)
        self._longest = 0

    def skip_byte(self) -> None:
        """A byte of zero."""
        self._make_room(1)
        self._lengths = self._lengths + 1
        self._longest += 1

    def add(self, piece: tuple[_UInt64Array, _Int64Array]) -> None:
        """Up to eight bytes a row, as `varint_words` gives them."""
        words, lengths = piece
        self.add_short(ShortBytes(words, _ZERO, lengths))

    def add_short(self, piece: ShortBytes) -> None:
        """Up to 12 bytes a row."""
        low, high, longest = piece.low, piece.high, int(piece.lengths.max())
        self._make_room(longest)
        if self._longest:
            shift = (self._lengths * 8).view(np.uint64)
            # A shift by 64 and more leaves nothing, and below 0 it is one by very much.
            if self._longest + longest > _WORD_BYTES:
                high = (low >> (_WORD_BITS - shift)) | (low << (shift - _WORD_BITS)) | (high << shift)
                high = self._high | high
            low = self._low | (low << shift)
        self._low, self._high = low, high
        self._lengths = self._lengths + piece.lengths
        self._longest += longest

    def add_sized(self, chunks: Sequence[pa.Array], lengths: _Int64Array) -> None:
        """Byte strings with their lengths before them."""
        self.add(varint_words(lengths))
        longest = lengths.max()
        if longest <= 0:
            return
        if len(chunks) == 1 and kinds.is_binary_view(chunks[0].type):
            views = views_of(chunks[0])
            if longest <= INLINE_BYTES:
                self.add_short(short_views(views, lengths))
            else:
                self.add_bytes(views)
            return
        buffer, starts = byte_slices(chunks)
        if longest <= INLINE_BYTES:
            self.add_short(short_bytes(buffer, starts, lengths))
        else:
            self.add_bytes(ByteStrings(buffer, starts, lengths))

    def add_bytes(self, column: ByteStrings | Views) -> None:
        """Byte strings."""
        self._end()
        self._columns.append(column)

    def columns(self) -> list[ShortBytes | ByteStrings | Views]:
        """All that was added."""
        self._end()
        return self._columns

    def _make_room(self, longest: int) -> None:
        if self._longest + longest > INLINE_BYTES:
            self._end()

    def _end(self) -> None:
        if self._longest:
            self._columns.append(ShortBytes(self._low, self._high, self._lengths))
            self._begin()


PlainHeaders: TypeAlias = Sequence[tuple[bytes, bytes | None]]
# Timestamp (ms), key, value, headers.
PlainRecord: TypeAlias = tuple[int, bytes | None, bytes | None, PlainHeaders]
_NULL = varint_bytes(-1)


@dataclass(frozen=True, slots=True)
class PlainBatch:
    """The uncompressed records of one batch, and what its header says of them."""

    records: bytes
    count: int
    base_timestamp_ms: int
    max_timestamp_ms: int


def encode_one_by_one(rows: Sequence[PlainRecord], records_limit_bytes: int) -> Iterator[PlainBatch]:
    """Encode rows into batches.

    Args:
        rows: The records.
        records_limit_bytes: The most that the records of one batch may take; a single one may take more.
    """
    records: list[bytes] = []
    size_bytes = base_timestamp_ms = max_timestamp_ms = 0
    for timestamp_ms, key, value, headers in rows:
        tail = _sized(key) + _sized(value) + _headers(headers)
        if records:
            record = _record(timestamp_ms - base_timestamp_ms, len(records), tail)
            if size_bytes + len(record) <= records_limit_bytes:
                records.append(record)
                size_bytes += len(record)
                max_timestamp_ms = max(max_timestamp_ms, timestamp_ms)
                continue
            yield PlainBatch(b"".join(records), len(records), base_timestamp_ms, max_timestamp_ms)
        base_timestamp_ms = max_timestamp_ms = timestamp_ms
        records = [_record(0, 0, tail)]
        size_bytes = len(records[0])
    if records:
        yield PlainBatch(b"".join(records), len(records), base_timestamp_ms, max_timestamp_ms)


def encode_one_batch(rows: Sequence[PlainRecord], offset_deltas: Sequence[int]) -> bytes:
    """Encode the rows of one batch, of which there is at least one."""
    base_timestamp_ms = rows[0][0]
    return b"".join(
        [
            _record(timestamp_ms - base_timestamp_ms, delta, _sized(key) + _sized(value) + _headers(headers))
            for (timestamp_ms, key, value, headers), delta in zip(rows, offset_deltas, strict=True)
        ]
    )


def _record(timestamp_delta_ms: int, offset_delta: int, tail: bytes) -> bytes:
    body = b"\0" + varint_bytes(timestamp_delta_ms) + varint_bytes(offset_delta) + tail
    return varint_bytes(len(body)) + body


def _headers(headers: PlainHeaders) -> bytes:
    if not headers:
        return b"\0"
    pairs = b"".join([_sized(key) + _sized(value) for key, value in headers])
    return varint_bytes(len(headers)) + pairs


def _sized(content: bytes | None) -> bytes:
    return _NULL if content is None else varint_bytes(len(content)) + content
