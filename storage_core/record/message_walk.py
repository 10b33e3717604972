"""Walking messages of format v0 and v1 that lie back to back."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from storage_core.record.batch_header import (
    LENGTH_AND_MAGIC,
    LENGTH_POSITION,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
)
from storage_core.record.legacy_message import MESSAGE_SIZE_BYTES, MINIMUM_LENGTHS

__all__ = ["walk_messages"]

_LENGTH: Final = np.dtype(">i4")
_MAGIC: Final = np.dtype("i1")

# A run of equal messages shorter than this does not pay for the numpy calls that find it.
_RUN_MINIMUM: Final = 48
# Runs are looked for among so many messages at first, and among so many times more while they go on.
_RUN_FIRST_TRY: Final = 256
_RUN_GROWTH: Final = 8
# So much is walked plainly before the next look for a run.
_LOOP_CHUNK_BYTES: Final = 1 << 16

_Bytes = npt.NDArray[np.uint8]


def walk_messages(buffer: _Bytes, start: int, end: int, places: list[int]) -> int:
    """Note where whole messages begin, from ``start`` up to the first bytes that are none.

    Args:
        buffer: The bytes.
        start: Where the first message begins.
        end: Where the bytes end.
        places: Where to put what is found.

    Returns:
        Where the last message ends.
    """
    while True:
        walked = _walk_run(buffer, start, end, places)
        if walked == start:
            walked = _walk_chunk(buffer.data, start, min(start + _LOOP_CHUNK_BYTES, end), end, places)
        if walked == start:
            return start
        start = walked


def _walk_run(buffer: _Bytes, start: int, end: int, places: list[int]) -> int:
    """Walk the messages that are all as long as the first, and of its format, if they are many."""
    if start + MESSAGE_SIZE_BYTES > end:
        return start
    length, magic = LENGTH_AND_MAGIC.unpack_from(buffer.data, start + LENGTH_POSITION)
    step = length + LOG_OVERHEAD_BYTES
    if not _is_message(length, magic) or (end - start) // step < _RUN_MINIMUM:
        return start
    # Mostly the next message shows that there is no run.
    if LENGTH_AND_MAGIC.unpack_from(buffer.data, start + step + LENGTH_POSITION) != (length, magic):
        return start
    most = (end - start) // step
    looked_at = min(most, _RUN_FIRST_TRY)
    while True:
        lengths = np.ndarray((looked_at,), _LENGTH, buffer, start + LENGTH_POSITION, (step,))
        magics = np.ndarray((looked_at,), _MAGIC, buffer, start + MAGIC_POSITION, (step,))
        is_equal: npt.NDArray[np.bool_] = (lengths == length) & (magics == magic)
        count = looked_at if is_equal.all() else int(is_equal.argmin())
        if count < looked_at or looked_at == most:
            break
        looked_at = min(most, looked_at * _RUN_GROWTH)
    if count < _RUN_MINIMUM:
        return start
    run_end: int = start + count * step
    places.extend(range(start, run_end, step))
    return run_end


def _walk_chunk(view: memoryview, start: int, chunk_end: int, end: int, places: list[int]) -> int:
    """Walk message by message, up to the first that does not begin in the chunk."""
    unpack = LENGTH_AND_MAGIC.unpack_from
    last = min(chunk_end - 1, end - MESSAGE_SIZE_BYTES)
    while start <= last:
        length, magic = unpack(view, start + LENGTH_POSITION)
        next_start = start + LOG_OVERHEAD_BYTES + length
        # As `_is_message`, spelled out: a call would cost more than the rest.
        if next_start > end or not (0 <= magic <= 1 and length >= MINIMUM_LENGTHS[magic]):
            break
        places.append(start)
        start = next_start
    return start


def _is_message(length: int, magic: int) -> bool:
    return 0 <= magic < len(MINIMUM_LENGTHS) and length >= MINIMUM_LENGTHS[magic]
