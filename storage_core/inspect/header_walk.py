"""The batch headers of a log file as columns, without the records: the quickest look at a whole log.

Large batches are hopped over: only their headers are read. Small ones come by whole windows, because a read for each
would take longer than reading them. As in `BatchWalk`, a walk ends where a broker would say that the file ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from storage_core.errors import CorruptRecordError
from storage_core.record.batch_header import (
    HEADER_DTYPE,
    HEADER_SIZE_BYTES,
    LENGTH_AND_MAGIC,
    LENGTH_POSITION,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    MAX_OFFSET,
    MIN_V2_LENGTH,
)
from storage_core.segment.batch_walk import BatchWalk
from storage_core.segment.batch_windows import WindowBuffer, WindowReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.filesystem import OpenFile
    from storage_core.record.batch_window import BatchWindow


_Int64Array = npt.NDArray[np.int64]
# Batches of at least this mean size are hopped over.
_HOPPED_BYTES: Final = 4096
# So many batches are hopped over before their mean size is known.
_TRIED: Final = 32
_MOST_HEADERS: Final = 8192
_WINDOW_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class HeaderBlock:
    """Headers of consecutive batches.

    Attributes:
        positions_bytes: Where each batch begins in the file.
        headers: A structured array of `HEADER_DTYPE`. The base offset of a wrapper is a lower bound.
    """

    positions_bytes: _Int64Array
    headers: npt.NDArray[Any]

    @property
    def last_offsets(self) -> _Int64Array:
        """The last offset of each batch."""
        last_offsets: _Int64Array = self.headers["base_offset"].astype(np.int64)
        last_offsets += self.headers["last_offset_delta"]
        return last_offsets

    @property
    def sizes_bytes(self) -> _Int64Array:
        """The size of each batch, header included."""
        sizes_bytes: _Int64Array = self.headers["batch_length"].astype(np.int64) + LOG_OVERHEAD_BYTES
        return sizes_bytes


class HeaderWalk:
    """Walks the headers of one open log file, from a batch boundary up to an end.

    Attributes:
        position_bytes: Where the batches walked so far end.
        next_offset: The offset after the last one of them.
    """

    def __init__(
        self, log_file: OpenFile, base_offset: int, end_position_bytes: int, position_bytes: int = 0
    ) -> None:
        self.position_bytes = position_bytes
        self.next_offset = base_offset
        self._log_file = log_file
        self._end_bytes = end_position_bytes
        self._buffer: WindowBuffer | None = None

    def blocks(self) -> Iterator[HeaderBlock]:
        """The headers, block by block.

        Raises:
            CorruptRecordError: Other bytes than a batch, or offsets that do not ascend. All before were yielded.
        """
        while self.position_bytes < self._end_bytes:
            start_bytes = self.position_bytes
            count = 0
            for block in self._hop():
                count += len(block.headers)
                yield from self._in_order(block)
            if not count or self.position_bytes - start_bytes < count * _HOPPED_BYTES:
                yield from self._window_blocks()
            if self.position_bytes == start_bytes:
                self._require_end()
                return

    def _hop(self) -> Iterator[HeaderBlock]:
        """Blocks of v2 headers, each read by itself, while the batches are large."""
        read_at, unpack = self._log_file.read_at, LENGTH_AND_MAGIC.unpack_from
        position_bytes, end_bytes = self.position_bytes, self._end_bytes
        most = _TRIED
        while True:
            start_bytes = position_bytes
            positions: list[int] = []
            heads: list[bytes] = []
            while len(positions) < most:
                head = read_at(HEADER_SIZE_BYTES, position_bytes)
                if len(head) < HEADER_SIZE_BYTES:
                    break
                length, magic = unpack(head, LENGTH_POSITION)
                batch_end_bytes = position_bytes + LOG_OVERHEAD_BYTES + length
                if magic != MAGIC_V2 or length < MIN_V2_LENGTH or batch_end_bytes > end_bytes:
                    break
                positions.append(position_bytes)
                heads.append(head)
                position_bytes = batch_end_bytes
            if positions:
                yield HeaderBlock(np.array(positions, np.int64), np.frombuffer(b"".join(heads), HEADER_DTYPE))
            if len(positions) < most or position_bytes - start_bytes < len(positions) * _HOPPED_BYTES:
                return
            most = _MOST_HEADERS

    def _window_blocks(self) -> Iterator[HeaderBlock]:
        """Blocks of headers of any format, read with the batches, while the batches are small."""
        if self._buffer is None:
            self._buffer = WindowBuffer(_WINDOW_BYTES)
        reader = WindowReader(self._log_file, self.position_bytes, self._end_bytes, self._buffer)
        while not reader.is_at_end:
            window = reader.window(self.next_offset)
            if not len(window.starts):
                return
            is_last = reader.is_last
            yield from self._in_order(HeaderBlock(window.starts + window.position_bytes, window.headers))
            if is_last or window.error is not None or self._has_large_batches(window):
                return
            reader.advance(window)
            if reader.needed_bytes > reader.end_position_bytes - reader.position_bytes:
                return

    @staticmethod
    def _has_large_batches(window: BatchWindow) -> bool:
        return not window.has_messages and window.end >= len(window.starts) * _HOPPED_BYTES

    def _in_order(self, block: HeaderBlock) -> Iterator[HeaderBlock]:
        """The block up to the first batch whose offsets do not follow those before, which is an error."""
        first_offsets = block.headers["base_offset"].astype(np.int64)
        last_offsets = block.last_offsets
        lowest = np.empty_like(last_offsets)
        lowest[0] = self.next_offset
        lowest[1:] = last_offsets[:-1] + 1
        is_wrong = (first_offsets < lowest) | (last_offsets < first_offsets)
        count = int(is_wrong.argmax()) if is_wrong.any() else len(is_wrong)
        if count:
            self.position_bytes = int(block.positions_bytes[count - 1] + block.sizes_bytes[count - 1])
            self.next_offset = min(int(last_offsets[count - 1]) + 1, MAX_OFFSET)
            yield (
                block
                if count == len(is_wrong)
                else HeaderBlock(block.positions_bytes[:count], block.headers[:count])
            )
        if count < len(is_wrong):
            raise CorruptRecordError(
                f"Expected offsets from {int(lowest[count])} on, found a batch from {int(first_offsets[count])} to "
                f"{int(last_offsets[count])}. The file is damaged here.",
                path=self._log_file.path,
                position_bytes=int(block.positions_bytes[count]),
                offset=int(first_offsets[count]),
            )

    def _require_end(self) -> None:
        """Raise the error of a plain walk if the bytes after the last batch are no end of a file."""
        next(BatchWalk(self._log_file, self.next_offset, self._end_bytes).skim(self.position_bytes), None)
