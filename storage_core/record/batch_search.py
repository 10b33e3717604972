"""Finding what looks like a batch of any format, or like a record, anywhere in a block of bytes."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from storage_core.record.batch_header import (
    CODEC_MASK,
    HEADER_DTYPE,
    HEADER_SIZE_BYTES,
    LENGTH_POSITION,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_V2,
    MINIMUM_LENGTHS,
)
from storage_core.record.gather import gather
from storage_core.record.legacy_message import (
    CODEC_COUNT,
    KEY_LENGTH_POSITIONS,
    LENGTH_BYTES,
    LENGTH_DTYPE,
    MESSAGE_DTYPE,
    MESSAGE_SIZE_BYTES,
)
from storage_core.record.varint import VARINT_LIMIT_BYTES

__all__ = ["LARGEST_BATCH_BYTES", "batch_candidates", "record_candidates"]

# What the length field can say at most.
LARGEST_BATCH_BYTES: Final = (1 << 31) - 1 + LOG_OVERHEAD_BYTES

# The attribute bits that Kafka has assigned in format v2; the others are zero. In older formats a broker
# takes any others.
_KNOWN_ATTRIBUTES: Final = 0x7F

# The smallest record: attributes, two deltas, and no key, value or header.
_SMALLEST_RECORD_LENGTH: Final = 6
# Set in every byte of a varint but its last.
_CONTINUES: Final = 0x80

_Bytes = npt.NDArray[np.uint8]
_Int64Array = npt.NDArray[np.int64]


def batch_candidates(
    block: _Bytes, remaining_bytes: int, lowest_offset: int, *, largest_bytes: int = LARGEST_BATCH_BYTES
) -> list[tuple[int, int]]:
    """Places in a block that look like a batch of any format, each with its size, ascending.

    The CRC is not checked. Of the last 60 bytes of a block that is not the file's end none is told: they
    may be the beginning of a header, and have to be looked at again at the beginning of the next block.

    Args:
        block: Some bytes of a file.
        remaining_bytes: How many bytes the file has from the block's first one on.
        lowest_offset: No batch is looked for that begins below it.
        largest_bytes: No batch is looked for that is larger. Among random bytes, a limit rules most out.
    """
    is_end = len(block) >= remaining_bytes
    count = len(block) - (MESSAGE_SIZE_BYTES if is_end else HEADER_SIZE_BYTES) + 1
    if count <= 0:
        return []
    magics = block[MAGIC_POSITION : MAGIC_POSITION + count]
    starts = np.flatnonzero(magics <= MAGIC_V2)
    # Most places are ruled out by their length: zeros above all.
    lengths = gather(block, starts + LENGTH_POSITION, LENGTH_DTYPE).astype(np.int64)
    is_long_enough = lengths >= np.array(MINIMUM_LENGTHS)[magics[starts]]
    sizes = lengths + LOG_OVERHEAD_BYTES
    fits = is_long_enough & (sizes <= np.minimum(remaining_bytes - starts, largest_bytes))
    starts, sizes = starts[fits], sizes[fits]
    if is_end:
        block = np.concatenate([block, np.zeros(HEADER_SIZE_BYTES, np.uint8)])
    is_current = magics[starts] == MAGIC_V2
    plausible = np.zeros(len(starts), np.bool_)
    plausible[is_current] = _are_batches(block, starts[is_current], lowest_offset)
    plausible[~is_current] = _are_messages(block, starts[~is_current], sizes[~is_current], lowest_offset)
    return list(zip(starts[plausible].tolist(), sizes[plausible].tolist(), strict=True))


def _are_batches(block: _Bytes, starts: _Int64Array, lowest_offset: int) -> npt.NDArray[np.bool_]:
    headers = gather(block, starts, HEADER_DTYPE)
    plausible: npt.NDArray[np.bool_] = headers["base_offset"] >= lowest_offset
    plausible &= headers["last_offset_delta"] >= 0
    plausible &= headers["record_count"] >= 0
    plausible &= (headers["attributes"] & ~_KNOWN_ATTRIBUTES) == 0
    return plausible


def _are_messages(
    block: _Bytes, starts: _Int64Array, sizes: _Int64Array, lowest_offset: int
) -> npt.NDArray[np.bool_]:
    """Key and value have to fit the message, as far as they lie in the block."""
    messages = gather(block, starts, MESSAGE_DTYPE)
    plausible: npt.NDArray[np.bool_] = messages["offset"] >= lowest_offset
    plausible &= (messages["attributes"] & CODEC_MASK) < CODEC_COUNT
    key_positions = np.array(KEY_LENGTH_POSITIONS)[messages["magic"]]
    ends = starts + sizes
    key_ends, fits = _field_ends(block, starts + key_positions, ends - LENGTH_BYTES)
    plausible &= fits
    _, fits = _field_ends(block, key_ends, ends)
    return plausible & fits


def _field_ends(
    block: _Bytes, positions: _Int64Array, limits: _Int64Array
) -> tuple[_Int64Array, npt.NDArray[np.bool_]]:
    """Where the fields end whose lengths stand at some positions, and whether that is within the limits.

    A length behind the block's end fits.
    """
    last = len(block) - LENGTH_BYTES
    lengths = gather(block, np.minimum(positions, last), LENGTH_DTYPE).astype(np.int64)
    ends = positions + LENGTH_BYTES + np.maximum(lengths, 0)
    fits: npt.NDArray[np.bool_] = (positions > last) | ((lengths >= -1) & (ends <= limits))
    return ends, fits


def record_candidates(block: _Bytes) -> tuple[_Int64Array, _Int64Array]:
    """Where records of format v2 may begin in a block, and where they would end, in no order.

    All that is looked at is their length, which attributes of zero follow.
    """
    attributes = np.flatnonzero(block == 0)
    starts, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    bodies = attributes[attributes > 0]
    # The last byte of a length does not say that more follow; those before it do.
    bodies = bodies[block[bodies - 1] < _CONTINUES]
    raw = np.zeros(len(bodies), np.int64)
    for width in range(1, VARINT_LIMIT_BYTES + 1):
        raw = raw << 7 | (block[bodies - width] & (_CONTINUES - 1))
        # An even number is not negative.
        is_length = (raw & 1 == 0) & (raw >> 1 >= _SMALLEST_RECORD_LENGTH)
        starts.append(bodies[is_length] - width)
        ends.append(bodies[is_length] + (raw[is_length] >> 1))
        goes_on = (bodies > width) & (block[bodies - width - 1] >= _CONTINUES)
        bodies, raw = bodies[goes_on], raw[goes_on]
    return np.concatenate(starts), np.concatenate(ends)
