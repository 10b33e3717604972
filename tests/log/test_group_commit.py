"""Many appends wait for one flush, and none returns before a flush that began after it."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from storage_core.errors import LogFailedError, StorageError
from storage_core.log.group_commit import GroupCommit
from tests.log.logs import append, flushing_only_on_append, offsets, small, table

LIMIT_SECONDS = 300


def never():
    return False


def wait_until(condition):
    """Wait for what another thread is about to do."""
    done = threading.Event()
    for _ in range(LIMIT_SECONDS * 1000):
        if condition():
            return
        done.wait(0.001)
    raise AssertionError("It has not happened.")


def in_threads(*works):
    """Start threads; each keeps what its work raises."""
    threads = []
    for work in works:

        def run(work=work):
            try:
                work()
            except Exception as error:  # noqa: BLE001  (told to who started it)
                threading.current_thread().error = error

        thread = threading.Thread(target=run)
        thread.error = None
        threads.append(thread)
        thread.start()
    return threads


def ended(threads):
    for thread in threads:
        thread.join(LIMIT_SECONDS)
        assert not thread.is_alive()
    return [thread.error for thread in threads]


# -- By itself ----------------------------------------------------------------------------------------------


def test_who_needs_no_flush_any_more_does_not_wait_for_one():
    group, others = GroupCommit(), []
    flushes = 0

    def flush_all():
        nonlocal flushes
        flushes += 1
        others.extend(in_threads(lambda: group.flush(lambda: group._waiting == 1, flush_all)))
        # It ends while this flush is still at work.
        ended(others)

    group.flush(never, flush_all)
    assert flushes == 1


def test_who_flushes_waits_for_those_who_came_the_last_time(monkeypatch):
    # However slow the machine: the wait ends when all are there.
    monkeypatch.setattr("storage_core.log.group_commit._LONGEST_WAIT_SECONDS", LIMIT_SECONDS)
    monkeypatch.setattr("storage_core.log.group_commit._LONGEST_SILENCE_SECONDS", LIMIT_SECONDS)
    group, flushes = GroupCommit(), []

    def flush_all():
        flushes.append(1)
        if len(flushes) == 1:
            others.extend(in_threads(*[lambda: group.flush(never, flush_all)] * 3))
            wait_until(lambda: group._waiting == 3)

    others = []
    group.flush(never, flush_all)
    ended(others)
    assert len(flushes) == 2
    # Three came together: three are expected.
    first, second = in_threads(*[lambda: group.flush(never, flush_all)] * 2)
    wait_until(lambda: group._waiting == 2)
    assert first.is_alive()
    assert second.is_alive()
    group.flush(never, flush_all)
    ended([first, second])
    assert len(flushes) == 3


def test_who_does_not_come_is_not_waited_for_for_ever():
    group, flushes = GroupCommit(), []
    group._expected = 10
    group.flush(never, lambda: flushes.append(1))
    assert len(flushes) == 1


# -- With a log ---------------------------------------------------------------------------------------------


@pytest.fixture
def log(logs):
    log = logs.create("orders", config=small(1 << 20))
    append(log, acks="all")
    return log


@pytest.fixture
def during_flush(monkeypatch):
    """Do something while the next fsync is at work."""
    works = []

    def fsync(descriptor):
        if works:
            works.pop(0)()

    monkeypatch.setattr(os, "fsync", fsync)
    return works.append


def test_64_threads_share_their_flushes(logs, log, monkeypatch):
    threads, appends = 64, 5
    working = threads
    lock = threading.Lock()
    group = log._state.group_commit

    def fsync(descriptor):
        # As slow a disk as can be: until no thread is left that could append meanwhile.
        wait_until(lambda: len(group._has_ended._waiters) + 1 >= working)

    monkeypatch.setattr(os, "fsync", fsync)
    flushes = logs._root.filesystem.statistics.flushes

    def work(name):
        nonlocal working
        for number in range(appends):
            info = log.append(table(b"%d %d" % (name, number)), acks="all")
            assert log.recovery_point > info.last_offset
        with lock:
            working -= 1

    assert ended(in_threads(*[lambda name=name: work(name) for name in range(threads)])) == [None] * threads
    assert threads * appends / (logs._root.filesystem.statistics.flushes - flushes) >= 20
    assert offsets(log) == list(range(1 + threads * appends))


def test_others_append_while_the_disk_is_at_work(log, during_flush):
    during_flush(lambda: append(log, 3))
    append(log, acks="all")
    # Their records are not taken for flushed.
    assert (log.log_end_offset, log.recovery_point) == (5, 2)
    log.flush()
    assert log.recovery_point == 5


def test_a_flush_that_fails_fails_all_who_wait_for_it_and_for_the_next(log, monkeypatch):
    calls, others = [], []
    group = log._state.group_commit

    def fail(descriptor):
        calls.append(descriptor)
        others.extend(in_threads(*[lambda: append(log, acks="all")] * 5))
        wait_until(lambda: group._waiting == 5)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match=r"Could not flush.*Input/output error"):
        append(log, acks="all")
    errors = ended(others)
    assert [type(error) for error in errors] == [StorageError] * 5
    assert "appended, but not flushed" in str(errors[0])
    # Once, and never again.
    assert len(calls) == 1
    with pytest.raises(LogFailedError, match="Input/output error"):
        append(log, acks="all")
    with pytest.raises(LogFailedError, match="Input/output error"):
        log.flush()
    assert len(calls) == 1
    assert log.recovery_point == 1
    # Before the log directory is closed.
    monkeypatch.undo()


def test_an_interrupt_during_a_flush_fails_the_log(log, during_flush):
    def interrupt():
        raise KeyboardInterrupt

    during_flush(interrupt)
    with pytest.raises(KeyboardInterrupt):
        append(log, acks="all")
    with pytest.raises(LogFailedError):
        append(log)


def test_a_flush_that_succeeds_counts_though_another_write_has_failed(log, during_flush, monkeypatch):
    def fail_another():
        monkeypatch.setattr(os, "pwritev", fail)
        with pytest.raises(StorageError, match="No space left"):
            append(log)

    def fail(descriptor, pieces, position_bytes):
        raise OSError(errno.ENOSPC, "No space left on device")

    during_flush(fail_another)
    assert append(log, acks="all").last_offset == 1
    assert log.recovery_point == 2
    # Before the log directory is closed.
    monkeypatch.undo()


def blocked(log, work):
    """Start a thread that changes the log, and wait until it has the log's lock and cannot go on."""
    (thread,) = in_threads(work)

    def has_lock():
        if not thread.is_alive():
            raise AssertionError(f"It did not wait for the flush: {thread.error!r}")
        if log._state.lock.acquire(blocking=False):
            log._state.lock.release()
            return False
        return True

    wait_until(has_lock)
    return thread


@pytest.mark.parametrize(
    ("change", "recovery_point", "log_end_offset"),
    [
        pytest.param(lambda log: log.roll(), 4, 4, id="roll"),
        pytest.param(lambda log: log.flush(), 4, 4, id="flush"),
        pytest.param(lambda log: log.truncate_to(2), 1, 2, id="truncate_to"),
        pytest.param(lambda log: log.truncate_fully_and_start_at(2), 2, 2, id="truncate_fully"),
        pytest.param(lambda log: log.truncate_fully_and_start_at(50), 50, 50, id="truncate_fully_ahead"),
        pytest.param(lambda log: log.delete_records(3), 4, 4, id="delete_records"),
        pytest.param(lambda log: log.close(), 4, 4, id="close"),
    ],
)
def test_what_changes_the_log_waits_for_the_flush_of_its_file(
    log, during_flush, change, recovery_point, log_end_offset
):
    append(log, 2)
    changing = []
    during_flush(lambda: changing.append(blocked(log, lambda: change(log))))
    append(log, acks="all")
    assert ended(changing) == [None]
    assert log._state.failure is None
    assert (log.recovery_point, log.log_end_offset) == (recovery_point, log_end_offset)


def test_records_after_a_truncation_are_not_taken_for_flushed(log, during_flush):
    append(log, 5)

    def truncate_and_append():
        log.truncate_to(2)
        append(log, 8)

    def at_work():
        # The truncation is over before the flush is: there is nothing of the file that it waits for.
        changing.append(blocked(log, truncate_and_append))

    changing = []
    during_flush(at_work)
    append(log, acks="all")
    ended(changing)
    assert log.log_end_offset == 10
    # The flush covered the offsets below; those above hold other records by now.
    assert log.recovery_point <= 2
    append(log, acks="all")
    assert log.recovery_point == 11


def test_a_roll_that_came_first_saves_the_flush(log, logs, during_flush):
    waiting, rolled = [], []

    def at_work():
        waiting.extend(in_threads(lambda: append(log, acks="all")))
        wait_until(lambda: log._state.group_commit._waiting == 1)
        rolled.append(blocked(log, log.roll))

    during_flush(at_work)
    append(log, acks="all")
    assert ended(waiting + rolled) == [None, None]
    assert log.recovery_point == 3
    assert log.segment_base_offsets == (0, 3)


def test_a_close_that_came_first_saves_the_flush(log, monkeypatch):
    monkeypatch.setattr(GroupCommit, "_wait_for_others", lambda group: log.close())
    assert append(log, acks="all").last_offset == 1
    assert log.recovery_point == 2


def test_flush_messages_and_flush_ms_count_from_the_shared_flush(logs, clock, monkeypatch):
    config = small(1 << 20, flush_messages=3, flush_ms=1000)
    log = flushing_only_on_append(logs).create("counted", config=config)
    calls = []
    append(log, acks="all")
    monkeypatch.setattr(os, "fsync", calls.append)
    append(log, 2)
    assert calls == []
    append(log, acks="all")
    # The third record since the last flush was flushed when it was written: nothing was left to do.
    assert len(calls) == 1
    clock.time_ms += 999
    append(log)
    assert len(calls) == 1
    append(log, acks="all")
    assert len(calls) == 2
    clock.time_ms += 999
    append(log)
    assert len(calls) == 2
    clock.time_ms += 1
    append(log)
    assert len(calls) == 3


def test_time_counts_from_the_beginning_of_a_shared_flush(logs, clock, during_flush):
    log = flushing_only_on_append(logs).create("timed", config=small(1 << 20, flush_ms=1000))
    append(log, acks="all")

    def take_long():
        append(log)
        clock.time_ms += 900

    during_flush(take_long)
    append(log, acks="all")
    # The record that came during the flush is older than the flush's end.
    clock.time_ms += 100
    append(log)
    assert log.recovery_point == 4
