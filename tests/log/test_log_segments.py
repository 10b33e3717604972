from __future__ import annotations

import pytest

from storage_core.errors import StorageError
from storage_core.log.log_segments import LogSegments

BASES = [0, 10, 20, 40]


class Stub:
    """What the collection needs of a segment."""

    def __init__(self, base_offset):
        self.base_offset = base_offset
        self.calls = []

    def close(self):
        self.calls.append("close")
        if self.base_offset == 10:
            raise StorageError("No space left.")

    def close_handlers(self):
        self.calls.append("close_handlers")


@pytest.fixture
def segments():
    return LogSegments(Stub(base_offset) for base_offset in (20, 0, 40, 10))


def base(segment):
    return None if segment is None else segment.base_offset


def bases(found):
    return [segment.base_offset for segment in found]


def test_in_order(segments):
    assert bases(segments) == segments.base_offsets == BASES
    assert len(segments) == 4
    assert base(segments.active) == 40


def test_nothing():
    empty = LogSegments()
    assert empty.floor(5) is None
    assert (len(empty), list(empty), empty.values()) == (0, [], [])
    with pytest.raises(IndexError):
        _ = empty.active


@pytest.mark.parametrize("offset", range(-1, 43))
def test_floor_and_higher(segments, offset):
    assert base(segments.floor(offset)) == max((each for each in BASES if each <= offset), default=None)
    assert bases(segments.higher_segments(offset)) == [each for each in BASES if each > offset]


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        (None, None, BASES),
        (0, 50, BASES),
        (0, 40, [0, 10, 20]),
        (0, 41, BASES),
        (10, 20, [10]),
        (11, 20, [10]),
        (11, 21, [10, 20]),
        (9, 10, [0]),
        (-5, 5, [0]),
        (-5, 0, []),
        (10, 10, []),
        (15, 15, [10]),
        (39, None, [20, 40]),
        (100, None, [40]),
        (None, 20, [0, 10]),
    ],
)
def test_values(segments, start, end, found):
    assert bases(segments.values(start, end)) == found


def test_a_range_does_not_begin_before_the_first_segment():
    assert bases(LogSegments([Stub(5), Stub(7)]).values(0, 6)) == [5]


def test_add_and_remove(segments):
    seen_before = iter(segments)
    segments.add(Stub(30))
    segments.add(Stub(50))
    segments.add(again := Stub(10))
    assert segments.base_offsets == [0, 10, 20, 30, 40, 50]
    assert segments.floor(10) is again
    segments.remove_all([10, 50, 99])
    assert segments.base_offsets == [0, 20, 30, 40]
    assert bases(seen_before) == BASES


def test_each_segment_is_closed_although_one_fails(segments):
    with pytest.raises(StorageError, match="No space"):
        segments.close()
    assert [segment.calls for segment in segments] == [["close"]] * 4
    segments.close_handlers()
    assert [segment.calls for segment in segments] == [["close", "close_handlers"]] * 4
