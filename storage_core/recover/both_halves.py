"""The directory of a tiered partition with its remote segments in it, to recover the whole log."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple, TypeVar

from storage_core.directory import PartitionDirectory, PartitionLog
from storage_core.directory.remote_half import with_remote_halves
from storage_core.filesystem import (
    DirectoryEntry,
    ExaminedEntry,
    FileStatus,
    FileSystem,
    FileVersion,
    ReadableFile,
    ReadableFileSystem,
    StorageTraits,
)
from storage_core.options import ReadOptions
from storage_core.scan.resolve import load_log, split_paths
from storage_core.segment.file_names import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    log_file_name,
    snapshot_file_name,
)
from storage_core.tier.tier_files import ObjectFile

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class _RemoteFile(NamedTuple):
    """A file in remote storage, or its beginning."""

    path: str
    status: FileStatus


def with_remote_segments(
    filesystem: ReadableFileSystem, directories: Iterable[PartitionDirectory], options: ReadOptions
) -> tuple[ReadableFileSystem, list[str]]:
    """Show in local directories what remote storage has below their first segments.

    Returns:
        The file system that shows it, and what whoever recovers the logs should know.
    """
    if not options.remote_storage:
        return filesystem, []
    remote_paths = split_paths(filesystem, options.remote_storage)
    files: dict[str, dict[str, _RemoteFile]] = {}
    notices: list[str] = []
    for directory in with_remote_halves(filesystem, directories, remote_paths):
        if directory.remote:
            log = load_log(filesystem, directory, replace(options, mode="DROPMALFORMED"))
            notices += log.notices
            files[directory.path] = dict(_remote_files(filesystem, log))
    return _BothHalves(filesystem, files), notices


def _remote_files(filesystem: ReadableFileSystem, log: PartitionLog) -> Iterator[tuple[str, _RemoteFile]]:
    """List the files to add to the local directory of a log, by name. Of a segment that is read in part, that is its beginning."""
    for index, start_offset in enumerate(log.segments.base_offsets):
        source, own_index = log.source_of(index)
        if not source.directory.root.is_remote:
            continue
        base_offset, names = source.segments.base_offsets[own_index], source.segments.file_names
        end_offset = log.segments.end_offset(index)
        is_cut = end_offset != source.segments.next_base_offset(own_index)
        after = (
            log.segments[index].translate_offset(end_offset) if is_cut and end_offset is not None else None
        )
        for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
            name = log_file_name(base_offset).removesuffix(LOG_SUFFIX) + suffix
            path = os.path.join(source.path, name)
            status = filesystem.status(path) if name in names else None
            if status is None or (after is not None and suffix != LOG_SUFFIX):
                # Indexes of the whole segment are made again for its beginning.
                continue
            if after is not None:
                status = replace(status, size_bytes=after.position_bytes)
            yield name, _RemoteFile(path, status)
        for offset in names.base_offsets(SNAPSHOT_SUFFIX):
            if start_offset < offset and (end_offset is None or offset <= end_offset):
                path = os.path.join(source.path, snapshot_file_name(offset))
                status = filesystem.status(path)
                if status is not None:
                    yield snapshot_file_name(offset), _RemoteFile(path, status)


class _BothHalves:
    """A file system that shows remote files in local directories, unless these have files of the same names.

    Args:
        base: Where both are.
        files: By local directory and name.
    """

    def __init__(self, base: ReadableFileSystem, files: Mapping[str, Mapping[str, _RemoteFile]]) -> None:
        self.statistics = base.statistics
        self._base = base
        self._files = files

    @property
    def local(self) -> FileSystem:
        """The local file system, for what is written beside a read."""
        return self._base.local

    def traits_of(self, path: str) -> StorageTraits:
        """Tell what the storage of ``path`` differs in from local files."""
        return self._base.traits_of(path)

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """List a directory in name order; raises as that of the file system below."""
        return sorted(self.walk_directory(path), key=attrgetter("name"))

    def walk_directory(self, path: str) -> Iterator[DirectoryEntry]:
        """List a directory in any order, one entry at a time."""
        names = set()
        for entry in self._base.walk_directory(path):
            names.add(entry.name)
            yield entry
        for name in self._files.get(path, {}).keys() - names:
            yield DirectoryEntry(name, False, True, is_symlink=False)

    def examine_directory(self, path: str) -> Iterator[ExaminedEntry]:
        """List a directory as `walk_directory` does, with the size of each entry."""
        names = set()
        for entry in self._base.examine_directory(path):
            names.add(entry.name)
            yield entry
        for name, file in self._files.get(path, {}).items():
            if name not in names:
                status = file.status
                yield ExaminedEntry(name, "file", status.size_bytes, status.size_bytes, status.modified_ms)

    def status(self, path: str, *, follow_symlinks: bool = False) -> FileStatus | None:
        """Return the status of ``path``, or None if it does not exist."""
        status = self._base.status(path, follow_symlinks=follow_symlinks)
        found = self._remote(path) if status is None else None
        return status if found is None else found.status

    def exists(self, path: str) -> bool:
        """Return True if a path leads to something."""
        return self.status(path, follow_symlinks=True) is not None

    def open(self, path: str, version: FileVersion | None = None) -> ReadableFile:
        """Open a regular file for reading; raises as that of the file system below."""
        found = self._remote(path)
        if found is None or self._base.status(path) is not None:
            return self._base.open(path, version)
        return ObjectFile(path, found.status, self._base.open(found.path, found.status.version))

    def read_file(self, path: str, limit_bytes: int) -> bytes | None:
        """Read a whole small file; return None if it does not exist."""
        data = self._base.read_file(path, limit_bytes)
        found = self._remote(path) if data is None else None
        return data if found is None else self._base.read_file(found.path, limit_bytes)

    def free_bytes(self, path: str) -> int | None:
        """Return the space available on the file system of ``path``; None if it has no limit."""
        return self._base.free_bytes(path)

    def is_locked(self, path: str) -> bool:
        """Return True if a process of this machine is seen to hold the lock of a file."""
        return self._base.is_locked(path)

    def is_shared(self, path: str) -> bool:
        """Return True if every host sees the same at ``path``."""
        return self._base.is_shared(path)

    def map(self, function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
        """Apply a function that reads to each item, several at a time where a request takes long."""
        return self._base.map(function, items)

    def forget_listings(self) -> None:
        """Look again at the next question."""
        self._base.forget_listings()

    def _remote(self, path: str) -> _RemoteFile | None:
        directory, name = os.path.split(path)
        return self._files.get(directory, {}).get(name)
