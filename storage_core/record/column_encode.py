"""Encode v2 records: many by column, at the speed of a copy, or a few one by one.

A row alternates between short pieces (lengths, deltas, counts) and byte strings (key, value, headers). They are laid out
as Arrow views, row after row, and one cast to plain binary copies them all. The zero that ends a record without headers
is written as the first byte of the next record, so that a record without a key is two pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from storage_core.record.arrow_columns import (
    INLINE_BYTES,
    ByteStrings,
    byte_slices,
    chunks_of,
    inline_bytes,
    put_byte_strings,
)
from storage_core.record.record_input import HeaderRows, PlainHeaders, PlainRecord, RecordRows, Records
from storage_core.record.varint import WORD_RANGE, VarintWords, varint_bytes, varint_words

_WORDS: Final = np.dtype([("low", "<u8"), ("high", "<u4")])
_U64: Final = {number: np.uint64(number) for number in (8, 32, 64)}
_Int64Array = npt.NDArray[np.int64]
_UInt64Array = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class ShortBytes:
    """A column of up to 12 bytes per row, in two words, the first byte lowest; a single row applies to all."""

    low: _UInt64Array
    high: _UInt64Array
    lengths: _Int64Array


@dataclass(frozen=True, slots=True)
class Views:
    """A column of Arrow views, and the buffers that they point into. The length of null is 0."""

    views: _UInt64Array
    buffers: list[pa.Buffer]


def views_of(array: pa.Array) -> Views:
    """Return the views of an array of type binary_view."""
    _, view_buffer, *buffers = array.buffers()
    views = np.frombuffer(view_buffer, np.uint64).reshape(-1, 2)[array.offset : array.offset + len(array)]
    if array.null_count:
        views = views.copy()
        views[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return Views(views, buffers)


def short_views(column: Views, lengths: _Int64Array) -> ShortBytes:
    """Return views of up to 12 bytes as words; a negative length has no bytes."""
    first, second = column.views[:, 0], column.views[:, 1]
    return ShortBytes((first >> _U64[32]) | (second << _U64[32]), second >> _U64[32], np.maximum(lengths, 0))


class ViewJoiner:
    """Joins columns row by row, and reuses the memory of the views."""

    def __init__(self) -> None:
        self._views = np.empty((0, 2), np.uint64)

    def join(
        self, count: int, columns: list[ShortBytes | ByteStrings | Views], last: bytes = b""
    ) -> memoryview:
        """Concatenate the pieces of each row, less than 2 GiB in all, and then up to 12 ``last`` bytes."""
        view_count = count * len(columns) + 1
        if len(self._views) < view_count:
            self._views = np.empty((view_count, 2), np.uint64)
        views = self._views[:view_count]
        views[-1] = (len(last) | int.from_bytes(last[:4], "little") << 32, int.from_bytes(last[4:], "little"))
        rows = views[:-1].reshape(count, len(columns), 2)
        buffers: list[pa.Buffer] = []
        for number, column in enumerate(columns):
            column_views = rows[:, number]
            if isinstance(column, ShortBytes):
                _put_short(column_views, column)
            elif isinstance(column, Views):
                _put_views(column_views, column.views, len(buffers))
                buffers.extend(column.buffers)
            else:
                put_byte_strings(column_views, column, len(buffers))
                buffers.append(pa.py_buffer(column.buffer))
        array = pa.Array.from_buffers(
            pa.binary_view(), view_count, [None, pa.py_buffer(views), *(buffers or [pa.py_buffer(b"")])]
        )
        joined = array.cast(pa.binary())
        # The buffer may be longer than the array's bytes.
        end = int(np.frombuffer(joined.buffers()[1], np.int32)[view_count])
        return memoryview(joined.buffers()[2]).cast("B")[:end]


def _put_short(places: _UInt64Array, column: ShortBytes) -> None:
    places[:, 0] = column.lengths.view(np.uint64) | (column.low << _U64[32])
    places[:, 1] = (column.low >> _U64[32]) | (column.high << _U64[32])


def _put_views(places: _UInt64Array, views: _UInt64Array, first_number: int) -> None:
    places[:, 0] = views[:, 0]
    if first_number:
        # The lower half of the first word is the length, that of the second the number of the buffer.
        is_long = views[:, 0].astype(np.uint32) > np.uint32(INLINE_BYTES)
        places[:, 1] = views[:, 1] + is_long * np.uint64(first_number)
    else:
        places[:, 1] = views[:, 1]


def short_bytes(buffer: npt.NDArray[np.uint8], starts: _Int64Array, lengths: _Int64Array) -> ShortBytes:
    """Return byte strings of up to 12 bytes as words; a negative length has no bytes."""
    lengths = np.maximum(lengths, 0)
    words = inline_bytes(buffer, starts, lengths).view(_WORDS)[:, 0]
    return ShortBytes(words["low"].copy(), words["high"].astype(np.uint64), lengths)


_ZERO: Final = np.zeros(1, np.uint64)
_WORD_BYTES: Final = 8
_WORD_BITS: Final = np.uint64(64)
# Well below the 2 GiB that views can address.
_LIMIT_BYTES: Final = 1 << 30


def is_for_columns(rows: RecordRows) -> bool:
    """Return True if the rows can be encoded by column: deltas have up to 55 bits, and all rows less than 1 GiB."""
    span = int(rows.timestamps_ms.max()) - int(rows.timestamps_ms.min())
    size_bytes = int(np.broadcast_to(rows.tails_bytes, rows.count).sum())
    return span in WORD_RANGE and size_bytes < _LIMIT_BYTES


def encode_by_column(
    records: Records,
    rows: RecordRows,
    headers: HeaderRows | None,
    ends: _Int64Array,
    joiner: ViewJoiner,
    row_offsets: _Int64Array | None = None,
) -> list[memoryview]:
    """Encode rows as the records of batches.

    Args:
        records: The columns of the rows.
        rows: Their timestamps and lengths.
        headers: Their headers; None if no row has any.
        ends: Per batch, the row after its last one.
        joiner: Its memory is used.
        row_offsets: Per row, its offset; None if the offsets of a batch are consecutive.
    """
    times, offsets = map(varint_words, _deltas(rows, ends, row_offsets))
    bodies_bytes = 1 + times.lengths + offsets.lengths + rows.tails_bytes
    record_lengths = varint_words(bodies_bytes)

    layout = _Layout()
    if headers is None:
        layout.skip_byte()
    layout.add(record_lengths)
    layout.skip_byte()
    layout.add(times)
    layout.add(offsets)
    layout.add_sized(chunks_of(records, "key"), rows.key_lengths)
    layout.add_sized(chunks_of(records, "value"), rows.value_lengths)
    if headers is not None:
        layout.add(varint_words(headers.counts))
        layout.add_bytes(_header_bytes(headers, joiner))
    data = joiner.join(rows.count, layout.columns(), b"" if headers is not None else b"\0")

    row_ends = np.cumsum(np.broadcast_to(bodies_bytes + record_lengths.lengths, rows.count))
    # The zero before the first row ends no record.
    first = 0 if headers is not None else 1
    borders = [first, *(row_ends[ends - 1] + first).tolist()]
    return [data[start:end] for start, end in pairwise(borders)]


def _deltas(
    rows: RecordRows, ends: _Int64Array, row_offsets: _Int64Array | None
) -> tuple[_Int64Array, _Int64Array]:
    """Return the timestamp and the offset of each row, less those of its batch."""
    counts = np.diff(ends, prepend=0)
    starts = ends - counts
    offsets = np.arange(rows.count) if row_offsets is None else row_offsets
    times = rows.timestamps_ms
    has_one_time = len(times) == 1
    time_deltas = np.zeros(1, np.int64) if has_one_time else times - np.repeat(times[starts], counts)
    return time_deltas, offsets - np.repeat(offsets[starts], counts)


def _header_bytes(headers: HeaderRows, joiner: ViewJoiner) -> ByteStrings:
    layout = _Layout()
    layout.add_sized(headers.keys, headers.key_lengths)
    layout.add_sized(headers.values, headers.value_lengths)
    data = joiner.join(len(headers.key_lengths), layout.columns())
    sizes_bytes = headers.sizes_bytes()
    return ByteStrings(np.frombuffer(data, np.uint8), np.cumsum(sizes_bytes) - sizes_bytes, sizes_bytes)


class _Layout:
    """The pieces of a row. Consecutive short pieces are joined up to 12 bytes."""

    def __init__(self) -> None:
        self._columns: list[ShortBytes | ByteStrings | Views] = []
        self._begin()

    def _begin(self) -> None:
        self._low, self._high = _ZERO, _ZERO
        self._lengths = np.zeros(1, np.int64)
        self._longest = 0

    def skip_byte(self) -> None:
        """Add a zero byte."""
        self._make_room(1)
        self._lengths = self._lengths + 1
        self._longest += 1

    def add(self, varints: VarintWords) -> None:
        """Add a varint."""
        self.add_short(ShortBytes(varints.words, _ZERO, varints.lengths))

    def add_short(self, piece: ShortBytes) -> None:
        """Add up to 12 bytes per row."""
        low, high, longest = piece.low, piece.high, int(piece.lengths.max())
        self._make_room(longest)
        if self._longest:
            shift = (self._lengths * 8).view(np.uint64)
            # A shift by 64 or more gives 0; so does a negative one, which is very large without a sign.
            if self._longest + longest > _WORD_BYTES:
                high = (low >> (_WORD_BITS - shift)) | (low << (shift - _WORD_BITS)) | (high << shift)
                high = self._high | high
            low = self._low | (low << shift)
        self._low, self._high = low, high
        self._lengths = self._lengths + piece.lengths
        self._longest += longest

    def add_sized(self, chunks: Sequence[pa.Array], lengths: _Int64Array) -> None:
        """Add byte strings, each after its length."""
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
        """Add byte strings."""
        self._end()
        self._columns.append(column)

    def columns(self) -> list[ShortBytes | ByteStrings | Views]:
        """Return all pieces added."""
        self._end()
        return self._columns

    def _make_room(self, longest: int) -> None:
        if self._longest + longest > INLINE_BYTES:
            self._end()

    def _end(self) -> None:
        if self._longest:
            self._columns.append(ShortBytes(self._low, self._high, self._lengths))
            self._begin()


_NULL = varint_bytes(-1)


@dataclass(frozen=True, slots=True)
class PlainBatch:
    """The uncompressed records of a batch, and the fields of its header that follow from them."""

    records: bytes
    count: int
    base_timestamp_ms: int
    max_timestamp_ms: int


def encode_one_by_one(rows: Sequence[PlainRecord], records_limit_bytes: int) -> Iterator[PlainBatch]:
    """Encode rows into batches of limited size. A single record may exceed it."""
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
    """Encode the rows of one batch, at least one."""
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
