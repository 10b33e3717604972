"""What stands in a log directory's root, and whether it may be written to (Kafka's ``LogManager``)."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from storage_core.checkpoint import LEADER_EPOCH_CHECKPOINT, META_PROPERTIES, PARTITION_METADATA
from storage_core.directory import (
    CLUSTER_METADATA_TOPIC,
    LogDirectoryFiles,
    PartitionDirectory,
    parse_partition_directory_name,
)
from storage_core.directory.discovery import OTHER_DIRECTORIES
from storage_core.directory.log_directory_files import is_log_directory
from storage_core.errors import LogDirectoryError
from storage_core.segment import base_offset_of

if TYPE_CHECKING:
    from storage_core.filesystem import DirectoryEntry, FileSystem

__all__ = ["has_future_logs", "make_root", "partitions_to_load"]

_log = logging.getLogger(__name__)


def make_root(filesystem: FileSystem, path: str) -> None:
    """Make a log directory, and the directories above it, unless it is there."""
    status = filesystem.status(path, follow_symlinks=True)
    if status is None:
        parent = os.path.dirname(path)
        if parent != path:
            make_root(filesystem, parent)
        filesystem.make_directory(path)
        filesystem.flush_directory(parent)
    elif not status.is_directory:
        raise LogDirectoryError("Expected a directory, found something else. Check the path.", path=path)


def partitions_to_load(
    filesystem: FileSystem, path: str, *, broker_directory: bool
) -> list[PartitionDirectory]:
    """The live partitions of a log directory that is to be written to.

    Raises:
        LogDirectoryError: Something stands there that no log directory holds, or it belongs to a broker
            and ``broker_directory`` is not set.
    """
    entries = filesystem.list_directory(path)
    names = {entry.name for entry in entries}
    if META_PROPERTIES in names and not broker_directory:
        raise LogDirectoryError(
            f"Expected a log directory of our own, found {META_PROPERTIES}: it belongs to a broker. Open it read-only, "
            "or, with the broker stopped, with broker_directory=True; in Spark, with the option brokerDirectory=true.",
            path=path,
        )
    root = LogDirectoryFiles(filesystem, path)
    found = [
        directory for entry in entries if (directory := _partition(filesystem, path, entry, root)) is not None
    ]
    strangers = [entry.name for entry in entries if not entry.name.startswith(".")]
    if strangers and not found and not is_log_directory(entries) and not _has_only_directories(entries):
        raise _no_log_directory(path, strangers[0])
    return found


def has_future_logs(filesystem: FileSystem, path: str) -> bool:
    """Whether there are logs that a broker was moving here. It loads them, and nobody here does."""
    names = (parse_partition_directory_name(entry.name) for entry in filesystem.list_directory(path))
    return any(name is not None and name.suffix == "future" for name in names)


def _partition(
    filesystem: FileSystem, path: str, entry: DirectoryEntry, root: LogDirectoryFiles
) -> PartitionDirectory | None:
    if not (entry.is_directory or entry.is_symlink):
        return None
    if entry.name in OTHER_DIRECTORIES:
        return None
    partition_path = os.path.join(path, entry.name)
    name = parse_partition_directory_name(entry.name)
    # File systems and desktops keep directories of their own in one; a topic's name may begin with a dot, too.
    is_hidden = entry.name.startswith(".")
    if name is None:
        if entry.is_symlink or is_hidden:
            return None
        raise _no_log_directory(path, entry.name)
    if name.suffix is not None or name.topic == CLUSTER_METADATA_TOPIC:
        _log.info("Left alone %s: it is no live partition of a topic.", partition_path)
        return None
    if entry.is_symlink:
        raise LogDirectoryError(
            "Expected a partition's directory, found a symbolic link. Put the directory itself here.",
            path=partition_path,
        )
    if not _is_partition(filesystem, partition_path):
        if is_hidden:
            return None
        raise _no_log_directory(path, entry.name)
    return PartitionDirectory(partition_path, name.topic, name.partition, root)


def _is_partition(filesystem: FileSystem, path: str) -> bool:
    """Whether a directory is more than merely named like a partition. An empty one is a partition just made."""
    known = (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA)
    if any(filesystem.status(os.path.join(path, each)) is not None for each in known):
        return True
    entries = filesystem.list_directory(path)
    return not entries or any(
        entry.name.startswith(known) or base_offset_of(entry.name) is not None for entry in entries
    )


def _has_only_directories(entries: list[DirectoryEntry]) -> bool:
    return all(entry.is_directory for entry in entries if not entry.name.startswith("."))


def _no_log_directory(path: str, name: str) -> LogDirectoryError:
    return LogDirectoryError(
        f"Expected an empty directory or a log directory, found {name!r} in it, which belongs to neither. Choose "
        "another path, or move it away.",
        path=path,
    )
