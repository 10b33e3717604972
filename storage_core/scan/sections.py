"""Turn chosen batches of a window into sections of uncompressed records, ready to be decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from storage_core.record.batch_header import CODEC_MASK, HEADER_SIZE_BYTES, LOG_OVERHEAD_BYTES
from storage_core.record.compression import OutputFullError, UndecodableError, decompress_into
from storage_core.record.decode import fail_too_large, fail_undecodable
from storage_core.record.section import PADDING_BYTES, RecordSection
from storage_core.scan.window_reader import WINDOW_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from storage_core.record.batch_window import BatchWindow

__all__ = ["MAX_ROWS", "SectionMaker"]

# More rows in one Arrow batch make nothing faster.
MAX_ROWS: Final = 65_536
# Enough is decompressed when this much of the window's size is filled.
_ENOUGH_BYTES: Final = WINDOW_BYTES * 3 // 4


class SectionMaker:
    """Makes sections, reusing one buffer for what it decompresses.

    A section's bytes are valid until the next one is asked for.
    """

    def __init__(self, max_batch_bytes: int) -> None:
        self._max_batch_bytes = max_batch_bytes
        self._output = np.empty(WINDOW_BYTES + 1 + PADDING_BYTES, np.uint8)

    def sections(self, window: BatchWindow, indexes: npt.NDArray[np.int64]) -> Iterator[RecordSection]:
        """The records of some batches of a window, in order.

        Raises:
            BatchTooLargeError: A batch inflates beyond the limit.
            CorruptRecordError: A codec refuses its bytes.
        """
        codecs = window.headers["attributes"][indexes] & CODEC_MASK
        changes = np.flatnonzero(np.diff(codecs != 0)) + 1
        for group in np.split(indexes, changes):
            if len(group) and window.headers["attributes"][group[0]] & CODEC_MASK:
                yield from self._decompressed(window, group)
            else:
                yield from _as_they_are(window, group)

    def _decompressed(self, window: BatchWindow, indexes: npt.NDArray[np.int64]) -> Iterator[RecordSection]:
        filled: list[int] = [0]
        first = 0
        rows = 0
        for number, index in enumerate(indexes.tolist()):
            count = int(window.headers["record_count"][index])
            is_enough = filled[-1] >= _ENOUGH_BYTES or rows + count > MAX_ROWS
            if is_enough and number > first:
                yield self._section(window, indexes[first:number], filled)
                filled, first, rows = [0], number, 0
            end = self._decompress(window, index, filled[-1])
            if end is None:
                # It did not fit behind the others: they go first, and it gets all the room there is.
                yield self._section(window, indexes[first:number], filled)
                filled, first, rows = [0], number, 0
                end = self._decompress(window, index, 0)
                assert end is not None  # noqa: S101  (the buffer grows for a batch of its own)
            filled.append(end)
            rows += count
        if len(indexes) > first:
            yield self._section(window, indexes[first:], filled)

    def _decompress(self, window: BatchWindow, index: int, filled_bytes: int) -> int | None:
        """Decompress one batch behind what is there; None if there is not enough room, but was some."""
        header = window.header(index)
        start = int(window.starts[index])
        payload = window.buffer.data[start + HEADER_SIZE_BYTES : start + header.size_bytes]
        while True:
            room = self._output.data[filled_bytes:-PADDING_BYTES]
            try:
                return filled_bytes + decompress_into(
                    header.codec, payload, room[: self._max_batch_bytes + 1]
                )
            except UndecodableError as error:
                fail_undecodable(window.path, header, error)
            except OutputFullError:
                if len(room) > self._max_batch_bytes:
                    fail_too_large(window.path, header, self._max_batch_bytes)
                if filled_bytes:
                    return None
                size_bytes = min(4 * len(room), self._max_batch_bytes + 1)
                self._output = np.empty(size_bytes + PADDING_BYTES, np.uint8)

    def _section(
        self, window: BatchWindow, indexes: npt.NDArray[np.int64], filled: list[int]
    ) -> RecordSection:
        borders = np.array(filled, np.int64)
        return RecordSection(
            self._output[: filled[-1] + PADDING_BYTES],
            borders[:-1],
            borders[1:],
            window.headers[indexes],
            window.starts[indexes] + window.position_bytes,
            window.path,
        )


def _as_they_are(window: BatchWindow, indexes: npt.NDArray[np.int64]) -> Iterator[RecordSection]:
    counts = window.headers["record_count"][indexes].astype(np.int64)
    parts = (np.cumsum(counts) - 1) // MAX_ROWS
    for group in np.split(indexes, np.flatnonzero(np.diff(parts)) + 1):
        if not len(group):
            continue
        headers = window.headers[group]
        starts = window.starts[group]
        lengths = headers["batch_length"].astype(np.int64)
        yield RecordSection(
            window.buffer,
            starts + HEADER_SIZE_BYTES,
            starts + LOG_OVERHEAD_BYTES + lengths,
            headers,
            starts + window.position_bytes,
            window.path,
        )
