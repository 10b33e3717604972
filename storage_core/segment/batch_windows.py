"""Reading a log file from a batch boundary on as windows of whole batches, in bounded memory.

`WindowReader` has the loop that refills the buffer, and leaves the judgement of the bytes after a window to
its caller. `read_windows` is the plain walk over windows, which ends where no whole batch begins. `hop_over_batches` reads
headers alone, and `WindowReader.headers` does so where batches are large.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from storage_core.errors import BatchTooLargeError
from storage_core.record.batch_header import (
    HEADER_DTYPE,
    HEADER_SIZE_BYTES,
    LENGTH_AND_MAGIC,
    LENGTH_POSITION,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    MIN_V2_LENGTH,
)
from storage_core.record.batch_window import BatchWindow, walk_window
from storage_core.record.section import PADDING_BYTES
from storage_core.segment.damage import BatchProbe

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from storage_core.filesystem import ReadableFile, WritableFile


WINDOW_BYTES: Final = 4 << 20
# The first window after damage.
_FIRST_WINDOW_BYTES: Final = 4096
_WINDOW_GROWTH: Final = 4
# Larger batches are hopped over after their header.
_LARGEST_READ_WHOLE_BYTES: Final = 4096
_BLOCK_BYTES: Final = 64 * 1024
# Copying this many bytes takes as long as a call that reads one header.
_HOP_BYTES: Final = 8 << 10
MOST_HOPS: Final = 4096
"""So many headers `hop_over_batches` reads at once."""


def part_of(window: BatchWindow, first: int, end: int) -> BatchWindow:
    """Return neighbouring batches of a window, by their indexes, as a window of their own."""
    if end - first == len(window.starts):
        return window
    window_end = window.end if end == len(window.starts) else int(window.starts[end])
    return replace(window, starts=window.starts[first:end], headers=window.headers[first:end], end=window_end)


class WindowBuffer:
    """A reusable buffer that grows for a batch that does not fit."""

    def __init__(self, size_bytes: int) -> None:
        # A window needs room for a header to tell how large its batch is.
        self.array = np.empty(max(size_bytes, HEADER_SIZE_BYTES) + PADDING_BYTES, np.uint8)

    @property
    def size_bytes(self) -> int:
        """How many bytes fit, without the padding."""
        return len(self.array) - PADDING_BYTES

    def ensure(self, size_bytes: int, keep: npt.NDArray[np.uint8]) -> None:
        """Make room for ``size_bytes`` in total, and move the bytes to keep to the beginning."""
        if size_bytes > self.size_bytes:
            grown = np.empty(size_bytes + PADDING_BYTES, np.uint8)
            grown[: len(keep)] = keep
            self.array = grown
        else:
            self.array[: len(keep)] = keep


class WindowReader:
    """Reads a range of a log file, window by window.

    Attributes:
        position_bytes: Where the next window begins.
        end_position_bytes: Where the range ends; lower than requested if the file was truncated meanwhile.
        size_bytes: Size of the last window, with the bytes after its whole batches.
        needed_bytes: Size of the batch after the last window's whole batches; 0 if it is not known.
    """

    def __init__(
        self, log_file: ReadableFile, position_bytes: int, end_position_bytes: int, buffer: WindowBuffer
    ) -> None:
        self.position_bytes = position_bytes
        self.end_position_bytes = end_position_bytes
        self.size_bytes = 0
        self.needed_bytes = 0
        # That of the batches that were read last; 0 if none was.
        self._typical_batch_bytes = 0
        self._log_file = log_file
        self._buffer = buffer
        # The part of the buffer that holds bytes from the position on.
        self._start = 0
        self._held_bytes = 0
        # The buffer may grow for a large batch; the windows after it do not.
        self._window_bytes = self._largest_window_bytes = buffer.size_bytes
        self._is_expected = False

    @property
    def is_at_end(self) -> bool:
        """Return True if the whole range has been read."""
        return self.position_bytes >= self.end_position_bytes

    @property
    def is_last(self) -> bool:
        """Return True if the last window reaches the end of the range."""
        return self.position_bytes + self.size_bytes >= self.end_position_bytes

    def window(self, lowest_offset: int) -> BatchWindow:
        """Read the window at the position, which follows the batches below an offset.

        Its bytes are valid until the next window is read.
        """
        size_bytes = max(self._window_bytes, self.needed_bytes)
        size_bytes = min(size_bytes, self.end_position_bytes - self.position_bytes)
        if self._held_bytes < size_bytes:
            self._fill(size_bytes)
        self.size_bytes = size_bytes = min(size_bytes, self._held_bytes)
        held = self._buffer.array[self._start :]
        window = walk_window(self._log_file.path, self.position_bytes, held, size_bytes, lowest_offset)
        self.needed_bytes = size_bytes - window.end + window.missing_bytes if window.missing_bytes else 0
        return window

    def headers(self, lowest_offset: int) -> BatchWindow:
        """Read the window at the position, or, where batches are large, a window that has their headers and no bytes.

        Lengths are trusted to hop from header to header. Messages of older formats are read whole, however large.
        """
        if self._is_next_large():
            window = hop_over_batches(self._log_file, self.position_bytes, self.end_position_bytes)
            if window is not None:
                self.size_bytes, self.needed_bytes = window.end, 0
                self._typical_batch_bytes = window.end // len(window.starts)
                return window
        window = self.window(lowest_offset)
        if len(window.starts):
            self._typical_batch_bytes = window.end // len(window.starts)
        return window

    def _is_next_large(self) -> bool:
        if not self._typical_batch_bytes:
            head = self._log_file.read_at(LENGTH_AND_MAGIC.size, self.position_bytes + LENGTH_POSITION)
            if len(head) == LENGTH_AND_MAGIC.size:
                self._typical_batch_bytes = LENGTH_AND_MAGIC.unpack(head)[0]
        return self._typical_batch_bytes >= _HOP_BYTES or self.needed_bytes > self._window_bytes

    def advance(self, window: BatchWindow) -> None:
        """Move on after the whole batches of the last window."""
        self._go_to(self.position_bytes + window.end)
        self._window_bytes = min(_WINDOW_GROWTH * self._window_bytes, self._largest_window_bytes)

    def skip_damage(self, position_bytes: int) -> None:
        """Move on to a boundary after damage, with a small window first, because more damage may follow."""
        self._go_to(position_bytes)
        self.needed_bytes = 0
        self._window_bytes = min(_FIRST_WINDOW_BYTES, self._largest_window_bytes)

    def _go_to(self, position_bytes: int) -> None:
        step_bytes = min(position_bytes - self.position_bytes, self._held_bytes)
        self._start += step_bytes
        self._held_bytes -= step_bytes
        self.position_bytes = position_bytes

    def _fill(self, size_bytes: int) -> None:
        buffer = self._buffer
        buffer.ensure(size_bytes, buffer.array[self._start : self._start + self._held_bytes])
        wanted_bytes = min(buffer.size_bytes, self.end_position_bytes - self.position_bytes)
        room = buffer.array.data[self._held_bytes : wanted_bytes]
        if not self._is_expected:
            self._is_expected = True
            self._log_file.expect_reads(self.position_bytes + self._held_bytes, self.end_position_bytes)
        filled_bytes = self._log_file.read_into(room, self.position_bytes + self._held_bytes)
        self._start, self._held_bytes = 0, self._held_bytes + filled_bytes
        if filled_bytes < len(room):
            self.end_position_bytes = self.position_bytes + self._held_bytes


def read_windows(
    log_file: ReadableFile,
    position_bytes: int,
    end_position_bytes: int,
    lowest_offset: int,
    *,
    max_batch_bytes: int,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[BatchWindow]:
    """Read a log file from a batch boundary on as windows of whole batches.

    A window's bytes are valid until the next window is read. No whole batch begins after the last window,
    which may be empty. No batch may begin below ``lowest_offset``. For a batch of up to ``max_batch_bytes``,
    a window is larger than ``window_bytes``.

    Raises:
        BatchTooLargeError: An undamaged batch is larger than ``max_batch_bytes``.
    """
    reader = WindowReader(log_file, position_bytes, end_position_bytes, WindowBuffer(window_bytes))
    while True:
        window = reader.window(lowest_offset)
        is_last = reader.is_last
        yield window
        if len(window.starts):
            lowest_offset = window.next_offset
        if window.error is not None or window.is_preallocated_after or is_last:
            return
        reader.advance(window)
        if reader.needed_bytes > reader.end_position_bytes - reader.position_bytes:
            # The last batch is torn, or its length is damaged.
            return
        if reader.needed_bytes > max_batch_bytes:
            probe = BatchProbe(log_file, reader.end_position_bytes)
            header = probe.header(reader.position_bytes)
            if header is None or probe.batch_crc(header) != header.crc:
                return
            raise BatchTooLargeError(
                f"Expected a record batch of at most {max_batch_bytes} bytes, found one of "
                f"{reader.needed_bytes}. Raise max.message.bytes to read it.",
                path=log_file.path,
                position_bytes=reader.position_bytes,
            )


def hop_over_batches(
    file: ReadableFile | WritableFile, position_bytes: int, end_bytes: int
) -> BatchWindow | None:
    """Read the headers of whole batches of format v2 from a boundary on, up to some thousand.

    Lengths are trusted. The hops end where no such batch begins.

    Returns:
        A window without bytes; None if no such batch begins at the boundary.
    """
    start_bytes = position_bytes
    block, block_start = b"", position_bytes
    # The first batch tells how large the others may be.
    read_bytes = min(_LARGEST_READ_WHOLE_BYTES, end_bytes - position_bytes)
    positions: list[int] = []
    heads: list[bytes] = []
    while position_bytes < end_bytes and len(heads) < MOST_HOPS:
        start = position_bytes - block_start
        if start + HEADER_SIZE_BYTES > len(block):
            block, block_start, start = file.read_at(read_bytes, position_bytes), position_bytes, 0
            if len(block) < HEADER_SIZE_BYTES:
                break
        length, magic = LENGTH_AND_MAGIC.unpack_from(block, start + LENGTH_POSITION)
        size_bytes = length + LOG_OVERHEAD_BYTES
        if magic != MAGIC_V2 or length < MIN_V2_LENGTH or position_bytes + size_bytes > end_bytes:
            break
        positions.append(position_bytes)
        heads.append(block[start : start + HEADER_SIZE_BYTES])
        position_bytes += size_bytes
        read_bytes = HEADER_SIZE_BYTES
        if size_bytes <= _LARGEST_READ_WHOLE_BYTES:
            read_bytes = max(read_bytes, min(_BLOCK_BYTES, end_bytes - position_bytes))
    if not heads:
        return None
    headers = np.frombuffer(b"".join(heads), HEADER_DTYPE)
    return BatchWindow.without_bytes(
        file.path, start_bytes, np.array(positions, np.int64) - start_bytes, headers
    )
