"""The hash of a key by which Kafka's Java client chooses a partition (``Utils.murmur2``).

    h = seed ^ length
    per four bytes     k = them, little-endian; k *= m; k ^= k >>> 24; k *= m;  h = h * m ^ k
    last 1 to 3 bytes  h = (h ^ them, little-endian) * m
    at the end         h ^= h >>> 13; h *= m; h ^= h >>> 15

All numbers are unsigned 32-bit; the result is read as signed. A column is hashed block by block: the first four bytes of
many keys, then the next four, and so on. An empty key is hashed like any other.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.errors import InvalidRecordError

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000
_BLOCK_BYTES: Final = 4
# numpy combines unsigned arrays with unsigned numbers only.
_U32: Final = {number: np.uint32(number) for number in (8, 13, 15, 16, 24, _SEED, _MULTIPLIER)}
# By the number of bytes after the last block: their mask in four bytes, and their multiplier.
_REST_MASKS: Final = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)
_REST_MULTIPLIERS: Final = np.array([1, _MULTIPLIER, _MULTIPLIER, _MULTIPLIER], np.uint32)
# Rows hashed together, so that intermediate results stay in the processor's cache.
_ROWS_AT_ONCE: Final = 1 << 14
# With fewer keys that have blocks left, a numpy step costs more than the plain loop.
_MIN_LANES: Final = 24
# From this length, numpy prepares the blocks of a single key.
_LONG_KEY_BYTES: Final = 256
_OFFSET_TYPES: Final = {
    pa.binary(): np.int32,
    pa.string(): np.int32,
    pa.large_binary(): np.int64,
    pa.large_string(): np.int64,
}
_Hashes = npt.NDArray[np.uint32]
_Bytes = npt.NDArray[np.uint8]
_Int64Array = npt.NDArray[np.int64]


def to_positive(number: int) -> int:
    """Drop the sign bit, as Kafka's ``Utils.toPositive`` does; this is not the absolute value."""
    return number & 0x7FFFFFFF


def murmur2(data: bytes | memoryview) -> int:
    """Hash one key; a signed 32-bit number, as in Java."""
    block_count = len(data) // _BLOCK_BYTES
    state = _mix_blocks(_SEED ^ (len(data) & _MASK), data, block_count)
    rest = int.from_bytes(data[block_count * _BLOCK_BYTES :], "little")
    if len(data) % _BLOCK_BYTES:
        state = ((state ^ rest) * _MULTIPLIER) & _MASK
    state ^= state >> 13
    state = (state * _MULTIPLIER) & _MASK
    state ^= state >> 15
    return (state ^ _SIGN) - _SIGN


def murmur2_column(keys: pa.Array) -> npt.NDArray[np.int32]:
    """Hash each key of a column.

    Args:
        keys: A binary, large_binary, string or large_string array. The hash of a null is undefined.

    Raises:
        InvalidRecordError: The column has another type.
    """
    offset_type = _OFFSET_TYPES.get(keys.type)
    if offset_type is None:
        raise InvalidRecordError(
            f"Keys that are hashed must be binary, large_binary, string or large_string; found {keys.type}. "
            "Cast the column `key` to binary."
        )
    if not len(keys):
        return np.zeros(0, np.int32)
    _, offset_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offset_buffer, offset_type)[keys.offset : keys.offset + len(keys) + 1]
    data = np.zeros(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    if len(data) < _BLOCK_BYTES:
        # Four bytes are read at any position.
        data = np.concatenate([data, np.zeros(_BLOCK_BYTES, np.uint8)])
    hashes = np.empty(len(keys), np.uint32)
    length = int(offsets[1]) - int(offsets[0])
    if (
        len(keys) >= _MIN_LANES
        and length >= _BLOCK_BYTES
        and bool(np.all(offsets[1:] - offsets[:-1] == length))
    ):
        for first in range(0, len(keys), _ROWS_AT_ONCE):
            part = hashes[first : first + _ROWS_AT_ONCE]
            part[:] = _hash_equally_long(data, int(offsets[first]), length, len(part))
        return hashes.view(np.int32)
    for first in range(0, len(keys), _ROWS_AT_ONCE):
        some = offsets[first : first + _ROWS_AT_ONCE + 1].astype(np.int64)
        hashes[first : first + _ROWS_AT_ONCE] = _hash_rows(data, some[:-1], np.diff(some))
    return hashes.view(np.int32)


def _hash_equally_long(data: _Bytes, start: int, length: int, count: int) -> _Hashes:
    """Hash consecutive keys of one length, whose blocks are at equal distances."""
    hashes = np.full(count, _SEED ^ length, np.uint32)
    rest_bytes = length % _BLOCK_BYTES
    for block in range(0, length - rest_bytes, _BLOCK_BYTES):
        _mix_block(hashes, np.ndarray((count,), "<u4", data, start + block, (length,)).astype(np.uint32))
    if rest_bytes:
        last = np.ndarray((count,), "<u4", data, start + length - _BLOCK_BYTES, (length,))
        hashes ^= last >> _U32[8 * (_BLOCK_BYTES - rest_bytes)]
        hashes *= _U32[_MULTIPLIER]
    return _finish(hashes)


def _hash_rows(data: _Bytes, starts: _Int64Array, lengths: _Int64Array) -> _Hashes:
    """Hash the keys at some positions of a buffer."""
    block_counts = lengths // _BLOCK_BYTES
    most = int(block_counts.max())
    if most == int(block_counts.min()):
        return _hash_in_order(data, starts, lengths, block_counts)
    # The keys with most blocks first, so that those with blocks left are always a prefix.
    order = np.argsort((most - block_counts).astype(np.min_scalar_type(most)), kind="stable")
    hashes = np.empty(len(starts), np.uint32)
    hashes[order] = _hash_in_order(data, starts[order], lengths[order], block_counts[order])
    return hashes


def _hash_in_order(
    data: _Bytes, starts: _Int64Array, lengths: _Int64Array, block_counts: _Int64Array
) -> _Hashes:
    """Hash keys in descending order of their number of blocks."""
    # The four bytes at every position of the buffer, as an (unaligned) view.
    words: _Hashes = np.ndarray((len(data) - _BLOCK_BYTES + 1,), "<u4", data, 0, (1,))
    hashes = lengths.astype(np.uint32)
    hashes ^= _U32[_SEED]
    lane_blocks = int(block_counts[_MIN_LANES - 1]) if len(starts) >= _MIN_LANES else 0
    # The number of keys with more than 0, 1, 2 ... blocks.
    actives = len(starts) - np.cumsum(np.bincount(np.minimum(block_counts, lane_blocks)))
    positions = starts
    for active in actives[:lane_blocks].tolist():
        positions = positions[:active]
        _mix_block(hashes[:active], words[positions])
        positions = positions + _BLOCK_BYTES
    for row in range(int(np.count_nonzero(block_counts > lane_blocks))):
        left = int(block_counts[row]) - lane_blocks
        first = int(starts[row]) + lane_blocks * _BLOCK_BYTES
        hashes[row] = _mix_blocks(int(hashes[row]), data[first : first + left * _BLOCK_BYTES].data, left)
    _mix_rest(hashes, words, starts, lengths)
    return _finish(hashes)


def _finish(hashes: _Hashes) -> _Hashes:
    hashes ^= hashes >> _U32[13]
    hashes *= _U32[_MULTIPLIER]
    hashes ^= hashes >> _U32[15]
    return hashes


def _mix_block(hashes: _Hashes, blocks: _Hashes) -> None:
    """Mix the next four bytes of each key into its hash."""
    blocks *= _U32[_MULTIPLIER]
    blocks ^= blocks >> _U32[24]
    blocks *= _U32[_MULTIPLIER]
    hashes *= _U32[_MULTIPLIER]
    hashes ^= blocks


def _mix_rest(hashes: _Hashes, words: _Hashes, starts: _Int64Array, lengths: _Int64Array) -> None:
    """Mix the last one to three bytes of each key, if any, into its hash."""
    rests = lengths & (_BLOCK_BYTES - 1)
    ends = starts + lengths
    # At the end of the buffer, read four bytes that begin earlier.
    positions = np.minimum(ends - rests, len(words) - 1)
    rest = words[positions] >> ((ends - rests - positions) << 3).astype(np.uint32)
    hashes ^= rest & _REST_MASKS[rests]
    hashes *= _REST_MULTIPLIERS[rests]


def _mix_blocks(state: int, data: bytes | memoryview, block_count: int) -> int:
    """Mix the first blocks of one key into its hash, one by one."""
    if block_count * _BLOCK_BYTES >= _LONG_KEY_BYTES:
        blocks = np.frombuffer(data, "<u4", block_count).astype(np.uint32)
        blocks *= _U32[_MULTIPLIER]
        blocks ^= blocks >> _U32[24]
        blocks *= _U32[_MULTIPLIER]
        for block in blocks.tolist():
            state = ((state * _MULTIPLIER) & _MASK) ^ block
        return state
    for position in range(0, block_count * _BLOCK_BYTES, _BLOCK_BYTES):
        block = (int.from_bytes(data[position : position + _BLOCK_BYTES], "little") * _MULTIPLIER) & _MASK
        block = ((block ^ (block >> 24)) * _MULTIPLIER) & _MASK
        state = ((state * _MULTIPLIER) & _MASK) ^ block
    return state
