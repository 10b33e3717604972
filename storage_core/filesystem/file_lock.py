"""Locks between processes, as a broker takes one on ``.lock``.

A POSIX record lock belongs to a process and an inode. So a second lock in the same process succeeds,
and closing *any* descriptor of the file gives the lock away. Therefore all locks of this process stand
in a registry, and a file in it is not opened again before its lock is released.

A child that was forked from the process inherits none of its locks, but a copy of everything else: buffers,
descriptors, and the belief that it may write. `OwningProcess` tells the two apart.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from typing import TYPE_CHECKING, Self

from storage_core.errors import LogDirectoryError, LogDirectoryLockedError, LogForkedError
from storage_core.filesystem.values import explained_writing

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["FileLock", "OwningProcess", "acquire_lock", "keep_if_locked"]


_LOCK_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CREAT
_FILE_MODE = 0o644
# Each further attempt means that somebody replaced or removed the file in the meantime.
_MOST_ATTEMPTS = 100
_TAKEN = (errno.EACCES, errno.EAGAIN)


class _ThisProcess:
    """Has another identity in each process: asking the system for the process's id takes too long for each append."""

    __slots__ = ("identity",)

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.identity = object()


_this_process = _ThisProcess()
os.register_at_fork(after_in_child=_this_process.renew)


class OwningProcess:
    """The process that made something which others must not change: not even a child that was forked from it."""

    __slots__ = ("_identity", "_process_id")

    def __init__(self) -> None:
        self._identity = _this_process.identity
        self._process_id = os.getpid()

    @property
    def is_this(self) -> bool:
        """Whether this is the process, and not one that was forked from it."""
        return self._identity is _this_process.identity

    def check(self, path: str) -> None:
        """Refuse a change by a forked process.

        Raises:
            LogForkedError: This is not the process.
        """
        if self._identity is not _this_process.identity:
            raise LogForkedError(
                f"Expected process {self._process_id}, which opened this, found process {os.getpid()}, which was forked "
                "from it: what both of them write destroys what the other one wrote. Open the log directory in this "
                "process, after the other one has closed it; or with read_only=True, to read.",
                path=path,
            )


class _Registry:
    """The locks of this process, by device and inode.

    With each goes a list of descriptors that were opened all the same, and must not be closed before it.
    A forked child holds no lock of its parent, so an entry counts only in the process that made it.
    """

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        self._kept: dict[tuple[int, int], tuple[int, list[int]]] = {}

    def renew_mutex(self) -> None:
        self.mutex = threading.RLock()

    def holds(self, identity: tuple[int, int]) -> bool:
        entry = self._kept.get(identity)
        return entry is not None and entry[0] == os.getpid()

    def add(self, identity: tuple[int, int]) -> None:
        self._kept[identity] = (os.getpid(), [])

    def keep(self, identity: tuple[int, int], descriptor: int) -> None:
        self._kept[identity][1].append(descriptor)

    def remove(self, identity: tuple[int, int]) -> list[int]:
        return self._kept.pop(identity)[1]


# The one global state besides: what it describes, the locks of a process, is global too.
_registry = _Registry()
# A thread that the child does not have may have held it.
os.register_at_fork(after_in_child=_registry.renew_mutex)


class FileLock:
    """A lock that is held until it is released, or its process ends. Use as a context manager."""

    def __init__(self, path: str, descriptor: int, identity: tuple[int, int]) -> None:
        self.path = path
        self._descriptor = descriptor
        self._identity = identity
        self._owner = OwningProcess()

    def release(self) -> None:
        """Give the lock back; a second call does nothing. The file stays where it is."""
        with _registry.mutex:
            # In a forked child the lock was never held, and the descriptor is nobody's business.
            if self._descriptor < 0 or not self._owner.is_this:
                return
            descriptor, self._descriptor = self._descriptor, -1
            for each in [*_registry.remove(self._identity), descriptor]:
                os.close(each)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def acquire_lock(path: str) -> FileLock:
    """Lock ``path``, which is created if it is missing.

    Raises:
        LogDirectoryLockedError: Another process, or another object in this one, holds it.
        LogDirectoryError: It is no regular file, or this user may not write to it.
        StorageError: The file system knows no locks.
    """
    with _registry.mutex:
        for _ in range(_MOST_ATTEMPTS):
            lock = _try_to_lock(path)
            if lock is not None:
                return lock
    message = f"Expected this file to stay, it was replaced {_MOST_ATTEMPTS} times. Stop who does so."
    raise LogDirectoryLockedError(message, path=path)


def keep_if_locked(descriptor: int, status: os.stat_result) -> bool:
    """Whether this process holds a lock on an opened file; if so its descriptor must not be closed here.

    It is closed together with the lock.
    """
    identity = (status.st_dev, status.st_ino)
    # Nearly always there is no lock on it: looked up without the mutex first.
    if not _registry.holds(identity):
        return False
    with _registry.mutex:
        if not _registry.holds(identity):
            return False
        _registry.keep(identity, descriptor)
        return True


def _try_to_lock(path: str) -> FileLock | None:
    """Lock ``path``; None if it named another file afterwards."""
    with explained_writing(path, "lock"):
        identity = _identity_of(path)
        if identity is not None and _registry.holds(identity):
            raise _locked_here(path)
        descriptor = os.open(path, _LOCK_FLAGS, _FILE_MODE)
        status = os.fstat(descriptor)
        identity = (status.st_dev, status.st_ino)
        if _registry.holds(identity):
            # It was moved here just now.
            _registry.keep(identity, descriptor)
            raise _locked_here(path)
        is_locked = False
        try:
            is_locked = stat.S_ISREG(status.st_mode) and _lock_descriptor(path, descriptor, identity)
        finally:
            if not is_locked:
                os.close(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise LogDirectoryError("Expected a regular file. Only regular files are locked.", path=path)
        if not is_locked:
            return None
        _registry.add(identity)
        return FileLock(path, descriptor, identity)


def _lock_descriptor(path: str, descriptor: int, identity: tuple[int, int]) -> bool:
    """Lock an opened file; False if ``path`` names another one afterwards."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _TAKEN:
            message = (
                "The log directory is locked by another process, a broker or another program. Stop it first."
            )
            raise LogDirectoryLockedError(message, path=path) from error
        raise
    # A broker that stops removes the file: the lock would be on one that nobody else finds.
    return _identity_of(path) == identity


def _identity_of(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return (status.st_dev, status.st_ino)


def _locked_here(path: str) -> LogDirectoryLockedError:
    message = "The log directory is locked by another object in this process. Close that one first."
    return LogDirectoryLockedError(message, path=path)
