"""Batches without records, where restored offsets have none: behind the last row, up to where the log ended."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint.stage_names import StageId
from storage_core.commit.placement import Portion
from storage_core.record.batch_header import MAX_OFFSET_DELTA
from storage_core.record.control_batch import empty_batch
from storage_core.record.legacy_message import NO_TIMESTAMP_MS

if TYPE_CHECKING:
    from storage_core.filesystem import FileSystem

__all__ = ["FillStage"]

# No task has this number: those of Spark are below 2^31.
_DRIVER_TASK: Final = 1 << 31
# Each is a segment of three files.
_MOST_BATCHES: Final = 16


class FillStage:
    """Stages such batches in a pack of the driver's own.

    Args:
        filesystem: Where to write.
        root: The log directory.
        job_id: The job.
    """

    def __init__(self, filesystem: FileSystem, root: str, job_id: str) -> None:
        self._filesystem = filesystem
        self._root = root
        self._stage = StageId(job_id, _DRIVER_TASK, 0)
        self._pieces: list[bytes] = []
        self._size_bytes = 0

    def portions(self, start_offset: int, end_offset: int, leader_epoch: int) -> list[Portion]:
        """Stand in for all offsets from one to before another; for more than some batches can, nothing does."""
        if end_offset - start_offset > _MOST_BATCHES * (MAX_OFFSET_DELTA + 1):
            return []
        found = []
        while start_offset < end_offset:
            last_offset = min(end_offset - 1, start_offset + MAX_OFFSET_DELTA)
            batch = empty_batch(
                start_offset, last_offset, leader_epoch=leader_epoch, max_timestamp_ms=NO_TIMESTAMP_MS
            )
            self._pieces += [bytes(piece) for piece in batch.pieces]
            found.append(
                Portion(
                    self._stage.base_name,
                    self._size_bytes,
                    batch.size_bytes,
                    last_offset + 1 - start_offset,
                    NO_TIMESTAMP_MS,
                    NO_TIMESTAMP_MS,
                    start_offset,
                )
            )
            self._size_bytes += batch.size_bytes
            start_offset = last_offset + 1
        return found

    def write(self, *, flush: bool) -> None:
        """Write the pack, if there is anything in it.

        Raises:
            StorageError: The file system refused.
        """
        if not self._pieces:
            return
        path = os.path.join(self._root, self._stage.pack_name)
        with self._filesystem.open_for_writing(path, create=True) as pack:
            pack.truncate(0)
            pack.write_at(self._pieces, 0)
            if flush:
                pack.flush()
        if flush:
            self._filesystem.flush_directory(self._root)
