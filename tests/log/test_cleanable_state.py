from __future__ import annotations

import os

from tests.log.cleaning import compacted, put, records
from tests.log.logs import NOW_MS, name, open_directory, table


def test_young_segments_are_left_alone(tmp_path, clock):
    with open_directory(tmp_path, clock=clock, config=compacted(min_compaction_lag_ms=1000)) as logs:
        log = logs.create("orders")
        put(log, "a1", "a2")
        log.roll()
        clock.time_ms += 500
        put(log, "a3", "a4")
        log.roll()
        clock.time_ms += 499
        assert log.clean() is None
        clock.time_ms += 1
        assert log.clean().end_offset == 2
        assert records(log) == ["1:a=2", "2:a=3", "3:a=4"]
        clock.time_ms += 500
        assert log.clean().end_offset == 4
        assert records(log) == ["3:a=4"]


def test_a_segment_without_timestamps_is_as_young_as_its_file(tmp_path, clock):
    with open_directory(tmp_path, clock=clock, config=compacted(min_compaction_lag_ms=1000)) as logs:
        log = logs.create("orders")
        log.append(table(b"1", b"2", keys=[b"a", b"a"], timestamps=[-1, -1]))
        log.roll()
        path = tmp_path / "orders-0" / name(0)
        os.utime(path, ns=(0, (NOW_MS - 999) * 1_000_000))
        assert log.clean() is None
        os.utime(path, ns=(0, (NOW_MS - 1000) * 1_000_000))
        assert log.clean() is not None
