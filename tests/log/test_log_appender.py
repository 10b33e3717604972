"""What all ways to append have in common: who is refused, and what is on disk when they return."""

from __future__ import annotations

import signal
import sys
import threading
import time

import pytest

from storage_core import ProducerSequence
from tests.log.logs import table, values
from tests.log.producing import data

WAYS = {
    "append": lambda log, **options: log.append(table(b"v"), **options),
    "append of a producer": lambda log, **options: log.append(
        table(b"v"), producer=ProducerSequence(7, 0, 0), **options
    ),
    "append_as_leader": lambda log, **options: log.append_as_leader(data(0), **options),
    "append_batches": lambda log, **options: log.append_batches(data(log.log_end_offset), **options),
    "end_transaction": lambda log, **options: log.end_transaction(7, 0, is_abort=False, **options),
}


@pytest.mark.parametrize("way", WAYS)
def test_everything_before_it_is_on_disk_when_that_is_asked_for(log, way):
    log.append(table(b"before"))
    WAYS[way](log)
    assert (log.recovery_point, log.log_end_offset) == (0, 2)
    WAYS[way](log, **({"acks": "all"} if way.startswith("append of") or way == "append" else {"flush": True}))
    assert log.recovery_point == log.log_end_offset >= 2


def test_of_a_repetition_too(log):
    """It is unknown whether it was on disk the first time."""
    producer = ProducerSequence(7, 0, 0)
    log.append(table(b"v"), producer=producer)
    assert log.append(table(b"v"), producer=producer, acks="all").is_duplicate
    assert (log.recovery_point, log.log_end_offset) == (1, 1)


def test_who_is_interrupted_while_waiting_for_the_log_does_not_keep_it(log):
    main = threading.get_ident()
    is_locked = threading.Event()

    def keep_it_and_interrupt():
        with log._state.lock:
            is_locked.set()
            while not _waits_for_the_log(main):
                time.sleep(0.001)
            signal.pthread_kill(main, signal.SIGINT)

    other = threading.Thread(target=keep_it_and_interrupt)
    # Processes that share tests ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        other.start()
        is_locked.wait()
        with pytest.raises(KeyboardInterrupt):
            log.append(table(b"interrupted"))
    finally:
        signal.signal(signal.SIGINT, before)
    other.join()
    # The log is free for others.
    another = threading.Thread(target=lambda: log.append(table(b"another")), daemon=True)
    another.start()
    another.join(300)
    assert not another.is_alive()
    assert values(log) == [b"another"]


def _waits_for_the_log(thread_id):
    code = sys._current_frames()[thread_id].f_code
    return code.co_name == "__enter__" and code.co_filename.endswith("log_state.py")
