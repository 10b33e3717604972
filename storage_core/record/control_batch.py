"""Batches that hold no data: the markers that end a transaction, and what compaction leaves of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from storage_core.record.batch_encode import NO_PRODUCER, ProducerSequence, batch_of
from storage_core.record.batch_header import CODEC_MASK, CONTROL_FLAG, DELETE_HORIZON_FLAG, TRANSACTIONAL_FLAG
from storage_core.record.control_record import CONTROL_KEY, END_MARKER_VALUE, ControlType
from storage_core.record.legacy_message import NO_TIMESTAMP_MS
from storage_core.record.plain_encode import encode_one_by_one

if TYPE_CHECKING:
    from storage_core.record.record_batches import RecordBatches

__all__ = ["empty_batch", "end_transaction_marker"]

_VERSION: Final = 0
_NO_SEQUENCE: Final = -1
_END_TYPES: Final = (ControlType.ABORT, ControlType.COMMIT)


def end_transaction_marker(
    control_type: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> RecordBatches:
    """The batch that commits or aborts a producer's transaction in one partition.

    Raises:
        ValueError: Not COMMIT or ABORT, or no producer.
    """
    if control_type not in _END_TYPES or producer_id < 0 or producer_epoch < 0:
        message = (
            "Expected COMMIT or ABORT with a producer id and an epoch, "
            f"found {control_type.name}, {producer_id} and {producer_epoch}."
        )
        raise ValueError(message)
    key, value = CONTROL_KEY.pack(_VERSION, control_type), END_MARKER_VALUE.pack(_VERSION, coordinator_epoch)
    (batch,) = encode_one_by_one([(timestamp_ms, key, value, ())], 0)
    return batch_of(
        batch.records,
        count=1,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG,
        producer=ProducerSequence(producer_id, producer_epoch, _NO_SEQUENCE),
    )


def empty_batch(
    base_offset: int,
    last_offset: int,
    *,
    leader_epoch: int,
    max_timestamp_ms: int,
    producer: ProducerSequence = NO_PRODUCER,
    attributes: int = 0,
) -> RecordBatches:
    """A batch without records that stands for a range of offsets.

    Args:
        base_offset: The first of them.
        last_offset: The last of them.
        leader_epoch: Under which it was written.
        max_timestamp_ms: The largest timestamp of the records that were there.
        producer: Who wrote them; what is known of a producer outlives its records by this.
        attributes: Of the batch that it replaces. A codec and a delete horizon are left out.
    """
    return batch_of(
        b"",
        count=0,
        base_timestamp_ms=NO_TIMESTAMP_MS,
        max_timestamp_ms=max_timestamp_ms,
        base_offset=base_offset,
        last_offset_delta=last_offset - base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes & ~(CODEC_MASK | DELETE_HORIZON_FLAG),
        producer=producer,
    )
