"""A window of a segment file: its whole batches of any format, their headers as columns."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from storage_core.record.batch_header import (
    CRC_LAYOUTS,
    HEADER_DTYPE,
    HEADER_SIZE_BYTES,
    LENGTH_AND_MAGIC,
    LENGTH_POSITION,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_V2,
    MINIMUM_LENGTHS,
    header_error,
    parse_batch_header,
)
from storage_core.record.checksums import checksums
from storage_core.record.gather import gather
from storage_core.record.header_rows import header_rows
from storage_core.record.message_walk import walk_messages
from storage_core.record.section import Slices

if TYPE_CHECKING:
    from storage_core.errors import CorruptRecordError
    from storage_core.record.batch_header import BatchHeader, CrcLayout

__all__ = ["BatchWindow", "walk_window"]

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
