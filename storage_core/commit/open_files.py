"""The files that a task stages its rows in: any number of them, written to by turns, few open at a time."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from storage_core.errors import StorageError
from storage_core.filesystem import PooledFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.filesystem import FileSystem
    from storage_core.record.batch_header import BytesLike

__all__ = ["OpenFiles"]

_FLUSHING_THREADS: Final = 8
_FLUSHED_AT_ONCE_BYTES: Final = 8 << 20


class OpenFiles:
    """New files in one directory, of which as many are open at a time as the file system allows.

    Args:
        filesystem: Through which they are written.
        directory: Where they are.
        begins_flushes: Whether they will be flushed: then the system is asked early to write them to the disk.
    """

    def __init__(self, filesystem: FileSystem, directory: str, *, begins_flushes: bool = False) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._files: dict[str, PooledFile] = {}
        self._begins_flushes = begins_flushes
        # By name, up to where a file is being written to the disk.
        self._begun_bytes: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        """The files, in the order in which they were made."""
        return list(self._files)

    def create(self, name: str) -> None:
        """Make an empty file.

        Raises:
            StorageError: There is a file of this name, or the file system refused.
        """
        path = os.path.join(self._directory, name)
        file = self._filesystem.open_pooled(path, create=True)
        if file.size_bytes():
            file.close()
            raise StorageError(
                "Expected no file of this name, found one with content. Two attempts at a task go by one number: "
                "give each its own.",
                path=path,
            )
        self._files[name] = file

    def write(self, name: str, pieces: Sequence[BytesLike], position_bytes: int) -> None:
        """Write to one of the files.

        Raises:
            StorageError: The file system refused; a part may have been written.
        """
        file = self._files[name]
        file.write_at(pieces, position_bytes)
        if self._begins_flushes:
            self._begin_flush(name, file, position_bytes)

    def flush(self) -> None:
        """Bring all of them to the disk itself, and close them. The directory is not flushed.

        Raises:
            StorageError: The file system refused; what is on the disk is not known.
        """
        with ThreadPoolExecutor(min(_FLUSHING_THREADS, len(self._files) or 1)) as threads:
            for _ in threads.map(PooledFile.flush, self._files.values()):
                pass
        self.close()

    def close(self) -> None:
        """Close them without flushing."""
        for file in self._files.values():
            file.close()

    def delete(self) -> list[StorageError]:
        """Delete those made here, as far as the file system lets that happen; what it says otherwise is returned."""
        errors = []
        for name in self._files:
            try:
                self._filesystem.delete(os.path.join(self._directory, name))
            except StorageError as error:
                errors.append(error)
        return errors

    def _begin_flush(self, name: str, file: PooledFile, position_bytes: int) -> None:
        """Once there is much of a file, have it written: all of it but what was written last, which may be added to."""
        begun_bytes = self._begun_bytes.get(name, 0)
        if position_bytes - begun_bytes >= _FLUSHED_AT_ONCE_BYTES:
            file.begin_flush(begun_bytes, position_bytes - begun_bytes)
            self._begun_bytes[name] = position_bytes
