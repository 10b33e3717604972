"""A file opened for reading."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Self

from storage_core.errors import LogDirectoryError
from storage_core.filesystem._explained import explained_reading

if TYPE_CHECKING:
    from types import TracebackType

    from storage_core.filesystem._values import FileStatus, IoStatistics

__all__ = ["OpenFile", "read_fully"]


class OpenFile:
    """A regular file opened for reading. Use as a context manager."""

    def __init__(self, path: str, descriptor: int, status: FileStatus, statistics: IoStatistics) -> None:
        self.path = path
        self.status = status
        self._descriptor = descriptor
        self._statistics = statistics
        self._explained = explained_reading(path, "read")

    def read_at(self, size_bytes: int, position_bytes: int) -> bytes:
        """Read up to ``size_bytes`` from ``position_bytes``; shorter only at the end of the file."""
        with self._explained:
            data = read_fully(self._descriptor, size_bytes, position_bytes)
        self._statistics.reads += 1
        self._statistics.bytes_read += len(data)
        return data

    def read_into(self, buffer: memoryview, position_bytes: int) -> int:
        """Fill ``buffer`` from ``position_bytes``; return the bytes read, fewer only at the end of the file."""
        filled = 0
        with self._explained:
            while filled < len(buffer):
                count = os.preadv(self._descriptor, [buffer[filled:]], position_bytes + filled)
                if count == 0:
                    break
                filled += count
        self._statistics.reads += 1
        self._statistics.bytes_read += filled
        return filled

    def next_data(self, position_bytes: int) -> int | None:
        """A place at or behind a position up to which there are only zeros; None if there are only zeros.

        A preallocated file has no blocks on disk where nothing was written: they need not be read.
        """
        try:
            with self._explained:
                return os.lseek(self._descriptor, position_bytes, os.SEEK_DATA)
        except LogDirectoryError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno == errno.ENXIO:
                return None
            if isinstance(cause, OSError) and cause.errno == errno.EINVAL:
                # A file system that does not tell.
                return position_bytes
            raise

    def size_bytes(self) -> int:
        """The size now, which may differ from ``status.size_bytes`` under a live broker."""
        return os.fstat(self._descriptor).st_size

    @property
    def descriptor(self) -> int:
        """For the other classes of this package.

        Raises:
            OSError: The file is closed.
        """
        if self._descriptor < 0:
            raise OSError(errno.EBADF, "the file is closed")
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_fully(descriptor: int, size_bytes: int, position_bytes: int) -> bytes:
    """Read up to ``size_bytes``; shorter only at the end of the file."""
    data = os.pread(descriptor, size_bytes, position_bytes)
    # One pread may return less than asked for without being at the end.
    if 0 < len(data) < size_bytes:
        pieces = [data]
        have_bytes = len(data)
        while have_bytes < size_bytes:
            data = os.pread(descriptor, size_bytes - have_bytes, position_bytes + have_bytes)
            if not data:
                break
            pieces.append(data)
            have_bytes += len(data)
        data = b"".join(pieces)
    return data
