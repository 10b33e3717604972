"""Encode the records of many batches by column; the format of a record stands in ``fields``.

A row is short pieces (lengths, deltas, counts) by turns with byte strings (key, value, headers). The zero that
ends a record without headers is written as the first byte of the next one, so that a record without a key is
two pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow.types as kinds

from storage_core.record.byte_column import byte_slices
from storage_core.record.record_rows import chunks_of, header_rows_of
from storage_core.record.varint_encode import WORD_RANGE, varint_words
from storage_core.record.view_join import (
    INLINE_BYTES,
    ByteStrings,
    ShortBytes,
    ViewJoiner,
    Views,
    short_bytes,
    short_views,
    views_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from storage_core.record.record_input import Records
    from storage_core.record.record_rows import HeaderRows, RecordRows

__all__ = ["EncodedRows", "encode_by_column", "is_for_columns"]

_ZERO: Final = np.zeros(1, np.uint64)
_WORD_BYTES: Final = 8
_WORD_BITS: Final = np.uint64(64)
# What is laid out by views is below 2 GiB.
_LIMIT_BYTES: Final = 1 << 30

_Int64Array = npt.NDArray[np.int64]
_UInt64Array = npt.NDArray[np.uint64]


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
