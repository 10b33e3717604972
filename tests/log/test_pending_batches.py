"""Records that are acknowledged from memory (``acks=0``): they count at once, for everybody who asks this process's log."""

from __future__ import annotations

import errno
import random
import threading
import time

import pytest

from storage_core.errors import LogFailedError, SegmentLogError, StorageError
from tests.faults.observed_filesystem import ObservedFileSystem
from tests.faults.session import ROOT, TOPIC, Session, records_of
from tests.faults.simulated_filesystem import SimulatedFileSystem
from tests.log.logs import append, offsets, small, table, value, values


@pytest.fixture
def session(tmp_path):
    """An open log in a file system that tells of each call."""
    filesystem = ObservedFileSystem()
    opened = Session(filesystem, root=tmp_path / "data").open()
    yield opened
    filesystem.tell = None
    opened.logs.close()


WRITING = {
    "flush": lambda log: log.flush(),
    "append": lambda log: log.append(table(b"0:next")),
    "append to disk": lambda log: log.append(table(b"0:next"), acks="all"),
    "read": lambda log: list(log.read()),
    "fetch": lambda log: log.fetch(0, 100),
    "roll": lambda log: log.roll(),
    "close": lambda log: log.close(),
}


def fill(log, count=12):
    """Append this many records in memory, some of them too large for the current segment."""
    for number in range(count):
        log.append(table(b"%d:%s" % (number, b"v" * (400 if number % 4 == 3 else 20))), acks=0)


class Noticed:
    """In the place of a lock: tells when a thread wants it that does not get it at once."""

    def __init__(self, lock):
        self._lock = lock
        self.is_waited_for = threading.Event()

    def acquire(self, blocking=True, timeout=-1):
        if self._lock.acquire(blocking=False):
            return True
        self.is_waited_for.set()
        return self._lock.acquire(blocking, timeout)

    def release(self):
        self._lock.release()

    def __enter__(self):
        self.acquire()

    def __exit__(self, *_):
        self.release()


class Beside:
    """Something that another thread does, begun at a call of the log's writer."""

    def __init__(self, log, work):
        self._log = log
        self._work = work
        self.answer = None
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def begin(self) -> None:
        """Begin, and go on once it is done, or waits for this thread."""
        lock = Noticed(self._log._state.lock)
        self._log._state.lock, before = lock, self._log._state.lock
        self._thread.start()
        while not (self._is_done.wait(0.001) or lock.is_waited_for.is_set()):
            pass
        self._log._state.lock = before

    def end(self):
        self._thread.join()
        return self.answer

    def _run(self) -> None:
        try:
            self.answer = self._work(self._log)
        except SegmentLogError as error:
            self.answer = error
        self._is_done.set()


# -- What is acknowledged counts --------


@pytest.mark.parametrize("writing", WRITING)
def test_the_log_end_never_steps_back(session, writing):
    """Whichever call writes what waits, in however many segments."""
    seen = []
    fill(session.log)
    session.filesystem.tell = lambda call: seen.append(session.log.log_end_offset)
    WRITING[writing](session.log)
    assert seen == sorted(seen)
    assert seen[0] == 12


ASKING = {
    "read": lambda log: [offset for offset, _ in records_of(log)],
    "read from the last": lambda log: [offset for offset, _ in records_of(log, start_offset=11)],
    "read from the end": lambda log: [offset for offset, _ in records_of(log, start_offset=12)],
    "fetch": lambda log: log.fetch(11, 100).base_offset,
    "fetch from the end": lambda log: log.fetch(12, 100).data,
    "largest timestamp": lambda log: log.offset_for_timestamp(-3) is not None,
    "log end": lambda log: log.offset_for_timestamp(-1).offset,
    "epochs": lambda log: [(each.epoch, each.start_offset) for each in log.leader_epochs],
    "end of the epoch before": lambda log: log.end_offset_for_epoch(0).end_offset,
    "epoch of the last": lambda log: log.leader_epoch_at(11),
}
ANSWERS = {
    "read": list(range(12)),
    "read from the last": [11],
    "read from the end": [],
    "fetch": 11,
    "fetch from the end": b"",
    "largest timestamp": True,
    "log end": 12,
    "epochs": [(0, 0), (3, 11)],
    "end of the epoch before": 11,
    "epoch of the last": 3,
}


@pytest.mark.parametrize("asking", ASKING)
def test_it_is_seen_while_another_thread_writes_it(session, asking):
    """Whatever is asked is begun at some call of a flush, after all appends have returned."""
    at = 1
    while True:
        fill(session.log, 11)
        session.log.append(table(b"11:last"), acks=0, leader_epoch=3)
        beside = Beside(session.log, ASKING[asking])
        calls = []

        def observe(call, beside=beside, calls=calls, at=at):
            if threading.current_thread() is threading.main_thread():
                calls.append(call)
                if len(calls) == at:
                    beside.begin()

        session.filesystem.tell = observe
        session.log.flush()
        session.filesystem.tell = None
        if len(calls) < at:
            break
        assert beside.end() == ANSWERS[asking], f"in front of {calls[-1]}"
        session.log.truncate_fully_and_start_at(0)
        at += 1 + at // 8
    assert at > 10


@pytest.mark.parametrize("asking", ASKING)
def test_it_is_seen_by_the_thread_that_appended_it(session, asking):
    fill(session.log, 11)
    session.log.append(table(b"11:last"), acks=0, leader_epoch=3)
    assert ASKING[asking](session.log) == ANSWERS[asking]


# -- What cannot be written is lost --------


def failing_calls(writing):
    """A log for each call of the writing, which fails; and what the failure was."""
    at = 1
    while True:
        filesystem = SimulatedFileSystem()
        filesystem.make_directory(ROOT)
        session = Session(filesystem).open()
        append(session.log, 2)
        fill(session.log)
        first_call = filesystem.calls + 1
        filesystem.fail = lambda call, number=first_call + at - 1: (
            OSError(errno.EIO, "Input/output error") if call.number == number else None
        )
        try:
            WRITING[writing](session.log)
        except StorageError as error:
            filesystem.fail = None
            yield session, error
            session.logs.close()
        else:
            # There are fewer calls.
            assert filesystem.calls < first_call + at - 1
            filesystem.fail = None
            session.logs.close()
            break
        at += 1
    assert at > 5


@pytest.mark.parametrize("writing", [name for name in WRITING if name != "close"])
def test_after_a_failed_write_everything_agrees(writing, caplog):
    """The log end, reads, the error, and the log once it is opened again."""
    losses = set()
    for session, error in failing_calls(writing):
        log, lost = session.log, session.log._state.lost_offsets
        losses.add(len(lost))
        end_offset = log.log_end_offset
        assert offsets(log) == list(range(end_offset))
        assert offsets(log, end_offset) == []
        assert log.offset_for_timestamp(-1).offset == end_offset
        assert log.high_watermark == end_offset
        with pytest.raises(LogFailedError, match="failed before") as caught:
            append(log)
        if lost:
            # Up to the last that was acknowledged from memory.
            assert lost == range(end_offset, 14)
            said = f"offsets {end_offset} to 13 were" if len(lost) > 1 else "offset 13 was"
            assert f"but for {said} acknowledged from memory (acks=0)" in str(caught.value)
            assert (caught.value.offset, caught.value.last_offset) == (end_offset, 13)
            assert any(
                f"{said} acknowledged from memory (acks=0), and lost" in each for each in error.__notes__
            )
            assert said in caplog.text
        else:
            assert end_offset >= 14
            assert "acks=0" not in str(caught.value)
            assert caught.value.offset is None
        session.logs.close()
        with Session(session.filesystem.kill()).open().logs as again:
            found = records_of(again.get(TOPIC))
            # A batch that was written may be there though that was not acknowledged.
            assert [offset for offset, _ in found] == list(range(len(found)))
            assert len(found) >= end_offset
        caplog.clear()
    # It failed with all of them in memory, and with some of them.
    assert {5, 12} <= losses


def test_a_log_that_failed_elsewhere_forgets_what_waits(session):
    """Whatever made it fail, nothing is written any more."""
    append(session.log, 3)
    fill(session.log, 4)
    with session.log._state.lock:
        session.log._state.fail(StorageError("Could not flush."))
    assert session.log.log_end_offset == 3
    assert offsets(session.log) == [0, 1, 2]
    with pytest.raises(LogFailedError, match="but for offsets 3 to 6 were acknowledged"):
        append(session.log)


@pytest.mark.parametrize("asking", ["read", "read from the end", "fetch", "epochs"])
def test_a_reader_that_waits_for_a_failing_write_reads_what_is_left(session, asking):
    """One is told that it is lost: who has tried to write it. The others find a log without it."""
    append(session.log, 3)
    fill(session.log, 9)
    beside = Beside(session.log, ASKING[asking])

    def fail(call):
        if call.startswith("write"):
            session.filesystem.tell = None
            beside.begin()
            raise StorageError("Could not write.")

    session.filesystem.tell = fail
    with pytest.raises(StorageError):
        session.log.flush()
    answer = beside.end()
    if asking == "read":
        assert answer == [0, 1, 2]
    elif asking == "epochs":
        assert answer == [(0, 0)]
    else:
        # The offset that was looked for is gone.
        assert "from 0, the log start, to 3, the log end" in str(answer)


def test_a_read_that_has_to_write_it_says_that_it_could_not(session):
    append(session.log, 3)
    fill(session.log, 2)

    def fail(call):
        if call.startswith("write"):
            raise StorageError("No space left on device.")

    session.filesystem.tell = fail
    with pytest.raises(StorageError, match="No space left"):
        session.log.read()
    session.filesystem.tell = None
    assert offsets(session.log) == [0, 1, 2]
    assert session.log.log_end_offset == 3


# -- Threads --------


class Reader(threading.Thread):
    """Reads the last records that were acknowledged, again and again."""

    def __init__(self, log, acknowledged) -> None:
        super().__init__()
        self.wrong = []
        self.reads = 0
        self.is_over = threading.Event()
        self._log = log
        self._acknowledged = acknowledged

    def run(self) -> None:
        while not self.is_over.is_set():
            end_offset = max(self._acknowledged)
            start_offset = max(0, end_offset - 3)
            try:
                log_end_offset = self._log.log_end_offset
                found = offsets(self._log, start_offset)
                list(self._log.read(end_offset))
            except SegmentLogError as error:
                self.wrong.append(error)
                return
            self.reads += 1
            is_whole = found == list(range(start_offset, start_offset + len(found)))
            if not is_whole or start_offset + len(found) < end_offset or log_end_offset < end_offset:
                self.wrong.append((end_offset, log_end_offset, found))


def test_readers_always_find_what_was_acknowledged(logs):
    """Two threads append, from memory and to disk; others read from in front of the offset that was answered last."""
    log = logs.create("busy", config=small())
    acknowledged = [0, 0]

    def append_on(number) -> None:
        rng = random.Random(number)
        for appended in range(150):
            info = log.append(table(value(0)), acks=rng.choice((0, 0, 0, 1, -1)))
            acknowledged[number] = info.last_offset + 1
            # No reader is left behind, whichever threads the machine prefers.
            while any(reader.reads < appended // 30 and reader.is_alive() for reader in readers):
                time.sleep(0.001)

    readers = [Reader(log, acknowledged) for _ in range(2)]
    writers = [threading.Thread(target=append_on, args=(number,)) for number in range(2)]
    for thread in readers + writers:
        thread.start()
    for thread in writers:
        thread.join()
    for reader in readers:
        reader.is_over.set()
        reader.join()
    assert [reader.wrong for reader in readers] == [[], []]
    assert all(reader.reads > 3 for reader in readers)
    assert values(log) == [value(0)] * 300
