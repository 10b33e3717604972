"""A small log directory in memory, with the rows of an undamaged read: the starting point of the mutations."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tests.damage.entries import Entry, Row, covered_start, entries_of

if TYPE_CHECKING:
    from collections.abc import Mapping


TopicPartition = tuple[str, int]

_SEGMENT = re.compile(r"(?:.*/)?([^/]+)-([0-9]+)/([0-9]{20})\.log")


def base_offset_of(path: str) -> int:
    """Return the base offset in a file's name."""
    return int(path.rpartition("/")[2][:20])


@dataclass(frozen=True)
class BaseLog:
    """One log directory, or several.

    Attributes:
        name: For messages.
        files: The content of each file by its path.
        rows: What a consumer sees of each partition, by offset.
        committed: The offsets that a read_committed consumer sees.
        roots: The folders to read, relative to the folder of the files.
        modified_ms: When the files were modified; without it, an arbitrary constant.
        inner_rows: The rows, with their offsets, of batches that are themselves values of records.
    """

    name: str
    files: Mapping[str, bytes]
    rows: Mapping[TopicPartition, Mapping[int, Row]]
    committed: Mapping[TopicPartition, frozenset[int]]
    roots: tuple[str, ...] = ("",)
    modified_ms: Mapping[str, int] = field(default_factory=dict)
    inner_rows: frozenset[tuple[int, Row]] = frozenset()

    def __str__(self) -> str:
        return self.name

    @cached_property
    def entries(self) -> dict[str, list[Entry]]:
        """The entries of each log file."""
        return {
            path: list(
                entries_of(key, path, self.files[path], base_offset_of(path), dict(self.rows.get(key, {})))
            )
            for root in self.roots
            for key, paths in segments_of(self.files, root).items()
            for path in paths
        }

    @cached_property
    def _entries_by_data(self) -> dict[bytes, list[Entry]]:
        found: dict[bytes, list[Entry]] = {}
        for entries in self.entries.values():
            for entry in entries:
                # Indexed by all bytes and by those that the CRC covers; the two kinds of keys never collide.
                found.setdefault(entry.data, []).append(entry)
                found.setdefault(entry.covered, []).append(entry)
        return found

    def original(self, data: bytes, path: str) -> Entry | None:
        """Return the entry with the same bytes under the CRC; the one at the same offset if there is one."""
        known = self._entries_by_data
        found = known.get(data) or known.get(data[covered_start(data[16]) :]) or [None]
        return next((entry for entry in found if entry is not None and entry.path == path), found[0])

    def log_start_offsets(self, files: Mapping[str, bytes], root: str = "") -> dict[TopicPartition, int]:
        """Return the offsets in a root's log-start-offset-checkpoint."""
        return parse_offset_checkpoint(files.get(_join(root, "log-start-offset-checkpoint"), b""))

    def high_watermarks(self, files: Mapping[str, bytes], root: str = "") -> dict[TopicPartition, int]:
        """Return the offsets in a root's replication-offset-checkpoint."""
        return parse_offset_checkpoint(files.get(_join(root, "replication-offset-checkpoint"), b""))

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.files.values()))


def segments_of(files: Mapping[str, bytes], root: str = "") -> dict[TopicPartition, list[str]]:
    """Return the log files of each partition below a root, in order."""
    found: dict[TopicPartition, list[str]] = {}
    for path in sorted(files):
        match = _SEGMENT.fullmatch(path)
        if match and path.startswith(f"{root}/" if root else ""):
            found.setdefault((match[1], int(match[2])), []).append(path)
    return found


def parse_offset_checkpoint(content: bytes) -> dict[TopicPartition, int]:
    """Return the offsets in a checkpoint; empty if it is malformed."""
    found = {}
    try:
        _, count, *lines = content.decode("ascii").splitlines()
        for line in lines:
            topic, partition, offset = line.split()
            found[topic, int(partition)] = int(offset)
        return found if int(count) == len(found) else {}
    except ValueError:
        return {}


def write_files(folder: Path, files: Mapping[str, bytes], modified_ms: Mapping[str, int]) -> None:
    """Write files under a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        modified_ns = modified_ms.get(name, 1_700_000_000_000) * 1_000_000
        os.utime(path, ns=(modified_ns, modified_ns))


def _join(root: str, name: str) -> str:
    return f"{root}/{name}" if root else name
