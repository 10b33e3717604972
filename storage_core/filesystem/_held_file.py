"""Keeping the system's account of an open file after its descriptor was closed.

Whether the system has failed to write bytes to the disk is noted with the open file, and `fsync` tells. If the file is
closed first, nobody may ever be told: the note goes with the inode once memory is short, or with whoever asks before.
A mapping keeps the open file, without a descriptor. It is never touched, and cannot be, so that it does not matter what
becomes of the file.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
import threading
from typing import Any, Final

__all__ = ["HeldFile", "hold_file"]

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
