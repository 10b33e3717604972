"""What a log file contains, determined without the code under test.

A scan reads the files that a broker wrote entry by entry. An entry is a batch of format v2, or a message of format v0
or v1; a compressed message is one entry. In a damaged file, survivors are found by searching for their bytes: an entry
whose bytes are incomplete is damaged, wherever the damage is.
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
# No CRC covers the bytes before: base offset, length and leader epoch in v2, offset and length in v0 and v1.
_COVERED_FROM = {0: 8, 1: 8, 2: 16}


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as the broker wrote it.

    Attributes:
        segment: The file's base offset.
        base_offset: For a compressed message only a lower bound of its first record's offset.
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
        """Whether this is a compressed message of format v0 or v1."""
        return self.magic < 2 and self.content[17] & 7 != 0


@dataclass(frozen=True, slots=True)
class Found:
    """An entry that is intact in a damaged file, except perhaps for its offset.

    Attributes:
        position: Where it starts in the damaged file.
        shift: The difference between its offset and the original one.
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
        """The offsets in a compressed v0 message are absolute, so the outer offset does not shift them."""
        return 0 if self.entry.magic == 0 and self.entry.is_wrapper else self.shift


def entries_of_log(log: Mapping[int, bytes]) -> list[Entry]:
    """All entries of an undamaged partition, in order."""
    entries: list[Entry] = []
    for segment in sorted(log):
        entries.extend(entries_of(log[segment], segment))
    return entries


def entries_of(content: bytes, segment: int) -> Iterator[Entry]:
    """The entries of an undamaged file; checks every CRC."""
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
    """The surviving entries in a file, by position; a repeated entry appears twice."""
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
