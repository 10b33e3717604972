"""When a segment makes room for a new one (139-141, 153-155)."""

from __future__ import annotations

from tests.log.logs import BATCH_BYTES, NOW_MS, append, offsets, small, table, value
from tests.log.producing import data


def test_a_segment_never_exceeds_segment_bytes(log):
    append(log, 31)
    assert log.segment_base_offsets == (0, 10, 20, 30)
    assert offsets(log) == list(range(31))


def test_a_segment_that_would_be_exactly_full_is_not_rolled(log):
    append(log, 10)
    assert log.segment_base_offsets == (0,)
    append(log)
    assert log.segment_base_offsets == (0, 10)


def test_one_append_rolls_where_appends_of_its_batches_would(logs):
    config = small(batch_size=1)
    alone, together = logs.create("alone", config=config), logs.create("together", config=config)
    for number in range(35):
        alone.append(table(value(number)))
    together.append(table(*(value(number) for number in range(35))))
    assert alone.segment_base_offsets == together.segment_base_offsets == (0, 10, 20, 30)


def test_a_log_rolls_when_a_timestamp_is_too_far_from_its_segments_first(logs):
    log = logs.create("timed", config=small(segment_bytes=1 << 20, segment_ms=1000))
    append(log, 3, timestamps=[5000, 6000, 4000])
    assert log.segment_base_offsets == (0,)
    append(log, timestamps=[6001])
    assert log.segment_base_offsets == (0, 3)
    # Compared with the first batch of its own segment.
    append(log, timestamps=[7001])
    assert log.segment_base_offsets == (0, 3)


def test_without_timestamps_the_clock_decides(logs, clock):
    log = logs.create("timed", config=small(segment_bytes=1 << 20, segment_ms=1000))
    append(log, timestamps=[-1])
    clock.time_ms += 1000
    append(log, timestamps=[-1])
    assert log.segment_base_offsets == (0,)
    clock.time_ms += 1
    append(log, timestamps=[-1])
    assert log.segment_base_offsets == (0, 2)


def test_jitter_makes_a_segment_roll_earlier(logs, monkeypatch):
    monkeypatch.setattr("random.randrange", lambda stop: stop - 1)
    log = logs.create("timed", config=small(segment_bytes=1 << 20, segment_ms=1000, segment_jitter_ms=100))
    append(log, 2, timestamps=[0, 901])
    assert log.segment_base_offsets == (0,)
    append(log, timestamps=[902])
    assert log.segment_base_offsets == (0, 2)


def test_a_full_index_rolls_its_segment(logs):
    # Three entries fit the offset index, two the time index, of which the last is kept for the seal.
    log = logs.create("indexed", config=small(index_interval_bytes=0, segment_index_bytes=24))
    append(log, 7, timestamps=range(7))
    bases = log.segment_base_offsets
    assert len(bases) > 2
    assert offsets(log) == list(range(7))
    one_by_one = bases
    log = logs.create("at-once", config=small(index_interval_bytes=0, segment_index_bytes=24, batch_size=1))
    log.append(table(*map(value, range(7)), timestamps=range(7)))
    assert log.segment_base_offsets == one_by_one


def test_a_roll_of_an_empty_segment_makes_it_anew(log):
    append(log, 3)
    log.roll()
    log.roll()
    assert log.segment_base_offsets == (0, 3)
    assert log.log_end_offset == 3
    append(log)
    assert offsets(log) == [0, 1, 2, 3]


def test_files_that_stand_where_a_segment_begins_are_deleted(log, tmp_path):
    append(log, 3)
    for suffix in ("index", "timeindex", "txnindex", "log"):
        (tmp_path / f"data/orders-0/00000000000000000003.{suffix}").write_bytes(b"left over")
    log.roll()
    append(log)
    assert offsets(log) == [0, 1, 2, 3]
    assert (tmp_path / "data/orders-0/00000000000000000003.log").stat().st_size == BATCH_BYTES
    assert not (tmp_path / "data/orders-0/00000000000000000003.txnindex").exists()


def test_a_roll_leaves_a_sealed_segment_and_a_snapshot(log, tmp_path):
    append(log, 5, timestamps=[5, 6, 7, 8, 4])
    log.roll()
    path = tmp_path / "data/orders-0"
    # Every other batch gets an entry: last offset and position.
    assert (path / "00000000000000000000.index").read_bytes().hex() == "00000003" + "0000012c"
    assert (path / "00000000000000000000.timeindex").read_bytes().hex() == "000000000000000800000003"
    assert (path / "00000000000000000005.snapshot").read_bytes().hex() == "000148674bc700000000"


def test_producers_that_were_silent_for_a_day_are_forgotten_now_and_then(logs, clock):
    log = logs.create("produced")
    log.append_batches(data(0, producer=1, timestamp_ms=0) + data(1, producer=2, timestamp_ms=NOW_MS))

    def known():
        log.roll()
        return sorted(log._state.producers.producers)

    assert known() == [1, 2]
    clock.time_ms += 599_999
    log.append_batches(data(2))
    assert known() == [1, 2]
    clock.time_ms += 1
    log.append_batches(data(3))
    assert known() == [2]
