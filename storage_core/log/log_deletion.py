"""Deleting whole logs (Kafka's ``LogManager.asyncDelete`` and ``deleteLogs``).

    orders-7  →  orders-7.<32 hex digits>-delete, on disk  →  later, its files and the directory are deleted

The directory is renamed in one step, and no file in it is touched before the rename is on disk: after a crash, the log
either is intact or does not exist.

A broker's digits are a random UUID (version 4). This package uses version 8, which is free for any use, so that it can
tell its own interrupted deletions from a broker's, which the broker completes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import uuid
from typing import TYPE_CHECKING, Final, NamedTuple

from storage_core.directory import parse_partition_directory_name
from storage_core.errors import SegmentLogError
from storage_core.log.local_log import announced_truncation

if TYPE_CHECKING:
    from storage_core.filesystem import FileSystem
    from storage_core.log.clock import Clock
    from storage_core.log.log_state import LogState

_log = logging.getLogger(__name__)

_MAX_NAME_LENGTH: Final = 255
_OUR_SUFFIX: Final = re.compile(r"\.[0-9a-f]{12}8[0-9a-f]{19}-delete$")
_RETRY_INTERVAL_MS: Final = 60_000


def delete_directory_name(topic: str, partition: int) -> str:
    """Make a new name for the directory of a log to delete (``LocalLog.logDeleteDirName``).

    A long topic name is truncated, so that the file system accepts the result.
    """
    random = uuid.uuid4().hex
    suffix = f"-{partition}.{random[:12]}8{random[13:]}-delete"
    return topic[: _MAX_NAME_LENGTH - len(suffix)] + suffix


def delete_log(state: LogState) -> str:
    """Rename a log's directory durably, close the log, and return the directory's new path.

    A log that is closed, or has failed, can be deleted too.

    Raises:
        LogForkedError: Another process opened it.
        StorageError: The file system reported an error: the log has failed. It exists or not after the next open.
    """
    state.owner.check(state.path)
    # Without the lock, which the cleaning takes at its end.
    state.cleaning.stop()
    with state.lock:
        try:
            # First: if the deletion fails, the log is merely cleaned again.
            if state.cleaning.checkpoint is not None:
                state.cleaning.checkpoint.forget(state.directory.topic_partition)
            with announced_truncation(state, 0):
                path = _rename(state)
                state.is_deleted = state.is_closed = True
                state.truncations += 1
        except BaseException as error:
            state.fail(error)
            raise
        state.scheduled_deletions.clear()
        # Files to delete need not be flushed.
        with contextlib.suppress(SegmentLogError):
            state.segments.close_handlers()
    return path


def _rename(state: LogState) -> str:
    filesystem, directory = state.filesystem, state.directory
    root = os.path.dirname(directory.path)
    path = os.path.join(root, delete_directory_name(directory.topic, directory.partition))
    filesystem.rename(directory.path, path)
    try:
        filesystem.flush_directory(root)
    except BaseException:
        # Readers find it again, and so does the next open unless the power fails before.
        with contextlib.suppress(SegmentLogError):
            filesystem.rename(path, directory.path)
        raise
    return path


class _ScheduledRemoval(NamedTuple):
    due_ms: int
    path: str


class DeletedLogs:
    """The directories of deleted logs that await removal. Thread-safe.

    A failed removal is logged, and retried a minute later, or on the next open of the log directory.
    """

    def __init__(self, filesystem: FileSystem, clock: Clock) -> None:
        self._filesystem = filesystem
        self._clock = clock
        self._lock = threading.Lock()
        self._scheduled: list[_ScheduledRemoval] = []

    def add(self, path: str, delay_ms: int) -> None:
        """Remove a directory after a delay."""
        with self._lock:
            self._scheduled.append(_ScheduledRemoval(self._clock.now_ms() + delay_ms, path))

    def remove_due(self) -> None:
        """Remove the directories whose delay has passed."""
        now_ms = self._clock.now_ms()
        with self._lock:
            due = [each.path for each in self._scheduled if each.due_ms <= now_ms]
            self._scheduled = [each for each in self._scheduled if each.due_ms > now_ms]
        # Without the lock: there may be many files.
        failed = [path for path in due if not self._try_remove(path)]
        with self._lock:
            self._scheduled += [_ScheduledRemoval(now_ms + _RETRY_INTERVAL_MS, path) for path in failed]

    def remove_all(self) -> None:
        """Remove all of them now."""
        with self._lock:
            scheduled, self._scheduled = self._scheduled, []
        for each in scheduled:
            self._try_remove(each.path)

    def remove_left_over(self, root: str) -> None:
        """Complete the deletions in a log directory that a crash interrupted. All names in it are on disk."""
        for entry in self._filesystem.list_directory(root):
            if entry.is_directory and _is_ours(entry.name):
                self._try_remove(os.path.join(root, entry.name))

    def _try_remove(self, path: str) -> bool:
        filesystem = self._filesystem
        try:
            for entry in filesystem.list_directory(path):
                filesystem.delete(os.path.join(path, entry.name))
            filesystem.delete_directory(path)
        except SegmentLogError as error:
            _log.warning("The directory of a deleted log could not be removed yet: %s", error)
            return False
        return True


def _is_ours(directory_name: str) -> bool:
    name = parse_partition_directory_name(directory_name)
    return name is not None and name.suffix == "delete" and _OUR_SUFFIX.search(directory_name) is not None
