from __future__ import annotations

import struct

import numpy as np

from storage_core.log_config import LogConfig
from storage_core.segment.file_names import TimestampOffset
from storage_core.segment.segment_indexes import IndexBuilder

CONFIG = LogConfig(index_interval_bytes=100, segment_index_bytes=100)


def add(builder, *batches, position_bytes=0):
    """Add batches of (last offset, largest timestamp, size)."""
    offsets, timestamps_ms, sizes_bytes = (
        np.array(column, np.int64) for column in zip(*batches, strict=True)
    )
    return builder.add(offsets, timestamps_ms, sizes_bytes, position_bytes)


def test_entries_count_from_the_base_offset():
    builder = IndexBuilder(1000, CONFIG)
    offsets, times = add(builder, (1004, 70, 101), (1009, 50, 101), (1019, 90, 101))
    assert offsets == struct.pack(">iiii", 9, 101, 19, 202)
    assert times == struct.pack(">qiqi", 70, 4, 90, 19)
    assert builder.last_entry() == b""


def test_what_was_added_before_counts():
    builder = IndexBuilder(0, CONFIG)
    assert add(builder, (0, 70, 60)) == (b"", b"")
    assert add(builder, (1, 60, 60), position_bytes=60) == (b"", b"")
    offsets, times = add(builder, (2, 50, 60), position_bytes=120)
    assert offsets == struct.pack(">ii", 2, 120)
    assert times == struct.pack(">qi", 70, 0)


def test_it_continues_after_the_last_entry_of_the_time_index():
    builder = IndexBuilder(10, CONFIG, time_index_bytes=12, last_time=TimestampOffset(80, 13))
    offsets, times = add(builder, (20, 80, 101), (21, 70, 101), (22, 81, 101), position_bytes=500)
    assert offsets == struct.pack(">iiii", 11, 601, 12, 702)
    assert times == struct.pack(">qi", 81, 12)


def test_the_largest_timestamp_is_added_in_the_end_once():
    builder = IndexBuilder(10, CONFIG)
    assert add(builder, (12, 70, 50), (15, 90, 40)) == (b"", b"")
    assert builder.last_entry() == struct.pack(">qi", 90, 5)
    assert builder.last_entry() == b""


def test_without_timestamps_there_are_no_entries_of_times():
    builder = IndexBuilder(0, CONFIG)
    assert add(builder, (0, -1, 101), (1, -1, 101))[1] == b""
    assert builder.last_entry() == b""


def test_there_are_as_many_entries_as_there_is_room_and_one_place_is_kept():
    builder = IndexBuilder(0, CONFIG)
    offsets, times = add(builder, *((number, number, 101) for number in range(20)))
    assert len(offsets) == 12 * 8
    assert len(times) == 7 * 12
    assert builder.is_full
    assert add(builder, (20, 20, 101), position_bytes=2020) == (b"", b"")
    assert builder.last_entry() == struct.pack(">qi", 20, 20)


def test_what_was_there_before_takes_room():
    assert IndexBuilder(0, CONFIG, offset_index_bytes=96).is_full
    assert IndexBuilder(0, CONFIG, time_index_bytes=84).is_full
    builder = IndexBuilder(0, CONFIG, offset_index_bytes=88, time_index_bytes=72)
    assert not builder.is_full
    offsets, times = add(builder, *((number, number, 101) for number in range(5)))
    assert (len(offsets), len(times)) == (8, 12)
