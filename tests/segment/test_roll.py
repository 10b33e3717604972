from __future__ import annotations

import pytest

from storage_core.log_config import LogConfig
from storage_core.segment.log_segment import RollParameters, draw_roll_jitter_ms

FAR_MS = 2**60


def parameters(*, size=10, timestamp_ms=0, offset=1, now_ms=0):
    return RollParameters(size, timestamp_ms, offset, now_ms)


def test_size_exactly_reached_is_no_reason(folder, append, make_batch):
    segment = folder.create(internal_segment_bytes=200)
    batch = make_batch(0, value=b"x" * 30)
    append(segment, batch)
    room = 200 - len(batch)
    assert not segment.should_roll(parameters(size=room))
    assert segment.should_roll(parameters(size=room + 1))


def test_an_empty_segment_has_no_room_for_an_append_larger_than_itself(folder):
    assert folder.create(internal_segment_bytes=200).should_roll(parameters(size=201))


@pytest.mark.parametrize(
    ("timestamp_ms", "rolls"), [(5000, False), (6000, False), (6001, True), (4000, False), (-1, False)]
)
def test_age_is_what_lies_between_the_first_batch_and_the_append(
    folder, append, make_batch, timestamp_ms, rolls
):
    segment = folder.create(segment_ms=1000, now_ms=0)
    append(segment, make_batch(0, (3000, 5000)))
    append(segment, make_batch(2, (9000,)))
    # The clock does not matter.
    assert segment.should_roll(parameters(offset=3, timestamp_ms=timestamp_ms, now_ms=FAR_MS)) is rolls
    segment.close()
    again = folder.open(segment_ms=1000, now_ms=0)
    again.resize_indexes()
    assert again.should_roll(parameters(offset=3, timestamp_ms=timestamp_ms, now_ms=FAR_MS)) is rolls


@pytest.mark.parametrize(("now_ms", "rolls"), [(8000, False), (8001, True)])
def test_without_timestamps_the_segments_own_age_counts(folder, append, make_batch, now_ms, rolls):
    segment = folder.create(segment_ms=1000, now_ms=7000)
    append(segment, make_batch(0, (-1,)))
    assert segment.should_roll(parameters(timestamp_ms=FAR_MS, now_ms=now_ms)) is rolls
    segment.close()
    again = folder.open(segment_ms=1000, now_ms=7500)
    again.resize_indexes()
    assert not again.should_roll(parameters(now_ms=8500))
    assert again.should_roll(parameters(now_ms=8501))


def test_an_empty_segment_does_not_age(folder):
    segment = folder.create(segment_ms=1000, now_ms=0)
    assert not segment.should_roll(parameters(timestamp_ms=FAR_MS, now_ms=FAR_MS))
    assert segment.first_batch_timestamp_ms == 2**63 - 1
    assert segment.time_waited_for_roll_ms(1234, 0) == 1234


def test_first_batch_timestamp(folder, append, make_batch):
    segment = folder.create()
    append(segment, make_batch(0, (20, 30, 10)))
    append(segment, make_batch(3, (5,)))
    assert segment.first_batch_timestamp_ms == 30
    assert segment.time_waited_for_roll_ms(0, 25) == -5
    segment.close()
    assert folder.open().first_batch_timestamp_ms == 30


def test_a_first_batch_without_timestamp(folder, append, make_batch):
    segment = folder.create()
    append(segment, make_batch(0, (-1,)))
    assert segment.first_batch_timestamp_ms == 2**63 - 1


@pytest.mark.parametrize("index_bytes", [24, 36])
def test_a_full_index_is_a_reason(folder, append, make_batch, index_bytes):
    # 24 bytes: one entry and a reserved one in the time index. 36 bytes: two, but then four in the offset index.
    segment = folder.create(index_interval_bytes=0, segment_index_bytes=index_bytes)
    free = index_bytes // 12 - 1
    for number in range(free + 1):
        assert not segment.should_roll(parameters(offset=number))
        append(segment, make_batch(number, (number,)))
    assert segment.should_roll(parameters(offset=free + 1))


def test_without_timestamps_the_offset_index_fills_first(folder, append, make_batch):
    segment = folder.create(index_interval_bytes=0, segment_index_bytes=24)
    for number in range(4):
        assert not segment.should_roll(parameters(offset=number))
        append(segment, make_batch(number, (-1,)))
    assert segment.should_roll(parameters(offset=4))


def test_a_trimmed_index_is_full(folder, append, make_batch):
    segment = folder.create()
    append(segment, make_batch(0))
    segment.close()
    again = folder.open()
    assert again.should_roll(parameters())
    again.resize_indexes()
    assert not again.should_roll(parameters())


@pytest.mark.parametrize(
    ("offset", "rolls"), [(49, True), (50, False), (50 + 2**31 - 1, False), (50 + 2**31, True)]
)
def test_an_offset_that_cannot_be_written_is_a_reason(folder, offset, rolls):
    assert folder.create(50).should_roll(parameters(offset=offset)) is rolls


@pytest.mark.parametrize(
    ("config", "largest"),
    [
        ({}, 0),
        ({"segment_jitter_ms": 50}, 49),
        ({"segment_jitter_ms": 50, "segment_ms": 20}, 19),
        ({"segment_jitter_ms": 50, "segment_ms": 1}, 0),
    ],
)
def test_jitter(config, largest):
    drawn = {draw_roll_jitter_ms(LogConfig(**config)) for _ in range(2000)}
    assert (min(drawn), max(drawn)) == (0, largest)


def test_jitter_is_drawn_once_and_makes_a_segment_roll_earlier(folder, append, make_batch):
    segment = folder.create(segment_ms=1000, segment_jitter_ms=500)
    assert segment.roll_jitter_ms == segment.roll_jitter_ms < 500
    append(segment, make_batch(0, (0,)))
    limit = 1000 - segment.roll_jitter_ms
    assert not segment.should_roll(parameters(timestamp_ms=limit))
    assert segment.should_roll(parameters(timestamp_ms=limit + 1))


def test_a_compacted_log_closes_segments_in_time(folder, append, make_batch):
    segment = folder.create(cleanup_policy="compact", segment_ms=5000, max_compaction_lag_ms=1000)
    append(segment, make_batch(0, (0,)))
    assert segment.should_roll(parameters(timestamp_ms=1001))
