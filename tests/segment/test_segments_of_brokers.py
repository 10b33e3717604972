"""The batches of segments that real brokers wrote, appended again: the same indexes come out, byte for byte."""

from __future__ import annotations

import pytest
from conformance.archives import unpack_case

from storage_core.errors import CorruptRecordError
from storage_core.filesystem import FileSystem
from storage_core.log_config import LogConfig
from storage_core.record.record_batches import RecordBatches
from storage_core.segment import base_offset_of
from storage_core.segment.log_segment import LogSegment

SUFFIXES = (".log", ".index", ".timeindex")
# Cleanly stopped, format v2, never opened again in the middle of a segment.
CLOSED = {
    "compact": 39,
    "compact-txn": 35,
    "internal": 9,
    "timestamps": 54,
    "txn-ongoing": 41,
    "v2-foreign": 11,
    "v2-none": 34,
    "v2-zstd": 23,
}
# The broker was killed: the last segment of each partition is as it was while it was appended to.
ACTIVE = {"unclean": 7}


def segments_of(logs, topics):
    for path in sorted(logs.glob("*/*.log")):
        configuration = topics.get(path.parent.name.rpartition("-")[0], {}).get("config", {})
        wanted = ("index.interval.bytes", "segment.index.bytes", "preallocate", "internal.segment.bytes")
        config = LogConfig.from_dict({key: configuration[key] for key in wanted if key in configuration})
        yield path, base_offset_of(path.name), config


def contents(path):
    return [path.with_suffix(suffix).read_bytes() for suffix in SUFFIXES]


@pytest.mark.parametrize("case", CLOSED)
def test_closed_segments(case, tmp_path):
    logs, expected = unpack_case(case, tmp_path / "case")
    count = 0
    for path, base_offset, config in segments_of(logs, expected["topics"]):
        batches = RecordBatches.parse(path.read_bytes(), lowest_offset=base_offset)
        for step in sorted({1, 3, max(1, batches.count)}):
            target = tmp_path / f"{path.parent.name}-{base_offset}-{step}"
            target.mkdir()
            segment = LogSegment.create(FileSystem(), str(target), base_offset, config, now_ms=0)
            for number in range(0, batches.count, step):
                segment.append(batches.select(number, number + step))
            segment.close()
            assert contents(target / path.name) == contents(path), (path, step)
        for suffix in SUFFIXES[1:]:
            (target / path.name).with_suffix(suffix).unlink()
        LogSegment(FileSystem(), str(target), base_offset, config, now_ms=0).recover()
        assert contents(target / path.name) == contents(path), path
        count += 1
    assert count == CLOSED[case]


@pytest.mark.parametrize("case", ACTIVE)
def test_active_segments(case, tmp_path):
    logs, expected = unpack_case(case, tmp_path / "case")
    last = {path.parent: (path, *rest) for path, *rest in segments_of(logs, expected["topics"])}
    count = 0
    for path, base_offset, config in last.values():
        log, index, time_index = contents(path)
        try:
            batches = RecordBatches.parse(log, lowest_offset=base_offset)
        except CorruptRecordError:
            # Preallocated.
            batches = RecordBatches.parse(log.rstrip(b"\0") + bytes(8), lowest_offset=base_offset)
        segment = LogSegment.create(FileSystem(), str(tmp_path), base_offset, config, now_ms=0)
        for number in range(batches.count):
            segment.append(batches.select(number, number + 1))
        if batches.count == 0:
            segment.resize_indexes()
        assert contents(tmp_path / path.name) == [log, index, time_index], path
        for suffix in SUFFIXES:
            (tmp_path / path.name).with_suffix(suffix).unlink()
        count += 1
    assert count == ACTIVE[case]
