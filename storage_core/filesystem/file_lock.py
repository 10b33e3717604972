"""Locks between processes, such as a broker's lock on ``.lock`` (Kafka's ``FileLock``).

A POSIX record lock belongs to a process and an inode. So a second lock in the same process succeeds, and closing *any*
descriptor of the file releases the lock. Therefore a registry has all locks of this process, and a locked file is not
opened again before its lock is released.

A forked child inherits none of the locks, but a copy of everything else: buffers, descriptors, and open logs.
`OwningProcess` tells parent and child apart.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import sys
import threading
from typing import TYPE_CHECKING

from storage_core.errors import LogDirectoryError, LogDirectoryLockedError, LogForkedError
from storage_core.filesystem.values import explained_writing

if TYPE_CHECKING:
    from types import TracebackType


_LOCK_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CREAT
_FILE_MODE = 0o644
# Each further attempt means that the file was replaced or removed in the meantime.
_MAX_ATTEMPTS = 100
_TAKEN = (errno.EACCES, errno.EAGAIN)
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
# The C struct flock with the fields type, whence, start, length and process, and the place of the type.
_FLOCK, _TYPE = ("qqihh", 3) if sys.platform == "darwin" else ("hhqqi", 0)


class _ThisProcess:
    """An identity that differs in each process; getting the process id takes too long for each append."""

    __slots__ = ("identity",)

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.identity = object()


_this_process = _ThisProcess()
os.register_at_fork(after_in_child=_this_process.renew)


class OwningProcess:
    """The process that created an object, which no other process may change, not even a forked child."""

    __slots__ = ("_identity", "_process_id")

    def __init__(self) -> None:
        self._identity = _this_process.identity
        self._process_id = os.getpid()

    @property
    def is_this(self) -> bool:
        """Whether the current process created the object."""
        return self._identity is _this_process.identity

    def check(self, path: str) -> None:
        """Refuse a change by a forked process.

        Raises:
            LogForkedError: The current process was forked from the owner.
        """
        if self._identity is not _this_process.identity:
            raise LogForkedError(
                f"Expected process {self._process_id}, which opened this, found process {os.getpid()}, which was forked "
                "from it: each of them would destroy what the other one writes. Open the log directory in this "
                "process, after the other one has closed it; or with read_only=True, to read.",
                path=path,
            )


class _Registry:
    """The locks of this process, by device and inode.

    Each has a list of descriptors of the same file, which must not be closed before the lock is released.
    A forked child holds no lock of its parent, so an entry is valid only in the process that added it.
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


# Global state, because the locks of a process are global.
_registry = _Registry()
# A thread that does not exist in the child may have held the mutex.
os.register_at_fork(after_in_child=_registry.renew_mutex)


class FileLock(contextlib.AbstractContextManager["FileLock"]):
    """A lock that is held until it is released, or the process ends. Use as a context manager."""

    def __init__(self, path: str, descriptor: int, identity: tuple[int, int]) -> None:
        self.path = path
        self._descriptor = descriptor
        self._identity = identity
        self._owner = OwningProcess()

    def release(self) -> None:
        """Release the lock; a second call does nothing. The file is kept."""
        with _registry.mutex:
            # A forked child does not hold the lock, and must not close the descriptor.
            if self._descriptor < 0 or not self._owner.is_this:
                return
            descriptor, self._descriptor = self._descriptor, -1
            for each in [*_registry.remove(self._identity), descriptor]:
                os.close(each)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def acquire_lock(path: str) -> FileLock:
    """Lock ``path``, which is created if it is missing; raises as `FileSystem.lock` does."""
    with _registry.mutex:
        for _ in range(_MAX_ATTEMPTS):
            lock = _try_to_lock(path)
            if lock is not None:
                return lock
    message = f"Expected this file to stay, found that it was replaced {_MAX_ATTEMPTS} times. Stop the process that does so."
    raise LogDirectoryLockedError(message, path=path)


def is_locked(path: str) -> bool:
    """Return True if this or another process of this machine holds the lock of a file. Nothing is locked or created."""
    # Closing a descriptor would release a lock that another thread of this process takes meanwhile.
    with _registry.mutex:
        try:
            descriptor = os.open(path, _READ_FLAGS)
        except OSError:
            return False
        if keep_if_locked(descriptor, os.fstat(descriptor)):
            return True
        try:
            asked = [0] * 5
            asked[_TYPE] = fcntl.F_WRLCK
            found = fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(_FLOCK, *asked))
            return bool(struct.unpack(_FLOCK, found)[_TYPE] != fcntl.F_UNLCK)
        except OSError:
            return False
        finally:
            os.close(descriptor)


def keep_if_locked(descriptor: int, status: os.stat_result) -> bool:
    """Return True if this process holds a lock on an opened file. If so, the descriptor is kept until the lock is released."""
    identity = (status.st_dev, status.st_ino)
    # Usually it is not locked: look it up without the mutex first.
    if not _registry.holds(identity):
        return False
    with _registry.mutex:
        if not _registry.holds(identity):
            return False
        _registry.keep(identity, descriptor)
        return True


def _try_to_lock(path: str) -> FileLock | None:
    """Lock ``path``.

    Returns:
        None if it was replaced meanwhile.
    """
    with explained_writing(path, "lock"):
        identity = _identity_of(path)
        if identity is not None and _registry.holds(identity):
            raise _locked_here(path)
        # No more permissions than its directory has.
        mode = _FILE_MODE & (os.stat(os.path.dirname(path) or ".").st_mode | stat.S_IRWXU)
        descriptor = os.open(path, _LOCK_FLAGS, mode)
        status = os.fstat(descriptor)
        identity = (status.st_dev, status.st_ino)
        if _registry.holds(identity):
            # A locked file was just moved here.
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
    """Lock an opened file; False if ``path`` was replaced meanwhile."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _TAKEN:
            message = (
                "The log directory is locked by another process, a broker or another program. Stop it first."
            )
            raise LogDirectoryLockedError(message, path=path) from error
        raise
    # A broker that stops removes the file, and the lock of a removed file excludes no one.
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
