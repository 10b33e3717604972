"""What is forced to disk, and when: acks, flush.messages, flush.ms, roll and close."""

from __future__ import annotations

import errno
import os
import threading
import time

import pytest

from storage_core.errors import LogFailedError, StorageError
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
        """Return the calls since the last time this was asked, those for checkpoints left out."""
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


def test_acks_0_writes_like_1_and_tells_no_offset(log, filesystem):
    info = append(log, acks=0)
    assert (info.first_offset, info.last_offset, info.offset_of_max_timestamp) == (-1, -1, -1)
    assert info.batch_count == 1
    assert filesystem.taken() == [("write", LOG)]
    assert (log.log_end_offset, log.recovery_point) == (2, 1)


@pytest.mark.parametrize("acks", [-1, "all"])
def test_acks_all_returns_when_the_records_are_on_disk(log, filesystem, acks):
    append(log, acks=acks)
    assert filesystem.taken() == [("write", LOG), ("flush", LOG)]
    assert log.recovery_point == 2


def test_the_name_of_a_new_segment_is_forced_to_disk_with_its_first_records(log, filesystem):
    log.roll()
    filesystem.taken()
    append(log, acks="all")
    name = "00000000000000000001.log"
    assert filesystem.taken() == [("write", name), ("flush", name), ("flush", "orders-0")]
    append(log, acks="all")
    assert filesystem.taken() == [("write", name), ("flush", name)]


def test_acks_all_forces_to_disk_what_was_appended_before(log, filesystem):
    append(log, 3)
    append(log, acks=0)
    append(log, acks="all")
    assert filesystem.taken() == [("write", LOG)] * 5 + [("flush", LOG)]
    assert log.recovery_point == log.log_end_offset == 6


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
        log.roll,
        lambda: log.truncate_to(0),
    ):
        with pytest.raises(LogFailedError, match=r"Input/output error.*open it again"):
            write()
    assert filesystem.taken() == []
    assert log.recovery_point == 1
    assert offsets(log) == [0, 1]


def test_a_roll_forces_the_indexes_to_disk_of_records_that_are_there_already(log, filesystem):
    append(log, 3, acks="all")
    filesystem.taken()
    log.roll()
    calls = filesystem.taken()
    for suffix in ("log", "index", "timeindex"):
        assert ("flush", f"{0:020d}.{suffix}") in calls


def test_deleted_records_do_not_let_unflushed_ones_count_as_flushed(log, logs, filesystem):
    append(log, 5)
    filesystem.taken()
    log.delete_records(-1)
    assert ("flush", f"{0:020d}.log") in filesystem.taken()
    # Otherwise the file would not be on disk under the marker of a clean shutdown.
    assert log.recovery_point == log.log_end_offset


# -- By time --------


def test_flush_ms_needs_no_further_append(logs, clock):
    log = logs.create("timed", config=small(1 << 20, flush_ms=10))
    append(log)
    append(log)
    clock.time_ms += 10
    # A thread of its own looks at it now and then.
    for _ in range(6000):
        if log.recovery_point == 2:
            break
        time.sleep(0.01)
    assert log.recovery_point == 2


def test_a_thread_that_cannot_flush_fails_the_log(logs, clock, monkeypatch):
    log = logs.create("timed", config=small(1 << 20, flush_ms=10))

    def fail(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    append(log)
    monkeypatch.setattr(os, "fsync", fail)
    clock.time_ms += 10
    for _ in range(6000):
        if log._state.failure is not None:
            break
        time.sleep(0.01)
    with pytest.raises(LogFailedError, match="Input/output error"):
        append(log)
    monkeypatch.undo()


def test_there_is_no_thread_without_flush_ms(logs):
    logs.create("orders")
    assert not [each for each in threading.enumerate() if each.name == "segmentlog-flush"]
    logs.create("timed", config=small(flush_ms=1000))
    logs.create("also-timed", config=small(flush_ms=1000))
    assert len([each for each in threading.enumerate() if each.name == "segmentlog-flush"]) == 1
    logs.close()
    assert not [each for each in threading.enumerate() if each.name == "segmentlog-flush"]


def test_an_error_of_one_log_does_not_keep_others_from_being_flushed(logs, clock):
    class BrokenClock:
        def now_ms(self):
            raise MemoryError

    broken = logs.create("broken", config=small(1 << 20, flush_ms=1 << 40))
    log = logs.create("timed", config=small(1 << 20, flush_ms=1 << 40))
    append(broken)
    append(log)
    broken._state.clock = BrokenClock()
    clock.time_ms += 1 << 41
    logs._periodic_flush.flush_due()
    assert isinstance(broken._state.failure, MemoryError)
    assert log.recovery_point == 1
