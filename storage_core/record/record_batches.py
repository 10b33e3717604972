"""Whole record batches in memory, ready to be appended to a log (Kafka's ``MemoryRecords``)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from storage_core.errors import (
    CorruptRecordError,
    InvalidRecordError,
    OffsetOverflowError,
    RecordTooLargeError,
)
from storage_core.record.batch_header import (
    CHECKED_HEADER,
    CRC_START,
    HEADER_DTYPE,
    HEADER_SIZE_BYTES,
    LOG_APPEND_TIME_FLAG,
    MAGIC_POSITION,
    MAGIC_V2,
    MAX_OFFSET,
    MIN_V2_LENGTH,
    UNCHECKED_HEADER,
    batch_sizes_bytes,
    header_error,
    last_offsets,
)
from storage_core.record.batch_window import walk_window
from storage_core.record.section import PADDING_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from storage_core.record.batch_header import BytesLike


_Rows = npt.NDArray[Any]
_Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RecordBatches:
    """Whole batches, back to back. They are immutable: assigning offsets makes a copy.

    Attributes:
        headers: Per batch, its header: a structured array of `HEADER_DTYPE`, as `header_rows` makes it.
        sizes_bytes: Per batch, its size, header included.
        pieces: The bytes of all batches, in accordance with ``headers``. Two per batch: its header, and the rest.
    """

    headers: _Rows
    sizes_bytes: _Int64Array
    pieces: list[BytesLike]

    @classmethod
    def of_one(cls, head: bytes, records: BytesLike) -> Self:
        """Return one batch of format v2, from the bytes of its header and the rest."""
        sizes_bytes = np.array([HEADER_SIZE_BYTES + len(records)], np.int64)
        return cls(np.frombuffer(head, HEADER_DTYPE), sizes_bytes, [head, records])

    @classmethod
    def of_many(cls, headers: _Rows, bodies: Sequence[BytesLike]) -> Self:
        """Return batches of format v2, from their headers and the bytes after each header."""
        # Copies of 61 bytes cost less than views, which the garbage collector has to track.
        heads = headers.tobytes()
        pieces: list[BytesLike] = [b""] * (2 * len(headers))
        pieces[0::2] = [
            heads[start : start + HEADER_SIZE_BYTES] for start in range(0, len(heads), HEADER_SIZE_BYTES)
        ]
        pieces[1::2] = bodies
        return cls(np.frombuffer(heads, HEADER_DTYPE), batch_sizes_bytes(headers), pieces)

    @classmethod
    def parse(cls, data: BytesLike, *, path: str = "", lowest_offset: int = 0) -> Self:
        """Parse the whole batches of any format at the start of some bytes; a partial last batch is left out.

        The bytes are copied. ``lowest_offset`` is a lower bound of the first batch's offsets; the header of a wrapper
        has none.

        Raises:
            CorruptRecordError: Bytes are no batch, or a CRC differs from the one in its header.
        """
        size_bytes = len(data)
        buffer = np.zeros(size_bytes + PADDING_BYTES, np.uint8)
        buffer[:size_bytes] = np.frombuffer(data, np.uint8)
        buffer.flags.writeable = False
        window = walk_window(path, 0, buffer, size_bytes, lowest_offset)
        if window.error is not None:
            raise window.error
        if window.is_preallocated_after:
            raise header_error(path, window.end, 0, 0)
        sizes_bytes = batch_sizes_bytes(window.headers)
        wrong = window.crc_mismatches(np.arange(len(sizes_bytes)))
        if len(wrong):
            header = window.header(int(wrong[0]))
            raise CorruptRecordError(
                "Expected the CRC of a record batch to equal the one in its header, found another. "
                "These bytes were changed since they were written: fetch them again.",
                **header.error_location(path),
            )
        is_v2 = window.headers["magic"] == MAGIC_V2
        splits = window.starts + np.where(is_v2, HEADER_SIZE_BYTES, MAGIC_POSITION)
        borders = np.append(np.column_stack((window.starts, splits)).ravel(), window.end).tolist()
        view = buffer.data
        pieces: list[BytesLike] = [view[start:end] for start, end in pairwise(borders)]
        return cls(window.headers, sizes_bytes, pieces)

    @property
    def count(self) -> int:
        """The number of batches."""
        return len(self.sizes_bytes)

    @property
    def size_bytes(self) -> int:
        """The size of all batches."""
        return int(self.sizes_bytes.sum())

    @property
    def last_offsets(self) -> _Int64Array:
        """Per batch, the offset of the last record that it was written with."""
        return last_offsets(self.headers)

    @property
    def base_offset(self) -> int:
        """The first batch's base offset."""
        return int(self.headers["base_offset"][0])

    @property
    def last_offset(self) -> int:
        """The last batch's last offset."""
        return int(self.headers["base_offset"][-1]) + int(self.headers["last_offset_delta"][-1])

    @property
    def next_offset(self) -> int:
        """The offset after the last batch."""
        return self.last_offset + 1

    def count_with(self, flag: int) -> int:
        """Count the batches that have a flag in their attributes."""
        attributes = self.headers["attributes"]
        # Most appends are a single batch, for which numpy is slow.
        if len(attributes) == 1:
            return int(int(attributes[0]) & flag != 0)
        return int(np.count_nonzero(attributes & flag))

    def with_offsets(self, base_offset: int, leader_epoch: int) -> Self:
        """Return the same batches of format v2, at consecutive offsets and with a leader epoch.

        The CRC covers neither, so the records are not read.

        Raises:
            OffsetOverflowError: The offset after the last batch would exceed 64 bits.
        """
        if self.count == 1 and len(self.pieces[0]) == HEADER_SIZE_BYTES:
            return self._one_with_offset(base_offset, leader_epoch)
        headers = self._v2_headers()
        counts = headers["last_offset_delta"] + np.int64(1)
        _check_end(base_offset, int(counts.sum()))
        headers["base_offset"] = base_offset + (np.cumsum(counts) - counts)
        headers["leader_epoch"] = leader_epoch
        return self.of_many(headers, self.pieces[1::2])

    def with_base_offsets(self, base_offsets: _Int64Array) -> Self:
        """Return the same batches of format v2 at other base offsets, which the CRC does not cover."""
        headers = self._v2_headers()
        headers["base_offset"] = base_offsets
        return self.of_many(headers, self.pieces[1::2])

    def with_log_append_time(self, timestamp_ms: int) -> Self:
        """Return the same batches of format v2 with log append time."""
        headers = self._v2_headers()
        headers["attributes"] |= LOG_APPEND_TIME_FLAG
        headers["max_timestamp_ms"] = timestamp_ms
        bodies = self.pieces[1::2]
        put_crcs(headers, bodies)
        return self.of_many(headers, bodies)

    def select(self, start: int, stop: int) -> Self:
        """Return the batches from number ``start`` up to number ``stop``."""
        return type(self)(
            self.headers[start:stop], self.sizes_bytes[start:stop], self.pieces[2 * start : 2 * stop]
        )

    def _one_with_offset(self, base_offset: int, leader_epoch: int) -> Self:
        # For a single batch, numpy would take longer than all the rest.
        head, records = self.pieces
        _check_end(base_offset, int(self.headers["last_offset_delta"][0]) + 1)
        _, length, _, magic, crc = UNCHECKED_HEADER.unpack_from(head)
        unchecked = UNCHECKED_HEADER.pack(base_offset, length, leader_epoch, magic, crc)
        return self.of_one(unchecked + head[CRC_START:], records)

    def _v2_headers(self) -> _Rows:
        if np.any(self.headers["magic"] != MAGIC_V2):
            raise ValueError(
                "Expected batches of format v2, found messages of an older format, which keep their offsets."
            )
        return self.headers.copy()


def put_crcs(headers: _Rows, bodies: Sequence[BytesLike]) -> None:
    """Compute the CRC of each batch of format v2, and set it in its header."""
    heads = headers.tobytes()
    starts = range(CRC_START, len(heads), HEADER_SIZE_BYTES)
    checked_bytes = HEADER_SIZE_BYTES - CRC_START
    headers["crc"] = [
        crc32c(body, crc32c(heads[start : start + checked_bytes]))
        for start, body in zip(starts, bodies, strict=True)
    ]


def _check_end(base_offset: int, count: int) -> None:
    if base_offset + count > MAX_OFFSET:
        raise OffsetOverflowError(
            f"Expected the offset after the last record to be at most {MAX_OFFSET}, found "
            f"{base_offset + count}. This log takes no more records.",
            offset=base_offset,
        )


# Sequence numbers wrap to 0 after the largest int32.
SEQUENCES: Final = 1 << 31
_NONE: Final = -1
_LARGEST_LENGTH: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class ProducerSequence:
    """The producer of some batches, and the sequence number of their first record; -1 for none."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


NO_PRODUCER: Final = ProducerSequence(_NONE, _NONE, _NONE)


def advance_sequence(sequence: int, count: int) -> int:
    """Return the sequence number ``count`` records later. It wraps to 0 (Kafka's ``incrementSequence``)."""
    return sequence if sequence == _NONE else (sequence + count) % SEQUENCES


def batch_of(  # noqa: PLR0913  (a header has that many fields)
    records: BytesLike,
    *,
    count: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    leader_epoch: int = _NONE,
    attributes: int = 0,
    producer: ProducerSequence = NO_PRODUCER,
) -> RecordBatches:
    """Return a batch of records that are compressed already, by the codec in ``attributes``.

    Raises:
        InvalidRecordError: They exceed the largest batch length.
    """
    length = MIN_V2_LENGTH + len(records)
    _check_length(length)
    checked = CHECKED_HEADER.pack(
        attributes,
        count - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp_ms,
        max_timestamp_ms,
        producer.producer_id,
        producer.producer_epoch,
        producer.base_sequence,
        count,
    )
    crc = crc32c(records, crc32c(checked))
    head = UNCHECKED_HEADER.pack(base_offset, length, leader_epoch, MAGIC_V2, crc) + checked
    return RecordBatches.of_one(head, records)


def batches_of(
    bodies: Sequence[BytesLike],
    *,
    counts: npt.NDArray[np.int64],
    base_timestamps_ms: npt.NDArray[np.int64],
    max_timestamps_ms: npt.NDArray[np.int64],
    base_offset: int,
    attributes: int,
    producer: ProducerSequence = NO_PRODUCER,
    last_offset_deltas: npt.NDArray[np.int64] | None = None,
) -> RecordBatches:
    """Return batches of records that are compressed already, by the codec in ``attributes``, at consecutive offsets.

    ``base_offset`` and the producer's sequence number are those of the first record of all. A batch without gaps has
    as many offsets as records.

    Raises:
        InvalidRecordError: The records of a batch exceed the largest batch length.
    """
    lengths = np.fromiter(map(len, bodies), np.int64, len(bodies)) + MIN_V2_LENGTH
    _check_length(int(lengths.max()))
    rows = np.empty(len(bodies), HEADER_DTYPE)
    before = np.cumsum(counts) - counts
    rows["base_offset"] = base_offset + before
    rows["batch_length"] = lengths
    rows["leader_epoch"] = _NONE
    rows["magic"] = MAGIC_V2
    rows["attributes"] = attributes
    rows["last_offset_delta"] = counts - 1 if last_offset_deltas is None else last_offset_deltas
    rows["base_timestamp_ms"] = base_timestamps_ms
    rows["max_timestamp_ms"] = max_timestamps_ms
    rows["producer_id"] = producer.producer_id
    rows["producer_epoch"] = producer.producer_epoch
    has_sequence = producer.base_sequence != _NONE
    rows["base_sequence"] = (producer.base_sequence + before) % SEQUENCES if has_sequence else _NONE
    rows["record_count"] = counts
    put_crcs(rows, bodies)
    return RecordBatches.of_many(rows, bodies)


def compressed_bodies(
    bodies: Sequence[BytesLike],
    compress: Callable[[BytesLike], BytesLike] | None,
    largest_batch_bytes: int | None,
) -> Sequence[BytesLike]:
    """Compress the records of at least one batch, if there is a compressor.

    Raises:
        RecordTooLargeError: A batch, compressed or not, is larger than readers accept.
    """
    _require_readable(bodies, largest_batch_bytes)
    if compress is None:
        return bodies
    bodies = [compress(body) for body in bodies]
    _require_readable(bodies, largest_batch_bytes)
    return bodies


def _require_readable(bodies: Sequence[BytesLike], largest_batch_bytes: int | None) -> None:
    if largest_batch_bytes is None:
        return
    size_bytes = max(map(len, bodies)) + HEADER_SIZE_BYTES
    if size_bytes > largest_batch_bytes:
        raise RecordTooLargeError(
            f"Expected a batch of at most {largest_batch_bytes} bytes, compressed or not, the largest that readers accept by "
            f"default, found a record that makes one of {size_bytes}. Make the record smaller, or raise the "
            "limit: of a log, max.message.bytes; of a Spark job, max.message.bytes and maxDecompressedBatchBytes, and "
            "maxDecompressedBatchBytes of each read, too."
        )


def _check_length(length: int) -> None:
    if length > _LARGEST_LENGTH:
        raise InvalidRecordError(
            f"Expected a batch length of at most {_LARGEST_LENGTH} bytes, found {length} after compression. "
            "Split the value, or choose another codec."
        )
