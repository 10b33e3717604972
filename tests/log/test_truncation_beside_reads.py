"""A read that a truncation meets: it gives the records of one history, up to its end or up to an error that says so."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import threading

import pytest

from storage_core import LogDirectory
from storage_core.errors import LogTruncationError, OffsetOutOfRangeError, OptionError, SegmentLogError
from storage_core.options import options_of
from storage_core.scan import plan_scan, project, read_task, record_schema
from storage_core.scan import read as read_module
from tests.faults.observed_filesystem import ObservedFileSystem, ObservedSimulation
from tests.log.logs import (
    NOW_MS,
    append,
    contents,
    crash,
    flip,
    name,
    offsets,
    open_directory,
    small,
    table,
    value,
)

COUNT = 12
# A batch of 100 bytes for each record, four to a segment, so that reads go over several files.
SMALL = {"segment_bytes": 400, "batch_size": 1, "segment_index_bytes": 1200}
CONFIG = small(**SMALL)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    """Let a read of a file take several calls."""
    monkeypatch.setattr(read_module, "WINDOW_BYTES", 250)


def old(offset: int) -> bytes:
    return value(offset)


def other(offset: int) -> bytes:
    """Return another value of the same size, so that batches replace others exactly."""
    return value(1000 + offset)


def longer(offset: int) -> bytes:
    """Batches begin where others were in the middle."""
    return b"%d:" % offset + b"x" * 57


def rows(records):
    """Their timestamps are their offsets, whenever they are appended."""
    return table(*(value for _, value in records), timestamps=[NOW_MS + offset for offset, _ in records])


class Truncation:
    """What happens to the log, and what it holds then: the old records below an offset, and others from there on."""

    def __init__(self, offset, made=None, count=COUNT, *, is_full=False, leader_epoch=None) -> None:
        self.offset = offset
        self._made = made
        self._count = count
        self._is_full = is_full
        self._leader_epoch = leader_epoch

    def __call__(self, log) -> None:
        log.truncate_fully_and_start_at(0) if self._is_full else log.truncate_to(self.offset)
        if self._made:
            log.append(rows(self.records[self.offset :]), leader_epoch=self._leader_epoch)

    @property
    def records(self) -> list[tuple[int, bytes]]:
        added = range(self.offset, self._count) if self._made else ()
        return OLD[: self.offset] + [(offset, self._made(offset)) for offset in added]


class Roll(Truncation):
    """Nothing is truncated."""

    def __init__(self) -> None:
        super().__init__(COUNT, old, COUNT + 2)

    def __call__(self, log) -> None:
        for offset in range(COUNT, self._count):
            log.roll()
            log.append(rows([(offset, old(offset))]))


OLD = [(offset, old(offset)) for offset in range(COUNT)]
TRUNCATIONS = {
    "of another size": Truncation(5, longer, 8),
    "nothing appended": Truncation(5),
    "of the same size": Truncation(5, other, COUNT),
    "more": Truncation(10, other, COUNT + 3),
    "to a segment's beginning": Truncation(8, other, 10),
    "under a new leader": Truncation(5, other, 8, leader_epoch=7),
    "fully": Truncation(0, other, 5, is_full=True),
}
ROLL = Roll()


def fill(log) -> None:
    """Write the old history, whatever was there before; and remove the files that were there before."""
    log.truncate_fully_and_start_at(0)
    log._state.clock.time_ms += 2 * log.config.file_delete_delay_ms
    log.flush()
    log.append(rows(OLD))
    log._state.checkpoint()


def rows_of(batches, found) -> None:
    for batch in batches:
        found += zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)


class InProcess:
    """Reads by the log that is truncated, of files in memory."""

    config = CONFIG

    def __init__(self, folder) -> None:
        self.writing = self.filesystem = self.make(folder)
        self.logs = open_directory(self.root, filesystem=self.writing, config=self.config)
        self.log = self.read_log = self.logs.get_or_create("orders")

    def make(self, folder):
        self.root = "/data"
        filesystem = ObservedSimulation()
        filesystem.make_directory(self.root)
        return filesystem

    def read(self, found, **options) -> None:
        rows_of(self.read_log.read(**options), found)

    def close(self) -> None:
        self.logs.close()


class ReadOnly(InProcess):
    """Reads as another process does: it knows the files, and nothing else."""

    def __init__(self, folder) -> None:
        super().__init__(folder)
        self.filesystem = self.other()
        self.reading = open_directory(self.root, read_only=True, filesystem=self.filesystem)
        self.read_log = self.reading.get("orders")

    def other(self):
        return ObservedSimulation(self.writing._root)

    def close(self) -> None:
        self.reading.close()
        super().close()


class Table(ReadOnly):
    """Reads the log directory as Spark does: planned in one place, task by task in others."""

    SCHEMA = project(record_schema(), ["offset", "value"])

    def read(self, found, *, start_offset=0, end_offset=None, **options) -> None:
        if end_offset is not None:
            options["ending_offsets"] = json.dumps({"orders": {"0": end_offset}})
        options |= {"starting_offsets": json.dumps({"orders": {"0": start_offset}}), "min_partitions": 3}
        options["subscribe"] = "orders"
        plan = plan_scan(self.filesystem, options_of([self.root], options))
        for task in pickle.loads(pickle.dumps(plan.tasks)):
            rows_of(read_task(self.filesystem, task, self.SCHEMA), found)


class OnDisk:
    """A file that is removed leaves its inode to the next one that is made."""

    def make(self, folder):
        self.root = folder
        return ObservedFileSystem()

    def other(self):
        return ObservedFileSystem()


class InProcessOnDisk(OnDisk, InProcess):
    pass


class GoneAtOnce(ReadOnly):
    """Files of removed segments are not kept."""

    config = small(**SMALL, file_delete_delay_ms=0)


class ReadOnlyOnDisk(OnDisk, GoneAtOnce):
    pass


READERS = {"in process": InProcess, "read-only": ReadOnly, "table": Table}
MORE_READERS = {
    "gone at once": GoneAtOnce,
    "in process, on disk": InProcessOnDisk,
    "read-only, on disk": ReadOnlyOnDisk,
}
READS = {
    "all": {},
    "from the middle": {"start_offset": 3},
    "beyond the truncation": {"end_offset": 7},
    "a condition": {"where": "timestamp >= '1970-01-01' AND offset > 2"},
    "committed": {"isolation_level": "read_committed"},
    "continuing after damage": {"mode": "DROPMALFORMED"},
    "without indexes": {"use_indexes": False},
}


def expected(records, *, start_offset=0, end_offset=None, where=None, **_):
    start_offset = 3 if where else start_offset
    return [
        each for each in records if start_offset <= each[0] and (end_offset is None or each[0] < end_offset)
    ]


def check(found, error, truncation, options=None, where="", *, is_begun=False) -> str:
    """Check that a read shows one history, to its end or to an error; return which.

    Args:
        found: The rows.
        error: What the read raised.
        truncation: What happened meanwhile.
        options: Those of the read.
        where: For messages.
        is_begun: Whether it may be still under way, or the appends that follow it.
    """
    options = options or {}
    before, after = expected(OLD, **options), expected(truncation.records, **options)
    if error is None:
        if "isolation_level" in options:
            # It ends at the high watermark, which others know from the last checkpoint only.
            before, after = before[: len(found)], after[: len(found)]
        if is_begun and len(found) >= truncation.offset:
            # Its records come one after the other, and segments go one after the other.
            after = after[: len(found)]
            before = before[: len(found)] if len(found) in (4, 8) else before
        assert found in (before, after), where
        return "old" if found == before else "new"
    assert truncation is not ROLL, (where, repr(error))
    assert isinstance(error, (LogTruncationError, OffsetOutOfRangeError, OptionError)), (where, repr(error))
    assert found in (before[: len(found)], after[: len(found)]), where
    if isinstance(error, LogTruncationError):
        assert "truncated" in str(error), where
        assert error.offset is not None, where
        assert error.offset <= truncation.offset, where
        return "truncated"
    # It was begun after the truncation, and asks for what there is no more.
    assert found == [], where
    return "out of range"


@pytest.fixture
def reader_of(tmp_path):
    """Yield a reader beside a log that was filled."""
    with contextlib.ExitStack() as stack:
        number = 0

        def make(kind):
            nonlocal number
            number += 1
            reader = {**READERS, **MORE_READERS}[kind](tmp_path / str(number))
            stack.callback(reader.close)
            fill(reader.log)
            return reader

        yield make


def attempt(reader, found, options=None):
    """Read; returns the error."""
    try:
        reader.read(found, **(options or {}))
    except SegmentLogError as error:
        return error
    return None


CASES = [
    *(("in process", name, "all") for name in TRUNCATIONS),
    *(
        ("read-only", name, "all")
        for name in ("of the same size", "of another size", "to a segment's beginning")
    ),
    *((kind, "fully", "all") for kind in ("read-only", "table")),
    ("table", "of another size", "all"),
    ("in process", "of another size", "committed"),
    *(("table", "of another size", read) for read in READS if read != "all"),
    *((kind, "roll", "all") for kind in READERS),
    ("in process", "roll", "committed"),
]


@pytest.mark.cases(4, 10)
@pytest.mark.parametrize(("kind", "name", "read"), CASES)
def test_between_any_two_calls_of_a_read(reader_of, kind, name, read):
    """The whole of the truncation, and of the appends, in front of each call of the reader, and after the last one."""
    reader, truncation, options = reader_of(kind), {**TRUNCATIONS, "roll": ROLL}[name], READS[read]
    outcomes = interleave(reader, truncation, options)
    assert ({"old"} if truncation is ROLL else {"old", "truncated"}) <= outcomes


@pytest.mark.parametrize("kind", MORE_READERS)
def test_where_removed_files_leave_their_inodes_to_others(reader_of, kind):
    assert {"old", "truncated"} <= interleave(reader_of(kind), TRUNCATIONS["of the same size"], {})


def interleave(reader, truncation, options) -> set[str]:
    at, outcomes = 1, set()
    while True:
        fill(reader.log)
        calls, found = [], []

        def observe(call, calls=calls, at=at):
            calls.append(call)
            if len(calls) == at:
                reader.filesystem.tell = None
                truncation(reader.log)
                reader.filesystem.tell = observe

        reader.filesystem.tell = observe
        error = attempt(reader, found, options)
        reader.filesystem.tell = None
        where = f"in front of {calls[at - 1] if len(calls) >= at else 'nothing more'}"
        outcomes.add(check(found, error, truncation, options, where))
        if len(calls) < at:
            assert at > 5
            return outcomes
        at += 1


@pytest.mark.parametrize("kind", ["in process", "read-only"])
@pytest.mark.parametrize("name", ["of the same size", "fully"])
def test_between_any_two_batches_that_are_taken(reader_of, kind, name):
    truncation = TRUNCATIONS[name]
    reader = reader_of(kind)
    for taken in range(20):
        fill(reader.log)
        found, error = [], None
        batches = reader.read_log.read()
        try:
            for _ in range(taken):
                rows_of([next(batches)], found)
            truncation(reader.log)
            rows_of(batches, found)
        except SegmentLogError as caught:
            error = caught
        except StopIteration:
            break
        # A read that has begun gets no others, and no fewer without being told.
        assert isinstance(error, LogTruncationError)
        assert found == OLD[: len(found)]
    assert taken == 7


class Stepping:
    """Work in a thread that makes as many file-system calls as it is told, and stops before the next one.

    It stops before it begins, too: a full truncation turns reads away before its first call.
    """

    def __init__(self, reader, work) -> None:
        self.calls = 0
        self.is_over = False
        self._reader = reader
        self._lock = reader.log._state.lock
        self._work = work
        self._calls_left = 0
        self._may_go_on = threading.Semaphore(0)
        self._has_stopped = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run)
        self._error = None

    def __enter__(self):
        self._reader.writing.tell = self.step
        self._reader.log._state.lock = SteppedLock(self._lock, self)
        self._thread.start()
        self._has_stopped.acquire()
        return self

    def __exit__(self, *_) -> None:
        while not self.is_over:
            self.go_on()
        self._thread.join()
        self._reader.writing.tell = None
        self._reader.log._state.lock = self._lock
        if self._error is not None:
            raise self._error

    def go_on(self, calls=1) -> None:
        if calls and not self.is_over:
            self._calls_left = calls
            self._may_go_on.release()
            self._has_stopped.acquire()

    def step(self, _call=None) -> None:
        if threading.current_thread() is self._thread:
            if not self._calls_left:
                self._has_stopped.release()
                self._may_go_on.acquire()
            self._calls_left -= 1
            self.calls += 1

    def _run(self) -> None:
        try:
            self.step()
            self._work()
        except BaseException as error:  # noqa: BLE001  (raised where the test waits)
            self._error = error
        self.is_over = True
        self._has_stopped.release()


class SteppedLock:
    """In the place of a log's lock: a thread that waits for it lets the one that has it go on until it is free."""

    def __init__(self, lock, stepping) -> None:
        self._lock = lock
        self._stepping = stepping

    def acquire(self) -> bool:
        while not self._lock.acquire(blocking=False):
            self._stepping.go_on()
        return True

    def release(self) -> None:
        self._lock.release()
        if not self._lock._is_owned():
            self._stepping.step()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_) -> None:
        self.release()


IN_STEPS = {name: TRUNCATIONS[name] for name in ("of another size", "fully")} | {"roll": ROLL}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("name", IN_STEPS)
def test_before_any_call_of_a_truncation(reader_of, kind, name):
    """Whole reads, while the writer pauses before it begins, and before each of its calls."""
    reader, truncation, looked_at, outcomes = reader_of(kind), IN_STEPS[name], 0, set()
    while True:
        fill(reader.log)
        with Stepping(reader, lambda: truncation(reader.log)) as writer:
            writer.go_on(looked_at)
            if writer.is_over:
                break
            # Until one read has to wait for the writer: what that passes is looked at in the next round.
            while not writer.is_over and writer.calls == looked_at:
                found = []
                error = attempt(reader, found)
                outcomes.add(check(found, error, truncation, where=f"after call {looked_at}", is_begun=True))
                looked_at += 1
                if writer.calls < looked_at:
                    writer.go_on()
    assert looked_at > 15
    assert {"old", "new"} <= outcomes


# -- Answers other than rows --------


QUESTIONS = {
    "log_end_offset": lambda log: log.log_end_offset,
    "high_watermark": lambda log: log.high_watermark,
    "segments": lambda log: log.segment_base_offsets,
    "largest timestamp": lambda log: log.offset_for_timestamp(-3),
    "by time": lambda log: log.offset_for_timestamp(NOW_MS + 7),
    "fetched": lambda log: log.fetch(7, 150),
    "fetched at the log end": lambda log: log.fetch(4, 1 << 20),
    "last stable": lambda log: log.last_stable_offset,
}


@pytest.mark.cases(3, 6)
@pytest.mark.parametrize("kind", ["in process", "read-only"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_an_answer_is_of_one_history(reader_of, kind, question):
    """Of the log before it or of the log after it, whichever call the truncation comes before."""
    ask, truncation = QUESTIONS[question], Truncation(5, longer, 9)

    reader = reader_of(kind)
    before = ask(reader.read_log)
    truncation(reader.log)
    after = ask(reader.read_log)
    at = 1
    while True:
        fill(reader.log)
        calls = []

        def observe(call, reader=reader, calls=calls, at=at):
            calls.append(call)
            if len(calls) == at:
                reader.filesystem.tell = None
                truncation(reader.log)

        reader.filesystem.tell = observe
        answer = ask(reader.read_log)
        reader.filesystem.tell = None
        assert answer in (before, after), f"in front of {calls[-1:]}"
        if len(calls) < at:
            break
        at += 1


# -- What is not concerned --------


@pytest.mark.parametrize("kind", READERS)
def test_a_read_before_the_truncation_goes_on(reader_of, kind):
    """Also while other logs of the directory are truncated."""
    at, reader = 1, reader_of(kind)
    neighbour = reader.logs.create("others")
    while True:
        fill(reader.log)
        append(neighbour, 3)
        calls, found = [], []

        def observe(call, reader=reader, calls=calls, at=at, neighbour=neighbour):
            calls.append(call)
            if len(calls) == at:
                reader.filesystem.tell = None
                neighbour.truncate_to(1)
                Truncation(8, other)(reader.log)

        reader.filesystem.tell = observe
        reader.read(found, end_offset=8)
        reader.filesystem.tell = None
        assert found == OLD[:8]
        if len(calls) < at:
            break
        at += 1


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_a_batch_that_goes_as_a_whole_counts_from_its_first_record(tmp_path, fail_on_data_loss):
    with open_directory(tmp_path) as logs:
        log = logs.create("orders")
        log.append(table(*map(old, range(3))))
        log.append(table(*map(old, range(3, 8))))
        batches = log.read(0, 5, columns=["offset"], fail_on_data_loss=fail_on_data_loss)
        log.truncate_to(5)
        log.append(table(*map(other, range(5))))
        if fail_on_data_loss:
            with pytest.raises(LogTruncationError) as caught:
                list(batches)
            assert (caught.value.offset, caught.value.last_offset) == (3, 4)
            assert str(caught.value.path) == log.path
        else:
            assert list(batches) == []


def test_with_loss_allowed_nothing_of_the_new_history_comes_out(reader_of, caplog):
    reader = reader_of("read-only")
    batches = reader.read_log.read(fail_on_data_loss=False)
    found = []
    for _ in range(3):
        rows_of([next(batches)], found)
    Truncation(7, other)(reader.log)
    rows_of(batches, found)
    assert found == OLD[: len(found)]
    assert "truncated to offset 7" in caplog.text


def test_a_read_outlives_the_object_that_planned_it(tmp_path):
    """Who opens the log directory next, and truncates, tells it all the same."""
    with open_directory(tmp_path, config=CONFIG) as logs:
        log = logs.create("orders")
        fill(log)
        unaffected, batches = log.read(0, 5), log.read()
    with open_directory(tmp_path, config=CONFIG) as logs:
        Truncation(5, other)(logs.get("orders"))
        found = []
        rows_of(unaffected, found)
        assert found == OLD[:5]
        with pytest.raises(LogTruncationError):
            rows_of(batches, found)


# -- Crashes and recoveries --------


def dropped_records(tmp_path):
    """Make a directory that was not closed, with a damaged batch and whole ones after it."""
    with open_directory(tmp_path, config=CONFIG) as logs:
        fill(logs.create("orders"))
    os.unlink(tmp_path / ".kafka_cleanshutdown")
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    flip(tmp_path / "orders-0" / name(8), 180)


def test_records_that_a_recovery_drops_are_not_mixed_with_those_that_follow(tmp_path):
    dropped_records(tmp_path)
    with LogDirectory.open(tmp_path, read_only=True) as reading:
        batches = reading.get("orders").read(mode="DROPMALFORMED")
        found = []
        rows_of([next(batches)], found)
        with open_directory(tmp_path, recovery="kafka", config=CONFIG) as logs:
            log = logs.get("orders")
            assert log.log_end_offset == 9
            append(log, 10)
        with pytest.raises(LogTruncationError, match="truncated to offset 9"):
            rows_of(batches, found)
        assert found == OLD[: len(found)]


def test_damage_is_damage_where_a_truncation_was_interrupted_after_it(tmp_path):
    """Only from the offset on to which it was under way, anything may be expected."""
    logs = open_directory(tmp_path, config=CONFIG)
    log = logs.create("orders")
    fill(log)
    noted = contents(tmp_path)[".segmentlog-truncations"]
    with pytest.raises(ZeroDivisionError), log._state.truncations_file.noted("orders", 0, 5):
        divmod(1, 0)
    crash(logs)
    for position, kind in ((180, "CorruptRecordError"), (380, "CorruptRecordError")):
        flip(tmp_path / "orders-0" / name(0), position)
        with pytest.raises(SegmentLogError) as caught, LogDirectory.open(tmp_path, read_only=True) as reading:
            offsets(reading.get("orders"))
        assert type(caught.value).__name__ == kind
        flip(tmp_path / "orders-0" / name(0), position)
    flip(tmp_path / "orders-0" / name(8), 280)
    with pytest.raises(LogTruncationError), LogDirectory.open(tmp_path, read_only=True) as reading:
        offsets(reading.get("orders"))
    flip(tmp_path / "orders-0" / name(8), 280)
    # The next open ends what was begun.
    before = contents(tmp_path)[".segmentlog-truncations"]
    open_directory(tmp_path, config=CONFIG).close()
    assert before == noted + b"begin orders 0 5\n"
    assert contents(tmp_path)[".segmentlog-truncations"] == before + b"end orders 0 5\n"
