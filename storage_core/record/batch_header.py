"""The header of a v2 record batch (KIP-98; Kafka's ``DefaultRecordBatch``).

A segment file is a sequence of batches, back to back, from byte 0. All integers are big-endian.

    position  bytes  field
    0         8      base offset
    8         4      batch length: bytes that follow this field
    12        4      partition leader epoch, -1 unknown
    16        1      magic, 2
    17        4      CRC-32C of everything behind this field
    21        2      attributes
    23        4      last offset delta
    27        8      base timestamp (ms), or the delete horizon
    35        8      max timestamp (ms)
    43        8      producer id, -1 none
    51        2      producer epoch, -1 none
    53        4      base sequence, -1 none
    57        4      record count
    61               records, compressed as one block if the attributes name a codec

The CRC covers neither the base offset nor the leader epoch: a broker assigns both in place.

    attribute bits  meaning
    0-2             codec: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd
    3               timestamps are log append time: the max timestamp holds for every record
    4               transactional
    5               control batch: markers, never shown to consumers
    6               the base timestamp is a delete horizon (compaction); record timestamps still add up
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from crc32c import crc32c

from storage_core.errors import CorruptRecordError, UnsupportedFormatError

if TYPE_CHECKING:
    from typing import TypeAlias

    BytesLike: TypeAlias = bytes | bytearray | memoryview

__all__ = [
    "CODEC_MASK",
    "CONTROL_FLAG",
    "CRC_START",
    "DELETE_HORIZON_FLAG",
    "HEADER_DTYPE",
    "HEADER_SIZE_BYTES",
    "LOG_APPEND_TIME_FLAG",
    "LOG_OVERHEAD_BYTES",
    "MAGIC_POSITION",
    "MAGIC_V2",
    "MINIMUM_LEGACY_LENGTH",
    "TRANSACTIONAL_FLAG",
    "BatchHeader",
    "batch_crc_matches",
    "parse_batch_header",
]

# (name, struct code, numpy type), in file order. The struct serves one header at a time,
# the numpy type a window of them.
_LAYOUT: Final = (
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
_HEADER: Final = struct.Struct(">" + "".join(code for _, code, _ in _LAYOUT))
HEADER_DTYPE: Final = np.dtype([(name, kind) for name, _, kind in _LAYOUT])

HEADER_SIZE_BYTES: Final = _HEADER.size
LOG_OVERHEAD_BYTES: Final = 12
MAGIC_POSITION: Final = 16
CRC_START: Final = 21
MAGIC_V2: Final = 2
# The smallest length field that any format allows: a v0 message without key and value.
MINIMUM_LEGACY_LENGTH: Final = 14

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20
DELETE_HORIZON_FLAG: Final = 0x40


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """One batch: where it stands in its file, and what its header says.

    ``size_bytes`` counts the whole batch, header included.
    """

    position_bytes: int
    base_offset: int
    size_bytes: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        """Offset of the last record that the batch was written with."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset to read on from: gaps and empty batches make a count useless for this."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def end_position_bytes(self) -> int:
        """Position of the first byte behind the batch."""
        return self.position_bytes + self.size_bytes

    @property
    def codec(self) -> int:
        """The codec's number; 0 means that the records are not compressed."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """Whether every record carries the max timestamp."""
        return bool(self.attributes & LOG_APPEND_TIME_FLAG)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds markers instead of data."""
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether the base timestamp is a delete horizon."""
        return bool(self.attributes & DELETE_HORIZON_FLAG)


def parse_batch_header(data: BytesLike, start: int, position_bytes: int, *, path: str) -> BatchHeader:
    """Parse the header at ``data[start:]``, which stands at ``position_bytes`` of ``path``.

    Args:
        data: At least 61 bytes from ``start`` on.
        start: Where the header begins in ``data``.
        position_bytes: Where it begins in the file, for the result and for messages.
        path: The file, for messages.

    Raises:
        UnsupportedFormatError: The batch is a v0 or v1 message.
        CorruptRecordError: The magic or the length is none that Kafka writes.
    """
    (base_offset, batch_length, leader_epoch, magic, *rest) = _HEADER.unpack_from(data, start)
    if magic != MAGIC_V2 or batch_length < HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES:
        raise header_error(path, position_bytes, base_offset, batch_length, magic)
    return BatchHeader(
        position_bytes, base_offset, batch_length + LOG_OVERHEAD_BYTES, leader_epoch, magic, *rest
    )


def header_error(
    path: str, position_bytes: int, base_offset: int, batch_length: int, magic: int
) -> UnsupportedFormatError | CorruptRecordError:
    """Say what is wrong with a header whose magic or length was refused."""
    if magic in (0, 1) and batch_length >= MINIMUM_LEGACY_LENGTH:
        return UnsupportedFormatError(
            f"Found a message of format v{magic} (magic {magic}). This version reads record batches "
            "of format v2 only, which brokers have written since Kafka 0.11.",
            path=path,
            position_bytes=position_bytes,
            offset=base_offset,
        )
    if magic != MAGIC_V2:
        found = f"Expected the magic byte of a record batch to be 2, found {magic}."
    else:
        found = f"Expected a batch length of at least 49 bytes, found {batch_length}."
    return CorruptRecordError(
        f"{found} These bytes are no record batch: the file is damaged here.",
        path=path,
        position_bytes=position_bytes,
    )


def batch_crc_matches(batch: BytesLike) -> bool:
    """Whether the CRC of a whole batch, header included, is the one that its header states."""
    view = memoryview(batch).cast("B")
    stored = int.from_bytes(view[CRC_START - 4 : CRC_START], "big")
    return crc32c(view[CRC_START:]) == stored
