"""Decompress the records of a batch (Kafka's ``common.compress``; KIP-110 for zstd).

    1 gzip    RFC 1952; several members follow one another; bytes behind the last are ignored
    2 snappy  the framing of xerial's SnappyOutputStream, below, or one raw snappy block
    3 lz4     one LZ4 frame; bytes behind it are ignored
    4 zstd    one or more frames, mostly without a content size

    xerial framing: 82 "SNAPPY" 00, version int32, minimum compatible version int32,
    then chunks until the end: int32 length, raw snappy block

Output goes to a buffer of the caller's, so nothing inflates beyond what the caller allows.

Compress the records of a batch as Kafka's Java client frames them (``common.compress``).

    1 gzip    one member; its header names no time, no level and an unknown system, as that of the JDK
    2 snappy  the framing of xerial's SnappyOutputStream, blocks of 32 KiB
    3 lz4     one LZ4 frame: independent blocks of 64 KiB, no checksums, no content size
    4 zstd    one frame

    lz4 frame: 04 22 4d 18, flags 60, block size 40, header checksum 82,
    then blocks: length uint32 little-endian, its highest bit set if the block is stored as it is; content
    then 00 00 00 00

The zstd frame states its content size, which that of the Java client does not: readers that decompress in one
go need it, and the others do not mind.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from storage_core.errors import OptionError

if TYPE_CHECKING:
    from storage_core.record.batch_header import BytesLike

__all__ = [
    "CODEC_NAMES",
    "LEVELS",
    "LZ4",
    "LZ4_FLAG_CONTENT_SIZE",
    "Compressor",
    "Decompressor",
    "OutputFullError",
    "UndecodableError",
    "compressor",
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


Compressor: TypeAlias = Callable[["BytesLike"], "BytesLike"]
# By codec: Kafka's default, smallest and largest level, where there are levels.
LEVELS: Final = {_GZIP: (-1, -1, 9), LZ4: (9, 1, 17), _ZSTD: (3, -131_072, 22)}
_GZIP_HEADER: Final = bytes.fromhex("1f8b08000000000000ff")
_GZIP_TRAILER: Final = struct.Struct("<II")
# The largest window, and nothing before and behind the stream.
_RAW_DEFLATE_WINDOW_BITS: Final = -15
_XERIAL_HEADER: Final = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 << 10
_XERIAL_LENGTH: Final = struct.Struct(">i")
_LZ4_HEADER: Final = bytes.fromhex("04224d18604082")
_LZ4_END: Final = bytes(4)
_LZ4_BLOCK_BYTES: Final = 64 << 10
_LZ4_LENGTH: Final = struct.Struct("<I")
_LZ4_STORED: Final = 1 << 31
# With its default level Kafka asks for the quick compressor, with any other for the thorough one. The library
# knows no level beyond this.
_LZ4_HIGHEST_LEVEL: Final = 12
_INT32_MASK: Final = 0xFFFFFFFF


def compressor(codec: int, level: int | None = None) -> Compressor | None:
    """What compresses the records of one batch after the other; None where nothing is to be done.

    Args:
        codec: The codec's number, 0 to 4.
        level: The level; None for Kafka's default.

    Raises:
        OptionError: There is no such codec, or it has no such level.
    """
    if not _NONE <= codec < len(CODEC_NAMES):
        raise OptionError(
            f"Expected the number of a codec, 0 to {len(CODEC_NAMES) - 1}, found {codec}. "
            f"The codecs are {', '.join(CODEC_NAMES)}."
        )
    level = _checked_level(codec, level)
    if codec == _GZIP:
        return lambda data: _gzip_compress(data, level)
    if codec == _SNAPPY:
        return _xerial(pa.Codec("snappy"))
    if codec == LZ4:
        is_quick = level == LEVELS[LZ4][0]
        return _lz4_frame(pa.Codec("lz4_raw", None if is_quick else min(level, _LZ4_HIGHEST_LEVEL)))
    if codec == _ZSTD:
        zstd = pa.Codec("zstd", level)
        return lambda data: memoryview(zstd.compress(data)).cast("B")
    return None


def _checked_level(codec: int, level: int | None) -> int:
    name = CODEC_NAMES[codec]
    if codec not in LEVELS:
        if level is not None:
            raise OptionError(f"Expected no level, as {name} has none, found {level}. Leave it out.")
        return 0
    default, smallest, largest = LEVELS[codec]
    if level is None:
        return default
    if not smallest <= level <= largest or (codec == _GZIP and level == 0):
        but = " but 0" if codec == _GZIP else ""
        raise OptionError(f"Expected a level for {name} from {smallest} to {largest}{but}, found {level}.")
    return level


def _gzip_compress(data: BytesLike, level: int) -> BytesLike:
    stream = zlib.compressobj(level, zlib.DEFLATED, _RAW_DEFLATE_WINDOW_BITS)
    trailer = _GZIP_TRAILER.pack(zlib.crc32(data), len(data) & _INT32_MASK)
    return b"".join((_GZIP_HEADER, stream.compress(data), stream.flush(), trailer))


def _xerial(codec: pa.Codec) -> Compressor:
    def compress(data: BytesLike) -> BytesLike:
        pieces: list[BytesLike] = [_XERIAL_HEADER]
        for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
            block = codec.compress(data[start : start + _XERIAL_BLOCK_BYTES])
            pieces += (_XERIAL_LENGTH.pack(len(block)), block)
        return b"".join(pieces)

    return compress


def _lz4_frame(codec: pa.Codec) -> Compressor:
    def compress(data: BytesLike) -> BytesLike:
        pieces: list[BytesLike] = [_LZ4_HEADER]
        for start in range(0, len(data), _LZ4_BLOCK_BYTES):
            block = data[start : start + _LZ4_BLOCK_BYTES]
            compressed = codec.compress(block)
            if len(compressed) < len(block):
                pieces += (_LZ4_LENGTH.pack(len(compressed)), compressed)
            else:
                pieces += (_LZ4_LENGTH.pack(len(block) | _LZ4_STORED), block)
        pieces.append(_LZ4_END)
        return b"".join(pieces)

    return compress
