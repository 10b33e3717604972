"""``.segmentlog-truncations``: which logs of a log directory were truncated or deleted. Kafka ignores this file.

    begin orders 0 50
    end orders 0 50

After a truncation, other records replace the old ones in the same file and at the same offsets. A reader cannot detect
that: file, size, leader epoch and every CRC may be as they were at planning. So a truncation adds a line before it
changes a file, and another when it is done, before any append. A reader notes the size of this file before it reads a
log; if the size is the same afterwards, the log was not truncated in between.

A read may begin and end within a truncation. It then sees the old history up to some offset, as segments are deleted
from the end of the log. But a reader that checks a later segment before its deletion, and the one with the new end after
it was truncated, would find a gap. So there is a second line ``begin`` between the two, also before a new first segment
takes the name of a deleted one. A reader that looks at the segment with the new end both before and after it is cut sees
no new line. So it finally checks that this segment is as long as before (`PartitionLog.check_not_cut`).

The file only grows, by about 50 bytes per line. After a megabyte of lines, a sparse file one byte larger replaces it:
it takes no space, and its lines count as unknown. A crash leaves a ``begin`` without its ``end``, which the next process
that opens the log directory adds. Nothing is forced to disk, as no reader survives a power failure. Without the file,
readers assume no truncations.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from storage_core.errors import LogDirectoryError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.filesystem import FileSystem, ReadableFileSystem

TRUNCATIONS_FILE: Final = ".segmentlog-truncations"

_LINE: Final = re.compile(rb"(begin|end) ([a-zA-Z0-9._-]{1,249}) ([0-9]{1,10}) ([0-9]{1,19})")
# After this many bytes of lines, a sparse file replaces it.
_LARGE_BYTES: Final = 1 << 20
# More lines than this, added since a read was planned, count as unknown.
_MAX_READ_BYTES: Final = 64 << 20


class _Line(NamedTuple):
    """One line: the truncation of a log to an offset begins, or has ended."""

    is_begin: bool
    topic: str
    partition: int
    offset: int

    @property
    def log(self) -> tuple[str, int]:
        return self.topic, self.partition


def truncations_bytes(filesystem: ReadableFileSystem, root: str) -> int:
    """Return the size of the file.

    Returns:
        0 if it does not exist.
    """
    # Called every few thousand rows, so it does not open the file.
    status = filesystem.status(os.path.join(root, TRUNCATIONS_FILE))
    return 0 if status is None else status.size_bytes


def truncated_to(
    filesystem: ReadableFileSystem,
    root: str,
    topic: str,
    partition: int,
    since_bytes: int,
    *,
    begun_up_to: int | None = None,
) -> int | None:
    """Return the lowest offset that a log may have been truncated to since the file had a size.

    None if it was not truncated; 0 if that is unknown. Truncations to ``begun_up_to`` or a lower offset that were under
    way by then are included.
    """
    size_bytes = truncations_bytes(filesystem, root)
    if size_bytes == since_bytes and (begun_up_to is None or not size_bytes):
        return None
    added = _read(filesystem, root, since_bytes)
    if added is None:
        return 0
    if begun_up_to is not None:
        begun = _begun(_read(filesystem, root, None) or [])
        added += [line for line in begun if line.offset <= begun_up_to]
    return min((line.offset for line in added if line.log == (topic, partition)), default=None)


def is_known_since(filesystem: ReadableFileSystem, root: str, since_bytes: int) -> bool:
    """Return True if the truncations since the file had a size are known."""
    is_unchanged = truncations_bytes(filesystem, root) == since_bytes
    return is_unchanged or _read(filesystem, root, since_bytes) is not None


def is_truncation_under_way(filesystem: ReadableFileSystem, root: str) -> bool:
    """Return True if a log is being truncated, or was when the process died."""
    if not truncations_bytes(filesystem, root):
        return False
    lines = _read(filesystem, root, None)
    return lines is None or bool(_begun(lines))


class TruncationsFile:
    """The file, for the process that has the log directory open. It is thread-safe.

    Attributes:
        size_bytes: Its size, for readers in this process.
    """

    def __init__(self, filesystem: FileSystem, root: str) -> None:
        self.size_bytes = truncations_bytes(filesystem, root)
        self._filesystem = filesystem
        self._root = root
        self._path = os.path.join(root, TRUNCATIONS_FILE)
        self._lock = threading.Lock()
        # The logs whose truncation by this process is under way, or has failed.
        self._begun: set[tuple[str, int]] = set()
        # The lines begin at or after this position.
        self._hole_bytes = 0

    @contextlib.contextmanager
    def noted(self, topic: str, partition: int, offset: int) -> Iterator[None]:
        """Tell readers of a truncation while the block runs. If the truncation fails, it stays under way."""
        self.note_begin(topic, partition, offset)
        yield
        self._add(_Line(False, topic, partition, offset))

    def note_begin(self, topic: str, partition: int, offset: int) -> None:
        """Note for readers that a truncation has begun. `settle` notes its end."""
        self._add(_Line(True, topic, partition, offset))

    def settle(self) -> None:
        """End all truncations that have begun, and free the space of a large file.

        None of this process may be under way.
        """
        if not self.size_bytes:
            return
        lines = _read(self._filesystem, self._root, None)
        for line in _begun(lines or []):
            self._add(line._replace(is_begin=False))
        self._begun.clear()
        if lines is None or self._is_large():
            self._replace()

    def _add(self, line: _Line) -> None:
        word = "begin" if line.is_begin else "end"
        data = f"{word} {line.topic} {line.partition} {line.offset}\n".encode("ascii")
        with self._lock:
            if line.is_begin:
                # Lines of truncations under way must not be lost.
                if not self._begun and self._is_large():
                    self._replace()
                self._begun.add(line.log)
            else:
                self._begun.discard(line.log)
            with self._filesystem.open_for_writing(self._path, create=True) as file:
                file.write_at([data], self.size_bytes)
            self.size_bytes += len(data)

    def _replace(self) -> None:
        """Replace it by a sparse file, without its lines."""
        # One byte larger, so that no reader takes it for the old file.
        self.size_bytes += 1
        with self._filesystem.replacing(self._path) as file:
            file.truncate(self.size_bytes)
        self._hole_bytes = self.size_bytes

    def _is_large(self) -> bool:
        if self.size_bytes - self._hole_bytes <= _LARGE_BYTES:
            return False
        try:
            with self._filesystem.open(self._path) as file:
                hole_bytes = file.next_data(self._hole_bytes)
        except FileNotFoundError:
            # It was removed: the next write leaves a hole.
            hole_bytes = None
        self._hole_bytes = self.size_bytes if hole_bytes is None else hole_bytes
        return self.size_bytes - self._hole_bytes > _LARGE_BYTES


def _read(filesystem: ReadableFileSystem, root: str, since_bytes: int | None) -> list[_Line] | None:
    """Return the lines added since the file had a size, or all lines.

    Returns:
        None if they are incomplete.
    """
    try:
        with filesystem.open(os.path.join(root, TRUNCATIONS_FILE)) as file:
            size_bytes = file.size_bytes()
            start_bytes = file.next_data(0) if since_bytes is None else since_bytes
            if start_bytes is None:
                return []
            if not start_bytes <= size_bytes <= start_bytes + _MAX_READ_BYTES:
                return None
            data = file.read_at(size_bytes - start_bytes, start_bytes)
    except LogDirectoryError:
        # Not a file that this package writes.
        return None
    if since_bytes is None:
        data = data.lstrip(b"\0")
    *lines, rest = data.split(b"\n")
    matches = [_LINE.fullmatch(line) for line in lines]
    if rest:
        # Being written now, or cut off by a crash.
        return None
    found = []
    for match in matches:
        if match is None:
            return None
        found.append(_Line(match[1] == b"begin", match[2].decode("ascii"), int(match[3]), int(match[4])))
    return found


def _begun(lines: list[_Line]) -> list[_Line]:
    """Return the lines of truncations that have not ended."""
    begun: dict[tuple[str, int], _Line] = {}
    for line in lines:
        if line.is_begin:
            begun[line.log] = line
        else:
            begun.pop(line.log, None)
    return list(begun.values())
