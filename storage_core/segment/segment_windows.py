"""Reading a log file from one place on as windows of whole batches, in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from storage_core.errors import BatchTooLargeError
from storage_core.record.batch_header import CRC_LAYOUTS
from storage_core.record.batch_window import walk_window
from storage_core.record.section import PADDING_BYTES
from storage_core.segment.batch_probe import BatchProbe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.filesystem import OpenFile
    from storage_core.record.batch_window import BatchWindow

__all__ = ["WINDOW_BYTES", "read_windows"]

WINDOW_BYTES: Final = 4 << 20


def read_windows(
    log_file: OpenFile,
    position_bytes: int,
    end_position_bytes: int,
    lowest_offset: int,
    *,
    max_batch_bytes: int,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[BatchWindow]:
    """Read windows from a batch boundary on. A window's bytes are valid until the next one is asked for.

    The last window is the one behind which no whole batch begins; it may be empty.

    Args:
        log_file: The file.
        position_bytes: The boundary.
        end_position_bytes: Where the file ends.
        lowest_offset: The offset behind the batch before.
        max_batch_bytes: The largest batch for which memory is taken.
        window_bytes: How much is read at once, unless a batch is larger.

    Raises:
        BatchTooLargeError: An undamaged batch is larger than ``max_batch_bytes``.
    """
    buffer = np.empty(window_bytes + PADDING_BYTES, np.uint8)
    needed_bytes = 0
    while True:
        size_bytes = min(max(window_bytes, needed_bytes), end_position_bytes - position_bytes)
        if size_bytes + PADDING_BYTES > len(buffer):
            buffer = np.empty(size_bytes + PADDING_BYTES, np.uint8)
        filled_bytes = log_file.read_into(buffer.data[:size_bytes], position_bytes)
        if filled_bytes < size_bytes:
            # The file was cut short meanwhile.
            size_bytes, end_position_bytes = filled_bytes, position_bytes + filled_bytes
        window = walk_window(log_file.path, position_bytes, buffer, size_bytes, lowest_offset)
        yield window
        if len(window.starts):
            last = window.headers[-1]
            lowest_offset = int(last["base_offset"]) + int(last["last_offset_delta"]) + 1
        position_bytes += window.end
        needed_bytes = size_bytes - window.end + window.missing_bytes if window.missing_bytes else 0
        is_at_end = position_bytes + size_bytes - window.end >= end_position_bytes
        if window.error is not None or window.is_blank_behind or is_at_end:
            return
        if needed_bytes > max_batch_bytes and needed_bytes <= end_position_bytes - position_bytes:
            if _is_damaged(log_file, window, end_position_bytes):
                return
            raise BatchTooLargeError(
                f"Expected a record batch of at most {max_batch_bytes} bytes, found one of {needed_bytes}. Raise "
                "max.message.bytes to read it.",
                path=log_file.path,
                position_bytes=position_bytes,
            )
        if needed_bytes > end_position_bytes - position_bytes:
            # The last batch is torn, or its length is damaged.
            return


def _is_damaged(log_file: OpenFile, window: BatchWindow, end_position_bytes: int) -> bool:
    """Whether the batch behind a window has a wrong CRC. It is not held in memory."""
    probe = BatchProbe(log_file, end_position_bytes)
    header = probe.header(window.position_bytes + window.end)
    if header is None:
        return True
    crc_start = header.position_bytes + CRC_LAYOUTS[header.magic].start
    return probe.crc(header.magic, crc_start, header.end_position_bytes) != header.crc
