"""The real file system, in which one call, or every call from one on, fails.

The package calls the operating system through the module ``os``, in the modules of `storage_core.filesystem` only. A
failing replacement of that module tests how the package handles the errors::

    with FaultyCalls(Fault(errno.ENOSPC, at=17)) as calls:
        ...
    calls.happened      # the call that failed, as text; None if there were fewer calls
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from storage_core.filesystem import file_lock as _file_lock
from storage_core.filesystem import file_system as _file_system
from storage_core.filesystem import files as _copy
from storage_core.filesystem import files as _writable_file

# Not an error of the operating system: the call writes less than requested and returns the smaller count.
SHORT_WRITE = -1

_CHANGING = (
    "open",
    "pwritev",
    "copy_file_range",
    "fsync",
    "ftruncate",
    "replace",
    "link",
    "unlink",
    "mkdir",
    "rmdir",
)
# Calls that need space; on a full disk the others succeed.
_TAKING_SPACE = ("open", "pwritev", "copy_file_range", "ftruncate", "link", "mkdir")
# Python retries calls that a signal interrupts; only an interruption halfway through these calls is visible.
_INTERRUPTIBLE = ("pwritev",)
_MODULES = (_file_system, _writable_file, _copy, _file_lock)


# Error number, and whether all later calls fail, too.
FAULTS = {
    "no space left": (errno.ENOSPC, False),
    "no space left from there on": (errno.ENOSPC, True),
    "I/O error": (errno.EIO, False),
    "I/O errors from there on": (errno.EIO, True),
    "interrupted": (errno.EINTR, False),
    "short write": (SHORT_WRITE, False),
    "short writes from there on": (SHORT_WRITE, True),
}
# What no caller notices.
INVISIBLE = {errno.EINTR, SHORT_WRITE}


@dataclass(frozen=True)
class Fault:
    """An injected failure.

    Args:
        error_number: As in `errno`, or `SHORT_WRITE`.
        at: The number of the failing call, from 1, among the calls that it can affect.
        is_lasting: Whether all later calls fail, too.
    """

    error_number: int
    at: int
    is_lasting: bool = False

    @property
    def calls(self) -> tuple[str, ...]:
        """The calls that it can affect."""
        return {
            errno.ENOSPC: _TAKING_SPACE,
            errno.EINTR: _INTERRUPTIBLE,
            SHORT_WRITE: ("pwritev", "copy_file_range"),
        }.get(self.error_number, _CHANGING)


class FaultyCalls:
    """Replaces the module ``os`` in the modules that touch files. Use as a context manager."""

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault
        self.count = 0
        self.happened: str | None = None
        self._guard = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._faulty(name, real) if name in _CHANGING else real

    def __enter__(self) -> Self:
        for module in _MODULES:
            module.os = self
        return self

    def __exit__(self, *details: object) -> None:
        for module in _MODULES:
            module.os = os

    def _faulty(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if not self._is_due(name, arguments):
                return real(*arguments, **named)
            if name == "copy_file_range":
                return self._half_a_copy(*arguments)
            if self.fault.error_number == SHORT_WRITE:
                descriptor, pieces, position_bytes = arguments
                data = b"".join(bytes(piece) for piece in pieces)
                return os.pwrite(descriptor, data[: max(1, len(data) // 2)], position_bytes)
            if name == "pwritev" and self.fault.error_number != errno.EINTR:
                # A failed write may have written a part.
                descriptor, pieces, position_bytes = arguments
                data = b"".join(bytes(piece) for piece in pieces)
                os.pwrite(descriptor, data[: len(data) * (self.fault.at % 3) // 3], position_bytes)
            raise OSError(self.fault.error_number, os.strerror(self.fault.error_number))

        return call

    def _half_a_copy(self, source: int, target: int, count: int, start: int, position: int) -> int:
        """Copy a part and return its size, or fail, possibly after copying a part."""
        copied = os.copy_file_range(source, target, max(1, count // 2), start, position)
        if self.fault.error_number == SHORT_WRITE:
            return copied
        raise OSError(self.fault.error_number, os.strerror(self.fault.error_number))

    def _is_due(self, name: str, arguments: tuple[Any, ...]) -> bool:
        fault = self.fault
        if name == "open" and not arguments[1] & os.O_CREAT:
            return False
        if fault is not None and name not in fault.calls:
            return False
        with self._guard:
            self.count += 1
            if fault is None or self.count < fault.at or (self.count > fault.at and not fault.is_lasting):
                return False
            self.happened = self.happened or f"{name} {arguments[0]}"
            return True
