"""Copy decoded columns from a section's buffer into Arrow arrays.

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
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import pyarrow as pa

from storage_core.record.batch_header import gather

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    _Bytes = npt.NDArray[np.uint8]


HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# An Arrow view contains byte strings up to this length, and points to longer ones.
INLINE_BYTES: Final = 12
_INLINE: Final = np.dtype((np.uint8, INLINE_BYTES))
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


def binary_array(buffer: _Bytes, column: Slices) -> pa.BinaryArray:
    """Copy a column of slices out of ``buffer``, which is below 2 GiB; a negative length becomes null."""
    count = len(column.starts)
    if count == 0:
        return pa.array([], pa.binary())
    shortest, longest = int(column.lengths.min()), int(column.lengths.max())
    if shortest == longest and 0 < longest <= _EQUAL_LENGTH_LIMIT_BYTES:
        return _of_equal_length(buffer, column.starts, longest)
    return _by_views(buffer, column, shortest, longest)


def _of_equal_length(buffer: _Bytes, starts: npt.NDArray[np.int64], length: int) -> pa.BinaryArray:
    content = gather(buffer, starts, np.dtype((np.void, length)))
    borders = np.arange(0, (len(starts) + 1) * length, length, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(starts), [None, pa.py_buffer(borders), pa.py_buffer(content.view(np.uint8))]
    )


def _by_views(buffer: _Bytes, column: Slices, shortest: int, longest: int) -> pa.BinaryArray:
    lengths = column.lengths
    nulls = None
    if shortest < 0:
        is_null = lengths < 0
        # `pyarrow.array` would import pandas, if that is installed.
        nulls = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
        lengths = np.where(is_null, 0, lengths)
    views = np.empty((len(lengths), 4), np.int32)
    views[:, 0] = lengths
    if longest > INLINE_BYTES:
        views[:, 2] = 0
        views[:, 3] = column.starts
    if shortest <= INLINE_BYTES:
        short = np.flatnonzero(lengths <= INLINE_BYTES)
        _put_inline(buffer, views, column.starts, lengths, short)
    array = pa.Array.from_buffers(
        pa.binary_view(), len(lengths), [nulls, pa.py_buffer(views), pa.py_buffer(buffer)]
    )
    return array.cast(pa.binary())


def _put_inline(
    buffer: _Bytes,
    views: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
) -> None:
    """Write short byte strings into their views, followed by zeros as Arrow requires."""
    # The buffer's padding allows to read beyond the last string.
    content = gather(buffer, starts[rows], _INLINE)
    content[np.arange(INLINE_BYTES) >= lengths[rows, None]] = 0
    views[rows, 1:] = content.view(np.int32)


def headers_array(
    buffer: _Bytes, headers: RecordHeaders, replaced: Callable[[list[int]], None] | None = None
) -> pa.ListArray:
    """Record headers as in Spark's Kafka source: null, not an empty list, for a record without headers.

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
        texts = [_mended(key) for key in original]
        if replaced is not None:
            replaced([row for row, text in enumerate(texts) if text.encode() != original[row]])
        return pa.array(texts, pa.string())


def _mended(key: bytes) -> str:
    return _LONE_SURROGATE.sub(_REPLACEMENT, key).decode("utf-8", errors="replace")
