"""The directory of a tiered partition with its remote segments in it, to recover the whole log."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from storage_core.directory import PartitionDirectory, PartitionLog
from storage_core.directory.remote_half import with_remote_halves
from storage_core.filesystem import (
    DirectoryEntry,
    FileStatus,
    FileSystemView,
    FileVersion,
    ReadableFile,
    ReadableFileSystem,
)
from storage_core.options import ReadOptions
from storage_core.scan.resolve import load_log, split_paths
from storage_core.segment.file_names import INDEX_SUFFIXES, LOG_SUFFIX, SNAPSHOT_SUFFIX, snapshot_file_name
from storage_core.tier.tier_files import ObjectFile

_log = logging.getLogger(__name__)


class _RemoteFile(NamedTuple):
    """A file in remote storage, or its beginning."""

    path: str
    status: FileStatus


def with_remote_segments(
    filesystem: ReadableFileSystem, directories: Iterable[PartitionDirectory], options: ReadOptions
) -> ReadableFileSystem:
    """Show in local directories what remote storage has below their first segments."""
    if not options.remote_storage:
        return filesystem
    files: dict[str, dict[str, _RemoteFile]] = {}
    remote_paths = split_paths(filesystem, options.remote_storage)
    for directory in with_remote_halves(filesystem, directories, remote_paths):
        if directory.remote:
            log = load_log(filesystem, directory, replace(options, mode="DROPMALFORMED"))
            for notice in log.notices:
                _log.warning("%s", notice)
            files[directory.path] = dict(_remote_files(filesystem, log))
    return _BothHalves(filesystem, files)


def _remote_files(filesystem: ReadableFileSystem, log: PartitionLog) -> Iterator[tuple[str, _RemoteFile]]:
    """List the files to add to the local directory of a log, by name. Of a segment that is read in part, only that beginning is added."""
    for index, start_offset in enumerate(log.segments.base_offsets):
        source, own_index = log.source_of(index)
        if not source.directory.root.is_remote:
            continue
        end_offset = log.segments.end_offset(index)
        wanted = [
            f"{source.segments.base_offsets[own_index]:020d}{suffix}"
            for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES)
        ]
        wanted += [
            snapshot_file_name(offset)
            for offset in source.segments.file_names.base_offsets(SNAPSHOT_SUFFIX)
            if start_offset < offset and (end_offset is None or offset <= end_offset)
        ]
        after = None
        if end_offset is not None and end_offset != source.segments.next_base_offset(own_index):
            after = log.segments[index].translate_offset(end_offset)
        for name in wanted:
            path = os.path.join(source.path, name)
            status = filesystem.status(path)
            if status is not None and after is not None and name.endswith(LOG_SUFFIX):
                status = replace(status, size_bytes=after.position_bytes)
            # Indexes of the whole segment are made again for its beginning.
            if status is not None and (after is None or not name.endswith(INDEX_SUFFIXES)):
                yield name, _RemoteFile(path, status)


class _BothHalves(FileSystemView):
    """A file system that shows remote files in local directories, unless these have files of the same names."""

    def __init__(self, base: ReadableFileSystem, files: Mapping[str, Mapping[str, _RemoteFile]]) -> None:
        super().__init__(base)
        self._files = files

    def walk_directory(self, path: str) -> Iterator[DirectoryEntry]:
        entries = {entry.name: entry for entry in self._base.walk_directory(path)}
        remote = self._files.get(path, {}).keys() - entries
        yield from entries.values()
        yield from (DirectoryEntry(name, False, True, is_symlink=False) for name in remote)

    def status(self, path: str, *, follow_symlinks: bool = False) -> FileStatus | None:
        status = self._base.status(path, follow_symlinks=follow_symlinks)
        found = self._remote(path) if status is None else None
        return status if found is None else found.status

    def open(self, path: str, version: FileVersion | None = None) -> ReadableFile:
        found = self._remote(path)
        if found is None or self._base.status(path) is not None:
            return self._base.open(path, version)
        return ObjectFile(path, found.status, self._base.open(found.path, found.status.version))

    def read_file(self, path: str, limit_bytes: int) -> bytes | None:
        data = self._base.read_file(path, limit_bytes)
        found = self._remote(path) if data is None else None
        return data if found is None else self._base.read_file(found.path, limit_bytes)

    def _remote(self, path: str) -> _RemoteFile | None:
        directory, name = os.path.split(path)
        return self._files.get(directory, {}).get(name)
