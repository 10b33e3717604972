from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.scan.offset_ranges import PartitionRange, RangePieces, split_ranges


class Log(NamedTuple):
    """A log as far as splitting looks at it; equal to others of the same name."""

    topic: str
    partition: int


def range_of(topic, partition, start_offset, end_offset):
    return PartitionRange(Log(topic, partition), start_offset, end_offset)


def ranges_of(*bounds):
    return [range_of("topic", number, *pair) for number, pair in enumerate(bounds)]


def split(bounds, **limits):
    return [(each.start_offset, each.end_offset) for each in pieces_of(ranges_of(*bounds), **limits)]


def pieces_of(ranges, min_partitions=None, max_records_per_partition=None):
    cut = split_ranges(ranges, min_partitions, max_records_per_partition)
    return [piece for pieces in cut for piece in pieces]


# The worked values of Spark's KafkaOffsetRangeCalculator.
@pytest.mark.parametrize(
    ("min_partitions", "bounds", "expected"),
    [
        (4, [(1, 5), (1, 21)], [(1, 5), (1, 7), (7, 14), (14, 21)]),
        (3, [(1, 11)], [(1, 4), (4, 7), (7, 11)]),
        (6, [(0, 10), (0, 10), (0, 1)], [(0, 3), (3, 6), (6, 10), (0, 3), (3, 6), (6, 10), (0, 1)]),
        (
            9,
            [(0, 10_000), (0, 15_000), (0, 20_000)],
            [(start, start + 5000) for stop in (10_000, 15_000, 20_000) for start in range(0, stop, 5000)],
        ),
        (
            6,
            [(0, 500), (0, 12_000), (0, 15_001)],
            [(0, 500), (0, 6000), (6000, 12_000), (0, 5000), (5000, 10_000), (10_000, 15_001)],
        ),
        (
            6,
            [(0, 1), (0, 1), (0, 10_000)],
            [(0, 1), (0, 1), (0, 2500), (2500, 5000), (5000, 7500), (7500, 10_000)],
        ),
        (4, [(1, 1), (1, 21)], [(1, 6), (6, 11), (11, 16), (16, 21)]),
    ],
)
def test_minimum_of_partitions(min_partitions, bounds, expected):
    assert split(bounds, min_partitions=min_partitions) == expected


def test_maximum_of_records_cuts_into_near_equal_pieces():
    assert split([(1, 6)], max_records_per_partition=4) == [(1, 3), (3, 6)]


def test_without_limits_only_empty_ranges_are_dropped():
    assert split([(0, 10), (5, 5), (7, 3)]) == [(0, 10)]


def test_enough_ranges_are_left_as_they_are():
    assert split([(0, 10), (0, 10)], min_partitions=2) == [(0, 10), (0, 10)]


def test_both_limits_cut_to_the_size_first():
    pieces = split([(0, 10)], min_partitions=4, max_records_per_partition=5)
    assert pieces == [(0, 2), (2, 5), (5, 7), (7, 10)]


def test_more_pieces_than_offsets_are_not_made():
    assert split([(0, 3)], min_partitions=1_000_000_000_000) == [(0, 1), (1, 2), (2, 3)]


def test_nothing_to_split():
    assert split([], min_partitions=3, max_records_per_partition=1) == []


def test_topic_and_partition_go_with_the_pieces():
    pieces = pieces_of([range_of("orders", 7, 0, 4)], min_partitions=2)
    assert pieces == [range_of("orders", 7, 0, 2), range_of("orders", 7, 2, 4)]
    assert [piece.size for piece in pieces] == [2, 2]


@given(
    bounds=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 300)), max_size=6),
    min_partitions=st.none() | st.integers(1, 50),
    max_records=st.none() | st.integers(1, 400),
)
def test_pieces_cover_each_range_once_and_in_order(bounds, min_partitions, max_records):
    whole = ranges_of(*((start, start + size) for start, size in bounds))
    pieces = pieces_of(whole, min_partitions, max_records)
    for each in whole:
        own = [piece for piece in pieces if piece.partition == each.partition]
        assert all(piece.size > 0 for piece in own)
        assert sum(piece.size for piece in own) == each.size
        assert [piece.start_offset for piece in own[1:]] == [piece.end_offset for piece in own[:-1]]
        if own:
            assert (own[0].start_offset, own[-1].end_offset) == (each.start_offset, each.end_offset)
    if max_records is not None:
        assert all(piece.size <= max_records for piece in pieces)


@given(start=st.integers(0, 100), size=st.integers(1, 200), count=st.integers(1, 200))
def test_the_piece_of_an_offset_is_found_without_listing_them(start, size, count):
    pieces = RangePieces(range_of("topic", 0, start, start + size), min(count, size))
    for index, piece in enumerate(pieces):
        for offset in range(piece.start_offset, piece.end_offset):
            assert pieces.index_of(offset) == index


def test_a_range_of_all_offsets_is_cut_without_listing_the_pieces():
    (pieces,) = split_ranges([range_of("topic", 0, 0, 2**63 - 1)], max_records_per_partition=3)
    assert pieces.count == 3074457345618258603
    assert pieces.piece(pieces.index_of(2**62)) == range_of(
        "topic", 0, 4611686018427387904, 4611686018427387907
    )
