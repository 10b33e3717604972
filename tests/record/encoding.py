"""Record batches written by hand from the format. Nothing here comes from the package under test."""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass, field, replace

import pyarrow as pa
from crc32c import crc32c

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODECS = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}

LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES = 32 * 1024


def unsigned_varint(value, width=1):
    """Seven bits a byte, lowest first; at least ``width`` bytes long."""
    encoded = bytearray()
    while value > 0x7F or len(encoded) < width - 1:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def varint(value, width=1):
    """Return a signed value, zig-zag; ``width`` makes it longer than needed."""
    return unsigned_varint(2 * value if value >= 0 else -2 * value - 1, width)


def sized(content, width=1):
    return varint(-1, width) if content is None else varint(len(content), width) + content


@dataclass(frozen=True)
class Record:
    """One record, with what the batch around it needs to know."""

    offset_delta: int = 0
    timestamp_ms: int = 0
    key: bytes | None = None
    value: bytes | None = b"v"
    headers: tuple = ()

    def encode(self, base_timestamp_ms, width=1):
        """Encode; every length and delta takes at least ``width`` bytes."""
        body = b"\0" + varint(self.timestamp_ms - base_timestamp_ms, width) + varint(self.offset_delta, width)
        body += sized(self.key, width) + sized(self.value, width) + varint(len(self.headers), width)
        for key, value in self.headers:
            body += sized(key, width) + sized(value, width)
        return sized(body, width)


@dataclass(frozen=True)
class Batch:
    """A record batch. ``records_bytes`` and ``count`` replace what would follow from the records."""

    records: tuple = ()
    base_offset: int = 0
    codec: int = NONE
    leader_epoch: int = 0
    attributes: int = 0
    last_offset_delta: int | None = None
    base_timestamp_ms: int | None = None
    max_timestamp_ms: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    magic: int = 2
    count: int | None = None
    records_bytes: bytes | None = None
    payload: bytes | None = None
    varint_width: int = 1
    rows: list = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        first_ms = self.records[0].timestamp_ms if self.records else -1
        last_delta = self.records[-1].offset_delta if self.records else 0
        defaults = {
            "base_timestamp_ms": first_ms,
            "max_timestamp_ms": max((record.timestamp_ms for record in self.records), default=-1),
            "last_offset_delta": last_delta,
            "count": len(self.records),
        }
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        object.__setattr__(self, "rows", [self._row(record) for record in self.records])

    def _row(self, record):
        is_append_time = self.attributes & LOG_APPEND_TIME
        timestamp_ms = self.max_timestamp_ms if is_append_time else record.timestamp_ms
        offset = self.base_offset + record.offset_delta
        return (offset, timestamp_ms, record.key, record.value, tuple(record.headers))

    def at(self, base_offset):
        """Return the same batch at another offset."""
        return replace(self, base_offset=base_offset)

    @property
    def last_offset(self):
        return self.base_offset + self.last_offset_delta

    def encode_records(self):
        """Return the uncompressed records."""
        if self.records_bytes is not None:
            return self.records_bytes
        return b"".join(record.encode(self.base_timestamp_ms, self.varint_width) for record in self.records)

    def encode(self, *, crc=None):
        """Return the whole batch; a ``crc`` given replaces the right one."""
        payload = self.payload
        if payload is None:
            payload = compress(self.codec, self.encode_records())
        checked = (
            struct.pack(
                ">hiqqqhii",
                self.attributes | self.codec,
                self.last_offset_delta,
                self.base_timestamp_ms,
                self.max_timestamp_ms,
                self.producer_id,
                self.producer_epoch,
                self.base_sequence,
                self.count,
            )
            + payload
        )
        crc = crc32c(checked) if crc is None else crc
        head = struct.pack(">qiibI", self.base_offset, len(checked) + 9, self.leader_epoch, self.magic, crc)
        return head + checked


def compress(codec, data):
    """Compress as Kafka's Java client frames it."""
    if codec == NONE:
        return data
    if codec == GZIP:
        return gzip.compress(data, mtime=0)
    if codec == SNAPPY:
        return xerial(data)
    return pa.Codec({LZ4: "lz4", ZSTD: "zstd"}[codec]).compress(data, asbytes=True)


def snappy_block(data):
    return pa.Codec("snappy").compress(data, asbytes=True)


def xerial(data, block_bytes=XERIAL_BLOCK_BYTES):
    """Return the framing of xerial's SnappyOutputStream."""
    stream = XERIAL_HEADER
    for start in range(0, len(data), block_bytes):
        block = snappy_block(data[start : start + block_bytes])
        stream += struct.pack(">i", len(block)) + block
    return stream


def counted_records(count, *, start=0, value=b"v", key=None, step_ms=1, headers=()):
    """Records one after the other, without gaps."""
    return tuple(Record(number, start + number * step_ms, key, value, headers) for number in range(count))


def with_header_field(data, position, code, value):
    """Return the batch with one field of its header overwritten, its CRC left as it was."""
    changed = bytearray(data)
    struct.pack_into(">" + code, changed, position, value)
    return bytes(changed)
