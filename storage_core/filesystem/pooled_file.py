"""Files opened for writing, of which only a limited number have a descriptor at a time.

The kernel records a failed write-back in the open file, and ``fsync`` reports it. If the file is closed first, the error
may never be reported: the record is freed with the inode when memory is short, or goes to another process that asks
first. A mapping keeps the open file without a descriptor (`HeldFile`). It is never accessed, and cannot be, so a
truncation of the file does no harm.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from storage_core.errors import StorageError
from storage_core.filesystem.files import HeldFile, WritableFile
from storage_core.filesystem.values import BytesLike, FileVersion, explained_writing_to_open_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# How many of the files not recently used are examined to find one without unflushed bytes.
_EXAMINED: Final = 8


class FilePool:
    """Files with an open descriptor; a file not recently used is closed to make room for another (second chance).

    A file marks itself as used without any lock. When the pool is full, it clears the marks in turn, and closes a file
    without a mark. Files in use are never closed, however many there are.
    """

    def __init__(self, max_open: int) -> None:
        self.max_open = max_open
        self._lock = threading.Lock()
        # In the order of examination.
        self._open: OrderedDict[PooledFile, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, file: PooledFile) -> None:
        """Make room for a file that is about to be opened, and count it."""
        # Closed outside of the lock, before the new file is opened; if one fails, the others are closed all the same.
        with contextlib.ExitStack() as taken, self._lock:
            while len(self._open) >= self.max_open and (unused := self._take_one()) is not None:
                taken.callback(unused.close_taken)
            self._open[file] = None

    def leave(self, file: PooledFile) -> None:
        """Remove a file that was closed, or could not be opened."""
        with self._lock:
            self._open.pop(file, None)

    def _take_one(self) -> PooledFile | None:
        """Remove a file and lock it until it is closed.

        Returns:
            None if all are in use.
        """
        self._pass_over_used()
        unflushed = []
        for file in islice(self._open, _EXAMINED):
            if file.was_used:
                continue
            if file.is_unflushed:
                unflushed.append(file)
            elif self._take(file):
                return file
        for file in unflushed:
            if self._take(file):
                return file
        # All the files examined are in use.
        return next((file for file in list(self._open) if self._take(file)), None)

    def _take(self, file: PooledFile) -> bool:
        is_taken = file.take()
        if is_taken:
            del self._open[file]
        return is_taken

    def _pass_over_used(self) -> None:
        """Move used files to the end and clear their marks, until the first file has no mark."""
        for _ in range(len(self._open)):
            file = next(iter(self._open))
            if not file.was_used:
                return
            file.was_used = False
            self._open.move_to_end(file)


class PooledFile:
    """A file opened for reading and writing, whose descriptor the pool may close while it is not in use.

    It is opened again by its path, and must be the same file then. A `HeldFile` keeps write errors beyond the close of
    a descriptor; where that is not possible, the file is flushed first. It is thread-safe.

    Attributes:
        path: The file. A caller that renames it sets the new path.
        was_used: Whether it was used since the pool cleared this mark.
    """

    __slots__ = (
        "_changes",
        "_failure",
        "_file",
        "_flushed_changes",
        "_flushing",
        "_held",
        "_identity",
        "_is_closed",
        "_is_flushed_now",
        "_lock",
        "_open_again",
        "_pool",
        "path",
        "was_used",
    )

    def __init__(
        self,
        pool: FilePool,
        path: str,
        open_again: Callable[[str], WritableFile],
        open_first: Callable[[str], WritableFile],
    ) -> None:
        self.path = path
        self.was_used = True
        self._pool = pool
        self._open_again = open_again
        self._file: WritableFile | None = None
        self._identity: tuple[int, FileVersion] | None = None
        self._held: HeldFile | None = None
        # Held while the descriptor is used or changes. A flush, which takes long, has a lock of its own.
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._is_flushed_now = False
        self._is_closed = False
        # How many changes were made, and how many of them are on disk.
        self._changes = 0
        self._flushed_changes = 0
        self._failure: BaseException | None = None
        self._open(open_first)

    @property
    def is_unflushed(self) -> bool:
        """Whether it was changed since the last flush."""
        return self._changes != self._flushed_changes

    def size_bytes(self) -> int:
        """Return the size now."""
        with self._lock:
            return self._opened().size_bytes()

    def read_at(self, size_bytes: int, position_bytes: int) -> bytes:
        """Read up to ``size_bytes`` from ``position_bytes``; shorter only at the end of the file."""
        with self._lock:
            return self._opened().read_at(size_bytes, position_bytes)

    def write_at(self, pieces: Sequence[BytesLike], position_bytes: int) -> None:
        """Write the pieces one after the other from ``position_bytes``; raises as `WritableFile.write_at` does."""
        with self._lock:
            file = self._opened()
            self._changes += 1
            # It may have been renamed, and become a copy if it has another name.
            file.path = self.path
            file.write_at(pieces, position_bytes)
            self._identity = file.identity()

    def truncate(self, size_bytes: int) -> None:
        """Truncate the file to a size, or extend it with zeros."""
        with self._lock:
            file = self._opened()
            self._changes += 1
            # It may have been renamed, and become a copy if it has another name.
            file.path = self.path
            file.truncate(size_bytes)
            self._identity = file.identity()

    def begin_flush(self, position_bytes: int, size_bytes: int) -> None:
        """Start to write a part to disk, as `WritableFile.begin_flush` does."""
        with self._lock:
            self._opened().begin_flush(position_bytes, size_bytes)

    def flush(self) -> None:
        """Force everything written so far to disk. A failed flush is not retried."""
        flush = self.prepare_flush()
        flush()

    def prepare_flush(self) -> Callable[[], None]:
        """Prepare a flush after a running one has ended: the kernel reports an error to only one of two concurrent flushes.

        Returns:
            The flush of what was written before, which must be called once, outside of all locks. Until then the file
            stays open. After a `StorageError`, no later flush of this file is tried.
        """
        self._flushing.acquire()
        try:
            with self._lock:
                self._opened()
                self._is_flushed_now = True
                return partial(self._run_flush, self._changes)
        except BaseException:
            self._flushing.release()
            raise

    def _run_flush(self, changes: int) -> None:
        """Flush the first ``changes`` changes, then allow other flushes and a close again."""
        try:
            # The descriptor stays open while `_is_flushed_now` is set.
            if self._file is not None:
                self._file.flush()
            if self._held is not None:
                with explained_writing_to_open_file(self.path, "flush"):
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
        """Close the file after a running flush; a second call does nothing."""
        with self._flushing, self._lock:
            self._is_closed = True
            try:
                self._close_descriptor()
            finally:
                self._release()

    def take(self) -> bool:
        """Lock the file for the pool and return True, unless it is in use."""
        if not self._lock.acquire(blocking=False):
            return False
        if self._is_flushed_now or self._file is None:
            self._lock.release()
            return False
        return True

    def close_taken(self) -> None:
        """Close the descriptor of a file that `take` locked for the pool, and unlock the file."""
        file, self._file = self._file, None
        try:
            if file is not None:
                with file:
                    self._keep_unflushed(file)
        except StorageError as error:
            # Reported on the next use of this file, not to the thread that opens another one.
            self._failure = error
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._lock.release()

    def _keep_unflushed(self, file: WritableFile) -> None:
        """Make sure that a later flush reports the write errors of a descriptor that is about to be closed."""
        if self.is_unflushed and self._held is None and self._failure is None:
            self._held = file.hold()
            if self._held is None:
                file.flush()
                self._flushed_changes = self._changes

    def _opened(self) -> WritableFile:
        """Return the open file; the caller has the lock."""
        self.was_used = True
        if self._failure is not None:
            raise StorageError(
                f"An earlier flush of this file has failed ({self._failure}), so its content on disk is unknown. Open "
                "the log again.",
                path=self.path,
            ) from self._failure
        return self._file or self._open(self._open_again)

    def _open(self, open_file: Callable[[str], WritableFile]) -> WritableFile:
        if self._is_closed:
            raise StorageError("Expected a file that is open, found one that was closed.", path=self.path)
        try:
            self._pool.enter(self)
            file = open_file(self.path)
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
                "Expected the file that was written to before, found another one under its name. Stop the process that "
                "replaces files here, and open the log again.",
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
