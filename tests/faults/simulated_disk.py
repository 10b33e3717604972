"""Files and directories in memory that track what has reached the disk.

A process sees ``content`` and ``entries``. A power cut leaves ``durable`` and any subset of ``pending``, the changes
since the last flush. The simulation guarantees only what POSIX does:

- each sector of a file is old, or in the state after any write since; sectors are independent of one another;
- a file has its old size, or any later one; bytes that no write has reached are zeros or arbitrary old content;
- a directory entry is old or new; a rename within a directory is one change; changes are independent of one another,
  and a flushed file may lose its name.
"""

from __future__ import annotations

import hashlib
import marshal
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

SECTORS_BYTES = (512, 4096)


@dataclass(frozen=True)
class Write:
    """Bytes written since the last flush."""

    number: int
    position_bytes: int
    data: bytes


@dataclass(frozen=True)
class Resize:
    """A file truncated or extended since the last flush."""

    number: int
    size_bytes: int


@dataclass(frozen=True)
class EntryChange:
    """One change of a directory: the new node of each name, None for no entry."""

    number: int
    names: dict[str, FileNode | DirectoryNode | None]


@dataclass(eq=False)
class FileNode:
    """A regular file."""

    inode: int
    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[Write | Resize] = field(default_factory=list)
    modified_ms: int = 0

    def write(self, number: int, position_bytes: int, data: bytes) -> None:
        """Write in memory."""
        if not data:
            return
        self.pending.append(Write(number, position_bytes, data))
        _write(self.content, position_bytes, data)

    def resize(self, number: int, size_bytes: int) -> None:
        """Truncate in memory, or extend with zeros."""
        self.pending.append(Resize(number, size_bytes))
        _resize(self.content, size_bytes)

    def flush(self) -> None:
        """Make all content durable."""
        self.durable = bytes(self.content)
        self.pending.clear()


@dataclass(eq=False)
class DirectoryNode:
    """A directory."""

    inode: int
    entries: dict[str, FileNode | DirectoryNode] = field(default_factory=dict)
    durable: dict[str, FileNode | DirectoryNode] = field(default_factory=dict)
    pending: list[EntryChange] = field(default_factory=list)
    modified_ms: int = 0

    def change(self, number: int, names: dict[str, FileNode | DirectoryNode | None]) -> None:
        """Change entries in memory."""
        self.pending.append(EntryChange(number, names))
        _change(self.entries, names)

    def flush(self) -> None:
        """Make all entries durable."""
        self.durable = dict(self.entries)
        self.pending.clear()


@dataclass(frozen=True)
class CrashStyle:
    """How a file system and a disk behave in a power cut.

    Args:
        keep: ``nothing`` or ``everything`` that was not flushed; everything ``until`` some moment, like an ordered
            file system; ``any`` subset, as POSIX permits.
        sector_bytes: The unit of atomic writes.
        fills_with_zeros: Whether a hole reads as zeros or as old disk content.
    """

    keep: str
    sector_bytes: int
    fills_with_zeros: bool

    @classmethod
    def draw(cls, rng: random.Random) -> CrashStyle:
        """Return a random style; most often the hardest one."""
        keep = rng.choice(["nothing", "everything", "until", "until", "any", "any", "any"])
        return cls(keep, rng.choice(SECTORS_BYTES), rng.random() < 0.6)


def after_power_cut(
    root: DirectoryNode, style: CrashStyle, rng: random.Random, last_number: int
) -> DirectoryNode:
    """Return a copy of a state that may be on disk after a power cut now."""
    oldest = min(_pending_numbers(root, set()), default=last_number)
    # All changes below this number are durable; the change with this number is torn.
    until = {"nothing": -1, "everything": last_number + 1}.get(
        style.keep, rng.randint(oldest, last_number + 1)
    )
    return _PowerCut(style, rng, until).directory(root)


def copy_of(root: DirectoryNode) -> DirectoryNode:
    """Return a copy of everything a process sees and a power cut may lose. A file with two names is copied once."""
    copies: dict[int, FileNode | DirectoryNode] = {}

    def copy(node: FileNode | DirectoryNode) -> FileNode | DirectoryNode:
        known = copies.get(node.inode)
        if known is not None:
            return known
        if isinstance(node, FileNode):
            file = FileNode(
                node.inode, bytearray(node.content), node.durable, list(node.pending), node.modified_ms
            )
            copies[node.inode] = file
            return file
        directory = DirectoryNode(node.inode, modified_ms=node.modified_ms)
        copies[node.inode] = directory
        directory.entries.update(names(node.entries))
        directory.durable.update(names(node.durable))
        directory.pending += [EntryChange(change.number, names(change.names)) for change in node.pending]
        return directory

    def names(of: dict[str, Any]) -> dict[str, Any]:
        return {name: node and copy(node) for name, node in of.items()}

    copied = copy(root)
    assert isinstance(copied, DirectoryNode)
    return copied


def fingerprint(root: DirectoryNode) -> bytes:
    """Hash everything a process sees: listings in order, contents, times, and which names share a file."""
    places: dict[int, int] = {}

    def told(node: FileNode | DirectoryNode) -> object:
        place = places.setdefault(node.inode, len(places))
        if isinstance(node, FileNode):
            return place, bytes(node.content), node.modified_ms
        return place, [(name, told(child)) for name, child in node.entries.items()], node.modified_ms

    # The output of version 0 does not depend on object identity.
    return hashlib.sha256(marshal.dumps(told(root), 0)).digest()


class _PowerCut:
    """Copies nodes to their state after one power cut. A file with two names is copied once."""

    def __init__(self, style: CrashStyle, rng: random.Random, until: int) -> None:
        self._style = style
        self._rng = rng
        self._until = until
        self._copies: dict[int, FileNode | DirectoryNode] = {}

    def directory(self, node: DirectoryNode) -> DirectoryNode:
        entries = dict(node.durable)
        for change in node.pending:
            if self._is_kept(change.number):
                _change(entries, change.names)
        copies = {name: self._copy(entries[name]) for name in sorted(entries)}
        return DirectoryNode(node.inode, copies, dict(copies), [], node.modified_ms)

    def _copy(self, node: FileNode | DirectoryNode) -> FileNode | DirectoryNode:
        if node.inode not in self._copies:
            is_file = isinstance(node, FileNode)
            self._copies[node.inode] = self._file(node) if is_file else self.directory(node)
        return self._copies[node.inode]

    def _is_kept(self, number: int) -> bool:
        if self._style.keep == "any":
            return self._rng.random() < 0.5
        return number < self._until

    def _file(self, node: FileNode) -> FileNode:
        content = self._reordered(node) if self._style.keep == "any" else self._in_order(node)
        return FileNode(node.inode, bytearray(content), bytes(content), [], node.modified_ms)

    def _in_order(self, node: FileNode) -> bytearray:
        content = bytearray(node.durable)
        for change in node.pending:
            if change.number < self._until:
                _apply(content, change)
            elif change.number == self._until and isinstance(change, Write):
                sectors = _sectors(change, self._style.sector_bytes)
                kept = self._rng.randint(0, len(sectors))
                for sector in sectors[:kept]:
                    _apply(content, _within(change, sector, self._style.sector_bytes))
        return content

    def _reordered(self, node: FileNode) -> bytearray:
        """Return each sector at an independent moment, and the size at another one."""
        if not node.pending:
            return bytearray(node.durable)
        sector_bytes = self._style.sector_bytes
        writes = [change for change in node.pending if isinstance(change, Write)]
        touched = Counter(sector for write in writes for sector in _sectors(write, sector_bytes))
        moments = {sector: self._rng.randint(0, count) for sector, count in touched.items()}
        size_bytes = self._rng.choice(_sizes(node))
        content = bytearray(node.durable)
        if len(content) < size_bytes:
            content += self._hole(node, len(content), size_bytes)
        done: Counter[int] = Counter()
        for write in writes:
            for sector in _sectors(write, sector_bytes):
                if done[sector] < moments[sector]:
                    _apply(content, _within(write, sector, sector_bytes))
                done[sector] += 1
        _resize(content, size_bytes)
        return content

    def _hole(self, node: FileNode, start: int, end: int) -> bytes:
        if self._style.fills_with_zeros:
            return bytes(end - start)
        # Old content: sectors from the beginning of this file, as if it had been stored here before, or random bytes.
        sector_bytes = self._style.sector_bytes
        first = start % sector_bytes
        stale = bytes(node.content[first : first + end - start])
        if start < sector_bytes or self._rng.random() < 0.5:
            stale = b""
        return stale + self._rng.randbytes(end - start - len(stale))


def _sizes(node: FileNode) -> list[int]:
    """Return every size that the file has had since its last flush."""
    sizes = [len(node.durable)]
    for change in node.pending:
        if isinstance(change, Resize):
            sizes.append(change.size_bytes)
        else:
            sizes.append(max(sizes[-1], change.position_bytes + len(change.data)))
    return sizes


def _sectors(write: Write, sector_bytes: int) -> range:
    last_byte = write.position_bytes + len(write.data) - 1
    return range(write.position_bytes // sector_bytes, last_byte // sector_bytes + 1)


def _within(write: Write, sector: int, sector_bytes: int) -> Write:
    """Return the part of a write within one sector."""
    start = max(write.position_bytes, sector * sector_bytes)
    end = min(write.position_bytes + len(write.data), (sector + 1) * sector_bytes)
    return Write(write.number, start, write.data[start - write.position_bytes : end - write.position_bytes])


def _apply(content: bytearray, change: Write | Resize) -> None:
    if isinstance(change, Resize):
        _resize(content, change.size_bytes)
    else:
        _write(content, change.position_bytes, change.data)


def _write(content: bytearray, position_bytes: int, data: bytes) -> None:
    if len(content) < position_bytes:
        content.extend(bytes(position_bytes - len(content)))
    content[position_bytes : position_bytes + len(data)] = data


def _resize(content: bytearray, size_bytes: int) -> None:
    del content[size_bytes:]
    content.extend(bytes(size_bytes - len(content)))


def _change(
    entries: dict[str, FileNode | DirectoryNode], names: dict[str, FileNode | DirectoryNode | None]
) -> None:
    for name, node in names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def _pending_numbers(node: FileNode | DirectoryNode, seen: set[int]) -> list[int]:
    if node.inode in seen:
        return []
    seen.add(node.inode)
    numbers = [change.number for change in node.pending]
    if isinstance(node, DirectoryNode):
        below = [*node.entries.values(), *node.durable.values()]
        below += [child for change in node.pending for child in change.names.values() if child is not None]
        for child in below:
            numbers += _pending_numbers(child, seen)
    return numbers
