"""What look-ups may cost, and what indexes say without the log being looked at."""

from __future__ import annotations

import pytest

from storage_core.directory import PartitionLog, find_partitions
from storage_core.filesystem import FileSystem
from storage_core.scan import time_pruning
from storage_core.scan.time_pruning import (
    SegmentRange,
    WalkBudget,
    batch_reaching,
    first_header,
)


@pytest.fixture
def log(log_root, record_of):
    """Offsets 0 to 29 in three segments of about 50 KB, in batches of 5 KB; indexed every two of them."""
    log = log_root.rows()
    for number in range(30):
        log.append(record_of(0, 1000 + number, b"k", b"x" * 5000))
        if number in (9, 19):
            log.roll()
    return log.write(index_interval_bytes=5000)


def load(log):
    filesystem = FileSystem()
    (directory,) = find_partitions(filesystem, [str(log.path)])
    return PartitionLog.load(filesystem, directory)


def test_the_last_segment_ends_where_the_log_does(log):
    with log.log_path(20).open("ab") as file:
        file.write(bytes(8000))
    assert SegmentRange(load(log), 20, 30).size_bytes == log.places[20][-1][1]


def test_only_closed_indexes_are_complete(log, log_root):
    found = SegmentRange(load(log), 0, 30)
    assert [found.is_complete(index) for index in found.indexes] == [True, True, False]
    log_root.mark_clean()
    assert SegmentRange(load(log), 0, 30).is_complete(2)


def test_a_walk_reads_an_eighth_of_the_range_and_no_more_than_planning_can_wait_for(monkeypatch):
    budget = WalkBudget(80_000, 0)
    assert budget.allows(10_000)
    assert not budget.allows(10_001)
    budget.spend(4000)
    assert budget.allows(6000)
    assert not budget.allows(6001)
    budget.spend(6001)
    assert not budget.allows()
    monkeypatch.setattr(time_pruning, "_MOST_BYTES", 15_000)
    budget = WalkBudget(800_000, 0)
    assert budget.allows(15_000)
    assert not budget.allows(15_001)


def test_a_request_counts_as_bytes_and_none_is_spent_to_hop_over_fewer():
    budget = WalkBudget(800_000, 20_000)
    budget.spend(1000)
    assert budget.allows(79_000)
    assert not budget.allows(79_001)
    budget.spend_on_header(19_000)
    assert budget.allows(60_000)
    assert not budget.allows(60_001)
    budget.spend_on_header(1_000_000)
    assert budget.allows(40_000 - 61)
    assert not budget.allows(40_000)


def test_a_first_header_is_read_alone(log):
    segment = load(log).segments[1]
    header = first_header(segment)
    assert (header.base_offset, header.max_timestamp_ms) == (10, 1010)
    assert segment.filesystem.statistics.bytes_read == 61


def test_without_a_batch_there_is_no_first_header(log, log_root, overwrite):
    assert first_header(load(log_root.rows("empty").write()).segments[0]) is None
    overwrite(log.log_path(0), 16, b"\x07")
    assert first_header(load(log).segments[0]) is None


def test_damage_hides_a_batch(log, overwrite):
    partition = load(log)
    assert batch_reaching(partition.segments[1], 17).base_offset == 17
    assert batch_reaching(partition.segments[1], 20) is None
    log.log_path(10).with_suffix(".index").write_bytes(b"")
    overwrite(log.log_path(10), log.places[10][3][0] + 16, b"\x07")
    assert batch_reaching(load(log).segments[1], 17) is None
