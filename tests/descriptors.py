"""Which files below a directory this process has open.

What else it has open does not count: descriptors come and go with other threads, with Spark, and with what other tests
have left to the garbage collector.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys

_DELETED = " (deleted)"


def open_below(path: str | os.PathLike[str]) -> list[str]:
    """Return the files and directories open at or below a path, one for each descriptor; deleted ones, too."""
    top = os.path.realpath(path)
    found = []
    for name in os.listdir("/dev/fd"):
        # The one that lists them is closed by now.
        with contextlib.suppress(OSError):
            opened = _path_of(int(name))
            if opened == top or opened.startswith(top + os.sep):
                found.append(opened)
    return sorted(found)


def _path_of(descriptor: int) -> str:
    if sys.platform == "darwin":
        return os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
    return os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(_DELETED)
