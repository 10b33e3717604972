"""How to tell a batch inside a record's value from a batch of the log, when the enclosing batch is damaged.

A reader can tell the two apart exactly where one of these rules applies. The oracle implements them slowly and simply,
independently of the package:

- the CRC of the enclosing batch is right for another end than it declares, or for another format;
- the enclosing batch ends, as declared or by its key and value lengths, at the start of a valid entry or at the end of
  the file; or headers lead from its declared end to such an entry;
- an enclosing record is consistent in all its lengths;
- from the value, its length or the bytes after it lead, as the rest of a record and of a batch, to the start of a
  valid entry or to the end of the file;
- it leaves no offsets for a longer chain of entries after it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from crc32c import crc32c

from tests.damage.entries import is_valid_entry, size_of_entry

_HEAD_BYTES = 61
_SMALLEST_MESSAGE_BYTES = 26
_KEY_LENGTHS = {0: 18, 1: 26}


def is_recognised(data: bytes, start: int, place: int, borders: AbstractSet[int]) -> bool:
    """Whether any rule shows that a batch is inside the entry that starts at an earlier position.

    Args:
        data: The file.
        start: The start of the damage.
        place: The batch's position.
        borders: The positions of valid entries, and the end of the file.
    """
    if start == place:
        # Nothing remains of the bytes before it.
        return False
    is_compressed = data[start + 16] in (0, 1, 2) and bool(
        data[start + (22 if data[start + 16] == 2 else 17)] & 7
    )
    return (
        _is_in_proven_crc(data, start, place)
        or _is_led_past(data, start, place, borders)
        or any(
            place < end and end in borders and not _is_neighbour(data, place, end)
            for end in _message_ends(data, start)
        )
        or _is_overtaken(data, place, borders)
        or (not is_compressed and _is_in_value(data, start, place, borders))
    )


def _is_in_value(data: bytes, start: int, place: int, borders: AbstractSet[int]) -> bool:
    return _is_in_record(data, start, place) or any(
        end > place and end in borders and not _is_neighbour(data, place, end)
        for end in _value_ends(data, start, place)
    )


def _is_in_proven_crc(data: bytes, start: int, place: int) -> bool:
    def first_end(stated: bytes, crc: int, begin: int, compute) -> bool:
        for end in range(begin, len(data)):
            crc = compute(data[end : end + 1], crc)
            if end + 1 > place and crc == int.from_bytes(stated, "big"):
                return True
        return False

    head = data[start:]
    return (
        first_end(head[17:21], 0, start + 21, crc32c)
        or first_end(head[12:16], zlib.crc32(b"\0"), start + 17, zlib.crc32)
        or first_end(head[12:16], zlib.crc32(b"\1"), start + 17, zlib.crc32)
    )


def _is_led_past(data: bytes, start: int, place: int, borders: AbstractSet[int]) -> bool:
    """Whether the declared end is after a place that does not lead to it, and leads to a border."""
    end = start + 12 + int.from_bytes(data[start + 8 : start + 12], "big", signed=True)
    return place < end and end not in _chain(data, place) and not borders.isdisjoint(_chain(data, end))


def _message_ends(data: bytes, start: int) -> Iterator[int]:
    for key_length in _KEY_LENGTHS.values():
        position = start + key_length
        for _ in range(2):
            position += 4 + max(int.from_bytes(data[position : position + 4], "big", signed=True), 0)
        yield position


def _chain(data: bytes, position: int) -> list[int]:
    """The positions that headers lead to, one after the other, with ascending offsets."""
    places, last_offset = [position], -1
    while (size := size_of_entry(data, position)) is not None:
        offset = int.from_bytes(data[position : position + 8], "big", signed=True)
        if offset <= last_offset:
            break
        last_offset = last_offset_of(data, position)
        position += size
        places.append(position)
    return places


def _run_end(data: bytes, position: int) -> int:
    """The end of a run of adjacent entries with valid CRCs."""
    while (size := size_of_entry(data, position)) is not None and is_valid_entry(data, position, size):
        position += size
    return position


def last_offset_of(data: bytes, position: int) -> int:
    """The last offset according to an entry's header."""
    offset = int.from_bytes(data[position : position + 8], "big", signed=True)
    is_current = data[position + 16] == 2
    return offset + int.from_bytes(data[position + 23 : position + 27], "big", signed=True) * is_current


def _is_in_record(data: bytes, start: int, place: int) -> bool:
    end = place + (size_of_entry(data, place) or 0)
    for position in range(start, place):
        record = _record(data, position)
        if record is not None and record[0] <= place and end <= record[1]:
            return not any(each > record[2] for each in _chain(data, place))
    return False


def _record(data: bytes, position: int) -> tuple[int, int, int] | None:
    """The start and end of a whole record's value, and the end of the record."""
    try:
        length, body = _varint(data, position)
        end = body + length
        if length < 6 or end > len(data) or data[body]:
            return None
        _, position = _varint(data, body + 1)
        offset_delta, position = _varint(data, position)
        key_length, position = _varint(data, position)
        value_length, value_start = _varint(data, position + max(key_length, 0))
        value_end = value_start + max(value_length, 0)
        is_whole = (
            min(key_length, value_length) >= -1 and offset_delta >= 0 and _headers(data, value_end) == end
        )
    except IndexError:
        return None
    return (value_start, value_end, end) if is_whole else None


def _headers(data: bytes, position: int) -> int | None:
    count, position = _varint(data, position)
    for _ in range(count):
        key_length, position = _varint(data, position)
        value_length, position = _varint(data, position + key_length)
        if key_length < 0 or value_length < -1 or position > len(data):
            return None
        position += max(value_length, 0)
    return position if count >= 0 else None


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while data[position] >= 0x80:
        value |= (data[position] & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if shift > 63:
            raise IndexError
    value |= data[position] << shift
    return value >> 1 ^ -(value & 1), position + 1


def _end_of_rest(data: bytes, position: int) -> int | None:
    """The end of a record's headers and of the records after it."""
    try:
        end = _headers(data, position)
    except IndexError:
        return None
    while end is not None and (record := _record(data, end)) is not None:
        end = record[2]
    return end


def _value_ends(data: bytes, start: int, place: int) -> Iterator[int]:
    """Possible ends of the entry with a value at this place, by the length before the value or the bytes after it."""
    if place - start >= _SMALLEST_MESSAGE_BYTES:
        yield place + max(int.from_bytes(data[place - 4 : place], "big", signed=True), 0)
    if place - start < _HEAD_BYTES:
        return
    run_end = _run_end(data, place)
    ends = {run_end}
    for first in range(place - 5, place):
        length, end = _varint(data, first)
        if end == place and place + length >= run_end:
            ends.add(place + length)
    for end in ends:
        yield _end_of_rest(data, end) or 0


def _is_neighbour(data: bytes, place: int, border: int) -> bool:
    """Whether entries lead to another one with the next offset, which makes them entries of the log."""
    run = [position for position in _chain(data, place) if position < _run_end(data, place)]
    next_offset = last_offset_of(data, run[-1]) + 1
    return border < len(data) and int.from_bytes(data[border : border + 8], "big", signed=True) == next_offset


def _is_overtaken(data: bytes, place: int, borders: AbstractSet[int]) -> bool:
    run_end = _run_end(data, place)
    next_border = min(
        (border for border in borders if border >= run_end and border < len(data)), default=None
    )
    if next_border is None or run_end == place:
        return False
    is_longer = _run_end(data, next_border) - next_border > run_end - place
    first_offset = int.from_bytes(data[next_border : next_border + 8], "big", signed=True)
    last = [position for position in _chain(data, place) if position < run_end][-1]
    return is_longer and first_offset <= last_offset_of(data, last)
