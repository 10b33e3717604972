"""Copying a part of one file into another, inside the kernel where that is possible.

A file opened for reading.

Calls of Linux that Python does not know: ``syncfs`` and ``sync_file_range``.

A file opened for reading and writing.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import sys
from typing import TYPE_CHECKING, Any, Final, Self

from storage_core.errors import LogDirectoryError
from storage_core.filesystem.pooled_file import hold_file
from storage_core.filesystem.values import explained_reading, explained_writing, make_file_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from storage_core.filesystem.pooled_file import HeldFile
    from storage_core.filesystem.values import BytesLike, FileStatus, IoStatistics

__all__ = [
    "OpenFile",
    "WritableFile",
    "begin_sync_of_range",
    "copy_range",
    "flush_descriptor",
    "read_fully",
    "sync_file_system",
]


# What is read at once where the kernel does not copy.
_BUFFER_BYTES: Final = 32 * 1024
# It knows the call, but does not do it between these two files, or not at all.
_REFUSED: Final = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EPERM}
)


def copy_range(
    source: int, target: int, source_position_bytes: int, position_bytes: int, size_bytes: int
) -> int:
    """Copy between two open files; return how many bytes that were, fewer only at the end of the source."""
    copied_bytes = _copy_in_kernel(source, target, source_position_bytes, position_bytes, size_bytes)
    # Some file systems say that there is nothing where there is: reading tells.
    if copied_bytes < size_bytes:
        copied_bytes += _copy_by_reading(
            source,
            target,
            source_position_bytes + copied_bytes,
            position_bytes + copied_bytes,
            size_bytes - copied_bytes,
        )
    return copied_bytes


def _copy_in_kernel(
    source: int, target: int, source_position_bytes: int, position_bytes: int, size_bytes: int
) -> int:
    """Copy as much as the kernel does."""
    if not hasattr(os, "copy_file_range"):
        return 0
    copied_bytes = 0
    while copied_bytes < size_bytes:
        try:
            count = os.copy_file_range(
                source,
                target,
                size_bytes - copied_bytes,
                source_position_bytes + copied_bytes,
                position_bytes + copied_bytes,
            )
        except InterruptedError:
            continue
        except OSError as error:
            if error.errno in _REFUSED:
                break
            raise
        if count <= 0:
            break
        copied_bytes += count
    return copied_bytes


def _copy_by_reading(
    source: int, target: int, source_position_bytes: int, position_bytes: int, size_bytes: int
) -> int:
    buffer = memoryview(bytearray(min(size_bytes, _BUFFER_BYTES)))
    copied_bytes = 0
    while copied_bytes < size_bytes:
        part = buffer[: size_bytes - copied_bytes]
        count = os.preadv(source, [part], source_position_bytes + copied_bytes)
        if count == 0:
            break
        written_bytes = 0
        while written_bytes < count:
            written_bytes += _write_some(
                target, part[written_bytes:count], position_bytes + copied_bytes + written_bytes
            )
        copied_bytes += count
    return copied_bytes


def _write_some(target: int, data: memoryview, position_bytes: int) -> int:
    while True:
        try:
            count = os.pwritev(target, [data], position_bytes)
        except InterruptedError:
            continue
        if count <= 0:
            raise OSError(errno.EIO, "the file system took none of the bytes")
        return count


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


# SYNC_FILE_RANGE_WRITE: begin to write what is dirty, and wait for none of it.
_WRITE: Final = 2


def sync_file_system(descriptor: int) -> bool:
    """Have the file system of an open file write everything; False if it did not, or nobody knows how to ask for it."""
    function = _syncfs()
    return function is not None and function(descriptor) == 0


def begin_sync_of_range(descriptor: int, position_bytes: int, size_bytes: int) -> bool:
    """Have the system begin to write a part of an open file; False if it did not, or nobody knows how to ask for it."""
    function = _sync_file_range()
    return function is not None and function(descriptor, position_bytes, size_bytes, _WRITE) == 0


@functools.cache
def _syncfs() -> Callable[[int], int] | None:
    function = _function("syncfs")
    if function is not None:
        function.argtypes, function.restype = [ctypes.c_int], ctypes.c_int
    return function


@functools.cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    function = _function("sync_file_range")
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
        function.restype = ctypes.c_int
    return function


def _function(name: str) -> Any | None:
    """A function of the C library; None where there is no such."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


# One call takes no more pieces than this (IOV_MAX: 1024 on Linux and macOS).
_MOST_PIECES = 1024
# A longer write takes larger blocks of memory for the page cache, which Linux does not keep at hand: up to ten times
# the processor time. Calls end at multiples of this.
_MOST_BYTES = 32 * 1024


class WritableFile:
    """A regular file opened for reading and writing. Use as a context manager.

    Closing does not flush. After a write or a flush failed, what is on disk is not known: the caller
    must not go on as if it were, nor flush again and trust the answer.
    """

    def __init__(
        self, path: str, descriptor: int, statistics: IoStatistics, status: FileStatus | None = None
    ) -> None:
        self.path = path
        self._status = status
        self._descriptor = descriptor
        self._statistics = statistics
        self._explained_reading = explained_reading(path, "read")
        self._explained_writing = explained_writing(path, "write to", is_open=True)

    def size_bytes(self) -> int:
        """The size now."""
        with self._explained_reading:
            return os.fstat(self._descriptor).st_size

    def identity(self) -> tuple[int, int]:
        """Device and inode: what the file is, whatever its name."""
        if self._status is None:
            with self._explained_reading:
                self._status = make_file_status(os.fstat(self._descriptor))
        return self._status.device, self._status.inode

    def hold(self) -> HeldFile | None:
        """Keep what the system has to tell of this file, though it is closed; None where that is not possible."""
        return hold_file(self._opened())

    def read_at(self, size_bytes: int, position_bytes: int) -> bytes:
        """Read up to ``size_bytes`` from ``position_bytes``; shorter only at the end of the file."""
        with self._explained_reading:
            data = read_fully(self._descriptor, size_bytes, position_bytes)
        self._statistics.reads += 1
        self._statistics.bytes_read += len(data)
        return data

    def write_at(self, pieces: Sequence[BytesLike], position_bytes: int) -> None:
        """Write the pieces one behind the other, from ``position_bytes``.

        Raises:
            StorageError: The file system refused; a part of the bytes may have been written.
        """
        size_bytes = 0
        with self._explained_writing:
            for group, group_bytes in _groups(pieces, position_bytes):
                _write_group(self._descriptor, group, group_bytes, position_bytes + size_bytes)
                size_bytes += group_bytes
        if size_bytes:
            self._statistics.writes += 1
            self._statistics.bytes_written += size_bytes

    def copy_from(
        self, source: OpenFile, source_position_bytes: int, size_bytes: int, position_bytes: int
    ) -> None:
        """Write a part of another file here, from ``position_bytes`` on, without reading it where that is possible.

        Raises:
            StorageError: The file system refused, or the source ends before; a part may have been written.
        """
        with explained_writing(self.path, "copy into", is_open=True):
            copied_bytes = copy_range(
                source.descriptor, self._opened(), source_position_bytes, position_bytes, size_bytes
            )
            if copied_bytes < size_bytes:
                raise OSError(
                    errno.EIO, f"{source.path} ends {size_bytes - copied_bytes} bytes before what is copied"
                )
        self._statistics.writes += 1
        self._statistics.bytes_written += size_bytes

    def truncate(self, size_bytes: int) -> None:
        """Cut the file to a size, or extend it with zeros."""
        with explained_writing(self.path, "change the size of", is_open=True):
            os.ftruncate(self._opened(), size_bytes)

    def begin_flush(self, position_bytes: int, size_bytes: int) -> None:
        """Ask for a part to be brought to the disk soon, where that is possible, and do not wait: `flush` has less to do.

        It tells of no errors, and takes the place of no flush.
        """
        begin_sync_of_range(self._opened(), position_bytes, size_bytes)

    def flush(self) -> None:
        """Bring everything written so far to the disk itself. Not to be tried again after it failed.

        A second fsync may succeed although the pages of the first are lost.
        """
        with explained_writing(self.path, "flush", is_open=True):
            flush_descriptor(self._opened())
        self._statistics.flushes += 1

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            with explained_writing(self.path, "close", is_open=True):
                os.close(descriptor)

    def __del__(self) -> None:
        # Whoever gives up a log without closing it does not cost the process a descriptor.
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def _opened(self) -> int:
        if self._descriptor < 0:
            raise OSError(errno.EBADF, "the file is closed")
        return self._descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def flush_descriptor(descriptor: int) -> None:
    """Flush a file or directory to the disk itself."""
    if sys.platform == "darwin":
        # Here fsync leaves the data in the cache of the drive.
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError as error:
            # A network file system need not know it.
            if error.errno not in {errno.ENOTSUP, errno.EINVAL, errno.ENOTTY}:
                raise
        else:
            return
    os.fsync(descriptor)


def _groups(pieces: Sequence[BytesLike], position_bytes: int) -> Iterator[tuple[Sequence[BytesLike], int]]:
    """The pieces in groups that one call takes, each with its size, which is not 0."""
    # The length of a view counts items, which may be wider than a byte.
    sizes_bytes = [piece.nbytes if isinstance(piece, memoryview) else len(piece) for piece in pieces]
    total_bytes = sum(sizes_bytes)
    if total_bytes <= _MOST_BYTES and len(pieces) <= _MOST_PIECES:
        if total_bytes:
            yield pieces, total_bytes
        return
    group: list[BytesLike] = []
    room_bytes = group_room_bytes = _MOST_BYTES - position_bytes % _MOST_BYTES
    for piece, size_bytes in zip(pieces, sizes_bytes, strict=True):
        start_bytes = 0
        while start_bytes < size_bytes:
            end_bytes = min(size_bytes, start_bytes + room_bytes)
            room_bytes -= end_bytes - start_bytes
            is_whole = end_bytes - start_bytes == size_bytes
            group.append(piece if is_whole else memoryview(piece).cast("B")[start_bytes:end_bytes])
            start_bytes = end_bytes
            if not room_bytes or len(group) == _MOST_PIECES:
                yield group, group_room_bytes - room_bytes
                group = []
                room_bytes = group_room_bytes = room_bytes or _MOST_BYTES
    if group:
        yield group, group_room_bytes - room_bytes


def _write_group(descriptor: int, pieces: Sequence[BytesLike], size_bytes: int, position_bytes: int) -> None:
    """Write pieces that fit one call."""
    written_bytes = _write_once(descriptor, pieces, position_bytes)
    if written_bytes < size_bytes:
        # A signal, or a disk that fills up: rare enough to join what is left.
        rest = memoryview(b"".join(pieces))
        while written_bytes < size_bytes:
            written_bytes += _write_once(descriptor, [rest[written_bytes:]], position_bytes + written_bytes)


def _write_once(descriptor: int, pieces: Sequence[BytesLike], position_bytes: int) -> int:
    """Write once; return how many bytes were taken, at least one."""
    while True:
        try:
            count = os.pwritev(descriptor, pieces, position_bytes)
        except InterruptedError:
            continue
        if count <= 0:
            raise OSError(errno.EIO, "the file system took none of the bytes")
        return count
