"""The only package that accesses a file system.

Reads receive a `ReadableFileSystem`, and writes a `FileSystem`, so that tests can inject faults, and every byte read or
written is counted. Local files are read with ``pread`` into bounded buffers and never through a mapping: if a broker
truncates a mapped file, the process dies.
"""

from __future__ import annotations

from storage_core.filesystem.file_lock import FileLock, OwningProcess
from storage_core.filesystem.file_system import FileSystem, ReadableFileSystem
from storage_core.filesystem.files import OpenFile, WritableFile, WriteStream
from storage_core.filesystem.pooled_file import PooledFile
from storage_core.filesystem.reading import ReadableFile
from storage_core.filesystem.routing import FileSystemView, RoutedFileSystem, absolute_path
from storage_core.filesystem.values import (
    BytesLike,
    DirectoryEntry,
    ExaminedEntry,
    FileStatus,
    FileVersion,
    IoStatistics,
    StorageTraits,
)

__all__ = [
    "BytesLike",
    "DirectoryEntry",
    "ExaminedEntry",
    "FileLock",
    "FileStatus",
    "FileSystem",
    "FileSystemView",
    "FileVersion",
    "IoStatistics",
    "OpenFile",
    "OwningProcess",
    "PooledFile",
    "ReadableFile",
    "ReadableFileSystem",
    "RoutedFileSystem",
    "StorageTraits",
    "WritableFile",
    "WriteStream",
    "absolute_path",
]
