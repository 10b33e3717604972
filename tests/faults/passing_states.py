"""The states that a log directory passes through while it is written to, and readers that are overtaken by them.

`record_states` runs a workload and keeps what stands in the file system before each call that changes something. A
reader may look at any of the states; or an `OvertakenFileSystem` shows it one state up to its n-th call, and a later
one from there on. A file that is open stays the same file, and shows what has been written to it.
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
    """What stood in the file system at one moment.

    Attributes:
        name: For messages: the call before which it was.
        root: The files.
        known: What the writer has said of its work by then.
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
    """Run a workload; return the states before each of its calls, and the last one.

    Args:
        filesystem: Where it works.
        workload: What is done.
        known: Asked at each state.
        meanwhile: Called at each state, with its name, while the call waits.
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
    """The same files, as a process sees them."""
    entries: dict[str, FileNode | DirectoryNode] = {
        name: FileNode(child.inode, bytearray(child.content), modified_ms=child.modified_ms)
        if isinstance(child, FileNode)
        else _copy(child)
        for name, child in node.entries.items()
    }
    return DirectoryNode(node.inode, entries, modified_ms=node.modified_ms)


class OvertakenFileSystem(SimulatedFileSystem):
    """Files in memory that become those of a later state while they are read.

    Args:
        earlier: What the reader finds at first.
        later: What it finds from one call on; the same if None.
        at: The number of that call, from 1.

    Attributes:
        looks: How many calls were made.
    """

    def __init__(self, earlier: State, later: State | None = None, at: int = 0) -> None:
        super().__init__(earlier.root)
        self.looks = 0
        self._later = later
        self._at = at
        # The files that are open, as they are now, by inode.
        self._present: dict[int, FileNode] | None = None

    def walk_directory(self, path: str) -> Iterator[DirectoryEntry]:
        self.look()
        return super().walk_directory(path)

    def status(self, path: str, *, follow_symlinks: bool = False) -> FileStatus | None:
        self.look()
        return super().status(path, follow_symlinks=follow_symlinks)

    def open(self, path: str) -> SimulatedFile:
        self.look()
        node = self._file(path)
        return _OvertakenFile(self, path, node)

    def read_file(self, path: str, limit_bytes: int) -> bytes | None:
        self.look()
        return super().read_file(path, limit_bytes)

    def look(self) -> None:
        """Count a call; the state moves on in front of one of them."""
        self.looks += 1
        if self._later is not None and self.looks == self._at:
            self._root = self._later.root
            self._present = _files_by_inode(self._root)

    def present(self, node: FileNode) -> FileNode:
        """What has become of a file that was opened before; one that was deleted stays as it was."""
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
