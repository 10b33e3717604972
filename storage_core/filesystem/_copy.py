"""Copying a part of one file into another, inside the kernel where that is possible."""

from __future__ import annotations

import errno
import os
from typing import Final

__all__ = ["copy_range"]

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
