"""File systems that report each call, reads included, before it happens and in the calling thread.

The callback can run other operations at exactly that moment, in this thread or in another one::

    filesystem = ObservedFileSystem()               # the real one
    filesystem = ObservedSimulation(other._root)    # the simulated files of another one, with separate counters
    filesystem.tell = lambda call: ...
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from storage_core.errors import UnreadableError
from storage_core.filesystem import FileSystem, OpenFile, WritableFile
from tests.faults.simulated_files import SimulatedFile
from tests.faults.simulated_filesystem import SimulatedFileSystem

_CALLS = (
    "walk_directory",
    "status",
    "open",
    "read_file",
    "open_for_writing",
    "rename",
    "link",
    "delete",
    "make_directory",
    "delete_directory",
    "set_modified_ms",
    "flush_directory",
)
_CALLS_OF_A_FILE = ("read_at", "read_into", "size_bytes", "write_at", "truncate", "flush")


def _observed(base: type, name: str) -> Callable[..., Any]:
    real = getattr(base, name)

    @functools.wraps(real)
    def call(self, path: str, *arguments: Any, **options: Any) -> Any:
        if self.tell is not None:
            self.tell(f"{name} {path}")
        found = real(self, path, *arguments, **options)
        if isinstance(found, (OpenFile, WritableFile, SimulatedFile)):
            found.observed_by = self
            found.__class__ = _class_of_observed(type(found))
        return found

    return call


@functools.cache
def _class_of_observed(base: type) -> type:
    return type(
        base.__name__,
        (base,),
        {name: _observed_of_a_file(base, name) for name in _CALLS_OF_A_FILE if hasattr(base, name)},
    )


def _observed_of_a_file(base: type, name: str) -> Callable[..., Any]:
    real = getattr(base, name)

    @functools.wraps(real)
    def call(self, *arguments: Any) -> Any:
        if self.observed_by.tell is not None:
            self.observed_by.tell(f"{name} {self.path}")
        return real(self, *arguments)

    return call


def _observing(base: type, *more_calls: str) -> type:
    calls = {name: _observed(base, name) for name in (*_CALLS, *more_calls)}
    return type(f"Observed{base.__name__}", (base,), {"tell": None, **calls})


ObservedFileSystem = _observing(FileSystem)
ObservedSimulation = _observing(SimulatedFileSystem)
_FullyObserved = _observing(FileSystem, "examine_directory", "list_directory")


def before_each_call(happen: Callable[[str, str], object]) -> FileSystem:
    """Return the real file system, and what happens before each call, given its name and path."""
    filesystem: Any = _FullyObserved()
    filesystem.tell = lambda call: happen(*call.split(" ", 1))
    return filesystem


def refusing(*refused: object) -> FileSystem:
    """Return a file system on which this user may not read or list some paths, given by path or name."""
    refused = tuple(map(str, refused))

    def refuse(call: str, path: str) -> None:
        is_read = call in {"open", "read_file", "walk_directory", "list_directory", "examine_directory"}
        if is_read and (path in refused or os.path.basename(path) in refused):
            raise UnreadableError("User kim may not read this path.", path=path)

    return before_each_call(refuse)
