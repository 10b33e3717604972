"""The last offset of each key, in bounded memory (Kafka's ``SkimpyOffsetMap``).

A key is represented by a hash of 128 bits, so that it takes 24 bytes whatever its length:

    bytes 0-15   hash of the key
    bytes 16-23  offset + 1; 0 if the slot is free

Collisions are resolved by double hashing: the hash of a key also decides the step to its next slot. The number of slots
is prime, so every step visits all of them. Many keys are processed in lockstep.

Kafka hashes keys with MD5 and takes equal hashes for equal keys. Different keys with the same MD5 can be constructed,
and each would then delete the records of the other. Here every map draws its own hash function from a universal
family, which an attacker cannot predict and numpy computes for many keys at a time.

A key consists of its length and of its bytes as 32-bit words, padded with zeros: w0, w1, … Each of four lanes has its
own random 64-bit multipliers a, m0, m1, … and yields the upper half of

    a + m0·w0 + m1·w1 + …   modulo 2**64

This family is strongly universal (D. Lemire, O. Kaser: Strongly universal string hashing is fast, theorem 3.1): for two
different keys, chosen without knowledge of the multipliers, one lane collides with a probability of 2**-32, and all
four with 2**-128. Keys above 256 bytes are hashed with keyed BLAKE2b, one by one.

With n keys in a map and k look-ups, the probability of any collision is therefore below n·(n + k) / 2**128. For five
million keys, the default memory, and 10**9 records that is 10**-22.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b, shake_256
from math import isqrt
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from storage_core.errors import OptionError
from storage_core.record.batch_header import gather

if TYPE_CHECKING:
    from storage_core.record.arrow_columns import Slices


MAP_SLOT_BYTES: Final = 24
"""The memory for one key: 16 bytes of its hash, and an offset."""
_SLOT: Final = np.dtype((np.void, MAP_SLOT_BYTES))
_COLUMNS: Final = 3
# The number of keys in lockstep, whose data fits a processor's cache.
_ROWS: Final = 1 << 14
SEED_BYTES: Final = 32
HASH_BYTES: Final = 16
_LANES: Final = 4
_WORD_BYTES: Final = 4
# Keys are grouped by these maximum lengths.
_LENGTH_CLASSES: Final = (8, 16, 32, 64, 128, 256)
_LONGEST_BYTES: Final = _LENGTH_CLASSES[-1]
# The addend and the multiplier of the length precede the multipliers of the words.
_MULTIPLIERS: Final = 2 + _LONGEST_BYTES // _WORD_BYTES
# The number of keys hashed at once, whose data fits a processor's cache.
_HASHED_ROWS: Final = 1 << 13
_UPPER_HALF: Final = np.uint64(0xFFFFFFFF_00000000)
_HALF_BITS: Final = np.uint64(32)
# By the number of bytes of a word that belong to the key.
_WORD_MASKS: Final = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF, 0xFFFFFFFF], np.uint64)
_Bytes = npt.NDArray[np.uint8]
_Int64Array = npt.NDArray[np.int64]
_UInt64Array = npt.NDArray[np.uint64]


class KeyHash:
    """One hash function of the family, which the seed determines; None: a random one."""

    def __init__(self, seed: bytes | None = None) -> None:
        self._seed = secrets.token_bytes(SEED_BYTES) if seed is None else seed
        drawn = shake_256(self._seed).digest(_MULTIPLIERS * _LANES * 8)
        self._multipliers: _UInt64Array = np.frombuffer(drawn, "<u8").reshape(_MULTIPLIERS, _LANES)

    def hash_slices(self, buffer: _Bytes, slices: Slices) -> tuple[_UInt64Array, _UInt64Array]:
        """Hash slices of the buffer, none of which is null, and return the two halves of each slice's hash."""
        count = len(slices.starts)
        halves = np.empty((2, count), np.uint64)
        for first in range(0, count, _HASHED_ROWS):
            rows = slice(first, first + _HASHED_ROWS)
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
    """Read a number of words from each position on, padded with zeros after the end of the buffer."""
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


class OffsetMap:
    """A map from keys to their last offsets.

    Args:
        memory_bytes: The memory for keys. It is touched only as keys are added.
        load_factor: The share of the slots that may be used.

    Attributes:
        limit: The maximum number of keys.
        size: The number of keys.
        latest_offset: The map covers all records up to this offset; -1 for none.

    Raises:
        OptionError: The memory is too small for two keys.
    """

    def __init__(self, memory_bytes: int, load_factor: float = 0.9) -> None:
        self.slots = memory_bytes // MAP_SLOT_BYTES
        self.limit = int(self.slots * load_factor)
        self.size = 0
        self.latest_offset = -1
        if self.slots * load_factor <= 1 or not 0 < load_factor <= 1:
            raise OptionError(
                f"The memory for keys is too small for two: {memory_bytes} bytes, at {MAP_SLOT_BYTES} bytes a key and "
                f"a load factor of {load_factor}. Increase log.cleaner.dedupe.buffer.size."
            )
        # At least one slot is always free, where the search for a missing key ends.
        self._slot_count = _prime_above(self.slots)
        self._hash = KeyHash()
        self._table = np.zeros((self._slot_count, _COLUMNS), np.uint64)

    def clear(self) -> None:
        """Remove all keys."""
        if self.size:
            # Unlike clearing, allocating does not touch the memory.
            del self._table
            self._table = np.zeros((self._slot_count, _COLUMNS), np.uint64)
        self.size = 0
        self.latest_offset = -1

    def put_many(self, buffer: _Bytes, keys: Slices, offsets: _Int64Array) -> int:
        """Put the offsets of keys in order, until the map is full.

        Args:
            buffer: The buffer that holds the keys.
            keys: The keys, none of them null.
            offsets: Their offsets, ascending and not negative.

        Returns:
            How many keys were put. A full map takes no further key, not even one that it has.
        """
        count = len(offsets)
        low, high = self._hash.hash_slices(buffer, keys)
        taken = 0
        while taken < count and self.size < self.limit:
            rows = slice(taken, taken + _ROWS)
            taken += self._put(low[rows], high[rows], offsets[rows])
        if taken:
            self.latest_offset = int(offsets[taken - 1])
        return taken

    def get_many(self, buffer: _Bytes, keys: Slices) -> _Int64Array:
        """Look up the offset of each key, none of which is null.

        Returns:
            The offsets; -1 for a missing key.
        """
        low, high = self._hash.hash_slices(buffer, keys)
        offsets = np.empty(len(low), np.int64)
        for first in range(0, len(low), _ROWS):
            rows = slice(first, first + _ROWS)
            offsets[rows] = self._get(low[rows], high[rows])
        return offsets

    def _get(self, low: _UInt64Array, high: _UInt64Array) -> _Int64Array:
        offsets = np.empty(len(low), np.int64)
        rows = np.arange(len(low))
        places, steps = self._probe(low, high)
        while True:
            found = self._table.take(places, axis=0)
            stored = found[:, 2]
            continues = ((found[:, 0] != low) | (found[:, 1] != high)) & (stored != 0)
            # A free slot yields -1. For keys that continue, this is overwritten later.
            offsets[rows] = stored.view(np.int64) - 1
            if not continues.any():
                return offsets
            rows, low, high, steps = rows[continues], low[continues], high[continues], steps[continues]
            places = self._next(places[continues], steps)

    def _put(self, low: _UInt64Array, high: _UInt64Array, offsets: _Int64Array) -> int:
        """Put as many of some keys as the map has room for, and return their number."""
        count = len(offsets)
        if self.size + count > self.limit:
            count = self._fitting(low, high)
            low, high, offsets = low[:count], high[:count], offsets[:count]
        entries = np.empty((count, _COLUMNS), np.uint64)
        entries[:, 0], entries[:, 1], entries[:, 2] = low, high, offsets + 1
        places, steps = self._probe(low, high)
        slots, stored = self._table.view(_SLOT)[:, 0], self._table[:, 2]
        while True:
            found = self._table.take(places, axis=0)
            is_here = (found[:, 0] == entries[:, 0]) & (found[:, 1] == entries[:, 1])
            free = np.flatnonzero(found[:, 2] == 0)
            if len(free):
                # Of several keys for one slot, the last one gets it.
                slots[places[free]] = entries[free].view(_SLOT)[:, 0]
                found = self._table.take(places[free], axis=0)
                is_same = found == entries[free]
                self.size += int(np.count_nonzero(is_same[:, 2]))
                is_here[free] = is_same[:, 0] & is_same[:, 1]
            if is_here.all():
                stored[places] = entries[:, 2]
                return count
            stored[places[is_here]] = entries[is_here, 2]
            continues = ~is_here
            entries, steps = entries[continues], steps[continues]
            places = self._next(places[continues], steps)

    def _fitting(self, low: _UInt64Array, high: _UInt64Array) -> int:
        """Count the keys that fit before the map is full."""
        room = self.limit - self.size
        new = np.flatnonzero(self._get(low, high) < 0)
        new = new[np.lexsort((high[new], low[new]))]
        is_first = np.ones(len(new), np.bool_)
        # The sort is stable, so the first of equal keys comes first.
        is_first[1:] = (np.diff(low[new]) != 0) | (np.diff(high[new]) != 0)
        firsts = np.sort(new[is_first])
        return int(firsts[room - 1]) + 1 if len(firsts) >= room else len(low)

    def _probe(self, low: _UInt64Array, high: _UInt64Array) -> tuple[_Int64Array, _Int64Array]:
        """Return the first slot of each key, and the step to its next slots."""
        places = (low % np.uint64(self._slot_count)).view(np.int64)
        steps = (high % np.uint64(self._slot_count - 1)).view(np.int64)
        steps += 1
        return places, steps

    def _next(self, places: _Int64Array, steps: _Int64Array) -> _Int64Array:
        places += steps
        places[places >= self._slot_count] -= self._slot_count
        return places


def _prime_above(number: int) -> int:
    """Return the smallest prime above a number."""
    candidate = max(number + 1, 3) | 1
    while any(candidate % divisor == 0 for divisor in range(3, isqrt(candidate) + 1, 2)):
        candidate += 2
    return candidate
