"""Compressed payloads that inflate to many times their size, in the ways that each codec allows."""

from __future__ import annotations

import gzip
import struct
import zlib
from functools import cache

import pyarrow as pa

from tests.record.encoding import XERIAL_HEADER
from tests.record.frames import lz4_frame, xxh32, zstd_skippable_frame

INFLATED_BYTES = 1 << 30
"""What each bomb inflates to, or claims to inflate to."""

_MEBIBYTE = bytes(1 << 20)


@cache
def _gzip_stream() -> bytes:
    """Return one member. After a full flush nothing refers back, so the same block can be repeated."""
    packer = zlib.compressobj(9, wbits=31)
    head = packer.compress(_MEBIBYTE) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(_MEBIBYTE) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + block * ((INFLATED_BYTES >> 20) - 1) + packer.flush()


@cache
def _gzip_members() -> bytes:
    """Return a member for every mebibyte."""
    return gzip.compress(_MEBIBYTE, 9, mtime=0) * (INFLATED_BYTES >> 20)


@cache
def _gzip_empty_members() -> bytes:
    """Empty members, so that the output never fills."""
    return gzip.compress(b"", mtime=0) * 20_000


def _snappy_block(size: int) -> bytes:
    return pa.Codec("snappy").compress(bytes(size), asbytes=True)


@cache
def _snappy_raw() -> bytes:
    """Return one block of 96 MiB: snappy compresses to a twentieth at best."""
    return _snappy_block(96 << 20)


@cache
def _snappy_xerial() -> bytes:
    """Blocks of 32 KiB, as Java writes them."""
    block = _snappy_block(32 << 10)
    return XERIAL_HEADER + (struct.pack(">i", len(block)) + block) * 8192


def _snappy_lying() -> bytes:
    """Return a block that claims 4 GiB and holds five bytes."""
    return b"\xff\xff\xff\xff\x0f" + b"\x10abcde"


def _snappy_empty_blocks() -> bytes:
    return XERIAL_HEADER + (struct.pack(">i", 1) + b"\0") * 30_000


@cache
def _lz4() -> bytes:
    """Blocks of 4 MiB."""
    frame = lz4_frame([bytes(4 << 20)], block_size_code=7)
    block = frame[7:-4]
    return frame[:7] + block * (INFLATED_BYTES >> 22) + bytes(4)


def _lz4_lying() -> bytes:
    """Return a content size unrelated to the content."""
    frame = bytearray(lz4_frame([b"records"], content_size=True))
    frame[6:14] = struct.pack("<Q", 2**62)
    frame[14] = xxh32(bytes(frame[4:14])) >> 8 & 0xFF
    return bytes(frame)


@cache
def _lz4_stored_blocks() -> bytes:
    return lz4_frame([b"x"] * 50_000, stored=True)


def _zstd_blocks(count: int, window: int = 0x58) -> bytes:
    """Return a frame of blocks that repeat one byte 128 KiB times, in four bytes each."""
    block = (128 << 10) << 3 | 1 << 1
    pieces = [struct.pack("<I", block)[:3] + b"\0"] * count
    last = struct.pack("<I", 1)[:3]
    return b"\x28\xb5\x2f\xfd\x00" + bytes([window]) + b"".join(pieces) + last


def _zstd() -> bytes:
    return _zstd_blocks(INFLATED_BYTES >> 17)


def _zstd_frames() -> bytes:
    """Return a frame for every mebibyte, with frames to be skipped between them."""
    return (_zstd_blocks(8) + zstd_skippable_frame(b"skip")) * (INFLATED_BYTES >> 20)


def _zstd_lying() -> bytes:
    """Return a content size of 2^62 bytes in a frame of a single segment, which is then its window too."""
    return b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**62) + struct.pack("<I", 1 | 5 << 3)[:3] + b"abcde"


def _zstd_huge_window() -> bytes:
    """Return a window of 2 GiB, for content of 128 KiB."""
    return _zstd_blocks(1, window=0xA8)


def _zstd_large_window() -> bytes:
    """Return the largest window that the library accepts by default, 128 MiB, for content of 128 KiB."""
    return _zstd_blocks(1, window=0x88)


def _zstd_skippable_frames() -> bytes:
    return zstd_skippable_frame(b"") * 100_000


# Name, codec number, payload.
BOMBS = {
    "gzip, one member": (1, _gzip_stream),
    "gzip, many members": (1, _gzip_members),
    "gzip, empty members": (1, _gzip_empty_members),
    "snappy, one block": (2, _snappy_raw),
    "snappy, xerial blocks": (2, _snappy_xerial),
    "snappy, lying length": (2, _snappy_lying),
    "snappy, empty blocks": (2, _snappy_empty_blocks),
    "lz4, large blocks": (3, _lz4),
    "lz4, lying content size": (3, _lz4_lying),
    "lz4, stored blocks of a byte": (3, _lz4_stored_blocks),
    "zstd, one frame": (4, _zstd),
    "zstd, many frames": (4, _zstd_frames),
    "zstd, lying content size": (4, _zstd_lying),
    "zstd, huge window": (4, _zstd_huge_window),
    "zstd, large window": (4, _zstd_large_window),
    "zstd, frames to skip": (4, _zstd_skippable_frames),
}
