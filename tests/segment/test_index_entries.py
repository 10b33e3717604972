from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.segment import TimestampOffset
from storage_core.segment.segment_indexes import index_entries


def entries_for(batches, interval_bytes, *, position=0, largest=(-1, 0), counted_bytes=0):
    """Entries for batches given as (last offset, largest timestamp, size)."""
    last_offsets, timestamps_ms, sizes_bytes = (
        np.array(column, np.int64) for column in zip(*batches, strict=True)
    )
    return index_entries(
        last_offsets,
        timestamps_ms.astype(">i8"),
        sizes_bytes,
        position,
        interval_bytes,
        largest_timestamp=TimestampOffset(*largest),
        bytes_since_last_entry=counted_bytes,
    )


def rows_of(entries):
    columns = (entries.offsets, entries.positions_bytes, entries.timestamps_ms, entries.timestamp_offsets)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def by_kafkas_loop(batches, interval_bytes, position, largest, counted_bytes):
    rows = []
    for last_offset, timestamp_ms, size_bytes in batches:
        if timestamp_ms > largest[0]:
            largest = (timestamp_ms, last_offset)
        if counted_bytes > interval_bytes:
            rows.append((last_offset, position, *largest))
            counted_bytes = 0
        counted_bytes += size_bytes
        position += size_bytes
    return rows, largest, counted_bytes


TIMESTAMPS_MS = [10, 20, 15, 40, 40, 50, 45, 60, 5, 70]


def test_a_segment_of_ten_batches():
    batches = [(offset, timestamp_ms, 76) for offset, timestamp_ms in enumerate(TIMESTAMPS_MS)]
    entries = entries_for(batches, 100)
    assert rows_of(entries) == [(2, 152, 20, 1), (4, 304, 40, 3), (6, 456, 50, 5), (8, 608, 60, 7)]
    assert entries.largest_timestamp == TimestampOffset(70, 9)
    assert entries.bytes_since_last_entry == 152


def test_the_first_batch_has_no_entry_however_large():
    entries = entries_for([(0, 1, 100_000)], 0)
    assert rows_of(entries) == []
    assert entries.bytes_since_last_entry == 100_000


def test_every_other_batch_has_one_with_an_interval_of_zero():
    assert rows_of(entries_for([(5, 1, 70), (6, 2, 70), (9, 3, 70)], 0)) == [(6, 70, 2, 6), (9, 140, 3, 9)]


@pytest.mark.parametrize(("interval_bytes", "count"), [(99, 1), (100, 0)])
def test_exactly_the_interval_is_not_enough(interval_bytes, count):
    assert len(rows_of(entries_for([(0, 1, 100), (1, 2, 50)], interval_bytes))) == count


def test_only_a_larger_timestamp_is_new():
    entries = entries_for(
        [(3, 20, 70), (4, 30, 70), (5, 30, 70)], 0, position=700, largest=(20, 1), counted_bytes=1
    )
    assert rows_of(entries) == [(3, 700, 20, 1), (4, 770, 30, 4), (5, 840, 30, 4)]
    assert entries.largest_timestamp == TimestampOffset(30, 4)


@given(
    sizes_and_timestamps=st.lists(
        st.tuples(st.integers(61, 400), st.integers(-1, 30)), min_size=1, max_size=60
    ),
    interval_bytes=st.integers(0, 900) | st.integers(0, 60),
    position=st.integers(0, 1000),
    largest=st.tuples(st.integers(-1, 30), st.just(0)),
    counted_bytes=st.integers(0, 900),
)
def test_as_kafkas_loop(sizes_and_timestamps, interval_bytes, position, largest, counted_bytes):
    batches = [(3 * number, t, size) for number, (size, t) in enumerate(sizes_and_timestamps)]
    entries = entries_for(
        batches, interval_bytes, position=position, largest=largest, counted_bytes=counted_bytes
    )
    rows, largest, counted_bytes = by_kafkas_loop(batches, interval_bytes, position, largest, counted_bytes)
    assert rows_of(entries) == rows
    assert entries.largest_timestamp == TimestampOffset(*largest)
    assert entries.bytes_since_last_entry == counted_bytes
