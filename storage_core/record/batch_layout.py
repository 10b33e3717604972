"""The layout of record batches and messages: positions, sizes and flags (Kafka's ``DefaultRecordBatch``, ``LegacyRecord``).

It stands apart from `batch_header`, which has columns of headers, because numpy takes longer to import than a small file
takes to dump.
"""

from __future__ import annotations

import struct
from typing import Final

# Format v2 (KIP-98). The CRC covers neither the base offset nor the leader epoch: a broker assigns both in place. The
# records follow the header, compressed as one block if the attributes have a codec.
#
#     position  bytes  field
#     0         8      base offset
#     8         4      batch length: bytes after this field
#     12        4      partition leader epoch, -1 unknown
#     16        1      magic, 2
#     17        4      CRC-32C of all bytes after this field
#     21        2      attributes
#     23        4      last offset delta
#     27        8      base timestamp (ms), or the delete horizon
#     35        8      max timestamp (ms)
#     43        8      producer id, -1 none
#     51        2      producer epoch, -1 none
#     53        4      base sequence, -1 none
#     57        4      record count
#
# The name of each field, its struct code for one header, and its numpy type for a column.
V2_LAYOUT: Final = (
    ("base_offset", "q", ">i8"),
    ("batch_length", "i", ">i4"),
    ("leader_epoch", "i", ">i4"),
    ("magic", "b", "i1"),
    ("crc", "I", ">u4"),
    ("attributes", "h", ">i2"),
    ("last_offset_delta", "i", ">i4"),
    ("base_timestamp_ms", "q", ">i8"),
    ("max_timestamp_ms", "q", ">i8"),
    ("producer_id", "q", ">i8"),
    ("producer_epoch", "h", ">i2"),
    ("base_sequence", "i", ">i4"),
    ("record_count", "i", ">i4"),
)
V2_HEADER: Final = struct.Struct(">" + "".join(code for _, code, _ in V2_LAYOUT))
HEADER_SIZE_BYTES: Final = V2_HEADER.size
# The header in two parts: up to the CRC, and what the CRC covers.
UNCHECKED_HEADER: Final = struct.Struct(">" + "".join(code for _, code, _ in V2_LAYOUT[:5]))
CHECKED_HEADER: Final = struct.Struct(">" + "".join(code for _, code, _ in V2_LAYOUT[5:]))
CRC_START: Final = UNCHECKED_HEADER.size

# A message of format v0 or v1, null key and value included as length -1. A message with a codec is a wrapper: its value
# is a compressed set of messages. In a v0 wrapper they have their own offsets. In a v1 wrapper only the differences of
# their offsets count, and the last one has the wrapper's offset.
#
#     position    bytes  field
#     0           8      offset; of a wrapper that of its last message
#     8           4      length: bytes after this field
#     12          4      CRC-32 of all bytes after this field
#     16          1      magic, 0 or 1
#     17          1      attributes
#     18          8      timestamp (ms), only in v1
#     18 or 26    4      key length, -1 null
#                        key
#                 4      value length, -1 null
#                        value
#
# The cleaner of early 0.10 brokers gave a wrapper the topic's format and copied the messages in it unchanged
# (KAFKA-4298): a v1 wrapper may hold v0 messages, and a v0 wrapper v1 messages. The wrapper's magic decides what the
# offsets in it mean; a message's own magic decides where its fields are and whether it has a timestamp. A v0 message
# has none, not even in a wrapper with log append time.
#
# The timestamp's bytes are the lengths of a v0 message; even the shortest v0 message has them.
MESSAGE_LAYOUT: Final = (
    ("offset", "q", ">i8"),
    ("length", "i", ">i4"),
    ("crc", "I", ">u4"),
    ("magic", "b", "i1"),
    ("attributes", "B", "u1"),
    ("timestamp_ms", "q", ">i8"),
)
MESSAGE: Final = struct.Struct(">" + "".join(code for _, code, _ in MESSAGE_LAYOUT))
MESSAGE_SIZE_BYTES: Final = MESSAGE.size
# By magic.
KEY_LENGTH_POSITIONS: Final = (18, 26)
# The lengths of key and value.
LENGTH_BYTES: Final = 4
NO_TIMESTAMP_MS: Final = -1

# What all formats share (Kafka's ``Records``).
LENGTH_POSITION: Final = 8
LOG_OVERHEAD_BYTES: Final = 12
MAGIC_POSITION: Final = 16
MAGIC_V2: Final = 2
# From the position of the length.
LENGTH_AND_MAGIC: Final = struct.Struct(">i4xb")
# By magic, the smallest value of the length field: no records, or neither key nor value.
MIN_LENGTH_BY_MAGIC: Final = (14, 22, HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES)
MIN_V2_LENGTH: Final = MIN_LENGTH_BY_MAGIC[MAGIC_V2]
# The smallest value in any format.
MIN_LENGTH: Final = min(MIN_LENGTH_BY_MAGIC)
# A v2 record has at least a byte for each field: length, attributes, two deltas, two lengths, header count.
SMALLEST_RECORD_BYTES: Final = 7
MAX_OFFSET: Final = (1 << 63) - 1
MAX_OFFSET_DELTA: Final = (1 << 31) - 1

# Attribute bits 0 to 2, and what they mean, by number. Messages of formats v0 and v1 have the first four.
CODEC_MASK: Final = 0x07
CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")
LEGACY_CODEC_COUNT: Final = 4
# The max timestamp holds for every record. Not in v0; the other flags only in v2.
LOG_APPEND_TIME_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
# The records are markers, never shown to consumers.
CONTROL_FLAG: Final = 0x20
# Compaction has put a delete horizon in place of the base timestamp; the deltas of the records add to it all the same.
DELETE_HORIZON_FLAG: Final = 0x40
# The bits that Kafka has assigned in format v2. A broker that rewrites a header clears all others.
KNOWN_ATTRIBUTES: Final = 0x7F
