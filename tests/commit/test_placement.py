"""Which segment the staged batches of a partition go to."""

from __future__ import annotations

import pytest

from storage_core import LogConfig
from storage_core.commit.manifest import StagedBatches
from storage_core.commit.partition_state import SegmentTail
from storage_core.commit.placement import Placement
from storage_core.commit_files.journal import AppendOperation, LinkOperation, StagedFileRange

CONFIG = LogConfig(internal_segment_bytes=1000, segment_index_bytes=240, segment_ms=5000)


def small(size=100, count=10, first_ms=0, max_ms=0, name="p"):
    return StagedBatches("t", 0, name, 7, size, 1, count, first_ms, max_ms)


def large(size=400, count=50, name="s"):
    return StagedBatches(
        "t", 0, name, 0, size, 1, count, fingerprint=9, index_size_bytes=16, time_index_size_bytes=24
    )


def operations(tail, *staged, next_offset=100, config=CONFIG):
    placement = Placement(next_offset, tail, config)
    placement.place_all(staged)
    return placement.operations, placement.next_offset


def appends(found):
    """Segment and sizes before of each append, and how many ranges it has."""
    return [
        (each.segment_base_offset, each.base_offset, each.size_before_bytes, len(each.ranges))
        for each in found
    ]


def test_small_pieces_go_to_the_last_segment():
    found, end = operations(SegmentTail(90, 300, 8, 12, 0), small(), small(size=50))
    assert found == [
        AppendOperation((StagedFileRange("p", 7, 100), StagedFileRange("p", 7, 50)), 100, 90, 300, 8, 12),
    ]
    assert end == 120


def test_the_first_segment_of_a_new_log():
    assert operations(None, small())[0] == [
        AppendOperation((StagedFileRange("p", 7, 100),), 100, 100, 0, 0, 0)
    ]


def test_an_empty_last_segment_is_used():
    assert appends(operations(SegmentTail(100), small())[0]) == [(100, 100, 0, 1)]


def test_a_full_segment_rolls():
    found, _ = operations(SegmentTail(0, 850, 8, 12, 0), *[small(size=300)] * 5)
    assert appends(found) == [(100, 100, 0, 3), (130, 130, 0, 2)]


def test_a_segment_may_be_filled_to_its_last_byte():
    assert appends(operations(SegmentTail(0, 900, 8, 12, 0), small())[0]) == [(0, 100, 900, 1)]


@pytest.mark.parametrize(("max_ms", "rolls"), [(5000, False), (5001, True)])
def test_a_segment_that_spans_too_much_time_rolls(max_ms, rolls):
    found, _ = operations(SegmentTail(0, 100, 8, 12, 0), small(max_ms=max_ms))
    assert appends(found) == [(100, 100, 0, 1) if rolls else (0, 100, 100, 1)]


def test_a_segment_whose_indexes_are_full_rolls():
    assert appends(operations(SegmentTail(0, 100, 240, 12, 0), small())[0]) == [(100, 100, 0, 1)]
    assert appends(operations(SegmentTail(0, 100, 8, 228, 0), small())[0]) == [(100, 100, 0, 1)]
    assert appends(operations(SegmentTail(0, 100, 232, 216, 0), small())[0]) == [(0, 100, 100, 1)]


def test_a_segment_that_cannot_name_the_offsets_rolls():
    found, _ = operations(SegmentTail(0, 100, 8, 12, 0), small(count=2), next_offset=2**31 - 1)
    assert appends(found) == [(2**31 - 1, 2**31 - 1, 0, 1)]
    found, _ = operations(SegmentTail(0, 100, 8, 12, 0), small(count=1), next_offset=2**31 - 1)
    assert appends(found) == [(0, 2**31 - 1, 100, 1)]


def test_a_segment_that_takes_no_more_rolls():
    assert appends(operations(SegmentTail(0, 100, 8, 12, 0, is_open=False), small())[0]) == [(100, 100, 0, 1)]


def test_a_large_piece_is_linked_and_takes_those_that_follow():
    found, end = operations(
        SegmentTail(0, 100, 8, 12, 0), small(), large(), small(), small(), large(name="s2")
    )
    assert found == [
        AppendOperation((StagedFileRange("p", 7, 100),), 100, 0, 100, 8, 12),
        LinkOperation("s", 110, 400, 9),
        AppendOperation((StagedFileRange("p", 7, 100), StagedFileRange("p", 7, 100)), 160, 110, 400, 16, 24),
        LinkOperation("s2", 180, 400, 9),
    ]
    assert end == 230


def test_no_segment_has_two_appends():
    staged = [small(size=130 + 17 * number, count=3) for number in range(30)]
    found, _ = operations(SegmentTail(0, 100, 8, 12, 0), *staged[:10], large(), *staged[10:])
    segments = [each.segment_base_offset for each in found if isinstance(each, AppendOperation)]
    assert len(segments) == len(set(segments))


def test_kept_offsets_decide_the_placement():
    first = StagedBatches("t", 0, "p", 0, 100, 1, 10, min_offset=200, max_offset=209)
    second = StagedBatches("t", 0, "p", 100, 100, 1, 5, min_offset=300, max_offset=304)
    found, end = operations(SegmentTail(90, 300, 8, 12, 0), first, second)
    assert appends(found) == [(90, 200, 300, 2)]
    assert end == 305


@pytest.mark.parametrize(("size", "is_linked"), [(249, False), (250, True), (1000, True)])
def test_a_piece_of_a_quarter_of_a_segment_is_linked(size, is_linked):
    assert Placement.is_linked(size, CONFIG) is is_linked


def test_a_piece_that_takes_long_to_copy_is_linked():
    assert Placement.is_linked(32 << 20, LogConfig(segment_bytes=1 << 30))
    assert not Placement.is_linked((32 << 20) - 1, LogConfig(segment_bytes=1 << 30))
