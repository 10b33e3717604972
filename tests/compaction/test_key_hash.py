from __future__ import annotations

from collections import Counter
from hashlib import blake2b, shake_256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.compaction.offset_map import KeyHash
from storage_core.record.arrow_columns import Slices

SEED = bytes(range(32))
# Around every border between words, and between groups of lengths that are hashed together.
LENGTHS = [0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 5000]
KEYS = st.lists(
    st.one_of(
        st.binary(max_size=20),
        st.sampled_from(LENGTHS).flatmap(lambda length: st.binary(min_size=length, max_size=length)),
    ),
    min_size=1,
    max_size=40,
)


def hashes_of(keys, key_hash=None, *, before=b"", after=b""):
    """Return the hash of each key, in a buffer with other bytes around them."""
    data = before + after.join(keys) + after
    buffer = np.frombuffer(data, np.uint8)
    lengths = np.array([len(key) for key in keys], np.int64)
    starts = len(before) + np.cumsum(lengths + len(after)) - lengths - len(after)
    low, high = (key_hash or KeyHash(SEED)).hash_slices(buffer, Slices(starts, lengths))
    return list(zip(low.tolist(), high.tolist(), strict=True))


def expected_hash(key):
    """Return the documented function, in Python's integers."""
    if len(key) > 256:
        digest = blake2b(key, digest_size=16, key=SEED).digest()
        return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
    drawn = shake_256(SEED).digest(66 * 4 * 8)
    multipliers = [int.from_bytes(drawn[at : at + 8], "little") for at in range(0, len(drawn), 8)]
    words = [len(key), *(int.from_bytes(key[at : at + 4], "little") for at in range(0, len(key), 4))]
    lanes = []
    for lane in range(4):
        addend, *factors = multipliers[lane::4]
        total = addend + sum(word * factor for word, factor in zip(words, factors, strict=False))
        lanes.append(total % 2**64 >> 32)
    return lanes[0] | lanes[1] << 32, lanes[2] | lanes[3] << 32


@given(KEYS)
def test_a_hash_is_what_the_formula_says(keys):
    assert hashes_of(keys) == [expected_hash(key) for key in keys]


@given(KEYS, st.binary(max_size=9), st.binary(max_size=300))
def test_the_bytes_around_a_key_do_not_matter(keys, before, after):
    assert hashes_of(keys, before=before, after=after) == hashes_of(keys)


@given(KEYS)
def test_the_other_keys_do_not_matter(keys):
    assert hashes_of(keys) == [hashes_of([key])[0] for key in keys]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_zero_more_makes_another_key(length):
    shorter, longer = hashes_of([bytes(length), bytes(length + 1)])
    assert shorter != longer


@pytest.mark.parametrize("length", [length for length in LENGTHS if length])
def test_every_bit_of_a_key_matters_in_every_lane(length):
    positions = {0, length // 2, length - 1}
    keys = [bytes(length)] + [
        bytes(at) + bytes([1 << bit]) + bytes(length - at - 1) for at in positions for bit in range(8)
    ]
    found = hashes_of(keys)
    for shift in (0, 32):
        for half in (0, 1):
            assert len({pair[half] >> shift & 0xFFFFFFFF for pair in found}) == len(keys)


def test_two_maps_do_not_hash_alike():
    keys = [b"a", b"b" * 300]
    assert all(
        first != second
        for first, second in zip(hashes_of(keys, KeyHash()), hashes_of(keys, KeyHash()), strict=True)
    )


def test_many_keys_spread_over_all_slots():
    keys = [b"%d" % number for number in range(20_000)]
    low = [pair[0] % 97 for pair in hashes_of(keys)]
    # 206 are expected in each, give or take 14.
    assert all(100 < count < 320 for count in Counter(low).values())
    assert len(set(low)) == 97


def test_no_keys_have_no_hashes():
    assert hashes_of([]) == []
