"""A window of a segment file: its whole batches, their headers as columns."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from storage_core.errors import CorruptRecordError
from storage_core.record.batch_header import (
    CRC_START,
    HEADER_DTYPE,
    HEADER_SIZE_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_V2,
    header_error,
    parse_batch_header,
)

if TYPE_CHECKING:
    from storage_core.record.batch_header import BatchHeader

__all__ = ["BatchWindow", "walk_window"]

_LENGTH: Final = struct.Struct(">i")
_LENGTH_POSITION: Final = 8
_SMALLEST_LENGTH: Final = HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES
_HEADER_BYTES: Final = np.arange(HEADER_SIZE_BYTES)


@dataclass(frozen=True, slots=True)
class BatchWindow:
    """Whole batches in a buffer.

    Attributes:
        path: The segment file.
        position_bytes: Where ``buffer[0]`` stands in it.
        buffer: The bytes, padded.
        starts: Per batch, where it begins in ``buffer``.
        headers: Per batch, its header: a structured array of `HEADER_DTYPE`.
        end: Where the last whole batch ends in ``buffer``.
        missing_bytes: How many more bytes the next batch needs to be whole; 0 if the window
            ends with a batch, or with too few bytes to tell.
        is_blank_behind: Whether only zeros follow ``end``: space that a broker preallocated.
    """

    path: str
    position_bytes: int
    buffer: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    headers: npt.NDArray[Any]
    end: int
    missing_bytes: int
    is_blank_behind: bool

    def header(self, index: int) -> BatchHeader:
        """The header of one batch."""
        start = int(self.starts[index])
        return parse_batch_header(self.buffer.data, start, self.position_bytes + start, path=self.path)

    def check_crc(self, indexes: npt.NDArray[np.int64]) -> None:
        """Check the CRC of some of the batches.

        Raises:
            CorruptRecordError: One does not match; the first such batch is named.
        """
        view = self.buffer.data
        starts = self.starts[indexes].tolist()
        lengths = self.headers["batch_length"][indexes].tolist()
        expected = self.headers["crc"][indexes].tolist()
        for index, start, length, crc in zip(indexes.tolist(), starts, lengths, expected, strict=True):
            found = crc32c(view[start + CRC_START : start + LOG_OVERHEAD_BYTES + length])
            if found != crc:
                self._fail_crc(self.header(index), found)

    def _fail_crc(self, header: BatchHeader, found: int) -> None:
        raise CorruptRecordError(
            f"Expected a record batch with CRC {header.crc:#010x}, found {found:#010x}: "
            "the batch was damaged after it was written.",
            path=self.path,
            position_bytes=header.position_bytes,
            end_position_bytes=header.end_position_bytes,
            offset=header.base_offset,
            last_offset=header.last_offset,
        )


def walk_window(
    path: str, position_bytes: int, buffer: npt.NDArray[np.uint8], size_bytes: int
) -> BatchWindow:
    """Find the whole batches in a buffer that begins with a batch.

    Args:
        path: The segment file.
        position_bytes: Where the buffer's first byte stands in it.
        buffer: The bytes, padded.
        size_bytes: How many of them come from the file.

    Raises:
        UnsupportedFormatError: There is a v0 or v1 message.
        CorruptRecordError: There are bytes that are no batch. Zeros up to the end of the
            buffer are taken for preallocated space, and end the window.
    """
    view = buffer.data
    starts = []
    start = 0
    missing_bytes = 0
    is_blank_behind = False
    while start + HEADER_SIZE_BYTES <= size_bytes:
        (length,) = _LENGTH.unpack_from(view, start + _LENGTH_POSITION)
        if length < _SMALLEST_LENGTH or view[start + MAGIC_POSITION] != MAGIC_V2:
            is_blank_behind = not buffer[start:size_bytes].any()
            if is_blank_behind:
                break
            raise _header_error(path, position_bytes, view, start)
        end = start + LOG_OVERHEAD_BYTES + length
        if end > size_bytes:
            missing_bytes = end - size_bytes
            break
        starts.append(start)
        start = end
    positions = np.array(starts, np.int64)
    headers = buffer[positions[:, None] + _HEADER_BYTES].view(HEADER_DTYPE).reshape(-1)
    return BatchWindow(
        path, position_bytes, buffer, positions, headers, start, missing_bytes, is_blank_behind
    )


def _header_error(path: str, position_bytes: int, view: memoryview, start: int) -> Exception:
    (base_offset,) = struct.unpack_from(">q", view, start)
    (length,) = _LENGTH.unpack_from(view, start + _LENGTH_POSITION)
    (magic,) = struct.unpack_from("b", view, start + MAGIC_POSITION)
    return header_error(path, position_bytes + start, base_offset, length, magic)
