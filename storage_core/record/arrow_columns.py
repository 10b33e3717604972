"""Columns of byte strings: from a buffer into Arrow arrays, and from Arrow arrays.

Arrow's views are 16 bytes each. Casting them to plain binary copies all byte strings at once.

    bytes 0-3    length
    bytes 4-15   the content, padded with zeros, if it has up to 12 bytes; otherwise
    bytes 4-7    prefix, which the cast does not read
    bytes 8-11   number of the buffer
    bytes 12-15  position in the buffer
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from storage_core.record.batch_header import gather

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    _Bytes = npt.NDArray[np.uint8]
    _Words = npt.NDArray[np.uint32]
    _Int64Array = npt.NDArray[np.int64]


HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# An Arrow view contains byte strings up to this length, and points to longer ones.
INLINE_BYTES: Final = 12
_INLINE: Final = np.dtype((np.uint32, INLINE_BYTES // 4))
# By length: a mask of a string's bytes.
_INLINE_MASKS: Final = np.where(
    np.arange(INLINE_BYTES) < np.arange(INLINE_BYTES + 1)[:, None], np.uint8(0xFF), np.uint8(0)
).view(np.uint32)
# An Arrow view is four integers of 32 bits; the first is its length.
_VIEW_INTEGERS: Final = 4
# Slices of one length up to this many bytes are copied as numpy items.
_EQUAL_LENGTH_LIMIT_BYTES: Final = 1 << 16
# Half of a surrogate pair: Java replaces it by one character, Python each of its bytes.
_LONE_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}".encode()


@dataclass(frozen=True, slots=True)
class Slices:
    """A column of byte strings that still lie in a section's buffer. A negative length is null."""

    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    def take(self, rows: slice | npt.NDArray[np.int64]) -> Slices:
        """Return the slices of some rows."""
        return Slices(self.starts[rows], self.lengths[rows])


@dataclass(frozen=True, slots=True)
class ByteStrings:
    """A column of byte strings in a buffer of less than 2 GiB. A negative length has no bytes.

    A single length applies to all rows.
    """

    buffer: npt.NDArray[np.uint8]
    starts: _Int64Array
    lengths: _Int64Array


@dataclass(frozen=True, slots=True)
class RecordHeaders:
    """The headers of all records: record ``i`` has those from ``first[i]`` up to ``first[i + 1]``."""

    first: npt.NDArray[np.int64]
    keys: Slices
    values: Slices

    @classmethod
    def none(cls, record_count: int) -> Self:
        """Return the headers of records that have none."""
        nothing = np.zeros(0, np.int64)
        return cls(np.zeros(record_count + 1, np.int64), Slices(nothing, nothing), Slices(nothing, nothing))


def number_array(numbers: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return an array of numbers that are as wide as its type, without a copy.

    `pyarrow.array` and `pyarrow.scalar` import pandas, if that is installed: 200 ms of each process that reads.
    """
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])


def constant_array(value: object, kind: pa.DataType, count: int) -> pa.Array:
    """Return an array with one text, number or null in all rows. It does not import pandas either."""
    if value is None:
        return pa.nulls(count, kind)
    if isinstance(value, str):
        text = value.encode()
        borders = pa.py_buffer(np.array([0, len(text)], np.int32))
        single = pa.Array.from_buffers(kind, 1, [None, borders, pa.py_buffer(text)])
    else:
        single = number_array(np.array([value], f"i{kind.bit_width // 8}"), kind)
    return pa.repeat(single[0], count)


def binary_array(buffer: _Bytes, column: Slices) -> pa.BinaryArray:
    """Copy byte strings out of a buffer of less than 2 GiB. A negative length becomes null."""
    count = len(column.starts)
    if count == 0:
        return pa.nulls(0, pa.binary())
    shortest, longest = int(column.lengths.min()), int(column.lengths.max())
    if shortest == longest and 0 < longest <= _EQUAL_LENGTH_LIMIT_BYTES:
        return _of_equal_length(buffer, column.starts, longest)
    return _by_views(buffer, column, shortest)


def _of_equal_length(buffer: _Bytes, starts: npt.NDArray[np.int64], length: int) -> pa.BinaryArray:
    content = gather(buffer, starts, np.dtype((np.void, length)))
    borders = np.arange(0, (len(starts) + 1) * length, length, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(starts), [None, pa.py_buffer(borders), pa.py_buffer(content.view(np.uint8))]
    )


def _by_views(buffer: _Bytes, column: Slices, shortest: int) -> pa.BinaryArray:
    nulls = None if shortest >= 0 else pa.py_buffer(np.packbits(column.lengths >= 0, bitorder="little"))
    views = np.empty((len(column.lengths), 2), np.uint64)
    put_byte_strings(views, ByteStrings(buffer, column.starts, column.lengths), 0)
    buffers = [nulls, pa.py_buffer(views), pa.py_buffer(buffer)]
    return pa.Array.from_buffers(pa.binary_view(), len(views), buffers).cast(pa.binary())


def put_byte_strings(places: npt.NDArray[np.uint64], column: ByteStrings, number: int) -> None:
    """Write Arrow views of byte strings, which lie in the buffer of the given number."""
    lengths = column.lengths
    shortest, longest = (int(lengths.min()), int(lengths.max())) if len(lengths) else (0, 0)
    if shortest < 0:
        lengths = np.maximum(lengths, 0)
    places[:, 0] = lengths
    if longest > INLINE_BYTES:
        places[:, 1] = (column.starts.view(np.uint64) << np.uint64(32)) | np.uint64(number)
    words = places.view(np.uint32)
    if longest <= INLINE_BYTES:
        words[:, 1:] = inline_bytes(column.buffer, column.starts, lengths)
    elif shortest <= INLINE_BYTES:
        short = np.flatnonzero(lengths <= INLINE_BYTES)
        words[short, 1:] = inline_bytes(column.buffer, column.starts[short], lengths[short])


def inline_bytes(buffer: _Bytes, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> _Words:
    """Return byte strings of up to 12 bytes, each followed by zeros, as three words."""
    if len(starts) and int(starts.max()) + INLINE_BYTES > len(buffer):
        # Twelve bytes are read of each string, beyond the end of the last one.
        buffer = np.append(buffer, np.zeros(INLINE_BYTES, np.uint8))
    words: _Words = gather(buffer, starts, _INLINE)
    words &= _INLINE_MASKS.take(lengths, axis=0)
    return words


def headers_array(
    buffer: _Bytes, headers: RecordHeaders, replaced: Callable[[list[int]], None] | None = None
) -> pa.ListArray:
    """Return record headers as Spark's Kafka source does: null, not an empty list, for a record without headers.

    Bytes of a key that are not UTF-8 are replaced, as in Java; then ``replaced`` is called with the numbers of these headers.
    """
    keys = binary_array(buffer, headers.keys)
    children = [_as_text(keys, replaced), binary_array(buffer, headers.values)]
    pairs = pa.StructArray.from_arrays(children, fields=list(HEADERS_TYPE.value_type))
    first = headers.first.astype(np.int32)
    has_none = first[1:] == first[:-1]
    return pa.ListArray.from_arrays(
        pa.array(first), pairs, type=HEADERS_TYPE, mask=pa.array(has_none) if has_none.any() else None
    )


def _as_text(keys: pa.BinaryArray, replaced: Callable[[list[int]], None] | None) -> pa.StringArray:
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        original = keys.to_pylist()
        whole = (_LONE_SURROGATE.sub(_REPLACEMENT, key) for key in original)
        texts = [key.decode("utf-8", errors="replace") for key in whole]
        if replaced is not None:
            replaced([row for row, text in enumerate(texts) if text.encode() != original[row]])
        return pa.array(texts, pa.string())


def chunks_of(records: pa.Table | pa.RecordBatch, name: str) -> Sequence[pa.Array]:
    """Return the arrays of a column in order. A missing column has none."""
    if name not in records.schema.names:
        return ()
    column = records.column(name)
    return column.chunks if isinstance(column, pa.ChunkedArray) else (column,)


def byte_lengths(chunks: Sequence[pa.Array]) -> _Int64Array:
    """Return the length of each byte string or text; -1 for null."""
    lengths = [_lengths(chunk) for chunk in chunks if len(chunk)]
    if len(lengths) == 1:
        return lengths[0]
    return np.concatenate(lengths) if lengths else np.zeros(0, np.int64)


def byte_slices(chunks: Sequence[pa.Array]) -> tuple[npt.NDArray[np.uint8], _Int64Array]:
    """Return the byte strings of some arrays in one buffer. A single array is not copied.

    Returns:
        The buffer, which begins with the first byte string, and the position of each.
    """
    arrays = [_plain(chunk) for chunk in chunks if len(chunk)]
    if not arrays:
        return np.zeros(0, np.uint8), np.zeros(0, np.int64)
    array = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
    borders = _borders(array)
    first, last = int(borders[0]), int(borders[-1])
    data = array.buffers()[2]
    buffer = np.frombuffer(data, np.uint8)[first:last] if last > first else np.zeros(0, np.uint8)
    return buffer, borders[:-1] - np.int64(first)


def _lengths(array: pa.Array) -> _Int64Array:
    kind = array.type
    if kinds.is_dictionary(kind):
        return _dictionary_lengths(array)
    if kinds.is_null(kind):
        return np.full(len(array), -1, np.int64)
    if kinds.is_fixed_size_binary(kind):
        lengths = np.full(len(array), kind.byte_width, np.int64)
    elif kinds.is_binary_view(kind) or kinds.is_string_view(kind):
        views = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, _VIEW_INTEGERS)
        lengths = views[array.offset : array.offset + len(array), 0].astype(np.int64)
    else:
        lengths = np.diff(_borders(array)).astype(np.int64, copy=False)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = -1
    return lengths


def _dictionary_lengths(array: pa.DictionaryArray) -> _Int64Array:
    # A row is null if its index is, or the value in the dictionary.
    value_lengths = np.append(_lengths(array.dictionary), -1)
    indexes = array.indices.cast(pa.int64()).fill_null(len(value_lengths) - 1).to_numpy()
    lengths: _Int64Array = value_lengths[indexes]
    return lengths


def _borders(array: pa.Array) -> npt.NDArray[np.int32] | _Int64Array:
    """Return the positions of an array's byte strings, and the end of the last one."""
    is_large = kinds.is_large_binary(array.type) or kinds.is_large_string(array.type)
    data = array.buffers()[1]
    borders = np.frombuffer(data, np.int64) if is_large else np.frombuffer(data, np.int32)
    return borders[array.offset : array.offset + len(array) + 1]


def _plain(array: pa.Array) -> pa.Array:
    """Return the array as binary with offsets, without a copy if it has them already."""
    kind = array.type
    if kinds.is_dictionary(kind):
        return _plain(array.dictionary_decode())
    if kinds.is_string(kind) or kinds.is_null(kind):
        return array.cast(pa.binary())
    if kinds.is_binary(kind) or kinds.is_large_binary(kind):
        return array
    return array.cast(pa.large_binary())
