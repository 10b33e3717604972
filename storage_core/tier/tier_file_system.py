"""The file system of a read, which shows tiers as log directories."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, Literal, TypeVar, cast

from storage_core.checkpoint import CLEAN_SHUTDOWN_FILE
from storage_core.checkpoint.root_files import MARKER_WITHOUT_EPOCH
from storage_core.errors import LogDirectoryError, warn_once
from storage_core.filesystem import (
    DirectoryEntry,
    ExaminedEntry,
    FileStatus,
    FileSystem,
    FileSystemView,
    ReadableFileSystem,
    RoutedFileSystem,
)
from storage_core.filesystem.values import MissingError
from storage_core.tier.tier_objects import TierObject, TierObjects
from storage_core.tier.tier_partition import TIER_DIRECTORY, TierPartition, find_tier_partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from storage_core.filesystem import FileVersion, ReadableFile
    from storage_core.options.storage_options import StorageOptions


_Entry = TypeVar("_Entry", DirectoryEntry, ExaminedEntry)
_log: Final = logging.getLogger(__name__)
_CLEAN_SHUTDOWN: Final = TierObject.of_text(MARKER_WITHOUT_EPOCH.decode())
_DASH: Final = slice(-23, -22)
_PARTITION_DIRECTORY: Final = re.compile(r".*-[0-9]{1,10}")


class TierFileSystem(FileSystemView):
    """A file system in which each partition of a tier is a directory with Kafka's names for its files.

    Such a directory is shown beside the tier's own one, which is hidden. Whatever is no tier is as in the file system
    below, which is not asked anything more for it. The version of a file says what it is made of, so that it is opened
    without a listing. Nothing of a tier is kept in a pickle: each task has a file system of its own.

    Args:
        base: Where the tiers are, and everything else.
        key_file: ``remoteStorageKeyFile``: a PEM file, or ``id=path`` pairs separated by commas.
    """

    def __init__(self, base: ReadableFileSystem, key_file: str | None = None) -> None:
        super().__init__(base)
        self._objects = TierObjects(base, key_file)
        # By the path of the directory that shows them; and which directories were looked into.
        self._shown: dict[str, dict[str, TierPartition | TierObject]] = {}
        self._listed: set[str] = set()

    def walk_directory(self, path: str) -> Iterator[DirectoryEntry]:
        """List a directory in any order. Look through a partition of a tier again."""
        return self._entries(path, self._base.walk_directory, _entry)

    def examine_directory(self, path: str) -> Iterator[ExaminedEntry]:
        """List a directory as `walk_directory` does, with the size of each entry."""
        return self._entries(path, self._base.examine_directory, _examined_entry)

    def status(self, path: str, *, follow_symlinks: bool = False) -> FileStatus | None:
        """Return the status of ``path``, or None if it does not exist."""
        found = self._find(path)
        if found is None:
            status = self._base.status(path, follow_symlinks=follow_symlinks)
            found = self._look_for(path) if status is None else None
            if found is None:
                return status
        if isinstance(found, TierPartition):
            # Changes with what is in it, which a stream waits for.
            return self._base.status(found.path)
        return found.status

    def open(self, path: str, version: FileVersion | None = None) -> ReadableFile:
        """Open a regular file for reading. A file of a tier is opened by its version without a listing.

        Raises:
            FileReplacedError: An object is not the one that was listed.
            UnreadableError: This user may not read it, or its key is not given.
            LogDirectoryError: It does not exist, or is no file.
        """
        if isinstance(version, str) and version.startswith("["):
            return self._objects.open(path, TierObject.of_version(version))
        found = self._find(path)
        if found is None:
            try:
                return self._base.open(path, version)
            except MissingError:
                found = self._look_for(path)
                if found is None:
                    raise
        if isinstance(found, TierPartition):
            raise LogDirectoryError("Expected a regular file, found a directory.", path=path)
        return self._objects.open(path, found)

    def read_file(self, path: str, limit_bytes: int) -> bytes | None:
        """Read a whole small file, or return None if it does not exist."""
        if self._find(path) is None:
            data = self._base.read_file(path, limit_bytes)
            if data is not None or self._look_for(path) is None:
                return data
        return ReadableFileSystem.read_file(self, path, limit_bytes)

    def forget_listings(self) -> None:
        """Forget what was listed, so that the next question looks again."""
        self._shown.clear()
        self._listed.clear()
        super().forget_listings()

    def _entries(
        self,
        path: str,
        listed: Callable[[str], Iterator[_Entry]],
        entry_of: Callable[[str, FileStatus], _Entry],
    ) -> Iterator[_Entry]:
        found = self._find(path)
        if found is None:
            try:
                yield from self._with_partitions(path, listed(path), entry_of)
            except MissingError:
                found = self._look_for(path)
                if found is None:
                    raise
        if isinstance(found, TierPartition):
            for name, made_of in found.look_again().items():
                yield entry_of(name, made_of.status)

    def _with_partitions(
        self, path: str, entries: Iterable[_Entry], entry_of: Callable[[str, FileStatus], _Entry]
    ) -> Iterator[_Entry]:
        """Pass on the entries of a directory, with the partitions of tiers in the place of the tiers' directories."""
        suspects = []
        for entry in entries:
            # Most names are those of segments' files: the dash before an id tells them at once.
            if entry.name[_DASH] == "-" and TIER_DIRECTORY.fullmatch(entry.name):
                suspects.append(entry)
            else:
                yield entry
        paths = [os.path.join(path, entry.name) for entry in suspects if _is_directory(entry)]
        if not paths and TIER_DIRECTORY.fullmatch(os.path.basename(path)):
            # A topic's own directory is named by the user.
            paths = [path]
        found = (
            dict(zip(paths, self._base.map(partial(find_tier_partitions, self._objects), paths), strict=True))
            if paths
            else {}
        )
        shown = self._choose(path, list(chain.from_iterable(found.values())))
        if shown:
            self._shown[path] = shown
        else:
            self._shown.pop(path, None)
        if shown or not _PARTITION_DIRECTORY.fullmatch(os.path.basename(path)):
            self._listed.add(path)
        yield from (entry for entry in suspects if not found.get(os.path.join(path, entry.name)))
        yield from (entry_of(name, each.status) for name, each in shown.items())

    def _choose(self, path: str, partitions: list[TierPartition]) -> dict[str, TierPartition | TierObject]:
        """Choose which partitions to show in a directory, by name. Each tier's segments are closed and whole."""
        if not partitions:
            return {}
        names = {entry.name for entry in self._base.list_directory(path)}
        found: dict[str, TierPartition] = {}
        for partition in partitions:
            name = partition.directory_name
            other = found.setdefault(name, partition)
            if name in names:
                warn_once(_log, f"Left out {partition.path}: there is a directory {name} beside it.")
            elif other is not partition:
                older, found[name] = sorted((partition, other), key=TierPartition.last_upload_ms)
                warn_once(
                    _log, f"Left out {older.path}: {found[name].path} is of a later topic with the same name."
                )
        shown: dict[str, TierPartition | TierObject] = {
            name: partition for name, partition in found.items() if name not in names
        }
        if CLEAN_SHUTDOWN_FILE not in names and not any(map(_PARTITION_DIRECTORY.fullmatch, names)):
            # Of these logs nothing but whole segments is uploaded: bytes that are no batch are damage.
            shown[CLEAN_SHUTDOWN_FILE] = _CLEAN_SHUTDOWN
        return shown

    def _find(self, path: str) -> TierPartition | TierObject | None:
        """Find what is shown at a path: a partition, or a file."""
        if not self._shown:
            return None
        directory, name = os.path.split(path)
        found = self._shown.get(directory, {}).get(name)
        if found is None:
            root, directory_name = os.path.split(directory)
            partition = self._shown.get(root, {}).get(directory_name)
            return partition.made_of(name) if isinstance(partition, TierPartition) else None
        return found

    def _look_for(self, path: str) -> TierPartition | TierObject | None:
        """Find what is shown at a path where nothing lies. List the directory that would show it, unless it was listed."""
        for directory in (path, os.path.dirname(path)):
            root, directory_name = os.path.split(directory)
            if root in self._listed or not _PARTITION_DIRECTORY.fullmatch(directory_name):
                continue
            if directory == path or self._base.status(directory) is None:
                with contextlib.suppress(MissingError):
                    self.list_directory(root)
        return self._find(path)


def _is_directory(entry: DirectoryEntry | ExaminedEntry) -> bool:
    return entry.is_directory if isinstance(entry, DirectoryEntry) else entry.kind == "directory"


def _entry(name: str, status: FileStatus) -> DirectoryEntry:
    return DirectoryEntry(name, status.is_directory, status.is_regular_file, is_symlink=False)


def _examined_entry(name: str, status: FileStatus) -> ExaminedEntry:
    kind: Literal["file", "directory"] = "directory" if status.is_directory else "file"
    return ExaminedEntry(name, kind, status.size_bytes, status.size_bytes, status.modified_ms)


def open_file_system(storage: StorageOptions, filesystem: object = None) -> ReadableFileSystem:
    """Return a file system for the paths of one read.

    Args:
        storage: How to reach object stores, and to decrypt tiers.
        filesystem: What the caller reads from: a `FileSystem` for local paths, or one of pyarrow.fs or fsspec for URIs.

    Raises:
        OptionError: It is none of these.
    """
    if isinstance(filesystem, TierFileSystem):
        return filesystem
    if filesystem is None or isinstance(filesystem, FileSystem):
        base: ReadableFileSystem = RoutedFileSystem(storage, filesystem or FileSystem())
    elif hasattr(filesystem, "forget_listings"):
        base = cast("ReadableFileSystem", filesystem)
    else:
        from storage_core.filesystem.adapter import adapt  # noqa: PLC0415  (few reads need it)

        base = RoutedFileSystem(storage, FileSystem(), adapt(filesystem))
    return TierFileSystem(base, storage.key_file or None)
