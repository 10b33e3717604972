"""What a log directory does by itself once it is asked to: when, in which order, and that it ends."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from pathlib import Path

import pytest

from storage_core import CleanerConfig, FileSystem, LogConfig, LogDirectory
from storage_core.errors import LogClosedError, LogReadOnlyError, OptionError, StorageError
from storage_core.log.background import PeriodicTask, PeriodicTasks, tasks_of_logs
from tests.log.logs import NOW_MS, append, names, offsets, open_directory, small, table
from tests.log.producing import data

DAY_MS = 86_400_000


def wait_until(is_true, seconds=300):
    """Wait for another thread; the limit is reached only if something is wrong."""
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


def threads():
    return sorted(each.name for each in threading.enumerate() if each.name.startswith("segmentlog-"))


@pytest.fixture
def ran():
    return []


@pytest.fixture
def task(ran):
    def task(name, interval_ms, error=None):
        def run():
            ran.append(name)
            if error is not None:
                raise error

        return PeriodicTask(name, interval_ms, run)

    return task


# -- When --------


def test_a_task_is_done_when_its_time_has_come(clock, task, ran):
    tasks = PeriodicTasks("test", clock, [task("a", 100), task("b", 250)])
    for advance_ms, expected in [(99, []), (1, ["a"]), (99, []), (1, ["a"]), (50, ["b"]), (50, ["a"])]:
        clock.time_ms += advance_ms
        tasks.run_due()
        assert ran == expected
        ran.clear()


def test_what_was_missed_is_done_once(clock, task, ran):
    tasks = PeriodicTasks("test", clock, [task("a", 100)])
    clock.time_ms += 1000
    tasks.run_due()
    tasks.run_due()
    assert ran == ["a"]


def test_a_rare_task_is_done_for_the_first_time_after_half_a_minute(clock, task, ran):
    tasks = PeriodicTasks("test", clock, [task("a", 300_000)])
    for advance_ms, expected in [(29_999, 0), (1, 1), (299_999, 1), (1, 2)]:
        clock.time_ms += advance_ms
        tasks.run_due()
        assert len(ran) == expected


def test_a_clock_that_was_set_back_keeps_no_task_from_its_turn(clock, task, ran):
    tasks = PeriodicTasks("test", clock, [task("a", 100)])
    clock.time_ms -= DAY_MS
    assert tasks.wait_seconds() <= 0.1
    clock.time_ms += 100
    tasks.run_due()
    assert ran == ["a"]


@pytest.mark.parametrize(("interval_ms", "seconds"), [(0, 0.01), (500, 0.5), (300_000, 1.0)])
def test_waits_are_neither_busy_loops_nor_long(clock, task, interval_ms, seconds):
    assert PeriodicTasks("test", clock, [task("a", interval_ms)]).wait_seconds() == seconds


def test_a_task_that_fails_is_done_again_and_keeps_no_other_from_it(clock, task, ran, caplog):
    tasks = PeriodicTasks("test", clock, [task("a", 100, OSError("no space")), task("b", 100)])
    for _ in range(2):
        clock.time_ms += 100
        tasks.run_due()
    assert ran == ["a", "b", "a", "b"]
    assert caplog.text.count("a failed, and is retried later: no space") == 2


def test_after_the_end_nothing_is_begun(clock, ran):
    def end():
        ran.append("a")
        tasks.stop()

    tasks = PeriodicTasks(
        "test", clock, [PeriodicTask("a", 100, end), PeriodicTask("b", 100, lambda: ran.append("b"))]
    )
    for _ in range(2):
        clock.time_ms += 100
        tasks.run_due()
    assert ran == ["a"]


# -- What --------


@pytest.fixture
def tasks(logs, clock):
    """Return the tasks of `logs`, by name; each may be run by itself."""
    made = tasks_of_logs(logs._checkpoints, logs._deleted_logs, logs.apply_retention, 1000)
    return {task.name: task for task in made}


def test_old_segments_are_deleted(logs, clock, tasks):
    log = logs.create("orders", config=small(retention_ms=DAY_MS))
    append(log, 25, timestamps=[NOW_MS] * 25)
    tasks["Deleting old segments"].run()
    assert log.segment_base_offsets == (0, 10, 20)
    clock.time_ms += DAY_MS + 1
    tasks["Deleting old segments"].run()
    assert log.segment_base_offsets == (25,)
    assert tasks["Deleting old segments"].interval_ms == 1000


@pytest.mark.parametrize("cleaner", [None, CleanerConfig(backoff_ms=1 << 40)])
def test_who_cleans_compacted_logs_deletes_their_segments_too(tmp_path, cleaner):
    with LogDirectory.open(tmp_path) as logs:
        for topic, policy in (("both", "compact,delete"), ("deleted", "delete")):
            log = logs.create(topic, config=small(cleanup_policy=policy, retention_bytes=0))
            log.append(table(b"a", keys=[b"k"]))
        logs.start_housekeeping(retention_check_interval_ms=1, cleaner=cleaner)
        wait_until(lambda: logs.get("deleted").log_start_offset == 1)
        append(logs.get("deleted"))
        # By now, everybody had a turn.
        wait_until(lambda: logs.get("deleted").log_start_offset == 2)
        assert logs.get("both").log_start_offset == (1 if cleaner is None else 0)


def test_a_file_that_cannot_be_deleted_is_tried_again_and_the_others_go(
    logs, clock, tasks, monkeypatch, caplog
):
    log = logs.create("orders", config=small(file_delete_delay_ms=5000))
    append(log, 35)
    log.delete_records(25)
    delete = FileSystem.delete

    def refuse_the_first(filesystem, path):
        if path.endswith(f"{0:020}.log.deleted"):
            raise StorageError("Permission denied.", path=path)
        return delete(filesystem, path)

    def left():
        return [each for each in names(log.path) if each.endswith(".log.deleted")]

    assert len(left()) == 2
    clock.time_ms += 5000
    with monkeypatch.context() as refusing:
        refusing.setattr(FileSystem, "delete", refuse_the_first)
        tasks["Deleting files"].run()
    assert left() == [f"{0:020}.log.deleted"]
    assert "could not be deleted yet: Permission denied." in caplog.text
    for advance_ms, expected in [(59_999, 1), (1, 0)]:
        clock.time_ms += advance_ms
        tasks["Deleting files"].run()
        assert len(left()) == expected


def test_producers_are_forgotten_as_seldom_as_a_broker_does(logs, clock, tasks):
    log = logs.create("orders")
    log.append_batches(data(0, producer=7, timestamp_ms=NOW_MS - DAY_MS + 1))
    forget = tasks["Forgetting producers"]
    for advance_ms, expected in [(1, [7]), (599_998, [7]), (1, [])]:
        clock.time_ms += advance_ms
        forget.run()
        assert list(log._state.producers.producers) == expected


def test_checkpoints_are_written(logs, path, tasks):
    log = logs.create("orders")
    append(log, 3, acks="all")
    tasks["Writing checkpoints"].run()
    assert (path / "recovery-point-offset-checkpoint").read_text() == "0\n1\norders 0 3\n"


@pytest.fixture
def path(logs):
    return Path(logs.path)


def test_a_log_that_is_closed_or_has_failed_is_left_out(logs, clock, tasks, monkeypatch, caplog):
    closed, failed, good = (
        logs.create(topic, config=small(retention_bytes=0)) for topic in ("closed", "failed", "good")
    )
    for log in (closed, failed, good):
        append(log, 12)
    closed.close()

    def fail(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(StorageError, match="Input/output error"):
            failed.flush()
    clock.time_ms += DAY_MS
    with caplog.at_level(logging.WARNING):
        for task in tasks.values():
            task.run()
    assert good.segment_base_offsets == (12,)
    assert caplog.text == ""


# -- The threads --------


def test_there_is_no_thread_unasked(tmp_path):
    with open_directory(tmp_path) as logs:
        append(logs.create("orders"))
        assert threads() == []


def test_the_threads_end_with_the_directory(tmp_path):
    logs = open_directory(tmp_path)
    logs.start_housekeeping()
    assert threads() == ["segmentlog-housekeeping"]
    logs.close()
    assert threads() == []
    with open_directory(tmp_path) as logs:
        logs.start_housekeeping(cleaner=CleanerConfig())
        assert threads() == ["segmentlog-cleaner", "segmentlog-housekeeping"]
    assert threads() == []


def test_old_segments_go_by_themselves(tmp_path):
    config = LogConfig(internal_segment_bytes=1000, retention_bytes=0, file_delete_delay_ms=0)
    with LogDirectory.open(tmp_path, config=config) as logs:
        log = logs.create("orders")
        append(log, 25)
        logs.start_housekeeping(retention_check_interval_ms=10)
        wait_until(lambda: log.segment_base_offsets == (25,))
        append(log)
        wait_until(lambda: log.segment_base_offsets == (26,))
        # One that is made meanwhile is looked after as well.
        other = logs.create("payments")
        append(other)
        wait_until(lambda: other.log_start_offset == 1)


def test_compacted_logs_are_cleaned_by_themselves(tmp_path):
    with LogDirectory.open(tmp_path, config=LogConfig(cleanup_policy="compact")) as logs:
        log = logs.create("orders")
        for number in range(20):
            log.append(table(b"%d" % number, keys=[b"key"]))
        log.roll()
        logs.start_housekeeping(cleaner=CleanerConfig(backoff_ms=10))
        wait_until(lambda: offsets(log) == [19])


def test_closing_waits_for_what_is_being_done(tmp_path, monkeypatch):
    logs = open_directory(tmp_path, clock=None)
    begun, goes_on, done = threading.Event(), threading.Event(), []

    def slow(*arguments, **options):
        begun.set()
        goes_on.wait(300)
        # The directory's own lock is free.
        logs.logs()
        done.append(True)

    monkeypatch.setattr("storage_core.log.log_directory.apply_retention_to_all", slow)
    logs.start_housekeeping(retention_check_interval_ms=1)
    assert begun.wait(300)
    closing = threading.Thread(target=logs.close)
    closing.start()
    wait_until(logs._is_closing.is_set)
    assert done == []
    goes_on.set()
    closing.join(300)
    assert done == [True]
    with pytest.raises(LogClosedError):
        logs.logs()


@pytest.mark.parametrize("interval_ms", [0, -1])
def test_an_interval_is_positive(logs, interval_ms):
    with pytest.raises(OptionError, match=f"at least 1, found {interval_ms}"):
        logs.start_housekeeping(retention_check_interval_ms=interval_ms)
    assert threads() == []


def test_it_is_started_once(logs):
    logs.start_housekeeping()
    with pytest.raises(OptionError, match="already running"):
        logs.start_housekeeping()


def test_a_directory_that_is_closed_or_only_read_has_none(tmp_path):
    logs = open_directory(tmp_path)
    logs.close()
    with pytest.raises(LogClosedError):
        logs.start_housekeeping()
    with open_directory(tmp_path, read_only=True) as reader, pytest.raises(LogReadOnlyError):
        reader.start_housekeeping()
