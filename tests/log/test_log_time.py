"""Offsets for timestamps (172, 173)."""

from __future__ import annotations

import pytest

from storage_core.errors import OptionError
from tests.log.logs import append


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
    # The first record with the largest timestamp, though the log starts behind it.
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
