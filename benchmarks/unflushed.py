"""A file system that forces nothing to disk: to make directories of very many files in reasonable time."""

from __future__ import annotations

from typing import Any

from storage_core.filesystem import FileSystem, WritableFile


class UnflushedFileSystem(FileSystem):
    """Writes as the other one does, and leaves it to the system when bytes reach the disk.

    Attributes:
        is_flushing: Whether it forces to disk all the same, from now on.
    """

    is_flushing = False

    def open_for_writing(self, path: str, **options: Any) -> WritableFile:
        """Return a file whose flush asks each time whether it is to do anything."""
        file = super().open_for_writing(path, **options)
        flush = file.flush
        file.flush = lambda: flush() if self.is_flushing else None
        return file

    def flush_directory(self, path: str) -> None:
        """Flush it, if that is wanted now."""
        if self.is_flushing:
            super().flush_directory(path)
