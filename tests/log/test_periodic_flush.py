"""A thread flushes logs when no append does."""

from __future__ import annotations

import errno
import os
import threading
import time

import pytest

from storage_core.errors import LogFailedError
from tests.log.logs import append, small


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
