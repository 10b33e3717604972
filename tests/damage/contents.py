"""What tells a batch that is the content of a record from one of the log, where the batch around it is damaged.

Where one of these rules applies, a reader can know; where none does, none can. As slow and simple as the rest of the
oracle, and apart from the package:

- the CRC of the batch around it is right, if it ends somewhere else than it says, or is of another format;
- the batch around it ends, as it declares or by the lengths of its key and value, where an entry that counts begins,
  or with the file; or headers lead from its declared end to such an entry;
- a record lies around it whose lengths all add up;
- the length of a value in front of it, or what follows it, leads as the rest of a record and of a batch to where an
  entry that counts begins, or to the file's end;
- it leaves no offsets for a longer chain of entries that follows.
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


def is_told(data: bytes, start: int, place: int, borders: AbstractSet[int]) -> bool:
    """Whether anything says that a batch at a place is the content of what begins at another one in front of it.

    Args:
        data: The file.
        start: Where damage begins.
        place: Where the batch stands in it.
        borders: Where entries that count begin, and where the file ends.
    """
    if start == place:
        # Nothing is left of what stood in front of it.
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
    """Whether the end that is declared lies after a place that does not lead there, and leads to a border."""
    end = start + 12 + int.from_bytes(data[start + 8 : start + 12], "big", signed=True)
    return place < end and end not in _chain(data, place) and not borders.isdisjoint(_chain(data, end))


def _message_ends(data: bytes, start: int) -> Iterator[int]:
    for key_length in _KEY_LENGTHS.values():
        position = start + key_length
        for _ in range(2):
            position += 4 + max(int.from_bytes(data[position : position + 4], "big", signed=True), 0)
        yield position


def _chain(data: bytes, position: int) -> list[int]:
    """The places to which headers lead from a place, one after the other, with offsets that ascend."""
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
    """Where entries end that follow one another, each with a right CRC."""
    while (size := size_of_entry(data, position)) is not None and is_valid_entry(data, position, size):
        position += size
    return position


def last_offset_of(data: bytes, position: int) -> int:
    """The last offset that the head of an entry tells."""
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
    """Where the value of a whole record begins and ends, and where the record does."""
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
    """Where a record's headers and the records after them end."""
    try:
        end = _headers(data, position)
    except IndexError:
        return None
    while end is not None and (record := _record(data, end)) is not None:
        end = record[2]
    return end


def _value_ends(data: bytes, start: int, place: int) -> Iterator[int]:
    """Where a message or a batch ends of which a value begins at a place, by the length in front, or by what follows."""
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
    """Whether entries lead to another one whose offset is the next: then they are taken for entries of the log."""
    run = [position for position in _chain(data, place) if position < _run_end(data, place)]
    next_offset = last_offset_of(data, run[-1]) + 1
    return border < len(data) and int.from_bytes(data[border : border + 8], "big", signed=True) == next_offset


def _is_overtaken(data: bytes, place: int, borders: AbstractSet[int]) -> bool:
    run_end = _run_end(data, place)
    behind = min((border for border in borders if border >= run_end and border < len(data)), default=None)
    if behind is None or run_end == place:
        return False
    is_longer = _run_end(data, behind) - behind > run_end - place
    first_offset = int.from_bytes(data[behind : behind + 8], "big", signed=True)
    last = [position for position in _chain(data, place) if position < run_end][-1]
    return is_longer and first_offset <= last_offset_of(data, last)
