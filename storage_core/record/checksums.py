"""Checksums of many byte strings in one buffer."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from storage_core.record.arrow_columns import binary_array
from storage_core.record.gather import gather
from storage_core.record.section import Slices

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["checksums", "wrong_inner_checksums"]

# Many short strings are quicker copied all at once than sliced one by one.
_MANY: Final = 64
_SHORT_BYTES: Final = 1 << 8
# Fewer strings of one length are quicker looked at one by one.
_TOGETHER_MINIMUM: Final = 64
# Longer strings gain nothing by being looked at together.
_TOGETHER_LONGEST_BYTES: Final = 1 << 12

_Bytes = npt.NDArray[np.uint8]
_Int64Array = npt.NDArray[np.int64]
_UInt32Array = npt.NDArray[np.uint32]


def checksums(buffer: _Bytes, slices: Slices, compute: Callable[..., int]) -> _UInt32Array:
    """The checksum of each slice."""
    count = len(slices.starts)
    if count >= _MANY and int(slices.lengths.sum()) <= count * _SHORT_BYTES:
        return np.fromiter(map(compute, binary_array(buffer, slices).to_pylist()), np.uint32, count)
    view = buffer.data
    ends = slices.starts + slices.lengths
    pairs = zip(slices.starts.tolist(), ends.tolist(), strict=True)
    return np.array([compute(view[start:end]) for start, end in pairs], np.uint32)


def wrong_inner_checksums(buffer: _Bytes, slices: Slices, expected: _UInt32Array) -> _Int64Array:
    """Which slices do not have the CRC-32 expected; for bytes that another checksum has guarded already.

    Those of one length are looked at together, which takes a tenth of the time: of an odd number of them, all
    combined by exclusive or, the CRC is that of their CRCs. Two that a writer got wrong by the same bits (the
    CRCs of two messages exchanged) cancel each other out. Damage shows: the other checksum covers it.
    """
    order = np.argsort(slices.lengths, kind="stable")
    lengths = slices.lengths[order]
    firsts = np.flatnonzero(np.diff(lengths, prepend=-1))
    counts = np.diff(firsts, append=len(lengths))
    is_open = np.ones(len(lengths), np.bool_)
    are_many = (counts >= _TOGETHER_MINIMUM) & (lengths[firsts] <= _TOGETHER_LONGEST_BYTES)
    for first, count in zip(firsts[are_many].tolist(), counts[are_many].tolist(), strict=True):
        rows = order[first : first + count - (count + 1) % 2]
        if _are_right(buffer, slices.starts[rows], int(lengths[first]), expected[rows]):
            is_open[rows] = False
    rows = np.flatnonzero(is_open)
    left = Slices(slices.starts[rows], slices.lengths[rows])
    wrong: _Int64Array = rows[checksums(buffer, left, zlib.crc32) != expected[rows]]
    return wrong


def _are_right(buffer: _Bytes, starts: _Int64Array, length: int, expected: _UInt32Array) -> bool:
    contents = gather(buffer, starts, np.dtype((np.uint8, length)))
    combined = np.bitwise_xor.reduce(contents, axis=0)
    return zlib.crc32(combined.data) == int(np.bitwise_xor.reduce(expected))
