"""Which of many files are open: at most so many at a time, whoever they belong to.

Keeping the system's account of an open file after its descriptor was closed.

Whether the system has failed to write bytes to the disk is noted with the open file, and `fsync` tells. If the file is
closed first, nobody may ever be told: the note goes with the inode once memory is short, or with whoever asks before.
A mapping keeps the open file, without a descriptor. It is never touched, and cannot be, so that it does not matter what
becomes of the file.

A file that is written to now and then, and has a descriptor only meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import sys
import threading
from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from storage_core.errors import StorageError
from storage_core.filesystem.values import explained_writing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.filesystem.file_system import FileSystem
    from storage_core.filesystem.files import WritableFile
    from storage_core.filesystem.values import BytesLike

__all__ = ["FilePool", "HeldFile", "PooledFile", "PreparedFlush", "hold_file"]


# How many files that were not used lately are looked at in search of one without unflushed bytes.
_LOOKED_AT: Final = 8


class FilePool:
    """Files with an open descriptor. To make room for another, one is closed that was not used lately.

    A file notes by itself that it was used, without any lock. When there is no room, those that were are asked once
    more later, in turn, and the note is taken back.

    Args:
        most_open: How many may be open. Files at work at this very moment are not closed, however many they are.
    """

    def __init__(self, most_open: int) -> None:
        self.most_open = most_open
        self._lock = threading.Lock()
        # The one that is asked first stands first.
        self._open: OrderedDict[PooledFile, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, file: PooledFile) -> None:
        """Make room for a file that is about to be opened, and count it."""
        # Closed outside of the lock, and before the new one is opened. One that fails keeps no other from being closed.
        with contextlib.ExitStack() as taken, self._lock:
            while len(self._open) >= self.most_open and (unused := self._take_one()) is not None:
                taken.callback(unused.close_taken)
            self._open[file] = None

    def leave(self, file: PooledFile) -> None:
        """A file was closed, or not opened after all."""
        with self._lock:
            self._open.pop(file, None)

    def _take_one(self) -> PooledFile | None:
        """Take out a file that is to be closed: nobody uses it before it is. None if all are in use."""
        self._pass_over_used()
        unflushed = []
        for file in islice(self._open, _LOOKED_AT):
            if file.was_used:
                continue
            if file.is_unflushed:
                unflushed.append(file)
            elif self._take(file):
                return file
        for file in unflushed:
            if self._take(file):
                return file
        # So many threads are at work that those looked at are in use.
        return next((file for file in list(self._open) if self._take(file)), None)

    def _take(self, file: PooledFile) -> bool:
        is_taken = file.take()
        if is_taken:
            del self._open[file]
        return is_taken

    def _pass_over_used(self) -> None:
        """Put used files at the end, until one stands first that was not used since it was asked last."""
        for _ in range(len(self._open)):
            file = next(iter(self._open))
            if not file.was_used:
                return
            file.was_used = False
            self._open.move_to_end(file)


_PROTECTION_NONE: Final = 0
_FLAG_SYNCHRONOUS: Final = 4
_FAILED: Final = ctypes.c_void_p(-1).value
# Half of what Linux lets a process map, unless told otherwise: others need mappings, too.
_MOST_HELD: Final = 32_000


class _Count:
    """How many files this process holds: the limit is the process's, too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def renew_lock(self) -> None:
        self._lock = threading.Lock()

    def add(self) -> bool:
        with self._lock:
            if self._count >= _MOST_HELD:
                return False
            self._count += 1
            return True

    def remove(self) -> None:
        with self._lock:
            self._count -= 1


_count = _Count()
# A thread that the child does not have may have held it. The child has the mappings, too, so the count stays.
os.register_at_fork(after_in_child=_count.renew_lock)


class HeldFile:
    """An open file without a descriptor."""

    __slots__ = ("_address",)

    def __init__(self, address: int) -> None:
        self._address = address

    def check(self) -> None:
        """Learn whether all that was written through the file, and has left memory, has reached the disk.

        Raises:
            OSError: Not all of it. It is told once.
        """
        if _c_library().msync(self._address, mmap.PAGESIZE, _FLAG_SYNCHRONOUS) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def release(self) -> None:
        """Close the file; a second call does nothing."""
        address, self._address = self._address, 0
        if address:
            _c_library().munmap(address, mmap.PAGESIZE)
            _count.remove()

    def __del__(self) -> None:
        self.release()


def hold_file(descriptor: int) -> HeldFile | None:
    """Hold an open file, whose descriptor may be closed then; None where that is not possible."""
    # What an fsync tells elsewhere of what happened before is not known.
    if sys.platform != "linux" or not _count.add():
        return None
    address = _c_library().mmap(None, mmap.PAGESIZE, _PROTECTION_NONE, mmap.MAP_SHARED, descriptor, 0)
    if address is None or address == _FAILED:
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


class PooledFile:
    """A file opened for reading and writing, whose descriptor may be closed while nobody uses it.

    It is opened again by its path, and must be the same file then. What a failed write to the disk leaves unsaid
    when a descriptor is closed is kept, see `HeldFile`; where that is not possible, the file is flushed before. Any
    thread may use it.

    Attributes:
        path: The file. Whoever renames it says so here.
        was_used: Since the pool asked last.
    """

    __slots__ = (
        "_changes",
        "_failure",
        "_file",
        "_filesystem",
        "_flushed_changes",
        "_flushing",
        "_held",
        "_identity",
        "_is_closed",
        "_is_flushed_now",
        "_lock",
        "_pool",
        "path",
        "was_used",
    )

    def __init__(self, filesystem: FileSystem, pool: FilePool, path: str, *, create: bool) -> None:
        self.path = path
        self.was_used = True
        self._filesystem = filesystem
        self._pool = pool
        self._file: WritableFile | None = None
        self._identity: tuple[int, int] | None = None
        self._held: HeldFile | None = None
        # Held while the descriptor is used or changes, but for a flush, which takes long: that has a lock of its own.
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._is_flushed_now = False
        self._is_closed = False
        # How often the file was changed, and which of these changes are on disk.
        self._changes = 0
        self._flushed_changes = 0
        self._failure: BaseException | None = None
        self._open(create=create)

    @property
    def is_unflushed(self) -> bool:
        """Whether it was changed since the last flush."""
        return self._changes != self._flushed_changes

    def size_bytes(self) -> int:
        """The size now."""
        with self._lock:
            return self._opened().size_bytes()

    def read_at(self, size_bytes: int, position_bytes: int) -> bytes:
        """Read up to ``size_bytes`` from ``position_bytes``; shorter only at the end of the file."""
        with self._lock:
            return self._opened().read_at(size_bytes, position_bytes)

    def write_at(self, pieces: Sequence[BytesLike], position_bytes: int) -> None:
        """Write the pieces one behind the other, from ``position_bytes``.

        Raises:
            StorageError: The file system refused; a part of the bytes may have been written.
        """
        with self._lock:
            file = self._opened()
            self._changes += 1
            file.write_at(pieces, position_bytes)

    def truncate(self, size_bytes: int) -> None:
        """Cut the file to a size, or extend it with zeros."""
        with self._lock:
            file = self._opened()
            self._changes += 1
            file.truncate(size_bytes)

    def begin_flush(self, position_bytes: int, size_bytes: int) -> None:
        """Ask for a part to be brought to the disk soon, where that is possible, see `WritableFile.begin_flush`."""
        with self._lock:
            self._opened().begin_flush(position_bytes, size_bytes)

    def flush(self) -> None:
        """Bring everything written so far to the disk itself. It is not tried again after it failed."""
        self.prepare_flush().run()

    def prepare_flush(self) -> PreparedFlush:
        """Do all of a flush that does not take long. The descriptor stays, and nobody closes the file, until it has run.

        Waits for a flush that runs already: of two at a time, the system tells only one that it has failed.
        """
        self._flushing.acquire()
        try:
            with self._lock:
                self._opened()
                self._is_flushed_now = True
                return PreparedFlush(self, self._changes)
        except BaseException:
            self._flushing.release()
            raise

    def run_prepared_flush(self, changes: int) -> None:
        """For `PreparedFlush`: flush what was changed until then, and let others flush and close the file again."""
        try:
            # It is there, and nobody takes it away meanwhile.
            if self._file is not None:
                self._file.flush()
            if self._held is not None:
                with explained_writing(self.path, "flush", is_open=True):
                    self._held.check()
                self._release()
            self._flushed_changes = changes
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._is_flushed_now = False
            self._flushing.release()

    def close(self) -> None:
        """Close the file, once a flush that runs has ended; a second call does nothing."""
        with self._flushing, self._lock:
            self._is_closed = True
            try:
                self._close_descriptor()
            finally:
                self._release()

    def take(self) -> bool:
        """For the pool: keep everybody from using the file, if nobody does; False if somebody does."""
        if not self._lock.acquire(blocking=False):
            return False
        if self._is_flushed_now or self._file is None:
            self._lock.release()
            return False
        return True

    def close_taken(self) -> None:
        """For the pool: close the descriptor of a file that was taken, and let everybody use it again."""
        file, self._file = self._file, None
        try:
            if file is not None:
                with file:
                    self._keep_unflushed(file)
        except StorageError as error:
            # Whoever uses this file next is told, not who wanted to use another one.
            self._failure = error
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._lock.release()

    def _keep_unflushed(self, file: WritableFile) -> None:
        """See to it that a later flush tells the truth about bytes that were written through a descriptor closed now."""
        if self.is_unflushed and self._held is None and self._failure is None:
            self._held = file.hold()
            if self._held is None:
                file.flush()
                self._flushed_changes = self._changes

    def _opened(self) -> WritableFile:
        """The open file; whoever asks has the lock."""
        self.was_used = True
        if self._failure is not None:
            raise StorageError(
                f"An earlier flush of this file has failed ({self._failure}), and what is on disk is not known. Open "
                "the log again.",
                path=self.path,
            ) from self._failure
        return self._file or self._open()

    def _open(self, *, create: bool = False) -> WritableFile:
        if self._is_closed:
            raise StorageError("Expected a file that is open, found one that was closed.", path=self.path)
        try:
            self._pool.enter(self)
            file = self._filesystem.open_for_writing(self.path, create=create)
            try:
                self._check_identity(file)
            except BaseException:
                file.close()
                raise
        except BaseException:
            self._pool.leave(self)
            raise
        self._file = file
        return file

    def _check_identity(self, file: WritableFile) -> None:
        identity = file.identity()
        if self._identity is None:
            self._identity = identity
        elif identity != self._identity:
            raise StorageError(
                "Expected the file that was written to before, found another one under its name. Stop who replaces "
                "files here, and open the log again.",
                path=self.path,
            )

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.release()

    def _close_descriptor(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            self._pool.leave(self)
            file.close()


class PreparedFlush:
    """A flush that is about to run, outside of any lock. It has to be run, once."""

    __slots__ = ("_changes", "_of")

    def __init__(self, of: PooledFile, changes: int) -> None:
        self._of = of
        self._changes = changes

    def run(self) -> None:
        """Bring to the disk what was written before it was prepared.

        Raises:
            StorageError: The file system refused. No flush of this file is tried again.
        """
        self._of.run_prepared_flush(self._changes)
