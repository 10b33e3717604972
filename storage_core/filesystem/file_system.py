"""The local file system: every effect of this package is a method here, or of what one of them returns."""

from __future__ import annotations

import errno
import os
from operator import attrgetter
from typing import TYPE_CHECKING

from storage_core.errors import LogDirectoryError, LogDirectoryLockedError, OptionError
from storage_core.filesystem.file_lock import FileLock, OwningProcess, acquire_lock, keep_if_locked
from storage_core.filesystem.files import OpenFile, WritableFile, flush_descriptor, sync_file_system
from storage_core.filesystem.pooled_file import FilePool, PooledFile
from storage_core.filesystem.values import (
    DirectoryEntry,
    FileStatus,
    IoStatistics,
    MissingError,
    explained_reading,
    explained_writing,
    make_directory_entry,
    make_file_status,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FileSystem"]


# O_NONBLOCK keeps a FIFO named like a segment from blocking the open; O_NOFOLLOW keeps a
# symbolic link from leading out of the directory that the user named.
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_WRITE_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY
_ASKS_EFFECTIVE_USER = os.access in os.supports_effective_ids
_FILE_MODE = 0o644
_DIRECTORY_MODE = 0o755


class FileSystem:
    """Access to the local file system, counted.

    ``statistics`` says what was asked of this instance: for the account of one read, give it its own.

    Args:
        max_open_files: How many files of logs that are written to are open at a time. Those that are only read, and
            small files, come on top, a few for each thread.
    """

    def __init__(self, *, max_open_files: int = 512) -> None:
        if max_open_files < 1:
            raise OptionError(f"Expected max_open_files of 1 or more, found {max_open_files}.")
        self.statistics = IoStatistics()
        self._pool = FilePool(max_open_files)
        self._pool_owner = OwningProcess()

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """List a directory in name order.

        Raises:
            UnreadableError: This user may not list it.
            LogDirectoryError: It does not exist or is no directory.
        """
        return sorted(self.walk_directory(path), key=attrgetter("name"))

    def walk_directory(self, path: str) -> Iterator[DirectoryEntry]:
        """List a directory in any order, one entry at a time; raises as `list_directory` does."""
        self.statistics.directories_listed += 1
        with explained_reading(path, "list"), os.scandir(path) as entries:
            for entry in entries:
                yield make_directory_entry(entry)

    def status(self, path: str, *, follow_symlinks: bool = False) -> FileStatus | None:
        """What ``stat`` says of ``path``; None if nothing is there."""
        self.statistics.files_examined += 1
        try:
            with explained_reading(path, "examine"):
                return make_file_status(os.stat(path, follow_symlinks=follow_symlinks))
        except MissingError:
            return None

    def open(self, path: str) -> OpenFile:
        """Open a regular file for reading.

        Raises:
            UnreadableError: This user may not read it.
            LogDirectoryError: It does not exist, or is a link, FIFO, device or directory.
        """
        with explained_reading(path, "open"):
            descriptor = os.open(path, _READ_FLAGS)
        status = _require_regular_file(path, descriptor)
        self.statistics.files_opened += 1
        return OpenFile(path, descriptor, status, self.statistics)

    def read_file(self, path: str, limit_bytes: int) -> bytes | None:
        """Read a whole small file; None if it does not exist.

        Raises:
            LogDirectoryError: It is longer than ``limit_bytes``.
        """
        try:
            opened = self.open(path)
        except MissingError:
            return None
        with opened:
            size_bytes = opened.status.size_bytes
            # What the file grows by meanwhile is not read: small files are replaced, not appended to.
            if size_bytes <= limit_bytes:
                return opened.read_at(size_bytes, 0)
        raise LogDirectoryError(
            f"Expected at most {limit_bytes} bytes in a file of this kind, found {size_bytes}.", path=path
        )

    def open_for_writing(self, path: str, *, create: bool = False) -> WritableFile:
        """Open a regular file for reading and writing; its content stays.

        A file that is created here is in its directory for good only after `flush_directory`.

        Raises:
            UnreadableError: This user may not write to it.
            LogDirectoryError: It does not exist, or is a link, FIFO, device or directory.
            StorageError: The file system refused.
        """
        flags = _WRITE_FLAGS | os.O_CREAT if create else _WRITE_FLAGS
        with explained_writing(path, "open and write to"):
            descriptor = os.open(path, flags, _FILE_MODE)
        status = _require_regular_file(path, descriptor)
        self.statistics.files_opened += 1
        return WritableFile(path, descriptor, self.statistics, status)

    def open_pooled(self, path: str, *, create: bool = False) -> PooledFile:
        """The same for a file that is written to now and then: it is closed and opened again by itself.

        At most ``max_open_files`` of them have a descriptor.
        """
        if not self._pool_owner.is_this:
            # Its files belong to the process that this one was forked from, and so does the thread that holds its lock.
            self._pool, self._pool_owner = FilePool(self._pool.most_open), OwningProcess()
        return PooledFile(self, self._pool, path, create=create)

    def require_writable(self, path: str) -> None:
        """Make sure that this user may write to a file, or change what a directory holds. Nothing is changed.

        Of what is not there, nothing is said.

        Raises:
            UnreadableError: This user may not.
        """
        self.statistics.files_examined += 1
        if not os.access(path, os.R_OK | os.W_OK, effective_ids=_ASKS_EFFECTIVE_USER) and os.path.lexists(
            path
        ):
            with explained_writing(path, "write to"):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    def rename(self, source: str, target: str) -> None:
        """Rename in one step; what ``target`` named before is gone. For good only after `flush_directory`."""
        with explained_writing(source, "rename"):
            os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name. For good only after `flush_directory` of the directory that holds it.

        Raises:
            FileExistsError: Something is there already (also a LogDirectoryError).
            StorageError: The file system refused: it knows no links, or no space is left.
        """
        with explained_writing(target, "link"):
            os.link(source, target, follow_symlinks=False)

    def delete(self, path: str) -> bool:
        """Delete a file; False if there was none. For good only after `flush_directory`."""
        try:
            with explained_writing(path, "delete"):
                os.unlink(path)
        except MissingError:
            return False
        return True

    def make_directory(self, path: str) -> None:
        """Make a directory in one that exists. For good only after `flush_directory` of that one.

        Raises:
            FileExistsError: Something is there already (also a LogDirectoryError).
        """
        with explained_writing(path, "make"):
            os.mkdir(path, _DIRECTORY_MODE)

    def delete_directory(self, path: str) -> None:
        """Delete an empty directory. For good only after `flush_directory` of the one above."""
        with explained_writing(path, "delete"):
            os.rmdir(path)

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Say when a file was changed, in milliseconds since 1970. For good only after its next flush."""
        with explained_writing(path, "change the time of"):
            os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000), follow_symlinks=False)

    def flush_directory(self, path: str) -> None:
        """Bring the names in a directory to the disk itself: what was created, renamed and deleted in it."""
        with explained_writing(path, "flush"):
            descriptor = os.open(path, _DIRECTORY_FLAGS)
        try:
            with explained_writing(path, "flush", is_open=True):
                flush_descriptor(descriptor)
        finally:
            os.close(descriptor)
        self.statistics.flushes += 1

    def sync(self, path: str) -> None:
        """Ask for everything that was written to the file system of ``path`` to be brought to the disk, where that is possible.

        It makes the flushes of many files that follow cheap. It takes the place of none of them: they tell of errors.
        """
        with explained_writing(path, "flush"):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            sync_file_system(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, path: str) -> int:
        """How much space this user can still take on the file system of ``path``."""
        with explained_reading(path, "examine"):
            status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def free_files(self, path: str) -> int | None:
        """How many more files this user can make on the file system of ``path``; None if it makes room as it goes."""
        with explained_reading(path, "examine"):
            status = os.statvfs(path)
        return status.f_favail if status.f_files else None

    def lock(self, path: str) -> FileLock:
        """Take the lock of a file, which is created if it is missing, and left in place on release.

        Raises:
            LogDirectoryLockedError: A broker, another process, or another object in this one holds it.
            UnreadableError: This user may not write to it.
            LogDirectoryError: It is a link, FIFO, device or directory.
            StorageError: The file system refused.
        """
        return acquire_lock(path)


def _require_regular_file(path: str, descriptor: int) -> FileStatus:
    """The status of a file opened just now; it is closed again if it is none that may be opened."""
    found = os.fstat(descriptor)
    status = make_file_status(found)
    if not status.is_regular_file:
        os.close(descriptor)
        raise LogDirectoryError("Expected a regular file. Only regular files are opened.", path=path)
    if keep_if_locked(descriptor, found):
        message = "Expected another file than the lock that this process holds: closing it would give the lock away."
        raise LogDirectoryLockedError(message, path=path)
    return status
