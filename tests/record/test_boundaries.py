from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.record import column_decode as boundaries
from storage_core.record.column_decode import UnevenRecordsError, find_boundaries
from tests.examples import examples
from tests.record.encoding import sized, varint
from tests.record.sections import padded


def lay_out(batches, *, width=1, between=b""):
    """Return the arguments of find_boundaries for batches of bodies, and where the bodies begin."""
    data = bytearray()
    starts, ends, bodies, body_ends = [], [], [], []
    for batch in batches:
        data += between
        starts.append(len(data))
        for body in batch:
            data += sized(body, width)
            bodies.append(len(data) - len(body))
            body_ends.append(len(data))
        ends.append(len(data))
    counts = [len(batch) for batch in batches]
    arrays = [np.array(values, np.int64) for values in (starts, ends, counts)]
    return (padded(bytes(data)), *arrays), (bodies, body_ends)


def assert_found(batches, **layout):
    arguments, expected = lay_out(batches, **layout)
    cursor, body_ends = find_boundaries(*arguments)
    bodies = cursor.positions
    assert bodies.dtype == body_ends.dtype == np.int64
    assert (bodies.tolist(), body_ends.tolist()) == expected


def refuse(data, counts=(1,), borders=None):
    borders = [0, len(data)] if borders is None else borders
    starts, ends = np.array(borders[:-1], np.int64), np.array(borders[1:], np.int64)
    with pytest.raises(UnevenRecordsError):
        find_boundaries(padded(data), starts, ends, np.array(counts, np.int64))


def bodies_of(*sizes):
    return [b"x" * size for size in sizes]


# At these sizes the length takes another byte.
@pytest.mark.parametrize("size_bytes", [7, 63, 64, 8191, 8192, 2**20 - 1, 2**20])
@pytest.mark.parametrize("batch_count", [1, 40])
def test_records_around_the_lengths_of_a_length(size_bytes, batch_count):
    if size_bytes * batch_count > 10_000_000:
        batch_count = 3
    assert_found([bodies_of(size_bytes - 1, size_bytes, 7, size_bytes)] * batch_count)


@pytest.mark.parametrize("count", [1, 2, 47, 48, 49, 63, 64, 65, 127, 129, 2400])
@pytest.mark.parametrize("size_bytes", [10, 63, 64, 100, 127, 128, 300])
def test_runs_of_equal_records(count, size_bytes):
    assert_found([bodies_of(*[size_bytes] * count)])
    assert_found([bodies_of(*[size_bytes] * count, size_bytes + 1, *[size_bytes] * count)])


def test_a_run_that_ends_with_its_batch_does_not_reach_into_the_next():
    assert_found([bodies_of(*[20] * 100)] * 5)


def test_a_run_that_fills_the_first_look_and_goes_on():
    # 16,384 bytes are looked at first: here a run fills them exactly, and by one record more or less.
    for count in (1023, 1024, 1025, 1024 * 8, 1024 * 8 + 1):
        assert_found([bodies_of(*[15] * count)])
        assert_found([bodies_of(*[15] * count, 9, 9)])


def test_a_walk_goes_on_where_a_chunk_of_it_ends():
    # Sizes that never repeat for long: no runs, and every way to meet the end of 65,536 bytes.
    for first in range(7, 70):
        assert_found([bodies_of(first, *[7 + number % 41 for number in range(3000)])])


def test_batches_need_not_be_side_by_side():
    assert_found([bodies_of(10, 20, 30)] * 3, between=b"a header of another batch" * 3)
    assert_found([bodies_of(10, 20, 30)] * 50, between=b"a header of another batch" * 3)


def test_counts_that_are_wrong_but_right_together_are_refused():
    (buffer, starts, ends, counts), _ = lay_out([bodies_of(9, 9, 9)] * 40)
    counts[3], counts[4] = 2, 4
    with pytest.raises(UnevenRecordsError):
        find_boundaries(buffer, starts, ends, counts)


def test_a_record_may_not_reach_into_the_next_batch_even_if_all_lengths_add_up():
    first, second = sized(b"x" * 9), sized(b"y" * 20)
    data = varint(9 + len(second)) + b"x" * 9 + second
    refuse(data, (1, 1), [0, len(first), len(data)])


def test_what_lies_behind_the_last_batch_does_not_matter():
    (buffer, *borders), expected = lay_out([bodies_of(9, 100, 9)])
    for padding in range(256):
        buffer[-16:] = padding
        cursor, body_ends = find_boundaries(buffer, *borders)
        assert (cursor.positions.tolist(), body_ends.tolist()) == expected


WALKS = [
    boundaries._walk_in_lockstep,
    boundaries.walk_in_lanes,
    boundaries._walk_each_batch,
    boundaries._walk_long_records,
]


@pytest.mark.parametrize("walk", WALKS)
def test_every_walk_finds_the_same(walk):
    arguments, (bodies, _) = lay_out([bodies_of(*range(7, 210 + number % 50)) for number in range(60)])
    fields = walk(*arguments).positions
    assert (fields + 1 + (arguments[0][fields] >> 7)).tolist() == bodies


def test_time_is_proportional_however_the_runs_are_cut():
    # Runs just long enough for a second look: to look at all that follows would take minutes.
    run = [15] * 1100 + [7]
    batch = bodies_of(*run) * 400
    arguments, (bodies, _) = lay_out([batch])
    start = time.process_time()
    cursor, _ = find_boundaries(*arguments)
    # Generous: it takes some tenths of a second.
    assert time.process_time() - start < 5
    assert cursor.positions.tolist() == bodies


def test_records_too_short_for_their_fields_are_refused_at_once():
    # Zeros that claim to be millions of records: to step over each would take a minute.
    for data in (bytes(7_000_000), varint(5) + bytes(5) + bytes(7_000_000)):
        start = time.process_time()
        refuse(data, [1_000_000])
        assert time.process_time() - start < 4


@pytest.mark.parametrize("small_count", [0, 5, 20_000])
def test_memory_is_that_of_the_records_whatever_their_values_look_like(small_count):
    # In a value of zeros, a walk that went astray would find a record at each byte, of eight bytes each.
    batch = [*bodies_of(*[90] * small_count), *[bytes(1 << 20)] * 20]
    arguments, (bodies, _) = lay_out([batch])
    tracemalloc.start()
    cursor, _ = find_boundaries(*arguments)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert cursor.positions.tolist() == bodies
    assert peak_bytes < 25 << 20


sizes = st.one_of(st.integers(7, 12), st.integers(7, 300), st.integers(8000, 9000))
batches_of_sizes = st.lists(st.lists(sizes, min_size=1, max_size=12), min_size=1, max_size=50)


@given(batches_of_sizes, st.integers(1, 5), st.integers(1, 60))
@examples(60)
def test_any_batches(batches, width, repeat):
    assert_found([bodies_of(*batch) * repeat for batch in batches[:8]], width=width)
    assert_found([bodies_of(*batch) for batch in batches], width=width)


@given(st.binary(min_size=7, max_size=100), st.integers(1, 14), st.integers(0, 40))
def test_any_bytes_are_proven_or_refused(data, count, others):
    count = min(count, len(data) // 7)
    good = sized(b"x" * 9)
    starts = [number * len(good) for number in range(others + 1)]
    ends = [*starts[1:], starts[-1] + len(data)]
    counts = np.array([1] * others + [count], np.int64)
    buffer = padded(good * others + data)
    try:
        cursor, body_ends = find_boundaries(buffer, np.array(starts), np.array(ends), counts)
    except UnevenRecordsError:
        return
    bodies = cursor.positions
    position = starts[-1]
    for body, body_end in list(zip(bodies.tolist(), body_ends.tolist(), strict=True))[others:]:
        width = body - position
        length = int.from_bytes(varint(body_end - body, width), "big")
        assert int.from_bytes(buffer[position:body].tobytes(), "big") & ~0x7F == length & ~0x7F
        position = body_end
    assert position == ends[-1]
