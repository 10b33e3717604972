"""Checksums of many byte strings in one buffer.

Walking messages of format v0 and v1 that lie back to back.

A window of a segment file: its whole batches of any format, their headers as columns.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from storage_core.record.arrow_columns import binary_array
from storage_core.record.batch_header import (
    CRC_LAYOUTS,
    HEADER_DTYPE,
    HEADER_SIZE_BYTES,
    LENGTH_AND_MAGIC,
    LENGTH_POSITION,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_V2,
    MESSAGE_SIZE_BYTES,
    MINIMUM_LENGTHS,
    gather,
    header_error,
    header_rows,
    parse_batch_header,
)
from storage_core.record.section import Slices

if TYPE_CHECKING:
    from collections.abc import Callable

    from storage_core.errors import CorruptRecordError
    from storage_core.record.batch_header import BatchHeader, CrcLayout

__all__ = ["BatchWindow", "checksums", "walk_messages", "walk_window", "wrong_inner_checksums"]


# Many short strings are quicker copied all at once than sliced one by one.
_MANY: Final = 64
_SHORT_BYTES: Final = 1 << 8
# Fewer strings of one length are quicker looked at one by one.
_TOGETHER_MINIMUM: Final = 64
# Longer strings gain nothing by being looked at together.
_TOGETHER_LONGEST_BYTES: Final = 1 << 12
_Bytes = npt.NDArray[np.uint8]
_Int64Array = npt.NDArray[np.int64]
_UInt32Array = npt.NDArray[np.uint32]


def checksums(buffer: _Bytes, slices: Slices, compute: Callable[..., int]) -> _UInt32Array:
    """The checksum of each slice."""
    count = len(slices.starts)
    if count >= _MANY and int(slices.lengths.sum()) <= count * _SHORT_BYTES:
        return np.fromiter(map(compute, binary_array(buffer, slices).to_pylist()), np.uint32, count)
    view = buffer.data
    ends = slices.starts + slices.lengths
    pairs = zip(slices.starts.tolist(), ends.tolist(), strict=True)
    return np.array([compute(view[start:end]) for start, end in pairs], np.uint32)


def wrong_inner_checksums(buffer: _Bytes, slices: Slices, expected: _UInt32Array) -> _Int64Array:
    """Which slices do not have the CRC-32 expected; for bytes that another checksum has guarded already.

    Those of one length are looked at together, which takes a tenth of the time: of an odd number of them, all
    combined by exclusive or, the CRC is that of their CRCs. Two that a writer got wrong by the same bits (the
    CRCs of two messages exchanged) cancel each other out. Damage shows: the other checksum covers it.
    """
    order = np.argsort(slices.lengths, kind="stable")
    lengths = slices.lengths[order]
    firsts = np.flatnonzero(np.diff(lengths, prepend=-1))
    counts = np.diff(firsts, append=len(lengths))
    is_open = np.ones(len(lengths), np.bool_)
    are_many = (counts >= _TOGETHER_MINIMUM) & (lengths[firsts] <= _TOGETHER_LONGEST_BYTES)
    for first, count in zip(firsts[are_many].tolist(), counts[are_many].tolist(), strict=True):
        rows = order[first : first + count - (count + 1) % 2]
        if _are_right(buffer, slices.starts[rows], int(lengths[first]), expected[rows]):
            is_open[rows] = False
    rows = np.flatnonzero(is_open)
    left = Slices(slices.starts[rows], slices.lengths[rows])
    wrong: _Int64Array = rows[checksums(buffer, left, zlib.crc32) != expected[rows]]
    return wrong


def _are_right(buffer: _Bytes, starts: _Int64Array, length: int, expected: _UInt32Array) -> bool:
    contents = gather(buffer, starts, np.dtype((np.uint8, length)))
    combined = np.bitwise_xor.reduce(contents, axis=0)
    return zlib.crc32(combined.data) == int(np.bitwise_xor.reduce(expected))


_MESSAGE_LENGTH: Final = np.dtype(">i4")
_MAGIC: Final = np.dtype("i1")
# A run of equal messages shorter than this does not pay for the numpy calls that find it.
_RUN_MINIMUM: Final = 48
# Runs are looked for among so many messages at first, and among so many times more while they go on.
_RUN_FIRST_TRY: Final = 256
_RUN_GROWTH: Final = 8
# So much is walked plainly before the next look for a run.
_LOOP_CHUNK_BYTES: Final = 1 << 16


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
        lengths = np.ndarray((looked_at,), _MESSAGE_LENGTH, buffer, start + LENGTH_POSITION, (step,))
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


_LENGTH: Final = struct.Struct(">i")
_SMALLEST_V2_LENGTH: Final = MINIMUM_LENGTHS[MAGIC_V2]


@dataclass(frozen=True, slots=True)
class BatchWindow:
    """Whole batches in a buffer.

    Attributes:
        path: The segment file.
        position_bytes: Where ``buffer[0]`` stands in it.
        buffer: The bytes, padded.
        starts: Per batch, where it begins in ``buffer``.
        headers: Per batch, its header: a structured array of `HEADER_DTYPE`. The base offset of a
            wrapper is a lower bound.
        end: Where the last whole batch ends in ``buffer``.
        missing_bytes: How many more bytes the next batch needs to be whole; 0 if the window
            ends with a batch, or with too few bytes to tell.
        is_blank_behind: Whether only zeros follow ``end``: space that a broker preallocated.
        has_messages: Whether any of the batches is a message of format v0 or v1.
        error: What is wrong with the bytes behind ``end``, if they are no batch.
    """

    path: str
    position_bytes: int
    buffer: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    headers: npt.NDArray[Any]
    end: int
    missing_bytes: int
    is_blank_behind: bool
    has_messages: bool = False
    error: CorruptRecordError | None = None

    def header(self, index: int) -> BatchHeader:
        """The header of one batch."""
        start = int(self.starts[index])
        header = parse_batch_header(self.buffer.data, start, self.position_bytes + start, path=self.path)
        return header.with_lower_base(int(self.headers["base_offset"][index]))

    def crc_mismatches(self, indexes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Those of some batches, ascending, whose CRC is not the one that their header states."""
        if not self.has_messages:
            return self._crc_mismatches(indexes, CRC_LAYOUTS[MAGIC_V2])
        is_legacy = self.headers["magic"][indexes] < MAGIC_V2
        legacy = self._crc_mismatches(indexes[is_legacy], CRC_LAYOUTS[0])
        current = self._crc_mismatches(indexes[~is_legacy], CRC_LAYOUTS[MAGIC_V2])
        return np.sort(np.concatenate([legacy, current]))

    def _crc_mismatches(self, indexes: npt.NDArray[np.int64], layout: CrcLayout) -> npt.NDArray[np.int64]:
        starts = self.starts[indexes] + layout.start
        lengths = self.headers["batch_length"][indexes] + np.int64(LOG_OVERHEAD_BYTES - layout.start)
        computed = checksums(self.buffer, Slices(starts, lengths), layout.compute)
        wrong: npt.NDArray[np.int64] = indexes[computed != self.headers["crc"][indexes]]
        return wrong


def walk_window(
    path: str,
    position_bytes: int,
    buffer: npt.NDArray[np.uint8],
    size_bytes: int,
    lowest_offset: int = 0,
) -> BatchWindow:
    """Find the whole batches in a buffer that begins with a batch.

    The window ends where bytes are no batch, and says so. Zeros up to the end of the buffer are taken
    for preallocated space.

    Args:
        path: The segment file.
        position_bytes: Where the buffer's first byte stands in it.
        buffer: The bytes, padded.
        size_bytes: How many of them come from the file.
        lowest_offset: The offset behind the batch before, or the segment's base offset: a wrapper does
            not say where it begins.
    """
    view = buffer.data
    starts: list[int] = []
    start = _walk_batches(view, 0, size_bytes, starts)
    has_messages = False
    while (end := walk_messages(buffer, start, size_bytes, starts)) > start:
        has_messages = True
        start = _walk_batches(view, end, size_bytes, starts)
    missing_bytes, is_blank_behind, error = 0, False, None
    # With fewer bytes than a header there may be more to come.
    if start + HEADER_SIZE_BYTES <= size_bytes:
        length, magic = LENGTH_AND_MAGIC.unpack_from(view, start + LENGTH_POSITION)
        if 0 <= magic <= MAGIC_V2 and length >= MINIMUM_LENGTHS[magic]:
            missing_bytes = start + LOG_OVERHEAD_BYTES + length - size_bytes
        else:
            is_blank_behind = not buffer[start:size_bytes].any()
            if not is_blank_behind:
                error = header_error(path, position_bytes + start, length, magic)
    positions = np.array(starts, np.int64)
    if has_messages:
        headers = header_rows(buffer, positions, lowest_offset)
    else:
        headers = gather(buffer, positions, HEADER_DTYPE)
    return BatchWindow(
        path,
        position_bytes,
        buffer,
        positions,
        headers,
        start,
        missing_bytes,
        is_blank_behind,
        has_messages,
        error,
    )


def _walk_batches(view: memoryview, start: int, size_bytes: int, starts: list[int]) -> int:
    """Note where whole batches of format v2 begin, from ``start`` on; return where the last one ends."""
    while start + HEADER_SIZE_BYTES <= size_bytes:
        (length,) = _LENGTH.unpack_from(view, start + LENGTH_POSITION)
        if length < _SMALLEST_V2_LENGTH or view[start + MAGIC_POSITION] != MAGIC_V2:
            break
        end = start + LOG_OVERHEAD_BYTES + length
        if end > size_bytes:
            break
        starts.append(start)
        start = end
    return start
