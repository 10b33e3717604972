"""A staged segment has, byte for byte, the files that a log's segment has when it is closed."""

from __future__ import annotations

import random

import pytest

from storage_core.commit.stage_placement import OpenFiles, StagedSegment
from storage_core.filesystem import FileSystem
from storage_core.log_config import LogConfig
from storage_core.record.record_batches import RecordBatches
from storage_core.segment.log_segment import LogSegment
from tests.record.encoding import Batch, counted_records

NOW_MS = 1_772_500_000_000
SUFFIXES = (".log", ".index", ".timeindex")


def batches(count, *, seed=0, base_offset=0, step=0):
    """Batches of some records each; with ``step``, with gaps between them."""
    rng = random.Random(seed)
    data, offset = b"", base_offset
    for number in range(count):
        records = counted_records(
            rng.randint(1, 9), start=NOW_MS + rng.randint(-50, 50) + number, value=b"v" * 20
        )
        data += Batch(records, base_offset=offset).encode()
        offset += len(records) + step
    return RecordBatches.parse(data)


def stage(directory, groups, config, base_offset=0):
    files = OpenFiles(FileSystem(), str(directory))
    segment = StagedSegment(files, "staged", base_offset, config)
    for group in groups:
        segment.append(group)
    segment.seal()
    files.flush()
    return [(directory / f"staged{suffix}").read_bytes() for suffix in SUFFIXES]


def log_segment(directory, groups, config, base_offset=0):
    segment = LogSegment.create(FileSystem(), str(directory), base_offset, config, now_ms=NOW_MS)
    for group in groups:
        segment.append(group)
    segment.seal()
    segment.close()
    return [(directory / f"{base_offset:020}{suffix}").read_bytes() for suffix in SUFFIXES]


@pytest.mark.parametrize("interval_bytes", [0, 300, 4096, 1 << 20])
@pytest.mark.parametrize("group_size", [1, 7, 500])
def test_a_staged_segment_has_the_files_of_a_closed_one(tmp_path, interval_bytes, group_size):
    config = LogConfig(index_interval_bytes=interval_bytes)
    all_batches = batches(500)
    groups = [all_batches.select(start, start + group_size) for start in range(0, 500, group_size)]
    assert stage(tmp_path, groups, config) == log_segment(tmp_path, groups, config)


def test_entries_count_from_the_base_offset_of_batches_that_keep_theirs(tmp_path):
    config = LogConfig(index_interval_bytes=100)
    at_zero, elsewhere = batches(200, step=3), batches(200, step=3, base_offset=1 << 40)
    staged = stage(tmp_path, [elsewhere], config, 1 << 40)
    assert staged == log_segment(tmp_path, [elsewhere], config, 1 << 40)
    (tmp_path / "zero").mkdir()
    assert staged[1:] == stage(tmp_path / "zero", [at_zero], config)[1:]


def test_indexes_that_are_full_take_no_more(tmp_path):
    config = LogConfig(index_interval_bytes=0, segment_index_bytes=240)
    all_batches = batches(500, seed=3)
    staged = stage(tmp_path, [all_batches], config)
    assert [len(data) for data in staged[1:]] == [240, 240]
    assert staged == log_segment(tmp_path, [all_batches], config)


def test_a_segment_says_that_its_index_is_full(tmp_path):
    config = LogConfig(index_interval_bytes=0, segment_index_bytes=80)
    files = OpenFiles(FileSystem(), str(tmp_path))
    segment = StagedSegment(files, "staged", 0, config)
    found = []
    for number in range(12):
        batch = Batch(counted_records(1, start=NOW_MS + number), base_offset=number).encode()
        segment.append(RecordBatches.parse(batch))
        found.append(segment.has_full_index)
    # The first batch gets no entry, and the time index keeps one of its six places.
    assert found.index(True) == 5
    files.close()


def test_a_single_batch_without_timestamps(tmp_path):
    batch = RecordBatches.parse(Batch(counted_records(1, start=-1)).encode())
    _, index, time_index = stage(tmp_path, [batch], LogConfig())
    assert (index, time_index) == (b"", b"")


def test_few_files_are_open_and_long_indexes_are_written_meanwhile(tmp_path):
    config = LogConfig(index_interval_bytes=0)
    files = OpenFiles(FileSystem(max_open_files=2), str(tmp_path))
    segment = StagedSegment(files, "staged", 0, config)
    data = batches(3000)
    for start in range(0, 3000, 100):
        segment.append(data.select(start, start + 100))
    assert (tmp_path / "staged.index").stat().st_size > 3000 * 8 - 8192
    segment.seal()
    files.close()
    assert (tmp_path / "staged.index").stat().st_size == 2999 * 8
