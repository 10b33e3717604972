"""Messages of v0 and v1, written by hand from the format."""

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
    """One message, with its offset and length in front."""
    covered = struct.pack(">bb", magic, attributes)
    if magic == 1:
        covered += struct.pack(">q", timestamp_ms)
    for field in (key, value):
        covered += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    crc = zlib.crc32(covered) if crc is None else crc
    return struct.pack(">qiI", offset, 4 + len(covered), crc) + covered


def wrapper(magic, codec, last_offset, inner, *, timestamp_ms=-1, is_append_time=False):
    """A compressed message set.

    Args:
        magic: 0 or 1.
        codec: Its number.
        last_offset: The offset of the wrapper: that of its last record.
        inner: The messages inside, encoded, one after the other.
        timestamp_ms: The wrapper's timestamp.
        is_append_time: Whether it holds for every message inside.
    """
    attributes = codec | LOG_APPEND_TIME * is_append_time
    value = compress(magic, codec, inner)
    return message(magic, last_offset, None, value, timestamp_ms=timestamp_ms, attributes=attributes)


def compress(magic, codec, data):
    """Compress as brokers of those days did."""
    if codec == GZIP:
        return gzip.compress(data, mtime=0)
    if codec == SNAPPY:
        return xerial(data)
    if codec == LZ4:
        if magic == 0:
            # The checksum of the header also covers the magic, by mistake.
            return lz4_frame([data], header_checksum=0x1A)
        return lz4_frame([data])
    return pa.Codec("zstd").compress(data, asbytes=True)
