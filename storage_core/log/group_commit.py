"""One flush for many who wait for it (what databases call group commit).

The first to come flushes for all who have come by then; those who come while it does wait, and one of them flushes for
all of these. So nobody is served by a flush that began before it came.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["GroupCommit"]

# A disk may be quicker than many threads are: who flushes waits for those who came the last time, but not for longer
# than this, and not if nobody at all has come for so long.
_LONGEST_WAIT_SECONDS: Final = 0.005
_LONGEST_SILENCE_SECONDS: Final = 0.0005


class GroupCommit:
    """Those who wait for the flush of one log, and who of them does it."""

    __slots__ = (
        "_begun",
        "_expected",
        "_has_ended",
        "_is_complete",
        "_is_flushing",
        "_lock",
        "_succeeded",
        "_waiting",
    )

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # What the two conditions are about: all have come who are expected; a flush has ended.
        self._is_complete = threading.Condition(self._lock)
        self._has_ended = threading.Condition(self._lock)
        self._is_flushing = False
        self._waiting = 0
        self._expected = 1
        # Flushes have numbers, and run one after the other.
        self._begun = 0
        self._succeeded = 0

    def flush(self, is_covered: Callable[[], bool], flush_all: Callable[[], None]) -> None:
        """Return once a flush has succeeded that began after this was called.

        Args:
            is_covered: Whether the caller needs no flush any more.
            flush_all: Flushes for everybody who has come, and raises an error each time after it has failed once.
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
        """Flush for all who wait. Called with the lock, which is given back meanwhile."""
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
            come = self._waiting
            self._is_complete.wait(_LONGEST_SILENCE_SECONDS)
            if self._waiting == come:
                break
