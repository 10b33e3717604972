"""A window of a segment file: its whole batches of any format, their headers as columns, and their CRCs."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from storage_core.record.arrow_columns import Slices, binary_array
from storage_core.record.batch_header import (
    CRC_LAYOUTS,
    HEADER_DTYPE,
    HEADER_SIZE_BYTES,
    LENGTH_AND_MAGIC,
    LENGTH_DTYPE,
    LENGTH_POSITION,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_V2,
    MESSAGE_SIZE_BYTES,
    MIN_LENGTH_BY_MAGIC,
    MIN_V2_LENGTH,
    BatchHeader,
    CrcLayout,
    gather,
    header_error,
    header_rows,
    last_offsets,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from storage_core.errors import CorruptRecordError

# Many short strings are quicker copied all at once than sliced one by one.
_MIN_COPIED: Final = 64
_MAX_COPIED_BYTES: Final = 1 << 8
# CRCs of fewer, or of longer, strings of one length are not quicker combined.
_MIN_COMBINED: Final = 64
_MAX_COMBINED_BYTES: Final = 1 << 12
_Bytes = npt.NDArray[np.uint8]
_Int64Array = npt.NDArray[np.int64]
_UInt32Array = npt.NDArray[np.uint32]


def checksums(buffer: _Bytes, slices: Slices, compute: Callable[..., int]) -> _UInt32Array:
    """Return the checksum of each slice."""
    count = len(slices.starts)
    if count >= _MIN_COPIED and int(slices.lengths.sum()) <= count * _MAX_COPIED_BYTES:
        return np.fromiter(map(compute, binary_array(buffer, slices).to_pylist()), np.uint32, count)
    view = buffer.data
    ends = slices.starts + slices.lengths
    pairs = zip(slices.starts.tolist(), ends.tolist(), strict=True)
    return np.array([compute(view[start:end]) for start, end in pairs], np.uint32)


def inner_crc_mismatches(buffer: _Bytes, slices: Slices, expected: _UInt32Array) -> _Int64Array:
    """Return the slices whose CRC-32 is not the expected one, while the CRC of a wrapper covers all their bytes.

    Slices of one length are combined by exclusive or, which takes a tenth of the time: the CRC of an odd number of
    them is the exclusive or of their CRCs. Two errors of a producer in the same bits cancel each other out, such as
    two messages with each other's CRC. Damage does not go unnoticed, as the CRC of the wrapper covers it.
    """
    order = np.argsort(slices.lengths, kind="stable")
    lengths = slices.lengths[order]
    firsts = np.flatnonzero(np.diff(lengths, prepend=-1))
    counts = np.diff(firsts, append=len(lengths))
    is_unchecked = np.ones(len(lengths), np.bool_)
    are_many = (counts >= _MIN_COMBINED) & (lengths[firsts] <= _MAX_COMBINED_BYTES)
    for first, count in zip(firsts[are_many].tolist(), counts[are_many].tolist(), strict=True):
        rows = order[first : first + count - (count + 1) % 2]
        if _combined_crc_matches(buffer, slices.starts[rows], int(lengths[first]), expected[rows]):
            is_unchecked[rows] = False
    rows = np.flatnonzero(is_unchecked)
    left = slices.take(rows)
    wrong: _Int64Array = rows[checksums(buffer, left, zlib.crc32) != expected[rows]]
    return wrong


def _combined_crc_matches(buffer: _Bytes, starts: _Int64Array, length: int, expected: _UInt32Array) -> bool:
    contents = gather(buffer, starts, np.dtype((np.uint8, length)))
    combined = np.bitwise_xor.reduce(contents, axis=0)
    return zlib.crc32(combined.data) == int(np.bitwise_xor.reduce(expected))


_MAGIC_DTYPE: Final = np.dtype("i1")
# A run of equal messages shorter than this does not pay for the numpy calls that find it.
_RUN_MINIMUM: Final = 48
# The search for a run begins with this many messages, and grows by this factor while the run continues.
_RUN_FIRST_TRY: Final = 256
_RUN_GROWTH: Final = 8
# Messages are walked one by one over this many bytes before the next search for a run.
_LOOP_CHUNK_BYTES: Final = 1 << 16


def walk_messages(buffer: _Bytes, start: int, end: int, positions: list[int]) -> int:
    """Walk whole messages of format v0 and v1, and add the position of each.

    Returns:
        The end of the last one.
    """
    while True:
        walked = _walk_run(buffer, start, end, positions)
        if walked == start:
            walked = _walk_chunk(buffer.data, start, min(start + _LOOP_CHUNK_BYTES, end), end, positions)
        if walked == start:
            return start
        start = walked


def _walk_run(buffer: _Bytes, start: int, end: int, positions: list[int]) -> int:
    """Walk messages that have the length and format of the first one, if there are many."""
    if start + MESSAGE_SIZE_BYTES > end:
        return start
    length, magic = LENGTH_AND_MAGIC.unpack_from(buffer.data, start + LENGTH_POSITION)
    step = length + LOG_OVERHEAD_BYTES
    if not _is_message(length, magic) or (end - start) // step < _RUN_MINIMUM:
        return start
    # Usually the next message shows that there is no run.
    if LENGTH_AND_MAGIC.unpack_from(buffer.data, start + step + LENGTH_POSITION) != (length, magic):
        return start
    most = (end - start) // step
    compared = min(most, _RUN_FIRST_TRY)
    while True:
        lengths = np.ndarray((compared,), LENGTH_DTYPE, buffer, start + LENGTH_POSITION, (step,))
        magics = np.ndarray((compared,), _MAGIC_DTYPE, buffer, start + MAGIC_POSITION, (step,))
        is_equal: npt.NDArray[np.bool_] = (lengths == length) & (magics == magic)
        count = compared if is_equal.all() else int(is_equal.argmin())
        if count < compared or compared == most:
            break
        compared = min(most, compared * _RUN_GROWTH)
    if count < _RUN_MINIMUM:
        return start
    run_end: int = start + count * step
    positions.extend(range(start, run_end, step))
    return run_end


def _walk_chunk(view: memoryview, start: int, chunk_end: int, end: int, positions: list[int]) -> int:
    """Walk message by message, up to the first that begins after the chunk."""
    unpack = LENGTH_AND_MAGIC.unpack_from
    last = min(chunk_end - 1, end - MESSAGE_SIZE_BYTES)
    while start <= last:
        length, magic = unpack(view, start + LENGTH_POSITION)
        next_start = start + LOG_OVERHEAD_BYTES + length
        # `_is_message`, inlined: the call would cost more than the rest.
        if next_start > end or not (0 <= magic <= 1 and length >= MIN_LENGTH_BY_MAGIC[magic]):
            break
        positions.append(start)
        start = next_start
    return start


def _is_message(length: int, magic: int) -> bool:
    return 0 <= magic < len(MIN_LENGTH_BY_MAGIC) and length >= MIN_LENGTH_BY_MAGIC[magic]


_LENGTH: Final = struct.Struct(">i")
_NO_BYTES: Final = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class BatchWindow:
    """Whole batches in a buffer, or only their headers: the buffer is empty then.

    Attributes:
        position_bytes: The position of ``buffer[0]`` in the segment file.
        buffer: The bytes, padded.
        starts: Per batch, its position in ``buffer``.
        headers: Per batch, its header (`HEADER_DTYPE`). The base offset of a wrapper is a lower bound.
        end: The end of the last whole batch in ``buffer``.
        missing_bytes: What the next batch lacks; 0 if none begins, or too few bytes of it are there to tell.
        is_preallocated_after: Whether only zeros follow ``end``: space that a broker preallocated.
        has_messages: Whether any of the batches is a message of format v0 or v1.
        error: Why the bytes after ``end`` are no batch, unless they are the start of one.
    """

    path: str
    position_bytes: int
    buffer: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    headers: npt.NDArray[Any]
    end: int
    missing_bytes: int
    is_preallocated_after: bool
    has_messages: bool = False
    error: CorruptRecordError | None = None

    @classmethod
    def without_bytes(
        cls, path: str, position_bytes: int, starts: npt.NDArray[np.int64], headers: npt.NDArray[Any]
    ) -> BatchWindow:
        """Return at least one batch, of which only the headers were read."""
        end = int(starts[-1]) + int(headers["batch_length"][-1]) + LOG_OVERHEAD_BYTES
        return cls(path, position_bytes, _NO_BYTES, starts, headers, end, 0, is_preallocated_after=False)

    @property
    def base_offsets(self) -> npt.NDArray[np.int64]:
        """Per batch, its base offset."""
        offsets: npt.NDArray[np.int64] = self.headers["base_offset"].astype(np.int64)
        return offsets

    @property
    def last_offsets(self) -> npt.NDArray[np.int64]:
        """Per batch, the offset of the last record that it was written with."""
        return last_offsets(self.headers)

    @property
    def next_offset(self) -> int:
        """The offset after the last batch, of at least one."""
        last = self.headers[-1]
        return int(last["base_offset"]) + int(last["last_offset_delta"]) + 1

    @property
    def has_holes(self) -> bool:
        """Whether a batch has fewer records than offsets, which only a compaction makes."""
        headers = self.headers
        is_holed = (headers["magic"] == MAGIC_V2) & (headers["record_count"] <= headers["last_offset_delta"])
        return bool(is_holed.any())

    def header(self, index: int) -> BatchHeader:
        """Return the header of one batch."""
        base_offset, length, *rest = self.headers[index].item()
        position_bytes = self.position_bytes + int(self.starts[index])
        return BatchHeader(position_bytes, base_offset, length + LOG_OVERHEAD_BYTES, *rest)

    def crc_mismatches(self, indexes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return those of the given batches, ascending, whose CRC differs from the one in their header."""
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

    The window ends before the first bytes that are no batch. Zeros up to the end of the buffer, of which
    ``size_bytes`` come from the file and the rest is padding, are preallocated space. ``lowest_offset`` is a lower
    bound of the offsets in a wrapper: the offset after the batch before, or the segment's base offset.
    """
    view = buffer.data
    starts: list[int] = []
    start = _walk_batches(view, 0, size_bytes, starts)
    has_messages = False
    while (end := walk_messages(buffer, start, size_bytes, starts)) > start:
        has_messages = True
        start = _walk_batches(view, end, size_bytes, starts)
    missing_bytes, is_preallocated_after, error = 0, False, None
    # Fewer bytes than a header may be the start of one.
    if start + HEADER_SIZE_BYTES <= size_bytes:
        length, magic = LENGTH_AND_MAGIC.unpack_from(view, start + LENGTH_POSITION)
        if 0 <= magic <= MAGIC_V2 and length >= MIN_LENGTH_BY_MAGIC[magic]:
            missing_bytes = start + LOG_OVERHEAD_BYTES + length - size_bytes
        else:
            is_preallocated_after = not buffer[start:size_bytes].any()
            if not is_preallocated_after:
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
        is_preallocated_after,
        has_messages,
        error,
    )


def _walk_batches(view: memoryview, start: int, size_bytes: int, starts: list[int]) -> int:
    """Walk whole batches of format v2, and add the position of each; return the end of the last one."""
    while start + HEADER_SIZE_BYTES <= size_bytes:
        (length,) = _LENGTH.unpack_from(view, start + LENGTH_POSITION)
        if length < MIN_V2_LENGTH or view[start + MAGIC_POSITION] != MAGIC_V2:
            break
        end = start + LOG_OVERHEAD_BYTES + length
        if end > size_bytes:
            break
        starts.append(start)
        start = end
    return start
