"""What producers write to a log: data and markers, made by hand from the format."""

from __future__ import annotations

import struct

from tests.record.encoding import CONTROL, TRANSACTIONAL, Batch, Record

ABORT, COMMIT = 0, 1


def data(
    base_offset,
    count=1,
    *,
    producer=-1,
    epoch=0,
    sequence=0,
    timestamp_ms=0,
    is_transactional=False,
    leader_epoch=0,
):
    """Return a batch of ``count`` records."""
    is_produced = producer >= 0
    return Batch(
        tuple(Record(offset_delta=delta, timestamp_ms=timestamp_ms) for delta in range(count)),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=TRANSACTIONAL if is_transactional else 0,
        producer_id=producer,
        producer_epoch=epoch if is_produced else -1,
        base_sequence=sequence if is_produced else -1,
    ).encode()


def transactional(base_offset, count=1, **fields):
    """Return a batch of a transaction."""
    return data(base_offset, count, is_transactional=True, **fields)


def marker(
    offset, *, producer, kind=COMMIT, epoch=0, timestamp_ms=0, coordinator_epoch=0, leader_epoch=0, **fields
):
    """Return a batch that ends a transaction."""
    record = Record(
        timestamp_ms=timestamp_ms,
        key=struct.pack(">hh", 0, kind),
        value=struct.pack(">hi", 0, coordinator_epoch),
    )
    return Batch(
        (record,),
        base_offset=offset,
        leader_epoch=leader_epoch,
        attributes=TRANSACTIONAL | CONTROL,
        producer_id=producer,
        producer_epoch=epoch,
        **fields,
    ).encode()


def emptied(base_offset, last_offset_delta=0, *, producer=-1, epoch=0, sequence=-1, attributes=0):
    """Return a batch whose records compaction has removed."""
    return Batch(
        base_offset=base_offset,
        last_offset_delta=last_offset_delta,
        attributes=attributes,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    ).encode()
