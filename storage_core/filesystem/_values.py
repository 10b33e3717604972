"""What the file system tells, as plain data."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "BytesLike",
    "DirectoryEntry",
    "FileStatus",
    "IoStatistics",
    "make_directory_entry",
    "make_file_status",
]

BytesLike: TypeAlias = bytes | bytearray | memoryview


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
    """What was asked of the file system so far. Threads that share one may lose a count, never more."""

    bytes_read: int = 0
    reads: int = 0
    files_opened: int = 0
    directories_listed: int = 0
    files_examined: int = 0
    bytes_written: int = 0
    writes: int = 0
    flushes: int = 0


def make_directory_entry(entry: os.DirEntry[str]) -> DirectoryEntry:
    """What one entry of ``scandir`` is."""
    return DirectoryEntry(
        entry.name,
        entry.is_dir(follow_symlinks=False),
        entry.is_file(follow_symlinks=False),
        entry.is_symlink(),
    )


def make_file_status(status: os.stat_result) -> FileStatus:
    """The part of ``stat`` that matters here."""
    return FileStatus(
        status.st_size,
        status.st_mtime_ns // 1_000_000,
        status.st_ino,
        status.st_dev,
        stat.S_ISREG(status.st_mode),
        stat.S_ISDIR(status.st_mode),
    )
