"""Appending to a log (Kafka's ``UnifiedLog.append`` and ``appendAsLeader``).

encode → validate → for each part that fits a segment: offsets, epoch, roll, bytes and index entries, log end, epochs,
producers, high watermark. Everything that can be rejected is rejected before the first byte is written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from storage_core.errors import InvalidRecordError, OffsetOverflowError, OptionError
from storage_core.log.local_log import flush_if_due, forget_expired_producers, roll
from storage_core.log.log_validator import (
    AppendOrigin,
    accept_client_batches,
    check_origin,
    validate_leader_append,
    validate_records,
)
from storage_core.log.producer_append_info import (
    DuplicateAppend,
    check_coordinator_epoch,
    check_leader_epoch,
    check_marker,
    check_produced,
    check_producer_epoch,
    check_producer_id,
    check_replicated,
)
from storage_core.log.producer_batches import ProducerBatch, ProducerBatches
from storage_core.record.arrow_columns import byte_lengths, chunks_of
from storage_core.record.batch_header import MAGIC_V2, MAX_OFFSET, NO_TIMESTAMP_MS, TRANSACTIONAL_FLAG
from storage_core.record.control_records import ControlType, end_transaction_marker
from storage_core.record.encode import BatchEncoding, encode_records
from storage_core.record.record_batches import SEQUENCES, ProducerSequence, RecordBatches
from storage_core.record.record_input import check_header_keys
from storage_core.segment.index_file import LARGEST_RELATIVE_OFFSET
from storage_core.segment.log_segment import RollParameters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from storage_core.log.log_state import LogState
    from storage_core.log_config import LogConfig


# Up to this size, all records are encoded before the first byte is written.
_MAX_ENCODED_BYTES: Final = 64 << 20
# More than the varints, a header's names and what a codec adds to incompressible data.
_RECORD_OVERHEAD_BYTES: Final = 1024
_SLACK: Final = 1.02
_NONE: Final = -1


@dataclass(frozen=True, slots=True)
class AppendInfo:
    """The result of an append.

    Attributes:
        first_offset: The offset of its first record; the log end offset if there was none; -1 with ``acks=0``.
        last_offset: The offset of its last record; -1 with ``acks=0``.
        max_timestamp_ms: The largest timestamp; -1 without any.
        offset_of_max_timestamp: The last offset of the first batch that holds it; -1 without any.
        size_bytes: The size of its batches in the log.
        batch_count: The number of its batches.
        log_append_time_ms: The timestamp that the log assigned to its records; None if they keep their own.
        is_duplicate: Whether the log already had the records: nothing was appended. ``size_bytes`` and
            ``batch_count`` are 0, and the other attributes describe the existing records.
    """

    first_offset: int
    last_offset: int
    max_timestamp_ms: int
    offset_of_max_timestamp: int
    size_bytes: int
    batch_count: int
    log_append_time_ms: int | None = None
    is_duplicate: bool = False

    def without_offsets(self) -> AppendInfo:
        """Return this result with -1 for each offset."""
        return replace(self, first_offset=_NONE, last_offset=_NONE, offset_of_max_timestamp=_NONE)


class _Prepared(NamedTuple):
    """Batches to append, validated except for their producers, and what these produced.

    ``client_batch_count`` is the number of a client's batches; None if the log has encoded them.
    """

    chunks: Iterable[RecordBatches]
    produced: Sequence[ProducerBatch]
    record_count: int
    client_batch_count: int | None = None


def append_records(
    state: LogState,
    records: pa.Table | pa.RecordBatch,
    *,
    leader_epoch: int | None = None,
    producer: ProducerSequence | None = None,
    is_transactional: bool = False,
    check: Callable[[], None] | None = None,
) -> AppendInfo:
    """Append records, as `Log.append` does. The log is not locked.

    ``check`` is called with the log locked, and may reject the append by raising an error.
    """
    if not isinstance(records, (pa.Table, pa.RecordBatch)):
        raise InvalidRecordError(
            f"Expected a pyarrow.Table or pyarrow.RecordBatch to append, found {type(records).__name__}."
        )
    if producer is None and is_transactional:
        raise OptionError("Transactional records need a producer. Pass one.")
    now_ms = state.clock.now_ms()
    count = records.num_rows
    produced: tuple[ProducerBatch, ...] = ()
    if producer is not None and count:
        produced = (_whole_append(producer, count, is_transactional=is_transactional),)

    def prepare(config: LogConfig) -> _Prepared:
        chunks = _batches_of_records(
            records,
            config,
            state.encoding,
            now_ms,
            state.path,
            producer=producer,
            is_transactional=is_transactional,
        )
        return _Prepared(chunks, produced, count)

    return _append_prepared(state, prepare, leader_epoch, now_ms, check=check)


def append_client_batches(
    state: LogState,
    batches: RecordBatches,
    *,
    leader_epoch: int | None = None,
    origin: AppendOrigin = "client",
) -> AppendInfo:
    """Append batches of a producer or a coordinator, as `Log.append_as_leader` does."""
    check_origin(origin)
    now_ms = state.clock.now_ms()

    def prepare(config: LogConfig) -> _Prepared:
        accepted = accept_client_batches(batches, config, now_ms, origin=origin, path=state.path)
        produced = ProducerBatches.of_record_batches(accepted, path=state.path).batches
        if origin == "coordinator":
            # Its sequence numbers are not looked at.
            produced = tuple(batch._replace(last_sequence=_NONE) for batch in produced)
        record_count = int(accepted.headers["last_offset_delta"].sum(dtype=np.int64)) + accepted.count
        return _Prepared([accepted] if accepted.count else [], produced, record_count, accepted.count)

    return _append_prepared(state, prepare, leader_epoch, now_ms)


def _append_prepared(
    state: LogState,
    prepare: Callable[[LogConfig], _Prepared],
    leader_epoch: int | None,
    now_ms: int,
    *,
    check: Callable[[], None] | None = None,
) -> AppendInfo:
    """Prepare batches without the log's lock, then append them under it, with the same configuration throughout."""
    while True:
        config = state.config
        prepared = prepare(config)
        with state.writing():
            if state.config is not config:
                # The configuration was altered meanwhile: prepare the batches again.
                continue
            if check is not None:
                check()
            return _append(state, prepared, _epoch(state, leader_epoch), now_ms)


def _whole_append(producer: ProducerSequence, count: int, *, is_transactional: bool) -> ProducerBatch:
    """Describe all batches of an append as one batch, whose offsets are not known yet."""
    return ProducerBatch(
        producer.producer_id,
        producer.producer_epoch,
        base_offset=_NONE,
        last_sequence=_NONE
        if producer.base_sequence < 0
        else (producer.base_sequence + count - 1) % SEQUENCES,
        last_offset=_NONE,
        offset_delta=count - 1,
        timestamp_ms=NO_TIMESTAMP_MS,
        is_transactional=is_transactional,
        marker=None,
    )


def append_marker(
    state: LogState,
    producer_id: int,
    producer_epoch: int,
    *,
    is_abort: bool,
    coordinator_epoch: int = 0,
    transaction_version: int = 1,
) -> AppendInfo:
    """Append the marker that ends a producer's transaction, as `Log.end_transaction` does.

    The log is locked.
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
    return _append(state, _Prepared([marker], (), 1), _epoch(state, None), now_ms)


def assign_epoch_start_offset(state: LogState, leader_epoch: int) -> int:
    """Begin a leader epoch at the log end, before its first batch, and return its start offset."""
    epoch = _epoch(state, leader_epoch)
    state.leader_epochs.assign(epoch, state.offsets.log_end_offset)
    return state.leader_epochs.entries[-1].start_offset


def _append(state: LogState, prepared: _Prepared, leader_epoch: int, now_ms: int) -> AppendInfo:
    """Append validated batches of format v2 at the log end, with offsets that the log assigns. The log is locked.

    Their producers are checked here.
    """
    chunks, produced, record_count, client_batch_count = prepared
    _require_room(state, record_count)
    log_append_time_ms = now_ms if state.config.has_log_append_time else None
    if produced:
        forget_expired_producers(state)
        duplicate = check_produced(
            state.producers.producers, produced, batch_count=client_batch_count, path=state.path
        )
        if duplicate is not None:
            return _info_of_duplicate(duplicate, is_append_time=log_append_time_ms is not None)
    first_offset = next_offset = state.offsets.log_end_offset
    infos = []
    for chunk in chunks:
        batches = chunk.with_offsets(next_offset, leader_epoch)
        next_offset = batches.next_offset
        infos.append(_info(batches))
        _write(state, batches, now_ms)
    if len(infos) == 1 and log_append_time_ms is None:
        return infos[0]
    return _sum(infos, first_offset, next_offset, log_append_time_ms)


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


def _require_room(state: LogState, count: int) -> None:
    log_end_offset = state.offsets.log_end_offset
    if log_end_offset > MAX_OFFSET - count:
        raise OffsetOverflowError(
            f"Expected offsets below {MAX_OFFSET}, the largest log end offset, found {count} records to append from "
            f"offset {log_end_offset} on. Use another partition.",
            path=state.path,
            offset=log_end_offset,
        )


def _epoch(state: LogState, leader_epoch: int | None) -> int:
    latest = state.leader_epochs.latest_epoch or 0
    if leader_epoch is None:
        return latest
    check_leader_epoch(leader_epoch)
    if leader_epoch < latest:
        raise InvalidRecordError(
            f"Expected a leader epoch of at least {latest}, which the log has seen, found {leader_epoch}.",
            path=state.path,
        )
    return leader_epoch


def _batches_of_records(
    records: pa.Table | pa.RecordBatch,
    config: LogConfig,
    encoding: BatchEncoding,
    now_ms: int,
    path: str,
    *,
    producer: ProducerSequence | None = None,
    is_transactional: bool = False,
) -> Iterable[RecordBatches]:
    """Encode records. Everything that the log does not accept is rejected before this returns.

    Raises:
        InvalidRecordError: The columns are invalid, or a key is missing in a compacted log.
        InvalidTimestampError: A timestamp is too far from the present.
        RecordTooLargeError: A record makes a batch larger than ``max.message.bytes`` or the limit of reads.
        RecordBatchTooLargeError: A batch is larger than ``segment.bytes``.
    """

    def encoded() -> Iterator[RecordBatches]:
        return encode_records(
            records,
            encoding,
            default_timestamp_ms=now_ms,
            producer=producer,
            is_transactional=is_transactional,
        )

    chunks = encoded()
    check_header_keys(records)
    validate_records(records, config, now_ms, path=path)
    # A slice counts with its own size, not with that of its buffers.
    if records.num_rows == 1 or records.get_total_buffer_size() <= _MAX_ENCODED_BYTES:
        return list(_checked(chunks, config, now_ms, path))
    if not _is_surely_small(records, config):
        # Encoding twice is better than a partial append, or than holding everything in memory.
        for _ in _checked(chunks, config, now_ms, path):
            pass
        chunks = encoded()
    return _checked(chunks, config, now_ms, path)


def _checked(
    chunks: Iterable[RecordBatches], config: LogConfig, now_ms: int, path: str
) -> Iterator[RecordBatches]:
    for chunk in chunks:
        validate_leader_append(chunk, config, path=path)
        yield chunk.with_log_append_time(now_ms) if config.has_log_append_time else chunk


def _is_surely_small(records: pa.Table | pa.RecordBatch, config: LogConfig) -> bool:
    """Return True if the lengths of keys and values prove that no record makes a batch too large."""
    if "headers" in records.schema.names:
        return False
    length_bytes = sum(
        max(0, int(byte_lengths(chunks_of(records, name)).max(initial=0))) for name in ("key", "value")
    )
    largest_bytes = max(length_bytes + _RECORD_OVERHEAD_BYTES, config.batch_size) * _SLACK
    return bool(largest_bytes <= min(config.max_message_bytes, config.max_segment_bytes))


def append_replicated(state: LogState, batches: RecordBatches, now_ms: int) -> AppendInfo:
    """Append batches of any format that keep their offsets and epochs. Only their producers are checked here."""
    if not batches.count:
        log_end_offset = state.offsets.log_end_offset
        return _sum([], log_end_offset, log_end_offset, None)
    producers = state.producers
    transactional = batches.count_with(TRANSACTIONAL_FLAG)
    if transactional < batches.count and (transactional or producers.open_transactions):
        of_producers = ProducerBatches.of_record_batches(batches, path=state.path)
        check_replicated(producers.producers, of_producers.batches, path=state.path)
    state.is_only_replica = False
    _write(state, batches, now_ms)
    return _info(batches)


def _write(state: LogState, batches: RecordBatches, now_ms: int) -> None:
    """Write batches that have offsets, segment by segment."""
    while True:
        count = _make_room(state, batches, now_ms)
        if count == batches.count:
            _write_to_active_segment(state, batches)
            break
        _write_to_active_segment(state, batches.select(0, count))
        batches = batches.select(count, batches.count)
    flush_if_due(state, now_ms)


def _make_room(state: LogState, batches: RecordBatches, now_ms: int) -> int:
    """Return how many batches go into the active segment: as many as if each were appended separately.

    If even the first one requires a new segment, roll first.
    """
    if state.segments.active.should_roll(_roll_parameters(batches, 0, 1, now_ms)):
        # The first offset of a message set of an older format is unknown; this is Kafka's lower bound.
        first_offset = batches.base_offset
        is_known = int(batches.headers["magic"][0]) >= MAGIC_V2
        roll(state, first_offset if is_known else batches.last_offset - LARGEST_RELATIVE_OFFSET)
    count = _count_that_fits(state, batches) if batches.count > 1 else 1
    if count == 1:
        return 1
    segment = state.segments.active
    if segment.size_bytes == 0:
        timestamps_ms = batches.headers["max_timestamp_ms"][:count]
        age_ms = int(timestamps_ms.max()) - int(timestamps_ms[0])
        # The first batch determines the age of the segment, so it is written alone.
        return 1 if age_ms > state.config.max_segment_ms - state.config.segment_jitter_ms else count
    if not segment.should_roll(_roll_parameters(batches, 0, count, now_ms)):
        return count
    return next(
        (
            number
            for number in range(1, count)
            if segment.should_roll(_roll_parameters(batches, number, number + 1, now_ms))
        ),
        count,
    )


def _count_that_fits(state: LogState, batches: RecordBatches) -> int:
    """Count the batches, at least one, that fit ``segment.bytes`` and the indexes of the active segment."""
    segment = state.segments.active
    room_bytes = state.config.max_segment_bytes - segment.size_bytes
    count = int(np.searchsorted(batches.sizes_bytes.cumsum(), room_bytes, side="right"))
    return max(1, min(count, segment.free_index_entries))


def _roll_parameters(batches: RecordBatches, start: int, stop: int, now_ms: int) -> RollParameters:
    headers = batches.headers
    if batches.count == 1:
        row = headers[0]
        return RollParameters(
            int(batches.sizes_bytes[0]), int(row["max_timestamp_ms"]), batches.last_offset, now_ms
        )
    return RollParameters(
        int(batches.sizes_bytes[start:stop].sum()),
        int(headers["max_timestamp_ms"][start:stop].max()),
        int(headers["base_offset"][stop - 1]) + int(headers["last_offset_delta"][stop - 1]),
        now_ms,
    )


def _write_to_active_segment(state: LogState, batches: RecordBatches) -> None:
    # First: a malformed marker must be rejected before anything is written.
    of_producers = ProducerBatches.of_record_batches(batches, path=state.path)
    state.leader_epochs.assign_batches(batches.headers)
    segment = state.segments.active
    segment.append(batches)
    for transaction in state.producers.update(of_producers):
        segment.append_aborted_transaction(transaction)
    state.publish(state.offsets.appended(batches.next_offset, is_only_replica=state.is_only_replica))


def _info(batches: RecordBatches) -> AppendInfo:
    headers = batches.headers
    timestamps_ms = headers["max_timestamp_ms"]
    latest = 0 if batches.count == 1 else int(timestamps_ms.argmax())
    max_timestamp_ms = int(timestamps_ms[latest])
    last_offset = batches.last_offset
    offset_of_max_timestamp = last_offset
    if max_timestamp_ms == NO_TIMESTAMP_MS:
        offset_of_max_timestamp = _NONE
    elif batches.count > 1:
        offset_of_max_timestamp = int(batches.last_offsets[latest])
    return AppendInfo(
        batches.base_offset,
        last_offset,
        max_timestamp_ms,
        offset_of_max_timestamp,
        batches.size_bytes,
        batches.count,
    )


def _sum(
    infos: list[AppendInfo], first_offset: int, next_offset: int, log_append_time_ms: int | None
) -> AppendInfo:
    latest = max(infos, key=lambda info: info.max_timestamp_ms, default=None)
    return AppendInfo(
        first_offset,
        next_offset - 1,
        NO_TIMESTAMP_MS if latest is None else latest.max_timestamp_ms,
        _NONE if latest is None else latest.offset_of_max_timestamp,
        sum(info.size_bytes for info in infos),
        sum(info.batch_count for info in infos),
        log_append_time_ms,
    )
