"""Up to where each log was cleaned: the file ``cleaner-offset-checkpoint`` of a log directory.

Writing the checkpoints of a log directory (Kafka's ``LogManager.checkpointLogRecoveryOffsets`` and its like).
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint import (
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from storage_core.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Collection

    from storage_core.filesystem import FileSystem
    from storage_core.log.background import Clock
    from storage_core.log.log_state import LogState

__all__ = ["CleanerCheckpoint", "RootCheckpoints"]


_log = logging.getLogger(__name__)


class CleanerCheckpoint:
    """The first offset of each log that was not cleaned yet. Any thread may ask and write.

    The file is read when somebody asks first: from then on nobody else writes it.

    Args:
        filesystem: Where it stands.
        path: The log directory.
        logs: The logs that there are, by topic and partition; it may grow. What is said of others is dropped.
    """

    def __init__(self, filesystem: FileSystem, path: str, logs: Collection[tuple[str, int]]) -> None:
        self._filesystem = filesystem
        self._path = os.path.join(path, CLEANER_OFFSET_CHECKPOINT)
        self._logs = logs
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int], int] | None = None

    def offset(self, topic_partition: tuple[str, int]) -> int | None:
        """Up to where a log was cleaned; None if it never was."""
        with self._lock:
            return self._load().get(topic_partition)

    def update(self, topic_partition: tuple[str, int], offset: int) -> None:
        """Note up to where a log was cleaned.

        Raises:
            StorageError: The file could not be written.
        """
        with self._lock:
            if self._load().get(topic_partition) != offset:
                self._write({**self._load(), topic_partition: offset})

    def lower(self, topic_partition: tuple[str, int], offset: int) -> None:
        """Note that other records will stand behind an offset: they have not been cleaned.

        Raises:
            StorageError: The file could not be written.
        """
        with self._lock:
            if self._load().get(topic_partition, offset) > offset:
                self._write({**self._load(), topic_partition: offset})

    def forget(self, topic_partition: tuple[str, int]) -> None:
        """Drop what is said of a log.

        Raises:
            StorageError: The file could not be written.
        """
        with self._lock:
            if topic_partition in self._load():
                self._write({key: value for key, value in self._load().items() if key != topic_partition})

    def _load(self) -> dict[tuple[str, int], int]:
        if self._known is None:
            try:
                self._known = read_offset_checkpoint(self._filesystem, self._path)
            except CorruptCheckpointError as error:
                # To clean once more what is clean already does no harm.
                _log.warning("All logs count as not cleaned yet: %s", error)
                self._known = {}
        return self._known

    def _write(self, offsets: dict[tuple[str, int], int]) -> None:
        kept = {key: offset for key, offset in offsets.items() if key in self._logs}
        write_offset_checkpoint(self._filesystem, self._path, kept)
        self._known = kept


_INTERVAL_MS: Final = 60_000
"""Kafka's ``log.flush.offset.checkpoint.interval.ms``."""


class RootCheckpoints:
    """The checkpoints of one log directory. Any of its logs may ask for them to be written.

    Attributes:
        states: The logs, by topic and partition.
    """

    def __init__(self, filesystem: FileSystem, path: str, clock: Clock) -> None:
        self.states: dict[tuple[str, int], LogState] = {}
        self._filesystem = filesystem
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._written_ms = clock.now_ms()
        # What stands in each file, so that none is written in vain.
        self._written: dict[str, dict[tuple[str, int], int]] = {}

    def write(self) -> None:
        """Write what has changed: recovery points, log starts above the first segment, high watermarks.

        Raises:
            StorageError: A file could not be written.
        """
        with self._lock:
            states = dict(self.states)
            views = {key: state.view for key, state in states.items()}
            starts = {
                key: view.offsets.log_start_offset
                for key, view in views.items()
                if view.offsets.log_start_offset > view.segments[0].base_offset
            }
            starts.update(
                (key, state.restarts_at) for key, state in states.items() if state.restarts_at is not None
            )
            self._write(LOG_START_OFFSET_CHECKPOINT, starts)
            self._write(
                REPLICATION_OFFSET_CHECKPOINT,
                {key: view.offsets.high_watermark for key, view in views.items()},
            )
            # The last one: if it does not tell of a log that was deleted, the others do not, either.
            self._write(
                RECOVERY_POINT_CHECKPOINT,
                {key: view.offsets.recovery_point for key, view in views.items()},
            )
            self._written_ms = self._clock.now_ms()

    def write_if_due(self) -> None:
        """Write them if that was not done for a minute."""
        if self._clock.now_ms() - self._written_ms >= _INTERVAL_MS:
            self.write()

    def _write(self, file_name: str, offsets: dict[tuple[str, int], int]) -> None:
        if self._written.get(file_name) != offsets:
            write_offset_checkpoint(self._filesystem, os.path.join(self._path, file_name), offsets)
            self._written[file_name] = offsets
