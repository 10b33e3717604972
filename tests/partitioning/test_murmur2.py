from __future__ import annotations

import warnings

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storage_core.errors import InvalidRecordError
from storage_core.partitioning import murmur2, murmur2_column, to_positive

with warnings.catch_warnings():
    # It reads its resources in a way that Python 3.11 warns of.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.partitioner.default import murmur2 as murmur2_of_kafka_python

COUNTING = bytes(range(256))

# By Utils.murmur2 of Kafka 4.1.0.
HASHED_BY_KAFKA = {
    b"": 275646681,
    b"a": -1563381124,
    b"abc": 479470107,
    b"key": -1079937367,
    b"kafka": -798503068,
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"user-1": 1404122828,
    b"user-2": -324981792,
    b"user-3": 1141442267,
    b"customer-17": 1584006640,
    "größe".encode(): 588164084,
    "\U0001f600".encode(): 131881617,
    b"\x00": 375494588,
    b"\xff": -311467685,
    b"\x01\x02\x03\x04": -1698034171,
    b"\x00\x00\x00": 1013532917,
    b"\xff\xff\xff": 1548199422,
    b"\xff\xff\xff\xff": 644171429,
    b"\x80\x80\x80\x80\x80\x80\x80": -1845943597,
    COUNTING[:255]: 1542706800,
    COUNTING: -1948347274,
    COUNTING * 4 + b"abc": 1547890295,
}

TYPES = [pa.binary(), pa.large_binary()]

# Lengths around whole blocks, keys longer than most, and columns of few and of many keys.
keys = (
    st.binary(max_size=9)
    | st.binary(max_size=40)
    | st.integers(200, 1100).map(lambda length: (COUNTING * 5)[:length])
)
columns = st.lists(keys, max_size=30) | st.lists(keys, min_size=1, max_size=3).map(lambda some: some * 20)


@pytest.mark.parametrize("key", HASHED_BY_KAFKA)
def test_the_hash_is_kafkas(key):
    assert murmur2(key) == HASHED_BY_KAFKA[key]
    assert murmur2(memoryview(key)) == HASHED_BY_KAFKA[key]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("times", [1, 30])
def test_the_hashes_of_a_column_are_kafkas(kind, times):
    hashes = murmur2_column(pa.array(list(HASHED_BY_KAFKA) * times, kind))
    assert hashes.dtype == np.int32
    assert hashes.tolist() == list(HASHED_BY_KAFKA.values()) * times


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_text_is_hashed_as_utf_8(kind):
    assert murmur2_column(pa.array(["größe", "kafka"], kind)).tolist() == [588164084, -798503068]


@given(st.binary(max_size=1100))
@example(COUNTING[:252])
@example(COUNTING[:253])
def test_kafka_python_hashes_alike(key):
    assert murmur2(key) & 0xFFFFFFFF == murmur2_of_kafka_python(key)


@given(columns, st.sampled_from(TYPES))
def test_a_column_is_hashed_like_its_keys(column, kind):
    assert murmur2_column(pa.array(column, kind)).tolist() == [murmur2(key) for key in column]


@given(st.integers(0, 40), st.integers(1, 60), st.randoms(use_true_random=False))
def test_keys_of_one_length_are_hashed_like_each(length, count, random):
    column = [random.randbytes(length) for _ in range(count)]
    assert murmur2_column(pa.array(column, pa.binary())).tolist() == [murmur2(key) for key in column]


def test_more_keys_than_are_hashed_together():
    column = [b"key-%d" % number for number in range(40_000)]
    assert murmur2_column(pa.array(column)).tolist() == [murmur2(key) for key in column]


def test_one_long_key_among_many_short_ones():
    column = [b"k%d" % number for number in range(100)]
    column[50] = COUNTING * 1000 + b"xyz"
    assert murmur2_column(pa.array(column)).tolist() == [murmur2(key) for key in column]


def test_long_keys_that_many_have():
    column = [COUNTING * 20 + b"%d" % number for number in range(200)]
    assert murmur2_column(pa.array(column)).tolist() == [murmur2(key) for key in column]


@given(columns, st.integers(0, 40), st.integers(0, 40))
def test_a_slice_is_hashed_like_its_keys(column, start, length):
    sliced = pa.array(column, pa.binary()).slice(min(start, len(column)), length)
    assert murmur2_column(sliced).tolist() == [murmur2(key) for key in sliced.to_pylist()]


@given(st.lists(st.none() | st.binary(max_size=12), max_size=60))
def test_nulls_do_not_disturb_their_neighbours(column):
    hashes = murmur2_column(pa.array(column, pa.binary())).tolist()
    assert len(hashes) == len(column)
    for key, found in zip(column, hashes, strict=True):
        assert key is None or found == murmur2(key)


@pytest.mark.parametrize("data", [b"", b"a", b"abc", b"abcd", b"abcdefg"])
def test_the_buffer_is_read_no_further_than_its_end(data):
    # Without the padding that Arrow gives to what it makes itself.
    offsets = np.array([0, 0, len(data), len(data)], np.int32)
    column = pa.Array.from_buffers(pa.binary(), 3, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    assert murmur2_column(column).tolist() == [murmur2(b""), murmur2(data), murmur2(b"")]


def test_a_column_of_nulls_alone_needs_no_buffer():
    assert len(murmur2_column(pa.nulls(3, pa.binary()))) == 3
    assert murmur2_column(pa.array([b"", b""], pa.binary())).tolist() == [275646681, 275646681]
    assert murmur2_column(pa.array([], pa.binary())).tolist() == []


@pytest.mark.parametrize("kind", [pa.int64(), pa.binary(4), pa.binary_view()])
def test_other_types_are_refused(kind):
    with pytest.raises(InvalidRecordError, match=r"found .*\. Cast the column `key` to binary\."):
        murmur2_column(pa.nulls(1, kind))


@pytest.mark.parametrize(
    ("number", "positive"), [(0, 0), (1, 1), (-1, 2147483647), (-2147483648, 0), (-1563381124, 584102524)]
)
def test_to_positive_drops_the_sign_bit(number, positive):
    assert to_positive(number) == positive
