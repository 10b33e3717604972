"""Offsets for timestamps (172, 173)."""

from __future__ import annotations

import struct

import pytest

from storage_core.errors import OptionError
from tests.log.logs import append, name, small
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
