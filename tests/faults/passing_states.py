"""The intermediate states of a log directory during writes, and readers that such changes overtake.

`record_states` runs a workload and copies the file system before each mutating call. A reader may open any of the
states. An `OvertakenFileSystem` shows one state up to the reader's n-th call, and a later state from then on. An open
file stays the same file, and shows what is written to it later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from storage_core.filesystem import DirectoryEntry, FileStatus
from tests.faults.simulated_disk import DirectoryNode, FileNode
from tests.faults.simulated_files import SimulatedFile, file_status
from tests.faults.simulated_filesystem import SimulatedFileSystem


@dataclass(frozen=True)
class State:
    """The file system at one moment.

    Attributes:
        name: For messages: the next call.
        root: The files.
        known: What the writer had reported by then.
    """

    name: str
    root: DirectoryNode
    known: Any


def record_states(
    filesystem: SimulatedFileSystem,
    workload: Callable[[], object],
    known: Callable[[], Any],
    *,
    meanwhile: Callable[[str], object] = lambda name: None,
) -> list[State]:
    """Run a workload; return the states before each of its calls, and the final one.

    Args:
        filesystem: Where it runs.
        workload: The operations.
        known: Called at each state; returns what the writer has reported.
        meanwhile: Called at each state, with its name, before the call proceeds.
    """
    states: list[State] = []

    def observe(call: object) -> None:
        states.append(State(f"before {call}", _copy(filesystem._root), known()))
        filesystem.observe = None
        meanwhile(f"before {call}")
        filesystem.observe = observe

    filesystem.observe = observe
    workload()
    filesystem.observe = None
    states.append(State("at the end", _copy(filesystem._root), known()))
    return states


def _copy(node: DirectoryNode) -> DirectoryNode:
    """Return the same files, as a process sees them."""
    entries: dict[str, FileNode | DirectoryNode] = {
        name: FileNode(child.inode, bytearray(child.content), modified_ms=child.modified_ms)
        if isinstance(child, FileNode)
        else _copy(child)
        for name, child in node.entries.items()
    }
    return DirectoryNode(node.inode, entries, modified_ms=node.modified_ms)


class OvertakenFileSystem(SimulatedFileSystem):
    """Files in memory that change to those of a later state during a read.

    Args:
        earlier: The initial state.
        later: The state from one call on; the same if None.
        at: The number of that call, from 1.

    Attributes:
        looks: The number of calls.
    """

    def __init__(self, earlier: State, later: State | None = None, at: int = 0) -> None:
        super().__init__(earlier.root)
        self.looks = 0
        self._later = later
        self._at = at
        # The current state of the open files, by inode.
        self._present: dict[int, FileNode] | None = None

    def walk_directory(self, path: str) -> Iterator[DirectoryEntry]:
        self.look()
        return super().walk_directory(path)

    def status(self, path: str, *, follow_symlinks: bool = False) -> FileStatus | None:
        self.look()
        return super().status(path, follow_symlinks=follow_symlinks)

    def open(self, path: str, version: object = None) -> SimulatedFile:
        self.look()
        node = self._file(path)
        return _OvertakenFile(self, path, node)

    def read_file(self, path: str, limit_bytes: int) -> bytes | None:
        self.look()
        return super().read_file(path, limit_bytes)

    def look(self) -> None:
        """Count a call; change to the later state before the configured one."""
        self.looks += 1
        if self._later is not None and self.looks == self._at:
            self._root = self._later.root
            self._present = _files_by_inode(self._root)

    def present(self, node: FileNode) -> FileNode:
        """Return the current state of a file that is already open; a deleted file stays as it was."""
        return node if self._present is None else self._present.get(node.inode, node)


class _OvertakenFile(SimulatedFile):
    """A file opened for reading."""

    def __init__(self, filesystem: OvertakenFileSystem, path: str, node: FileNode) -> None:
        super().__init__(filesystem, path, node)
        self.status = file_status(node)
        self._overtaken = filesystem

    def _running(self) -> FileNode:
        super()._running()
        self._overtaken.look()
        return self._overtaken.present(self.node)


def _files_by_inode(node: DirectoryNode) -> dict[int, FileNode]:
    found: dict[int, FileNode] = {}
    for child in node.entries.values():
        if isinstance(child, FileNode):
            found[child.inode] = child
        else:
            found.update(_files_by_inode(child))
    return found
