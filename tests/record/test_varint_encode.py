from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.record.varint import WORD_RANGE, varint_bytes, varint_lengths, varint_words
from tests.record.encoding import varint

VECTORS = {
    0: "00",
    -1: "01",
    1: "02",
    63: "7e",
    -64: "7f",
    64: "8001",
    -65: "8101",
    8191: "fe7f",
    -8192: "ff7f",
    8192: "808001",
    -8193: "818001",
    1048575: "feff7f",
    -1048576: "ffff7f",
    1048576: "80808001",
    134217727: "feffff7f",
    134217728: "8080808001",
    2147483647: "feffffff0f",
    -2147483648: "ffffffff0f",
    17179869183: "feffffff7f",
    17179869184: "808080808001",
    2**63 - 1: "feffffffffffffffff01",
    -(2**63): "ffffffffffffffffff01",
}
BORDERS = sorted(
    {sign * (64 << 7 * power) + step for power in range(9) for sign in (1, -1) for step in (-1, 0, 1)} | {0}
)
int64 = st.integers(-(2**63), 2**63 - 1)
words_range = st.integers(WORD_RANGE.start, WORD_RANGE.stop - 1)


def words_as_bytes(values):
    words, lengths = varint_words(np.array(values, np.int64))
    pairs = zip(words.tolist(), np.broadcast_to(lengths, len(values)).tolist(), strict=True)
    return [word.to_bytes(8, "little")[:length] for word, length in pairs if word < 1 << 8 * length]


@pytest.mark.parametrize("value", VECTORS)
def test_one_value_is_written_as_kafka_does(value):
    assert varint_bytes(value).hex() == VECTORS[value]


@given(int64)
def test_any_value_is_written_as_by_hand(value):
    assert varint_bytes(value) == varint(value)


@pytest.mark.parametrize(
    ("value", "wrapped"), [(2**63, -(2**63)), (-(2**63) - 1, 2**63 - 1), (2**64 - 1, -1)]
)
def test_a_value_beyond_64_bits_wraps_as_in_java(value, wrapped):
    assert varint_bytes(value) == varint(wrapped)


@pytest.mark.parametrize("copies", [1, 100], ids=["few", "many"])
def test_lengths_by_column(copies):
    values = [*VECTORS, *BORDERS] * copies
    assert varint_lengths(np.array(values, np.int64)).tolist() == [len(varint(value)) for value in values]


@given(st.lists(int64, max_size=5))
def test_lengths_of_any_values(values):
    assert varint_lengths(np.array(values, np.int64)).tolist() == [len(varint(value)) for value in values]


def test_words_by_column():
    values = [value for value in [*VECTORS, *BORDERS] if value in WORD_RANGE]
    assert words_as_bytes(values) == [varint(value) for value in values]
    assert max(len(varint(value)) for value in values) == 8


@given(st.lists(words_range, max_size=5) | st.lists(st.integers(-64, 63), max_size=5))
def test_words_of_any_values(values):
    assert words_as_bytes(values) == [varint(value) for value in values]


def test_the_range_of_words_is_that_of_8_bytes():
    assert len(varint(WORD_RANGE.start)) == len(varint(WORD_RANGE.stop - 1)) == 8
    assert len(varint(WORD_RANGE.start - 1)) == len(varint(WORD_RANGE.stop)) == 9
