"""Choosing among several directories of one partition: copies of a volume, or replicas of several brokers."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import TYPE_CHECKING

from storage_core.checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    read_leader_epoch_checkpoint,
    read_partition_metadata,
)
from storage_core.directory.partition_log import PartitionLog
from storage_core.errors import CorruptCheckpointError, LogDirectoryError, ReplicaConflictError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from storage_core.directory.log_directory_files import PartitionDirectory
    from storage_core.filesystem import FileSystem

__all__ = ["choose_replica"]

_log = logging.getLogger(__name__)

_NO_EPOCH = -1


def choose_replica(filesystem: FileSystem, candidates: Sequence[PartitionDirectory]) -> PartitionDirectory:
    """Choose which directory of a partition to read: the highest leader epoch, then the highest log end.

    Args:
        filesystem: Where to read.
        candidates: At least one; a directory that was named twice may stand here twice.

    Raises:
        ReplicaConflictError: They belong to different clusters or topics, or two stand in one root.
    """
    if len(candidates) == 1:
        return candidates[0]
    directories = _distinct(filesystem, candidates)
    if len(directories) == 1:
        return directories[0]
    _require_different_roots(directories)
    _require_agreement(directories, "cluster.id", _cluster_id)
    _require_agreement(directories, "topic id", lambda directory: _topic_id(filesystem, directory))
    epochs = [_newest_leader_epoch(filesystem, directory) for directory in directories]
    newest = [directory for directory, epoch in zip(directories, epochs, strict=True) if epoch == max(epochs)]
    # max takes the first of equals: the one whose path the caller named first.
    chosen = newest[0] if len(newest) == 1 else max(newest, key=partial(_log_end_offset, filesystem))
    others = ", ".join(directory.path for directory in directories if directory is not chosen)
    _log.warning("%s-%d is read from %s, not from %s.", chosen.topic, chosen.partition, chosen.path, others)
    return chosen


def _log_end_offset(filesystem: FileSystem, directory: PartitionDirectory) -> int:
    """How far a copy reaches. Damage is for whoever reads it to report: another copy may be chosen."""
    return PartitionLog.load(filesystem, directory, skip_damage=True).log_end_offset


def _distinct(filesystem: FileSystem, candidates: Sequence[PartitionDirectory]) -> list[PartitionDirectory]:
    directories: dict[tuple[int, int], PartitionDirectory] = {}
    for candidate in candidates:
        status = filesystem.status(candidate.path, follow_symlinks=True)
        if status is None:
            message = "Expected a partition directory that was there a moment ago, found nothing. Read again."
            raise LogDirectoryError(message, path=candidate.path)
        directories.setdefault((status.device, status.inode), candidate)
    return list(directories.values())


def _require_different_roots(directories: Sequence[PartitionDirectory]) -> None:
    by_root: dict[str, PartitionDirectory] = {}
    for directory in directories:
        other = by_root.setdefault(directory.root.path, directory)
        if other is not directory:
            raise _conflict(other, directory, "in one log directory. Remove one of them")


def _require_agreement(
    directories: Sequence[PartitionDirectory], what: str, read: Callable[[PartitionDirectory], str | None]
) -> None:
    """A directory that does not say agrees with any."""
    known = [(directory, value) for directory in directories if (value := read(directory)) is not None]
    for directory, value in known[1:]:
        first, first_value = known[0]
        if value != first_value:
            problem = f"with different values of {what}, {first_value} and {value}. Read one path at a time"
            raise _conflict(first, directory, problem)


def _conflict(first: PartitionDirectory, second: PartitionDirectory, problem: str) -> ReplicaConflictError:
    message = (
        f"Expected one directory of {first.topic}-{first.partition}, or copies that belong together, "
        f"found {first.path} and {second.path} {problem}."
    )
    return ReplicaConflictError(message)


def _cluster_id(directory: PartitionDirectory) -> str | None:
    meta_properties = directory.root.meta_properties
    return None if meta_properties is None else meta_properties.cluster_id


def _topic_id(filesystem: FileSystem, directory: PartitionDirectory) -> str | None:
    return read_partition_metadata(filesystem, os.path.join(directory.path, PARTITION_METADATA))


def _newest_leader_epoch(filesystem: FileSystem, directory: PartitionDirectory) -> int:
    try:
        entries = read_leader_epoch_checkpoint(
            filesystem, os.path.join(directory.path, LEADER_EPOCH_CHECKPOINT)
        )
    except CorruptCheckpointError as error:
        _log.warning("Took a copy of %s-%d for an old one: %s", directory.topic, directory.partition, error)
        return _NO_EPOCH
    return entries[-1].epoch if entries else _NO_EPOCH
