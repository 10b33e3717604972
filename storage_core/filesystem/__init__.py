"""The one package that touches the file system.

Everything else receives a `FileSystem` and asks it, so that faults can be injected under
everything and every byte read or written is counted. Files are read with ``pread`` into bounded
buffers and never through a mapping: if a broker truncates the file, that would kill the process.
"""

from __future__ import annotations

from storage_core.filesystem._file_lock import FileLock, OwningProcess
from storage_core.filesystem._file_system import FileSystem
from storage_core.filesystem._open_file import OpenFile
from storage_core.filesystem._pooled_file import PooledFile, PreparedFlush
from storage_core.filesystem._values import BytesLike, DirectoryEntry, FileStatus, IoStatistics
from storage_core.filesystem._writable_file import WritableFile

__all__ = [
    "BytesLike",
    "DirectoryEntry",
    "FileLock",
    "FileStatus",
    "FileSystem",
    "IoStatistics",
    "OpenFile",
    "OwningProcess",
    "PooledFile",
    "PreparedFlush",
    "WritableFile",
]
