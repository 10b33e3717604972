"""File systems that show others: each path is sent to the one that it is in, and paths are told from URIs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

from storage_core.filesystem.file_system import ReadableFileSystem
from storage_core.options.paths import URI_STARTS, is_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from storage_core.filesystem.bucket import Bucket
    from storage_core.filesystem.file_system import FileSystem
    from storage_core.filesystem.reading import ReadableFile
    from storage_core.filesystem.values import (
        DirectoryEntry,
        ExaminedEntry,
        FileStatus,
        FileVersion,
        StorageTraits,
    )
    from storage_core.options.storage_options import StorageOptions

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def absolute_path(path: str) -> str:
    """Return a path that means the same in any working directory. A URI does already."""
    return path if is_uri(path) else os.path.abspath(path)


class FileSystemView(ReadableFileSystem):
    """Another file system, which answers every question that a subclass does not answer itself."""

    def __init__(self, base: ReadableFileSystem) -> None:
        self.statistics = base.statistics
        self._base = base

    def _at(self, path: str) -> ReadableFileSystem:  # noqa: ARG002
        """Return the file system that a path is in."""
        return self._base

    @property
    def local(self) -> FileSystem:
        """Return the local file system, for what is written beside a read."""
        return self._base.local

    def walk_directory(self, path: str) -> Iterator[DirectoryEntry]:
        """List a directory in any order, one entry at a time."""
        return self._at(path).walk_directory(path)

    def examine_directory(self, path: str) -> Iterator[ExaminedEntry]:
        """List a directory as `walk_directory` does, with the size of each entry."""
        return self._at(path).examine_directory(path)

    def status(self, path: str, *, follow_symlinks: bool = False) -> FileStatus | None:
        """Return the status of ``path``, or None if it does not exist."""
        return self._at(path).status(path, follow_symlinks=follow_symlinks)

    def open(self, path: str, version: FileVersion | None = None) -> ReadableFile:
        """Open a regular file for reading; raises as that of its file system."""
        return self._at(path).open(path, version)

    def read_file(self, path: str, limit_bytes: int) -> bytes | None:
        """Read a whole small file; return None if it does not exist."""
        return self._at(path).read_file(path, limit_bytes)

    def free_bytes(self, path: str) -> int | None:
        """Return the space available on the file system of ``path``; None if it has no limit."""
        return self._at(path).free_bytes(path)

    def is_locked(self, path: str) -> bool:
        """Return True if a process of this machine is seen to hold the lock of a file."""
        return self._at(path).is_locked(path)

    def traits_of(self, path: str) -> StorageTraits:
        """Return what reads take into account of where a path leads."""
        return self._at(path).traits_of(path)

    def map(self, function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
        """Apply a function that reads to each item, several at a time where a request takes long; yield the results in order."""
        return self._base.map(function, items)

    def forget_listings(self) -> None:
        """Forget what was listed, so that the next question looks again."""
        self._base.forget_listings()


class RoutedFileSystem(FileSystemView):
    """The local file system for paths, and object stores for URIs. It opens nothing of these before the first URI.

    Args:
        storage: How to reach object stores.
        local: The local file system, whose ``statistics`` count what is done on both.
        open_bucket: Opens what holds a URI, instead of a client for its scheme.
    """

    def __init__(
        self,
        storage: StorageOptions,
        local: FileSystem,
        open_bucket: Callable[[str, StorageOptions], Bucket] | None = None,
    ) -> None:
        super().__init__(local)
        self._storage = storage
        self._open_bucket = open_bucket
        self._stores: ReadableFileSystem | None = None

    def _at(self, path: str) -> ReadableFileSystem:
        if not path.startswith(URI_STARTS):
            return self._base
        if self._stores is None:
            from storage_core.filesystem.object_store import ObjectStoreFileSystem  # noqa: PLC0415  (an extra)

            self._stores = ObjectStoreFileSystem(self._storage, self._open_bucket, self.local)
        return self._stores

    def map(self, function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
        """Apply a function that reads to each item, several at a time once a URI was read; yield the results in order."""
        return (self._stores or self._base).map(function, items)

    def forget_listings(self) -> None:
        """Forget what was listed, so that the next question looks again."""
        if self._stores is not None:
            self._stores.forget_listings()
