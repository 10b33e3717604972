"""Background tasks of a log directory (the scheduled tasks of Kafka's ``LogManager``)."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from storage_core.config import LONG_MAX
from storage_core.errors import LogClosedError, LogFailedError, OptionError, SegmentLogError
from storage_core.log.local_log import flush_appended, forget_expired_producers, is_flush_due, take_due_files
from storage_core.log.log_state import LogState, ScheduledDeletion

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from storage_core.log.clock import Clock
    from storage_core.log.log_deletion import DeletedLogs
    from storage_core.log.log_root import RootCheckpoints


_log = logging.getLogger(__name__)
RETENTION_CHECK_INTERVAL_MS: Final = 300_000
"""Kafka's ``log.retention.check.interval.ms``."""
_INITIAL_DELAY_MS: Final = 30_000
"""Kafka's ``log.initial.task.delay.ms``."""
_FILES_INTERVAL_MS: Final = 1_000
_RETRY_INTERVAL_MS: Final = 60_000
_PRODUCERS_INTERVAL_MS: Final = 60_000
_CHECKPOINT_INTERVAL_MS: Final = 60_000
# The clock may be changed, or stop while the machine sleeps, so no wait is long.
_MIN_WAIT_SECONDS: Final = 0.01
_MAX_WAIT_SECONDS: Final = 1.0
_MIN_FLUSH_WAIT_SECONDS: Final = 0.005
_MAX_FLUSH_WAIT_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class PeriodicTask:
    """A task to run repeatedly, with a pause after each run. Its name is for log messages."""

    name: str
    interval_ms: int
    run: Callable[[], object]


class PeriodicTasks:
    """Runs tasks in one thread when they are due by a clock. A task that fails is run again at its next time."""

    def __init__(self, name: str, clock: Clock, tasks: Sequence[PeriodicTask]) -> None:
        self._clock = clock
        self._tasks = tuple(tasks)
        now_ms = clock.now_ms()
        self._due_ms = [now_ms + min(task.interval_ms, _INITIAL_DELAY_MS) for task in tasks]
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for the running task."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()

    def run_due(self) -> None:
        """Run the tasks that are due."""
        for number, task in enumerate(self._tasks):
            if self._is_over.is_set():
                return
            if self._clock.now_ms() >= self._due_ms[number]:
                try:
                    task.run()
                except Exception as error:  # noqa: BLE001  (the other tasks run anyway)
                    _log.warning("%s failed, and is retried later: %s", task.name, error)
                self._due_ms[number] = self._clock.now_ms() + task.interval_ms

    def wait_seconds(self) -> float:
        """Return the time until the next task is due, within bounds."""
        now_ms = self._clock.now_ms()
        # If the clock was set back, no task is delayed by more than its interval.
        self._due_ms = [
            min(due_ms, now_ms + task.interval_ms)
            for due_ms, task in zip(self._due_ms, self._tasks, strict=True)
        ]
        wait_seconds = (min(self._due_ms) - now_ms) / 1000
        return min(_MAX_WAIT_SECONDS, max(_MIN_WAIT_SECONDS, wait_seconds))

    def _run(self) -> None:
        while not self._is_over.wait(self.wait_seconds()):
            self.run_due()


class Housekeeping:
    """The threads of a log directory: none before `start`, and none after `stop`."""

    def __init__(self) -> None:
        self._threads: list[PeriodicTasks] = []
        self._is_over = False
        self._lock = threading.Lock()

    def start(self, threads: Sequence[PeriodicTasks]) -> None:
        """Start the threads.

        Raises:
            OptionError: They were started before.
        """
        with self._lock:
            if self._threads:
                raise OptionError("Housekeeping is already running.")
            if not self._is_over:
                self._threads = list(threads)
                for thread in self._threads:
                    thread.start()

    def stop(self) -> None:
        """Stop for good, and wait for the running tasks."""
        with self._lock:
            self._is_over = True
            for thread in self._threads:
                thread.stop()
            self._threads = []


def tasks_of_logs(
    checkpoints: RootCheckpoints,
    deleted_logs: DeletedLogs,
    apply_retention: Callable[[], object],
    retention_check_interval_ms: int,
) -> list[PeriodicTask]:
    """Make the periodic tasks of a log directory.

    ``apply_retention`` deletes old segments.

    Raises:
        OptionError: The interval is not positive.
    """
    if retention_check_interval_ms < 1:
        raise OptionError(
            f"Expected a retention_check_interval_ms of at least 1, found {retention_check_interval_ms}."
        )
    return [
        PeriodicTask("Deleting old segments", retention_check_interval_ms, apply_retention),
        PeriodicTask("Deleting logs", _FILES_INTERVAL_MS, deleted_logs.remove_due),
        PeriodicTask("Deleting files", _FILES_INTERVAL_MS, lambda: _delete_due_files(checkpoints)),
        PeriodicTask("Forgetting producers", _PRODUCERS_INTERVAL_MS, lambda: _forget_producers(checkpoints)),
        PeriodicTask("Writing checkpoints", _CHECKPOINT_INTERVAL_MS, checkpoints.write),
    ]


def _delete_due_files(checkpoints: RootCheckpoints) -> None:
    for state in tuple(checkpoints.states.values()):
        if state.scheduled_deletions and not state.is_closed:
            with state.lock:
                due = take_due_files(state)
            # Without the lock: there may be many files.
            failed = [delete for delete in due if not _try_delete(state, delete)]
            if failed:
                retry_ms = state.clock.now_ms() + _RETRY_INTERVAL_MS
                with state.lock:
                    state.scheduled_deletions += [ScheduledDeletion(retry_ms, delete) for delete in failed]


def _try_delete(state: LogState, delete: Callable[[], object]) -> bool:
    try:
        delete()
    except SegmentLogError as error:
        _log.warning("%s: a file of a deleted segment could not be deleted yet: %s", state.path, error)
        return False
    return True


def _forget_producers(checkpoints: RootCheckpoints) -> None:
    for state in tuple(checkpoints.states.values()):
        try:
            with state.writing():
                forget_expired_producers(state)
        except (LogClosedError, LogFailedError):
            continue


class PeriodicFlush:
    """A thread that flushes logs with ``flush.ms`` when no append does (Kafka's ``LogManager.flushDirtyLogs``).

    It runs only if at least one log has ``flush.ms``.
    """

    def __init__(self) -> None:
        self._states: list[LogState] = []
        self._is_over = False
        # Set when the thread must compute its wait again.
        self._has_changed = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def update(self, state: LogState) -> None:
        """Apply the current ``flush.ms`` of a log."""
        if state.config.flush_ms == LONG_MAX:
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
        """Stop flushing a log."""
        with self._lock:
            if state in self._states:
                self._states = [each for each in self._states if each is not state]

    def stop(self) -> None:
        """Stop the thread, and wait for it."""
        with self._lock:
            self._is_over = True
        self._has_changed.set()
        if self._thread is not None:
            self._thread.join()

    def flush_due(self) -> None:
        """Flush the logs that are due."""
        for state in self._states:
            if state.is_closed or state.failure is not None:
                continue
            try:
                with state.writing():
                    is_due = is_flush_due(state, state.clock.now_ms())
                if is_due:
                    flush_appended(state)
            except LogClosedError:
                continue
            except Exception as error:  # noqa: BLE001  (the other logs are flushed anyway)
                # The next append reports it to its caller.
                _log.warning("%s could not be flushed, and has failed: %s", state.path, error)

    def _run(self) -> None:
        while True:
            self._has_changed.wait(self._wait_seconds())
            self._has_changed.clear()
            if self._is_over:
                return
            self.flush_due()

    def _wait_seconds(self) -> float:
        # Half of the shortest interval, so that no record waits much longer than its `flush.ms`.
        shortest_ms = min((state.config.flush_ms for state in self._states), default=LONG_MAX)
        return min(_MAX_FLUSH_WAIT_SECONDS, max(_MIN_FLUSH_WAIT_SECONDS, shortest_ms / 2000))
