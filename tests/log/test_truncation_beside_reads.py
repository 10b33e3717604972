"""A read that a truncation meets: it gives the records of one history, up to its end or up to an error that says so."""

from __future__ import annotations

import contextlib
import json
import os
import threading

import pytest

from storage_core import LogDirectory, read_table
from storage_core.errors import LogTruncationError, OffsetOutOfRangeError, OptionError, SegmentLogError
from storage_core.scan import read as read_module
from tests.faults.observed_filesystem import ObservedFileSystem, ObservedSimulation
from tests.log.logs import append, contents, crash, flip, name, offsets, open_directory, small, table, value

COUNT = 24
# Six batches of 100 bytes to a segment, so that reads go over several files.
CONFIG = small(600)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    """A read of a file takes several calls."""
    monkeypatch.setattr(read_module, "WINDOW_BYTES", 250)


def old(offset: int) -> bytes:
    return value(offset)


def other(offset: int) -> bytes:
    """Of the same size, so that batches stand where others stood."""
    return value(1000 + offset)


def longer(offset: int) -> bytes:
    """Batches begin where others were in the middle."""
    return b"%d:" % offset + b"x" * 57


class Truncation:
    """What happens to the log, and what it holds then."""

    def __init__(self, offset, made=None, count=COUNT, *, is_full=False, leader_epoch=None) -> None:
        self.offset = offset
        self._made = made
        self._count = count
        self._is_full = is_full
        self._leader_epoch = leader_epoch

    def __call__(self, log) -> None:
        log.truncate_fully_and_start_at(0) if self._is_full else log.truncate_to(self.offset)
        for offset in range(self.offset, self._count if self._made else 0):
            log.append(table(self._made(offset)), leader_epoch=self._leader_epoch)

    @property
    def records(self) -> list[tuple[int, bytes]]:
        added = range(self.offset, self._count) if self._made else ()
        return [(offset, old(offset)) for offset in range(self.offset)] + [
            (offset, self._made(offset)) for offset in added
        ]


TRUNCATIONS = {
    "nothing appended": Truncation(9),
    "as many of the same size": Truncation(9, other),
    "of another size": Truncation(9, longer),
    "more": Truncation(9, other, COUNT + 20),
    "to a segment's beginning": Truncation(12, other),
    "within the last segment": Truncation(20, other),
    "under a new leader": Truncation(9, other, leader_epoch=7),
    "fully": Truncation(0, other, is_full=True),
    "fewer": Truncation(9, longer, 14),
}


def fill(log) -> None:
    """The old history, whatever was there before; and the files that were there before are gone."""
    log.truncate_fully_and_start_at(0)
    log._state.clock.time_ms += 2 * log.config.file_delete_delay_ms
    log.flush()
    for offset in range(COUNT):
        log.append(table(old(offset)))
    log._state.checkpoint()


OLD = [(offset, old(offset)) for offset in range(COUNT)]


def rows_of(batches, found) -> None:
    for batch in batches:
        found += zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)


class InProcess:
    """Reads by the log that is truncated, of files in memory."""

    config = small(600)

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
    """Reads the log directory as a table."""

    def read(self, found, *, start_offset=0, end_offset=None, isolation_level="read_uncommitted", **options):
        end = "latest" if end_offset is None else json.dumps({"orders": {"0": end_offset}})
        start = json.dumps({"orders": {"0": start_offset}})
        whole = read_table(
            self.root, filesystem=self.filesystem, starting_offsets=start, ending_offsets=end,
            isolation_level=isolation_level, **options,
        )  # fmt: skip
        rows_of(whole.to_batches(), found)


class OnDisk:
    """A file that is removed leaves its inode to the next one that is made."""

    def make(self, folder):
        self.root = folder
        return ObservedFileSystem()

    def other(self):
        return ObservedFileSystem()


class InProcessOnDisk(OnDisk, InProcess):
    pass


class ReadOnlyOnDisk(OnDisk, GoneAtOnce):
    pass


class GoneAtOnce(ReadOnly):
    """Files of removed segments are not kept."""

    config = small(600, file_delete_delay_ms=0)


READERS = {"in process": InProcess, "read-only": ReadOnly, "table": Table}
MORE_READERS = {
    "gone at once": GoneAtOnce,
    "in process, on disk": InProcessOnDisk,
    "read-only, on disk": ReadOnlyOnDisk,
}
READS = {
    "all": {},
    "from the middle": {"start_offset": 7},
    "to behind the truncation": {"end_offset": 16},
    "a condition": {"where": "timestamp >= '1970-01-01' AND offset > 2"},
    "committed": {"isolation_level": "read_committed"},
    "going on behind damage": {"mode": "DROPMALFORMED"},
    "without indexes": {"use_indexes": False},
}


def expected(records, *, start_offset=0, end_offset=None, where=None, **_):
    start_offset = 3 if where else start_offset
    return [
        each for each in records if start_offset <= each[0] and (end_offset is None or each[0] < end_offset)
    ]


def check(found, error, truncation, options, where) -> str:
    """One history, to its end or to an error; says which."""
    before, after = expected(OLD, **options), expected(truncation.records, **options)
    if error is None and "isolation_level" in options:
        # It ends at the high watermark, which others know from the last checkpoint only.
        before, after = before[: len(found)], after[: len(found)]
    if error is None:
        assert found in (before, after), where
        return "old" if found == before else "new"
    assert isinstance(error, (LogTruncationError, OffsetOutOfRangeError, OptionError)), (where, repr(error))
    assert found in (before[: len(found)], after[: len(found)]), where
    if isinstance(error, LogTruncationError):
        assert "truncated" in str(error), where
        assert error.offset is not None
        assert error.offset <= truncation.offset, where
        return "truncated"
    # It was begun behind the truncation, and asks for what there is no more.
    assert found == [], where
    return "out of range"


@pytest.fixture
def reader_of(tmp_path):
    """A reader beside a log that was filled."""
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


CASES = [(name, "all") for name in TRUNCATIONS] + [
    ("of another size", read) for read in READS if read != "all"
]


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(("name", "read"), CASES)
def test_between_any_two_calls_of_a_read(reader_of, kind, name, read):
    """The whole of the truncation, and of the appends, in front of each call of the reader, and behind the last one."""
    reader, truncation, options = reader_of(kind), TRUNCATIONS[name], READS[read]
    at, outcomes = 1, set()
    while True:
        fill(reader.log)
        calls, found, error = [], [], None

        def observe(call, calls=calls, at=at):
            calls.append(call)
            if len(calls) == at:
                reader.filesystem.tell = None
                truncation(reader.log)
                reader.filesystem.tell = observe

        reader.filesystem.tell = observe
        try:
            reader.read(found, **options)
        except SegmentLogError as caught:
            error = caught
        reader.filesystem.tell = None
        where = f"in front of {calls[at - 1] if len(calls) >= at else 'nothing more'}"
        outcomes.add(check(found, error, truncation, options, where))
        if len(calls) < at:
            break
        at += 1
    assert at > 5
    assert {"truncated", "old"} <= outcomes


@pytest.mark.parametrize("kind", ["in process", "read-only"])
@pytest.mark.parametrize("name", ["as many of the same size", "of another size", "fully"])
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
        # Whoever has begun to read gets no others, and no fewer without being told.
        assert isinstance(error, LogTruncationError)
        assert found == OLD[: len(found)]
    assert taken > 5


class Held:
    """A thread that stops in front of its n-th call, until somebody else has to wait for it or is done."""

    def __init__(self, filesystem, work, number) -> None:
        self._filesystem = filesystem
        self._calls_left = number
        self._is_held = threading.Semaphore(0)
        self._may_go_on = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(work,))
        self.was_held = False

    def start(self) -> None:
        self._filesystem.tell = self._observe
        self._thread.start()
        self._is_held.acquire()

    def end(self) -> None:
        self._may_go_on.set()
        self._thread.join()

    def _run(self, work) -> None:
        work()
        self._is_held.release()

    def _observe(self, call) -> None:
        if threading.current_thread() is self._thread:
            self._calls_left -= 1
            if self._calls_left == 0:
                self.was_held = True
                self._is_held.release()
                self._may_go_on.wait()


class Releasing:
    """In the place of a log's lock: whoever waits for it lets the one who has it go on."""

    def __init__(self, lock, release) -> None:
        self._lock = lock
        self._release = release

    def acquire(self) -> bool:
        if not self._lock.acquire(blocking=False):
            self._release()
            self._lock.acquire()
        return True

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_) -> None:
        self.release()


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("name", ["of another size", "fully"])
def test_in_the_middle_of_a_truncation(reader_of, kind, name):
    """The writer is stopped in front of any of its calls, while somebody reads from the beginning to the end.

    In front of the first batch that is appended, there are no others than the old ones.
    """
    reader, truncation, at, seen = reader_of(kind), TRUNCATIONS[name], 1, set()
    state = reader.log._state
    lock = state.lock
    while True:
        fill(reader.log)
        found, error = [], None
        held = Held(reader.writing, lambda: truncation(reader.log), at)
        held.start()
        state.lock = Releasing(lock, held.end)
        try:
            reader.read(found)
        except SegmentLogError as caught:
            error = caught
        held.end()
        state.lock = lock
        reader.writing.tell = None
        if not held.was_held:
            break
        if error is None:
            assert found in (OLD[: len(found)], truncation.records[: len(found)]), f"call {at}"
        else:
            assert isinstance(error, (LogTruncationError, OffsetOutOfRangeError)), f"call {at}: {error!r}"
            assert found == OLD[: len(found)]
        seen.add("error" if error else len(found))
        at += 1
    assert at > 20
    assert len(seen) > 2


# -- Answers other than rows --------


QUESTIONS = {
    "log_end_offset": lambda log: log.log_end_offset,
    "high_watermark": lambda log: log.high_watermark,
    "segments": lambda log: log.segment_base_offsets,
    "largest timestamp": lambda log: log.offset_for_timestamp(-3),
    "by time": lambda log: log.offset_for_timestamp(100 + 15),
    "fetched": lambda log: log.fetch(15, 150),
    "fetched at the log end": lambda log: log.fetch(8, 1 << 20),
    "last stable": lambda log: log.last_stable_offset,
}


@pytest.mark.parametrize("kind", ["in process", "read-only"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_an_answer_is_of_one_history(reader_of, kind, question):
    """Of the log before it or of the log behind it, whichever call the truncation comes in front of."""
    ask, truncation = QUESTIONS[question], Truncation(9, longer, 18)

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
def test_a_read_in_front_of_the_truncation_goes_on(reader_of, kind):
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
                Truncation(16, other)(reader.log)

        reader.filesystem.tell = observe
        reader.read(found, end_offset=16)
        reader.filesystem.tell = None
        assert found == OLD[:16]
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
    Truncation(9, other)(reader.log)
    rows_of(batches, found)
    assert found == OLD[: len(found)]
    assert "truncated to offset 9" in caplog.text


def test_a_read_outlives_the_object_that_planned_it(tmp_path):
    """Who opens the log directory next, and truncates, tells it all the same."""
    with open_directory(tmp_path, config=CONFIG) as logs:
        log = logs.create("orders")
        fill(log)
        unaffected, batches = log.read(0, 9), log.read()
    with open_directory(tmp_path, config=CONFIG) as logs:
        Truncation(9, other)(logs.get("orders"))
        found = []
        rows_of(unaffected, found)
        assert found == OLD[:9]
        with pytest.raises(LogTruncationError):
            rows_of(batches, found)


def test_after_the_truncation_everything_is_as_ever(reader_of):
    for kind in READERS:
        reader = reader_of(kind)
        for truncation in TRUNCATIONS.values():
            truncation(reader.log)
            found = []
            reader.read(found)
            assert found == truncation.records
            fill(reader.log)


# -- Crashes and recoveries --------


def dropped_records(tmp_path):
    """A directory that was not closed, with a damaged batch and whole ones behind it."""
    with open_directory(tmp_path, config=CONFIG) as logs:
        fill(logs.create("orders"))
    os.unlink(tmp_path / ".kafka_cleanshutdown")
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    flip(tmp_path / "orders-0" / name(18), 3 * 100 + 80)


def test_records_that_a_recovery_drops_are_not_mixed_with_those_that_follow(tmp_path):
    dropped_records(tmp_path)
    with LogDirectory.open(tmp_path, read_only=True) as reading:
        batches = reading.get("orders").read(mode="DROPMALFORMED")
        found = []
        rows_of([next(batches)], found)
        with open_directory(tmp_path, recovery="kafka", config=CONFIG) as logs:
            log = logs.get("orders")
            assert log.log_end_offset == 21
            append(log, 10)
        with pytest.raises(LogTruncationError, match="truncated to offset 21"):
            rows_of(batches, found)
        assert found == OLD[: len(found)]


def test_damage_is_damage_where_a_truncation_was_interrupted_behind_it(tmp_path):
    """Only from the offset on to which it was under way, anything may be expected."""
    logs = open_directory(tmp_path, config=CONFIG)
    log = logs.create("orders")
    fill(log)
    with pytest.raises(ZeroDivisionError), log._state.truncations_file.noted("orders", 0, 9):
        divmod(1, 0)
    crash(logs)
    for position, kind in ((3 * 100 + 80, "CorruptRecordError"), (5 * 100 + 80, "CorruptRecordError")):
        flip(tmp_path / "orders-0" / name(0), position)
        with pytest.raises(SegmentLogError) as caught, LogDirectory.open(tmp_path, read_only=True) as reading:
            offsets(reading.get("orders"))
        assert type(caught.value).__name__ == kind
        flip(tmp_path / "orders-0" / name(0), position)
    flip(tmp_path / "orders-0" / name(12), 280)
    with pytest.raises(LogTruncationError), LogDirectory.open(tmp_path, read_only=True) as reading:
        offsets(reading.get("orders"))
    flip(tmp_path / "orders-0" / name(12), 280)
    # Whoever opens it ends what was begun.
    before = contents(tmp_path)[".segmentlog-truncations"]
    open_directory(tmp_path, config=CONFIG).close()
    assert before == b"begin orders 0 9\n"
    assert contents(tmp_path)[".segmentlog-truncations"] == before + b"end orders 0 9\n"
