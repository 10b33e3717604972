"""Log directories below the paths that a user names, with every partition directory in them, whatever its state.

A read takes the live partitions, and one directory of each. A report names all others too: replicas, and directories that
await their deletion, are being moved, or are unknown to the cluster.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from storage_core.directory import LogDirectoryFiles, PartitionDirectory, parse_partition_directory_name
from storage_core.directory.discovery import partition_named_by
from storage_core.directory.log_directory_files import (
    OTHER_DIRECTORIES,
    holds_partition_files,
    is_log_directory,
)
from storage_core.directory.mistaken_paths import no_log_error
from storage_core.errors import LogDirectoryError, OptionError, SegmentLogError, UnreadableError
from storage_core.filesystem import DirectoryEntry, FileVersion, ReadableFileSystem, absolute_path
from storage_core.filesystem.values import MissingError
from storage_core.options import ReadOptions
from storage_core.scan.pruning import prune_partition
from storage_core.scan.resolve import find_directories, select_partitions, split_paths
from storage_core.segment.file_names import LOG_SUFFIX

LIVE: Final = "live"
"""The state of a partition's normal directory; of others, it is the suffix of the name: delete, future, stray."""
REMOTE: Final = "remote"
"""The state of a directory in remote storage."""


@dataclass(frozen=True, slots=True)
class PartitionLocation:
    """A partition's directory. Its state is `LIVE`, `REMOTE`, or the suffix of its name."""

    path: str
    topic: str
    partition: int
    state: str
    root: str

    @property
    def topic_partition(self) -> tuple[str, int]:
        """Which partition it is."""
        return self.topic, self.partition

    def in_root(self, root: LogDirectoryFiles) -> PartitionDirectory:
        """Return it as the directory of a partition to read."""
        return PartitionDirectory(self.path, self.topic, self.partition, root)


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log directory.

    Attributes:
        is_whole: Whether all of it was asked for; if not, ``locations`` are.
        problem: Why it could not be listed; None if it was.
        is_remote: Whether it is remote storage.
    """

    path: str
    locations: tuple[PartitionLocation, ...] = ()
    is_whole: bool = True
    problem: str | None = None
    is_remote: bool = False


def roots_of(filesystem: ReadableFileSystem, options: ReadOptions) -> tuple[LogDir, ...]:
    """Find the log directories that a read looks at, remote storage after the others; raises as `find_roots` does."""
    found = find_roots(filesystem, options.paths, follow_symlinks=options.follow_symlinks)
    remote = find_roots(filesystem, options.remote_storage or ())
    return (*found, *(_remote(root) for root in remote))


def _remote(root: LogDir) -> LogDir:
    locations = tuple(replace(each, state=REMOTE) for each in root.locations if each.state == LIVE)
    return replace(root, locations=locations, is_remote=True)


def find_roots(
    filesystem: ReadableFileSystem, paths: Iterable[str], *, follow_symlinks: bool = False
) -> tuple[LogDir, ...]:
    """Find the log directories under paths, in the order of the paths.

    Each path is a log directory, a folder of them, or a partition directory. A log directory that this user may not
    list is among them, with its problem.

    Raises:
        OptionError: A glob matches nothing.
        LogDirectoryError: A path does not exist, is no directory, or has no log directory.
    """
    found: dict[str, LogDir] = {}
    for path in split_paths(filesystem, paths):
        roots = list(_roots_at(filesystem, absolute_path(path), follow_symlinks))
        if not roots:
            raise no_log_error(filesystem, [path])
        for root in roots:
            found[root.path] = _merged(found.get(root.path), root)
    return tuple(found.values())


def require_listed(roots: Iterable[LogDir]) -> None:
    """Raise `UnreadableError` if one of the log directories could not be listed."""
    for root in roots:
        if root.problem is not None:
            raise UnreadableError(f"A log directory could not be listed: {root.problem}", path=root.path)


def _merged(known: LogDir | None, root: LogDir) -> LogDir:
    if known is None or (root.is_whole and not known.is_whole):
        return root
    if known.is_whole:
        return known
    return replace(known, locations=tuple(dict.fromkeys((*known.locations, *root.locations))))


def _roots_at(filesystem: ReadableFileSystem, path: str, follow_symlinks: bool) -> Iterator[LogDir]:
    status = filesystem.status(path, follow_symlinks=True)
    if status is None or not status.is_directory:
        raise no_log_error(filesystem, [path])
    location = _location(os.path.dirname(path), os.path.basename(path)) if partition_named_by(path) else None
    if location is not None and _is_partition(filesystem, path):
        yield LogDir(location.root, (location,), is_whole=False)
        return
    root, others = _look_at(filesystem, path, follow_symlinks)
    if root is not None:
        yield root
        # As in a read: what holds no partition itself may be a folder of log directories.
        if root.problem is not None or any(location.state == LIVE for location in root.locations):
            return
    for name in others:
        if not name.startswith("."):
            inner, _ = _look_at(filesystem, os.path.join(path, name), follow_symlinks)
            if inner is not None:
                yield inner


def _look_at(
    filesystem: ReadableFileSystem, path: str, follow_symlinks: bool
) -> tuple[LogDir | None, list[str]]:
    """Read a directory.

    Returns:
        The directory as a log directory, or None; and the names of its directories that hold no partition.
    """
    try:
        entries = filesystem.list_directory(path)
    except MissingError:
        return None, []
    except UnreadableError as error:
        return LogDir(path, problem=str(error.args[0])), []
    locations: list[PartitionLocation] = []
    others: list[str] = []
    for entry in entries:
        if entry.name in OTHER_DIRECTORIES or not (
            entry.is_directory or (follow_symlinks and leads_to_directory(filesystem, path, entry))
        ):
            continue
        location = _location(path, entry.name)
        if location is not None and _is_partition(filesystem, location.path):
            locations.append(location)
        else:
            others.append(entry.name)
    if locations or is_log_directory(entries):
        return LogDir(path, tuple(locations)), others
    return None, others


def leads_to_directory(filesystem: ReadableFileSystem, path: str, entry: DirectoryEntry) -> bool:
    """Return True if an entry of a directory is a directory, or a link to one."""
    if not entry.is_symlink:
        return entry.is_directory
    try:
        status = filesystem.status(os.path.join(path, entry.name), follow_symlinks=True)
    except SegmentLogError:
        # A link to itself.
        return False
    return status is not None and status.is_directory


def _is_partition(filesystem: ReadableFileSystem, path: str) -> bool:
    try:
        return holds_partition_files(filesystem, path)
    except UnreadableError:
        # Its name says so, and its content cannot be seen.
        return True


def _location(root: str, name: str) -> PartitionLocation | None:
    parsed = parse_partition_directory_name(name)
    if parsed is None:
        return None
    return PartitionLocation(
        os.path.join(root, name), parsed.topic, parsed.partition, parsed.suffix or LIVE, root
    )


def selected_locations(
    filesystem: ReadableFileSystem, roots: Iterable[LogDir], options: ReadOptions
) -> list[PartitionLocation]:
    """Select the directories of the partitions that the options ask for, by topic and partition.

    Unlike in a read of records, internal topics need not be named.

    Raises:
        OptionError: A topic that is named does not exist.
    """
    locations = [location for root in roots for location in root.locations]
    if options.names_topics:
        files = {location.root: LogDirectoryFiles(filesystem, location.root) for location in locations}
        directories = [location.in_root(files[location.root]) for location in locations]
        selected = {each.topic_partition for each in select_partitions(directories, options)}
        locations = [location for location in locations if location.topic_partition in selected]
    if options.where is not None:
        where = options.where
        locations = [
            location
            for location in locations
            if not prune_partition(where, *location.topic_partition).is_empty
        ]
    return sorted(
        locations,
        key=lambda location: (location.topic, location.partition, location.state != LIVE, location.path),
    )


def partitions_of(filesystem: ReadableFileSystem, options: ReadOptions) -> list[PartitionDirectory]:
    """Find the partitions below the paths: all, internal ones too, unless the options choose topics."""
    found = find_directories(filesystem, options)
    return list(select_partitions(found, options)) if options.names_topics else found


def log_bytes(filesystem: ReadableFileSystem, options: ReadOptions) -> int:
    """Return the size of all log files of these partitions."""
    paths = (
        os.path.join(directory.path, entry.name)
        for directory in partitions_of(filesystem, options)
        for entry in filesystem.walk_directory(directory.path)
        if entry.is_regular_file and entry.name.endswith(LOG_SUFFIX)
    )
    return sum(status.size_bytes for path in paths if (status := filesystem.status(path)) is not None)


def require_empty(filesystem: ReadableFileSystem, path: str) -> None:
    """Raise `LogDirectoryError` unless a directory to write to does not exist, or is empty."""
    status = filesystem.status(path, follow_symlinks=True)
    if status is not None and (not status.is_directory or filesystem.list_directory(path)):
        raise LogDirectoryError("The directory to write to is not empty. Choose another one.", path=path)


def require_outside(filesystem: ReadableFileSystem, path: str, sources: Iterable[str]) -> None:
    """Raise `OptionError` if a path to write to, which need not exist, is in a directory that is read."""
    read = {_identity(filesystem, source): source for source in sources}
    folder = path
    while (identity := _identity(filesystem, folder)) is None:
        folder = os.path.dirname(folder)
    below = None
    while identity != below:
        if identity in read:
            raise OptionError(
                f"The directory to write to, {path}, is inside of {read[identity]}, which is read. "
                "Name another one."
            )
        # By name, a link would lead back to where it is.
        below, folder = identity, os.path.join(folder, os.pardir)
        identity = _identity(filesystem, folder)


def _identity(filesystem: ReadableFileSystem, path: str) -> tuple[int, FileVersion] | None:
    """Return the device and inode of a directory, or None."""
    status = filesystem.status(path, follow_symlinks=True)
    return None if status is None or not status.is_directory else (status.device, status.version)
