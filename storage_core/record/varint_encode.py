"""Write signed variable-length integers, one at a time and by column; the format stands in ``varint``."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["WORD_RANGE", "varint_bytes", "varint_lengths", "varint_words"]

_CONTINUES: Final = 0x80
_INT64_VALUES: Final = 1 << 64
_WORD_BYTES: Final = 8
# These values take up to 8 bytes.
WORD_RANGE: Final = range(-(1 << 55), 1 << 55)
_SEVEN_BITS: Final = np.uint64(0x7F)
# So many values are quicker looked up than compared.
_FEW: Final = 1 << 10
# By length: the smallest raw value that takes so many bytes.
_FIRST_OF_LENGTH: Final = np.array([0, *(1 << 7 * count for count in range(1, 10))], np.uint64)
# Those of one byte are looked up.
_SHORT: Final = range(-64, 64)

_Int64Array = npt.NDArray[np.int64]
_UInt64Array = npt.NDArray[np.uint64]


def _bytes_of(raw: int) -> bytes:
    encoded = bytearray()
    while raw >= _CONTINUES:
        encoded.append(raw & 0x7F | _CONTINUES)
        raw >>= 7
    encoded.append(raw)
    return bytes(encoded)


_SHORT_BYTES: Final = {value: _bytes_of(2 * value if value >= 0 else -2 * value - 1) for value in _SHORT}


def varint_bytes(value: int) -> bytes:
    """Write one signed value, whether a varint or a varlong. As in Java, a value wraps at 64 bits."""
    short = _SHORT_BYTES.get(value)
    if short is not None:
        return short
    wrapped = (value + _INT64_VALUES // 2) % _INT64_VALUES - _INT64_VALUES // 2
    return _bytes_of(2 * wrapped if wrapped >= 0 else -2 * wrapped - 1)


def varint_words(values: _Int64Array) -> tuple[_UInt64Array, _Int64Array]:
    """The bytes of each value, in a word whose lowest byte is the first, and how many there are.

    Values of one byte give their lengths as one row that stands for all. None takes more than 8 bytes:
    see `WORD_RANGE`.
    """
    if len(values) > _FEW and values.min() >= 0 and values.max() < len(_TABLE_WORDS):
        return _TABLE_WORDS.take(values), _TABLE_LENGTHS.take(values)
    return _computed_words(values)


def _computed_words(values: _Int64Array) -> tuple[_UInt64Array, _Int64Array]:
    raw = _zigzag(values)
    longest = int(raw.max()) if len(raw) else 0
    if longest < _CONTINUES:
        return raw, np.ones(1, np.int64)
    words = raw & _SEVEN_BITS
    lengths = np.ones(len(raw), np.int64)
    for number in range(1, _WORD_BYTES):
        if not longest >> 7 * number:
            break
        rest = raw >> np.uint64(7 * number)
        goes_on = rest != 0
        # The high bit of the byte before says that there is another.
        words |= (rest & _SEVEN_BITS) << np.uint64(8 * number)
        words |= goes_on.astype(np.uint64) << np.uint64(8 * number - 1)
        lengths += goes_on
    return words, lengths


def varint_lengths(values: _Int64Array) -> _Int64Array:
    """How many bytes each value takes."""
    raw = _zigzag(values)
    if len(raw) < _FEW:
        lengths: _Int64Array = _FIRST_OF_LENGTH.searchsorted(raw, "right")
        return lengths
    longest = int(raw.max())
    lengths = np.ones(len(raw), np.int64)
    for first in _FIRST_OF_LENGTH[1:]:
        if longest < first:
            break
        lengths += raw >= first
    return lengths


def _zigzag(values: _Int64Array) -> _UInt64Array:
    """Make the sign of each value its lowest bit."""
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


# Lengths and deltas are mostly small and not negative: it is quicker to look them up.
_TABLE_WORDS, _TABLE_LENGTHS = _computed_words(np.arange(1 << 13))
