"""Threads that read ahead: order, errors, early ends, and no remaining threads."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
import time

import pytest

from storage_core.scan import read_ahead as module
from storage_core.scan.read_ahead import read_ahead


@pytest.fixture(autouse=True)
def each_item_counts_as_one_byte(monkeypatch):
    monkeypatch.setattr(module, "memory_bytes", lambda _: 1)


def counted(read, tasks, *, room=2, **settings):
    """Room is a number of items."""
    return read_ahead(read, tasks, room_bytes=room, **settings)


def one_task(produce, room=2):
    """Run one task in one thread, as in Spark."""
    return counted(items_of, [produce], room=room)


def items_of(produce):
    yield from produce()


def threads_at_work():
    return [thread for thread in threading.enumerate() if thread.name == "segmentlog-read-ahead"]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert threads_at_work() == []


def wait_until(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 100])
@pytest.mark.parametrize("depth", [1, 2])
def test_items_come_in_order(count, depth):
    assert list(one_task(lambda: iter(range(count)), depth)) == list(range(count))


def test_none_is_an_item():
    assert list(one_task(lambda: iter([None, 0, None]))) == [None, 0, None]


def test_nothing_runs_before_the_first_item_is_asked_for():
    one_task(lambda: pytest.fail("started")).close()


def test_the_producer_stays_at_most_its_depth_ahead():
    produced = []

    def produce():
        for item in itertools.count():
            produced.append(item)
            yield item

    items = one_task(produce, 2)
    assert next(items) == 0
    # One consumed, two queued, and a fourth held by the producer.
    wait_until(lambda: len(produced) == 4)
    time.sleep(0.05)
    assert len(produced) == 4
    items.close()


def test_the_producer_runs_on_a_thread_of_its_own():
    names = list(one_task(lambda: iter([threading.current_thread().name])))
    assert names != [threading.current_thread().name]
    seen = list(one_task(lambda: (threading.current_thread() for _ in range(1))))
    assert seen != [threading.current_thread()]


def test_an_error_follows_the_items_before_it_with_its_traceback():
    def produce():
        yield 1
        raise ValueError("broken")

    items = one_task(produce)
    assert next(items) == 1
    with pytest.raises(ValueError, match="broken") as raised:
        next(items)
    assert "produce" in {entry.name for entry in raised.traceback}


def test_an_error_before_the_first_item_is_raised():
    with pytest.raises(ZeroDivisionError):
        next(one_task(lambda: iter([1 // 0])))


@pytest.mark.parametrize("taken", [1, 2, 5])
def test_an_early_end_closes_the_producer_on_its_own_thread_before_it_returns(taken):
    closed_by = []

    def produce():
        try:
            yield from itertools.count()
        finally:
            closed_by.append(threading.current_thread().name)

    items = one_task(produce)
    assert list(itertools.islice(items, taken)) == list(range(taken))
    items.close()
    assert closed_by == ["segmentlog-read-ahead"]


def test_an_early_end_waits_for_a_producer_that_is_at_work():
    working = threading.Event()
    proceed = threading.Event()
    closed = []

    def produce():
        try:
            yield 1
            working.set()
            proceed.wait(300)
            yield 2
        finally:
            closed.append(True)

    items = one_task(produce)
    next(items)
    working.wait(300)
    threading.Timer(0.05, proceed.set).start()
    items.close()
    assert closed == [True]


def test_an_error_in_the_consumer_ends_the_producer():
    def consume():
        for item in one_task(itertools.count):
            raise LookupError(item)

    with pytest.raises(LookupError) as raised:
        consume()
    del raised
    wait_until(lambda: not threads_at_work())


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("room", [1, 3, 1000])
def test_tasks_come_in_order_however_many_threads_read_them(count, room):
    tasks = [3, 0, 1, 50, 0, 0, 7, 2]
    items = counted(lambda task: ((task, item) for item in range(task)), tasks, threads=count, room=room)
    assert list(items) == [(task, item) for task in tasks for item in range(task)]


def test_there_are_no_more_threads_than_tasks_and_none_without_tasks():
    items = counted(items_of, [lambda: [1], lambda: [2]], threads=100)
    assert next(items) == 1
    assert len(threads_at_work()) <= 2
    items.close()
    assert list(counted(items_of, [], threads=2)) == []


def test_the_task_that_is_awaited_goes_on_while_later_ones_have_no_room():
    is_second_full = threading.Event()

    def read(task):
        for item in range(10):
            if task == 0 and item == 1:
                is_second_full.wait(300)
            yield task, item
            if task == 1 and item == 2:
                is_second_full.set()

    # The second task takes all of the room before the first one has its second item.
    items = counted(read, [0, 1, 2], threads=2, room=3)
    assert next(items) == (0, 0)
    assert list(items) == [(task, item) for task in range(3) for item in range(10)][1:]


def test_items_count_by_their_size(monkeypatch):
    monkeypatch.setattr(module, "memory_bytes", lambda item: item)
    produced = []

    def read(_):
        for size in (5, 5, 5, 5, 5):
            produced.append(size)
            yield size

    items = read_ahead(read, [0], room_bytes=10)
    assert next(items) == 5
    # Two are ready, and a third one waits for room.
    wait_until(lambda: len(produced) == 4)
    time.sleep(0.05)
    assert len(produced) == 4
    items.close()


def test_the_error_of_a_task_is_raised_in_its_place_and_no_task_is_begun_after_it():
    begun = []
    has_failed = threading.Event()

    def read(task):
        begun.append(task)
        if task == 1:
            has_failed.set()
            raise ValueError(task)
        has_failed.wait(300)
        yield from [task] * 3

    items = counted(read, range(100), threads=2, room=1000)
    assert list(itertools.islice(items, 3)) == [0, 0, 0]
    with pytest.raises(ValueError, match="1"):
        next(items)
    assert len(begun) <= 3


def test_each_thread_closes_what_it_reads_when_the_consumer_stops():
    opened, closed = [], []

    def read(task):
        opened.append((task, threading.get_ident()))
        try:
            yield from itertools.repeat(task)
        finally:
            closed.append((task, threading.get_ident()))

    items = counted(read, range(10), threads=3)
    next(items)
    wait_until(lambda: len(opened) == 3)
    items.close()
    assert sorted(closed) == sorted(opened)


class Consumer:
    """Refers to itself, so that only the garbage collector ends it."""

    def __init__(self, items):
        self.items = items
        self.itself = self


class Tasks(list):
    """Tasks that call a function, with the queue's lock, before each that a thread begins."""

    def __init__(self, tasks, before):
        super().__init__(tasks)
        self._before = [before]

    def __iter__(self):
        # The queue iterates first, and then the consumer.
        before = self._before.pop() if self._before else lambda: None
        for task in super().__iter__():
            before()
            yield task


@pytest.mark.parametrize("is_locked", [False, True])
def test_a_reader_thread_may_collect_its_own_consumer(is_locked):
    is_dropped = threading.Event()

    def read(task):
        yield task
        is_dropped.wait(300)
        if not is_locked:
            gc.collect()
        yield task

    tasks = Tasks(range(4), lambda: gc.collect() if is_dropped.is_set() else None)
    consumer = Consumer(counted(read, tasks, threads=2, room=100))
    gc.disable()
    try:
        next(consumer.items)
        del consumer
        is_dropped.set()
        wait_until(lambda: not threads_at_work())
    finally:
        gc.enable()


HALF_READ = """
import os, sys
import pyarrow as pa, pyarrow.compute as pc
from storage_core.scan.read_ahead import read_ahead

def read(task):
    values = pa.array(range(10_000))
    try:
        while True:
            yield pc.sort_indices(values)
    finally:
        os.write(1, b"closed %d\\n" % task)

items = read_ahead(read, range(4), threads=2, room_bytes=1 << 30)
for _ in range(50):
    next(items)
kept = sys.modules["kept"] = items
"""


@pytest.mark.parametrize(
    "end",
    [
        "",
        pytest.param("raise SystemExit(3)", marks=pytest.mark.thorough),
        pytest.param("raise LookupError", marks=pytest.mark.thorough),
    ],
)
def test_the_interpreter_ends_with_a_reader_that_is_half_read(end):
    done = subprocess.run(
        [sys.executable, "-c", HALF_READ + end], capture_output=True, text=True, timeout=300, check=False
    )
    expected = {"": 0, "raise SystemExit(3)": 3}.get(end, 1)
    assert done.returncode == expected, done.stderr
    assert ("LookupError" in done.stderr) == (expected == 1)
    # The second task has begun by now, unless the machine is busy.
    assert {"closed 0"} <= set(done.stdout.splitlines()) <= {"closed 0", "closed 1"}


FORKED = """
import os, signal, sys, threading
from storage_core.scan import read_ahead as module
from storage_core.scan.read_ahead import read_ahead

module.memory_bytes = lambda _: 1

taken, is_locked, proceed = threading.Event(), threading.Event(), threading.Event()

class Tasks(list):
    iterators = 0

    def __iter__(self):
        # The queue iterates first, with the lock, and then the consumer.
        self.iterators += 1
        is_queue = self.iterators == 1
        for task in super().__iter__():
            if is_queue and taken.is_set():
                is_locked.set()
                proceed.wait()
            yield task

def read(task):
    yield task
    taken.wait()
    yield task

items = read_ahead(read, Tasks(range(4)), threads=1, room_bytes=100)
next(items)
taken.set()
is_locked.wait()
if os.fork() == 0:
    signal.alarm(100)
    if sys.argv[1] == "read":
        try:
            next(items)
        except ValueError as error:
            print(error)
    if sys.argv[1] == "close":
        items.close()
    sys.exit()
print(os.wait()[1])
proceed.set()
print(list(items))
"""


@pytest.mark.parametrize("use", ["read", "close", "exit"])
def test_a_fork_of_the_process_does_not_wait_for_threads_that_it_lacks(use):
    done = subprocess.run(
        [sys.executable, "-c", FORKED, use], capture_output=True, text=True, timeout=300, check=False
    )
    expected = ["The reader is closed."] * (use == "read") + ["0", "[0, 1, 1, 2, 2, 3, 3]"]
    assert done.stdout.splitlines() == expected, done.stderr
