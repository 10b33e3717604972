"""Plain data about files, and an OSError's translation into an error of this package."""

from __future__ import annotations

import errno
import getpass
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from storage_core.errors import LogDirectoryError, SegmentLogError, StorageError, UnreadableError

if TYPE_CHECKING:
    from types import TracebackType

_ErrorOf: TypeAlias = Callable[[OSError | ValueError, str, str], SegmentLogError]

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


class _ErrorsExplained:
    """Turns an OSError about ``path`` into the error of this package that ``error_of`` makes."""

    __slots__ = ("_action", "_error_of", "_path")

    def __init__(self, error_of: _ErrorOf, path: str, action: str) -> None:
        self._error_of = error_of
        self._path = path
        self._action = action

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, (OSError, ValueError)) and not isinstance(error, SegmentLogError):
            raise self._error_of(error, self._path, self._action) from error


def _reading_error(error: OSError | ValueError, path: str, action: str) -> SegmentLogError:
    if isinstance(error, FileNotFoundError):
        return MissingError("No such file or directory.", path=path)
    if isinstance(error, PermissionError):
        message = f"User {_user_name()} may not {action} this path. Grant read access, or run as its owner."
        return UnreadableError(message, path=path)
    return LogDirectoryError(f"Could not {action} this path: {error}.", path=path)


def _writing_error(error: OSError | ValueError, path: str, action: str) -> SegmentLogError:
    if isinstance(error, FileNotFoundError):
        return MissingError(f"Could not {action} this path: no such file or directory.", path=path)
    if isinstance(error, FileExistsError):
        return ExistsError(f"Could not {action} this path: it exists already.", path=path)
    if isinstance(error, PermissionError):
        message = f"User {_user_name()} may not {action} this path. Grant write access, or run as its owner."
        return UnreadableError(message, path=path)
    if not isinstance(error, OSError) or error.errno in _WRONG_PATH:
        return LogDirectoryError(f"Could not {action} this path: {error}.", path=path)
    return _storage_error(error, path, action)


def _storage_error(error: OSError | ValueError, path: str, action: str) -> StorageError:
    number = error.errno if isinstance(error, OSError) else None
    advice = _WHAT_TO_DO.get(number or 0, "").format(user=_user_name())
    return StorageError(f"Could not {action} this path: {error}. {advice}".rstrip(), path=path)


# Each takes the path and what was about to be done with it: ``with explained_reading(path, "open"): ...``.
explained_reading = partial(_ErrorsExplained, _reading_error)
# A path of a wrong kind, or that this user may not change, is a LogDirectoryError; any other error is a StorageError.
explained_writing = partial(_ErrorsExplained, _writing_error)
# Every error is a StorageError, as the content on disk is unknown then.
explained_writing_to_open_file = partial(_ErrorsExplained, _storage_error)


def require_small(path: str, size_bytes: int, limit_bytes: int) -> None:
    """Check the size of a file of a kind that is small.

    Raises:
        LogDirectoryError: It is longer than ``limit_bytes``.
    """
    if size_bytes > limit_bytes:
        message = f"Expected at most {limit_bytes} bytes in a file of this kind, found {size_bytes}."
        raise LogDirectoryError(message, path=path)


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


BytesLike: TypeAlias = bytes | bytearray | memoryview
FileVersion: TypeAlias = int | str
"""Opaque: it tells a file from another one under the same name. The inode on a local file system, and a text elsewhere."""


@dataclass(frozen=True, slots=True)
class FileStatus:
    """The status of a file. ``version`` and ``device`` identify it, whatever its path is.

    Attributes:
        device: Of a local file system; 0 elsewhere.
        link_count: How many names the file has. Another one may be that of a backup. Not compared.
        newest_timestamp_ms: Of a log file in remote storage: what its metadata say is the largest timestamp. Not compared.
    """

    size_bytes: int
    modified_ms: int
    version: FileVersion
    device: int
    is_regular_file: bool
    is_directory: bool
    link_count: int = field(default=1, compare=False)
    newest_timestamp_ms: int | None = field(default=None, compare=False)


def file_status(status: os.stat_result) -> FileStatus:
    """Return the status of a file."""
    return FileStatus(
        status.st_size,
        status.st_mtime_ns // 1_000_000,
        status.st_ino,
        status.st_dev,
        stat.S_ISREG(status.st_mode),
        stat.S_ISDIR(status.st_mode),
        status.st_nlink,
    )


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """One entry of a directory; links are not followed."""

    name: str
    is_directory: bool
    is_regular_file: bool
    is_symlink: bool


class ExaminedEntry(NamedTuple):
    """One entry of a directory with its status; links are not followed.

    A tuple, because one is made for each of the files of 100,000 segments.

    Attributes:
        size_bytes: The length of a file.
        allocated_bytes: What it takes on the disk: less than its length, if it is preallocated and sparse.
    """

    name: str
    kind: Literal["file", "directory", "link", "other"]
    size_bytes: int
    allocated_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class StorageTraits:
    """What reads take into account of where a file lies. The defaults are those of a local disk.

    Attributes:
        request_cost_bytes: How many bytes are read in about the time that a request takes: look-ups weigh the two.
        are_files_fixed: Whether a file changes only by being replaced, and what was opened by its version is read as it was
            then, or not at all. A listing then needs no second look.
        has_modification_times: Whether a status says when a file was written; otherwise its time is that of a copy.
        poll_interval_ms: How long a stream waits between two looks for new records, unless an option says otherwise.
        is_shared: Whether every host sees the same there.
    """

    request_cost_bytes: int = 0
    are_files_fixed: bool = False
    has_modification_times: bool = True
    poll_interval_ms: int = 0
    is_shared: bool = False


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
