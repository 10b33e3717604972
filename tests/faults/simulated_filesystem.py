"""A file system in memory that can lose power at any call.

The package accesses files only through `storage_core.filesystem.FileSystem`, which this class replaces::

    filesystem = SimulatedFileSystem()
    ...
    after = filesystem.crash(random.Random(1))      # a possible state of the disk after a power cut
    after = filesystem.kill()                       # the state after a SIGKILL

Mutating calls are counted. ``stop_at`` ends the process at the n-th of them with `SimulatedCrash`; ``observe`` is
called before each. `simulated_disk` defines what a power cut may lose.
"""

from __future__ import annotations

import functools
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from storage_core.errors import LogDirectoryError, LogDirectoryLockedError, StorageError, UnreadableError
from storage_core.filesystem import DirectoryEntry, ExaminedEntry, FileStatus, FileSystem, PooledFile
from storage_core.filesystem.values import ExistsError, MissingError
from tests.faults.simulated_disk import (
    CrashStyle,
    DirectoryNode,
    FileNode,
    after_power_cut,
    copy_of,
    fingerprint,
)
from tests.faults.simulated_files import (
    SimulatedFile,
    SimulatedLock,
    SimulatedWritableFile,
    examined_entry,
    file_status,
)

Node = FileNode | DirectoryNode


class SimulatedCrash(BaseException):
    """The end of the process. Not an Exception, so that no handler on the way catches it."""


@dataclass(frozen=True)
class Call:
    """A mutating call."""

    number: int
    name: str
    path: str

    def __str__(self) -> str:
        return f"call {self.number}: {self.name} {self.path}"


class SimulatedFileSystem(FileSystem):
    """Files in memory. Use from any number of threads.

    Attributes:
        calls: The number of mutating calls.
        stop_at: The call at which the process ends; a write may have taken effect by then.
        observe: Called before each mutating call.
        fail: Called before each mutating call; an error that it returns is raised as the file system's.
        space_bytes: The free space to report.
        space_files: How many more files and directories fit; None for no limit.
        unwritable: Paths that this user may not write to: files, and directories whose entries are fixed.
        can_hold_files: Whether the system keeps reporting errors of closed files.
    """

    def __init__(
        self, root: DirectoryNode | None = None, last_inode: int = 1, *, max_open_files: int = 512
    ) -> None:
        super().__init__(max_open_files=max_open_files)
        self.calls = 0
        self.stop_at: int | None = None
        self.observe: Callable[[Call], None] | None = None
        self.fail: Callable[[Call], OSError | None] | None = None
        self.is_stopped = False
        self.space_bytes = 1 << 40
        self.space_files: int | None = None
        self.unwritable: set[str] = set()
        self.can_hold_files = True
        self._root = root or DirectoryNode(1)
        self._last_inode = last_inode
        self._now_ms = 1_700_000_000_000
        self._locked: set[int] = set()
        self._guard = threading.RLock()

    # -- After the end ----------------------------------------------------------------------------

    def crash(self, rng: random.Random, style: CrashStyle | None = None) -> SimulatedFileSystem:
        """Return a possible state after a power cut at this moment."""
        with self._guard:
            style = style or CrashStyle.draw(rng)
            root = after_power_cut(self._root, style, rng, self.calls)
            return SimulatedFileSystem(root, self._last_inode)

    def kill(self) -> SimulatedFileSystem:
        """Return the state after the process ends: everything written, flushed or not."""
        with self._guard:
            killed = SimulatedFileSystem(copy_of(self._root), self._last_inode)
            killed.calls = self.calls
            return killed

    # -- For tests --------------------------------------------------------------------------------

    def files(self) -> dict[str, bytes]:
        """Content of every file by its path, as a process sees it."""
        with self._guard:
            return dict(_files("", self._root))

    def put(self, path: str, content: bytes) -> None:
        """Write a durable file, with its directories."""
        with self._guard:
            parent = self._root
            for name in _parts(path)[:-1]:
                if name not in parent.entries:
                    parent.entries[name] = parent.durable[name] = DirectoryNode(self._next_inode())
                parent = _as_directory(parent.entries[name], path)
            node = FileNode(self._next_inode(), bytearray(content), content, [], self._now_ms)
            name = _parts(path)[-1]
            parent.entries[name] = parent.durable[name] = node

    # -- Reading ----------------------------------------------------------------------------------

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        # The inherited method sorts the simulated walk.
        return super().list_directory(path)

    def walk_directory(self, path: str) -> Iterator[DirectoryEntry]:
        with self._guard:
            self.statistics.directories_listed += 1
            entries = _as_directory(self._node(path), path).entries
            return iter(
                [
                    DirectoryEntry(name, isinstance(node, DirectoryNode), isinstance(node, FileNode), False)
                    for name, node in entries.items()
                ]
            )

    def examine_directory(self, path: str) -> Iterator[ExaminedEntry]:
        with self._guard:
            self.statistics.directories_listed += 1
            entries = _as_directory(self._node(path), path).entries
            self.statistics.files_examined += len(entries)
            return iter([examined_entry(name, node) for name, node in entries.items()])

    def status(self, path: str, *, follow_symlinks: bool = False) -> FileStatus | None:
        with self._guard:
            self.statistics.files_examined += 1
            node = self._find(path)
            return None if node is None else file_status(node)

    def open(self, path: str, version: object = None) -> SimulatedFile:
        with self._guard:
            self.statistics.files_opened += 1
            return SimulatedFile(self, path, self._file(path))

    def read_file(self, path: str, limit_bytes: int) -> bytes | None:
        with self._guard:
            if self._find(path) is None:
                return None
            content = bytes(self._file(path).content)
            if len(content) > limit_bytes:
                raise LogDirectoryError(
                    f"Expected at most {limit_bytes} bytes, found {len(content)}.", path=path
                )
            return content

    # -- Writing ----------------------------------------------------------------------------------

    def open_for_writing(
        self, path: str, *, create: bool = False, like: Sequence[str] = ()
    ) -> SimulatedWritableFile:
        with self._guard:
            if path in self.unwritable and self._find(path) is not None:
                self.require_writable(path)
            if create and self._find(path) is None:
                parent, name = self._parent(path)
                number = self._begin("create", path)
                self._take_room(path)
                node = FileNode(self._next_inode(), modified_ms=self._tick())
                parent.change(number, {name: node})
                self._end(number)
            return SimulatedWritableFile(self, path, self._file(path))

    def open_pooled(self, path: str, *, create: bool = False, like: Sequence[str] = ()) -> PooledFile:
        # The inherited method opens the simulated file.
        return super().open_pooled(path, create=create, like=like)

    def create_temporary(self, path: str, *, like: Sequence[str] = ()) -> SimulatedWritableFile:
        # Always the same name, so that equal states have equal names. The real one is not there yet.
        self.delete(path + ".tmp")
        return self.open_for_writing(path + ".tmp", create=True)

    def replacing(self, path: str, *, like: Sequence[str] = ()):
        # The inherited method makes the simulated file.
        return super().replacing(path, like=like)

    def unshare(self, file: SimulatedWritableFile) -> None:
        """Links are not copied here."""

    def ignores_case(self, path: str) -> bool:
        # The inherited method examines simulated files.
        return super().ignores_case(path)

    def is_locked(self, path: str) -> bool:
        with self._guard:
            node = self._find(path)
            return node is not None and node.inode in self._locked

    def replace_by_link(self, source: str, target: str) -> None:
        self.delete(target + ".tmp")
        self.link(source, target + ".tmp")
        self.rename(target + ".tmp", target)

    def rename(self, source: str, target: str) -> None:
        with self._guard:
            source_parent, source_name = self._parent(source)
            target_parent, target_name = self._parent(target)
            node = self._node(source)
            if isinstance(node, DirectoryNode) and _is_within(target, source):
                if _parts(target) == _parts(source):
                    return
                raise LogDirectoryError("A directory cannot be moved into itself.", path=target)
            replaced = target_parent.entries.get(target_name)
            if replaced is not None and type(replaced) is not type(node):
                raise LogDirectoryError("A file and a directory cannot replace one another.", path=target)
            if isinstance(replaced, DirectoryNode) and replaced.entries:
                raise StorageError("The directory is not empty.", path=target)
            number = self._begin("rename", target)
            if replaced is not None and self.space_files is not None:
                self.space_files += 1
            if source_parent is target_parent:
                source_parent.change(number, {source_name: None, target_name: node})
            else:
                target_parent.change(number, {target_name: node})
                source_parent.change(number, {source_name: None})
            self._end(number)

    def link(self, source: str, target: str) -> None:
        with self._guard:
            node = self._file(source)
            if self._find(target) is not None:
                raise ExistsError("It exists already.", path=target)
            self._change("link", target, node)

    def sync(self, path: str) -> None:
        """Change nothing: no guarantee follows from this call."""
        self.check_running()

    def free_bytes(self, path: str) -> int:
        return self.space_bytes

    def free_files(self, path: str) -> int | None:
        return self.space_files

    def require_writable(self, path: str) -> None:
        if path in self.unwritable:
            raise UnreadableError("User kim may not write to this path.", path=path)

    def delete(self, path: str) -> bool:
        with self._guard:
            if self._find(path) is None:
                return False
            self._file(path)
            return self._change("delete", path, None)

    def make_as_private(self, path: str, like: Sequence[str]) -> None:
        """Permissions are not simulated."""

    def is_own_directory(self, path: str) -> bool:
        return True

    def make_directory(self, path: str) -> None:
        with self._guard:
            if self._find(path) is not None:
                raise ExistsError("It exists already.", path=path)
            self._take_room(path)
            self._change("make_directory", path, DirectoryNode(self._next_inode(), modified_ms=self._tick()))

    def delete_directory(self, path: str) -> None:
        with self._guard:
            if _as_directory(self._node(path), path).entries:
                raise StorageError("The directory is not empty.", path=path)
            self._change("delete_directory", path, None)

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        with self._guard:
            node = self._file(path)
            number = self._begin("set_modified", path)
            node.modified_ms = modified_ms
            self._end(number)

    def flush_directory(self, path: str) -> None:
        with self._guard:
            directory = _as_directory(self._node(path), path)
            number = self._begin("flush_directory", path)
            directory.flush()
            self._end(number)

    def lock(self, path: str) -> SimulatedLock:
        with self._guard:
            with self.open_for_writing(path, create=True) as opened:
                inode = opened.node.inode
            if inode in self._locked:
                raise LogDirectoryLockedError("The log directory is open for writing elsewhere.", path=path)
            self._locked.add(inode)
            return SimulatedLock(self, path, inode)

    # -- Inside -----------------------------------------------------------------------------------

    def _change(self, name: str, path: str, node: Node | None) -> bool:
        parent, entry = self._parent(path)
        number = self._begin(name, path)
        parent.change(number, {entry: node})
        self._end(number)
        return True

    def _take_room(self, path: str) -> None:
        if self.space_files is not None:
            if not self.space_files:
                raise StorageError("No space left on device.", path=path)
            self.space_files -= 1

    def _begin(self, name: str, path: str) -> int:
        """Count a call and return its number, which identifies its changes."""
        self.check_running()
        self.require_writable(os.path.dirname(path))
        call = Call(self.calls + 1, name, path)
        if self.observe is not None:
            self.observe(call)
        self.calls += 1
        error = self.fail(call) if self.fail is not None else None
        if error is not None:
            raise StorageError(f"Could not {name} this path: {error}.", path=path) from error
        if self.stop_at == self.calls and name.startswith("flush"):
            # A flush during which the process ends may have flushed nothing.
            self._end(self.calls)
        return self.calls

    def _end(self, number: int) -> None:
        if number == self.stop_at:
            self.is_stopped = True
            raise SimulatedCrash

    def check_running(self) -> None:
        if self.is_stopped:
            raise SimulatedCrash

    def _tick(self) -> int:
        self._now_ms += 1
        return self._now_ms

    def _next_inode(self) -> int:
        self._last_inode += 1
        return self._last_inode

    def _find(self, path: str) -> Node | None:
        self.check_running()
        node: Node | None = self._root
        for name in _parts(path):
            node = _as_directory(node, path).entries.get(name)
            if node is None:
                return None
        return node

    def _node(self, path: str) -> Node:
        node = self._find(path)
        if node is None:
            raise MissingError("No such file or directory.", path=path)
        return node

    def _file(self, path: str) -> FileNode:
        node = self._node(path)
        if isinstance(node, DirectoryNode):
            raise LogDirectoryError("Expected a regular file. Only regular files are opened.", path=path)
        return node

    def _parent(self, path: str) -> tuple[DirectoryNode, str]:
        parts = _parts(path)
        return _as_directory(self._node("/" + "/".join(parts[:-1])), path), parts[-1]


class TriedStates:
    """Remembers which states were tried, to skip equal ones.

    Only for checks that do not crash the file system again: unflushed changes are not compared.
    """

    def __init__(self) -> None:
        self._tried: set[tuple[bytes, str]] = set()

    def is_new(self, filesystem: SimulatedFileSystem, *known: object) -> bool:
        """Record a state; return whether no earlier one had the same files and the same ``known``."""
        key = fingerprint(filesystem._root), repr(known)
        is_new = key not in self._tried
        self._tried.add(key)
        return is_new


@functools.lru_cache(maxsize=4096)
def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in os.path.abspath(path).split("/") if part)


def _is_within(path: str, directory: str) -> bool:
    return _parts(path)[: len(_parts(directory))] == _parts(directory)


def _as_directory(node: Node, path: str) -> DirectoryNode:
    if not isinstance(node, DirectoryNode):
        raise LogDirectoryError("Expected a directory.", path=path)
    return node


def _files(path: str, node: Node):
    if isinstance(node, FileNode):
        yield path, bytes(node.content)
        return
    for name, child in sorted(node.entries.items()):
        yield from _files(f"{path}/{name}", child)
