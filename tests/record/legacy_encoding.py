"""Messages of format v0 and v1 written by hand from the format. Nothing here comes from the package under test."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace

import pyarrow as pa

from tests.record.encoding import GZIP, LOG_APPEND_TIME, LZ4, NONE, SNAPPY, compress

CODECS = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4}

# The descriptor's checksum as it should be, and as the writers of format v0 computed it.
LZ4_CHECKSUM = 0x82
LZ4_CHECKSUM_OF_V0 = 0x1A
LZ4_BLOCK_BYTES = 64 * 1024


@dataclass(frozen=True)
class Message:
    """A plain message. ``trailing`` are bytes after the value."""

    offset: int = 0
    timestamp_ms: int = -1
    key: bytes | None = None
    value: bytes | None = b"v"
    magic: int = 1
    attributes: int = 0
    trailing: bytes = b""

    def encode(self, *, crc=None, length=None):
        """Return the whole message; a ``crc`` or a ``length`` given replaces the right one."""
        timestamp = struct.pack(">q", self.timestamp_ms) if self.magic else b""
        content = sized(self.key) + sized(self.value) + self.trailing
        return entry(self.offset, self.magic, self.attributes, timestamp + content, crc=crc, length=length)

    @property
    def row(self):
        """Offset, timestamp, key, value, headers."""
        return (self.offset, self.timestamp_ms if self.magic else -1, self.key, self.value, ())


@dataclass(frozen=True)
class Wrapper:
    """A compressed set of messages. ``payload`` replaces what would follow from the messages.

    The offset is that of the last message; ``inner_offsets`` are what the set says.
    """

    messages: tuple = ()
    codec: int = GZIP
    magic: int = 1
    offset: int | None = None
    timestamp_ms: int | None = None
    attributes: int = 0
    inner_offsets: tuple | None = None
    key: bytes | None = None
    payload: bytes | None = None

    @property
    def last_offset(self):
        return self.messages[-1].offset if self.offset is None else self.offset

    def encode_set(self):
        """Return the set as it is before it is compressed."""
        inner_offsets = self.inner_offsets
        if inner_offsets is None:
            first = self.messages[0].offset if self.magic and self.messages else 0
            inner_offsets = [message.offset - first for message in self.messages]
        return b"".join(
            replace(message, offset=offset).encode()
            for message, offset in zip(self.messages, inner_offsets, strict=True)
        )

    @property
    def outer_timestamp_ms(self):
        if self.timestamp_ms is not None:
            return self.timestamp_ms
        return max((message.timestamp_ms for message in self.messages), default=-1)

    def encode(self, *, crc=None):
        payload = self.payload
        if payload is None:
            payload = compress_set(self.codec, self.encode_set(), self.magic)
        attributes = self.codec | self.attributes
        outer = Message(self.last_offset, self.outer_timestamp_ms, self.key, payload, self.magic, attributes)
        return outer.encode(crc=crc)

    @property
    def rows(self):
        is_append_time = self.magic and self.attributes & LOG_APPEND_TIME
        return [
            replace(message, timestamp_ms=self.outer_timestamp_ms).row if is_append_time else message.row
            for message in self.messages
        ]


def entry(offset, magic, attributes, rest, *, crc=None, length=None):
    """Return any message: what follows the attributes is given."""
    checked = struct.pack(">bB", magic, attributes) + rest
    crc = zlib.crc32(checked) if crc is None else crc
    length = len(checked) + 4 if length is None else length
    return struct.pack(">qiI", offset, length, crc) + checked


def sized(content):
    return struct.pack(">i", -1) if content is None else struct.pack(">i", len(content)) + content


def compress_set(codec, data, magic):
    """Compress as Kafka's Java client does for a format."""
    if codec == LZ4:
        return lz4_frame(data, LZ4_CHECKSUM if magic else LZ4_CHECKSUM_OF_V0)
    return compress(codec, data)


def lz4_frame(data, checksum=LZ4_CHECKSUM):
    """Return a frame of independent blocks of 64 KiB, without content size or content checksum."""
    frame = b"\x04\x22\x4d\x18\x60\x40" + bytes([checksum])
    for start in range(0, len(data), LZ4_BLOCK_BYTES):
        block = data[start : start + LZ4_BLOCK_BYTES]
        packed = pa.Codec("lz4_raw").compress(block, asbytes=True)
        if len(packed) < len(block):
            frame += struct.pack("<I", len(packed)) + packed
        else:
            frame += struct.pack("<I", len(block) | 1 << 31) + block
    return frame + bytes(4)


def plain_messages(count, *, start=0, magic=1, timestamp_ms=0, key=None, value=b"v"):
    """Messages one after the other, without gaps."""
    return tuple(Message(start + number, timestamp_ms + number, key, value, magic) for number in range(count))
