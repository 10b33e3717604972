"""Offsets for timestamps (172, 173)."""

from __future__ import annotations

import random
import struct

import pytest

from storage_core import read_table
from storage_core.errors import OptionError
from tests.log.logs import append, name, offsets, open_directory, small
from tests.log.producing import data


def test_offsets_for_timestamps(log):
    append(log, 30, timestamps=range(100, 3100, 100))
    found = log.offset_for_timestamp(1500)
    assert (found.offset, found.timestamp_ms, found.leader_epoch) == (14, 1500, 0)
    assert log.offset_for_timestamp(1501).offset == 15
    assert log.offset_for_timestamp(0).offset == 0
    assert log.offset_for_timestamp(3001) is None


def test_offsets_for_kafkas_negative_timestamps(log):
    append(log, 12, timestamps=[5, 9, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    log.delete_records(4)

    def look_up(timestamp_ms):
        found = log.offset_for_timestamp(timestamp_ms)
        return found.offset, found.timestamp_ms

    assert look_up(-1) == (12, -1)
    assert look_up(-2) == look_up(-4) == (4, -1)
    # The first record with the largest timestamp, though the log starts after it.
    assert look_up(-3) == (1, 9)
    assert look_up(-5) == (-1, -1)
    append(log, timestamps=[10])
    assert look_up(-3) == (12, 10)
    with pytest.raises(OptionError, match="-5 to -1, found -7"):
        log.offset_for_timestamp(-7)


def test_timestamps_of_an_empty_log(log):
    assert log.offset_for_timestamp(0) is None
    assert log.offset_for_timestamp(-3) is None
    assert log.offset_for_timestamp(-1).offset == log.offset_for_timestamp(-2).offset == 0


def test_a_follower_indexes_times_as_well(logs, tmp_path):
    log = logs.create("replica", config=small(1 << 20))
    for offset in range(25):
        log.append_batches(data(offset, timestamp_ms=100 * offset))
    log.roll()
    index = (tmp_path / "data" / "replica-0" / name(0, "timeindex")).read_bytes()
    # Timestamp and relative offset of the segment's last record, at its end.
    assert index[-12:] == struct.pack(">qi", 2400, 24)
    assert len(index) > 12
    found = log.offset_for_timestamp(1750)
    assert (found.offset, found.timestamp_ms) == (18, 1800)


def test_records_below_the_log_start_decide_nothing(log):
    append(log, 25, timestamps=[*range(9000, 9012), *range(100, 1400, 100)])
    # The first segment is dead, the second one partly; both hold the largest timestamps.
    log.delete_records(12)
    found = log.offset_for_timestamp(250)
    assert (found.offset, found.timestamp_ms) == (14, 300)
    # Only a record of a later segment is late enough.
    assert log.offset_for_timestamp(1200).offset == 23
    assert log.offset_for_timestamp(9000) is None


# The time indexes that a reader finds.
INDEXES = ("as written", "not used", "missing", "missing of dead segments")


@pytest.mark.parametrize("indexes", INDEXES)
def test_time_bounds_find_the_first_live_record(tmp_path, indexes):
    chance = random.Random(17)
    for attempt in range(6):
        root = tmp_path / str(attempt)
        with open_directory(root) as logs:
            log = logs.create("orders")
            timestamps = [chance.randrange(100, 400) + offset // 10 * 100 for offset in range(35)]
            chance.shuffle(timestamps)
            append(log, 35, timestamps=timestamps)
            log_start = chance.randrange(1, 35)
            log.delete_records(log_start)
            live = dict(enumerate(timestamps[log_start:], log_start))
        if indexes.startswith("missing"):
            for path in (root / "orders-0").glob("*.timeindex"):
                if indexes == "missing" or int(path.stem) < log_start - 10:
                    path.unlink()
        bounds = {"use_indexes": indexes != "not used", "columns": ["offset"]}
        for timestamp_ms in (0, *(chance.randrange(100, 800) for _ in range(6))):
            first = next((offset for offset, each_ms in live.items() if each_ms >= timestamp_ms), 35)
            begun = read_table(
                root,
                starting_timestamp=timestamp_ms,
                starting_offsets_by_timestamp_strategy="latest",
                **bounds,
            )
            assert begun["offset"].to_pylist() == list(range(first, 35))
            ended = read_table(root, ending_offsets_by_timestamp={"orders": {0: timestamp_ms}}, **bounds)
            assert ended["offset"].to_pylist() == list(range(log_start, first))
        with open_directory(root, read_only=True) as logs:
            log = logs.get("orders")
            assert offsets(log) == list(live)
            for timestamp_ms in (0, 300, 700):
                first = next((offset for offset, each_ms in live.items() if each_ms >= timestamp_ms), None)
                found = log.offset_for_timestamp(timestamp_ms)
                assert (None if found is None else found.offset) == first
