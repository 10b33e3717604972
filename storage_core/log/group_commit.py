"""One flush for all threads that wait for one (group commit, as databases call it)."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable


# A flush may end before many threads have arrived. So the flushing thread waits for as many as the last time, but at most
# for the first duration, and not once nobody has come for the second.
_LONGEST_WAIT_SECONDS: Final = 0.005
_LONGEST_SILENCE_SECONDS: Final = 0.0005


class GroupCommit:
    """The threads that wait for a flush of one log.

    The first thread flushes for every thread that has arrived by then. Threads that arrive during a flush wait, and one
    of them does the next flush for all of these. So a flush never covers a thread that arrived after it began.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # All expected threads have arrived; a flush has ended.
        self._is_complete = threading.Condition(self._lock)
        self._has_ended = threading.Condition(self._lock)
        self._is_flushing = False
        self._waiting = 0
        self._expected = 1
        # Flushes are numbered, and run one after the other.
        self._begun = 0
        self._succeeded = 0

    def flush(self, is_covered: Callable[[], bool], flush_all: Callable[[], None]) -> None:
        """Return once a flush that began after this call has succeeded, or the caller no longer needs one.

        ``flush_all`` flushes for all waiting threads; after its first failure, it raises an error every time.
        """
        with self._lock:
            number = self._begun + 1
            self._waiting += 1
            if self._waiting >= self._expected:
                self._is_complete.notify()
            while self._succeeded < number and not is_covered():
                if self._is_flushing:
                    self._has_ended.wait()
                else:
                    self._flush(flush_all)

    def _flush(self, flush_all: Callable[[], None]) -> None:
        """Flush for all waiting threads. Called with the lock, which is released during the flush."""
        self._is_flushing = True
        served = 0
        try:
            self._wait_for_others()
            self._begun += 1
            waiting, self._waiting = self._waiting, 0
            self._lock.release()
            try:
                flush_all()
            finally:
                self._lock.acquire()
            self._succeeded = self._begun
            served = waiting
        finally:
            self._is_flushing = False
            self._expected = served
            self._has_ended.notify_all()

    def _wait_for_others(self) -> None:
        ends_at = time.monotonic() + _LONGEST_WAIT_SECONDS
        while self._waiting < self._expected and time.monotonic() < ends_at:
            arrived = self._waiting
            self._is_complete.wait(_LONGEST_SILENCE_SECONDS)
            if self._waiting == arrived:
                break
