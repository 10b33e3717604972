"""Sections: the uncompressed records of some batches in one buffer, which the decoders work on."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from storage_core.errors import BatchTooLargeError, CorruptRecordError, UnsupportedFormatError
from storage_core.record.batch_header import (
    CODEC_MASK,
    CODEC_NAMES,
    HEADER_SIZE_BYTES,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    SMALLEST_RECORD_BYTES,
    BatchHeader,
    header_rows,
)
from storage_core.record.compression import Decompressor, OutputFullError, UndecodableError, wrapper_payload

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from storage_core.record.arrow_columns import RecordHeaders, Slices
    from storage_core.record.batch_window import BatchWindow

# The column decoder reads up to this many bytes beyond the last record.
PADDING_BYTES: Final = 16
# More rows in one Arrow batch make nothing faster.
MAX_ROWS: Final = 65_536
# Large enough for the decoder to work on many small batches at once, small enough for what it
# produces to stay in a processor's cache.
WINDOW_BYTES: Final = 4 << 20
# A section ends once this much is decompressed.
_FULL_SECTION_BYTES: Final = WINDOW_BYTES * 3 // 4
# A header that promises more records is not trusted: a hundred bytes could fill the memory with rows that do
# not exist. The records of such a batch are counted.
_MAX_TRUSTED_RECORD_COUNT: Final = 1 << 20
# What a decoded record and a decoded record header count as, beside their bytes: about what a reader allocates for the
# smallest ones. Of each kind, a batch may hold as many as come to the limit for its bytes.
RECORD_COST_BYTES: Final = 32
RECORD_HEADER_COST_BYTES: Final = 128
# The first guess at how far a single batch inflates; a wrong guess costs another attempt.
_INFLATION_GUESS: Final = 8
_MIN_INFLATION_GUESS_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class WantedFields:
    """The fields of a record to decode besides the offset.

    ``tails`` is for rewriting records of format v2: all bytes after the timestamp delta. It requires key and value.
    """

    timestamp: bool = True
    key: bool = True
    value: bool = True
    headers: bool = False
    tails: bool = False


@dataclass(frozen=True, slots=True)
class RecordSection:
    """The uncompressed records of some batches, all in one buffer.

    Either all batches are of format v2, or all are messages of formats v0 and v1. The records of a
    wrapper are its inner messages; those of a plain message are the whole message itself.

    Attributes:
        buffer: The bytes, with `PADDING_BYTES` more after the last record.
        starts: Per batch, where its records begin in ``buffer``.
        ends: Per batch, where they end.
        headers: Per batch, its header (a structured array of `HEADER_DTYPE`). No batch is empty.
        positions: Per batch, its position in the file; for messages.
        path: The file; for messages.
        max_batch_bytes: What the records of a batch may take, and what decoding them may.
    """

    buffer: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    headers: npt.NDArray[Any]
    positions: npt.NDArray[np.int64]
    path: str
    max_batch_bytes: int = sys.maxsize

    def check_cost(self, counts: npt.NDArray[np.int64], cost_bytes: int, what: str) -> None:
        """Check that what decoding allocates for each batch stays within the limit.

        Args:
            counts: Per batch, their number.
            cost_bytes: The size of each.
            what: Their name.

        Raises:
            BatchTooLargeError: A batch holds too many.
        """
        most = self.max_batch_bytes // cost_bytes
        if counts.max() > most:
            index = int((counts > most).argmax())
            raise BatchTooLargeError(
                f"Expected a batch of at most {most} {what}, for which decoding takes {self.max_batch_bytes} bytes, found "
                f"{counts[index]}. If this batch is genuine, raise maxDecompressedBatchBytes.",
                **self._location(index),
            )

    def error(self, index: int, message: str, record_index: int | None = None) -> CorruptRecordError:
        """Return an error about the records of a batch whose CRC is right."""
        return CorruptRecordError(
            f"{message} The batch's CRC is right: it was written like this.",
            record_index=record_index,
            **self._location(index),
        )

    def _location(self, index: int) -> dict[str, Any]:
        header = self.headers[index]
        position_bytes, base_offset = int(self.positions[index]), int(header["base_offset"])
        return {
            "path": self.path,
            "position_bytes": position_bytes,
            "end_position_bytes": position_bytes + LOG_OVERHEAD_BYTES + int(header["batch_length"]),
            "offset": base_offset,
            "last_offset": base_offset + int(header["last_offset_delta"]),
        }


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """The decoded records of a section, one column per field, in file order.

    ``row_counts`` has the number of rows of each batch. A field that was not wanted is None; so are the
    tails of messages of formats v0 and v1.
    """

    row_counts: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    timestamps_ms: npt.NDArray[np.int64] | None
    keys: Slices | None
    values: Slices | None
    headers: RecordHeaders | None
    tails: Slices | None = None


def batch_section(
    batch: bytes | memoryview, header: BatchHeader, *, path: str, limit_bytes: int
) -> RecordSection:
    """Decompress one batch, whose CRC was checked, into a section of its own.

    Raises:
        BatchTooLargeError: Its records inflate to more than ``limit_bytes``.
        CorruptRecordError: The codec rejects them.
    """
    payload = memoryview(batch)
    if header.magic == MAGIC_V2:
        payload = payload[HEADER_SIZE_BYTES:]
    elif header.is_wrapper:
        try:
            payload = wrapper_payload(payload, header.magic, header.codec)
        except UndecodableError as error:
            _fail_undecodable(path, header, error)
    if header.codec:
        buffer = _decompress(payload, header, path, limit_bytes)
    else:
        buffer = np.zeros(len(payload) + PADDING_BYTES, np.uint8)
        buffer[: len(payload)] = payload
    return RecordSection(
        buffer,
        np.zeros(1, np.int64),
        np.array([len(buffer) - PADDING_BYTES], np.int64),
        header_rows(np.frombuffer(batch, np.uint8), np.zeros(1, np.int64), header.base_offset),
        np.array([header.position_bytes], np.int64),
        path,
        limit_bytes,
    )


class SectionMaker:
    """Turns the batches of a window into sections, and reuses one buffer for what it decompresses.

    A section's bytes are valid until the next section is requested.
    """

    def __init__(self, max_batch_bytes: int, wanted: WantedFields) -> None:
        self._max_batch_bytes = max_batch_bytes
        self._wanted = wanted
        self._decompressor = Decompressor()
        self._output = np.empty(WINDOW_BYTES + 1 + PADDING_BYTES, np.uint8)

    def sections(self, window: BatchWindow, indexes: npt.NDArray[np.int64]) -> Iterator[RecordSection]:
        """Yield the records of the selected batches of a window, in order.

        Raises:
            BatchTooLargeError: A batch inflates beyond the limit.
            CorruptRecordError: A codec rejects its bytes.
        """
        if not len(indexes):
            return
        if not window.has_messages:
            yield from self._v2_sections(window, indexes)
            return
        is_legacy = window.headers["magic"][indexes] < MAGIC_V2
        for first, group in _runs(is_legacy, indexes):
            yield from (
                self._legacy_sections(window, group) if is_legacy[first] else self._v2_sections(window, group)
            )

    def _legacy_sections(
        self, window: BatchWindow, indexes: npt.NDArray[np.int64]
    ) -> Iterator[RecordSection]:
        if (window.headers["attributes"][indexes] & CODEC_MASK).any():
            yield from self._decompressed(window, indexes)
        else:
            yield from self._uncompressed(window, indexes, 0)

    def _v2_sections(self, window: BatchWindow, indexes: npt.NDArray[np.int64]) -> Iterator[RecordSection]:
        headers = window.headers.take(indexes)
        if not ((headers["attributes"] & CODEC_MASK) != 0).any():
            yield from self._uncompressed(window, indexes, HEADER_SIZE_BYTES)
            return
        # If only some are compressed, the others are copied: many small sections would cost more.
        header_suffices = self._header_suffices(headers)
        for first, group in _runs(header_suffices, indexes):
            yield from (
                self._headers_only(window, group)
                if header_suffices[first]
                else self._decompressed(window, group)
            )

    def _header_suffices(self, headers: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return True for each batch whose header has all wanted fields, so that its records need not be decompressed."""
        wanted = self._wanted
        if wanted.key or wanted.value or wanted.headers:
            return np.zeros(len(headers), np.bool_)
        counts = headers["record_count"].astype(np.int64)
        attributes = headers["attributes"]
        suffices: npt.NDArray[np.bool_] = counts == headers["last_offset_delta"].astype(np.int64) + 1
        # The decoder reports a count that no batch within the limit can have, and an unknown codec.
        suffices &= counts * SMALLEST_RECORD_BYTES <= self._max_batch_bytes
        suffices &= counts <= _MAX_TRUSTED_RECORD_COUNT
        suffices &= (attributes & CODEC_MASK) < len(CODEC_NAMES)
        if wanted.timestamp:
            suffices &= (attributes & LOG_APPEND_TIME_FLAG) != 0
        return suffices

    def _headers_only(self, window: BatchWindow, indexes: npt.NDArray[np.int64]) -> Iterator[RecordSection]:
        for group in _by_rows(window, indexes):
            # Never read; the records may be this long at most.
            ends = np.full(len(group), self._max_batch_bytes, np.int64)
            yield self._section_of(window, group, window.buffer, np.zeros(len(group), np.int64), ends)

    def _uncompressed(
        self, window: BatchWindow, indexes: npt.NDArray[np.int64], header_bytes: int
    ) -> Iterator[RecordSection]:
        """Yield sections of records that are not compressed and begin ``header_bytes`` after the start of their batch."""
        for group in _by_rows(window, indexes):
            starts = window.starts[group]
            ends = starts + LOG_OVERHEAD_BYTES + window.headers["batch_length"][group]
            yield self._section_of(window, group, window.buffer, starts + header_bytes, ends)

    def _decompressed(self, window: BatchWindow, indexes: npt.NDArray[np.int64]) -> Iterator[RecordSection]:
        filled: list[int] = [0]
        first = 0
        rows = 0
        headers = window.headers.take(indexes)
        counts = headers["record_count"].tolist()
        codecs = (headers["attributes"] & CODEC_MASK).tolist()
        for number, payload in enumerate(_payloads(window, indexes)):
            is_full = filled[-1] >= _FULL_SECTION_BYTES or rows + counts[number] > MAX_ROWS
            end = None
            if not is_full or number == first:
                end = self._decompress(codecs[number], payload, filled[-1], window, indexes[number])
            if end is None:
                # Emit the batches before this one, which then has the whole buffer.
                yield self._filled_section(window, indexes[first:number], filled)
                filled, first, rows = [0], number, 0
                end = self._decompress(codecs[number], payload, 0, window, indexes[number])
                assert end is not None  # noqa: S101  (the buffer grows for a batch of its own)
            filled.append(end)
            rows += counts[number]
        yield self._filled_section(window, indexes[first:], filled)

    def _decompress(
        self, codec: int, payload: memoryview, filled_bytes: int, window: BatchWindow, index: int
    ) -> int | None:
        """Decompress a batch after the ``filled_bytes``.

        Returns:
            None if only an empty buffer would have enough room.
        """
        while True:
            room_bytes = len(self._output) - PADDING_BYTES - filled_bytes
            room = self._output.data[filled_bytes : filled_bytes + min(room_bytes, self._max_batch_bytes + 1)]
            try:
                return filled_bytes + self._decompressor.decompress_into(codec, payload, room)
            except UndecodableError as error:
                _fail_undecodable(window.path, window.header(index), error)
            except OutputFullError:
                if room_bytes > self._max_batch_bytes:
                    _fail_too_large(window.path, window.header(index), self._max_batch_bytes)
                if filled_bytes:
                    return None
                size_bytes = min(4 * room_bytes, self._max_batch_bytes + 1)
                self._output = np.empty(size_bytes + PADDING_BYTES, np.uint8)

    def _filled_section(
        self, window: BatchWindow, indexes: npt.NDArray[np.int64], filled: list[int]
    ) -> RecordSection:
        borders = np.array(filled, np.int64)
        buffer = self._output[: filled[-1] + PADDING_BYTES]
        return self._section_of(window, indexes, buffer, borders[:-1], borders[1:])

    def _section_of(
        self,
        window: BatchWindow,
        indexes: npt.NDArray[np.int64],
        buffer: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
    ) -> RecordSection:
        """Return the section of some batches of a window, whose records are in a buffer."""
        positions = window.starts[indexes] + window.position_bytes
        headers = window.headers.take(indexes)
        return RecordSection(buffer, starts, ends, headers, positions, window.path, self._max_batch_bytes)


def _runs(
    flags: npt.NDArray[np.bool_], indexes: npt.NDArray[np.int64]
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Split batches where their flag changes; yield the number of each run's first batch, and the run's batches."""
    changes = np.flatnonzero(np.diff(flags)) + 1
    return zip([0, *changes.tolist()], np.split(indexes, changes), strict=True)


def _payloads(window: BatchWindow, indexes: npt.NDArray[np.int64]) -> Iterator[memoryview]:
    """Yield the compressed records of each batch, the compressed value of a wrapper, or a plain message."""
    view = window.buffer.data
    headers = window.headers.take(indexes)
    starts = window.starts[indexes]
    ends = (starts + LOG_OVERHEAD_BYTES + headers["batch_length"]).tolist()
    if headers["magic"][0] == MAGIC_V2:
        for start, end in zip((starts + HEADER_SIZE_BYTES).tolist(), ends, strict=True):
            yield view[start:end]
        return
    codecs = (headers["attributes"] & CODEC_MASK).tolist()
    columns = (indexes.tolist(), starts.tolist(), ends, headers["magic"].tolist(), codecs)
    for index, start, end, magic, codec in zip(*columns, strict=True):
        message = view[start:end]
        if codec:
            try:
                message = wrapper_payload(message, magic, codec)
            except UndecodableError as error:
                _fail_undecodable(window.path, window.header(index), error)
        yield message


def _by_rows(window: BatchWindow, indexes: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Split neighbouring batches into groups of about `MAX_ROWS` records."""
    counts = window.headers["record_count"][indexes].astype(np.int64)
    parts = (np.cumsum(counts) - 1) // MAX_ROWS
    return np.split(indexes, np.flatnonzero(np.diff(parts)) + 1)


def _decompress(
    payload: memoryview, header: BatchHeader, path: str, limit_bytes: int
) -> npt.NDArray[np.uint8]:
    """Decompress the records of one batch into a padded buffer of their own."""
    guess_bytes = min(max(len(payload) * _INFLATION_GUESS, _MIN_INFLATION_GUESS_BYTES), limit_bytes)
    while True:
        buffer = np.empty(guess_bytes + 1 + PADDING_BYTES, np.uint8)
        try:
            size_bytes = Decompressor().decompress_into(header.codec, payload, buffer.data[: guess_bytes + 1])
        except OutputFullError:
            if guess_bytes == limit_bytes:
                _fail_too_large(path, header, limit_bytes)
            guess_bytes = min(guess_bytes * 4, limit_bytes)
        except UndecodableError as error:
            _fail_undecodable(path, header, error)
        else:
            return buffer[: size_bytes + PADDING_BYTES]


def _fail_too_large(path: str, header: BatchHeader, limit_bytes: int) -> NoReturn:
    raise BatchTooLargeError(
        f"Expected a batch to inflate to at most {limit_bytes} bytes, found more. If this batch is genuine, "
        "raise maxDecompressedBatchBytes.",
        **header.error_location(path),
    )


def _fail_undecodable(path: str, header: BatchHeader, error: UndecodableError) -> NoReturn:
    is_unknown = header.codec >= len(CODEC_NAMES)
    codec = f"codec number {header.codec}" if is_unknown else CODEC_NAMES[header.codec]
    # Later versions may add codecs to format v2 only.
    kind = UnsupportedFormatError if is_unknown and not header.is_wrapper else CorruptRecordError
    raise kind(
        f"Expected records compressed with {codec}, but {error}. The batch's CRC is right: it was "
        "written like this.",
        **header.error_location(path),
    ) from error
