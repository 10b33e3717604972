"""The file that holds a segment's batches, for appending (the write side of Kafka's ``FileRecords``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from storage_core.errors import LogDirectoryError, RecordBatchTooLargeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.filesystem import FileSystem, PooledFile, PreparedFlush
    from storage_core.record.batch_header import BytesLike

__all__ = ["MAX_LOG_SIZE_BYTES", "LogFile"]

MAX_LOG_SIZE_BYTES: Final = 2**31 - 1
"""What an index's positions can name."""


class LogFile:
    """A log file whose end is known: bytes behind it, preallocated or of a write that failed, do not count.

    Args:
        filesystem: Through which the file is read and written.
        path: The file.
    """

    __slots__ = ("_file", "_filesystem", "_size_bytes", "path")

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self.path = path
        self._filesystem = filesystem
        self._file: PooledFile | None = None
        # Of an existing file all counts, once somebody asks.
        self._size_bytes: int | None = None

    def create(self, preallocated_bytes: int = 0) -> None:
        """Make an empty file, all zeros up to a size.

        Raises:
            LogDirectoryError: A file is there, and is not empty.
        """
        file = self._open(create=True)
        if file.size_bytes():
            raise LogDirectoryError(
                f"Expected no file where a new segment begins, found one of {file.size_bytes()} bytes. Delete it "
                "first if it is left over.",
                path=self.path,
            )
        if preallocated_bytes:
            file.truncate(preallocated_bytes)
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Where the batches end."""
        if self._size_bytes is None:
            status = self._filesystem.status(self.path)
            if status is None:
                # Fails as every other access to the file does.
                with self._filesystem.open(self.path) as opened:
                    status = opened.status
            self._size_bytes = status.size_bytes
        return self._size_bytes

    def write(self, pieces: Sequence[BytesLike], size_bytes: int) -> None:
        """Write behind the end. The bytes do not count until `advance` is called.

        Raises:
            RecordBatchTooLargeError: The file would be larger than a log file may be; nothing is written.
            StorageError: They could not be written, or not all of them.
        """
        end_bytes = self.size_bytes
        if end_bytes + size_bytes > MAX_LOG_SIZE_BYTES:
            raise RecordBatchTooLargeError(
                f"Expected at most {MAX_LOG_SIZE_BYTES - end_bytes} bytes, which is what this log file has room "
                f"for, found {size_bytes}. Roll the segment first.",
                path=self.path,
                position_bytes=end_bytes,
            )
        (self._file or self._open()).write_at(pieces, end_bytes)

    def advance(self, size_bytes: int) -> None:
        """Let bytes count that were written."""
        self._size_bytes = self.size_bytes + size_bytes

    def cut_at(self, size_bytes: int) -> None:
        """End the file at a size, whatever it holds."""
        self._size_bytes = size_bytes
        self.trim()

    def truncate_to(self, size_bytes: int) -> int:
        """Cut the file, what was preallocated included, if its batches reach beyond a size; return how far they did."""
        cut_bytes = self.size_bytes - size_bytes
        if cut_bytes <= 0:
            return 0
        self._open().truncate(size_bytes)
        self._size_bytes = size_bytes
        return cut_bytes

    def trim(self) -> bool:
        """Cut off what does not count; False if there is nothing to cut off."""
        file = self._open()
        if file.size_bytes() <= self.size_bytes:
            return False
        file.truncate(self.size_bytes)
        return True

    def flush(self) -> None:
        """Have the operating system write the file to the disk."""
        self._open().flush()

    def prepare_flush(self) -> PreparedFlush:
        """The same, but for the wait: that is up to the caller, who needs no lock for it."""
        return self._open().prepare_flush()

    @property
    def is_open(self) -> bool:
        """Whether the file is open for writing."""
        return self._file is not None

    def close(self) -> None:
        """Close the file without changing it. It is opened again when it is needed."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def rename(self, path: str) -> None:
        """Give the file another name."""
        if path != self.path:
            self._filesystem.rename(self.path, path)
            self.path = path
            if self._file is not None:
                self._file.path = path

    def delete(self) -> bool:
        """Delete the file; False if there is none."""
        self.close()
        return self._filesystem.delete(self.path)

    def _open(self, *, create: bool = False) -> PooledFile:
        if self._file is None:
            self._file = self._filesystem.open_pooled(self.path, create=create)
        return self._file
