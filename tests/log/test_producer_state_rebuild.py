from __future__ import annotations

import pytest

from storage_core.checkpoint import read_producer_snapshot
from storage_core.filesystem import FileSystem
from storage_core.log.log_segments import LogSegments
from storage_core.log.producer_state_manager import ProducerStateManager, rebuild_producer_state
from storage_core.log_config import LogConfig
from storage_core.record.record_batches import RecordBatches
from storage_core.segment.log_segment import LogSegment
from tests.faults.observed_filesystem import before_each_call
from tests.log.producing import data


class WrittenLog:
    """Segments with batches in them; the first batch of each gives its base offset."""

    def __init__(self, directory, *segments):
        # The log files that were opened for reading.
        self.opened = []
        self.filesystem = before_each_call(self.note)
        self.directory = directory
        self.segments = LogSegments()
        for batches in segments:
            parsed = RecordBatches.parse(b"".join(batches))
            segment = LogSegment.create(
                self.filesystem, str(directory), parsed.base_offset, LogConfig(), now_ms=0
            )
            segment.append(parsed)
            self.segments.add(segment)

    def note(self, call, path):
        if call == "open" and path.endswith(".log"):
            self.opened.append(int(path[-24:-4]))

    def manager(self, **options):
        return ProducerStateManager(self.filesystem, str(self.directory), expiration_ms=86_400_000, **options)

    def rebuild(self, manager, last_offset, *, log_start_offset=0, now_ms=0, is_after_clean_shutdown=False):
        self.opened.clear()
        rebuild_producer_state(
            manager,
            self.segments,
            log_start_offset,
            last_offset,
            now_ms,
            is_after_clean_shutdown=is_after_clean_shutdown,
        )

    def rebuilt(self, last_offset, **options):
        manager = self.manager()
        self.rebuild(manager, last_offset, **options)
        return manager

    @property
    def snapshots(self):
        return sorted(int(path.name[:20]) for path in self.directory.glob("*.snapshot"))

    @property
    def replayed(self):
        return sorted(set(self.opened))


def known(manager):
    return {producer_id: state.last_offset for producer_id, state in manager.producers.items()}


@pytest.fixture
def log(tmp_path):
    """Four segments of two batches, each by a producer with the number of its offset."""
    segments = [[data(base, producer=base), data(base + 1, producer=base + 1)] for base in (0, 2, 4, 6)]
    written = WrittenLog(tmp_path, *segments)
    yield written
    written.segments.close_handlers()


def test_without_snapshots_everything_is_replayed(log):
    manager = log.rebuilt(8)
    assert known(manager) == {number: number for number in range(8)}
    assert manager.map_end_offset == 8
    assert log.replayed == [0, 2, 4, 6]


def test_snapshots_are_left_for_the_last_two_segments_and_the_end(log):
    log.rebuilt(8)
    assert log.snapshots == [4, 6, 8]
    path = str(log.directory / "00000000000000000004.snapshot")
    entries = read_producer_snapshot(FileSystem(), path)
    assert [entry.producer_id for entry in entries] == [0, 1, 2, 3]


def test_only_what_lies_after_the_newest_snapshot_is_replayed(log):
    log.rebuilt(8)
    (log.directory / "00000000000000000008.snapshot").unlink()
    assert known(log.rebuilt(8)) == {number: number for number in range(8)}
    assert log.replayed == [6]
    assert known(log.rebuilt(8)) == {number: number for number in range(8)}
    assert log.replayed == []


def test_a_damaged_snapshot_only_costs_a_longer_replay(log):
    log.rebuilt(8)
    for offset in (6, 8):
        (log.directory / f"{offset:020d}.snapshot").write_bytes(b"damaged")
    assert known(log.rebuilt(8)) == {number: number for number in range(8)}
    assert log.replayed == [4, 6]
    assert log.snapshots == [4, 6, 8]


def test_after_a_clean_shutdown_without_snapshots_there_were_no_producers(log):
    manager = log.rebuilt(8, is_after_clean_shutdown=True)
    assert manager.is_empty
    assert log.replayed == []
    assert log.snapshots == [4, 6, 8]


def test_a_truncation_after_a_rebuild(log):
    manager = log.rebuilt(8)
    log.rebuild(manager, 3)
    # The snapshots of 4, 6 and 8 went with what they tell of.
    assert known(manager) == {0: 0, 1: 1, 2: 2}
    assert log.snapshots == [3]


def test_who_knew_of_no_producer_replays_nothing_for_a_truncation(tmp_path):
    log = WrittenLog(tmp_path, [data(0), data(1)], [data(2), data(3)])
    manager = log.rebuilt(4)
    assert log.replayed == [0, 2]
    log.rebuild(manager, 1)
    assert log.replayed == []
    assert (manager.map_end_offset, log.snapshots) == (1, [1])
    log.segments.close_handlers()


def test_producers_before_the_log_start_are_not_loaded(log):
    manager = log.rebuilt(8, log_start_offset=3)
    assert known(manager) == {number: number for number in range(3, 8)}
    assert manager.map_end_offset == 8


def test_snapshots_at_or_before_the_log_start_do_not_count(log):
    log.rebuilt(8)
    manager = log.rebuilt(8, log_start_offset=8)
    assert manager.is_empty
    assert log.snapshots == []


def test_gaps_between_and_within_segments(tmp_path):
    log = WrittenLog(tmp_path, [data(3, producer=1)], [data(90, 5, producer=2), data(200, producer=3)])
    manager = log.rebuilt(500)
    assert known(manager) == {1: 3, 2: 94, 3: 200}
    assert (manager.map_end_offset, log.snapshots) == (500, [3, 90, 500])
    log.segments.close_handlers()


def test_an_empty_log(tmp_path):
    log = WrittenLog(tmp_path)
    log.segments.add(LogSegment.create(log.filesystem, str(tmp_path), 7, LogConfig(), now_ms=0))
    manager = log.rebuilt(7, log_start_offset=7)
    assert (manager.is_empty, manager.map_end_offset, log.snapshots) == (True, 7, [])
    log.segments.close_handlers()
