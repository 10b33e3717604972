from __future__ import annotations

import random
import zlib

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from storage_core.record.arrow_columns import Slices
from storage_core.record.batch_window import checksums, inner_crc_mismatches
from tests.record.sections import padded


def laid_out(contents):
    """A buffer with the contents, a byte between them, and where they lie."""
    starts = np.cumsum([0, *(len(content) + 1 for content in contents)])[:-1]
    lengths = np.array([len(content) for content in contents], np.int64)
    return padded(b"\xaa".join(contents)), Slices(starts.astype(np.int64), lengths)


def noise(*sizes, seed=1):
    chance = random.Random(seed)
    return [chance.randbytes(size) for size in sizes]


@pytest.mark.parametrize("compute", [zlib.crc32, crc32c])
@pytest.mark.parametrize("sizes", [[], [10], [10] * 300, [10, 300, 17], [5000, 10], [1 << 20], [100_000] * 3])
def test_the_checksum_of_each(compute, sizes):
    contents = noise(*sizes)
    assert checksums(*laid_out(contents), compute).tolist() == [compute(content) for content in contents]


def wrong_of(contents, *, spoilt=(), spoil=lambda crc: crc ^ 1):
    crcs = [zlib.crc32(content) for content in contents]
    for row in spoilt:
        crcs[row] = spoil(crcs[row])
    return inner_crc_mismatches(*laid_out(contents), np.array(crcs, np.uint32)).tolist()


SIZES = {
    "one": [30],
    "few": [30] * 10,
    "equal, even": [30] * 500,
    "equal, odd": [30] * 501,
    "about as many as are looked at together": [30] * 63 + [31] * 64 + [32] * 65,
    "all different": list(range(10, 400)),
    "some of each": [10 + number % 7 for number in range(900)],
    "long": [70_000] * 70,
}


@pytest.mark.parametrize("name", SIZES)
def test_right_ones_are_right(name):
    assert wrong_of(noise(*SIZES[name])) == []


@pytest.mark.parametrize("name", SIZES)
def test_every_single_wrong_one_is_found(name):
    contents = noise(*SIZES[name])
    for row in {0, 1, len(contents) // 2, len(contents) - 2, len(contents) - 1} & set(range(len(contents))):
        assert wrong_of(contents, spoilt=[row]) == [row]


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize(
    "spoil",
    [lambda crc: crc ^ 0xFFFFFFFF, lambda crc: crc ^ 1, lambda _: 0, lambda _: 7],
    ids=["complement", "one bit", "zero", "constant"],
)
def test_a_writer_that_is_always_wrong_is_found(name, spoil):
    contents = noise(*SIZES[name])
    everything = list(range(len(contents)))
    assert wrong_of(contents, spoilt=everything, spoil=spoil) == everything


@given(st.lists(st.binary(min_size=10, max_size=14), max_size=20), st.data())
def test_any_contents_and_any_wrong_ones(contents, data):
    contents *= data.draw(st.sampled_from([1, 7, 40]))
    spoilt = data.draw(st.sets(st.integers(0, len(contents) - 1), max_size=3)) if contents else ()
    changes = iter(data.draw(st.permutations([0x1, 0x80000000, 0xDEADBEEF])))
    assert wrong_of(contents, spoilt=spoilt, spoil=lambda crc: crc ^ next(changes)) == sorted(spoilt)
