"""What stands in a log file, found out without the code under test.

Files as a broker wrote them are walked entry by entry (a batch of format v2, a message of format v0 or v1; a
compressed message is one entry). What is left of them in a damaged file is found by searching for their bytes: what
is not there byte for byte is no whole batch any more, wherever the damage lies.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Log = dict[int, bytes]
"""A partition's log files by base offset."""

_LENGTH_POSITION = 8
# No CRC covers what stands before: of v2 base offset, length and leader epoch, of v0 and v1 offset and length.
_COVERED_FROM = {0: 8, 1: 8, 2: 16}


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as the broker wrote it.

    Attributes:
        segment: The base offset that names the file.
        base_offset: Of a compressed message only a bound: its first record's offset is not below.
    """

    segment: int
    position: int
    magic: int
    base_offset: int
    last_offset: int
    content: bytes = field(repr=False)

    @property
    def end(self) -> int:
        return self.position + len(self.content)

    @property
    def is_wrapper(self) -> bool:
        """Whether it is a compressed message of format v0 or v1."""
        return self.magic < 2 and self.content[17] & 7 != 0


@dataclass(frozen=True, slots=True)
class Found:
    """An entry that is still whole in a damaged file, but perhaps with another offset.

    Attributes:
        position: Where it begins by now.
        shift: By how much its offset differs from what the broker wrote.
    """

    entry: Entry
    segment: int
    position: int
    shift: int

    @property
    def end(self) -> int:
        return self.position + len(self.entry.content)

    @property
    def base_offset(self) -> int:
        return self.entry.base_offset + self.shift

    @property
    def last_offset(self) -> int:
        return self.entry.last_offset + self.shift

    @property
    def shift_of_records(self) -> int:
        """The offsets in a compressed v0 message are absolute: its own offset does not move them."""
        return 0 if self.entry.magic == 0 and self.entry.is_wrapper else self.shift


def entries_of_log(log: Mapping[int, bytes]) -> list[Entry]:
    """All entries of an undamaged partition, in order."""
    entries: list[Entry] = []
    for segment in sorted(log):
        entries.extend(entries_of(log[segment], segment))
    return entries


def entries_of(content: bytes, segment: int) -> Iterator[Entry]:
    """The entries of an undamaged file; every CRC is checked."""
    position = 0
    next_offset = segment
    while position < len(content):
        offset, length = struct.unpack_from(">qi", content, position)
        entry = content[position : position + 12 + length]
        assert len(entry) == 12 + length, f"{position}: torn"
        magic = entry[16]
        if magic == 2:
            base_offset, last_offset = offset, offset + struct.unpack_from(">i", entry, 23)[0]
            assert crc32c(entry[21:]) == struct.unpack_from(">I", entry, 17)[0], f"{position}: CRC-32C"
        else:
            base_offset = next_offset if entry[17] & 7 else offset
            last_offset = offset
            assert zlib.crc32(entry[16:]) == struct.unpack_from(">I", entry, 12)[0], f"{position}: CRC-32"
        assert next_offset <= base_offset <= last_offset, f"{position}: order"
        yield Entry(segment, position, magic, base_offset, last_offset, entry)
        next_offset = last_offset + 1
        position += len(entry)


def find_entries(content: bytes, segment: int, entries: list[Entry]) -> list[Found]:
    """Where entries still stand in a file, by position; one that was repeated stands there twice."""
    found = []
    for entry in entries:
        covered_from = _COVERED_FROM[entry.magic]
        covered = entry.content[covered_from:]
        at = content.find(covered)
        while at >= 0:
            position = at - covered_from
            length = content[position + _LENGTH_POSITION : position + _LENGTH_POSITION + 4]
            if position >= 0 and length == entry.content[_LENGTH_POSITION : _LENGTH_POSITION + 4]:
                offset = int.from_bytes(content[position : position + 8], "big", signed=True)
                shift = offset - int.from_bytes(entry.content[:8], "big")
                found.append(Found(entry, segment, position, shift))
            at = content.find(covered, at + 1)
    return sorted(found, key=lambda each: each.position)
