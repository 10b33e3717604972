"""Open files of the file system in memory, and its lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from storage_core.errors import LogDirectoryError, StorageError
from storage_core.filesystem import ExaminedEntry, FileStatus
from tests.faults.simulated_disk import DirectoryNode, FileNode

if TYPE_CHECKING:
    from tests.faults.simulated_filesystem import SimulatedFileSystem


class SimulatedFile:
    """A file opened for reading."""

    def __init__(self, filesystem: SimulatedFileSystem, path: str, node: FileNode) -> None:
        self.path = path
        self.node = node
        self.status = file_status(node)
        self._filesystem = filesystem
        self._is_open = True

    def read_at(self, size_bytes: int, position_bytes: int) -> bytes:
        node = self._running()
        data = bytes(node.content[position_bytes : position_bytes + size_bytes])
        self._filesystem.statistics.reads += 1
        self._filesystem.statistics.bytes_read += len(data)
        return data

    def read_into(self, buffer: memoryview, position_bytes: int) -> int:
        data = self.read_at(len(buffer), position_bytes)
        buffer[: len(data)] = data
        return len(data)

    def expect_reads(self, start_bytes: int, end_bytes: int) -> None:
        """Do nothing, as a local file does."""

    def next_data(self, position_bytes: int) -> int | None:
        content = self._running().content
        if position_bytes >= len(content):
            return None
        return position_bytes if any(content[position_bytes:]) else None

    def size_bytes(self) -> int:
        return len(self._running().content)

    def close(self) -> None:
        self._is_open = False

    def _running(self) -> FileNode:
        self._filesystem.check_running()
        if not self._is_open:
            raise LogDirectoryError("Bad file descriptor: it was closed.", path=self.path)
        return self.node

    def __enter__(self):
        return self

    def __exit__(self, *details: object) -> None:
        self.close()


class SimulatedHeldFile:
    """A closed file whose writeback errors the system still reports; here, none fails in the background."""

    def check(self) -> None:
        """Writeback never fails here."""

    def release(self) -> None:
        """Holds no resources."""


class SimulatedWritableFile(SimulatedFile):
    """A file opened for writing."""

    def keep_links(self) -> None:
        """Links are not copied here."""

    def identity(self) -> tuple[int, int]:
        return 1, self._running().inode

    def hold(self) -> SimulatedHeldFile | None:
        self._running()
        return SimulatedHeldFile() if self._filesystem.can_hold_files else None

    def write_at(self, pieces: Sequence[bytes], position_bytes: int) -> None:
        data = b"".join(bytes(piece) for piece in pieces)
        if not data:
            return
        self._filesystem.statistics.writes += 1
        self._filesystem.statistics.bytes_written += len(data)
        self._do("write", lambda node, number: node.write(number, position_bytes, data))

    def copy_from(
        self, source: SimulatedFile, source_position_bytes: int, size_bytes: int, position_bytes: int
    ) -> None:
        data = bytes(source.node.content[source_position_bytes : source_position_bytes + size_bytes])
        if len(data) < size_bytes:
            raise StorageError("The source ends before the end of the copied range.", path=self.path)
        self.write_at([data], position_bytes)

    def truncate(self, size_bytes: int) -> None:
        self._do("truncate", lambda node, number: node.resize(number, size_bytes))

    def begin_flush(self, position_bytes: int, size_bytes: int) -> None:
        """Change nothing: no guarantee follows from this call."""
        self._running()

    def flush(self) -> None:
        self._do("flush", lambda node, _: node.flush())

    def _do(self, name: str, change: Callable[[FileNode, int], None]) -> None:
        filesystem = self._filesystem
        with filesystem._guard:
            node = self._running()
            number = filesystem._begin(name, self.path)
            change(node, number)
            if name != "flush":
                node.modified_ms = filesystem._tick()
            filesystem._end(number)


class SimulatedLock:
    """The right to write to a log directory."""

    def __init__(self, filesystem: SimulatedFileSystem, path: str, inode: int) -> None:
        self.path = path
        self._filesystem = filesystem
        self._inode = inode

    def release(self) -> None:
        self._filesystem._locked.discard(self._inode)

    def __enter__(self):
        return self

    def __exit__(self, *details: object) -> None:
        self.release()


def examined_entry(name: str, node: FileNode | DirectoryNode) -> ExaminedEntry:
    status = file_status(node)
    kind = "file" if status.is_regular_file else "directory"
    return ExaminedEntry(name, kind, status.size_bytes, status.size_bytes, status.modified_ms)


def file_status(node: FileNode | DirectoryNode) -> FileStatus:
    is_file = isinstance(node, FileNode)
    return FileStatus(
        len(node.content) if is_file else 4096, node.modified_ms, node.inode, 1, is_file, not is_file
    )
