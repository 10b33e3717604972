"""An independent scan of log files: whether truncating at the first bad batch would lose later valid ones."""

from __future__ import annotations

import re
import struct

from crc32c import crc32c

_LOG_FILE = re.compile(r"(.*)/([0-9]{20})\.log")
# Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, timestamps, producer, count.
_HEADER = struct.Struct(">qiibIhiqqqhii")


def _batch_at(data: bytes, position: int) -> tuple[int, int, int] | None:
    """First offset, last offset and end of a valid batch; None if there is none."""
    if len(data) - position < _HEADER.size:
        return None
    fields = _HEADER.unpack_from(data, position)
    base_offset, length, magic, crc, last_offset_delta = fields[0], fields[1], fields[3], fields[4], fields[6]
    end = position + 12 + length
    if magic != 2 or length < _HEADER.size - 12 or end > len(data) or base_offset < 0:
        return None
    if crc32c(data[position + 21 : end]) != crc:
        return None
    return base_offset, base_offset + last_offset_delta, end


def valid_prefix_bytes(data: bytes, base_offset: int) -> int:
    """Return the position of the first batch that is damaged, or whose offsets do not ascend."""
    position, next_offset = 0, base_offset
    while (batch := _batch_at(data, position)) is not None and batch[0] >= next_offset:
        next_offset, position = batch[1] + 1, batch[2]
    return position


def loses_valid_batches(files: dict[str, bytes]) -> bool:
    """Return whether the log holds any valid batch after the first position without one."""
    by_directory: dict[str, list[tuple[int, bytes]]] = {}
    for path, data in sorted(files.items()):
        if match := _LOG_FILE.fullmatch(path):
            by_directory.setdefault(match[1], []).append((int(match[2]), data))
    return any(map(_loses, by_directory.values()))


def _loses(segments: list[tuple[int, bytes]]) -> bool:
    for number, (base_offset, data) in enumerate(segments):
        end = valid_prefix_bytes(data, base_offset)
        if end == len(data):
            continue
        # A later segment, empty or not, would be dropped, too.
        if number < len(segments) - 1:
            return True
        if any(_batch_at(data, position) is not None for position in range(end, len(data))):
            return True
    return False
