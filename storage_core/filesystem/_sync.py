"""``syncfs``, which Python does not know: all that was written to one file system, in one go."""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["sync_file_system"]


def sync_file_system(descriptor: int) -> bool:
    """Have the file system of an open file write everything; False if it did not, or nobody knows how to ask for it."""
    function = _syncfs()
    return function is not None and function(descriptor) == 0


@functools.cache
def _syncfs() -> Callable[[int], int] | None:
    if sys.platform != "linux":
        return None
    function = getattr(ctypes.CDLL(None), "syncfs", None)
    if function is None:
        return None
    function.argtypes, function.restype = [ctypes.c_int], ctypes.c_int
    return function  # type: ignore[no-any-return]
