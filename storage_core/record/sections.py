"""Turn chosen batches of a window into sections of uncompressed records, ready to be decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from storage_core.record.batch_header import (
    CODEC_MASK,
    HEADER_SIZE_BYTES,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
)
from storage_core.record.compression import CODEC_NAMES, Decompressor, OutputFullError, UndecodableError
from storage_core.record.decode import fail_too_large, fail_undecodable
from storage_core.record.legacy_records import wrapper_payload
from storage_core.record.section import PADDING_BYTES, RecordSection

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from storage_core.record import WantedFields
    from storage_core.record.batch_window import BatchWindow

__all__ = ["MAX_ROWS", "SectionMaker"]


# More rows in one Arrow batch make nothing faster.
MAX_ROWS: Final = 65_536
# Enough is decompressed when this much of the window's size is filled.
# Large enough for the decoder to work on many small batches at once, small enough for what it
# produces to stay in a processor's cache.
WINDOW_BYTES: Final = 4 << 20
_ENOUGH_BYTES: Final = WINDOW_BYTES * 3 // 4
# No header is believed that promises more records than this: a hundred bytes could fill the memory with
# rows that are not there. Real batches hold fewer, and of any others the records are counted.
_MOST_ROWS_TOLD: Final = 1 << 20
# A byte for each field of a record.
_SMALLEST_RECORD_BYTES: Final = 7


class SectionMaker:
    """Makes sections, reusing one buffer for what it decompresses.

    A section's bytes are valid until the next one is asked for.
    """

    def __init__(self, max_batch_bytes: int, wanted: WantedFields) -> None:
        self._max_batch_bytes = max_batch_bytes
        self._wanted = wanted
        self._decompressor = Decompressor()
        self._output = np.empty(WINDOW_BYTES + 1 + PADDING_BYTES, np.uint8)

    def sections(self, window: BatchWindow, indexes: npt.NDArray[np.int64]) -> Iterator[RecordSection]:
        """The records of some batches of a window, in order.

        Raises:
            BatchTooLargeError: A batch inflates beyond the limit.
            CorruptRecordError: A codec refuses its bytes.
        """
        if not len(indexes):
            return
        if not window.has_messages:
            yield from self._current_sections(window, indexes)
            return
        is_legacy = window.headers["magic"][indexes] < MAGIC_V2
        changes = np.flatnonzero(np.diff(is_legacy)) + 1
        for first, group in zip([0, *changes.tolist()], np.split(indexes, changes), strict=True):
            yield from (
                self._legacy_sections(window, group)
                if is_legacy[first]
                else self._current_sections(window, group)
            )

    def _legacy_sections(
        self, window: BatchWindow, indexes: npt.NDArray[np.int64]
    ) -> Iterator[RecordSection]:
        """Sections of messages of format v0 and v1."""
        if (window.headers["attributes"][indexes] & CODEC_MASK).any():
            yield from self._decompressed(window, indexes, _legacy_payloads(window, indexes))
        else:
            yield from _as_they_are(window, indexes, 0)

    def _current_sections(
        self, window: BatchWindow, indexes: npt.NDArray[np.int64]
    ) -> Iterator[RecordSection]:
        """Sections of batches of format v2."""
        headers = window.headers.take(indexes)
        is_compressed = (headers["attributes"] & CODEC_MASK) != 0
        if not is_compressed.any():
            yield from _as_they_are(window, indexes, HEADER_SIZE_BYTES)
            return
        # Where only some are compressed, the others are copied: many small sections would cost more.
        is_told = self._are_told_by_headers(headers)
        changes = np.flatnonzero(np.diff(is_told)) + 1
        for first, group in zip([0, *changes.tolist()], np.split(indexes, changes), strict=True):
            yield from (
                self._headers_only(window, group)
                if is_told[first]
                else self._decompressed(window, group, _payloads(window, group))
            )

    def _are_told_by_headers(self, headers: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Per batch: whether its header says all that is wanted, so that its records need not be seen."""
        wanted = self._wanted
        if wanted.key or wanted.value or wanted.headers:
            return np.zeros(len(headers), np.bool_)
        counts = headers["record_count"].astype(np.int64)
        attributes = headers["attributes"]
        is_told: npt.NDArray[np.bool_] = counts == headers["last_offset_delta"].astype(np.int64) + 1
        # A count that no batch within the limit can have, or an unknown codec, is for the decoder to refuse.
        is_told &= counts * _SMALLEST_RECORD_BYTES <= self._max_batch_bytes
        is_told &= counts <= _MOST_ROWS_TOLD
        is_told &= (attributes & CODEC_MASK) < len(CODEC_NAMES)
        if wanted.timestamp:
            is_told &= (attributes & LOG_APPEND_TIME_FLAG) != 0
        return is_told

    def _headers_only(self, window: BatchWindow, indexes: npt.NDArray[np.int64]) -> Iterator[RecordSection]:
        for group in _by_rows(window, indexes):
            yield RecordSection(
                window.buffer,
                # Never looked at; as long as the records may be at most.
                np.zeros(len(group), np.int64),
                np.full(len(group), self._max_batch_bytes, np.int64),
                window.headers.take(group),
                window.starts[group] + window.position_bytes,
                window.path,
            )

    def _decompressed(
        self, window: BatchWindow, indexes: npt.NDArray[np.int64], payloads: Iterator[memoryview]
    ) -> Iterator[RecordSection]:
        filled: list[int] = [0]
        first = 0
        rows = 0
        headers = window.headers.take(indexes)
        counts = headers["record_count"].tolist()
        codecs = (headers["attributes"] & CODEC_MASK).tolist()
        for number, payload in enumerate(payloads):
            is_enough = filled[-1] >= _ENOUGH_BYTES or rows + counts[number] > MAX_ROWS
            end = None
            if not is_enough or number == first:
                end = self._decompress(codecs[number], payload, filled[-1], window, indexes[number])
            if end is None:
                # Those before go first, and this one gets all the room there is.
                yield self._section(window, indexes[first:number], filled)
                filled, first, rows = [0], number, 0
                end = self._decompress(codecs[number], payload, 0, window, indexes[number])
                assert end is not None  # noqa: S101  (the buffer grows for a batch of its own)
            filled.append(end)
            rows += counts[number]
        yield self._section(window, indexes[first:], filled)

    def _decompress(
        self, codec: int, payload: memoryview, filled_bytes: int, window: BatchWindow, index: int
    ) -> int | None:
        """Decompress a batch behind what is there; None if there is not enough room, but was some."""
        while True:
            room_bytes = len(self._output) - PADDING_BYTES - filled_bytes
            room = self._output.data[filled_bytes : filled_bytes + min(room_bytes, self._max_batch_bytes + 1)]
            try:
                return filled_bytes + self._decompressor.decompress_into(codec, payload, room)
            except UndecodableError as error:
                fail_undecodable(window.path, window.header(index), error)
            except OutputFullError:
                if room_bytes > self._max_batch_bytes:
                    fail_too_large(window.path, window.header(index), self._max_batch_bytes)
                if filled_bytes:
                    return None
                size_bytes = min(4 * room_bytes, self._max_batch_bytes + 1)
                self._output = np.empty(size_bytes + PADDING_BYTES, np.uint8)

    def _section(
        self, window: BatchWindow, indexes: npt.NDArray[np.int64], filled: list[int]
    ) -> RecordSection:
        borders = np.array(filled, np.int64)
        return RecordSection(
            self._output[: filled[-1] + PADDING_BYTES],
            borders[:-1],
            borders[1:],
            window.headers.take(indexes),
            window.starts[indexes] + window.position_bytes,
            window.path,
        )


def _payloads(window: BatchWindow, indexes: npt.NDArray[np.int64]) -> Iterator[memoryview]:
    """The compressed records of some batches."""
    view = window.buffer.data
    starts = window.starts[indexes]
    ends = starts + LOG_OVERHEAD_BYTES + window.headers["batch_length"][indexes]
    for start, end in zip((starts + HEADER_SIZE_BYTES).tolist(), ends.tolist(), strict=True):
        yield view[start:end]


def _legacy_payloads(window: BatchWindow, indexes: npt.NDArray[np.int64]) -> Iterator[memoryview]:
    """The compressed sets of wrappers, and plain messages as they are."""
    view = window.buffer.data
    headers = window.headers.take(indexes)
    starts = window.starts[indexes]
    ends = (starts + LOG_OVERHEAD_BYTES + headers["batch_length"]).tolist()
    codecs = (headers["attributes"] & CODEC_MASK).tolist()
    columns = (indexes.tolist(), starts.tolist(), ends, headers["magic"].tolist(), codecs)
    for index, start, end, magic, codec in zip(*columns, strict=True):
        message = view[start:end]
        if codec:
            try:
                message = wrapper_payload(message, magic, codec)
            except UndecodableError as error:
                fail_undecodable(window.path, window.header(index), error)
        yield message


def _as_they_are(
    window: BatchWindow, indexes: npt.NDArray[np.int64], header_bytes: int
) -> Iterator[RecordSection]:
    """Records that are not compressed; each batch's first ``header_bytes`` are none."""
    for group in _by_rows(window, indexes):
        headers = window.headers.take(group)
        starts = window.starts[group]
        lengths = headers["batch_length"].astype(np.int64)
        yield RecordSection(
            window.buffer,
            starts + header_bytes,
            starts + LOG_OVERHEAD_BYTES + lengths,
            headers,
            starts + window.position_bytes,
            window.path,
        )


def _by_rows(window: BatchWindow, indexes: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Split neighbouring batches into groups of about `MAX_ROWS` records."""
    counts = window.headers["record_count"][indexes].astype(np.int64)
    parts = (np.cumsum(counts) - 1) // MAX_ROWS
    return np.split(indexes, np.flatnonzero(np.diff(parts)) + 1)
