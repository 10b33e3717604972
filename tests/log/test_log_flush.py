"""What is forced to disk, and when: acks, flush.messages, flush.ms, roll and close."""

from __future__ import annotations

import os

import pytest

from storage_core.errors import InvalidRecordError, LogFailedError, StorageError
from storage_core.filesystem import FileSystem
from tests.log.logs import Clock, append, flushing_only_on_append, offsets, open_directory, small


class FlushedFileSystem(FileSystem):
    """Notes what is written and what is forced to disk; a flush can be made to fail."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.fails_at = None

    def open_for_writing(self, path, *, create=False, **options):
        opened = super().open_for_writing(path, create=create, **options)
        name = os.path.basename(path)
        write_at, flush = opened.write_at, opened.flush

        def note_write(pieces, position_bytes):
            self.calls.append(("write", name))
            write_at(pieces, position_bytes)

        def note_flush():
            self.calls.append(("flush", name))
            if self.fails_at is not None and name.endswith(self.fails_at):
                raise StorageError("Input/output error.", path=path)
            flush()

        opened.write_at, opened.flush = note_write, note_flush
        return opened

    def flush_directory(self, path):
        self.calls.append(("flush", os.path.basename(path)))
        super().flush_directory(path)

    def taken(self):
        """The calls since the last time this was asked, those for checkpoints left out."""
        calls, self.calls = self.calls, []
        return [call for call in calls if ".tmp" not in call[1]]


@pytest.fixture
def filesystem():
    return FlushedFileSystem()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def logs(tmp_path, filesystem, clock):
    with open_directory(tmp_path / "root", filesystem=filesystem, clock=clock) as opened:
        yield opened


@pytest.fixture
def log(logs, filesystem):
    log = logs.create("orders", config=small(1 << 20, index_interval_bytes=1 << 20))
    append(log)
    log.flush()
    filesystem.taken()
    return log


LOG = "00000000000000000000.log"


def test_acks_1_hands_the_records_to_the_operating_system(log, filesystem):
    append(log)
    assert filesystem.taken() == [("write", LOG)]
    assert (log.log_end_offset, log.recovery_point) == (2, 1)


@pytest.mark.parametrize(
    "options", [{"acks": -1}, {"acks": "all"}, {"flush": True}, {"acks": 0, "flush": True}]
)
def test_acks_all_returns_when_the_records_are_on_disk(log, filesystem, options):
    append(log, **options)
    assert filesystem.taken() == [("write", LOG), ("flush", LOG)]
    assert log.recovery_point == 2


def test_the_name_of_a_new_segment_is_forced_to_disk_with_its_first_records(log, filesystem):
    log.roll()
    filesystem.taken()
    append(log, flush=True)
    name = "00000000000000000001.log"
    assert filesystem.taken() == [("write", name), ("flush", name), ("flush", "orders-0")]
    append(log, flush=True)
    assert filesystem.taken() == [("write", name), ("flush", name)]


def test_acks_all_forces_to_disk_what_was_appended_before(log, filesystem):
    append(log, 3)
    append(log, acks=0)
    append(log, acks="all")
    assert filesystem.taken() == [("write", LOG)] * 5 + [("flush", LOG)]
    assert log.recovery_point == log.log_end_offset == 6


def test_acks_0_keeps_the_records_in_memory(log, filesystem, tmp_path):
    assert append(log, 3, acks=0).last_offset == 3
    assert filesystem.taken() == []
    assert (log.log_end_offset, log.high_watermark) == (4, 1)
    # Readers in this process see them.
    assert offsets(log) == [0, 1, 2, 3]
    assert filesystem.taken() == [("write", LOG)]
    assert log.high_watermark == 4


@pytest.mark.parametrize(
    "write",
    [
        append,
        lambda log: log.roll(),
        lambda log: log.flush(),
        lambda log: log.truncate_to(3),
        lambda log: log.delete_records(-1),
        lambda log: log.fetch(0, 1),
        lambda log: log.offset_for_timestamp(0),
        lambda log: log.update_high_watermark(0),
    ],
)
def test_records_in_memory_are_written_before_anything_else_happens(log, filesystem, write):
    append(log, 2, acks=0)
    write(log)
    assert filesystem.taken()[0] == ("write", LOG)


def test_at_most_a_mebibyte_is_kept_in_memory(logs, filesystem):
    log = logs.create("big", config=small(1 << 30))
    while not log.high_watermark:
        append(log, 100, acks=0)
    # The record with which it is full goes with it.
    assert log.high_watermark == 10_486
    assert log.log_end_offset == 10_500
    assert offsets(log) == list(range(log.log_end_offset))


def test_records_in_memory_roll_as_others_do(logs):
    log = logs.create("rolling", config=small())
    append(log, 25, acks=0)
    assert log.segment_base_offsets == (0,)
    log.flush()
    assert log.segment_base_offsets == (0, 10, 20)
    assert offsets(log) == list(range(25))


def test_a_close_writes_what_is_in_memory(tmp_path):
    with open_directory(tmp_path) as logs:
        append(logs.create("orders"), 3, acks=0)
    with open_directory(tmp_path) as logs:
        assert offsets(logs.get("orders")) == [0, 1, 2]


def test_flush_messages_forces_to_disk_after_so_many_records(logs, filesystem):
    log = logs.create("counted", config=small(1 << 20, index_interval_bytes=1 << 20, flush_messages=3))
    append(log, 2)
    assert ("flush", LOG) not in filesystem.taken()
    append(log)
    assert filesystem.taken() == [("write", LOG), ("flush", LOG), ("flush", "counted-0")]
    append(log, 3)
    assert filesystem.taken() == [("write", LOG)] * 3 + [("flush", LOG)]


def test_flush_ms_forces_to_disk_after_so_long(logs, filesystem, clock):
    log = flushing_only_on_append(logs).create("timed", config=small(1 << 20, flush_ms=600_000))
    append(log)
    clock.time_ms += 599_999
    append(log)
    assert ("flush", LOG) not in filesystem.taken()
    clock.time_ms += 1
    append(log)
    assert ("flush", LOG) in filesystem.taken()
    assert log.recovery_point == 3


def test_a_roll_forces_the_closed_segment_to_disk(log, filesystem):
    append(log)
    log.roll()
    flushed = [name for kind, name in filesystem.taken() if kind == "flush"]
    assert flushed[:3] == [LOG, "00000000000000000000.index", "00000000000000000000.timeindex"]
    assert log.recovery_point == 2


@pytest.mark.parametrize("fails_at", [".log", ".index", ".timeindex"])
def test_a_flush_that_failed_is_never_tried_again(log, filesystem, fails_at):
    append(log)
    filesystem.fails_at = fails_at
    with pytest.raises(StorageError, match="Input/output error"):
        log.flush()
    filesystem.fails_at = None
    filesystem.taken()
    for write in (
        log.flush,
        lambda: append(log),
        lambda: append(log, acks=0),
        log.roll,
        lambda: log.truncate_to(0),
    ):
        with pytest.raises(LogFailedError, match=r"Input/output error.*open it again"):
            write()
    assert filesystem.taken() == []
    assert log.recovery_point == 1
    assert offsets(log) == [0, 1]


def test_a_roll_forces_the_indexes_to_disk_of_records_that_are_there_already(log, filesystem):
    append(log, 3, flush=True)
    filesystem.taken()
    log.roll()
    calls = filesystem.taken()
    for suffix in ("log", "index", "timeindex"):
        assert ("flush", f"{0:020d}.{suffix}") in calls


def test_the_removal_of_deleted_records_is_on_disk(log, filesystem):
    # Later on, the name of the first segment alone tells where the log starts.
    append(log, 25)
    log.flush()
    filesystem.taken()
    log.delete_records(20)
    assert filesystem.taken()[-1] == ("flush", "orders-0")


def test_records_in_memory_tell_the_epoch_of_those_after_them(log):
    append(log, acks=0, leader_epoch=5)
    with pytest.raises(InvalidRecordError, match="Expected a leader epoch of at least 5"):
        append(log, acks=0, leader_epoch=4)
    append(log, acks=0)
    append(log)
    assert [(each.epoch, each.start_offset) for each in log.leader_epochs] == [(0, 0), (5, 1)]


def test_deleted_records_do_not_let_unflushed_ones_count_as_flushed(log, logs, filesystem):
    append(log, 5)
    filesystem.taken()
    log.delete_records(-1)
    assert ("flush", f"{0:020d}.log") in filesystem.taken()
    # Otherwise the file would not be on disk under the marker of a clean shutdown.
    assert log.recovery_point == log.log_end_offset
