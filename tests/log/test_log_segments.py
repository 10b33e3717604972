from __future__ import annotations

import threading

import pytest

from storage_core.errors import StorageError
from storage_core.filesystem import FileSystem
from storage_core.log.log_segments import LogSegments
from storage_core.log_config import LogConfig
from storage_core.segment.log_segment import LogSegment

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


def test_real_segments(tmp_path):
    config = LogConfig()
    segments = LogSegments(
        LogSegment.create(FileSystem(), str(tmp_path), offset, config, now_ms=0) for offset in (5, 0)
    )
    segments.close()
    assert sorted(path.name[18:] for path in tmp_path.iterdir()) == [
        f"{number}{suffix}" for number in ("00", "05") for suffix in (".index", ".log", ".timeindex")
    ]


def test_look_ups_while_segments_change():
    segments = LogSegments(Stub(10 * number) for number in range(100))
    wrong = []
    is_over = threading.Event()

    def look():
        while not is_over.is_set():
            # These two segments never change.
            if base(segments.floor(505)) != 500 or base(segments.higher_segments(485)[0]) != 490:
                wrong.append(segments.base_offsets)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(2000):
        segments.add(Stub(1000 + number))
        segments.remove_all([10 * (number % 40)])
        segments.add(Stub(10 * (number % 40)))
        segments.remove_all([1000 + number - 5])
    is_over.set()
    for thread in threads:
        thread.join()
    assert wrong == []
