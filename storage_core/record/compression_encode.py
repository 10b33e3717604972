"""Compress the records of a batch as Kafka's Java client frames them (``common.compress``).

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
from storage_core.record.compression import CODEC_NAMES, LZ4

if TYPE_CHECKING:
    from storage_core.record.batch_header import BytesLike

__all__ = ["LEVELS", "Compressor", "compressor"]

Compressor: TypeAlias = Callable[["BytesLike"], "BytesLike"]

_NONE, _GZIP, _SNAPPY, _, _ZSTD = range(len(CODEC_NAMES))

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
        return lambda data: _gzip(data, level)
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


def _gzip(data: BytesLike, level: int) -> BytesLike:
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
