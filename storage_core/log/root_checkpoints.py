"""Writing the checkpoints of a log directory (Kafka's ``LogManager.checkpointLogRecoveryOffsets`` and its like)."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint import (
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    write_offset_checkpoint,
)

if TYPE_CHECKING:
    from storage_core.filesystem import FileSystem
    from storage_core.log.clock import Clock
    from storage_core.log.log_state import LogState

__all__ = ["RootCheckpoints"]

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
