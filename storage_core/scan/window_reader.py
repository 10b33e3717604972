"""Read a span of a segment file as windows of whole batches, in bounded memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import numpy as np

from storage_core.errors import BatchTooLargeError, CorruptRecordError
from storage_core.record.batch_header import HEADER_SIZE_BYTES, LOG_OVERHEAD_BYTES
from storage_core.record.batch_window import walk_window
from storage_core.record.section import PADDING_BYTES
from storage_core.segment.file_names import DELETED_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from storage_core.filesystem import FileSystem, OpenFile
    from storage_core.record.batch_window import BatchWindow
    from storage_core.scan.spans import LogSpan

__all__ = ["WINDOW_BYTES", "FileReplacedError", "open_span", "read_windows"]

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


def read_windows(
    opened: OpenFile, span: LogSpan, buffer: WindowBuffer, max_batch_bytes: int
) -> Iterator[BatchWindow]:
    """Read the batches of a span. A window's bytes are valid until the next one is asked for.

    Raises:
        FileReplacedError: The file became shorter.
        BatchTooLargeError: A batch is larger than ``max_batch_bytes``.
        CorruptRecordError: There are bytes that are no batch.
    """
    position_bytes = span.position_bytes
    kept = 0
    while position_bytes < span.end_position_bytes:
        wanted = min(buffer.size_bytes, span.end_position_bytes - position_bytes)
        view = buffer.array.data
        if opened.read_into(view[kept:wanted], position_bytes + kept) < wanted - kept:
            raise FileReplacedError
        is_last = position_bytes + wanted == span.end_position_bytes
        window = walk_window(opened.path, position_bytes, buffer.array, wanted)
        too_large = np.flatnonzero(window.headers["batch_length"] > max_batch_bytes - LOG_OVERHEAD_BYTES)
        if len(too_large):
            raise _too_large_error(window, int(window.starts[too_large[0]]), max_batch_bytes)
        if len(window.starts):
            if position_bytes == span.position_bytes:
                _require_planned_start(window, span)
            yield window
        if window.is_blank_behind:
            _require_blank(opened, position_bytes + window.end, span.end_position_bytes)
            return
        rest = buffer.array[window.end : wanted]
        if is_last:
            if rest.any():
                raise _cut_off_error(window, span)
            return
        if window.missing_bytes + len(rest) > max_batch_bytes:
            raise _too_large_error(window, window.end, max_batch_bytes)
        position_bytes += window.end
        kept = len(rest)
        buffer.ensure(kept + window.missing_bytes, rest)


def _require_planned_start(window: BatchWindow, span: LogSpan) -> None:
    """A span's first batch begins at its first offset or before; in another file offsets may be missing."""
    if span.position_bytes > 0 and window.headers["base_offset"][0] > span.start_offset:
        raise FileReplacedError


def _require_blank(opened: OpenFile, start_bytes: int, end_bytes: int) -> None:
    """Zeros may end a file, as preallocated space; in front of anything else they are a hole."""
    position_bytes = start_bytes
    while position_bytes < end_bytes:
        data = opened.read_at(min(WINDOW_BYTES, end_bytes - position_bytes), position_bytes)
        if not data:
            raise FileReplacedError
        if data.count(0) != len(data):
            raise CorruptRecordError(
                "Expected record batches, found zeros with something else behind them: data was lost here.",
                path=opened.path,
                position_bytes=start_bytes,
                end_position_bytes=position_bytes + len(data),
            )
        position_bytes += len(data)


def _cut_off_error(window: BatchWindow, span: LogSpan) -> CorruptRecordError:
    start_bytes = window.position_bytes + window.end
    return CorruptRecordError(
        f"Expected a whole record batch, found only its first {span.end_position_bytes - start_bytes} "
        "bytes at the end of a closed segment: the file was cut off.",
        path=window.path,
        position_bytes=start_bytes,
        end_position_bytes=span.end_position_bytes,
    )


def _too_large_error(window: BatchWindow, start: int, max_batch_bytes: int) -> BatchTooLargeError:
    start_bytes = window.position_bytes + start
    view = window.buffer.data[start : start + LOG_OVERHEAD_BYTES]
    base_offset = int.from_bytes(view[:8], "big", signed=True)
    size_bytes = int.from_bytes(view[8:], "big", signed=True) + LOG_OVERHEAD_BYTES
    return BatchTooLargeError(
        f"Expected a record batch of at most {max_batch_bytes} bytes, found one that declares {size_bytes}. "
        "If it is genuine, raise maxDecompressedBatchBytes.",
        path=window.path,
        position_bytes=start_bytes,
        end_position_bytes=start_bytes + size_bytes,
        offset=base_offset,
    )
