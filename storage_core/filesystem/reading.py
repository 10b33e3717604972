"""What reads need of a file system, local or not: nothing above this package knows which one it has."""

from __future__ import annotations

from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from storage_core.filesystem.file_system import FileSystem
from storage_core.filesystem.values import (
    DirectoryEntry,
    ExaminedEntry,
    FileStatus,
    FileVersion,
    IoStatistics,
    MissingError,
    StorageTraits,
    require_small,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class ReadableFile(Protocol):
    """A file opened for reading. Use as a context manager.

    A class that derives from it inherits what follows from `read_into` for a file that does not change.

    Attributes:
        path: Of the file, for messages.
        status: What the file was when it was opened.
    """

    path: str
    status: FileStatus

    def size_bytes(self) -> int:
        """Return the current size, which may differ from ``status.size_bytes`` under a live broker."""
        return self.status.size_bytes

    def read_at(self, size_bytes: int, position_bytes: int) -> bytes:
        """Read up to ``size_bytes`` from ``position_bytes``; fewer only at the end of the file."""
        buffer = bytearray(max(0, min(size_bytes, self.status.size_bytes - position_bytes)))
        return bytes(buffer[: self.read_into(memoryview(buffer), position_bytes)])

    def read_into(self, buffer: memoryview, position_bytes: int) -> int:
        """Fill ``buffer`` from ``position_bytes``; return the number of bytes read, fewer only at the end of the file."""

    def next_data(self, position_bytes: int) -> int | None:
        """Return the next position with data, at or after the given one; None if only zeros follow."""
        return position_bytes if position_bytes < self.status.size_bytes else None

    def expect_reads(self, start_bytes: int, end_bytes: int) -> None:
        """Announce reads of these bytes, in order, so that several requests can be under way where one takes long."""

    def close(self) -> None:
        """Close the file; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ReadableFileSystem(Protocol):
    """What reads need of a file system. A class that derives from it inherits what follows from its other methods.

    Attributes:
        statistics: Counts the operations of this object: to account for one read, give it an object of its own.
    """

    statistics: IoStatistics

    @property
    def local(self) -> FileSystem:
        """Return the local file system, for what is written beside a read."""

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """List a directory in name order.

        Raises:
            UnreadableError: This user may not list it.
            LogDirectoryError: It does not exist or is not a directory.
        """
        return sorted(self.walk_directory(path), key=attrgetter("name"))

    def walk_directory(self, path: str) -> Iterator[DirectoryEntry]:
        """List a directory in any order, one entry at a time; raises as `list_directory` does."""

    def examine_directory(self, path: str) -> Iterator[ExaminedEntry]:
        """List a directory as `walk_directory` does, with the size of each entry; without those that vanish meanwhile."""

    def status(self, path: str, *, follow_symlinks: bool = False) -> FileStatus | None:
        """Return the status of ``path``.

        Returns:
            None if it does not exist, or if a file is where one of its parents would be.
        """

    def exists(self, path: str) -> bool:
        """Return True if a path leads to something, through links as well."""
        return self.status(path, follow_symlinks=True) is not None

    def open(self, path: str, version: FileVersion | None = None) -> ReadableFile:
        """Open a regular file for reading.

        Args:
            path: The file.
            version: What was listed, as far as the caller knows: where a request takes long, none is needed to open it.
                A caller compares it with the status of what was opened.

        Raises:
            UnreadableError: This user may not read it.
            LogDirectoryError: It does not exist, or is a link, FIFO, device or directory.
        """

    def read_file(self, path: str, limit_bytes: int) -> bytes | None:
        """Read a whole small file.

        Returns:
            None if it does not exist.

        Raises:
            LogDirectoryError: It is longer than ``limit_bytes``.
        """
        with suppress(MissingError), self.open(path) as opened:
            require_small(path, opened.status.size_bytes, limit_bytes)
            return opened.read_at(opened.status.size_bytes, 0)
        return None

    def traits_of(self, path: str) -> StorageTraits:
        """Return what reads take into account of where a path leads."""

    def free_bytes(self, path: str) -> int | None:
        """Return the space available to this user on the file system of ``path``; None if it has no limit."""

    def is_locked(self, path: str) -> bool:
        """Return True if a process of this machine is seen to hold the lock of a file. Nothing is locked or created."""

    def map(self, function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
        """Apply a function that reads to each item, several at a time where a request takes long.

        Yields:
            The results in order.
        """

    def forget_listings(self) -> None:
        """Forget what was listed, so that the next question looks again."""
