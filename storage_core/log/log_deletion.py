"""Deleting whole logs (Kafka's ``LogManager.asyncDelete`` and ``deleteLogs``).

    orders-7  →  orders-7.<32 hex digits>-delete, on disk  →  some time later, its files and the directory go

The directory changes its name in one step, and no file in it is touched before that step is on disk: a crash leaves the
log as it was, or none.

A broker's digits are a random UUID (version 4); ours are one of version 8, which is free for any use. So what a crash has
left of our deletions is told from a broker's, which are the broker's to remove.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import uuid
from typing import TYPE_CHECKING, Final

from storage_core.directory import parse_partition_directory_name
from storage_core.errors import SegmentLogError
from storage_core.log.local_log import announced_truncation

if TYPE_CHECKING:
    from storage_core.filesystem import FileSystem
    from storage_core.log.background import Clock
    from storage_core.log.log_state import LogState

__all__ = ["DeletedLogs", "delete_directory_name", "delete_log"]

_log = logging.getLogger(__name__)

_LONGEST_NAME: Final = 255
_OUR_SUFFIX: Final = re.compile(r"\.[0-9a-f]{12}8[0-9a-f]{19}-delete$")
_REFUSED_INTERVAL_MS: Final = 60_000


def delete_directory_name(topic: str, partition: int) -> str:
    """A name for the directory of a log that is being deleted, as ``LocalLog.logDeleteDirName`` makes it.

    A topic's name that would make it longer than a file system takes is cut short.
    """
    random = uuid.uuid4().hex
    suffix = f"-{partition}.{random[:12]}8{random[13:]}-delete"
    return topic[: _LONGEST_NAME - len(suffix)] + suffix


def delete_log(state: LogState) -> str:
    """Rename a log's directory, for good, and close the log; return the directory's new path.

    A log that is closed, or has failed, is deleted like any other. What waits in memory is dropped.

    Raises:
        LogForkedError: Another process opened it.
        StorageError: The file system refused: the log has failed. It is there, or gone, when it is opened again.
    """
    state.owner.check(state.path)
    # Without the lock, which a cleaning takes at its end.
    state.cleaning.stop()
    with state.lock:
        try:
            # First: if the log stays after all, it is merely cleaned once more.
            if state.cleaning.checkpoint is not None:
                state.cleaning.checkpoint.forget(state.directory.topic_partition)
            with announced_truncation(state, 0):
                path = _rename(state)
                state.is_deleted = state.is_closed = True
                state.truncations += 1
        except BaseException as error:
            state.fail(error)
            raise
        state.pending.clear()
        state.scheduled_deletions.clear()
        # Of a file that is not wanted any more, nothing has to reach the disk.
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
        # So that it is found by readers, and by the next open if no power cut comes in between.
        with contextlib.suppress(SegmentLogError):
            filesystem.rename(path, directory.path)
        raise
    return path


class DeletedLogs:
    """The directories of deleted logs, which wait for their removal. Any thread may use it.

    What cannot be removed is logged, and tried again a minute later, or when the log directory is opened the next time.
    """

    def __init__(self, filesystem: FileSystem, clock: Clock) -> None:
        self._filesystem = filesystem
        self._clock = clock
        self._lock = threading.Lock()
        self._doomed: list[tuple[int, str]] = []

    def add(self, path: str, delay_ms: int) -> None:
        """Remove a directory once a delay is over."""
        with self._lock:
            self._doomed.append((self._clock.now_ms() + delay_ms, path))

    def remove_due(self) -> None:
        """Remove those whose time has come."""
        now_ms = self._clock.now_ms()
        with self._lock:
            due = [path for due_ms, path in self._doomed if due_ms <= now_ms]
            self._doomed = [each for each in self._doomed if each[0] > now_ms]
        # Without the lock: there may be many files.
        refused = [path for path in due if not self._is_removed(path)]
        with self._lock:
            self._doomed += [(now_ms + _REFUSED_INTERVAL_MS, path) for path in refused]

    def remove_all(self) -> None:
        """Remove all of them now."""
        with self._lock:
            doomed, self._doomed = self._doomed, []
        for _, path in doomed:
            self._is_removed(path)

    def remove_left_over(self, root: str) -> None:
        """Remove what a crash has left of deletions in a log directory, whose names are all on disk."""
        for entry in self._filesystem.list_directory(root):
            if entry.is_directory and _is_ours(entry.name):
                self._is_removed(os.path.join(root, entry.name))

    def _is_removed(self, path: str) -> bool:
        filesystem = self._filesystem
        try:
            for entry in filesystem.list_directory(path):
                filesystem.delete(os.path.join(path, entry.name))
            filesystem.delete_directory(path)
        except SegmentLogError as error:
            _log.warning("The directory of a deleted log is still there, and is removed later: %s", error)
            return False
        return True


def _is_ours(directory_name: str) -> bool:
    name = parse_partition_directory_name(directory_name)
    return name is not None and name.suffix == "delete" and _OUR_SUFFIX.search(directory_name) is not None
