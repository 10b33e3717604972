from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.record.encode import cut_batches
from storage_core.record.record_input import RecordRows
from tests.record.encoding import varint

MAX_LONG = 2**63 - 1
NOT_LOOKED_AT = np.zeros(1, np.int64)


def rows_of(tails, times):
    """Rows; a column of equal numbers may be one number."""
    return RecordRows(
        max(len(tails), len(times)),
        np.array(times, np.int64),
        NOT_LOOKED_AT,
        NOT_LOOKED_AT,
        np.array(tails, np.int64),
    )


def size_of(tail, time_delta, offset_delta):
    body_bytes = 1 + len(varint(time_delta)) + len(varint(offset_delta)) + tail
    return len(varint(body_bytes)) + body_bytes


def ends_by_hand(tails, times, limit_bytes):
    """Work out, one row after the other, after which rows batches end, but for the last one."""
    ends, start, taken_bytes = [], 0, 0
    for row, (tail, time_ms) in enumerate(zip(tails, times, strict=True)):
        size_bytes = size_of(tail, time_ms - times[start], row - start)
        if row > start and taken_bytes + size_bytes > limit_bytes:
            ends.append(row)
            start, taken_bytes = row, 0
            size_bytes = size_of(tail, 0, 0)
        taken_bytes += size_bytes
    return ends


def check(tails, times, limit_bytes):
    rows = rows_of(tails, times)
    by_hand = ends_by_hand(tails, times, limit_bytes)
    assert cut_batches(rows, limit_bytes, is_end=True).tolist() == [*by_hand, len(tails)]
    assert cut_batches(rows, limit_bytes, is_end=False).tolist() == by_hand


tails = st.lists(
    st.one_of(st.integers(3, 9), st.integers(50, 70), st.integers(8180, 8200)), min_size=1, max_size=300
)
limits = st.one_of(st.integers(0, 200), st.integers(1000, 20_000))


@given(tails, limits, st.sampled_from([0, 1, 2, 63, 64, 100, 5000, 1 << 40]), st.booleans())
def test_batches_end_where_the_next_record_has_no_room(tails, limit_bytes, step_ms, falls):
    times = [(-step_ms if falls else step_ms) * row for row in range(len(tails))]
    check(tails, times, limit_bytes)


@given(tails, limits, st.data())
def test_timestamps_in_any_order(tails, limit_bytes, data):
    times = data.draw(
        st.lists(
            st.integers(-(1 << 40), 1 << 40) | st.integers(0, 200), min_size=len(tails), max_size=len(tails)
        )
    )
    check(tails, times, limit_bytes)
    check(tails, sorted(times), limit_bytes)


@pytest.mark.parametrize("count", [1, 7, 8, 63, 64, 65, 128, 9000])
@pytest.mark.parametrize("limit_bytes", [0, 100, 1000, 50_000])
def test_columns_of_equal_values_have_one_row(count, limit_bytes):
    rows = RecordRows(count, np.array([5]), NOT_LOOKED_AT, NOT_LOOKED_AT, np.array([20]))
    by_hand = ends_by_hand([20] * count, [5] * count, limit_bytes)
    assert cut_batches(rows, limit_bytes, is_end=True).tolist() == [*by_hand, count]
    open_ends = cut_batches(rows, limit_bytes, is_end=False).tolist()
    # Whether the last batch is full can be told, as the rows to come are not.
    assert open_ends in (by_hand, [*by_hand, count])


def test_many_rows_in_one_batch():
    check([3] * 20_000, list(range(20_000)), 10**9)
    check([3] * 20_000, [row % 7 for row in range(20_000)], 10**9)


def test_deltas_of_timestamps_that_wrap():
    times = [-(2**63), *[MAX_LONG] * 40]
    rows = rows_of([5] * 41, times)
    # As the delta wraps to -1, it takes one byte.
    assert cut_batches(rows, 9 * 20, is_end=True).tolist() == [20, 40, 41]


def test_no_rows_end_no_batch():
    rows = RecordRows(0, np.array([0]), NOT_LOOKED_AT, NOT_LOOKED_AT, np.zeros(0, np.int64))
    assert cut_batches(rows, 1000, is_end=True).tolist() == []
    assert cut_batches(rows, 1000, is_end=False).tolist() == []
