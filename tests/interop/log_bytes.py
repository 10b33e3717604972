"""What a log file contains, determined without the code under test.

An entry is a batch of format v2, or a message of format v0 or v1; a compressed message is one entry.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


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


def entries_of_log(log: Mapping[int, bytes]) -> list[Entry]:
    """Return all entries of an undamaged partition, in order."""
    entries: list[Entry] = []
    for segment in sorted(log):
        entries.extend(entries_of(log[segment], segment))
    return entries


def entries_of(content: bytes, segment: int) -> Iterator[Entry]:
    """Yield the entries of an undamaged file; checks every CRC."""
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
