"""Appending to a log (Kafka's ``UnifiedLog.append``).

encode → validate → per part that fits a segment: offsets, epoch, roll, bytes and index entries, log
end, epochs, producers, high watermark. Everything that can be refused is refused before the first
byte is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from storage_core.log.log_flush import flush_if_due
from storage_core.log.log_roll import roll
from storage_core.log.producer_append import check_replicated
from storage_core.log.producer_batches import ProducerBatches
from storage_core.record.batch_header import MAGIC_V2, TRANSACTIONAL_FLAG
from storage_core.record.legacy_message import NO_TIMESTAMP_MS
from storage_core.record.record_batches import RecordBatches
from storage_core.segment.offset_index_file import LARGEST_RELATIVE_OFFSET
from storage_core.segment.roll import RollParameters

if TYPE_CHECKING:
    from collections.abc import Iterable

    from storage_core.log.log_state import LogState

__all__ = ["AppendInfo", "append_chunks", "append_replicated", "write_pending"]

_MOST_PENDING_BYTES: Final = 1 << 20
_NO_OFFSET: Final = -1


@dataclass(frozen=True, slots=True)
class AppendInfo:
    """What an append did.

    Attributes:
        first_offset: The offset of its first record; the log end offset if there was none.
        last_offset: The offset of its last record.
        max_timestamp_ms: The largest timestamp; -1 without any.
        offset_of_max_timestamp: The last offset of the first batch that holds it; -1 without any.
        size_bytes: How many bytes of the log it takes.
        batch_count: How many batches it became.
        log_append_time_ms: The time that the log gave its records; None if they keep their own.
        is_duplicate: Whether a producer has repeated itself: the records were there already, nothing was appended, and
            everything here but ``size_bytes`` and ``batch_count``, which are 0, tells of them.
    """

    first_offset: int
    last_offset: int
    max_timestamp_ms: int
    offset_of_max_timestamp: int
    size_bytes: int
    batch_count: int
    log_append_time_ms: int | None = None
    is_duplicate: bool = False


def append_chunks(
    state: LogState,
    chunks: Iterable[RecordBatches],
    leader_epoch: int,
    now_ms: int,
    *,
    is_pending: bool = False,
    log_append_time_ms: int | None = None,
) -> AppendInfo:
    """Append validated batches at the log end, under a leader epoch.

    Args:
        state: The log, locked.
        chunks: Batches of format v2; their offsets are not looked at.
        leader_epoch: Under which they are written.
        now_ms: The time.
        is_pending: Whether they may wait in memory.
        log_append_time_ms: The time that the batches got, for the answer.
    """
    if not is_pending:
        write_pending(state)
    first_offset = next_offset = state.next_offset
    infos = []
    for chunk in chunks:
        batches = chunk.with_offsets(next_offset, leader_epoch)
        next_offset = batches.next_offset
        infos.append(_info(batches))
        if is_pending:
            _keep_pending(state, batches)
        else:
            _write(state, batches, now_ms)
    if len(infos) == 1 and log_append_time_ms is None:
        return infos[0]
    return _sum(infos, first_offset, next_offset, log_append_time_ms)


def append_replicated(state: LogState, batches: RecordBatches, now_ms: int) -> AppendInfo:
    """Append batches of any format that keep their offsets and epochs, validated but for their producers."""
    write_pending(state)
    if not batches.count:
        return _sum([], state.next_offset, state.next_offset, None)
    producers = state.producers
    transactional = batches.count_with(TRANSACTIONAL_FLAG)
    if transactional < batches.count and (transactional or producers.open_transactions):
        of_producers = ProducerBatches.of_record_batches(batches, path=state.path)
        check_replicated(producers.producers, of_producers.batches, path=state.path)
    state.is_only_replica = False
    _write(state, batches, now_ms)
    return _info(batches)


def write_pending(state: LogState) -> None:
    """Write the batches that wait in memory. What cannot be written is lost, and the log has failed."""
    pending = state.pending
    if not pending.batches:
        return
    batches = pending.batches
    try:
        _write(state, batches[0] if len(batches) == 1 else _joined(batches), state.clock.now_ms())
    except BaseException as error:
        # Whatever it is: they were acknowledged, and cannot be refused any more.
        state.fail(error)
        raise
    pending.clear()


def _keep_pending(state: LogState, batches: RecordBatches) -> None:
    state.pending.add(batches)
    if state.pending.size_bytes >= _MOST_PENDING_BYTES:
        write_pending(state)


def _joined(parts: list[RecordBatches]) -> RecordBatches:
    return RecordBatches(
        np.concatenate([part.headers for part in parts]),
        np.concatenate([part.sizes_bytes for part in parts]),
        [piece for part in parts for piece in part.pieces],
    )


def _write(state: LogState, batches: RecordBatches, now_ms: int) -> None:
    """Write batches that have their offsets, a segment's share at a time."""
    while True:
        count = _make_room(state, batches, now_ms)
        if count == batches.count:
            _write_to_active_segment(state, batches)
            break
        _write_to_active_segment(state, batches.select(0, count))
        batches = batches.select(count, batches.count)
    flush_if_due(state, now_ms)


def _make_room(state: LogState, batches: RecordBatches, now_ms: int) -> int:
    """How many batches the active segment takes: as many as if each were appended by itself.

    If it does not even take the first one, a new segment is begun.
    """
    segment = state.segments.active
    count = _count_that_fits(state, batches)
    if count == 0 or segment.should_roll(_roll_parameters(batches, 0, 1, now_ms)):
        # The offset in front of a set of older messages is known no better than that.
        first_offset = batches.base_offset
        is_known = int(batches.headers["magic"][0]) >= MAGIC_V2
        roll(state, first_offset if is_known else batches.last_offset - LARGEST_RELATIVE_OFFSET)
        count = max(1, _count_that_fits(state, batches))
        segment = state.segments.active
    if count == 1:
        return 1
    if segment.size_bytes == 0:
        timestamps_ms = batches.headers["max_timestamp_ms"][:count]
        age_ms = int(timestamps_ms.max()) - int(timestamps_ms[0])
        # The first batch decides how old the segment is, so it goes first.
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
    """How many of the batches leave the active segment within ``segment.bytes``, and its indexes within theirs."""
    segment = state.segments.active
    room_bytes = state.config.max_segment_bytes - segment.size_bytes
    if batches.count == 1:
        return 1 if int(batches.sizes_bytes[0]) <= room_bytes else 0
    count = int(np.searchsorted(batches.sizes_bytes.cumsum(), room_bytes, side="right"))
    return min(count, max(1, segment.free_index_entries))


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
    # A malformed marker is noticed before anything is written.
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
        offset_of_max_timestamp = _NO_OFFSET
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
        _NO_OFFSET if latest is None else latest.offset_of_max_timestamp,
        sum(info.size_bytes for info in infos),
        sum(info.batch_count for info in infos),
        log_append_time_ms,
    )
