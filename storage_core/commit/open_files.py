"""Files that are written to by turns: any number of them, few open at a time."""

from __future__ import annotations

import os
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from storage_core.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.filesystem import FileSystem, WritableFile
    from storage_core.record.batch_header import BytesLike

__all__ = ["OpenFiles"]

_FLUSHING_THREADS: Final = 8
_FLUSHED_AT_ONCE_BYTES: Final = 8 << 20


class OpenFiles:
    """New files in one directory; the one that was not written to for longest is closed for another.

    One thread at a time. A file that was closed is flushed through a descriptor opened later: where the system has
    failed to write to the disk meanwhile, that flush still reports it (Linux from 4.16 on).

    Args:
        filesystem: Through which they are written.
        directory: Where they are.
        most_open: How many are open at a time.
        begins_flushes: Whether they will be flushed: then the system is asked early to write them to the disk.
    """

    def __init__(
        self, filesystem: FileSystem, directory: str, most_open: int, *, begins_flushes: bool = False
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._most_open = most_open
        self._open: OrderedDict[str, WritableFile] = OrderedDict()
        self._begins_flushes = begins_flushes
        # By name, up to where a file is being written to the disk.
        self._begun_bytes: dict[str, int] = {}
        self.names: list[str] = []

    def create(self, name: str) -> None:
        """Make an empty file.

        Raises:
            StorageError: There is a file of this name, or the file system refused.
        """
        path = os.path.join(self._directory, name)
        file = self._reserve(name, create=True)
        if file.size_bytes():
            raise StorageError(
                "Expected no file of this name, found one with content. Two attempts at a task go by one number: "
                "give each its own.",
                path=path,
            )
        self.names.append(name)

    def write(self, name: str, pieces: Sequence[BytesLike], position_bytes: int) -> None:
        """Write to one of the files.

        Raises:
            StorageError: The file system refused; a part may have been written.
        """
        file = self._open.get(name)
        if file is None:
            file = self._reserve(name, create=False)
        else:
            self._open.move_to_end(name)
        file.write_at(pieces, position_bytes)
        if self._begins_flushes:
            self._begin_flush(name, file, position_bytes)

    def flush(self) -> None:
        """Bring all of them to the disk itself, and close them. The directory is not flushed.

        Raises:
            StorageError: The file system refused; what is on the disk is not known.
        """
        with ThreadPoolExecutor(min(_FLUSHING_THREADS, len(self.names) or 1)) as threads:
            for _ in threads.map(self._flush, self.names):
                pass
        self.close()

    def close(self) -> None:
        """Close them without flushing."""
        while self._open:
            self._open.popitem()[1].close()

    def delete(self) -> list[StorageError]:
        """Delete those made here, as far as the file system lets that happen; what it says otherwise is returned."""
        errors = []
        for name in self.names:
            try:
                self._filesystem.delete(os.path.join(self._directory, name))
            except StorageError as error:
                errors.append(error)
        return errors

    def _begin_flush(self, name: str, file: WritableFile, position_bytes: int) -> None:
        """Once there is much of a file, have it written: all of it but what was written last, which may be added to."""
        begun_bytes = self._begun_bytes.get(name, 0)
        if position_bytes - begun_bytes >= _FLUSHED_AT_ONCE_BYTES:
            file.begin_flush(begun_bytes, position_bytes - begun_bytes)
            self._begun_bytes[name] = position_bytes

    def _flush(self, name: str) -> None:
        file = self._open.get(name)
        if file is not None:
            file.flush()
            return
        with self._filesystem.open_for_writing(os.path.join(self._directory, name)) as again:
            again.flush()

    def _reserve(self, name: str, *, create: bool) -> WritableFile:
        while len(self._open) >= self._most_open:
            self._open.popitem(last=False)[1].close()
        file = self._filesystem.open_for_writing(os.path.join(self._directory, name), create=create)
        self._open[name] = file
        return file
