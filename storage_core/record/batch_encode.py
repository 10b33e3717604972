"""Put headers before the records of batches (Kafka's ``DefaultRecordBatch.writeHeader``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from crc32c import crc32c

from storage_core.errors import InvalidRecordError, RecordTooLargeError
from storage_core.record.batch_header import (
    CHECKED_HEADER,
    HEADER_DTYPE,
    HEADER_SIZE_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    UNCHECKED_HEADER,
)
from storage_core.record.record_batches import RecordBatches, put_crcs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from storage_core.record.batch_header import BytesLike

__all__ = [
    "NO_PRODUCER",
    "SEQUENCES",
    "ProducerSequence",
    "advance_sequence",
    "batch_of",
    "batches_of",
    "compressed_bodies",
]

SEQUENCES: Final = 1 << 31
"""So many sequence numbers there are; behind the largest follows 0."""

_NONE: Final = -1
_LARGEST_LENGTH: Final = (1 << 31) - 1
# Behind the batch length field.
_LENGTH_WITHOUT_RECORDS: Final = HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class ProducerSequence:
    """Who writes some batches, and the sequence number of their first record; -1 stands for none."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


NO_PRODUCER: Final = ProducerSequence(_NONE, _NONE, _NONE)


def advance_sequence(sequence: int, count: int) -> int:
    """The sequence number ``count`` records later: behind the largest integer follows 0."""
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
    """One batch around its records, which are compressed already if ``attributes`` name a codec.

    Raises:
        InvalidRecordError: They take more than a batch can hold.
    """
    length = _LENGTH_WITHOUT_RECORDS + len(records)
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
    """Batches around their records, one offset behind the other.

    Args:
        bodies: Per batch, its records, compressed already if ``attributes`` name a codec.
        counts: Per batch, how many records that are.
        base_timestamps_ms: Per batch, the timestamp of its first record.
        max_timestamps_ms: Per batch, its largest timestamp.
        base_offset: Offset of the first record of all.
        attributes: Of each batch.
        producer: With the sequence number of the first record of all.
        last_offset_deltas: Per batch, how far its last record lies behind its first; None: there are no gaps.

    Raises:
        InvalidRecordError: The records of a batch take more than it can hold.
    """
    lengths = np.fromiter(map(len, bodies), np.int64, len(bodies)) + _LENGTH_WITHOUT_RECORDS
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
    """Compress the records of batches, and refuse those that no reader would take.

    Args:
        bodies: Per batch, its records; at least one.
        compress: How; None: not at all.
        largest_batch_bytes: The largest batch, compressed or not, that is read; None: any is.

    Raises:
        RecordTooLargeError: One is larger.
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
            f"Expected a batch of at most {largest_batch_bytes} bytes, compressed or not, the most that is read unless "
            f"more is asked for, found a record that makes one of {size_bytes}. Make the record smaller, or raise the "
            "limit: of a log, max.message.bytes; of a Spark job, max.message.bytes and maxDecompressedBatchBytes, and "
            "maxDecompressedBatchBytes of each read, too."
        )


def _check_length(length: int) -> None:
    if length > _LARGEST_LENGTH:
        raise InvalidRecordError(
            f"Expected a batch length of at most {_LARGEST_LENGTH} bytes, found {length} after compression. "
            "Split the value, or choose another codec."
        )
