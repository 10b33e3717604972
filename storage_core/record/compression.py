"""Compress and decompress the records of a batch, as Kafka's ``common.compress`` does (KIP-110 for zstd).

    1 gzip    RFC 1952. Several members may follow one another; bytes after the last are ignored. Written as one
              member, whose header has no time, no level and an unknown system, as the JDK's
    2 snappy  the framing of xerial's SnappyOutputStream, or one raw snappy block. Written framed, in blocks of 32 KiB
    3 lz4     one LZ4 frame; bytes after it are ignored. Written with independent blocks of 64 KiB, without checksums
              and content size
    4 zstd    one or more frames, mostly without a content size. Written as one frame with its content size, which
              the Java client omits: readers that decompress in one call need it

    xerial     82 "SNAPPY" 00, version int32, minimum compatible version int32,
               then chunks until the end: length int32, raw snappy block
    lz4 frame  04 22 4d 18, flags, block size, content size uint64 if flagged, header checksum,
               then blocks: length uint32 little-endian, its highest bit set if the block is stored; content
               then 00 00 00 00

Output goes to a buffer of the caller, so nothing inflates beyond what the caller allows.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import pyarrow as pa

from storage_core.errors import OptionError
from storage_core.record.batch_header import (
    CODEC_NAMES,
    KEY_LENGTH_POSITIONS,
    LEGACY_CODEC_COUNT,
    LENGTH_BYTES,
)

if TYPE_CHECKING:
    from storage_core.record.batch_header import BytesLike

_NONE, _GZIP, _SNAPPY, _LZ4, _ZSTD = range(5)
# Arrow reads a payload up to this size in one go.
_REUSED_STREAM_LIMIT_BYTES: Final = 1 << 16
# The magic and the only compression method.
_GZIP_MAGIC: Final = b"\x1f\x8b\x08"
_GZIP_SMALLEST_MEMBER_BYTES: Final = 18
_GZIP_FLAGS_POSITION: Final = 3
# The others are reserved.
_GZIP_FLAGS: Final = 0x1F
# Further members are fed in pieces, at first of this size: zlib copies all input beyond the end of a member.
_GZIP_FIRST_PIECE_BYTES: Final = 1 << 12
# zlib's flag for a gzip header, plus its largest window.
_GZIP_WINDOW_BITS: Final = 31
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_VARINT_CONTINUES: Final = 0x80
_INT32: Final = struct.Struct(">i")
_UINT32_LITTLE_ENDIAN: Final = struct.Struct("<I")
_SNAPPY_CODEC: Final = pa.Codec("snappy")
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_STORED: Final = 1 << 31
_LZ4_FLAG_DICTIONARY: Final = 0x01
_LZ4_FLAG_CONTENT_CHECKSUM: Final = 0x04
_LZ4_FLAG_CONTENT_SIZE: Final = 0x08
_LZ4_FLAG_BLOCK_CHECKSUM: Final = 0x10
_LZ4_FLAG_INDEPENDENT_BLOCKS: Final = 0x20


class OutputFullError(Exception):
    """The output is larger than the output buffer."""


class UndecodableError(Exception):
    """The compressed bytes are not what the codec expects."""


class Decompressor:
    """Decompresses batches, and keeps what is costly to set up from one batch to the next."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}

    def decompress_into(self, codec: int, payload: memoryview, output: memoryview) -> int:
        """Decompress the records of a batch into ``output``, and return their size in bytes. Codec 0 copies.

        The buffer is one byte longer than the largest expected output.

        Raises:
            OutputFullError: The output fills the whole buffer.
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
        if codec == _LZ4:
            return self._by_stream("lz4", _lz4_first_frame(payload), output)
        if codec == _SNAPPY:
            return _snappy(payload, output)
        if codec == _GZIP:
            return _gzip(payload, output)
        raise UndecodableError(f"codec number {codec} is unknown")

    def _by_stream(self, codec_name: str, payload: memoryview, output: memoryview) -> int:
        if len(payload) > _REUSED_STREAM_LIMIT_BYTES:
            stream = pa.CompressedInputStream(pa.BufferReader(payload), codec_name)
            return int(stream.readinto(output))
        # A stream that fails, or has more output, is not reused.
        kept = self._streams.pop(codec_name, None) or _Stream(codec_name)
        size_bytes = kept.read_into(payload, output)
        if size_bytes < len(output):
            self._streams[codec_name] = kept
        return size_bytes


class _Stream:
    """An Arrow stream that is reused for many payloads: creating one costs more than a small batch."""

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
    # Usually the payload is a single member.
    piece_bytes = len(payload)
    while True:
        member = zlib.decompressobj(_GZIP_WINDOW_BITS)
        while not member.eof:
            piece = payload[position : position + piece_bytes]
            if not piece:
                raise UndecodableError("the gzip stream is cut off")
            data = member.decompress(piece, len(output) - size_bytes)
            output[size_bytes : size_bytes + len(data)] = data
            size_bytes += len(data)
            if size_bytes == len(output):
                return size_bytes
            position += len(piece) - len(member.unused_data)
            piece_bytes *= 2
        piece_bytes = _GZIP_FIRST_PIECE_BYTES
        # As in the JDK, bytes that do not look like another member are ignored.
        is_member = bytes(payload[position : position + len(_GZIP_MAGIC)]) == _GZIP_MAGIC
        if not is_member or len(payload) - position < _GZIP_SMALLEST_MEMBER_BYTES:
            return size_bytes


def _snappy(payload: memoryview, output: memoryview) -> int:
    if not payload:
        raise UndecodableError("the snappy stream is empty")
    if len(payload) < len(_XERIAL_HEADER) or bytes(payload[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _snappy_block(payload, output)
    size_bytes = 0
    position = len(_XERIAL_HEADER)
    while position + _INT32.size <= len(payload):
        if bytes(payload[position : position + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            # Another stream follows the first.
            position += len(_XERIAL_HEADER)
            continue
        (chunk_bytes,) = _INT32.unpack_from(payload, position)
        position += _INT32.size
        if not 0 <= chunk_bytes <= len(payload) - position:
            raise UndecodableError(f"a snappy chunk of {chunk_bytes} bytes does not fit the stream")
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
    raise UndecodableError("a snappy block has no length")


def _lz4_first_frame(payload: memoryview) -> memoryview:
    """Return the first frame without the checksum of its content. Kafka ignores both that and what follows."""
    end = _lz4_end_mark(payload) + _UINT32_LITTLE_ENDIAN.size
    if not payload[_LZ4_DESCRIPTOR_START] & _LZ4_FLAG_CONTENT_CHECKSUM:
        return payload[:end]
    if len(payload) < end + _UINT32_LITTLE_ENDIAN.size:
        raise UndecodableError("the LZ4 frame is cut off")
    frame = memoryview(bytearray(payload[:end]))
    _ignore_lz4_content_checksum(frame)
    return frame


def _lz4_end_mark(payload: memoryview) -> int:
    """Return the position of the mark that ends the blocks of the first frame.

    A mark with the flag of a stored block counts as well, as in Kafka.
    """
    if len(payload) < len(_LZ4_MAGIC) + 3 or bytes(payload[: len(_LZ4_MAGIC)]) != _LZ4_MAGIC:
        raise UndecodableError("the LZ4 frame magic is missing")
    flags = payload[4]
    position = 7
    position += 8 * bool(flags & _LZ4_FLAG_CONTENT_SIZE) + 4 * bool(flags & _LZ4_FLAG_DICTIONARY)
    block_trailer_bytes = 4 * bool(flags & _LZ4_FLAG_BLOCK_CHECKSUM)
    while position + _UINT32_LITTLE_ENDIAN.size <= len(payload):
        (block_size,) = _UINT32_LITTLE_ENDIAN.unpack_from(payload, position)
        if not block_size & ~_LZ4_STORED:
            return position
        position += _UINT32_LITTLE_ENDIAN.size
        position += (block_size & ~_LZ4_STORED) + block_trailer_bytes
    raise UndecodableError("the LZ4 frame is cut off")


Compressor: TypeAlias = Callable[["BytesLike"], "BytesLike"]


class Levels(NamedTuple):
    """The compression levels of a codec, as Kafka's ``CompressionType`` has them."""

    default: int
    minimum: int
    maximum: int


# By the number of each codec that has levels.
LEVELS: Final = {_GZIP: Levels(-1, -1, 9), _LZ4: Levels(9, 1, 17), _ZSTD: Levels(3, -131_072, 22)}
_GZIP_HEADER: Final = bytes.fromhex("1f8b08000000000000ff")
_GZIP_TRAILER: Final = struct.Struct("<II")
# The largest window, without a header and a trailer.
_RAW_DEFLATE_WINDOW_BITS: Final = -15
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 << 10
_LZ4_HEADER: Final = bytes.fromhex("04224d18604082")
_LZ4_END: Final = bytes(4)
_LZ4_BLOCK_BYTES: Final = 64 << 10
# At its default level Kafka uses the fast compressor, at any other the high one, whose levels end here.
_LZ4_HIGHEST_LEVEL: Final = 12
_UINT32_MASK: Final = 0xFFFFFFFF


def compressor(codec: int, level: int | None = None) -> Compressor | None:
    """Return a function that compresses the records of a batch at a level, Kafka's default if None.

    Returns:
        None for no compression.

    Raises:
        OptionError: The codec does not exist, or does not have this level.
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
    if codec == _LZ4:
        is_fast = level == LEVELS[_LZ4].default
        return _lz4_frame(pa.Codec("lz4_raw", None if is_fast else min(level, _LZ4_HIGHEST_LEVEL)))
    if codec == _ZSTD:
        zstd = pa.Codec("zstd", level)
        return lambda data: memoryview(zstd.compress(data)).cast("B")
    return None


def _checked_level(codec: int, level: int | None) -> int:
    name = CODEC_NAMES[codec]
    if codec not in LEVELS:
        if level is not None:
            raise OptionError(f"Expected no level, as {name} has none, found {level}. Omit it.")
        return 0
    levels = LEVELS[codec]
    if level is None:
        return levels.default
    if not levels.minimum <= level <= levels.maximum or (codec == _GZIP and level == 0):
        but = " but 0" if codec == _GZIP else ""
        raise OptionError(
            f"Expected a level for {name} from {levels.minimum} to {levels.maximum}{but}, found {level}."
        )
    return level


def _gzip_compress(data: BytesLike, level: int) -> BytesLike:
    stream = zlib.compressobj(level, zlib.DEFLATED, _RAW_DEFLATE_WINDOW_BITS)
    trailer = _GZIP_TRAILER.pack(zlib.crc32(data), len(data) & _UINT32_MASK)
    return b"".join((_GZIP_HEADER, stream.compress(data), stream.flush(), trailer))


def _xerial(codec: pa.Codec) -> Compressor:
    def compress(data: BytesLike) -> BytesLike:
        pieces: list[BytesLike] = [_XERIAL_HEADER]
        for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
            block = codec.compress(data[start : start + _XERIAL_BLOCK_BYTES])
            pieces += (_INT32.pack(len(block)), block)
        return b"".join(pieces)

    return compress


def _lz4_frame(codec: pa.Codec) -> Compressor:
    def compress(data: BytesLike) -> BytesLike:
        pieces: list[BytesLike] = [_LZ4_HEADER]
        for start in range(0, len(data), _LZ4_BLOCK_BYTES):
            block = data[start : start + _LZ4_BLOCK_BYTES]
            compressed = codec.compress(block)
            if len(compressed) < len(block):
                pieces += (_UINT32_LITTLE_ENDIAN.pack(len(compressed)), compressed)
            else:
                pieces += (_UINT32_LITTLE_ENDIAN.pack(len(block) | _LZ4_STORED), block)
        pieces.append(_LZ4_END)
        return b"".join(pieces)

    return compress


# The descriptor of an LZ4 frame follows the magic: flags, block size, and a content size if flagged; then comes its
# checksum, of one byte. Kafka uses no dictionaries.
_LZ4_DESCRIPTOR_START: Final = 4
_LZ4_DESCRIPTOR_BYTES: Final = 2
_XXH32_PRIMES: Final = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)


def wrapper_payload(message: memoryview, magic: int, codec: int) -> memoryview:
    """Return the compressed message set in a wrapper, a message of format v0 or v1 that holds others.

    The wrapper is at least as long as its format requires.

    Raises:
        UndecodableError: The wrapper has no value, or a value that does not fit, or a codec newer than its format.
    """
    if codec >= LEGACY_CODEC_COUNT:
        raise UndecodableError(f"messages of format v{magic} cannot be")
    position = KEY_LENGTH_POSITIONS[magic]
    (key_length,) = _INT32.unpack_from(message, position)
    position += LENGTH_BYTES + max(key_length, 0)
    if position + LENGTH_BYTES > len(message):
        raise UndecodableError(f"the wrapper's key of {key_length} bytes does not fit it")
    (value_length,) = _INT32.unpack_from(message, position)
    position += LENGTH_BYTES
    if not 0 <= value_length <= len(message) - position:
        raise UndecodableError(
            "the wrapper's value is null"
            if value_length < 0
            else f"the wrapper's value of {value_length} bytes does not fit it"
        )
    payload = message[position : position + value_length]
    return _with_right_lz4_checksum(payload) if codec == _LZ4 and magic == 0 else payload


def _with_right_lz4_checksum(payload: memoryview) -> memoryview:
    """Return a copy of an LZ4 frame with the right checksum of its descriptor.

    Early clients included the magic in it (KAFKA-3160), and all later ones ignore it in format v0.
    """
    frame = bytearray(payload)
    start = _LZ4_DESCRIPTOR_START
    if len(frame) > start:
        flags = frame[start]
        end = start + _LZ4_DESCRIPTOR_BYTES
        end += 8 * bool(flags & _LZ4_FLAG_CONTENT_SIZE)
        if len(frame) > end:
            frame[end] = _lz4_descriptor_checksum(frame[start:end])
    return memoryview(frame)


def as_lenient_as_kafka(codec: int, payload: memoryview) -> None:
    """Change damaged compressed records in place, so that this decompressor accepts what Kafka accepts, and no more.

    Of an LZ4 frame, Kafka never compares the checksum of its content, reads independent blocks alone, and ends also at a
    stored block without content. Java ignores the reserved flags of gzip.

    Raises:
        UndecodableError: Kafka does not read it.
    """
    if codec == _GZIP and len(payload) > _GZIP_FLAGS_POSITION:
        payload[_GZIP_FLAGS_POSITION] &= _GZIP_FLAGS
    elif codec == _LZ4 and len(payload) > _LZ4_DESCRIPTOR_START:
        if not payload[_LZ4_DESCRIPTOR_START] & _LZ4_FLAG_INDEPENDENT_BLOCKS:
            raise UndecodableError("the blocks of the LZ4 frame depend on each other")
        position = _lz4_end_mark(payload)
        _UINT32_LITTLE_ENDIAN.pack_into(payload, position, 0)
        _ignore_lz4_content_checksum(payload)


def _ignore_lz4_content_checksum(frame: memoryview) -> None:
    start = _LZ4_DESCRIPTOR_START
    end = start + _LZ4_DESCRIPTOR_BYTES + 8 * bool(frame[start] & _LZ4_FLAG_CONTENT_SIZE)
    # Kafka does compare the checksum of the descriptor: if it is wrong, it must stay so.
    if len(frame) > end and frame[end] == _lz4_descriptor_checksum(frame[start:end]):
        frame[start] &= ~_LZ4_FLAG_CONTENT_CHECKSUM & 0xFF
        frame[end] = _lz4_descriptor_checksum(frame[start:end])


def _lz4_descriptor_checksum(descriptor: memoryview | bytearray) -> int:
    return _xxh32_of_few_bytes(bytes(descriptor)) >> 8 & 0xFF


def _xxh32_of_few_bytes(data: bytes | bytearray) -> int:
    """Return XXH32 with seed 0 of less than 16 bytes."""
    first, second, third, fourth, fifth = _XXH32_PRIMES
    value = fifth + len(data)
    words_end = len(data) // _UINT32_LITTLE_ENDIAN.size * _UINT32_LITTLE_ENDIAN.size
    for (word,) in _UINT32_LITTLE_ENDIAN.iter_unpack(data[:words_end]):
        value = _rotated(value + word * third, 17) * fourth
    for byte in data[words_end:]:
        value = _rotated(value + byte * fifth, 11) * first
    value &= _UINT32_MASK
    value = (value ^ value >> 15) * second & _UINT32_MASK
    value = (value ^ value >> 13) * third & _UINT32_MASK
    return value ^ value >> 16


def _rotated(value: int, bits: int) -> int:
    value &= _UINT32_MASK
    return value << bits | value >> 32 - bits
