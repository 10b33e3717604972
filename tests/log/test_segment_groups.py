"""Segments are joined as long as whatever is left of them fits one segment."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core import LogConfig
from storage_core.errors import CorruptIndexError
from storage_core.log.log_cleaner_manager import CleaningSources, group_segments
from tests.log.cleaning import compacted, put
from tests.log.logs import name, open_directory, table


class Segment:
    """A segment with indexes of as many entries, 8 bytes of offset and 12 of time each."""

    def __init__(self, base_offset, size_bytes, *, offset_entries=0, time_entries=0):
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        self.offset_index = range(offset_entries)
        self.time_index = range(time_entries)


def groups(segments, *, max_index=10_000, end):
    config = LogConfig(internal_segment_bytes=1000, segment_index_bytes=max_index)
    return [[segment.base_offset for segment in group] for group in group_segments(segments, config, end)]


def of_sizes(*log_bytes, step=10):
    return [Segment(number * step, size) for number, size in enumerate(log_bytes)]


def test_no_segments_make_no_groups():
    assert groups([], end=0) == []


def test_segments_are_joined_up_to_segment_bytes():
    assert groups(of_sizes(400, 600, 1, 999, 1000), end=50) == [[0, 10], [20, 30], [40]]


def test_one_that_is_too_large_by_itself_stays_alone():
    assert groups(of_sizes(5000, 1, 1), end=30) == [[0], [10, 20]]


def test_offset_indexes_together_stay_below_their_largest_size():
    segments = [Segment(base, 1, offset_entries=count) for base, count in [(0, 5), (1, 7), (2, 1)]]
    assert groups(segments, max_index=96, end=3) == [[0, 1], [2]]


def test_time_indexes_together_stay_below_their_largest_size():
    segments = [Segment(base, 1, time_entries=count) for base, count in [(0, 4), (1, 5), (2, 1)]]
    assert groups(segments, max_index=100, end=3) == [[0], [1, 2]]


def test_a_group_spans_as_many_offsets_as_an_index_can_name():
    segments = [Segment(0, 1), Segment(100, 1), Segment(2**31, 1)]
    # What ends in front of 2^31 has a last offset of 2^31 - 1 at the most.
    assert groups(segments, end=2**31 + 1) == [[0, 100], [2**31]]
    segments[2] = Segment(2**31 + 1, 1)
    assert groups(segments, end=2**31 + 2) == [[0], [100, 2**31 + 1]]


def test_the_last_segment_ends_where_cleaning_ends():
    segments = [Segment(0, 1), Segment(100, 1)]
    assert groups(segments, end=2**31) == [[0, 100]]
    assert groups(segments, end=2**31 + 1) == [[0], [100]]


def test_an_empty_segment_joins_however_far_it_reaches():
    """Otherwise one would remain for every 2^31 offsets."""
    segments = [Segment(0, 10), Segment(10, 0), Segment(2**32, 0), Segment(2**33, 10)]
    assert groups(segments, end=2**33 + 10) == [[0, 10, 2**32], [2**33]]


@given(
    st.lists(
        st.tuples(st.integers(1, 2**31), st.integers(0, 600), st.integers(0, 7), st.integers(0, 5)),
        max_size=12,
    )
)
def test_every_segment_is_in_one_group_and_every_group_fits(described):
    segments, base_offset = [], 0
    for distance, size_bytes, offset_entries, time_entries in described:
        segments.append(
            Segment(base_offset, size_bytes, offset_entries=offset_entries, time_entries=time_entries)
        )
        base_offset += distance
    config = LogConfig(internal_segment_bytes=1000, segment_index_bytes=100)
    found = group_segments(segments, config, base_offset)
    assert [segment for group in found for segment in group] == segments
    ends = {left: right.base_offset for left, right in pairwise(segments)}
    for group in found:
        if len(group) == 1:
            continue
        assert sum(segment.size_bytes for segment in group) <= 1000
        assert 8 * sum(len(segment.offset_index) for segment in group) <= 100
        assert 12 * sum(len(segment.time_index) for segment in group) <= 100
        filled = [segment for segment in group[1:] if segment.size_bytes]
        if filled:
            assert ends.get(filled[-1], base_offset) - 1 - group[0].base_offset < 2**31


# -- Sources --------


@pytest.fixture
def log(tmp_path):
    with open_directory(tmp_path, config=compacted()) as logs:
        yield logs.create("orders")


def sources_of(log):
    return CleaningSources(log._state.view.segments)


def bases(segments):
    return [segment.base_offset for segment in segments]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (None, None, [0, 1, 2, 3]),
        (None, 2, [0, 1]),
        (None, 3, [0, 1, 2]),
        (1, None, [1, 2, 3]),
        (1, 3, [1, 2]),
        (2, 2, []),
        (None, 0, []),
        (100, None, [3]),
    ],
)
def test_segments_between_offsets(log, start, end, expected):
    for number in range(3):
        put(log, f"a{number}")
        log.roll()
    assert bases(sources_of(log).between(start, end)) == expected


def test_an_offset_within_a_segment_means_that_segment(log):
    for number in range(3):
        put(log, f"a{number}", f"b{number}", f"c{number}")
        log.roll()
    assert bases(sources_of(log).between(4, 7)) == [3, 6]


def aborted(log, producer_id, *keys, rolls=False):
    """Return a transaction with one record for each key, and the offset of its marker."""
    transaction = log.transaction(producer_id)
    for key in keys:
        transaction.append(table(b"v", keys=[key]))
        if rolls:
            log.roll()
    transaction.abort()
    return log.log_end_offset - 1


def markers(transactions):
    return [transaction.last_offset for transaction in transactions]


def test_aborted_transactions_are_found_by_markers_after_the_range(log):
    put(log, "a1")
    # Offsets 1 and 2 in two segments, the marker 3 in a third one.
    assert aborted(log, 7, b"x", b"y", rolls=True) == 3
    log.roll()
    assert aborted(log, 8, b"z") == 5
    log.roll()
    sources = sources_of(log)
    assert markers(sources.aborted_transactions(0, 1)) == []
    assert markers(sources.aborted_transactions(0, 2)) == [3]
    assert markers(sources.aborted_transactions(2, 3)) == [3]
    assert markers(sources.aborted_transactions(4, 5)) == [5]
    assert markers(sources.aborted_transactions(0, 100)) == [3, 5]


def test_aborted_transactions_of_segments_reach_to_their_ends(log):
    put(log, "a1")
    aborted(log, 7, b"x")
    log.roll()
    aborted(log, 8, b"z")
    log.roll()
    sources = sources_of(log)
    assert markers(sources.aborted_transactions_of(sources.between(None, 1))) == [2]
    assert markers(sources.aborted_transactions_of(sources.between(3, 5))) == [4]
    assert markers(sources.aborted_transactions_of([])) == []


def test_a_damaged_transaction_index_is_an_error(log, tmp_path):
    """Taking it for an empty one would take aborted records for committed ones."""
    put(log, "a1")
    aborted(log, 7, b"x")
    log.roll()
    index = tmp_path / "orders-0" / name(0, "txnindex")
    index.write_bytes(index.read_bytes()[:-1])
    with pytest.raises(CorruptIndexError):
        list(sources_of(log).aborted_transactions(0, 10))
    with pytest.raises(CorruptIndexError):
        log.clean()
