"""Files opened for reading, or for reading and writing; what Linux offers beyond Python's ``os`` for them."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import io
import mmap
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from storage_core.errors import LogDirectoryError
from storage_core.filesystem.reading import ReadableFile
from storage_core.filesystem.values import (
    BytesLike,
    FileStatus,
    FileVersion,
    IoStatistics,
    explained_reading,
    explained_writing_to_open_file,
    file_status,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


# The buffer for a copy that the kernel does not make.
_BUFFER_BYTES: Final = 32 * 1024
# The kernel has the call, but does not support it between these two files, or at all.
_REFUSED: Final = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EPERM}
)
# Start to write dirty pages, without waiting for them.
_SYNC_FILE_RANGE_WRITE: Final = 2
# The most buffers per call (IOV_MAX: 1024 on Linux and macOS).
_MAX_PIECES: Final = 1024
# A longer write makes Linux allocate larger blocks for the page cache, which takes up to ten times the processor time.
# Calls end at multiples of this.
_MAX_WRITE_BYTES: Final = 32 * 1024


class _File(ReadableFile):
    """A regular file with an open descriptor. Use as a context manager."""

    def __init__(self, path: str, descriptor: int, status: FileStatus, statistics: IoStatistics) -> None:
        self.path = path
        self.status = status
        self._descriptor = descriptor
        self._statistics = statistics
        self._explained_reading = explained_reading(path, "read")
        # A file that is given up without being closed must not cost the process a descriptor. A method `__del__` would run
        # for closed files, too, and Python ignores an interrupt (Ctrl-C) that arrives in one.
        self._closed_when_dropped = weakref.finalize(self, _close, descriptor)
        self._closed_when_dropped.atexit = False

    @property
    def descriptor(self) -> int:
        """For this package alone.

        Raises:
            OSError: The file is closed.
        """
        if self._descriptor < 0:
            raise OSError(errno.EBADF, "the file is closed")
        return self._descriptor

    def size_bytes(self) -> int:
        """Return the current size, which may differ from ``status.size_bytes`` under a live broker."""
        with self._explained_reading:
            return os.fstat(self._descriptor).st_size

    def read_at(self, size_bytes: int, position_bytes: int) -> bytes:
        """Read up to ``size_bytes`` from ``position_bytes``; fewer only at the end of the file."""
        with self._explained_reading:
            data = _read_fully(self._descriptor, size_bytes, position_bytes)
        self._statistics.reads += 1
        self._statistics.bytes_read += len(data)
        return data

    def read_into(self, buffer: memoryview, position_bytes: int) -> int:
        """Fill ``buffer`` from ``position_bytes``; return the number of bytes read, fewer only at the end of the file."""
        filled = 0
        with self._explained_reading:
            while filled < len(buffer):
                count = os.preadv(self._descriptor, [buffer[filled:]], position_bytes + filled)
                if count == 0:
                    break
                filled += count
        self._statistics.reads += 1
        self._statistics.bytes_read += filled
        return filled

    def expect_reads(self, start_bytes: int, end_bytes: int) -> None:
        """Do nothing: the kernel reads ahead."""

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        self._descriptor = -1
        self._closed_when_dropped()


def _close(descriptor: int) -> None:
    os.close(descriptor)


class OpenFile(_File):
    """A regular file opened for reading. Use as a context manager."""

    def next_data(self, position_bytes: int) -> int | None:
        """Return the next position with data (``SEEK_DATA``), at or after the given one.

        A preallocated file has no blocks on disk where nothing was written: they need not be read.

        Returns:
            None if only zeros follow.
        """
        try:
            with self._explained_reading:
                return os.lseek(self._descriptor, position_bytes, os.SEEK_DATA)
        except LogDirectoryError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno == errno.ENXIO:
                return None
            if isinstance(cause, OSError) and cause.errno == errno.EINVAL:
                # The file system does not support it.
                return position_bytes
            raise


class WritableFile(_File):
    """A regular file opened for reading and writing. Use as a context manager.

    Closing does not flush. After a failed write or flush, the content on disk is unknown: the caller must not
    continue as if it were known, nor flush again and trust the answer.
    """

    def __init__(
        self,
        path: str,
        descriptor: int,
        status: FileStatus,
        statistics: IoStatistics,
        unshare: Callable[[WritableFile], None] | None = None,
    ) -> None:
        super().__init__(path, descriptor, status, statistics)
        self._explained_writing = explained_writing_to_open_file(path, "write to")
        # Makes a copy of a file that has another name, such as that of a backup, before the first change.
        self._unshare = unshare

    def current_status(self) -> FileStatus:
        """Return the status now."""
        with self._explained_reading:
            return file_status(os.fstat(self._descriptor))

    def unshare(self) -> None:
        """Replace a file that has another name by a copy, durably, and go on with the copy."""
        if self._unshare is not None and os.fstat(self._descriptor).st_nlink > 1:
            self._unshare(self)

    def keep_links(self) -> None:
        """Change the file under all of its names: the caller made them."""
        self._unshare = None

    def become(self, other: WritableFile) -> None:
        """Go on with another open file. A flush that is under way ends with the old one."""
        os.dup2(other.descriptor, self.descriptor, inheritable=False)
        self.status = other.status

    def identity(self) -> tuple[int, FileVersion]:
        """Device and inode, which identify the file whatever its name is."""
        return self.status.device, self.status.version

    def hold(self) -> HeldFile | None:
        """Keep the kernel's record of write errors of this file beyond its close.

        Returns:
            None where that is not possible.
        """
        return hold_file(self.descriptor)

    def write_at(self, pieces: Sequence[BytesLike], position_bytes: int) -> None:
        """Write the pieces one after the other from ``position_bytes``.

        Raises:
            StorageError: The file system refused; a part of the bytes may have been written.
        """
        size_bytes = 0
        with self._explained_writing:
            self.unshare()
            for group, group_bytes in _groups(pieces, position_bytes):
                _write_group(self._descriptor, group, group_bytes, position_bytes + size_bytes)
                size_bytes += group_bytes
        if size_bytes:
            self._statistics.writes += 1
            self._statistics.bytes_written += size_bytes

    def copy_from(
        self,
        source: OpenFile | WritableFile,
        source_position_bytes: int,
        size_bytes: int,
        position_bytes: int,
    ) -> None:
        """Copy a part of another file to ``position_bytes``, inside the kernel where that is possible.

        Raises:
            StorageError: The file system refused, or the source is too short; a part may have been written.
        """
        with explained_writing_to_open_file(self.path, "copy into"):
            self.unshare()
            copied_bytes = _copy_range(
                source.descriptor, self.descriptor, source_position_bytes, position_bytes, size_bytes
            )
            if copied_bytes < size_bytes:
                raise OSError(
                    errno.EIO,
                    f"{source.path} ends {size_bytes - copied_bytes} bytes before the end of the part to copy",
                )
        self._statistics.writes += 1
        self._statistics.bytes_written += size_bytes

    def truncate(self, size_bytes: int) -> None:
        """Truncate the file to a size, or extend it with zeros."""
        with explained_writing_to_open_file(self.path, "change the size of"):
            self.unshare()
            os.ftruncate(self.descriptor, size_bytes)

    def begin_flush(self, position_bytes: int, size_bytes: int) -> None:
        """Start to write a part to disk, where that is possible, without waiting, so that `flush` has less to do.

        It reports no errors, and replaces no flush.
        """
        function = _linux_function(
            "sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint
        )
        if function is not None:
            function(self.descriptor, position_bytes, size_bytes, _SYNC_FILE_RANGE_WRITE)

    def flush(self) -> None:
        """Force everything written so far to disk. Do not retry a failed flush.

        A second fsync may succeed although the pages of the first are lost.
        """
        with explained_writing_to_open_file(self.path, "flush"):
            flush_descriptor(self.descriptor)
        self._statistics.flushes += 1

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        with explained_writing_to_open_file(self.path, "close"):
            super().close()


_PROT_NONE: Final = 0
_MS_SYNC: Final = 4
_MAP_FAILED: Final = ctypes.c_void_p(-1).value
# Half of the mappings that Linux allows a process by default.
_MAX_HELD: Final = 32_000


class _Count:
    """The number of files held by this process, as the limit of mappings is per process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def renew_lock(self) -> None:
        self._lock = threading.Lock()

    def add(self) -> bool:
        with self._lock:
            if self._count >= _MAX_HELD:
                return False
            self._count += 1
            return True

    def remove(self) -> None:
        with self._lock:
            self._count -= 1


_count = _Count()
# A thread that does not exist in the child may have held the lock. The child has the mappings, so the count stays.
os.register_at_fork(after_in_child=_count.renew_lock)


class HeldFile:
    """An open file without a descriptor: a mapping of one page without access."""

    __slots__ = ("__weakref__", "_address", "_released_when_dropped")

    def __init__(self, address: int) -> None:
        self._address = address
        self._released_when_dropped = weakref.finalize(self, _release, address)
        self._released_when_dropped.atexit = False

    def check(self) -> None:
        """Check that everything written back through the file has reached the disk.

        Raises:
            OSError: It has not. The kernel reports it once.
        """
        if _c_library().msync(self._address, mmap.PAGESIZE, _MS_SYNC) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def release(self) -> None:
        """Release the mapping; a second call does nothing."""
        self._address = 0
        self._released_when_dropped()


def _release(address: int) -> None:
    _c_library().munmap(address, mmap.PAGESIZE)
    _count.remove()


def hold_file(descriptor: int) -> HeldFile | None:
    """Hold an open file beyond the close of its descriptor.

    Returns:
        None where that is not possible.
    """
    # Only for Linux is it known which errors an fsync reports.
    if sys.platform != "linux" or not _count.add():
        return None
    address = _c_library().mmap(None, mmap.PAGESIZE, _PROT_NONE, mmap.MAP_SHARED, descriptor, 0)
    if address is None or address == _MAP_FAILED:
        _count.remove()
        return None
    return HeldFile(address)


@functools.cache
def _c_library() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    size, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    library.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_int64]
    library.mmap.restype = pointer
    library.msync.argtypes = [pointer, size, number]
    library.munmap.argtypes = [pointer, size]
    return library


class WriteStream(io.RawIOBase):
    """A `WritableFile` as a file object of Python, for libraries that write to one; closing it closes the file.

    It begins at position 0, and does not flush to disk.
    """

    def __init__(self, file: WritableFile) -> None:
        super().__init__()
        self._file = file
        self._position_bytes = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._position_bytes

    def write(self, data: Any) -> int:
        """Write all of a bytes-like object after what was written before.

        Raises:
            StorageError: The file system refused; a part may have been written.
        """
        if self.closed:
            raise ValueError("write to a closed file")
        view = memoryview(data).cast("B")
        self._file.write_at([view], self._position_bytes)
        self._position_bytes += len(view)
        return len(view)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if not self.closed:
            super().close()
            self._file.close()


def flush_descriptor(descriptor: int) -> None:
    """Force a file or directory to disk."""
    if sys.platform == "darwin":
        # On macOS, fsync leaves the data in the cache of the drive.
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError as error:
            # A network file system may not support it.
            if error.errno not in {errno.ENOTSUP, errno.EINVAL, errno.ENOTTY}:
                raise
        else:
            return
    os.fsync(descriptor)


def _groups(pieces: Sequence[BytesLike], position_bytes: int) -> Iterator[tuple[Sequence[BytesLike], int]]:
    """Yield the pieces in groups for one call each, with the size of each group, which is not 0."""
    # The length of a view is in items, which may be wider than a byte.
    sizes_bytes = [piece.nbytes if isinstance(piece, memoryview) else len(piece) for piece in pieces]
    total_bytes = sum(sizes_bytes)
    if total_bytes <= _MAX_WRITE_BYTES and len(pieces) <= _MAX_PIECES:
        if total_bytes:
            yield pieces, total_bytes
        return
    group: list[BytesLike] = []
    room_bytes = group_room_bytes = _MAX_WRITE_BYTES - position_bytes % _MAX_WRITE_BYTES
    for piece, size_bytes in zip(pieces, sizes_bytes, strict=True):
        start_bytes = 0
        while start_bytes < size_bytes:
            end_bytes = min(size_bytes, start_bytes + room_bytes)
            room_bytes -= end_bytes - start_bytes
            is_whole = end_bytes - start_bytes == size_bytes
            group.append(piece if is_whole else memoryview(piece).cast("B")[start_bytes:end_bytes])
            start_bytes = end_bytes
            if not room_bytes or len(group) == _MAX_PIECES:
                yield group, group_room_bytes - room_bytes
                group = []
                room_bytes = group_room_bytes = room_bytes or _MAX_WRITE_BYTES
    if group:
        yield group, group_room_bytes - room_bytes


def _write_group(descriptor: int, pieces: Sequence[BytesLike], size_bytes: int, position_bytes: int) -> None:
    """Write pieces that fit one call; continue after a short write."""
    written_bytes = _write_once(descriptor, pieces, position_bytes)
    if written_bytes < size_bytes:
        # A signal, or a full disk: rare enough to join the pieces.
        rest = memoryview(b"".join(pieces))
        while written_bytes < size_bytes:
            written_bytes += _write_once(descriptor, [rest[written_bytes:]], position_bytes + written_bytes)


def _write_once(descriptor: int, pieces: Sequence[BytesLike], position_bytes: int) -> int:
    """Write once; return the number of bytes written, at least one."""
    while True:
        try:
            count = os.pwritev(descriptor, pieces, position_bytes)
        except InterruptedError:
            continue
        if count <= 0:
            raise OSError(errno.EIO, "the file system wrote none of the bytes")
        return count


def sync_file_system(descriptor: int) -> None:
    """Sync the whole file system of an open file (``syncfs``), where that is supported. Errors are ignored."""
    function = _linux_function("syncfs", ctypes.c_int)
    if function is not None:
        function(descriptor)


@functools.cache
def _linux_function(name: str, *argument_types: Any) -> Any | None:
    """Return a function of the C library that returns an int; None on other systems."""
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if function is not None:
        function.argtypes, function.restype = argument_types, ctypes.c_int
    return function


def _read_fully(descriptor: int, size_bytes: int, position_bytes: int) -> bytes:
    """Read up to ``size_bytes``; fewer only at the end of the file."""
    data = os.pread(descriptor, size_bytes, position_bytes)
    # A pread may return fewer bytes before the end.
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


def _copy_range(
    source: int, target: int, source_position_bytes: int, position_bytes: int, size_bytes: int
) -> int:
    """Copy between two open files; return the number of bytes, fewer only at the end of the source."""
    copied_bytes = _copy_in_kernel(source, target, source_position_bytes, position_bytes, size_bytes)
    # Some file systems report the end of the source too early.
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
    """Copy as much as the kernel copies."""
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
        _write_group(target, [part[:count]], count, position_bytes + copied_bytes)
        copied_bytes += count
    return copied_bytes
