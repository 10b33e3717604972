from __future__ import annotations

import pytest

from storage_core.segment import TimestampOffset


@pytest.fixture
def batches(make_batch):
    return [make_batch(10 * n, (t,) * 3) for n, t in enumerate([10, 30, 20, 50, 50, 40])]


@pytest.fixture
def segment(folder, append, batches):
    made = folder.create(index_interval_bytes=100, segment_index_bytes=1000)
    for batch in batches:
        append(made, batch)
    return made


def test_what_is_in_it(segment, folder, batches):
    assert segment.path == f"{folder.path}/00000000000000000000.log"
    assert segment.size_bytes == 6 * len(batches[0])
    assert segment.largest_timestamp == TimestampOffset(50, 32)
    assert segment.first_batch_timestamp_ms == 10
    assert segment.read_next_offset() == 53
    assert segment.free_index_entries == min(125 - len(segment.offset_index), 82 - len(segment.time_index))


def test_what_is_in_an_empty_one(folder):
    segment = folder.create(7)
    assert (segment.size_bytes, segment.read_next_offset()) == (0, 7)
    assert segment.largest_timestamp == TimestampOffset(-1, 7)
    assert segment.reader().end().next_offset == 7
    assert list(segment.windows()) == []
    assert segment.reader().offset_for_timestamp(0) is None


@pytest.mark.parametrize(
    ("timestamp_ms", "start_offset", "found"),
    [
        (0, 0, (10, 0)),
        (10, 1, (10, 1)),
        (11, 0, (30, 10)),
        (20, 13, (20, 20)),
        (30, 11, (30, 11)),
        (31, 0, (50, 30)),
        (50, 33, (50, 40)),
        (51, 0, None),
        (40, 50, (40, 50)),
        (45, 50, None),
    ],
)
def test_offset_for_timestamp(segment, timestamp_ms, start_offset, found):
    expected = found and TimestampOffset(*found)
    assert segment.reader().offset_for_timestamp(timestamp_ms, start_offset) == expected
    segment.seal()
    assert segment.reader().offset_for_timestamp(timestamp_ms, start_offset) == expected


def test_a_reader_sees_what_was_there_when_it_was_made(segment, append, make_batch):
    reader = segment.reader()
    append(segment, make_batch(60, (99,)))
    assert reader.end().next_offset == 53
    assert reader.translate_offset(60) is None
    assert reader.offset_for_timestamp(60) is None
    assert segment.reader().end().next_offset == 61


def test_windows(segment, batches):
    size = len(batches[0])

    def offsets(*arguments):
        return [
            offset
            for window in segment.windows(*arguments)
            for offset in window.headers["base_offset"].tolist()
        ]

    assert offsets() == [0, 10, 20, 30, 40, 50]
    assert offsets(2 * size) == [20, 30, 40, 50]
    assert offsets(size, 3 * size) == [10, 20]
    assert offsets(6 * size) == []
