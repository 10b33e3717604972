"""Read a span of a segment file as windows of whole batches, in bounded memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import numpy as np

from storage_core.record.batch_header import HEADER_SIZE_BYTES
from storage_core.record.batch_window import walk_window
from storage_core.record.section import PADDING_BYTES
from storage_core.segment.file_names import DELETED_SUFFIX

if TYPE_CHECKING:
    import numpy.typing as npt

    from storage_core.filesystem import FileSystem, OpenFile
    from storage_core.record.batch_window import BatchWindow
    from storage_core.scan.spans import LogSpan

__all__ = ["WINDOW_BYTES", "FileReplacedError", "WindowBuffer", "WindowSource", "needed_bytes", "open_span"]

# The first window behind damage.
_FIRST_WINDOW_BYTES: Final = 4096
_WINDOW_GROWTH: Final = 4
# Large enough for the decoder to work on many small batches at once, small enough for what it
# produces to stay in a processor's cache.
WINDOW_BYTES: Final = 4 << 20


class FileReplacedError(Exception):
    """The file is not the one that was planned, or is shorter: the span has to be found again."""


def open_span(filesystem: FileSystem, span: LogSpan) -> OpenFile:
    """Open the log file that was planned, under its name or the one that awaits its removal.

    Raises:
        FileReplacedError: Neither name leads to the file that was planned.
    """
    path = os.path.join(span.directory, span.file_name)
    for candidate in (path, path + DELETED_SUFFIX):
        try:
            opened = filesystem.open(candidate)
        except FileNotFoundError:
            continue
        if _is_as_planned(opened, span):
            return opened
        opened.close()
    raise FileReplacedError


def _is_as_planned(opened: OpenFile, span: LogSpan) -> bool:
    status = opened.status
    if status.inode != span.inode:
        return False
    if span.file_size_bytes is not None:
        return status.size_bytes == span.file_size_bytes
    return status.size_bytes >= span.end_position_bytes


class WindowBuffer:
    """A buffer that is filled again and again, and grows for a batch that does not fit."""

    def __init__(self, size_bytes: int) -> None:
        # Without a header, a window could not tell how much more it needs.
        self.array = np.empty(max(size_bytes, HEADER_SIZE_BYTES) + PADDING_BYTES, np.uint8)

    @property
    def size_bytes(self) -> int:
        """How many bytes fit, padding aside."""
        return len(self.array) - PADDING_BYTES

    def ensure(self, size_bytes: int, keep: npt.NDArray[np.uint8]) -> None:
        """Make room for ``size_bytes`` in all, beginning with what is kept."""
        if size_bytes > self.size_bytes:
            grown = np.empty(size_bytes + PADDING_BYTES, np.uint8)
            grown[: len(keep)] = keep
            self.array = grown
        else:
            self.array[: len(keep)] = keep


class WindowSource:
    """Reads a span of a file, window by window, from wherever the reader wants to go on.

    Attributes:
        position_bytes: Where the next window begins.
        size_bytes: How many bytes the last window was made of.
    """

    def __init__(self, opened: OpenFile, span: LogSpan, buffer: WindowBuffer) -> None:
        self.position_bytes = span.position_bytes
        self.size_bytes = 0
        self._opened = opened
        self._end_bytes = span.end_position_bytes
        self._buffer = buffer
        # What the buffer holds from the position on: where it begins, and how much it is.
        self._start = 0
        self._held_bytes = 0
        self._window_bytes = buffer.size_bytes
        self._needed_bytes = 0

    @property
    def is_at_end(self) -> bool:
        """Whether the span is read."""
        return self.position_bytes >= self._end_bytes

    @property
    def is_last(self) -> bool:
        """Whether the last window reaches to the span's end."""
        return self.position_bytes + self.size_bytes >= self._end_bytes

    def window(self, lowest_offset: int) -> BatchWindow:
        """The window that begins at the position. Its bytes are valid until the next one is asked for.

        Args:
            lowest_offset: The offset behind the batch before.

        Raises:
            FileReplacedError: The file became shorter.
        """
        size_bytes = max(self._window_bytes, self._needed_bytes)
        self.size_bytes = size_bytes = min(size_bytes, self._end_bytes - self.position_bytes)
        if self._held_bytes < size_bytes:
            self._fill(size_bytes)
        held = self._buffer.array[self._start :]
        return walk_window(self._opened.path, self.position_bytes, held, size_bytes, lowest_offset)

    def _fill(self, size_bytes: int) -> None:
        buffer = self._buffer
        buffer.ensure(size_bytes, buffer.array[self._start : self._start + self._held_bytes])
        wanted_bytes = min(buffer.size_bytes, self._end_bytes - self.position_bytes)
        room = buffer.array.data[self._held_bytes : wanted_bytes]
        if self._opened.read_into(room, self.position_bytes + self._held_bytes) < len(room):
            raise FileReplacedError
        self._start, self._held_bytes = 0, wanted_bytes

    def go_behind(self, window: BatchWindow) -> None:
        """Go on behind the batches of the window, which were all good."""
        self._go_to(window.position_bytes + window.end)
        self._needed_bytes = needed_bytes(window, self.size_bytes)
        self._window_bytes = min(_WINDOW_GROWTH * self._window_bytes, self._buffer.size_bytes)

    def go_behind_damage(self, position_bytes: int) -> None:
        """Go on behind damage, in small windows at first: where there is some, there may be more."""
        self._go_to(position_bytes)
        self._needed_bytes = 0
        self._window_bytes = min(_FIRST_WINDOW_BYTES, self._buffer.size_bytes)

    def _go_to(self, position_bytes: int) -> None:
        step_bytes = min(position_bytes - self.position_bytes, self._held_bytes)
        self._start += step_bytes
        self._held_bytes -= step_bytes
        self.position_bytes = position_bytes


def needed_bytes(window: BatchWindow, size_bytes: int) -> int:
    """How many bytes the batch takes that begins behind a window's last one; 0 if that is not known."""
    return size_bytes - window.end + window.missing_bytes if window.missing_bytes else 0
