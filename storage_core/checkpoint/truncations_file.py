"""Which logs of a log directory were truncated or deleted: ``.segmentlog-truncations``, a file of ours.

    begin orders 0 50
    end orders 0 50

After a truncation, other records take the place of old ones, in the same file and under the same offsets. A reader cannot
tell: file, size, leader epoch and every CRC may be as they were planned. So a truncation adds a line before it touches a
file, and another one when it is done, before anything is appended. A reader notes the size of this file before it looks
at a log; if the size is the same after it has read something, the log was not truncated in between.

A read may begin and end within a truncation. Then it sees the old history up to some offset, because segments go from
the end of the log. But a reader that looks at a later segment before that goes, and at the one with the new end after
that was cut, would find a gap. So there is a second line ``begin`` between the two.

The file only grows, by 50 bytes or so for a line. Once there is a megabyte of lines, a file that is one larger, and one
hole, takes its place: it takes no room, and what was in it counts as unknown. A crash leaves a line ``begin``
without its ``end``, which the next process that opens the log directory adds. Nothing is forced to disk: no reader
outlives a power cut. A broker ignores the file, and readers do without it where there is none.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint.checkpoint_file import TEMPORARY_SUFFIX
from storage_core.errors import LogDirectoryError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.filesystem import FileSystem

__all__ = [
    "TRUNCATIONS_FILE",
    "TruncationsFile",
    "is_truncation_under_way",
    "truncated_to",
    "truncations_bytes",
]

TRUNCATIONS_FILE: Final = ".segmentlog-truncations"

_LINE: Final = re.compile(rb"(begin|end) ([a-zA-Z0-9._-]{1,249}) ([0-9]{1,10}) ([0-9]{1,19})")
# With more lines than this, the file gives its room back.
_LARGE_BYTES: Final = 1 << 20
# If more than this was added since a read was planned, it counts as unknown.
_MOST_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class _Truncation:
    """What a line says: that the records from an offset on go, or are gone."""

    topic: str
    partition: int
    offset: int


def truncations_bytes(filesystem: FileSystem, root: str) -> int:
    """The size of the file, for the questions below; 0 if there is none."""
    # Asked for every few thousand rows: without opening it.
    status = filesystem.status(os.path.join(root, TRUNCATIONS_FILE))
    return 0 if status is None else status.size_bytes


def truncated_to(
    filesystem: FileSystem,
    root: str,
    topic: str,
    partition: int,
    since_bytes: int,
    *,
    begun_up_to: int | None = None,
) -> int | None:
    """The lowest offset from which on records of a log may have gone since the file had a size.

    Args:
        filesystem: Where to read.
        root: The log directory.
        topic: The log's topic.
        partition: The log's partition.
        since_bytes: The size that the file had.
        begun_up_to: What was under way by then counts, too, if it goes to this offset or to a lower one.

    Returns:
        None if nothing has gone; 0 if that cannot be known.
    """
    size_bytes = truncations_bytes(filesystem, root)
    if size_bytes == since_bytes and (begun_up_to is None or not size_bytes):
        return None
    added = _read(filesystem, root, since_bytes)
    if added is None:
        return 0
    truncations = [each for _, each in added]
    if begun_up_to is not None:
        begun = _begun(_read(filesystem, root, None) or [])
        truncations += [each for _, each in begun if each.offset <= begun_up_to]
    return min(
        (each.offset for each in truncations if (each.topic, each.partition) == (topic, partition)),
        default=None,
    )


def is_truncation_under_way(filesystem: FileSystem, root: str) -> bool:
    """Whether a log is being truncated, or was when its process died."""
    if not truncations_bytes(filesystem, root):
        return False
    lines = _read(filesystem, root, None)
    return lines is None or bool(_begun(lines))


class TruncationsFile:
    """The file, for the process that has the log directory open. Any thread may use it.

    Attributes:
        size_bytes: Its size, for those who read in this process.
    """

    def __init__(self, filesystem: FileSystem, root: str) -> None:
        self.size_bytes = truncations_bytes(filesystem, root)
        self._filesystem = filesystem
        self._root = root
        self._path = os.path.join(root, TRUNCATIONS_FILE)
        self._lock = threading.Lock()
        # The logs whose truncation by this process is under way, or has failed.
        self._begun: set[tuple[str, int]] = set()
        # Where the lines begin, as far as that is known.
        self._hole_bytes = 0

    @contextlib.contextmanager
    def noted(self, topic: str, partition: int, offset: int) -> Iterator[None]:
        """Tell readers of a truncation, as a context manager around it. If it fails midway, it stays under way.

        Raises:
            StorageError: The file could not be written.
        """
        truncation = _Truncation(topic, partition, offset)
        self._add(b"begin", truncation)
        yield
        self._add(b"end", truncation)

    def note_begin(self, topic: str, partition: int, offset: int) -> None:
        """Tell readers of a truncation that `settle` ends."""
        self._add(b"begin", _Truncation(topic, partition, offset))

    def settle(self) -> None:
        """End what was begun, and give back the room of a large file. No truncation of this process is under way.

        Raises:
            StorageError: The file could not be written.
        """
        if not self.size_bytes:
            return
        lines = _read(self._filesystem, self._root, None)
        for _, truncation in _begun(lines or []):
            self._add(b"end", truncation)
        self._begun.clear()
        if lines is None or self._is_large():
            self._replace()

    def _add(self, word: bytes, truncation: _Truncation) -> None:
        line = b"%b %b %d %d\n" % (
            word,
            truncation.topic.encode("ascii"),
            truncation.partition,
            truncation.offset,
        )
        with self._lock:
            key = (truncation.topic, truncation.partition)
            if word == b"begin":
                # What is under way has to be found.
                if not self._begun and self._is_large():
                    self._replace()
                self._begun.add(key)
            else:
                self._begun.discard(key)
            with self._filesystem.open_for_writing(self._path, create=True) as file:
                file.write_at([line], self.size_bytes)
            self.size_bytes += len(line)

    def _replace(self) -> None:
        """Put a file in its place that has its size, and takes no room: what was in it is not known any more."""
        # One more, so that no reader takes it for the one before.
        self.size_bytes += 1
        with self._filesystem.open_for_writing(self._path + TEMPORARY_SUFFIX, create=True) as file:
            file.truncate(0)
            file.truncate(self.size_bytes)
        self._filesystem.rename(self._path + TEMPORARY_SUFFIX, self._path)
        self._hole_bytes = self.size_bytes

    def _is_large(self) -> bool:
        if self.size_bytes - self._hole_bytes <= _LARGE_BYTES:
            return False
        try:
            with self._filesystem.open(self._path) as file:
                hole_bytes = file.next_data(self._hole_bytes)
        except FileNotFoundError:
            # It was removed: what is written next leaves a hole.
            hole_bytes = None
        self._hole_bytes = self.size_bytes if hole_bytes is None else hole_bytes
        return self.size_bytes - self._hole_bytes > _LARGE_BYTES


def _read(
    filesystem: FileSystem, root: str, since_bytes: int | None
) -> list[tuple[bytes, _Truncation]] | None:
    """The lines since the file had a size, or all that there are; None if they do not tell everything."""
    try:
        with filesystem.open(os.path.join(root, TRUNCATIONS_FILE)) as file:
            size_bytes = file.size_bytes()
            start_bytes = file.next_data(0) if since_bytes is None else since_bytes
            if start_bytes is None:
                return []
            if not start_bytes <= size_bytes <= start_bytes + _MOST_BYTES:
                return None
            data = file.read_at(size_bytes - start_bytes, start_bytes)
    except LogDirectoryError:
        # Nothing that this package leaves there.
        return None
    if since_bytes is None:
        data = data.lstrip(b"\0")
    *lines, rest = data.split(b"\n")
    matches = [_LINE.fullmatch(line) for line in lines]
    if rest:
        # Being written now, or a crash has cut it off.
        return None
    found = []
    for match in matches:
        if match is None:
            return None
        found.append((match[1], _Truncation(match[2].decode("ascii"), int(match[3]), int(match[4]))))
    return found


def _begun(lines: list[tuple[bytes, _Truncation]]) -> list[tuple[bytes, _Truncation]]:
    """The lines of truncations that have not ended."""
    begun: dict[tuple[str, int], tuple[bytes, _Truncation]] = {}
    for word, truncation in lines:
        key = (truncation.topic, truncation.partition)
        if word == b"begin":
            begun[key] = (word, truncation)
        else:
            begun.pop(key, None)
    return list(begun.values())
