"""Hand-made messages of v0 and v1."""

from __future__ import annotations

import gzip
import struct
import zlib

import pyarrow as pa

from tests.record.encoding import xerial
from tests.record.frames import lz4_frame

GZIP, SNAPPY, LZ4 = 1, 2, 3
LOG_APPEND_TIME = 0x08


def message(magic, offset, key, value, *, timestamp_ms=-1, attributes=0, crc=None):
    """Return one message with its offset and length."""
    covered = struct.pack(">bb", magic, attributes)
    if magic == 1:
        covered += struct.pack(">q", timestamp_ms)
    for field in (key, value):
        covered += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    crc = zlib.crc32(covered) if crc is None else crc
    return struct.pack(">qiI", offset, 4 + len(covered), crc) + covered


def wrapper(magic, codec, last_offset, inner, *, timestamp_ms=-1, is_append_time=False):
    """Return a compressed message set.

    Args:
        magic: 0 or 1.
        codec: Its number.
        last_offset: The wrapper's offset, which is that of its last record.
        inner: The encoded messages, concatenated.
        timestamp_ms: The wrapper's timestamp.
        is_append_time: Whether the timestamp applies to every inner message.
    """
    attributes = codec | LOG_APPEND_TIME * is_append_time
    value = compress(magic, codec, inner)
    return message(magic, last_offset, None, value, timestamp_ms=timestamp_ms, attributes=attributes)


def compress(magic, codec, data):
    """Compress as brokers of the time did."""
    if codec == GZIP:
        return gzip.compress(data, mtime=0)
    if codec == SNAPPY:
        return xerial(data)
    if codec == LZ4:
        if magic == 0:
            # By mistake, the header checksum also covers the magic.
            return lz4_frame([data], header_checksum=0x1A)
        return lz4_frame([data])
    return pa.Codec("zstd").compress(data, asbytes=True)
