"""Messages of formats v0 and v1, which brokers wrote before 0.11 (Kafka's ``LegacyRecord``).

A segment file holds such messages back to back, also in front of, behind or between batches of
format v2. All integers are big-endian.

    position    bytes  field
    0           8      offset; of a wrapper that of the last message in it
    8           4      length: bytes that follow this field
    12          4      CRC-32 of everything behind this field
    16          1      magic, 0 or 1
    17          1      attributes
    18          8      timestamp (ms), only in v1
    18 or 26    4      key length, -1 null
                       key
                4      value length, -1 null
                       value

    attribute bits  meaning
    0-2             codec: 0 none, 1 gzip, 2 snappy, 3 lz4
    3               the timestamp is a log append time; only in v1

A message with a codec is a wrapper: its value is a whole set of such messages, compressed.
In a v0 wrapper they carry their own offsets. In a v1 wrapper only the distances between their
offsets count, and the last one has the wrapper's.

The cleaner of early 0.10 brokers gave a wrapper the topic's format and copied the messages in it as they were
(KAFKA-4298): a v1 wrapper may hold v0 messages, and a v0 wrapper v1 messages. The wrapper's magic tells what
the offsets in it mean, a message's own magic where its fields are and whether it has a timestamp. A v0 message
has none, not even in a wrapper with log append time.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

__all__ = [
    "CODEC_COUNT",
    "KEY_LENGTH_POSITIONS",
    "LENGTH_BYTES",
    "LENGTH_DTYPE",
    "MESSAGE_DTYPE",
    "MESSAGE_SIZE_BYTES",
    "MINIMUM_LENGTHS",
    "NO_TIMESTAMP_MS",
    "unpack_message",
]

# (name, struct code, numpy type). The bytes of the timestamp are a v0 message's lengths; even the
# shortest v0 message has them.
_LAYOUT: Final = (
    ("offset", "q", ">i8"),
    ("length", "i", ">i4"),
    ("crc", "I", ">u4"),
    ("magic", "b", "i1"),
    ("attributes", "B", "u1"),
    ("timestamp_ms", "q", ">i8"),
)
_MESSAGE: Final = struct.Struct(">" + "".join(code for _, code, _ in _LAYOUT))
MESSAGE_DTYPE: Final = np.dtype([(name, kind) for name, _, kind in _LAYOUT])
MESSAGE_SIZE_BYTES: Final = _MESSAGE.size

# By magic: the least that the length field says, with neither key nor value; where the key's length stands.
MINIMUM_LENGTHS: Final = (14, 22)
KEY_LENGTH_POSITIONS: Final = (18, 26)
# The lengths of key and value.
LENGTH_DTYPE: Final = np.dtype(">i4")
LENGTH_BYTES: Final = LENGTH_DTYPE.itemsize
# Codecs from this number on came later, and may not be used here.
CODEC_COUNT: Final = 4
NO_TIMESTAMP_MS: Final = -1


def unpack_message(data: bytes | bytearray | memoryview, start: int) -> tuple[int, int, int, int, int, int]:
    """Offset, length, CRC, magic, attributes and timestamp (-1 in v0) of the message at ``data[start:]``."""
    offset, length, crc, magic, attributes, timestamp_ms = _MESSAGE.unpack_from(data, start)
    return offset, length, crc, magic, attributes, timestamp_ms if magic else NO_TIMESTAMP_MS
