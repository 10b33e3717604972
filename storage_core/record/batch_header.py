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

The header of a record batch (KIP-98; Kafka's ``DefaultRecordBatch``), or of an older message.

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

A checksum over batches that stays what it is when they get their offsets and leader epoch.

Reading one item at each of many places of a buffer, aligned or not.

The headers of the batches in a buffer, of any format, as rows of one structured array.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from storage_core.errors import CorruptRecordError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    BytesLike: TypeAlias = bytes | bytearray | memoryview

__all__ = [
    "CHECKED_HEADER",
    "CODEC_COUNT",
    "CODEC_MASK",
    "CONTROL_FLAG",
    "CRC_LAYOUTS",
    "CRC_START",
    "DELETE_HORIZON_FLAG",
    "FINGERPRINTED_BYTES",
    "HEADER_DTYPE",
    "HEADER_SIZE_BYTES",
    "KEY_LENGTH_POSITIONS",
    "KNOWN_ATTRIBUTES",
    "LEGACY_ATTRIBUTES",
    "LENGTH_AND_MAGIC",
    "LENGTH_BYTES",
    "LENGTH_DTYPE",
    "LENGTH_POSITION",
    "LOG_APPEND_TIME_FLAG",
    "LOG_OVERHEAD_BYTES",
    "MAGIC_POSITION",
    "MAGIC_V2",
    "MAX_OFFSET",
    "MAX_OFFSET_DELTA",
    "MESSAGE_DTYPE",
    "MESSAGE_SIZE_BYTES",
    "MINIMUM_LEGACY_LENGTH",
    "MINIMUM_LEGACY_LENGTHS",
    "MINIMUM_LENGTHS",
    "NO_TIMESTAMP_MS",
    "TRANSACTIONAL_FLAG",
    "UNCHECKED_HEADER",
    "BatchHeader",
    "CrcLayout",
    "batch_crc_matches",
    "batch_fingerprint",
    "fingerprinted_bytes",
    "gather",
    "header_error",
    "header_rows",
    "parse_batch_header",
    "unpack_message",
    "wrapper_rows",
]


# (name, struct code, numpy type). The bytes of the timestamp are a v0 message's lengths; even the
# shortest v0 message has them.
_MESSAGE_LAYOUT: Final = (
    ("offset", "q", ">i8"),
    ("length", "i", ">i4"),
    ("crc", "I", ">u4"),
    ("magic", "b", "i1"),
    ("attributes", "B", "u1"),
    ("timestamp_ms", "q", ">i8"),
)
_MESSAGE: Final = struct.Struct(">" + "".join(code for _, code, _ in _MESSAGE_LAYOUT))
MESSAGE_DTYPE: Final = np.dtype([(name, kind) for name, _, kind in _MESSAGE_LAYOUT])
MESSAGE_SIZE_BYTES: Final = _MESSAGE.size
# By magic: the least that the length field says, with neither key nor value; where the key's length stands.
MINIMUM_LEGACY_LENGTHS: Final = (14, 22)
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
MINIMUM_LENGTHS: Final = (*MINIMUM_LEGACY_LENGTHS, HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES)
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


_LEADER_EPOCH_POSITION: Final = 12
# All of a header but its base offset and its leader epoch.
_COLUMNS: Final = np.r_[LENGTH_POSITION:_LEADER_EPOCH_POSITION, MAGIC_POSITION:HEADER_SIZE_BYTES]
FINGERPRINTED_BYTES: Final = len(_COLUMNS)
"""How many bytes of each header count."""


def batch_fingerprint(headers: npt.NDArray[Any], fingerprint: int = 0) -> int:
    """The CRC-32C over each header's length and what stands behind its leader epoch.

    Each header holds the CRC of its batch: who has the fingerprint of the headers has that of all bytes.

    Args:
        headers: Of batches of format v2: a structured array of `HEADER_DTYPE`.
        fingerprint: That of the batches before them.
    """
    return int(crc32c(fingerprinted_bytes(headers), fingerprint))


def fingerprinted_bytes(headers: npt.NDArray[Any]) -> memoryview:
    """What the fingerprint is computed of: `FINGERPRINTED_BYTES` a batch, back to back."""
    rows = np.frombuffer(headers.tobytes(), np.uint8).reshape(-1, HEADER_SIZE_BYTES)
    return memoryview(rows[:, _COLUMNS].tobytes())


def gather(
    buffer: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], kind: np.dtype[Any]
) -> npt.NDArray[Any]:
    """The item of a type that begins at each position; all lie within the buffer.

    Raises:
        IndexError: An item does not lie within the buffer.
    """
    size_bytes = kind.itemsize
    # As many places as an item can begin at; with none of them, nothing can be asked for.
    places = max(len(buffer) - size_bytes + 1, 0)
    # Plain bytes are quicker to take than fields.
    items = np.ndarray((places,), f"V{size_bytes}", buffer, 0, (1,))
    found: npt.NDArray[Any] = items[positions].view(kind)
    return found


_ATTRIBUTES_BY_MAGIC: Final = np.array(LEGACY_ATTRIBUTES, np.int16)
_Bytes = npt.NDArray[np.uint8]
_Int64Array = npt.NDArray[np.int64]
_Rows = npt.NDArray[Any]


def _legacy_row() -> _Rows:
    """What a message does not have; the rest is put in."""
    row = np.zeros(1, HEADER_DTYPE)
    for name in ("leader_epoch", "producer_id", "producer_epoch", "base_sequence"):
        row[name] = -1
    row["record_count"] = 1
    return row


_LEGACY_ROW: Final = _legacy_row()


def header_rows(buffer: _Bytes, starts: _Int64Array, lowest_offset: int) -> _Rows:
    """The header of each batch in a buffer: a structured array of `HEADER_DTYPE`.

    Args:
        buffer: Whole batches, of any format.
        starts: Where they begin, ascending and back to back.
        lowest_offset: The first batch's offsets do not lie below it. A wrapper begins behind the batch
            before, as far as its header tells.
    """
    is_legacy = buffer[starts + MAGIC_POSITION] != MAGIC_V2
    if not is_legacy.any():
        return gather(buffer, starts, HEADER_DTYPE)
    if is_legacy.all():
        rows = _legacy_rows(buffer, starts)
    else:
        rows = np.empty(len(starts), HEADER_DTYPE)
        rows.put(np.flatnonzero(~is_legacy), gather(buffer, starts[~is_legacy], HEADER_DTYPE))
        rows.put(np.flatnonzero(is_legacy), _legacy_rows(buffer, starts[is_legacy]))
    _lower_bases(rows, lowest_offset)
    return rows


def wrapper_rows(headers: _Rows) -> npt.NDArray[np.bool_]:
    """Per header: whether it is that of a wrapper."""
    is_wrapper: npt.NDArray[np.bool_] = headers["magic"] < MAGIC_V2
    is_wrapper &= (headers["attributes"] & CODEC_MASK) != 0
    return is_wrapper


def _legacy_rows(buffer: _Bytes, starts: _Int64Array) -> _Rows:
    # No more is read than the shortest message has: nothing behind the last one is looked at.
    messages = gather(buffer, starts, MESSAGE_DTYPE)
    magics = messages["magic"]
    timestamps_ms = np.where(magics == 0, NO_TIMESTAMP_MS, messages["timestamp_ms"])
    rows = _LEGACY_ROW.repeat(len(starts))
    rows["base_offset"] = messages["offset"]
    rows["batch_length"] = messages["length"]
    rows["magic"] = magics
    rows["crc"] = messages["crc"]
    rows["attributes"] = messages["attributes"] & _ATTRIBUTES_BY_MAGIC[magics]
    rows["base_timestamp_ms"] = timestamps_ms
    rows["max_timestamp_ms"] = timestamps_ms
    return rows


def _lower_bases(rows: _Rows, lowest_offset: int) -> None:
    """Let wrappers begin behind the batch before. One that is out of order is left as it is."""
    is_wrapper = wrapper_rows(rows)
    if not is_wrapper.any():
        return
    last_offsets = rows["base_offset"].astype(np.int64) + rows["last_offset_delta"]
    lowest = np.empty_like(last_offsets)
    # The offset behind the largest one is no integer of numpy's.
    lowest[0] = min(lowest_offset, MAX_OFFSET)
    lowest[1:] = last_offsets[:-1] + 1
    lowest = np.maximum(lowest, last_offsets - MAX_OFFSET_DELTA)
    wrappers = np.flatnonzero(is_wrapper & (lowest <= last_offsets) & (lowest >= 0))
    rows["base_offset"][wrappers] = lowest[wrappers]
    rows["last_offset_delta"][wrappers] = (last_offsets - lowest)[wrappers]
