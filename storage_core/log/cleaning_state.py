"""How cleaning a log and changing it otherwise keep apart (the states of Kafka's ``LogCleanerManager``).

A cleaning reads segments without the log's lock, and takes it to replace some of them: then it looks whether the log still
has them, and was not truncated. Whoever closes the log waits for the cleaning to end.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.log.cleaner_checkpoint import CleanerCheckpoint

__all__ = ["CleaningState"]


class CleaningState:
    """What is known of one log's cleaning.

    Attributes:
        checkpoint: Up to where the logs of the directory were cleaned; None for a log that belongs to none.
        problem: Why it cannot be cleaned: something in its data.
    """

    def __init__(self) -> None:
        self.checkpoint: CleanerCheckpoint | None = None
        self.problem: Exception | None = None
        self._lock = threading.Lock()
        self._is_stopped = False
        self._interrupting = 0
        # For the number.
        self._guard = threading.Lock()

    @property
    def is_stopped(self) -> bool:
        """Whether it is not to be cleaned any more; a cleaning that is under way gives up."""
        return self._is_stopped or self._interrupting > 0

    @contextmanager
    def under_way(self, *, wait: bool) -> Iterator[bool]:
        """Clean the log, as a context manager: one does at a time.

        Args:
            wait: Whether another cleaning is waited for.

        Returns:
            Whether this is the one: otherwise, or if it is not to be cleaned any more, leave it alone.
        """
        is_mine = self._lock.acquire(blocking=wait)
        try:
            yield is_mine and not self.is_stopped
        finally:
            if is_mine:
                self._lock.release()

    def stop(self) -> None:
        """Make a cleaning give up, and wait for its end. The log is not locked by this thread."""
        self._is_stopped = True
        with self._lock:
            pass

    def interrupt(self) -> None:
        """The same, but afterwards it may be cleaned again."""
        with self._guard:
            self._interrupting += 1
        with self._lock, self._guard:
            self._interrupting -= 1
