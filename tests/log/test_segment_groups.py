"""Segments are joined as long as whatever is left of them fits one segment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from storage_core.log.log_cleaner_manager import SegmentSizes, group_segments


def groups(segments, *, max_log=1000, max_index=10_000, end):
    found = group_segments(segments, max_log_bytes=max_log, max_index_bytes=max_index, end_offset=end)
    return [[segments[number].base_offset for number in group] for group in found]


def of_sizes(*log_bytes, step=10):
    return [SegmentSizes(number * step, size) for number, size in enumerate(log_bytes)]


def test_no_segments_make_no_groups():
    assert groups([], end=0) == []


def test_segments_are_joined_up_to_segment_bytes():
    assert groups(of_sizes(400, 600, 1, 999, 1000), end=50) == [[0, 10], [20, 30], [40]]


def test_one_that_is_too_large_by_itself_stays_alone():
    assert groups(of_sizes(5000, 1, 1), end=30) == [[0], [10, 20]]


def test_offset_indexes_together_stay_below_their_largest_size():
    segments = [SegmentSizes(base, 1, offset_index_bytes=size) for base, size in [(0, 40), (1, 60), (2, 8)]]
    assert groups(segments, max_index=100, end=3) == [[0, 1], [2]]


def test_time_indexes_together_stay_below_their_largest_size():
    segments = [SegmentSizes(base, 1, time_index_bytes=size) for base, size in [(0, 48), (1, 60), (2, 12)]]
    assert groups(segments, max_index=100, end=3) == [[0], [1, 2]]


def test_a_group_spans_as_many_offsets_as_an_index_can_name():
    segments = [SegmentSizes(0, 1), SegmentSizes(100, 1), SegmentSizes(2**31, 1)]
    # What ends in front of 2^31 has a last offset of 2^31 - 1 at the most.
    assert groups(segments, end=2**31 + 1) == [[0, 100], [2**31]]
    segments[2] = SegmentSizes(2**31 + 1, 1)
    assert groups(segments, end=2**31 + 2) == [[0], [100, 2**31 + 1]]


def test_the_last_segment_ends_where_cleaning_ends():
    segments = [SegmentSizes(0, 1), SegmentSizes(100, 1)]
    assert groups(segments, end=2**31) == [[0, 100]]
    assert groups(segments, end=2**31 + 1) == [[0], [100]]


def test_an_empty_segment_joins_however_far_it_reaches():
    """Otherwise one would remain for every 2^31 offsets."""
    segments = [SegmentSizes(0, 10), SegmentSizes(10, 0), SegmentSizes(2**32, 0), SegmentSizes(2**33, 10)]
    assert groups(segments, end=2**33 + 10) == [[0, 10, 2**32], [2**33]]


@given(
    st.lists(
        st.builds(
            SegmentSizes,
            base_offset=st.integers(1, 2**31),
            log_bytes=st.integers(0, 600),
            offset_index_bytes=st.integers(0, 60),
            time_index_bytes=st.integers(0, 60),
        ),
        max_size=12,
    )
)
def test_every_segment_is_in_one_group_and_every_group_fits(distances):
    segments, base_offset = [], 0
    for each in distances:
        segments.append(
            SegmentSizes(base_offset, each.log_bytes, each.offset_index_bytes, each.time_index_bytes)
        )
        base_offset += each.base_offset
    found = group_segments(segments, max_log_bytes=1000, max_index_bytes=100, end_offset=base_offset)
    assert [number for group in found for number in group] == list(range(len(segments)))
    for group in found:
        members = [segments[number] for number in group]
        if len(members) == 1:
            continue
        assert sum(member.log_bytes for member in members) <= 1000
        assert sum(member.offset_index_bytes for member in members) <= 100
        assert sum(member.time_index_bytes for member in members) <= 100
        filled = [number for number in group if number > group[0] and segments[number].log_bytes]
        if filled:
            last = max(filled)
            end = segments[last + 1].base_offset if last + 1 < len(segments) else base_offset
            assert end - 1 - members[0].base_offset < 2**31
