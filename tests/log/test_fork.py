"""A process that was forked from the one that opened a log directory: it reads like any other process, and changes nothing."""

from __future__ import annotations

import gc
import multiprocessing
import sys
import threading

import pytest

from storage_core.errors import LogDirectoryLockedError, LogForkedError
from storage_core.filesystem import FileSystem
from storage_core.log import CleanerConfig
from storage_core.record.record_batches import ProducerSequence
from tests.faults.forked import in_child
from tests.faults.observed_filesystem import ObservedFileSystem
from tests.log.logs import (
    MARKER,
    append,
    contents,
    crash,
    names,
    offsets,
    open_directory,
    table,
    value,
    values,
)
from tests.log.producing import data


def refused(change) -> str:
    """Return what a change that is refused says."""
    with pytest.raises(LogForkedError) as caught:
        change()
    return str(caught.value)


def heard(connection):
    """Return what a child says; it does not take for ever."""
    assert connection.poll(60)
    return connection.recv()


@pytest.fixture
def log(logs):
    """14 records in two segments."""
    log = logs.create("orders")
    append(log, 14)
    return log


@pytest.fixture
def path(logs, log, tmp_path):
    return tmp_path / "data"


# -- What is refused --------


CHANGES_OF_A_LOG = {
    "append": lambda log: log.append(table(value(14))),
    "append to disk": lambda log: log.append(table(value(14)), acks="all"),
    "append of a producer": lambda log: log.append(table(value(14)), producer=ProducerSequence(1, 0, 0)),
    "append_as_leader": lambda log: log.append_as_leader(data(0)),
    "append_batches": lambda log: log.append_batches(data(14)),
    "transaction": lambda log: log.transaction(),
    "open_transactions": lambda log: log.open_transactions(),
    "abort_transaction": lambda log: log.abort_transaction(1),
    "end_transaction": lambda log: log.end_transaction(1, 0, is_abort=True),
    "roll": lambda log: log.roll(),
    "flush": lambda log: log.flush(),
    "truncate_to": lambda log: log.truncate_to(3),
    "truncate_fully_and_start_at": lambda log: log.truncate_fully_and_start_at(100),
    "delete_records": lambda log: log.delete_records(11),
    "apply_retention": lambda log: log.apply_retention(1 << 60),
    "clean": lambda log: log.clean(),
    "update_high_watermark": lambda log: log.update_high_watermark(3),
    "alter_config": lambda log: log.alter_config({"retention.ms": 1}),
    "close": lambda log: log.close(),
}
CHANGES_OF_A_DIRECTORY = {
    "create": lambda logs: logs.create("clicks"),
    "get_or_create": lambda logs: logs.get_or_create("clicks"),
    "delete": lambda logs: logs.delete("orders"),
    "alter_config": lambda logs: logs.alter_config("orders", {"retention.ms": 1}),
    "checkpoint": lambda logs: logs.checkpoint(),
    "apply_retention": lambda logs: logs.apply_retention(1 << 60),
    "clean": lambda logs: logs.clean(CleanerConfig()),
    "start_housekeeping": lambda logs: logs.start_housekeeping(),
    "close": lambda logs: logs.close(),
}


@pytest.mark.cases(5, 20)
@pytest.mark.parametrize("name", CHANGES_OF_A_LOG)
def test_no_change_of_a_log(log, path, name):
    before = contents(path)
    message = in_child(lambda: refused(lambda: CHANGES_OF_A_LOG[name](log)))
    assert "forked" in message
    assert "Open the log directory in this process, after the other one has closed it" in message
    assert str(path) in message
    assert contents(path) == before
    # The parent goes on as if nothing had happened.
    append(log)
    assert values(log) == [value(number) for number in range(15)]


@pytest.mark.cases(4, 10)
@pytest.mark.parametrize("name", CHANGES_OF_A_DIRECTORY)
def test_no_change_of_a_log_directory(logs, log, path, name):
    before = contents(path)
    in_child(lambda: refused(lambda: CHANGES_OF_A_DIRECTORY[name](logs)))
    assert contents(path) == before
    append(log)
    assert values(log) == [value(number) for number in range(15)]


def test_no_change_of_a_transaction(log, path):
    transaction = log.transaction()
    transaction.append(table(value(14)))
    before = contents(path)

    def change() -> None:
        refused(lambda: transaction.append(table(value(15))))
        refused(transaction.commit)
        refused(transaction.abort)
        with pytest.raises(LogForkedError), transaction:
            pass

    in_child(change)
    assert contents(path) == before
    transaction.commit()
    assert values(log, isolation_level="read_committed") == [value(number) for number in range(15)]


# -- Leaving the block --------


@pytest.mark.parametrize("ending", ["its end", "an error", "sys.exit"])
def test_leaving_the_block_changes_nothing(path, ending):
    def leave(logs) -> None:
        if ending == "its end":
            with logs:
                pass
            return
        with pytest.raises((ZeroDivisionError, SystemExit)) as caught, logs:
            sys.exit() if ending == "sys.exit" else divmod(1, 0)
        assert caught.value.__context__ is None

    root = path.with_name("left")
    with open_directory(root) as logs:
        log = logs.create("orders")
        append(log, 2)
        before = contents(root)
        in_child(lambda: leave(logs))
        assert contents(root) == before
        assert MARKER not in names(root)
        append(log)
        assert offsets(log) == [0, 1, 2]
    assert MARKER in names(root)


def test_leaving_the_block_of_a_transaction_by_an_error_keeps_the_error(log, path):
    def leave(transaction) -> list[str]:
        with pytest.raises(ZeroDivisionError) as caught, transaction:
            raise ZeroDivisionError
        return caught.value.__notes__

    transaction = log.transaction()
    transaction.append(table(value(14)))
    before = contents(path)
    (note,) = in_child(lambda: leave(transaction))
    assert "could not be aborted" in note
    assert "forked" in note
    assert contents(path) == before
    transaction.abort()


def test_what_is_given_up_in_the_child_writes_nothing(path):
    """Whatever the interpreter cleans up, in whatever order."""
    root = path.with_name("given-up")
    held = {}
    held["logs"] = logs = open_directory(root)
    held["log"] = log = logs.create("orders")
    append(log, 3)
    before = contents(root)

    def give_up() -> None:
        nonlocal logs, log
        held.clear()
        logs = log = None
        gc.collect()

    in_child(give_up)
    assert contents(root) == before
    assert offsets(log) == [0, 1, 2]
    logs.close()


# -- What is read --------


def test_reading_sees_what_any_other_process_sees(logs, log, path):
    def look() -> dict[str, object]:
        return {
            "values": values(log),
            "committed": offsets(log, isolation_level="read_committed"),
            "log_end_offset": log.log_end_offset,
            "high_watermark": log.high_watermark,
            "log_start_offset": log.log_start_offset,
            "last_stable_offset": log.last_stable_offset,
            "recovery_point": log.recovery_point,
            "segments": log.segment_base_offsets,
            "epochs": [(each.epoch, each.start_offset) for each in log.leader_epochs],
            "fetched": log.fetch(3, 100).base_offset,
            "found": log.offset_for_timestamp(-3).offset,
            "topic": (log.topic, log.partition, log.topic_id),
            "logs": [each.topic for each in logs.logs()],
            "is there": [("orders", 0) in logs, ("clicks", 0) in logs],
        }

    def look_by_another_process() -> dict[str, object]:
        nonlocal log, logs
        with open_directory(path, read_only=True) as logs:
            log = logs.get("orders")
            return look()

    logs.checkpoint()
    before = contents(path)
    seen = in_child(look)
    assert seen == in_child(look_by_another_process)
    assert seen["values"] == [value(number) for number in range(14)]
    assert seen["log_end_offset"] == 14
    assert contents(path) == before


def test_reading_never_grows_old(logs, log):
    """What the parent does after the fork is seen, as it would be by any other process."""
    orders, answers = multiprocessing.Pipe(), multiprocessing.Pipe()

    def look() -> None:
        for _ in range(3):
            orders[1].recv()
            answers[0].send((values(log), log.log_end_offset, [each.topic for each in logs.logs()]))

    child = multiprocessing.get_context("fork").Process(target=look)
    child.start()

    def seen():
        orders[0].send(None)
        return heard(answers[1])

    assert seen() == ([value(number) for number in range(14)], 14, ["orders"])
    log.truncate_to(5)
    log.append(table(b"other"))
    logs.create("clicks")
    assert seen() == ([*map(value, range(5)), b"other"], 6, ["clicks", "orders"])
    logs.close()
    assert seen() == ([*map(value, range(5)), b"other"], 6, ["clicks", "orders"])
    child.join(60)
    assert child.exitcode == 0


def test_a_read_begun_before_the_fork_goes_on_in_both(log):
    read = log.read(columns=["offset"], max_records_per_partition=1)
    before = next(read)["offset"].to_pylist()

    def rest() -> list[int]:
        return [offset for batch in read for offset in batch["offset"].to_pylist()]

    assert before + in_child(rest) == list(range(14))
    assert before + rest() == list(range(14))


def test_a_directory_that_was_opened_read_only_is_as_good_in_the_child(logs, log, path):
    log.flush()
    with open_directory(path, read_only=True) as reading:
        inherited = reading.get("orders")

        def look():
            with reading:
                return offsets(inherited), reading.get("orders").log_end_offset, len(reading.logs())

        assert in_child(look) == (list(range(14)), 14, 1)
        assert offsets(inherited) == list(range(14))


# -- Opening it anew --------


def test_the_child_opens_it_after_the_parent_has_closed_it(logs, log, path):
    def write() -> None:
        with pytest.raises(LogDirectoryLockedError):
            open_directory(path)
        answers[0].send("locked")
        orders[1].recv()
        with open_directory(path) as opened:
            append(opened.get("orders"), 3)
            # The copies of what the parent had take nothing away from it.
            refused(log.close)
            refused(logs.close)
            answers[0].send(offsets(opened.get("orders")))

    orders, answers = multiprocessing.Pipe(), multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=write)
    child.start()
    assert heard(answers[1]) == "locked"
    logs.close()
    orders[0].send(None)
    assert heard(answers[1]) == list(range(17))
    child.join(60)
    assert child.exitcode == 0
    with open_directory(path) as again:
        assert offsets(again.get("orders")) == list(range(17))


def test_the_lock_stays_with_the_parent(logs, log, path):
    """A lock belongs to a process, whatever another one closes."""

    def give_up() -> None:
        nonlocal logs, log
        crash(logs)
        logs = log = None
        gc.collect()

    in_child(give_up)

    def open_elsewhere() -> None:
        with pytest.raises(LogDirectoryLockedError):
            open_directory(path)

    in_child(open_elsewhere)
    append(log)


def test_the_same_file_system_serves_parent_and_child(tmp_path):
    """The pool of open files belongs to the process: a child does not close what the parent's has in it."""
    filesystem = FileSystem(max_open_files=2)
    with open_directory(tmp_path / "parent", filesystem=filesystem) as logs:
        log = logs.create("orders")
        append(log, 3)

        def write() -> list[int]:
            with open_directory(tmp_path / "child", filesystem=filesystem) as own:
                append(own.create("clicks"), 25)
                return offsets(own.get("clicks"))

        assert in_child(write) == list(range(25))
        append(log, 22)
        assert offsets(log) == list(range(25))


# -- Threads at work when the child was forked --------


class Held:
    """Stops a thread at its n-th call, until it is told to go on."""

    def __init__(self) -> None:
        self.filesystem = ObservedFileSystem()
        self.filesystem.tell = self._hold
        self._held = threading.Semaphore(0)
        self._may_go_on = threading.Event()
        self._thread: threading.Thread | None = None
        self._calls_left = 0

    def start(self, work, number: int) -> bool:
        """Begin something; whether it is held now, and not done already."""
        self._calls_left = number
        self._thread = threading.Thread(target=self._run, args=(work,))
        self._thread.start()
        assert self._held.acquire(timeout=300)
        return self._calls_left == 0

    def end(self) -> None:
        self._may_go_on.set()
        self._thread.join()

    def _run(self, work) -> None:
        work()
        self._held.release()

    def _hold(self, call: str) -> None:
        if threading.current_thread() is self._thread and self._calls_left:
            self._calls_left -= 1
            if not self._calls_left:
                self._held.release()
                self._may_go_on.wait()


AT_WORK = {
    "append": lambda logs, log, path: log.append(table(b"x" * 850)),
    "roll": lambda logs, log, path: log.roll(),
    "flush": lambda logs, log, path: log.append(table(b"x"), acks="all"),
    "truncation": lambda logs, log, path: log.truncate_to(3),
    "read": lambda logs, log, path: values(log),
    "look by another object": lambda logs, log, path: (
        open_directory(path, read_only=True, filesystem=log._filesystem).get("orders").high_watermark
    ),
    "create": lambda logs, log, path: logs.create("clicks"),
    "checkpoint": lambda logs, log, path: logs.checkpoint(),
    "open": lambda logs, log, path: open_directory(path / ".." / "other", filesystem=log._filesystem).close(),
    "close": lambda logs, log, path: logs.close(),
}


QUICK_WORK = ("append", "read", "close")


@pytest.mark.cases(1, 3)
@pytest.mark.parametrize(
    "work", [pytest.param(name, marks=[] if name in QUICK_WORK else pytest.mark.thorough) for name in AT_WORK]
)
def test_no_thread_that_was_at_work_keeps_the_child_waiting(tmp_path, work):
    """The child has a copy of each lock, and no thread that would release it.

    The thread is held at each of its first calls, and at some of those that follow.
    """
    number = 1
    while _fork_while_held(tmp_path / str(number), AT_WORK[work], number):
        number += 1 + number // 4
    # It was held at some.
    assert number > 1


def _fork_while_held(folder, work, number) -> bool:
    held = Held()
    filesystem = held.filesystem
    path, other = folder / "data", folder / "other"
    logs = open_directory(path, filesystem=filesystem)
    log = logs.create("orders")
    append(log, 12)
    logs.checkpoint()
    append(log, acks="all")
    open_directory(other).close()
    is_held = held.start(lambda: work(logs, log, path), number)

    def look() -> list[object]:
        if not logs._is_closed:
            refused(lambda: append(log))
            refused(log.close)
            refused(lambda: logs.create("visits"))
            refused(logs.close)
        with logs:
            pass
        seen = [offsets(log, 0, 3), log.log_end_offset >= 3]
        with open_directory(path, read_only=True) as reading:
            seen += [offsets(reading.get("orders"), 0, 3), reading.get("orders").high_watermark >= 3]
        # With the file system of the parent, in which files of the parent's are open.
        with open_directory(folder / "own", filesystem=filesystem) as own:
            append(own.create("visits"), 12)
            seen.append(offsets(own.get("visits")))
        return seen

    try:
        if is_held:
            assert in_child(look) == [[0, 1, 2], True, [0, 1, 2], True, list(range(12))]
    finally:
        held.end()
        logs.close()
    return is_held
