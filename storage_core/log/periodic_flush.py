"""Forcing logs to disk that have ``flush.ms``, while nobody appends (Kafka's ``LogManager.flushDirtyLogs``)."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from storage_core.errors import LogClosedError
from storage_core.log.log_append import write_pending
from storage_core.log.log_flush import flush_appended, is_flush_due

if TYPE_CHECKING:
    from storage_core.log.log_state import LogState

__all__ = ["PeriodicFlush"]

_log = logging.getLogger(__name__)

_NEVER_MS: Final = 2**63 - 1
_SHORTEST_SECONDS: Final = 0.005
_LONGEST_SECONDS: Final = 60.0


class PeriodicFlush:
    """A thread that looks after the logs of a log directory; there is none as long as none has ``flush.ms``."""

    def __init__(self) -> None:
        self._states: list[LogState] = []
        self._is_over = False
        # Set when the thread has something else to wait for.
        self._has_changed = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def update(self, state: LogState) -> None:
        """Look after a log if its configuration asks for it, and from now on as it does."""
        if state.config.flush_ms == _NEVER_MS:
            self.remove(state)
            return
        with self._lock:
            if state not in self._states:
                self._states = [*self._states, state]
            if self._thread is None and not self._is_over:
                self._thread = threading.Thread(target=self._run, name="segmentlog-flush", daemon=True)
                self._thread.start()
        self._has_changed.set()

    def remove(self, state: LogState) -> None:
        """Leave a log alone from now on."""
        with self._lock:
            if state in self._states:
                self._states = [each for each in self._states if each is not state]

    def stop(self) -> None:
        """End the thread, and wait for it."""
        with self._lock:
            self._is_over = True
        self._has_changed.set()
        if self._thread is not None:
            self._thread.join()

    def flush_due(self) -> None:
        """Force those logs to disk whose time has come."""
        for state in self._states:
            if state.is_closed or state.failure is not None:
                continue
            try:
                with state.writing():
                    write_pending(state)
                    is_due = is_flush_due(state, state.clock.now_ms())
                if is_due:
                    flush_appended(state)
            except LogClosedError:
                continue
            except Exception as error:  # noqa: BLE001  (the other logs are still looked after)
                # Whoever appends next is told.
                _log.warning("%s could not be forced to disk, and has failed: %s", state.path, error)

    def _run(self) -> None:
        while True:
            self._has_changed.wait(self._wait_seconds())
            self._has_changed.clear()
            if self._is_over:
                return
            self.flush_due()

    def _wait_seconds(self) -> float:
        # Half the time: nothing waits much longer than it was promised.
        shortest_ms = min((state.config.flush_ms for state in self._states), default=_NEVER_MS)
        return min(_LONGEST_SECONDS, max(_SHORTEST_SECONDS, shortest_ms / 2000))
