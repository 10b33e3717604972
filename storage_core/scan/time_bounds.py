"""Where a partition's records begin, or end, to be as young as a moment: pruning by timestamps.

Batch headers hold the largest timestamp and none the smallest. So all in front of the first
batch that is young enough can be left out without further ado. What follows the last one that
is old enough cannot be told by any header: only a promise of how far timestamps are out of
order lets a read end, at the first record that is younger by as much.

An answer given here leaves out records for good, so nothing but a timestamp of theirs counts: a
file's age, by which a broker judges segments without timestamps, says nothing of them. And an
answer is optional: indexes are asked first what there is to be gained, the log is looked at only
where that is more than the price, and damage is left for the reading to report.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from storage_core.record import batch_timestamps
from storage_core.record.batch_header import MAX_OFFSET
from storage_core.scan.isolation import AbortedTransactions
from storage_core.scan.look_up import (
    DAMAGE,
    LARGE_BATCH_BYTES,
    LOOK_UP_PRICE_BYTES,
    Budget,
    RangeOfSegments,
    batch_reaching,
    first_header,
    indexed_position,
)
from storage_core.segment.batch_walk import PAGE_SIZE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from storage_core.directory import PartitionLog
    from storage_core.record.batch_header import BatchHeader
    from storage_core.segment import AbortedTransaction, SegmentReader, TimestampOffset

__all__ = ["end_offset_by_time", "start_offset_by_time"]

# Above this, a timestamp in milliseconds is no time that a column can hold: nobody vouches for it.
_LARGEST_MS: Final = (2**63 - 1) // 1000


def start_offset_by_time(log: PartitionLog, timestamp_ms: int, start_offset: int, end_offset: int) -> int:
    """An offset such that every record from ``start_offset`` to it is older.

    Returns:
        ``end_offset`` if all are; ``start_offset`` if more is not worth finding out.

    Raises:
        DataLossError: A segment vanished since the log was listed.
    """
    segments = RangeOfSegments(log, start_offset, end_offset)
    if segments.size_bytes < LOOK_UP_PRICE_BYTES:
        return start_offset
    search = _StartSearch(timestamp_ms, segments.size_bytes)
    for index in segments.indexes:
        first_offset = max(start_offset, log.segments.base_offsets[index])
        found = log.ask(
            index, partial(search.young_offset, first_offset, is_complete=segments.is_complete(index))
        )
        if found is not None:
            return min(found, end_offset)
        # With thousands of segments, the indexes of those passed over would fill the memory.
        log.segments[index].forget_indexes()
    return end_offset


def end_offset_by_time(
    log: PartitionLog,
    timestamp_ms: int,
    start_offset: int,
    end_offset: int,
    aborted_transactions: Iterable[AbortedTransaction] = (),
) -> int:
    """The offset of the first record of a range that is as young as ``timestamp_ms``.

    Transaction markers do not count: they carry the clock of a broker, not that of a producer.

    Args:
        log: The partition.
        timestamp_ms: Milliseconds since 1970.
        start_offset: Records in front of it do not count.
        end_offset: Nor do those from here on.
        aborted_transactions: Their records do not count either: nobody sees their timestamps.

    Returns:
        ``end_offset`` if there is none, none that a time index leads to, or none that is far enough
        from the end to be worth finding.

    Raises:
        DataLossError: A segment vanished since the log was listed.
    """
    segments = RangeOfSegments(log, start_offset, end_offset)
    search = _EndSearch(timestamp_ms, start_offset, tuple(aborted_transactions))
    for index, size_behind_bytes in zip(segments.indexes, segments.sizes_from_bytes(), strict=True):
        if size_behind_bytes < LOOK_UP_PRICE_BYTES:
            break
        found = log.ask(index, partial(search.young_record, size_behind_bytes))
        if found is not None:
            return min(found, end_offset)
        log.segments[index].forget_indexes()
    return end_offset


class _StartSearch:
    """The search for the first batch that is young enough."""

    def __init__(self, timestamp_ms: int, size_bytes: int) -> None:
        self._timestamp_ms = timestamp_ms
        self._budget = Budget(size_bytes)

    def young_offset(self, start_offset: int, segment: SegmentReader, *, is_complete: bool) -> int | None:
        """The first offset whose batch may be young enough; None if the whole segment is older."""
        if segment.size_bytes == 0:
            return None
        header = first_header(segment)
        if header is None or self._may_be_young(header):
            return start_offset
        if segment.size_bytes < LOOK_UP_PRICE_BYTES or not len(segment.time_index):
            if not self._is_walk_worth_it(segment, header):
                return start_offset
            return self._walk(segment, 0, start_offset)
        named, position_bytes = self._indexed_batch(segment, is_complete=is_complete)
        if position_bytes - indexed_position(segment, start_offset) < LOOK_UP_PRICE_BYTES:
            return start_offset
        proven = _proven_batch(segment, named, position_bytes)
        return start_offset if proven is None else self._walk(segment, proven.position_bytes, start_offset)

    def _may_be_young(self, header: BatchHeader) -> bool:
        # A v0 wrapper has no timestamp, but may hold v1 messages, which have (KAFKA-4298).
        return header.max_timestamp_ms >= self._timestamp_ms or (header.is_wrapper and header.magic == 0)

    def _is_walk_worth_it(self, segment: SegmentReader, header: BatchHeader) -> bool:
        if header.size_bytes >= LARGE_BATCH_BYTES:
            return self._budget.allows(segment, PAGE_SIZE_BYTES)
        # Nearly all of it would be read.
        return segment.size_bytes < LOOK_UP_PRICE_BYTES and self._budget.allows(segment, segment.size_bytes)

    def _indexed_batch(self, segment: SegmentReader, *, is_complete: bool) -> tuple[TimestampOffset, int]:
        """An entry of the time index such that nothing in front of its batch is young enough, and what it saves."""
        entry = segment.time_index.lookup(self._timestamp_ms)
        position_bytes = indexed_position(segment, entry.offset)
        if is_complete and entry == segment.time_index.last_entry and entry.timestamp_ms < self._timestamp_ms:
            # No entry follows because none was due: nothing up to the last indexed batch is younger.
            position_bytes = indexed_position(segment, MAX_OFFSET)
        return entry, position_bytes

    def _walk(self, segment: SegmentReader, position_bytes: int, start_offset: int) -> int | None:
        next_offset = start_offset
        self._budget.pass_over(segment, position_bytes)
        try:
            for header in segment.batches(position_bytes):
                if header.position_bytes != position_bytes:
                    # The walk has passed over damage, in which nobody knows what was.
                    return next_offset
                if self._may_be_young(header) or self._budget.is_spent(segment):
                    return max(start_offset, header.base_offset)
                self._budget.pass_over(segment, header.size_bytes)
                position_bytes = header.end_position_bytes
                next_offset = max(next_offset, header.last_offset + 1)
        except DAMAGE:
            return next_offset
        # A walk ends without an error at zeros or at half a batch, and nothing is known of what follows.
        return None if position_bytes == segment.size_bytes else next_offset


class _EndSearch:
    """The search for the first record that is young enough."""

    def __init__(self, timestamp_ms: int, start_offset: int, aborted: tuple[AbortedTransaction, ...]) -> None:
        self._timestamp_ms = timestamp_ms
        self._start_offset = start_offset
        self._aborted = AbortedTransactions(aborted)

    def young_record(self, size_behind_bytes: int, segment: SegmentReader) -> int | None:
        """The offset of the first such record of a segment, if a time index leads to it and it is worth it.

        Args:
            size_behind_bytes: How much there is from the segment's beginning to the end of the range.
            segment: The segment.
        """
        last_entry = segment.time_index.last_entry
        if last_entry is None or last_entry.timestamp_ms < self._timestamp_ms:
            return None
        offset = max(segment.time_index.lookup(self._timestamp_ms).offset, self._start_offset)
        gain_bytes = size_behind_bytes - _read_anyway_bytes(segment, indexed_position(segment, offset))
        if gain_bytes < LOOK_UP_PRICE_BYTES:
            return None
        first = batch_reaching(segment, offset)
        if first is None:
            return None
        try:
            for batch in segment.batches(first.position_bytes):
                gain_bytes = size_behind_bytes - _read_anyway_bytes(segment, batch.end_position_bytes)
                if gain_bytes < LOOK_UP_PRICE_BYTES + batch.size_bytes:
                    return None
                if self._may_count(batch):
                    found = self._record_of(segment, batch)
                    if found is not None:
                        return found
        except DAMAGE:
            pass
        return None

    def _may_count(self, batch: BatchHeader) -> bool:
        if batch.max_timestamp_ms < self._timestamp_ms or batch.is_control:
            return False
        return not batch.is_transactional or not any(
            each.producer_id == batch.producer_id
            for each in self._aborted.touching(batch.base_offset, batch.base_offset + 1)
        )

    def _record_of(self, segment: SegmentReader, batch: BatchHeader) -> int | None:
        offsets, timestamps_ms = batch_timestamps(
            segment.read_batch(batch), batch, path=segment.log_path, limit_bytes=segment.max_batch_bytes
        )
        is_found = (timestamps_ms >= self._timestamp_ms) & (timestamps_ms <= _LARGEST_MS)
        is_found &= offsets >= self._start_offset
        return int(offsets[is_found.argmax()]) if is_found.any() else None


def _read_anyway_bytes(segment: SegmentReader, position_bytes: int) -> int:
    """How much of a segment is read if the read could end at a position: near its end, it does not."""
    rest_bytes = segment.size_bytes - position_bytes
    return segment.size_bytes if rest_bytes < LOOK_UP_PRICE_BYTES else position_bytes


def _proven_batch(segment: SegmentReader, entry: TimestampOffset, position_bytes: int) -> BatchHeader | None:
    """The batch that a look-up may begin at, if the log bears out what the time index says of it."""
    named = batch_reaching(segment, entry.offset)
    if named is None or named.base_offset > entry.offset or named.max_timestamp_ms != entry.timestamp_ms:
        segment.set_time_index_aside()
        return None
    last_indexed = segment.offset_index.last_entry
    if position_bytes <= named.position_bytes or last_indexed is None:
        return named
    return batch_reaching(segment, last_indexed.offset) or named
