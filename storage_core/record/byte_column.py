"""Columns of byte strings as Arrow has them: their lengths, and where their bytes lie. Nothing is copied unasked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["byte_lengths", "byte_slices"]

_Int64Array = npt.NDArray[np.int64]

# A view begins with its length, and takes so many integers of 32 bits.
_VIEW_INTEGERS = 4


def byte_lengths(chunks: Sequence[pa.Array]) -> _Int64Array:
    """The length of each byte string or text in some arrays; that of null is -1."""
    lengths = [_lengths(chunk) for chunk in chunks if len(chunk)]
    if len(lengths) == 1:
        return lengths[0]
    return np.concatenate(lengths) if lengths else np.zeros(0, np.int64)


def byte_slices(chunks: Sequence[pa.Array]) -> tuple[npt.NDArray[np.uint8], _Int64Array]:
    """A buffer with the byte strings of some arrays, and where each begins; several arrays are copied.

    The buffer begins with the first of them, so that places in it are small.
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
    # The null of a row is either in its index or in the dictionary.
    of_words = np.append(_lengths(array.dictionary), -1)
    indexes = array.indices.cast(pa.int64()).fill_null(len(of_words) - 1).to_numpy()
    lengths: _Int64Array = of_words[indexes]
    return lengths


def _borders(array: pa.Array) -> npt.NDArray[np.int32] | _Int64Array:
    """Where each byte string of a plain array begins, and where the last one ends."""
    is_large = kinds.is_large_binary(array.type) or kinds.is_large_string(array.type)
    data = array.buffers()[1]
    borders = np.frombuffer(data, np.int64) if is_large else np.frombuffer(data, np.int32)
    return borders[array.offset : array.offset + len(array) + 1]


def _plain(array: pa.Array) -> pa.Array:
    """The array as one of bytes with borders; what has borders already is not copied."""
    kind = array.type
    if kinds.is_dictionary(kind):
        return _plain(array.dictionary_decode())
    if kinds.is_string(kind) or kinds.is_null(kind):
        return array.cast(pa.binary())
    if kinds.is_binary(kind) or kinds.is_large_binary(kind):
        return array
    return array.cast(pa.large_binary())
