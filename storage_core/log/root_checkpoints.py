"""Writing the checkpoints of a log directory (Kafka's ``LogManager.checkpointLogRecoveryOffsets`` and others)."""

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


_log = logging.getLogger(__name__)
_INTERVAL_MS: Final = 60_000
"""Kafka's ``log.flush.offset.checkpoint.interval.ms``."""


class CleanerCheckpoint:
    """The first offset of each log that was not cleaned yet: ``cleaner-offset-checkpoint``. Thread-safe.

    The file is read on the first use; no other process writes it afterwards. Entries of logs that are not among
    ``logs``, which may grow, are dropped.
    """

    def __init__(self, filesystem: FileSystem, path: str, logs: Collection[tuple[str, int]]) -> None:
        self._filesystem = filesystem
        self._path = os.path.join(path, CLEANER_OFFSET_CHECKPOINT)
        self._logs = logs
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int], int] | None = None

    def offset(self, topic_partition: tuple[str, int]) -> int | None:
        """The offset up to which a log was cleaned; None if it never was."""
        with self._lock:
            return self._load().get(topic_partition)

    def update(self, topic_partition: tuple[str, int], offset: int) -> None:
        """Set the offset up to which a log was cleaned."""
        with self._lock:
            if self._load().get(topic_partition) != offset:
                self._write({**self._load(), topic_partition: offset})

    def lower(self, topic_partition: tuple[str, int], offset: int) -> None:
        """Lower the offset of a log before a truncation: records appended later are dirty."""
        with self._lock:
            if self._load().get(topic_partition, offset) > offset:
                self._write({**self._load(), topic_partition: offset})

    def forget(self, topic_partition: tuple[str, int]) -> None:
        """Remove the entry of a log."""
        with self._lock:
            if topic_partition in self._load():
                self._write({key: value for key, value in self._load().items() if key != topic_partition})

    def _load(self) -> dict[tuple[str, int], int]:
        if self._known is None:
            try:
                self._known = read_offset_checkpoint(self._filesystem, self._path)
            except CorruptCheckpointError as error:
                # Cleaning clean segments again does no harm.
                _log.warning("All logs count as dirty: %s", error)
                self._known = {}
        return self._known

    def _write(self, offsets: dict[tuple[str, int], int]) -> None:
        kept = {key: offset for key, offset in offsets.items() if key in self._logs}
        write_offset_checkpoint(self._filesystem, self._path, kept)
        self._known = kept


class RootCheckpoints:
    """The checkpoints of one log directory. Thread-safe.

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
        # The contents of each file, so that only changes are written.
        self._written: dict[str, dict[tuple[str, int], int]] = {}

    def write(self) -> None:
        """Write what has changed of recovery points, log starts above the first segment, and high watermarks."""
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
            high_watermarks = {key: view.offsets.high_watermark for key, view in views.items()}
            self._write(REPLICATION_OFFSET_CHECKPOINT, high_watermarks)
            # Last: once it no longer lists a deleted log, neither do the others.
            recovery_points = {key: view.offsets.recovery_point for key, view in views.items()}
            self._write(RECOVERY_POINT_CHECKPOINT, recovery_points)
            self._written_ms = self._clock.now_ms()

    def write_if_due(self) -> None:
        """Write them if they were last written a minute ago."""
        if self._clock.now_ms() - self._written_ms >= _INTERVAL_MS:
            self.write()

    def _write(self, file_name: str, offsets: dict[tuple[str, int], int]) -> None:
        if self._written.get(file_name) != offsets:
            write_offset_checkpoint(self._filesystem, os.path.join(self._path, file_name), offsets)
            self._written[file_name] = offsets
