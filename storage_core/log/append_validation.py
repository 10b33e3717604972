"""What an append has to be like (Kafka's ``LogValidator`` and ``UnifiedLog.analyzeAndValidateRecords``).

Everything here looks, and nothing changes: an append that is refused leaves the log as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from storage_core.errors import (
    CorruptRecordError,
    InvalidRecordError,
    OffsetOverflowError,
    OffsetsOutOfOrderError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
)
from storage_core.log.producer_batches import ProducerBatches
from storage_core.record.batch_header import CONTROL_FLAG, MAGIC_V2, MAX_OFFSET, TRANSACTIONAL_FLAG

if TYPE_CHECKING:
    from storage_core.log_config import LogConfig
    from storage_core.record.record_batches import RecordBatches

__all__ = [
    "require_fits_segment",
    "validate_client_batches",
    "validate_follower_append",
    "validate_leader_append",
]

# The offset behind it, the log end, is an offset too.
_LARGEST_LAST_OFFSET: Final = MAX_OFFSET - 1


def validate_leader_append(batches: RecordBatches, config: LogConfig, *, path: str | None = None) -> None:
    """Check the sizes of batches that this log made of records.

    An append of many batches may be spread over several segments, so each batch alone must fit one.

    Raises:
        RecordTooLargeError: A batch is larger than ``max.message.bytes``.
        RecordBatchTooLargeError: A batch is larger than ``segment.bytes``.
    """
    sizes_bytes = batches.sizes_bytes
    if len(sizes_bytes) == 0:
        return
    largest_bytes = int(sizes_bytes[0] if len(sizes_bytes) == 1 else sizes_bytes.max())
    if largest_bytes > config.max_message_bytes:
        record_count = int(batches.headers["record_count"][int(sizes_bytes.argmax())])
        raise RecordTooLargeError(
            f"Expected a batch of at most {config.max_message_bytes} bytes, as max.message.bytes says, found "
            f"{record_count} record(s) that make one of {largest_bytes}. Make the records smaller, or raise "
            "max.message.bytes; a batch of several records is kept smaller by batch.size.",
            path=path,
        )
    require_fits_segment(largest_bytes, config, path)


def validate_follower_append(
    batches: RecordBatches, config: LogConfig, log_end_offset: int, *, path: str | None = None
) -> None:
    """Check batches that keep their offsets and leader epochs. Gaps between them are allowed.

    Raises:
        OffsetsOutOfOrderError: They begin below the log end, or do not ascend.
        OffsetOverflowError: An offset is beyond the largest.
        InvalidRecordError: A batch of format v2 has no leader epoch, or a marker is malformed.
        RecordBatchTooLargeError: Together they are larger than ``segment.bytes``.
    """
    headers = batches.headers
    if len(headers) == 0:
        return
    first_offset = batches.base_offset
    if headers["magic"][0] < MAGIC_V2:
        # Where a wrapper begins does not stand in it.
        first_offset += int(headers["last_offset_delta"][0])
    if first_offset < log_end_offset:
        raise OffsetsOutOfOrderError(
            f"Expected batches from offset {log_end_offset} on, the log end offset, found the first one at "
            f"{first_offset}, up to {batches.last_offset}. Leave out what the log has, or truncate it first.",
            path=path,
            offset=first_offset,
            last_offset=batches.last_offset,
        )
    _require_ascending(batches, path)
    _require_epochs(batches, path)
    _require_readable_markers(batches, path)
    require_fits_segment(batches.size_bytes, config, path)


def validate_client_batches(batches: RecordBatches, *, path: str | None = None) -> None:
    """Check batches that a producer made, and whose offsets the log is to assign.

    Raises:
        InvalidRecordError: A batch is of an older format, is a control batch, counts its records
            wrongly, has a producer id and no sequence or epoch, or a transaction and no producer id.
    """
    headers = batches.headers
    counts = headers["record_count"].astype(np.int64)
    offset_counts = headers["last_offset_delta"].astype(np.int64) + 1
    problems = (
        (headers["magic"] != MAGIC_V2, "be of format v2"),
        (headers["base_offset"] != 0, "begin at offset 0, which the log then replaces,"),
        (offset_counts <= 0, "hold at least one offset"),
        (counts <= 0, "hold at least one record"),
        (counts != offset_counts, "hold as many records as offsets"),
        ((headers["attributes"] & CONTROL_FLAG) != 0, "be no control batch"),
        (
            (headers["producer_id"] >= 0) & (headers["base_sequence"] < 0),
            "have a sequence with its producer id",
        ),
        (
            (headers["producer_id"] >= 0) & (headers["producer_epoch"] < 0),
            "have an epoch with its producer id",
        ),
        (
            ((headers["attributes"] & TRANSACTIONAL_FLAG) != 0) & (headers["producer_id"] < 0),
            "have a producer id with its transaction",
        ),
    )
    for is_wrong, expected in problems:
        if is_wrong.any():
            number = int(is_wrong.argmax())
            raise InvalidRecordError(
                f"Expected a producer's batch to {expected}, found that batch {number} does not: "
                f"magic {int(headers['magic'][number])}, {int(counts[number])} record(s) for "
                f"{int(offset_counts[number])} offset(s) from {int(headers['base_offset'][number])} on, "
                f"attributes {int(headers['attributes'][number]):#x}, producer "
                f"{int(headers['producer_id'][number])}, sequence {int(headers['base_sequence'][number])}.",
                path=path,
            )


def _require_ascending(batches: RecordBatches, path: str | None) -> None:
    headers = batches.headers
    number = None
    if len(headers) > 1:
        base_offsets = headers["base_offset"].astype(np.int64)
        # What does not fit 64 bits is negative.
        last_offsets = batches.last_offsets
        is_wrong = last_offsets < base_offsets
        is_wrong[1:] |= base_offsets[1:] <= last_offsets[:-1]
        if is_wrong.any():
            number = int(is_wrong.argmax())
    if number is None:
        base_offset, last_offset = batches.base_offset, batches.last_offset
        if base_offset <= last_offset <= _LARGEST_LAST_OFFSET:
            return
        number = len(headers) - 1
    base_offset = int(headers["base_offset"][number])
    last_offset = base_offset + int(headers["last_offset_delta"][number])
    if last_offset > _LARGEST_LAST_OFFSET:
        raise OffsetOverflowError(
            f"Expected offsets up to {_LARGEST_LAST_OFFSET}, the largest that a log can hold, found a batch of "
            f"{base_offset} to {last_offset}. No log goes on behind it.",
            path=path,
            offset=base_offset,
        )
    lowest_offset = int(last_offsets[number - 1]) + 1 if number else base_offset
    raise OffsetsOutOfOrderError(
        f"Expected the offsets of batch {number} to ascend from {lowest_offset} on, found {base_offset} to "
        f"{last_offset}. Append the batches in the order of their offsets, each once.",
        path=path,
        offset=base_offset,
    )


def _require_epochs(batches: RecordBatches, path: str | None) -> None:
    epochs = batches.headers["leader_epoch"]
    # Messages of older formats have none. Most appends are one batch, for which numpy is slow.
    if epochs[0] >= 0 and (len(epochs) == 1 or epochs.min() >= 0):
        return
    is_wrong = (epochs < 0) & (batches.headers["magic"] >= MAGIC_V2)
    if is_wrong.any():
        number = int(is_wrong.argmax())
        raise InvalidRecordError(
            f"Expected a leader epoch in every batch, found {int(epochs[number])} in batch {number}. "
            "Only a log that assigns the offsets also assigns the epoch.",
            path=path,
            offset=int(batches.headers["base_offset"][number]),
        )


def _require_readable_markers(batches: RecordBatches, path: str | None) -> None:
    attributes = batches.headers["attributes"]
    if not (attributes[0] & CONTROL_FLAG if len(attributes) == 1 else (attributes & CONTROL_FLAG).any()):
        return
    try:
        ProducerBatches.of_record_batches(batches)
    except CorruptRecordError as error:
        raise InvalidRecordError(error.args[0], path=path, offset=error.offset) from error


def require_fits_segment(size_bytes: int, config: LogConfig, path: str | None) -> None:
    """Refuse what is larger than ``segment.bytes``."""
    if size_bytes > config.max_segment_bytes:
        raise RecordBatchTooLargeError(
            f"Expected at most {config.max_segment_bytes} bytes, as segment.bytes says, found {size_bytes} that "
            "have to stand in one segment. Append less at once, or raise segment.bytes.",
            path=path,
        )
