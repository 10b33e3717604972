"""A separate parser for the entries of a log file: messages of v0 and v1, batches of v2.

It is written from the format, slow and plain, and shares neither code nor mistakes with the package.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator

# Timestamp in ms, timestamp type, key, value, headers.
Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]

LOG_OVERHEAD = 12
_HEAD = struct.Struct(">qi4xb")
_MINIMUM_LENGTH = {0: 14, 1: 22, 2: 49}

# (name, position, struct code) of the leading fields of an entry, by magic.
FIELDS = {
    0: (("offset", 0, "q"), ("length", 8, "i"), ("crc", 12, "I"), ("magic", 16, "b"), ("attributes", 17, "b"),
        ("key length", 18, "i")),
    1: (("offset", 0, "q"), ("length", 8, "i"), ("crc", 12, "I"), ("magic", 16, "b"), ("attributes", 17, "b"),
        ("timestamp", 18, "q"), ("key length", 26, "i")),
    2: (("base offset", 0, "q"), ("length", 8, "i"), ("leader epoch", 12, "i"), ("magic", 16, "b"),
        ("crc", 17, "I"), ("attributes", 21, "h"), ("last offset delta", 23, "i"), ("base timestamp", 27, "q"),
        ("max timestamp", 35, "q"), ("producer id", 43, "q"), ("producer epoch", 51, "h"),
        ("base sequence", 53, "i"), ("record count", 57, "i")),
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One message or batch as it was written.

    Attributes:
        topic_partition: The partition that it was written to.
        path: Its log file, relative to the log's folder.
        position: Its position in that file.
        data: All of its bytes.
        first_offset: Offset of its first record as written; for a compressed v0 or v1 wrapper, of the first
            remaining record.
        last_offset: Offset of its last record as written.
        rows: What a consumer sees of it, by offset, including aborted records.
    """

    topic_partition: tuple[str, int]
    path: str
    position: int
    data: bytes
    first_offset: int
    last_offset: int
    rows: tuple[tuple[int, Row], ...]

    @property
    def magic(self) -> int:
        return self.data[16]

    @property
    def end(self) -> int:
        return self.position + len(self.data)

    @property
    def stored_offset(self) -> int:
        """The first eight bytes; no CRC covers them."""
        return int.from_bytes(self.data[:8], "big", signed=True)

    @property
    def covered(self) -> bytes:
        """The bytes that the CRC covers."""
        return self.data[covered_start(self.magic) :]

    @property
    def is_control(self) -> bool:
        """Whether it holds transaction markers."""
        return self.magic == 2 and bool(self.data[22] & 0x20)

    @property
    def is_transactional(self) -> bool:
        """Whether it belongs to a transaction, as a marker does."""
        return self.magic == 2 and bool(self.data[22] & 0x10)

    @property
    def producer_id(self) -> int:
        """The producer of a v2 batch, -1 if none."""
        return int.from_bytes(self.data[43:51], "big", signed=True) if self.magic == 2 else -1

    @property
    def is_wrapper(self) -> bool:
        """Whether it is a compressed set of v0 or v1 messages."""
        return self.magic != 2 and bool(self.data[17] & 0x07)


def covered_start(magic: int) -> int:
    """Return where the bytes begin that the CRC covers."""
    return 21 if magic == 2 else 16


def size_of_entry(data: bytes, position: int) -> int | None:
    """Return the size of the entry at a position, if one fits there wholly."""
    if position + 26 > len(data):
        return None
    _, length, magic = _HEAD.unpack_from(data, position)
    minimum = _MINIMUM_LENGTH.get(magic)
    if minimum is None or length < minimum or position + LOG_OVERHEAD + length > len(data):
        return None
    return LOG_OVERHEAD + length


def is_valid_entry(data: bytes, position: int, size: int) -> bool:
    """Return whether the CRC of an entry is valid."""
    end = position + size
    if data[position + 16] == 2:
        stored = int.from_bytes(data[position + 17 : position + 21], "big")
        return crc32c(data[position + 21 : end]) == stored
    stored = int.from_bytes(data[position + 12 : position + 16], "big")
    return zlib.crc32(data[position + 16 : end]) == stored


def entries_of(
    topic_partition: tuple[str, int], path: str, data: bytes, base_offset: int, rows: dict[int, Row]
) -> Iterator[Entry]:
    """Yield the entries of an undamaged log file, up to its torn or preallocated tail.

    Args:
        topic_partition: The partition.
        path: The file, relative to the log's folder.
        data: Its content.
        base_offset: The number in its name.
        rows: What a consumer sees of the whole partition, by offset.
    """
    position = 0
    next_offset = base_offset
    while (size := size_of_entry(data, position)) is not None and is_valid_entry(data, position, size):
        entry = data[position : position + size]
        stored = int.from_bytes(entry[:8], "big", signed=True)
        if entry[16] == 2:
            first, last = stored, stored + int.from_bytes(entry[23:27], "big")
        else:
            last = stored
            first = min((offset for offset in rows if next_offset <= offset <= last), default=last)
        own = tuple((offset, rows[offset]) for offset in sorted(rows) if first <= offset <= last)
        yield Entry(topic_partition, path, position, entry, first, last, own)
        next_offset = last + 1
        position += size
