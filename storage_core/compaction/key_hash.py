"""A seeded hash of 128 bits for byte strings of any length, by column.

Kafka's map of offsets stands for keys by their MD5, and takes equal hashes for equal keys. Keys of one MD5 can be made
on purpose, and each would then delete the other's records. Here every map draws a function of its own from a
universal family, so that nobody can aim at it, and numpy computes it for many keys at a time.

A key is its length and its bytes as words of 32 bits, with zeros behind them: w0, w1, … Each of four lanes has random
multipliers of 64 bits of its own, a, m0, m1, …, and gives the upper half of

    a + m0·w0 + m1·w1 + …   modulo 2**64

This is strongly universal (D. Lemire, O. Kaser: Strongly universal string hashing is fast, theorem 3.1): for two
different keys, whoever chose them without knowing the multipliers, one lane agrees with a probability of 2**-32, all
four with one of 2**-128. Keys above 256 bytes are hashed by keyed BLAKE2b, one by one.

So for n keys in a map and k looked up, the chance that any two are taken for one another is below n·(n + k) / 2**128.
With five million keys, the default memory, and a thousand million records that is 10**-22.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b, shake_256
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from storage_core.record.gather import gather

if TYPE_CHECKING:
    from storage_core.record.section import Slices

__all__ = ["SEED_BYTES", "KeyHash"]

SEED_BYTES: Final = 32
HASH_BYTES: Final = 16

_LANES: Final = 4
_WORD_BYTES: Final = 4
# Keys up to each of these lengths are looked at together.
_LENGTH_CLASSES: Final = (8, 16, 32, 64, 128, 256)
_LONGEST_BYTES: Final = _LENGTH_CLASSES[-1]
# What is added, and what the length is multiplied by, stand before the multipliers of the words.
_MULTIPLIERS: Final = 2 + _LONGEST_BYTES // _WORD_BYTES
# So many keys are hashed at once: what it takes stays in a processor's cache.
_ROWS: Final = 1 << 13
_UPPER_HALF: Final = np.uint64(0xFFFFFFFF_00000000)
_HALF_BITS: Final = np.uint64(32)
# By the number of a word's bytes that belong to a key.
_WORD_MASKS: Final = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF, 0xFFFFFFFF], np.uint64)

_Bytes = npt.NDArray[np.uint8]
_Int64Array = npt.NDArray[np.int64]
_UInt64Array = npt.NDArray[np.uint64]


class KeyHash:
    """One function of the family.

    Args:
        seed: What it is made from; random if it is left out.
    """

    def __init__(self, seed: bytes | None = None) -> None:
        self._seed = secrets.token_bytes(SEED_BYTES) if seed is None else seed
        drawn = shake_256(self._seed).digest(_MULTIPLIERS * _LANES * 8)
        self._multipliers: _UInt64Array = np.frombuffer(drawn, "<u8").reshape(_MULTIPLIERS, _LANES)

    def hash_slices(self, buffer: _Bytes, slices: Slices) -> tuple[_UInt64Array, _UInt64Array]:
        """The two halves of each slice's hash; the slices lie within the buffer, and none is null."""
        count = len(slices.starts)
        halves = np.empty((2, count), np.uint64)
        for first in range(0, count, _ROWS):
            rows = slice(first, first + _ROWS)
            self._hash_rows(buffer, slices.starts[rows], slices.lengths[rows], halves[:, rows])
        return halves[0], halves[1]

    def _hash_rows(
        self, buffer: _Bytes, starts: _Int64Array, lengths: _Int64Array, halves: _UInt64Array
    ) -> None:
        shortest, longest = int(lengths.min()), int(lengths.max())
        previous = -1
        for class_bytes in _LENGTH_CLASSES:
            if shortest <= class_bytes and longest > previous:
                if previous < shortest and longest <= class_bytes:
                    self._hash_short(buffer, starts, lengths, halves, longest)
                    return
                rows = np.flatnonzero((lengths > previous) & (lengths <= class_bytes))
                if len(rows):
                    found = np.empty((2, len(rows)), np.uint64)
                    self._hash_short(buffer, starts[rows], lengths[rows], found, class_bytes)
                    halves[:, rows] = found
            previous = class_bytes
        self._hash_long(buffer, starts, lengths, halves)

    def _hash_short(
        self,
        buffer: _Bytes,
        starts: _Int64Array,
        lengths: _Int64Array,
        halves: _UInt64Array,
        longest_bytes: int,
    ) -> None:
        word_count = -(-longest_bytes // _WORD_BYTES)
        words = _words(buffer, starts, word_count)
        are_equal = int(lengths.min()) == longest_bytes
        lanes = [np.full(len(starts), addend) for addend in self._multipliers[0]]
        product = np.empty(len(starts), np.uint64)
        for number in range(-1, word_count):
            if number < 0:
                word = lengths.view(np.uint64)
            else:
                word = words[:, number].astype(np.uint64)
                left_bytes: int | _Int64Array = longest_bytes if are_equal else lengths
                kept_bytes = np.clip(left_bytes - number * _WORD_BYTES, 0, _WORD_BYTES)
                word &= _WORD_MASKS[kept_bytes]
            for lane, multiplier in zip(lanes, self._multipliers[number + 2], strict=True):
                np.multiply(word, multiplier, out=product)
                np.add(lane, product, out=lane)
        for half, (low, high) in zip(halves, (lanes[:2], lanes[2:]), strict=True):
            np.bitwise_or(low >> _HALF_BITS, high & _UPPER_HALF, out=half)

    def _hash_long(
        self, buffer: _Bytes, starts: _Int64Array, lengths: _Int64Array, halves: _UInt64Array
    ) -> None:
        view = buffer.data
        for row in np.flatnonzero(lengths > _LONGEST_BYTES).tolist():
            start = int(starts[row])
            key = view[start : start + int(lengths[row])]
            digest = blake2b(key, digest_size=HASH_BYTES, key=self._seed).digest()
            halves[:, row] = np.frombuffer(digest, "<u8")


def _words(buffer: _Bytes, starts: _Int64Array, word_count: int) -> npt.NDArray[np.uint32]:
    """So many words from each place on; behind the buffer's end there are zeros."""
    size_bytes = word_count * _WORD_BYTES
    if not size_bytes:
        return np.empty((len(starts), 0), np.uint32)
    kind = np.dtype((np.void, size_bytes))
    last = len(buffer) - size_bytes
    if int(starts.max()) <= last:
        found = gather(buffer, starts, kind)
    else:
        late = starts > last
        tail = np.zeros(2 * size_bytes, np.uint8)
        tail_start = max(0, last)
        tail[: len(buffer) - tail_start] = buffer[tail_start:]
        found = np.empty(len(starts), kind)
        found[~late] = gather(buffer, starts[~late], kind)
        found[late] = gather(tail, starts[late] - tail_start, kind)
    return found.view("<u4").reshape(-1, word_count)
