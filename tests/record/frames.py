"""Compressed frames put together by hand: LZ4 with every option, zstd frames to be skipped."""

from __future__ import annotations

import struct

import pyarrow as pa

_PRIMES = (2654435761, 2246822519, 3266489917, 668265263, 374761393)
_MASK = 0xFFFFFFFF


def _rotate(value, bits):
    value &= _MASK
    return (value << bits | value >> 32 - bits) & _MASK


def xxh32(data):
    """Return the checksum of LZ4 frames (xxHash, 32 bits, seed 0)."""
    first, second, third, fourth, fifth = _PRIMES
    position = 0
    if len(data) >= 16:
        lanes = [first + second & _MASK, second, 0, -first & _MASK]
        while position + 16 <= len(data):
            words = struct.unpack_from("<4I", data, position)
            mixed = zip(lanes, words, strict=True)
            lanes = [_rotate(lane + word * second, 13) * first & _MASK for lane, word in mixed]
            position += 16
        result = sum(_rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
    else:
        result = fifth
    result += len(data)
    while position + 4 <= len(data):
        result = _rotate(result + struct.unpack_from("<I", data, position)[0] * third, 17) * fourth
        position += 4
    for byte in data[position:]:
        result = _rotate(result + byte * fifth, 11) * first
    result &= _MASK
    result = (result ^ result >> 15) * second & _MASK
    result = (result ^ result >> 13) * third & _MASK
    return result ^ result >> 16


def lz4_frame(
    blocks,
    *,
    block_checksums=False,
    content_size=False,
    content_checksum=False,
    end_mark=True,
    stored=False,
    header_checksum=None,
    block_size_code=4,
):
    """Return a frame of independent blocks of at most 64 KiB (code 4) to 4 MiB (code 7)."""
    content = b"".join(blocks)
    flags = 0x60 | 0x10 * block_checksums | 0x08 * content_size | 0x04 * content_checksum
    descriptor = bytes([flags, block_size_code << 4])
    if content_size:
        descriptor += struct.pack("<Q", len(content))
    checksum = xxh32(descriptor) >> 8 & 0xFF if header_checksum is None else header_checksum
    frame = b"\x04\x22\x4d\x18" + descriptor + bytes([checksum])
    for block in blocks:
        data = block if stored else pa.Codec("lz4_raw").compress(block, asbytes=True)
        frame += struct.pack("<I", len(data) | stored << 31) + data
        if block_checksums:
            frame += struct.pack("<I", xxh32(data))
    if end_mark:
        frame += bytes(4)
        if content_checksum:
            frame += struct.pack("<I", xxh32(content))
    return frame


def zstd_skippable_frame(data):
    return struct.pack("<II", 0x184D2A53, len(data)) + data
