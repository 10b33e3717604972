"""Lanes are a guess: they find every record, or say that they do not help, or are disproved by find_boundaries."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.record.column_decode import UnevenRecordsError, find_boundaries, walk_in_lanes
from storage_core.record.varint import VARINT_LIMIT_BYTES, read_varint
from tests.examples import examples
from tests.record.encoding import Record, sized, varint
from tests.record.sections import padded

FAKES = b"".join(Record(number, number, b"k", b"v" * (number % 40)).encode(0) for number in range(60))


def values_of(kind, generator, count):
    """Values that begin lanes easily, hardly, or in the wrong places."""
    for _ in range(count):
        size = generator.randrange(120)
        if kind == "zeros":
            yield bytes(size)
        elif kind == "noise":
            yield generator.randbytes(size)
        elif kind == "letters":
            yield b"v" * size
        elif kind == "fake records":
            start = generator.randrange(len(FAKES) // 2)
            yield FAKES[start : start + 5 * size]
        elif kind == "lengths that lead far":
            yield b"\x80\x00\xff\x7f\x00" * (size // 5)


KINDS = ["zeros", "noise", "letters", "fake records", "lengths that lead far"]


def large_batch(kind, seed=1, *, size_bytes=600_000, attributes=b"\0", width=1):
    """Records of uneven sizes, as one batch's bytes, and where their length fields are."""
    generator = random.Random(seed)
    data, fields = bytearray(), []
    for value in values_of(kind, generator, size_bytes):
        if len(data) >= size_bytes:
            break
        fields.append(len(data))
        number = len(fields)
        body = attributes + varint(number) + varint(number) + sized(None) + sized(value) + b"\0"
        data += sized(body, width)
    return bytes(data), fields


def borders_of(batches):
    ends = np.cumsum([len(batch) for batch in batches])
    return ends - [len(batch) for batch in batches], ends


def assert_found(batches):
    """``batches`` are pairs of bytes and where length fields are in them."""
    starts, ends = borders_of([data for data, _ in batches])
    counts = np.array([len(fields) for _, fields in batches], np.int64)
    expected = np.concatenate(
        [start + np.array(found) for start, (_, found) in zip(starts, batches, strict=True)]
    )
    buffer = padded(b"".join(data for data, _ in batches))
    cursor, body_ends = find_boundaries(buffer, starts, ends, counts)
    assert np.array_equal(np.append(expected, len(buffer) - 16)[1:], body_ends)
    assert np.array_equal(cursor.positions - 1 - (buffer[expected] >> 7), expected)


def test_lanes_find_every_record_of_a_large_batch():
    data, fields = large_batch("letters")
    starts, ends = borders_of([data])
    assert walk_in_lanes(padded(data), starts, ends, None).positions.tolist() == fields


def test_lanes_find_the_records_of_several_batches():
    batches = [
        large_batch("letters", seed, size_bytes=size) for seed, size in enumerate([300_000, 50, 300_000, 99])
    ]
    starts, ends = borders_of([data for data, _ in batches])
    found = walk_in_lanes(padded(b"".join(data for data, _ in batches)), starts, ends, None).positions
    expected = [start + field for start, (_, fields) in zip(starts, batches, strict=True) for field in fields]
    assert found.tolist() == expected


@pytest.mark.parametrize("size_bytes", [100, 16_000, 100_000, 390_000])
def test_small_batches_are_not_walked_in_lanes(size_bytes):
    data, _ = large_batch("letters", size_bytes=size_bytes)
    assert walk_in_lanes(padded(data), *borders_of([data]), None) is None


def test_lanes_are_not_used_where_no_record_seems_to_begin():
    data, _ = large_batch("letters", attributes=b"\x01")
    assert walk_in_lanes(padded(data), *borders_of([data]), None) is None


@pytest.mark.parametrize("kind", KINDS)
@given(st.integers(0, 2**32))
@examples(5)
def test_a_wrong_guess_does_no_harm(kind, seed):
    assert_found([large_batch(kind, seed, size_bytes=430_000 + seed % 200_000)])
    assert_found([large_batch(kind, seed + number, size_bytes=150_000) for number in range(3 + seed % 5)])


@pytest.mark.parametrize("kind", ["noise", "fake records"])
@pytest.mark.parametrize("attributes", [b"\x01", b"\xff"])
def test_lanes_work_with_attributes_that_are_set(kind, attributes):
    assert_found([large_batch(kind, attributes=attributes)])


@pytest.mark.parametrize("width", [2, 3])
def test_lanes_work_with_lengths_longer_than_needed(width):
    data, fields = large_batch("letters", width=width)
    cursor, _ = find_boundaries(padded(data), *borders_of([data]), np.array([len(fields)]))
    assert (cursor.positions - width).tolist() == fields


@pytest.mark.parametrize("size_bytes", [600, 8_191, 8_192, 20_000, 140_000, 700_000])
def test_lanes_work_around_a_record_longer_than_what_is_searched(size_bytes):
    before, fields = large_batch("noise", size_bytes=450_000)
    long = Record(value=b"\0" * size_bytes).encode(0)
    after, fields_after = large_batch("noise", 2, size_bytes=450_000)
    fields = [*fields, len(before), *(len(before) + len(long) + field for field in fields_after)]
    data = before + long + after
    cursor, body_ends = find_boundaries(padded(data), *borders_of([data]), np.array([len(fields)]))
    assert body_ends.tolist() == [*fields[1:], len(data)]
    assert len(cursor.positions) == len(fields)


def walk_one_by_one(data):
    """Return where the length fields are; None if they do not lead to the end."""
    fields, position = [], 0
    while position < len(data):
        fields.append(position)
        length, position = read_varint(data, position, VARINT_LIMIT_BYTES)
        if length < 1:
            return None
        position += length
    return fields if position == len(data) else None


@pytest.mark.parametrize("seed", range(20))
def test_a_large_batch_that_is_damaged_is_refused_or_walked_as_it_is(seed):
    data, fields = large_batch("letters", seed)
    generator = random.Random(seed)
    damaged = bytearray(data)
    damaged[generator.choice(fields)] ^= 1 << generator.randrange(8)
    arguments = padded(bytes(damaged)), *borders_of([data]), np.array([len(fields)])
    expected = walk_one_by_one(damaged)
    if expected is None or len(expected) != len(fields):
        with pytest.raises(UnevenRecordsError):
            find_boundaries(*arguments)
    else:
        # By chance, the wrong length leads to what can be taken for as many records.
        _, body_ends = find_boundaries(*arguments)
        assert body_ends.tolist() == [*expected[1:], len(data)]


def test_many_wrong_guesses_take_time_in_proportion():
    # Zeros look like attributes wherever they are.
    data = sized(b"\0" * 7) * 30 + bytes(2_000_000)
    start = time.process_time()
    with pytest.raises(UnevenRecordsError):
        find_boundaries(padded(data), *borders_of([data]), np.array([280_000]))
    assert time.process_time() - start < 5
