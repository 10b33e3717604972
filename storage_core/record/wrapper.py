"""The compressed set of messages in a wrapper, a message of format v0 or v1 that holds others."""

from __future__ import annotations

import struct
from typing import Final

from storage_core.record.compression import LZ4, LZ4_FLAG_CONTENT_SIZE, UndecodableError
from storage_core.record.legacy_message import CODEC_COUNT, KEY_LENGTH_POSITIONS, LENGTH_BYTES

__all__ = ["wrapper_payload"]

_LENGTH: Final = struct.Struct(">i")

# In an LZ4 frame, behind its magic: flags and block size; the content size, if the flags say so; a byte that
# is a checksum of all these. Kafka knows no dictionaries.
_LZ4_DESCRIPTOR_START: Final = 4
_LZ4_DESCRIPTOR_BYTES: Final = 2

_XXH32_PRIMES: Final = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)
_UINT32: Final = struct.Struct("<I")
_MASK: Final = (1 << 32) - 1


def wrapper_payload(message: memoryview, magic: int, codec: int) -> memoryview:
    """The value of a wrapper, as its codec takes it.

    Args:
        message: The whole wrapper, as long as its format requires at least.
        magic: 0 or 1.
        codec: The codec's number, not 0.

    Raises:
        UndecodableError: The wrapper has no value, or one that does not fit, or a codec that came later.
    """
    if codec >= CODEC_COUNT:
        problem = f"messages of format v{magic} cannot be"
        raise UndecodableError(problem)
    position = KEY_LENGTH_POSITIONS[magic]
    (key_length,) = _LENGTH.unpack_from(message, position)
    position += LENGTH_BYTES + max(key_length, 0)
    if position + LENGTH_BYTES > len(message):
        problem = f"the wrapper's key of {key_length} bytes does not fit it"
        raise UndecodableError(problem)
    (value_length,) = _LENGTH.unpack_from(message, position)
    position += LENGTH_BYTES
    if not 0 <= value_length <= len(message) - position:
        problem = (
            "the wrapper's value is null"
            if value_length < 0
            else f"the wrapper's value of {value_length} bytes does not fit it"
        )
        raise UndecodableError(problem)
    payload = message[position : position + value_length]
    return _with_right_lz4_checksum(payload) if codec == LZ4 and magic == 0 else payload


def _with_right_lz4_checksum(payload: memoryview) -> memoryview:
    """A copy of an LZ4 frame with the descriptor's checksum put right.

    Early clients computed it over the magic too, and all clients since ignore it in format v0.
    """
    frame = bytearray(payload)
    start = _LZ4_DESCRIPTOR_START
    if len(frame) > start:
        flags = frame[start]
        end = start + _LZ4_DESCRIPTOR_BYTES
        end += 8 * bool(flags & LZ4_FLAG_CONTENT_SIZE)
        if len(frame) > end:
            frame[end] = _xxh32_of_few_bytes(frame[start:end]) >> 8 & 0xFF
    return memoryview(frame)


def _xxh32_of_few_bytes(data: bytes | bytearray) -> int:
    """XXH32 with seed 0 of less than 16 bytes."""
    first, second, third, fourth, fifth = _XXH32_PRIMES
    value = fifth + len(data)
    words_end = len(data) // _UINT32.size * _UINT32.size
    for (word,) in _UINT32.iter_unpack(data[:words_end]):
        value = _rotated(value + word * third, 17) * fourth
    for byte in data[words_end:]:
        value = _rotated(value + byte * fifth, 11) * first
    value &= _MASK
    value = (value ^ value >> 15) * second & _MASK
    value = (value ^ value >> 13) * third & _MASK
    return value ^ value >> 16


def _rotated(value: int, bits: int) -> int:
    value &= _MASK
    return value << bits | value >> 32 - bits
