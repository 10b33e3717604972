"""Appends whose offsets the log assigns (``UnifiedLog.appendAsLeader``): of records, of batches that a producer made, of markers.

Whatever can be refused is refused before the first byte is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from storage_core.errors import InvalidRecordError, OffsetOverflowError, OptionError
from storage_core.log.append_validation import check_origin, markers_of
from storage_core.log.client_append import accept_client_batches
from storage_core.log.log_append import AppendInfo, append_chunks, write_pending
from storage_core.log.log_records import batches_of_records
from storage_core.log.log_roll import forget_expired_producers
from storage_core.log.producer_append import ProducedRecords, check_marker, check_produced
from storage_core.log.producer_numbers import (
    check_coordinator_epoch,
    check_leader_epoch,
    check_producer_epoch,
    check_producer_id,
)
from storage_core.record.batch_header import MAX_OFFSET, TRANSACTIONAL_FLAG
from storage_core.record.control_batch import end_transaction_marker
from storage_core.record.control_record import ControlType
from storage_core.record.legacy_message import NO_TIMESTAMP_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from storage_core.log.append_validation import AppendOrigin
    from storage_core.log.log_state import LogState
    from storage_core.log.producer_append import DuplicateAppend
    from storage_core.log_config import LogConfig
    from storage_core.record.batch_encode import ProducerSequence
    from storage_core.record.record_batches import RecordBatches

__all__ = ["append_client_batches", "append_marker", "append_records", "assign_epoch_start_offset"]

_NONE: Final = -1


class _Prepared(NamedTuple):
    """Batches that are checked but for their producers, what those say of them, and how many records they hold."""

    chunks: Iterable[RecordBatches]
    produced: Sequence[ProducedRecords]
    record_count: int


def append_records(
    state: LogState,
    records: pa.Table | pa.RecordBatch,
    *,
    leader_epoch: int | None = None,
    is_pending: bool = False,
    producer: ProducerSequence | None = None,
    is_transactional: bool = False,
    check: Callable[[], None] | None = None,
) -> AppendInfo:
    """Append records.

    Args:
        state: The log, not locked.
        records: What is appended.
        leader_epoch: Under which they are written; the latest one if None.
        is_pending: Whether they may wait in memory. Those of a producer do not.
        producer: Who numbers them, and the number of the first one; -1 if they have none.
        is_transactional: Whether they belong to a transaction of the producer's.
        check: Is called when the log is locked, and may refuse.
    """
    if not isinstance(records, (pa.Table, pa.RecordBatch)):
        raise InvalidRecordError(
            f"Expected a pyarrow.Table or pyarrow.RecordBatch to append, found {type(records).__name__}."
        )
    if producer is None and is_transactional:
        raise OptionError("Expected a producer for records of a transaction, found none.")
    now_ms = state.clock.now_ms()
    count = records.num_rows
    produced = () if producer is None or not count else (_produced(producer, count, is_transactional),)

    def prepare(config: LogConfig) -> _Prepared:
        chunks = batches_of_records(
            records,
            config,
            state.encoding,
            now_ms,
            state.path,
            producer=producer,
            is_transactional=is_transactional,
        )
        return _Prepared(chunks, produced, count)

    is_pending = is_pending and producer is None
    return _append_prepared(state, prepare, leader_epoch, now_ms, is_pending=is_pending, check=check)


def append_client_batches(
    state: LogState,
    batches: RecordBatches,
    *,
    leader_epoch: int | None = None,
    origin: AppendOrigin = "client",
) -> AppendInfo:
    """Append batches that a producer or a coordinator made; for the errors see `Log.append_as_leader`."""
    check_origin(origin)
    now_ms = state.clock.now_ms()

    def prepare(config: LogConfig) -> _Prepared:
        accepted = accept_client_batches(batches, config, now_ms, origin=origin, path=state.path)
        produced = _produced_batches(accepted, origin, state.path)
        count = sum(records.record_count for records in produced)
        return _Prepared([accepted] if accepted.count else [], produced, count)

    return _append_prepared(state, prepare, leader_epoch, now_ms, are_client_batches=True)


def _append_prepared(
    state: LogState,
    prepare: Callable[[LogConfig], _Prepared],
    leader_epoch: int | None,
    now_ms: int,
    *,
    is_pending: bool = False,
    are_client_batches: bool = False,
    check: Callable[[], None] | None = None,
) -> AppendInfo:
    """Prepare batches without the log's lock, then append them under it, all by the same configuration."""
    while True:
        config = state.config
        chunks, produced, count = prepare(config)
        with state.writing():
            if state.config is not config:
                # Altered meanwhile: nothing is written any more as the old one wants it.
                continue
            if check is not None:
                check()
            return _append(
                state,
                chunks,
                produced,
                count,
                _epoch(state, leader_epoch),
                now_ms,
                is_pending=is_pending,
                are_client_batches=are_client_batches,
            )


def _produced_batches(
    batches: RecordBatches, origin: AppendOrigin, path: str | None
) -> Sequence[ProducedRecords]:
    headers = batches.headers
    produced = [
        ProducedRecords(producer_id, epoch, sequence, delta + 1, bool(attributes & TRANSACTIONAL_FLAG))
        for producer_id, epoch, sequence, delta, attributes in zip(
            headers["producer_id"].tolist(),
            headers["producer_epoch"].tolist(),
            headers["base_sequence"].tolist(),
            headers["last_offset_delta"].tolist(),
            headers["attributes"].tolist(),
            strict=True,
        )
    ]
    if origin == "client":
        return produced
    markers = markers_of(batches, path=path)
    return [
        records._replace(first_sequence=_NONE, marker=markers.get(number))
        for number, records in enumerate(produced)
    ]


def append_marker(
    state: LogState,
    producer_id: int,
    producer_epoch: int,
    *,
    is_abort: bool,
    coordinator_epoch: int = 0,
    transaction_version: int = 1,
    leader_epoch: int | None = None,
) -> AppendInfo:
    """Append the marker that ends a producer's transaction. One without data ends nothing.

    Args:
        state: The log, locked.
        producer_id: The producer.
        producer_epoch: Its epoch from now on.
        is_abort: Whether the transaction is taken back.
        coordinator_epoch: Of who says so.
        transaction_version: From 2 on, the epoch has to be above that of the data.
        leader_epoch: Under which it is written; the latest one if None.
    """
    check_producer_id(producer_id)
    check_producer_epoch(producer_epoch)
    check_coordinator_epoch(coordinator_epoch)
    now_ms = state.clock.now_ms()
    check_marker(
        state.producers.producers.get(producer_id),
        producer_id,
        producer_epoch,
        coordinator_epoch,
        transaction_version=transaction_version,
        path=state.path,
    )
    marker = end_transaction_marker(
        ControlType.ABORT if is_abort else ControlType.COMMIT,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp_ms=now_ms,
    )
    if state.config.has_log_append_time:
        marker = marker.with_log_append_time(now_ms)
    return _append(state, [marker], (), 1, _epoch(state, leader_epoch), now_ms)


def assign_epoch_start_offset(state: LogState, leader_epoch: int) -> int:
    """Let a leader epoch begin at the log end, before its first batch; see `Log.assign_epoch_start_offset`."""
    write_pending(state)
    epoch = _epoch(state, leader_epoch)
    state.leader_epochs.assign(epoch, state.offsets.log_end_offset)
    return state.leader_epochs.entries[-1].start_offset


def _append(
    state: LogState,
    chunks: Iterable[RecordBatches],
    produced: Sequence[ProducedRecords],
    count: int,
    leader_epoch: int,
    now_ms: int,
    *,
    is_pending: bool = False,
    are_client_batches: bool = False,
) -> AppendInfo:
    """Append ``count`` records in batches that are checked but for their producers."""
    _require_room(state, count)
    log_append_time_ms = now_ms if state.config.has_log_append_time else None
    if produced:
        forget_expired_producers(state)
        duplicate = check_produced(
            state.producers.producers, produced, is_each_a_batch=are_client_batches, path=state.path
        )
        if duplicate is not None:
            return _info_of_duplicate(duplicate, is_append_time=log_append_time_ms is not None)
    return append_chunks(
        state,
        chunks,
        leader_epoch,
        now_ms,
        is_pending=is_pending,
        log_append_time_ms=log_append_time_ms,
    )


def _info_of_duplicate(duplicate: DuplicateAppend, *, is_append_time: bool) -> AppendInfo:
    has_timestamp = duplicate.timestamp_ms != NO_TIMESTAMP_MS
    return AppendInfo(
        duplicate.first_offset,
        duplicate.last_offset,
        duplicate.timestamp_ms,
        duplicate.offset_of_timestamp if has_timestamp else _NONE,
        size_bytes=0,
        batch_count=0,
        log_append_time_ms=duplicate.timestamp_ms if is_append_time else None,
        is_duplicate=True,
    )


def _produced(producer: ProducerSequence, count: int, is_transactional: bool) -> ProducedRecords:
    return ProducedRecords(
        producer.producer_id, producer.producer_epoch, producer.base_sequence, count, is_transactional
    )


def _require_room(state: LogState, count: int) -> None:
    if state.next_offset > MAX_OFFSET - count:
        raise OffsetOverflowError(
            f"Expected offsets below {MAX_OFFSET}, the largest that a log may end with, found {count} records to be "
            f"appended from {state.next_offset} on. Go on in another partition.",
            path=state.path,
            offset=state.next_offset,
        )


def _epoch(state: LogState, leader_epoch: int | None) -> int:
    latest = state.leader_epochs.latest_epoch or 0
    if state.pending.batches:
        # Their epoch becomes known to the log with the first of them that is written.
        latest = max(latest, int(state.pending.batches[-1].headers["leader_epoch"][-1]))
    if leader_epoch is None:
        return latest
    check_leader_epoch(leader_epoch)
    if leader_epoch < latest:
        raise InvalidRecordError(
            f"Expected a leader epoch of at least {latest}, which the log has seen, found {leader_epoch}.",
            path=state.path,
        )
    return leader_epoch
