"""Join columns of short integers and of byte strings row by row, at the speed of a copy.

Arrow's views are 16 bytes each: a length, then up to 12 bytes of content, or where a longer content lies. One
view after the other is laid out as the rows have them, and a cast to plain binary copies them all in one go.

    bytes 0-3   length
    bytes 4-15  the content if it has up to 12 bytes, and zeros; otherwise
    bytes 4-7   prefix, which the cast does not look at
    bytes 8-11  number of the buffer
    bytes 12-15 position in it
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.record.gather import gather

__all__ = [
    "INLINE_BYTES",
    "ByteStrings",
    "ShortBytes",
    "ViewJoiner",
    "Views",
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
