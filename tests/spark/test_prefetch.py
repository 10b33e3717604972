"""The prefetch thread: order, errors, early ends, and no remaining threads."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from spark_segmentlog.reader import prefetch


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "segmentlog-prefetch"]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert threads() == []


def wait_until(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 100])
@pytest.mark.parametrize("depth", [1, 2])
def test_items_come_in_order(count, depth):
    assert list(prefetch(lambda: iter(range(count)), depth)) == list(range(count))


def test_none_is_an_item():
    assert list(prefetch(lambda: iter([None, 0, None]))) == [None, 0, None]


def test_nothing_runs_before_the_first_item_is_asked_for():
    prefetch(lambda: pytest.fail("started")).close()


def test_the_producer_stays_at_most_its_depth_ahead():
    produced = []

    def produce():
        for item in itertools.count():
            produced.append(item)
            yield item

    items = prefetch(produce, 2)
    assert next(items) == 0
    # One consumed, two queued, and a fourth held by the producer.
    wait_until(lambda: len(produced) == 4)
    time.sleep(0.05)
    assert len(produced) == 4
    items.close()


def test_the_producer_runs_on_a_thread_of_its_own():
    names = list(prefetch(lambda: iter([threading.current_thread().name])))
    assert names != [threading.current_thread().name]
    seen = list(prefetch(lambda: (threading.current_thread() for _ in range(1))))
    assert seen != [threading.current_thread()]


def test_an_error_follows_the_items_before_it_with_its_traceback():
    def produce():
        yield 1
        raise ValueError("broken")

    items = prefetch(produce)
    assert next(items) == 1
    with pytest.raises(ValueError, match="broken") as raised:
        next(items)
    assert "produce" in {entry.name for entry in raised.traceback}


def test_an_error_before_the_first_item_is_raised():
    with pytest.raises(ZeroDivisionError):
        next(prefetch(lambda: iter([1 // 0])))


@pytest.mark.parametrize("taken", [1, 2, 5])
def test_an_early_end_closes_the_producer_on_its_own_thread_before_it_returns(taken):
    closed_by = []

    def produce():
        try:
            yield from itertools.count()
        finally:
            closed_by.append(threading.current_thread().name)

    items = prefetch(produce)
    assert list(itertools.islice(items, taken)) == list(range(taken))
    items.close()
    assert closed_by == ["segmentlog-prefetch"]


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

    items = prefetch(produce)
    next(items)
    working.wait(300)
    threading.Timer(0.05, proceed.set).start()
    items.close()
    assert closed == [True]


def test_an_error_in_the_consumer_ends_the_producer():
    def consume():
        for item in prefetch(itertools.count):
            raise LookupError(item)

    with pytest.raises(LookupError) as raised:
        consume()
    del raised
    wait_until(lambda: not threads())
