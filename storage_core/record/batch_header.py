"""The header of a record batch (KIP-98; Kafka's ``DefaultRecordBatch``), or of an older message.

A segment file is a sequence of batches, back to back, from byte 0. All integers are big-endian.
This is format v2; a message of format v0 or v1 (``legacy_message``) is described in the same terms.

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

import dataclasses
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from crc32c import crc32c

from storage_core.errors import CorruptRecordError
from storage_core.record.legacy_message import MINIMUM_LENGTHS as _LEGACY_MINIMUM_LENGTHS
from storage_core.record.legacy_message import unpack_message

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    BytesLike: TypeAlias = bytes | bytearray | memoryview

__all__ = [
    "CHECKED_HEADER",
    "CODEC_MASK",
    "CONTROL_FLAG",
    "CRC_LAYOUTS",
    "CRC_START",
    "DELETE_HORIZON_FLAG",
    "HEADER_DTYPE",
    "HEADER_SIZE_BYTES",
    "KNOWN_ATTRIBUTES",
    "LEGACY_ATTRIBUTES",
    "LENGTH_AND_MAGIC",
    "LENGTH_POSITION",
    "LOG_APPEND_TIME_FLAG",
    "LOG_OVERHEAD_BYTES",
    "MAGIC_POSITION",
    "MAGIC_V2",
    "MAX_OFFSET",
    "MAX_OFFSET_DELTA",
    "MINIMUM_LEGACY_LENGTH",
    "MINIMUM_LENGTHS",
    "TRANSACTIONAL_FLAG",
    "UNCHECKED_HEADER",
    "BatchHeader",
    "CrcLayout",
    "batch_crc_matches",
    "header_error",
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
# The same in two: what the CRC does not cover, itself included, and what it does.
UNCHECKED_HEADER: Final = struct.Struct(">" + "".join(code for _, code, _ in _LAYOUT[:5]))
CHECKED_HEADER: Final = struct.Struct(">" + "".join(code for _, code, _ in _LAYOUT[5:]))
HEADER_DTYPE: Final = np.dtype([(name, kind) for name, _, kind in _LAYOUT])

HEADER_SIZE_BYTES: Final = _HEADER.size
LOG_OVERHEAD_BYTES: Final = 12
LENGTH_POSITION: Final = 8
# What tells how large a batch of any format is, and which it is of, from the length's position on.
LENGTH_AND_MAGIC: Final = struct.Struct(">i4xb")
MAGIC_POSITION: Final = 16
CRC_START: Final = 21
MAGIC_V2: Final = 2
# By magic: the least that the length field says.
MINIMUM_LENGTHS: Final = (*_LEGACY_MINIMUM_LENGTHS, HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES)
# The least that it says in any format: a v0 message without key and value.
MINIMUM_LEGACY_LENGTH: Final = min(MINIMUM_LENGTHS)
MAX_OFFSET: Final = (1 << 63) - 1
MAX_OFFSET_DELTA: Final = (1 << 31) - 1

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20
DELETE_HORIZON_FLAG: Final = 0x40
# The bits that mean something. A broker that rewrites a header drops the others.
KNOWN_ATTRIBUTES: Final = 0x7F


# By magic: the bits of a message that mean something.
LEGACY_ATTRIBUTES: Final = (CODEC_MASK, CODEC_MASK | LOG_APPEND_TIME_FLAG)


class CrcLayout(NamedTuple):
    """Where a batch's CRC stands, where the bytes begin that it covers, and how it is computed.

    ``compute`` takes bytes and, if there are others before them, the CRC of these.
    """

    position: int
    start: int
    compute: Callable[..., int]


_LEGACY_CRC: Final = CrcLayout(12, 16, zlib.crc32)
# By magic.
CRC_LAYOUTS: Final = (_LEGACY_CRC, _LEGACY_CRC, CrcLayout(CRC_START - 4, CRC_START, crc32c))


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """One batch: where it stands in its file, and what its header says.

    ``size_bytes`` counts the whole batch, header included. A message of format v0 or v1 is a batch of
    its own, with -1 for what it does not have. Of a wrapper only the last offset is known without its
    records: its base offset is a lower bound, and its record count is 1.
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
    def is_wrapper(self) -> bool:
        """Whether this is a message of format v0 or v1 that holds others."""
        return self.magic < MAGIC_V2 and self.codec != 0

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

    def with_lower_base(self, offset: int) -> BatchHeader:
        """The same header; if of a wrapper, with a base offset as low as ``offset``.

        An offset above the wrapper's own changes nothing.
        """
        if not self.is_wrapper or offset > self.last_offset:
            return self
        base_offset = max(offset, self.last_offset - MAX_OFFSET_DELTA)
        return dataclasses.replace(
            self, base_offset=base_offset, last_offset_delta=self.last_offset - base_offset
        )


def parse_batch_header(data: BytesLike, start: int, position_bytes: int, *, path: str) -> BatchHeader:
    """Parse the header at ``data[start:]``, which stands at ``position_bytes`` of ``path``.

    Args:
        data: At least 61 bytes from ``start`` on, or a whole message of format v0 or v1.
        start: Where the header begins in ``data``.
        position_bytes: Where it begins in the file, for the result and for messages.
        path: The file, for messages.

    Returns:
        The header. A wrapper's base offset is its last offset, until ``with_lower_base`` lowers it.

    Raises:
        CorruptRecordError: The magic or the length is none that Kafka writes.
    """
    if data[start + MAGIC_POSITION] != MAGIC_V2:
        return _parse_legacy(data, start, position_bytes, path)
    (base_offset, batch_length, leader_epoch, magic, *rest) = _HEADER.unpack_from(data, start)
    if batch_length < HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES:
        raise header_error(path, position_bytes, batch_length, magic)
    return BatchHeader(
        position_bytes, base_offset, batch_length + LOG_OVERHEAD_BYTES, leader_epoch, magic, *rest
    )


def _parse_legacy(data: BytesLike, start: int, position_bytes: int, path: str) -> BatchHeader:
    offset, length, crc, magic, attributes, timestamp_ms = unpack_message(data, start)
    if magic not in (0, 1) or length < MINIMUM_LENGTHS[magic]:
        raise header_error(path, position_bytes, length, magic)
    return BatchHeader(
        position_bytes=position_bytes,
        base_offset=offset,
        size_bytes=length + LOG_OVERHEAD_BYTES,
        leader_epoch=-1,
        magic=magic,
        crc=crc,
        attributes=attributes & LEGACY_ATTRIBUTES[magic],
        last_offset_delta=0,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=1,
    )


def header_error(path: str, position_bytes: int, batch_length: int, magic: int) -> CorruptRecordError:
    """Say what is wrong with a header whose magic or length was refused."""
    if 0 <= magic <= MAGIC_V2:
        kind = "batch" if magic == MAGIC_V2 else "message"
        found = f"Expected a {kind} length of at least {MINIMUM_LENGTHS[magic]} bytes, found {batch_length}."
    else:
        found = f"Expected the magic byte of a record batch to be 0, 1 or 2, found {magic}."
    return CorruptRecordError(
        f"{found} These bytes are no record batch: the file is damaged here.",
        path=path,
        position_bytes=position_bytes,
    )


def batch_crc_matches(batch: BytesLike) -> bool:
    """Whether the CRC of a whole batch, header included, is the one that its header states."""
    view = memoryview(batch).cast("B")
    magic = view[MAGIC_POSITION]
    if magic >= len(CRC_LAYOUTS):
        return False
    position, start, compute = CRC_LAYOUTS[magic]
    return compute(view[start:]) == int.from_bytes(view[position : position + 4], "big")
