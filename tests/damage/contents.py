"""How to tell a batch inside a record's value from a batch of the log, when the enclosing batch is damaged.

A reader can tell the two apart exactly where one of these rules applies. The oracle implements them slowly and simply,
independently of the package:

- the declared end of the enclosing batch is the end of the file, or leads by headers to a valid entry, and the inner
  batch does not lead to that end;
- the CRC of the enclosing batch is right for the start of a valid entry.
"""

from __future__ import annotations

import zlib
from collections.abc import Set as AbstractSet

from crc32c import crc32c

from tests.damage.entries import size_of_entry


def is_recognised(data: bytes, start: int, place: int, borders: AbstractSet[int]) -> bool:
    """Return whether any rule shows that a batch is inside the entry that starts at an earlier position.

    Args:
        data: The file.
        start: The start of the damage.
        place: The batch's position.
        borders: The positions of valid entries, and the end of the file.
    """
    if start == place:
        # Nothing remains of the bytes before it.
        return False
    return _is_in_proven_crc(data, start, place, borders) or _is_led_past(data, start, place, borders)


def _is_in_proven_crc(data: bytes, start: int, place: int, borders: AbstractSet[int]) -> bool:
    def first_end(stated: bytes, crc: int, begin: int, compute) -> bool:
        for end in range(begin, len(data)):
            crc = compute(data[end : end + 1], crc)
            if end + 1 > place and end + 1 in borders and crc == int.from_bytes(stated, "big"):
                return True
        return False

    head = data[start:]
    return (
        first_end(head[17:21], 0, start + 21, crc32c)
        or first_end(head[12:16], zlib.crc32(b"\0"), start + 17, zlib.crc32)
        or first_end(head[12:16], zlib.crc32(b"\1"), start + 17, zlib.crc32)
    )


def _is_led_past(data: bytes, start: int, place: int, borders: AbstractSet[int]) -> bool:
    """Return whether the declared end is after a place that does not lead to it, and leads to a border."""
    end = start + 12 + int.from_bytes(data[start + 8 : start + 12], "big", signed=True)
    return place < end and end not in _chain(data, place) and not borders.isdisjoint(_chain(data, end))


def _chain(data: bytes, position: int) -> list[int]:
    """Return the positions that headers lead to, one after the other, with ascending offsets."""
    places, last_offset = [position], -1
    while (size := size_of_entry(data, position)) is not None:
        offset = int.from_bytes(data[position : position + 8], "big", signed=True)
        if offset <= last_offset:
            break
        last_offset = last_offset_of(data, position)
        position += size
        places.append(position)
    return places


def last_offset_of(data: bytes, position: int) -> int:
    """Return the last offset according to an entry's header."""
    offset = int.from_bytes(data[position : position + 8], "big", signed=True)
    is_current = data[position + 16] == 2
    return offset + int.from_bytes(data[position + 23 : position + 27], "big", signed=True) * is_current
