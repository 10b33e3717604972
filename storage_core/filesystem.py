"""The one module that touches the file system.

Everything else receives a `FileSystem` and asks it, so that faults can be injected under
everything and every byte read is counted. Files are read with ``pread`` into bounded
buffers and never mapped: a mapped file that a broker truncates would kill the process.
"""

from __future__ import annotations

import errno
import getpass
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from storage_core.errors import LogDirectoryError, UnreadableError

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["DirectoryEntry", "FileStatus", "FileSystem", "IoStatistics", "OpenFile"]

# O_NONBLOCK keeps a FIFO named like a segment from blocking the open; O_NOFOLLOW keeps a
# symbolic link from leading out of the directory that the user named.
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class FileStatus:
    """What ``stat`` says of one file.

    ``inode`` and ``device`` tell whether a path still names the file that was planned.
    """

    size_bytes: int
    modified_ms: int
    inode: int
    device: int
    is_regular_file: bool
    is_directory: bool


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """One name in a directory. The kind is that of the name itself: links are not followed."""

    name: str
    is_directory: bool
    is_regular_file: bool
    is_symlink: bool


@dataclass(slots=True)
class IoStatistics:
    """What was asked of the file system so far."""

    bytes_read: int = 0
    reads: int = 0
    files_opened: int = 0
    directories_listed: int = 0
    files_examined: int = 0


class OpenFile:
    """A regular file opened for reading. Use as a context manager."""

    def __init__(self, path: str, descriptor: int, status: FileStatus, statistics: IoStatistics) -> None:
        self.path = path
        self.status = status
        self._descriptor = descriptor
        self._statistics = statistics
        self._explained = _explained(path, "read")

    def read_at(self, size_bytes: int, position_bytes: int) -> bytes:
        """Read up to ``size_bytes`` from ``position_bytes``; shorter only at the end of the file."""
        with self._explained:
            data = self._read_at(size_bytes, position_bytes)
        self._statistics.reads += 1
        self._statistics.bytes_read += len(data)
        return data

    def _read_at(self, size_bytes: int, position_bytes: int) -> bytes:
        data = os.pread(self._descriptor, size_bytes, position_bytes)
        # One pread may return less than asked for without being at the end.
        if 0 < len(data) < size_bytes:
            pieces = [data]
            have_bytes = len(data)
            while have_bytes < size_bytes:
                data = os.pread(self._descriptor, size_bytes - have_bytes, position_bytes + have_bytes)
                if not data:
                    break
                pieces.append(data)
                have_bytes += len(data)
            data = b"".join(pieces)
        return data

    def read_into(self, buffer: memoryview, position_bytes: int) -> int:
        """Fill ``buffer`` from ``position_bytes``; return the bytes read, fewer only at the end of the file."""
        filled = 0
        with self._explained:
            while filled < len(buffer):
                count = os.preadv(self._descriptor, [buffer[filled:]], position_bytes + filled)
                if count == 0:
                    break
                filled += count
        self._statistics.reads += 1
        self._statistics.bytes_read += filled
        return filled

    def next_data(self, position_bytes: int) -> int | None:
        """A place at or behind a position up to which there are only zeros; None if there are only zeros.

        A preallocated file has no blocks on disk where nothing was written: they need not be read.
        """
        try:
            with self._explained:
                return os.lseek(self._descriptor, position_bytes, os.SEEK_DATA)
        except LogDirectoryError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno == errno.ENXIO:
                return None
            if isinstance(cause, OSError) and cause.errno == errno.EINVAL:
                # A file system that does not tell.
                return position_bytes
            raise

    def size_bytes(self) -> int:
        """The size now, which may differ from ``status.size_bytes`` under a live broker."""
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class FileSystem:
    """Read access to the local file system, counted.

    One instance serves one read, on one thread at a time; ``statistics`` then says what
    that read touched.
    """

    def __init__(self) -> None:
        self.statistics = IoStatistics()

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """List a directory in name order.

        Raises:
            UnreadableError: This user may not list it.
            LogDirectoryError: It does not exist or is no directory.
        """
        self.statistics.directories_listed += 1
        with _explained(path, "list"), os.scandir(path) as entries:
            listed = [_directory_entry(entry) for entry in entries]
        listed.sort(key=lambda entry: entry.name)
        return listed

    def status(self, path: str, *, follow_symlinks: bool = False) -> FileStatus | None:
        """What ``stat`` says of ``path``; None if nothing is there."""
        self.statistics.files_examined += 1
        try:
            with _explained(path, "examine"):
                return _file_status(os.stat(path, follow_symlinks=follow_symlinks))
        except _MissingError:
            return None

    def open(self, path: str) -> OpenFile:
        """Open a regular file for reading.

        Raises:
            UnreadableError: This user may not read it.
            LogDirectoryError: It does not exist, or is a link, FIFO, device or directory.
        """
        with _explained(path, "open"):
            descriptor = os.open(path, _OPEN_FLAGS)
        status = _file_status(os.fstat(descriptor))
        if not status.is_regular_file:
            os.close(descriptor)
            raise LogDirectoryError("Expected a regular file. Only regular files are opened.", path=path)
        self.statistics.files_opened += 1
        return OpenFile(path, descriptor, status, self.statistics)

    def read_file(self, path: str, limit_bytes: int) -> bytes | None:
        """Read a whole small file; None if it does not exist.

        Raises:
            LogDirectoryError: It is longer than ``limit_bytes``.
        """
        try:
            opened = self.open(path)
        except _MissingError:
            return None
        with opened:
            size_bytes = opened.status.size_bytes
            # What the file grows by meanwhile is not read: small files are replaced, not appended to.
            if size_bytes <= limit_bytes:
                return opened.read_at(size_bytes, 0)
        raise LogDirectoryError(
            f"Expected at most {limit_bytes} bytes in a file of this kind, found {size_bytes}.", path=path
        )


class _MissingError(LogDirectoryError, FileNotFoundError):
    """The path does not exist: also a FileNotFoundError, so that callers can tell it apart."""

    def __str__(self) -> str:
        return LogDirectoryError.__str__(self)


class _explained:  # noqa: N801  (used like a function)
    """Turn an OSError about ``path`` into one of this package's errors."""

    def __init__(self, path: str, action: str) -> None:
        self._path = path
        self._action = action

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, FileNotFoundError):
            raise _MissingError("No such file or directory.", path=self._path) from error
        if isinstance(error, PermissionError):
            message = f"User {_user_name()} may not {self._action} this path. Grant read access, or run as its owner."
            raise UnreadableError(message, path=self._path) from error
        if isinstance(error, (OSError, ValueError)):
            raise LogDirectoryError(
                f"Could not {self._action} this path: {error}.", path=self._path
            ) from error


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _directory_entry(entry: os.DirEntry[str]) -> DirectoryEntry:
    return DirectoryEntry(
        entry.name,
        entry.is_dir(follow_symlinks=False),
        entry.is_file(follow_symlinks=False),
        entry.is_symlink(),
    )


def _file_status(status: os.stat_result) -> FileStatus:
    return FileStatus(
        status.st_size,
        status.st_mtime_ns // 1_000_000,
        status.st_ino,
        status.st_dev,
        stat.S_ISREG(status.st_mode),
        stat.S_ISDIR(status.st_mode),
    )
