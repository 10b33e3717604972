"""Plain data about files, and an OSError's translation into an error of this package."""

from __future__ import annotations

import errno
import getpass
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from storage_core.errors import LogDirectoryError, SegmentLogError, StorageError, UnreadableError

if TYPE_CHECKING:
    from types import TracebackType


# The path itself is wrong, not the device under it.
_WRONG_PATH = frozenset(
    {
        errno.EISDIR,
        errno.ELOOP,
        errno.EINVAL,
        errno.ENAMETOOLONG,
        errno.ENOTDIR,
        errno.ENOTEMPTY,
        errno.ENXIO,
        errno.EXDEV,
    }
)
_WHAT_TO_DO = {
    errno.ENOSPC: "No space is left on the device. Free some, then open the log again.",
    errno.EDQUOT: "The disk quota of user {user} is exhausted. Free some space, then open the log again.",
    errno.EROFS: "The file system is mounted read-only. Open the log directory with read_only=True.",
    errno.EMFILE: "Too many files are open in this process. Raise its limit (ulimit -n).",
    errno.EFBIG: "The file would become larger than the file system, or a limit of this user, allows.",
}


class MissingError(LogDirectoryError, FileNotFoundError):
    """The path does not exist. Also a FileNotFoundError, so that callers can distinguish it."""

    def __str__(self) -> str:
        return LogDirectoryError.__str__(self)


class ExistsError(LogDirectoryError, FileExistsError):
    """The path exists already. Also a FileExistsError, so that callers can distinguish it."""

    def __str__(self) -> str:
        return LogDirectoryError.__str__(self)


class _Explained:
    """Turns an OSError about ``path`` into an error of this package."""

    def __init__(self, path: str, action: str, *, is_open: bool = False) -> None:
        self._path = path
        self._action = action
        self._is_open = is_open

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, (OSError, ValueError)) and not isinstance(error, SegmentLogError):
            raise self._error(error) from error

    def _error(self, error: OSError | ValueError) -> SegmentLogError:
        raise NotImplementedError


class explained_reading(_Explained):  # noqa: N801  (used like a function)
    """Turn an OSError about ``path`` into an error of this package."""

    def _error(self, error: OSError | ValueError) -> SegmentLogError:
        if isinstance(error, FileNotFoundError):
            return MissingError("No such file or directory.", path=self._path)
        if isinstance(error, PermissionError):
            message = f"User {_user_name()} may not {self._action} this path. Grant read access, or run as its owner."
            return UnreadableError(message, path=self._path)
        return LogDirectoryError(f"Could not {self._action} this path: {error}.", path=self._path)


class explained_writing(_Explained):  # noqa: N801  (used like a function)
    """Turn an OSError from a change to ``path`` into an error of this package.

    A path of a wrong kind, or that this user may not change, is a LogDirectoryError; any other error is a
    StorageError. With ``is_open``, every error is a StorageError, as the content on disk is unknown then.
    """

    def _error(self, error: OSError | ValueError) -> SegmentLogError:
        path, action = self._path, self._action
        if self._is_open:
            return self._storage_error(error)
        if isinstance(error, FileNotFoundError):
            return MissingError(f"Could not {action} this path: no such file or directory.", path=path)
        if isinstance(error, FileExistsError):
            return ExistsError(f"Could not {action} this path: it exists already.", path=path)
        if isinstance(error, PermissionError):
            message = (
                f"User {_user_name()} may not {action} this path. Grant write access, or run as its owner."
            )
            return UnreadableError(message, path=path)
        if not isinstance(error, OSError) or error.errno in _WRONG_PATH:
            return LogDirectoryError(f"Could not {action} this path: {error}.", path=path)
        return self._storage_error(error)

    def _storage_error(self, error: OSError | ValueError) -> StorageError:
        number = error.errno if isinstance(error, OSError) else None
        advice = _WHAT_TO_DO.get(number or 0, "").format(user=_user_name())
        message = f"Could not {self._action} this path: {error}. {advice}".rstrip()
        return StorageError(message, path=self._path)


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


BytesLike: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class FileStatus:
    """The status of a file. ``inode`` and ``device`` identify it, whatever its path is."""

    size_bytes: int
    modified_ms: int
    inode: int
    device: int
    is_regular_file: bool
    is_directory: bool


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """One entry of a directory; links are not followed."""

    name: str
    is_directory: bool
    is_regular_file: bool
    is_symlink: bool


@dataclass(slots=True)
class IoStatistics:
    """The operations of a `FileSystem` so far. Threads that share one may lose a count."""

    bytes_read: int = 0
    reads: int = 0
    files_opened: int = 0
    directories_listed: int = 0
    files_examined: int = 0
    bytes_written: int = 0
    writes: int = 0
    flushes: int = 0
