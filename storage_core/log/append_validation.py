"""What an append has to be like (Kafka's ``LogValidator`` and ``UnifiedLog.analyzeAndValidateRecords``).

Everything here looks, and nothing changes: an append that is refused leaves the log as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np

from storage_core.errors import (
    CorruptRecordError,
    InvalidRecordError,
    OffsetOverflowError,
    OffsetsOutOfOrderError,
    OptionError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
)
from storage_core.log.producer_numbers import check_leader_epoch
from storage_core.log.transaction_marker import read_marker
from storage_core.record.batch_header import (
    CONTROL_FLAG,
    MAGIC_V2,
    MAX_OFFSET,
    TRANSACTIONAL_FLAG,
    parse_batch_header,
)

if TYPE_CHECKING:
    from storage_core.log.transaction_marker import EndTransactionMarker
    from storage_core.log_config import LogConfig
    from storage_core.record.record_batches import RecordBatches

__all__ = [
    "AppendOrigin",
    "batches_up_to_epoch",
    "check_origin",
    "markers_of",
    "require_fits_segment",
    "validate_client_batches",
    "validate_follower_append",
    "validate_leader_append",
]

# The offset behind it, the log end, is an offset too.
_LARGEST_LAST_OFFSET: Final = MAX_OFFSET - 1

AppendOrigin: TypeAlias = Literal["client", "coordinator"]
"""Who appends where the log assigns offsets (Kafka's ``AppendOrigin``): what a coordinator writes was checked by it."""

_ORIGINS: Final = ("client", "coordinator")


def check_origin(origin: object) -> None:
    """Refuse what is no origin."""
    if origin not in _ORIGINS:
        raise OptionError(f"Expected an origin of client or coordinator, found {origin!r}.")


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
    markers_of(batches, path=path)
    require_fits_segment(batches.size_bytes, config, path)


def batches_up_to_epoch(batches: RecordBatches, leader_epoch: int) -> RecordBatches:
    """The batches in front of the first one of a later leader epoch."""
    check_leader_epoch(leader_epoch)
    is_later = batches.headers["leader_epoch"] > leader_epoch
    return batches.select(0, int(is_later.argmax())) if is_later.any() else batches


def validate_client_batches(
    batches: RecordBatches, *, origin: AppendOrigin = "client", path: str | None = None
) -> None:
    """Check the headers of batches whose offsets the log is to assign.

    Raises:
        InvalidRecordError: A batch is of an older format, counts its records wrongly, has a producer id and no epoch,
            or a transaction and no producer id. From a client also: it does not begin at offset 0, is a control
            batch, or has a producer id and no sequence.
    """
    for number, header in enumerate(batches.headers.tolist()):
        expected = _what_a_header_lacks(header, is_from_client=origin == "client")
        if expected is not None:
            base_offset, _, _, magic, _, attributes, last_delta, _, _, producer_id, _, sequence, count = (
                header
            )
            raise InvalidRecordError(
                f"Expected a {'producer' if origin == 'client' else origin}'s batch to {expected}, found that batch "
                f"{number} does not: magic {magic}, {count} record(s) for {last_delta + 1} offset(s) from "
                f"{base_offset} on, attributes {attributes:#x}, producer {producer_id}, sequence {sequence}.",
                path=path,
            )


def _what_a_header_lacks(header: tuple[int, ...], *, is_from_client: bool) -> str | None:
    base_offset, _, _, magic, _, attributes, last_delta, _, _, producer_id, epoch, sequence, count = header
    is_control, is_transactional = attributes & CONTROL_FLAG, attributes & TRANSACTIONAL_FLAG
    has_producer = producer_id >= 0
    problems = (
        (magic != MAGIC_V2, "be of format v2"),
        (is_from_client and base_offset != 0, "begin at offset 0, which the log then replaces,"),
        (last_delta < 0, "hold at least one offset"),
        (count <= 0, "hold at least one record"),
        (count != last_delta + 1, "hold as many records as offsets"),
        (is_from_client and is_control, "be no control batch"),
        (is_from_client and has_producer and sequence < 0, "have a sequence with its producer id"),
        (has_producer and epoch < 0, "have an epoch with its producer id"),
        (is_transactional and not has_producer, "have a producer id with its transaction"),
    )
    return next((expected for is_wrong, expected in problems if is_wrong), None)


def markers_of(batches: RecordBatches, *, path: str | None = None) -> dict[int, EndTransactionMarker]:
    """The markers among batches, by the number of the batch. Those that compaction has emptied are left out.

    Raises:
        InvalidRecordError: A control batch of a producer does not end a transaction, or is malformed.
    """
    if not batches.count_with(CONTROL_FLAG):
        return {}
    headers = batches.headers
    is_marker = (headers["attributes"] & CONTROL_FLAG) != 0
    is_marker &= (headers["producer_id"] >= 0) & (headers["record_count"] > 0)
    markers = {}
    for number in is_marker.nonzero()[0].tolist():
        batch = b"".join(batches.pieces[2 * number : 2 * number + 2])
        header = parse_batch_header(batch, 0, 0, path="")
        try:
            marker = read_marker(batch, header, path="")
        except CorruptRecordError as error:
            raise InvalidRecordError(error.args[0], path=path, offset=header.base_offset) from error
        if marker is None:
            raise InvalidRecordError(
                f"Expected a control batch of a producer to end a transaction, found that batch {number} does not. "
                "No broker loads a log that holds such a batch.",
                path=path,
                offset=header.base_offset,
            )
        markers[number] = marker
    return markers


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


def require_fits_segment(size_bytes: int, config: LogConfig, path: str | None) -> None:
    """Refuse what is larger than ``segment.bytes``."""
    if size_bytes > config.max_segment_bytes:
        raise RecordBatchTooLargeError(
            f"Expected at most {config.max_segment_bytes} bytes, as segment.bytes says, found {size_bytes} that "
            "have to stand in one segment. Append less at once, or raise segment.bytes.",
            path=path,
        )
