"""Signed variable-length integers, one at a time and by column (Kafka's ``ByteUtils``).

Zig-zag encoding makes the sign the lowest bit. Each byte then has seven bits, lowest first, and its high bit says
whether another byte follows. A varint has 32 bits in at most 5 bytes, a varlong 64 bits in at most 10. As in Kafka,
encodings longer than needed are accepted.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

VARINT_LIMIT_BYTES: Final = 5
VARLONG_LIMIT_BYTES: Final = 10
_BITS: Final = {VARINT_LIMIT_BYTES: 32, VARLONG_LIMIT_BYTES: 64}
# Above this share of two-byte values it is cheaper to read a second byte everywhere.
_DENSE_SHARE: Final = 8
# numpy combines unsigned arrays with unsigned numbers only.
_U64: Final = {number: np.uint64(number) for number in (1, 2, 7, 8, 15, 0x7F, 0x80, 0x3F80)}
# The bytes that a cursor fetches at once.
_WORD_BYTES: Final = 8
# Set in every byte of a value but the last.
_CONTINUES: Final = 0x80


class MalformedVarintError(ValueError):
    """A varint is longer than its longest form, or is cut off."""


def read_varint(data: bytes | memoryview, position: int, limit_bytes: int) -> tuple[int, int]:
    """Read a signed value of at most ``limit_bytes``; return it and the position after it.

    Raises:
        MalformedVarintError: The value is longer than ``limit_bytes``, or the data ends.
    """
    raw = 0
    for index in range(limit_bytes):
        if position + index >= len(data):
            raise MalformedVarintError("a variable-length integer is cut off")
        byte = data[position + index]
        raw |= (byte & 0x7F) << (7 * index)
        if byte < _CONTINUES:
            # As in Java, bits beyond the word are dropped.
            raw &= (1 << _BITS[limit_bytes]) - 1
            return (raw >> 1) ^ -(raw & 1), position + index + 1
    raise MalformedVarintError(f"a variable-length integer is longer than {limit_bytes} bytes")


def read_varints(
    buffer: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], limit_bytes: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Read a signed value at each position; return the values and the positions after them.

    Raises:
        MalformedVarintError: A value is longer than ``limit_bytes``.
        IndexError: A position lies outside the buffer.
    """
    first = buffer[positions]
    longer = first >= _CONTINUES
    longer_count = np.count_nonzero(longer)
    if longer_count == 0:
        raw = first.astype(np.int64)
        return _unzigzag(raw), positions + 1
    if longer_count * _DENSE_SHARE < len(first):
        raw = (first & 0x7F).astype(np.int64)
        ends = positions + 1
        pending = np.flatnonzero(longer)
    else:
        second = buffer[positions + 1]
        # A second byte counts only if the first one continues.
        second[~longer] = 0
        raw = (second & 0x7F).astype(np.int64)
        raw <<= 7
        raw |= first & 0x7F
        ends = positions + longer
        ends += 1
        pending = np.flatnonzero(second >= _CONTINUES)
    _read_rest(buffer, raw, ends, positions, pending, limit_bytes)
    return _unzigzag(raw), ends


def _read_rest(
    buffer: npt.NDArray[np.uint8],
    raw: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
    pending: npt.NDArray[np.int64],
    limit_bytes: int,
) -> None:
    while len(pending):
        length = int(ends[pending[0]] - positions[pending[0]])
        if length >= limit_bytes:
            raise MalformedVarintError(f"a variable-length integer is longer than {limit_bytes} bytes")
        byte = buffer[ends[pending]]
        raw[pending] |= (byte & 0x7F).astype(np.int64) << (7 * length)
        ends[pending] += 1
        pending = pending[byte >= _CONTINUES]
    if limit_bytes == VARINT_LIMIT_BYTES:
        raw &= 0xFFFFFFFF


def words_of(buffer: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Return the eight bytes at every position of a buffer, as an unaligned view."""
    return np.ndarray((len(buffer) - _WORD_BYTES + 1,), "<u8", buffer, 0, (1,))


class VarintCursor:
    """Reads one varint after another, at many positions at once.

    Fetching bytes from all over a buffer is expensive: eight are fetched at a time, and adjacent varints are taken from
    those. The buffer is padded by eight, and positions are never changed in place.
    """

    def __init__(
        self,
        buffer: npt.NDArray[np.uint8],
        positions: npt.NDArray[np.int64],
        words: npt.NDArray[np.uint64] | None = None,
    ) -> None:
        self.positions = positions
        self._buffer = buffer
        self._words = words
        # The bytes of each word that have not been read.
        self._left = 0 if words is None else _WORD_BYTES

    def read(self, limit_bytes: int) -> npt.NDArray[np.int64]:
        """Read a signed value at each position, and move past it.

        Raises:
            MalformedVarintError: A value is longer than ``limit_bytes``.
            IndexError: A position lies outside the buffer.
        """
        raw = self._take()
        if raw is None:
            self._words = words_of(self._buffer)[self.positions]
            self._left = _WORD_BYTES
            raw = self._take()
        if raw is None:
            values, self.positions = read_varints(self._buffer, self.positions, limit_bytes)
            self._left = 0
            return values
        return _unzigzag(raw.view(np.int64))

    def skip_byte(self) -> None:
        """Move on by one byte."""
        self.positions = self.positions + 1
        if self._left and self._words is not None:
            self._words = self._words >> _U64[8]
            self._left -= 1

    def skip(self, lengths: npt.NDArray[np.int64]) -> None:
        """Advance each position by its own length."""
        self.positions = self.positions + lengths
        self._left = 0

    def _take(self) -> npt.NDArray[np.uint64] | None:
        """Take a value of up to three bytes from each word.

        Returns:
            None if one is longer, or exceeds the unread bytes.
        """
        words = self._words
        if words is None or self._left == 0:
            return None
        # The continuation bits of the first bytes, then those of the second bytes.
        second = words & _U64[0x80]
        second_count = np.count_nonzero(second)
        if not second_count:
            self._move(words, np.uint64(1), 1)
            return words & _U64[0x7F]
        third = words & (second << _U64[8])
        third_count = np.count_nonzero(third)
        longest = 3 if third_count else 2
        if self._left < longest or (third_count and np.any(words & (third << _U64[8]))):
            return None
        if second_count == len(words) and not third_count:
            self._move(words, np.uint64(2), 2)
            return (words & _U64[0x7F]) | ((words >> _U64[1]) & _U64[0x3F80])
        # 0x80 * 0x7F is the mask of the second seven bits in the result.
        raw = (words & _U64[0x7F]) | ((words >> _U64[1]) & (second * _U64[0x7F]))
        lengths = (second >> _U64[7]) + _U64[1]
        if third_count:
            raw |= (words >> _U64[2]) & ((third >> _U64[1]) * _U64[0x7F])
            lengths += third >> _U64[15]
        self._move(words, lengths, longest)
        return raw

    def _move(
        self, words: npt.NDArray[np.uint64], lengths: npt.NDArray[np.uint64] | np.uint64, longest: int
    ) -> None:
        self.positions = self.positions + lengths.astype(np.int64)
        self._words = words >> (lengths * _U64[8])
        self._left -= longest


def _unzigzag(raw: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    sign = raw & 1
    np.negative(sign, out=sign)
    # An unsigned shift: the sign bit of a 64-bit value must not move along.
    magnitude = (raw.view(np.uint64) >> np.uint64(1)).view(np.int64)
    magnitude ^= sign
    return magnitude


_INT64_VALUES: Final = 1 << 64
# The values that take up to 8 bytes.
WORD_RANGE: Final = range(-(1 << 55), 1 << 55)
_SEVEN_BITS: Final = np.uint64(0x7F)
# Up to this many values are quicker looked up than compared.
_FEW: Final = 1 << 10
# By length: the smallest raw value of that many bytes.
_FIRST_OF_LENGTH: Final = np.array([0, *(1 << 7 * count for count in range(1, 10))], np.uint64)
# The values of one byte.
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
    """Encode one signed value as a varint or varlong. As in Java, a value wraps at 64 bits."""
    short = _SHORT_BYTES.get(value)
    if short is not None:
        return short
    wrapped = (value + _INT64_VALUES // 2) % _INT64_VALUES - _INT64_VALUES // 2
    return _bytes_of(2 * wrapped if wrapped >= 0 else -2 * wrapped - 1)


class VarintWords(NamedTuple):
    """Encoded values, each in a word, and their lengths in bytes; a single length applies to all."""

    words: _UInt64Array
    lengths: _Int64Array


def varint_words(values: _Int64Array) -> VarintWords:
    """Encode each value of `WORD_RANGE` in a word, whose lowest byte is the first.

    If all values take one byte, there is one length for all.
    """
    if len(values) > _FEW and values.min() >= 0 and values.max() < len(_TABLE_WORDS):
        return VarintWords(_TABLE_WORDS.take(values), _TABLE_LENGTHS.take(values))
    return _computed_words(values)


def _computed_words(values: _Int64Array) -> VarintWords:
    raw = _zigzag(values)
    longest = int(raw.max()) if len(raw) else 0
    if longest < _CONTINUES:
        return VarintWords(raw, np.ones(1, np.int64))
    words = raw & _SEVEN_BITS
    lengths = np.ones(len(raw), np.int64)
    for number in range(1, _WORD_BYTES):
        if not longest >> 7 * number:
            break
        rest = raw >> np.uint64(7 * number)
        continues = rest != 0
        # The high bit of the byte before says that another follows.
        words |= (rest & _SEVEN_BITS) << np.uint64(8 * number)
        words |= continues.astype(np.uint64) << np.uint64(8 * number - 1)
        lengths += continues
    return VarintWords(words, lengths)


def varint_lengths(values: _Int64Array) -> _Int64Array:
    """Return the encoded length of each value in bytes."""
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
    """Return each value with its sign as the lowest bit."""
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


# Lengths and deltas are usually small and not negative: it is quicker to look them up.
_TABLE_WORDS, _TABLE_LENGTHS = _computed_words(np.arange(1 << 13))
