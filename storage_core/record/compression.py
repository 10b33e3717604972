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
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CODEC_NAMES", "OutputFullError", "UndecodableError", "decompress_into"]

# By codec number.
CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")

# The magic and the only method there is.
_GZIP_MAGIC: Final = b"\x1f\x8b\x08"
_GZIP_SMALLEST_MEMBER_BYTES: Final = 18
# A member is fed in pieces, at first of this size: zlib copies whatever it is given beyond the end.
_GZIP_FIRST_PIECE_BYTES: Final = 1 << 12
# zlib's "expect a gzip header" on top of its largest window.
_GZIP_WINDOW_BITS: Final = 31

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
_VARINT_CONTINUES: Final = 0x80
_INT32: Final = struct.Struct(">i")
_SNAPPY: Final = pa.Codec("snappy")

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_BLOCK_SIZE: Final = struct.Struct("<I")
_LZ4_SIZE_MASK: Final = 0x7FFFFFFF
_LZ4_FLAG_DICTIONARY: Final = 0x01
_LZ4_FLAG_CONTENT_CHECKSUM: Final = 0x04
_LZ4_FLAG_CONTENT_SIZE: Final = 0x08
_LZ4_FLAG_BLOCK_CHECKSUM: Final = 0x10


class OutputFullError(Exception):
    """More bytes come out than the output buffer holds."""


class UndecodableError(Exception):
    """The compressed bytes are not what the codec expects."""


def decompress_into(codec: int, payload: memoryview, output: memoryview) -> int:
    """Decompress ``payload`` into ``output``; return how many bytes came out.

    Args:
        codec: The codec's number, 1 to 4.
        payload: The compressed bytes of one batch.
        output: Where to write. It must be one byte longer than the most that is expected.

    Raises:
        OutputFullError: The output buffer was filled to its end.
        UndecodableError: The payload is damaged, cut off, or of an unknown codec.
    """
    decompress = _DECOMPRESS.get(codec)
    if decompress is None:
        message = f"codec number {codec} is unknown"
        raise UndecodableError(message)
    try:
        size_bytes = decompress(payload, output)
    except (OSError, ValueError, zlib.error, struct.error) as error:
        raise UndecodableError(str(error)) from error
    if size_bytes >= len(output):
        raise OutputFullError
    return size_bytes


def _gzip(payload: memoryview, output: memoryview) -> int:
    size_bytes = 0
    position = 0
    while True:
        member = zlib.decompressobj(_GZIP_WINDOW_BITS)
        piece_bytes = _GZIP_FIRST_PIECE_BYTES
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
        # As the JDK: what does not look like another member is left alone.
        is_member = payload[position : position + len(_GZIP_MAGIC)] == _GZIP_MAGIC
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
    output[:size_bytes] = memoryview(_SNAPPY.decompress(block, size_bytes)).cast("B")
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


def _lz4(payload: memoryview, output: memoryview) -> int:
    return _arrow_stream("lz4", payload[: _lz4_frame_bytes(payload)], output)


def _lz4_frame_bytes(payload: memoryview) -> int:
    """The length of the first frame: Kafka reads that and no more."""
    if len(payload) < len(_LZ4_MAGIC) + 3 or bytes(payload[: len(_LZ4_MAGIC)]) != _LZ4_MAGIC:
        message = "the LZ4 frame magic is missing"
        raise UndecodableError(message)
    flags = payload[4]
    position = 7
    position += 8 * bool(flags & _LZ4_FLAG_CONTENT_SIZE) + 4 * bool(flags & _LZ4_FLAG_DICTIONARY)
    block_trailer_bytes = 4 * bool(flags & _LZ4_FLAG_BLOCK_CHECKSUM)
    while position + _LZ4_BLOCK_SIZE.size <= len(payload):
        (block_size,) = _LZ4_BLOCK_SIZE.unpack_from(payload, position)
        position += _LZ4_BLOCK_SIZE.size
        if block_size == 0:
            return position + 4 * bool(flags & _LZ4_FLAG_CONTENT_CHECKSUM)
        position += (block_size & _LZ4_SIZE_MASK) + block_trailer_bytes
    message = "the LZ4 frame is cut off"
    raise UndecodableError(message)


def _zstd(payload: memoryview, output: memoryview) -> int:
    return _arrow_stream("zstd", payload, output)


def _arrow_stream(codec_name: str, payload: memoryview, output: memoryview) -> int:
    stream = pa.CompressedInputStream(pa.BufferReader(payload), codec_name)
    return int(stream.readinto(output))


_DECOMPRESS: Final[dict[int, Callable[[memoryview, memoryview], int]]] = {
    1: _gzip,
    2: _snappy,
    3: _lz4,
    4: _zstd,
}
