"""What the checkpoints in the root say of published partitions: all of it is on disk, replicated, and perhaps the log start."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

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
    from collections.abc import Collection, Mapping

    from storage_core.checkpoint.commit_journal import CommitJournal
    from storage_core.filesystem import FileSystem

__all__ = ["write_root_checkpoints"]


def write_root_checkpoints(filesystem: FileSystem, root: str, journal: CommitJournal) -> None:
    """Bring the checkpoints up to a journal; one that says so already is left alone.

    What was not flushed is to be recovered: of that, the recovery points stay.

    Raises:
        StorageError: The file system refused.
    """
    ends = {each.topic_partition: each.log_end_after for each in journal.partitions}
    starts = {
        each.topic_partition: each.log_start_after
        for each in journal.partitions
        if each.log_start_after != each.log_start_before
    }
    # Of a partition that was removed without its checkpoints, a new one of its name knows nothing.
    stale = frozenset(each.topic_partition for each in journal.partitions if each.is_new)
    points = ends if journal.is_flushed else {}
    _update(filesystem, os.path.join(root, RECOVERY_POINT_CHECKPOINT), points, stale)
    _update(filesystem, os.path.join(root, REPLICATION_OFFSET_CHECKPOINT), ends, stale)
    _update(filesystem, os.path.join(root, LOG_START_OFFSET_CHECKPOINT), starts, stale)
    _update(filesystem, os.path.join(root, CLEANER_OFFSET_CHECKPOINT), {}, stale)


def _update(
    filesystem: FileSystem,
    path: str,
    offsets: Mapping[tuple[str, int], int],
    stale: Collection[tuple[str, int]],
) -> None:
    try:
        known = read_offset_checkpoint(filesystem, path)
    except CorruptCheckpointError:
        # As a broker does: what it said is not known any more.
        known = {}
    kept = {key: offset for key, offset in known.items() if key not in stale}
    merged = {**kept, **offsets}
    if merged != known:
        write_offset_checkpoint(filesystem, path, merged)
