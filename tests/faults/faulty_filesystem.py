"""The real file system, in which one call, or each from one on, fails.

The package calls the operating system through the module ``os``, in the modules of `storage_core.filesystem` alone.
Something that fails stands in its place there, so that what the package does about it is tested, too::

    with FaultyCalls(Fault(errno.ENOSPC, at=17)) as calls:
        ...
    calls.happened      # the call that failed, as text; None if there were not so many
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

# Not an error of the operating system: it writes less than it was asked to, and says so.
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
# A full disk still gives files back.
_TAKING_SPACE = ("open", "pwritev", "copy_file_range", "ftruncate", "link", "mkdir")
# Python itself tries again what a signal interrupts; of these, only what it interrupts midway may still be seen.
_INTERRUPTIBLE = ("pwritev",)
_MODULES = (_file_system, _writable_file, _copy, _file_lock)


@dataclass(frozen=True)
class Fault:
    """What goes wrong.

    Args:
        error_number: As in `errno`, or `SHORT_WRITE`.
        at: Number of the call, from 1, among those that it can happen to.
        is_lasting: Whether it happens to all calls from there on.
    """

    error_number: int
    at: int
    is_lasting: bool = False

    @property
    def calls(self) -> tuple[str, ...]:
        """The calls that it can happen to."""
        return {
            errno.ENOSPC: _TAKING_SPACE,
            errno.EINTR: _INTERRUPTIBLE,
            SHORT_WRITE: ("pwritev", "copy_file_range"),
        }.get(self.error_number, _CHANGING)


class FaultyCalls:
    """Stands for the module ``os`` where the package touches files. Use as a context manager."""

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
                # Some of it may have been written before it failed.
                descriptor, pieces, position_bytes = arguments
                data = b"".join(bytes(piece) for piece in pieces)
                os.pwrite(descriptor, data[: len(data) * (self.fault.at % 3) // 3], position_bytes)
            raise OSError(self.fault.error_number, os.strerror(self.fault.error_number))

        return call

    def _half_a_copy(self, source: int, target: int, count: int, start: int, position: int) -> int:
        """Copy a part, and say so, or fail: some of it may have been written before."""
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
