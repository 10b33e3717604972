"""Decompress the records of a batch (Kafka's ``common.compress``; KIP-110 for zstd).

    1 gzip    RFC 1952; several members follow one another; bytes behind the last are ignored
    2 snappy  the framing of xerial's SnappyOutputStream, below, or one raw snappy block
    3 lz4     one LZ4 frame; bytes behind it are ignored
    4 zstd    one or more frames, mostly without a content size

    xerial framing: 82 "SNAPPY" 00, version int32, minimum compatible version int32,
    then chunks until the end: int32 length, raw snappy block

Output goes to a buffer of the caller's, so nothing inflates beyond what the caller allows.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import pyarrow as pa

__all__ = [
    "CODEC_NAMES",
    "LZ4",
    "LZ4_FLAG_CONTENT_SIZE",
    "Decompressor",
    "OutputFullError",
    "UndecodableError",
]

# By codec number.
CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_NONE, _GZIP, _SNAPPY, LZ4, _ZSTD = range(5)

# Arrow reads a payload up to this size in one go.
_REUSED_STREAM_LIMIT_BYTES: Final = 1 << 16

# The magic and the only method there is.
_GZIP_MAGIC: Final = b"\x1f\x8b\x08"
_GZIP_SMALLEST_MEMBER_BYTES: Final = 18
# Further members are fed in pieces, at first of this size: zlib copies whatever it is given beyond the end.
_GZIP_FIRST_PIECE_BYTES: Final = 1 << 12
# zlib's "expect a gzip header" on top of its largest window.
_GZIP_WINDOW_BITS: Final = 31

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
_VARINT_CONTINUES: Final = 0x80
_INT32: Final = struct.Struct(">i")
_SNAPPY_CODEC: Final = pa.Codec("snappy")

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_BLOCK_SIZE: Final = struct.Struct("<I")
_LZ4_SIZE_MASK: Final = 0x7FFFFFFF
_LZ4_FLAG_DICTIONARY: Final = 0x01
_LZ4_FLAG_CONTENT_CHECKSUM: Final = 0x04
LZ4_FLAG_CONTENT_SIZE: Final = 0x08
_LZ4_FLAG_BLOCK_CHECKSUM: Final = 0x10


class OutputFullError(Exception):
    """More bytes come out than the output buffer holds."""


class UndecodableError(Exception):
    """The compressed bytes are not what the codec expects."""


class Decompressor:
    """Decompresses batch after batch. What is costly to set up is kept for the next one."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}

    def decompress_into(self, codec: int, payload: memoryview, output: memoryview) -> int:
        """Decompress ``payload`` into ``output``; return how many bytes came out.

        Args:
            codec: The codec's number, 0 to 4; 0 copies.
            payload: The compressed bytes of one batch.
            output: Where to write. It must be one byte longer than the most that is expected.

        Raises:
            OutputFullError: The output buffer was filled to its end.
            UndecodableError: The payload is damaged, cut off, or of an unknown codec.
        """
        try:
            size_bytes = self._decompress(codec, payload, output)
        except (OSError, ValueError, zlib.error, struct.error) as error:
            raise UndecodableError(str(error)) from error
        if size_bytes >= len(output):
            raise OutputFullError
        return size_bytes

    def _decompress(self, codec: int, payload: memoryview, output: memoryview) -> int:
        if codec == _NONE:
            size_bytes = min(len(payload), len(output))
            output[:size_bytes] = payload[:size_bytes]
            return size_bytes
        if codec == _ZSTD:
            return self._by_stream("zstd", payload, output)
        if codec == LZ4:
            return self._by_stream("lz4", payload[: _lz4_frame_bytes(payload)], output)
        if codec == _SNAPPY:
            return _snappy(payload, output)
        if codec == _GZIP:
            return _gzip(payload, output)
        message = f"codec number {codec} is unknown"
        raise UndecodableError(message)

    def _by_stream(self, codec_name: str, payload: memoryview, output: memoryview) -> int:
        if len(payload) > _REUSED_STREAM_LIMIT_BYTES:
            stream = pa.CompressedInputStream(pa.BufferReader(payload), codec_name)
            return int(stream.readinto(output))
        # A stream that fails, or is left with something to say, is not used again.
        kept = self._streams.pop(codec_name, None) or _Stream(codec_name)
        size_bytes = kept.read_into(payload, output)
        if size_bytes < len(output):
            self._streams[codec_name] = kept
        return size_bytes


class _Stream:
    """An Arrow stream that takes one payload after the other: setting one up costs more than a small batch."""

    def __init__(self, codec_name: str) -> None:
        self._source = _Source()
        self._stream = pa.CompressedInputStream(pa.PythonFile(self._source, mode="r"), codec_name)

    def read_into(self, payload: memoryview, output: memoryview) -> int:
        self._source.rest = payload
        return int(self._stream.readinto(output))


class _Source:
    """A file that ends with each payload."""

    closed = False

    def __init__(self) -> None:
        self.rest: memoryview = memoryview(b"")

    def read(self, size_bytes: int) -> memoryview:
        piece, self.rest = self.rest[:size_bytes], self.rest[size_bytes:]
        return piece

    def close(self) -> None:
        """Nothing is open."""


def _gzip(payload: memoryview, output: memoryview) -> int:
    size_bytes = 0
    position = 0
    # Mostly there is one member, and nothing behind it.
    piece_bytes = len(payload)
    while True:
        member = zlib.decompressobj(_GZIP_WINDOW_BITS)
        while not member.eof:
            piece = payload[position : position + piece_bytes]
            if not piece:
                message = "the gzip stream is cut off"
                raise UndecodableError(message)
            data = member.decompress(piece, len(output) - size_bytes)
            output[size_bytes : size_bytes + len(data)] = data
            size_bytes += len(data)
            if size_bytes == len(output):
                return size_bytes
            position += len(piece) - len(member.unused_data)
            piece_bytes *= 2
        piece_bytes = _GZIP_FIRST_PIECE_BYTES
        # As the JDK: what does not look like another member is left alone.
        is_member = bytes(payload[position : position + len(_GZIP_MAGIC)]) == _GZIP_MAGIC
        if not is_member or len(payload) - position < _GZIP_SMALLEST_MEMBER_BYTES:
            return size_bytes


def _snappy(payload: memoryview, output: memoryview) -> int:
    if not payload:
        message = "the snappy stream is empty"
        raise UndecodableError(message)
    if len(payload) < _XERIAL_HEADER_BYTES or bytes(payload[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _snappy_block(payload, output)
    size_bytes = 0
    position = _XERIAL_HEADER_BYTES
    while position + _INT32.size <= len(payload):
        if bytes(payload[position : position + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            # Another stream, appended to the first.
            position += _XERIAL_HEADER_BYTES
            continue
        (chunk_bytes,) = _INT32.unpack_from(payload, position)
        position += _INT32.size
        if not 0 <= chunk_bytes <= len(payload) - position:
            message = f"a snappy chunk of {chunk_bytes} bytes does not fit the stream"
            raise UndecodableError(message)
        size_bytes += _snappy_block(payload[position : position + chunk_bytes], output[size_bytes:])
        position += chunk_bytes
        if size_bytes == len(output):
            break
    return size_bytes


def _snappy_block(block: memoryview, output: memoryview) -> int:
    size_bytes = _unsigned_varint(block)
    if size_bytes >= len(output):
        return len(output)
    output[:size_bytes] = memoryview(_SNAPPY_CODEC.decompress(block, size_bytes)).cast("B")
    return size_bytes


def _unsigned_varint(block: memoryview) -> int:
    # A raw snappy block begins with its uncompressed length.
    value = 0
    for index, byte in enumerate(block[:5]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < _VARINT_CONTINUES:
            return value
    message = "a snappy block has no length"
    raise UndecodableError(message)


def _lz4_frame_bytes(payload: memoryview) -> int:
    """The length of the first frame: Kafka reads that and no more."""
    if len(payload) < len(_LZ4_MAGIC) + 3 or bytes(payload[: len(_LZ4_MAGIC)]) != _LZ4_MAGIC:
        message = "the LZ4 frame magic is missing"
        raise UndecodableError(message)
    flags = payload[4]
    position = 7
    position += 8 * bool(flags & LZ4_FLAG_CONTENT_SIZE) + 4 * bool(flags & _LZ4_FLAG_DICTIONARY)
    block_trailer_bytes = 4 * bool(flags & _LZ4_FLAG_BLOCK_CHECKSUM)
    while position + _LZ4_BLOCK_SIZE.size <= len(payload):
        (block_size,) = _LZ4_BLOCK_SIZE.unpack_from(payload, position)
        position += _LZ4_BLOCK_SIZE.size
        if block_size == 0:
            return position + 4 * bool(flags & _LZ4_FLAG_CONTENT_CHECKSUM)
        position += (block_size & _LZ4_SIZE_MASK) + block_trailer_bytes
    message = "the LZ4 frame is cut off"
    raise UndecodableError(message)
