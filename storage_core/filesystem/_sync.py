"""Calls of Linux that Python does not know: ``syncfs`` and ``sync_file_range``."""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["begin_sync_of_range", "sync_file_system"]

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
