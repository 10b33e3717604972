"""What reads need of a file system, and the local one.

Every operation on a local file is a method of `FileSystem` or of an object that it returns.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import secrets
import stat
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeVar

from storage_core.errors import (
    LogDirectoryError,
    LogDirectoryLockedError,
    OptionError,
    SegmentLogError,
    StorageError,
)
from storage_core.filesystem.file_lock import FileLock, OwningProcess, acquire_lock, is_locked, keep_if_locked
from storage_core.filesystem.files import OpenFile, WritableFile, flush_descriptor, sync_file_system
from storage_core.filesystem.pooled_file import FilePool, PooledFile
from storage_core.filesystem.values import (
    DirectoryEntry,
    ExaminedEntry,
    FileStatus,
    FileVersion,
    IoStatistics,
    MissingError,
    StorageTraits,
    explained_reading,
    explained_writing,
    explained_writing_to_open_file,
    file_status,
    require_small,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from storage_core.filesystem.reading import ReadableFile


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_log = logging.getLogger(__name__)
_LOCAL_TRAITS: Final = StorageTraits()
# O_NONBLOCK keeps a FIFO named like a segment from blocking the open; O_NOFOLLOW keeps a
# symbolic link from leading out of the directory that the user named.
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_WRITE_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY
_ASKS_EFFECTIVE_USER = os.access in os.supports_effective_ids
_FILE_MODE = 0o644
_DIRECTORY_MODE = 0o755
_READABLE: Final = stat.S_IRGRP | stat.S_IROTH
_TEMPORARY_NAME_BYTES: Final = 8
TEMPORARY_FILE: Final = re.compile(rf".+\.[0-9a-f]{{{2 * _TEMPORARY_NAME_BYTES}}}\.tmp", re.DOTALL)
"""The names of files that were going to replace others."""


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
        with contextlib.suppress(MissingError), self.open(path) as opened:
            require_small(path, opened.status.size_bytes, limit_bytes)
            # Bytes appended meanwhile are not read: small files are replaced, not appended to.
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


class FileSystem(ReadableFileSystem):
    """The local file system.

    ``statistics`` counts the operations of this instance: to account for one read, give it an instance of its own.

    Args:
        max_open_files: How many files of logs opened for writing may be open at a time. Files that are only read,
            and small files, come in addition, a few for each thread.
    """

    def __init__(self, *, max_open_files: int = 512) -> None:
        if max_open_files < 1:
            raise OptionError(f"Expected max_open_files of 1 or more, found {max_open_files}.")
        self.statistics = IoStatistics()
        self._pool = FilePool(max_open_files)
        self._pool_owner = OwningProcess()

    @property
    def local(self) -> FileSystem:
        """Return the file system itself."""
        return self

    def walk_directory(self, path: str) -> Iterator[DirectoryEntry]:
        """List a directory in any order, one entry at a time; raises as `list_directory` does."""
        self.statistics.directories_listed += 1
        with explained_reading(path, "list"), os.scandir(path) as entries:
            for entry in entries:
                yield _directory_entry(entry)

    def examine_directory(self, path: str) -> Iterator[ExaminedEntry]:
        """List a directory as `walk_directory` does, with the size of each entry; without those that vanish meanwhile."""
        self.statistics.directories_listed += 1
        with explained_reading(path, "list"), os.scandir(path) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                self.statistics.files_examined += 1
                yield _examined_entry(entry.name, status)

    def status(self, path: str, *, follow_symlinks: bool = False) -> FileStatus | None:
        """Return the status of ``path``.

        Returns:
            None if it does not exist, or if a file is where one of its parents would be.
        """
        self.statistics.files_examined += 1
        with explained_reading(path, "examine"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return file_status(os.stat(path, follow_symlinks=follow_symlinks))
        return None

    def ignores_case(self, path: str) -> bool:
        """Return True if the file that exists at ``path`` is also found by its name in the other case."""
        directory, name = os.path.split(path)
        found = self.status(path)
        return found is not None and self.status(os.path.join(directory, name.swapcase())) == found

    def open(self, path: str, version: FileVersion | None = None) -> OpenFile:  # noqa: ARG002
        """Open a regular file for reading, whatever its version.

        Raises:
            UnreadableError: This user may not read it.
            LogDirectoryError: It does not exist, or is a link, FIFO, device or directory.
        """
        with explained_reading(path, "open"):
            descriptor = os.open(path, _READ_FLAGS)
        status = _require_regular_file(path, descriptor)
        self.statistics.files_opened += 1
        return OpenFile(path, descriptor, status, self.statistics)

    def open_for_writing(self, path: str, *, create: bool = False, like: Sequence[str] = ()) -> WritableFile:
        """Open a regular file for reading and writing, and keep its content.

        A file created here is durable only after `flush_directory`. It is as private as its directory, and as the files
        ``like``, which its content is made of.

        Raises:
            UnreadableError: This user may not write to it.
            LogDirectoryError: It does not exist, or is a link, FIFO, device or directory.
            StorageError: The file system refused.
        """
        flags = _WRITE_FLAGS | os.O_CREAT if create else _WRITE_FLAGS
        with explained_writing(path, "open and write to"):
            descriptor = os.open(path, flags, _mode_in(path, like) if create else 0)
        status = _require_regular_file(path, descriptor)
        self.statistics.files_opened += 1
        return WritableFile(path, descriptor, status, self.statistics, self.unshare)

    def create_temporary(self, path: str, *, like: Sequence[str] = ()) -> WritableFile:
        """Create an empty file beside ``path``, which it may replace; its name cannot be foreseen.

        It is as private as its directory, as the file at ``path``, and as the files ``like``.
        """
        made = temporary_name(path)
        with explained_writing(made, "create"):
            descriptor = os.open(made, _WRITE_FLAGS | os.O_CREAT | os.O_EXCL, _mode_in(path, (path, *like)))
        self.statistics.files_opened += 1
        return WritableFile(made, descriptor, _require_regular_file(made, descriptor), self.statistics)

    @contextlib.contextmanager
    def replacing(self, path: str, *, like: Sequence[str] = ()) -> Iterator[WritableFile]:
        """Open a new file that gets the name ``path`` at the end of a ``with`` block, or is deleted after an error.

        Durable only if the caller flushes the file, and then with `flush_directory`.
        """
        made = self.create_temporary(path, like=like)
        try:
            with made:
                yield made
            self.rename(made.path, path)
        except Exception:
            with contextlib.suppress(SegmentLogError):
                self.delete(made.path)
            raise

    def unshare(self, file: WritableFile) -> None:
        """Replace an open file by a copy, durably, so that a change does not reach its other names.

        Raises:
            StorageError: The file system refused, or has too little space for the copy.
        """
        path = file.path
        # Reports what was lost, before the copy is taken for what was written.
        file.flush()
        with self.replacing(path) as made:
            if self.status(path) != file.current_status():
                raise StorageError(
                    "Expected the file that was opened, found another one under its name. Stop the process that replaces "
                    "files here, and open the log again.",
                    path=path,
                )
            made.copy_from(file, 0, file.size_bytes(), 0)
            _give_owner_and_mode(made, file)
            self.set_modified_ms(made.path, file.current_status().modified_ms)
            made.flush()
        self.flush_directory(os.path.dirname(path) or ".")
        with self.open_for_writing(path) as own:
            file.become(own)
        _log.info(
            "%s has another name, that of a backup perhaps, so a copy replaced it before it was changed.",
            path,
        )

    def open_pooled(self, path: str, *, create: bool = False, like: Sequence[str] = ()) -> PooledFile:
        """Open a file that the pool may close while it is not used, and that opens again on use.

        At most ``max_open_files`` of these files have a descriptor.
        """
        if not self._pool_owner.is_this:
            # In a forked process: the pool's files, and the thread that may hold its lock, belong to the parent.
            self._pool, self._pool_owner = FilePool(self._pool.max_open), OwningProcess()
        open_first = partial(self.open_for_writing, create=create, like=like)
        return PooledFile(self._pool, path, self.open_for_writing, open_first)

    def require_writable(self, path: str) -> None:
        """Check that this user may write to a file, or to a directory. A path that does not exist passes.

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
        """Rename atomically, and replace ``target`` if it exists. Durable only after `flush_directory`."""
        with explained_writing(source, "rename"):
            os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        """Make a hard link. Durable only after `flush_directory` of its directory.

        Raises:
            FileExistsError: The target exists (also a LogDirectoryError).
            StorageError: The file system refused: it does not support links, or no space is left.
        """
        with explained_writing(target, "link"):
            os.link(source, target, follow_symlinks=False)

    def replace_by_link(self, source: str, target: str) -> None:
        """Make a hard link that replaces ``target`` atomically; raises as `link` does."""
        made = temporary_name(target)
        self.link(source, made)
        self.rename(made, target)

    def delete(self, path: str) -> bool:
        """Delete a file; False if it did not exist. Durable only after `flush_directory`."""
        try:
            with explained_writing(path, "delete"):
                os.unlink(path)
        except MissingError:
            return False
        return True

    def make_directory(self, path: str) -> None:
        """Make a directory in one that exists, as private as that one. Durable only after `flush_directory` of the parent.

        Raises:
            FileExistsError: The path exists (also a LogDirectoryError).
        """
        with explained_writing(path, "make"):
            os.mkdir(path, _mode_in(path, (), _DIRECTORY_MODE))

    def make_directories(self, path: str, *, like: Sequence[str] = ()) -> None:
        """Make a directory and those above it that do not exist, durably, and as private as the directories ``like``.

        Raises:
            LogDirectoryError: Something that is not a directory is at its path, or above it.
        """
        status = self.status(path, follow_symlinks=True)
        if status is not None and not status.is_directory:
            raise LogDirectoryError("Expected a directory, found something else. Check the path.", path=path)
        if status is None:
            parent = os.path.dirname(path)
            self.make_directories(parent, like=like)
            self.make_directory(path)
            if like:
                self.make_as_private(path, like)
            self.flush_directory(parent)

    def make_as_private(self, path: str, like: Sequence[str]) -> None:
        """Take permissions from a new directory that the directories ``like`` do not give."""
        with explained_writing(path, "change the mode of"):
            os.chmod(path, _mode_in(path, (path, *like), _DIRECTORY_MODE))

    def is_own_directory(self, path: str) -> bool:
        """Return True if a path is a directory of this user, to which nobody else may write."""
        with explained_reading(path, "examine"):
            status = os.lstat(path)
        is_own = status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return is_own and stat.S_ISDIR(status.st_mode)

    def delete_directory(self, path: str) -> None:
        """Delete an empty directory. Durable only after `flush_directory` of the parent."""
        with explained_writing(path, "delete"):
            os.rmdir(path)

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Set the modification time of a file, in milliseconds since 1970. Durable only after its next flush."""
        with explained_writing(path, "change the time of"):
            os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000), follow_symlinks=False)

    def flush_directory(self, path: str) -> None:
        """Force the entries of a directory to disk: creations, renames and deletions."""
        with explained_writing(path, "flush"):
            descriptor = os.open(path, _DIRECTORY_FLAGS)
        try:
            with explained_writing_to_open_file(path, "flush"):
                flush_descriptor(descriptor)
        finally:
            os.close(descriptor)
        self.statistics.flushes += 1

    def sync(self, path: str) -> None:
        """Write everything on the file system of ``path`` to disk, where that is possible.

        It makes many following flushes cheap. It replaces none of them, as it does not report errors.
        """
        with explained_writing(path, "flush"):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            sync_file_system(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, path: str) -> int:
        """Return the space available to this user on the file system of ``path``."""
        with explained_reading(path, "examine"):
            status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def free_files(self, path: str) -> int | None:
        """Return the inodes available to this user on the file system of ``path``.

        Returns:
            None if it has no limit.
        """
        with explained_reading(path, "examine"):
            status = os.statvfs(path)
        return status.f_favail if status.f_files else None

    def lock(self, path: str) -> FileLock:
        """Lock a file, which is created if it is missing, and kept on release.

        Raises:
            LogDirectoryLockedError: A broker, another process, or another object in this one holds it.
            UnreadableError: This user may not write to it.
            LogDirectoryError: It is a link, FIFO, device or directory.
            StorageError: The file system refused.
        """
        return acquire_lock(path)

    def traits_of(self, path: str) -> StorageTraits:  # noqa: ARG002
        """Return the traits of a local disk."""
        return _LOCAL_TRAITS

    def map(self, function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
        """Apply a function to each item, one after the other."""
        return map(function, items)

    def forget_listings(self) -> None:
        """Do nothing: no listing is kept."""

    def is_locked(self, path: str) -> bool:
        """Return True if a process of this machine is seen to hold the lock of a file. Nothing is locked or created."""
        self.statistics.files_examined += 1
        return is_locked(path)


def temporary_name(path: str) -> str:
    """Return the path of a file that is going to replace ``path``; nobody can make it beforehand."""
    return f"{path}.{secrets.token_hex(_TEMPORARY_NAME_BYTES)}.tmp"


def _mode_in(path: str, like: Sequence[str], mode: int = _FILE_MODE) -> int:
    """Return the permissions of a new file: at most those of its directory and of the paths ``like``."""
    for each in (os.path.dirname(path) or ".", *like):
        # What does not exist, or cannot be examined, has nothing to hide; the creation reports what is wrong.
        with contextlib.suppress(OSError, ValueError):
            found = os.stat(each).st_mode
            if stat.S_ISREG(found):
                # Who may read a file may list a directory that is made of it.
                found |= (found & _READABLE) >> 2
            mode &= found | stat.S_IRWXU
    return mode


def _give_owner_and_mode(made: WritableFile, of: WritableFile) -> None:
    with explained_writing(made.path, "change the mode of"):
        found = os.fstat(of.descriptor)
        # Only root may give files away.
        with contextlib.suppress(PermissionError):
            os.fchown(made.descriptor, found.st_uid, found.st_gid)
        os.fchmod(made.descriptor, stat.S_IMODE(found.st_mode))


def _require_regular_file(path: str, descriptor: int) -> FileStatus:
    """Return the status of an opened file, which is closed again if it must not be opened."""
    found = os.fstat(descriptor)
    status = file_status(found)
    if not status.is_regular_file:
        os.close(descriptor)
        raise LogDirectoryError("Expected a regular file. Only regular files are opened.", path=path)
    if keep_if_locked(descriptor, found):
        message = (
            "Expected another file than the lock that this process holds: closing it would release the lock."
        )
        raise LogDirectoryLockedError(message, path=path)
    return status


def _directory_entry(entry: os.DirEntry[str]) -> DirectoryEntry:
    return DirectoryEntry(
        entry.name,
        entry.is_dir(follow_symlinks=False),
        entry.is_file(follow_symlinks=False),
        entry.is_symlink(),
    )


_BLOCK_BYTES: Final = 512
_KINDS: Final[dict[int, Literal["file", "directory", "link"]]] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
}


def _examined_entry(name: str, status: os.stat_result) -> ExaminedEntry:
    return ExaminedEntry(
        name,
        _KINDS.get(stat.S_IFMT(status.st_mode), "other"),
        status.st_size,
        status.st_blocks * _BLOCK_BYTES,
        status.st_mtime_ns // 1_000_000,
    )
