"""Pruning of offset ranges by a condition, above all by its bounds on timestamps.

A batch header holds the largest timestamp of the batch, but with CreateTime it is a claim: some producers leave it -1, 0
or too small, and only brokers check it. With LogAppendTime it is the timestamp of every record. So without a promise, only
batches with LogAppendTime are left out before a lower bound. No header tells where the records below an upper bound end.

``maxTimestampDisorder`` promises how far records are from ascending order. Then one record that is earlier than a lower bound
by that much proves that all before it are below the bound, and one that is later than an upper bound that none follows.
Headers and time indexes only say where to look for it.

Pruning removes records from the result, so only their own timestamps count. The file's modification
time, by which a broker judges segments without timestamps, does not.

Pruning is optional, because the condition is applied to every row. So a small segment is read as a whole, and so is one
in which only a walk over small batches leads to an end. What a walk over headers reads has a budget. Damage is left to
the tasks to report; a segment that vanished since the log was listed is a `DataLossError`.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Final, TypeAlias

from storage_core.cached_property import cached_property
from storage_core.directory.joined_log import JoinedLog
from storage_core.errors import CorruptError, UnsupportedFormatError
from storage_core.record import batch_timestamps
from storage_core.record.batch_header import (
    HEADER_SIZE_BYTES,
    LOG_APPEND_TIME_FLAG,
    MAGIC_V2,
    MAX_OFFSET,
    BatchHeader,
    parse_batch_header,
)
from storage_core.scan.isolation import AbortedTransactions, aborted_transactions
from storage_core.scan.offset_ranges import PartitionRange
from storage_core.scan.pruning import Bounds, prune_partition
from storage_core.segment.batch_walk import PAGE_SIZE_BYTES, record_timestamps

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    import numpy.typing as npt

    from storage_core.directory import PartitionLog
    from storage_core.filesystem import ReadableFile
    from storage_core.options import ReadOptions
    from storage_core.options.predicate import Predicate
    from storage_core.segment import SegmentReader, TimestampOffset

    _Int64Array: TypeAlias = npt.NDArray[np.int64]


# The most that is read to find a batch by the indexes, to prove their entries, and to find the batch again when
# spans are located: a few blocks of one page and of four.
LOOKUP_COST_BYTES: Final = 96 << 10
# A walk over batches of this size or more reads their headers only; of smaller batches it reads nearly all.
LARGE_BATCH_BYTES: Final = 16 << 10
# This fraction of the range may be read: mostly instead of the task, which then begins after it.
_SHARE: Final = 8
# So many batches are decoded to find one record that proves a start.
_PROOFS: Final = 4
# An entry of each index.
_INDEX_ENTRIES_BYTES: Final = 20
# Planning has one thread: no look-up in one partition reads more than this, which takes a second.
_MOST_BYTES: Final = 16 << 20
DAMAGE: Final = (CorruptError, UnsupportedFormatError)
"""Errors that end a look-up; the task that reads there reports them."""


class SegmentRange:
    """Segments that hold a range of offsets. The last one of a log counts up to the log end."""

    def __init__(self, log: PartitionLog, start_offset: int, end_offset: int) -> None:
        self._log = log
        bases = log.segments.base_offsets
        first = log.segment_index_for(start_offset) or 0
        end = len(bases) if start_offset < end_offset else 0
        self.indexes = [index for index in range(first, end) if bases[index] < end_offset]
        if self.indexes and self.indexes[-1] == len(bases) - 1:
            # Limits the last segment to the log end.
            _ = log.log_end_offset

    @cached_property
    def sizes_bytes(self) -> list[int]:
        """Each segment's size."""
        return [self._log.read_segment(index, lambda segment: segment.size_bytes) for index in self.indexes]

    @property
    def size_bytes(self) -> int:
        """Size of all of them in bytes."""
        return sum(self.sizes_bytes)

    def sizes_from_bytes(self) -> list[int]:
        """Return for each segment the size from its start to the end of the range."""
        return list(accumulate(reversed(self.sizes_bytes)))[::-1]

    def is_complete(self, index: int) -> bool:
        """Return True if a broker has closed the time index, whose last entry is then the largest timestamp."""
        return self._log.is_complete(index)


class WalkBudget:
    """Budget of bytes that a walk over batch headers may read: a small part of the range. Requests count as bytes, too.

    Of large batches that is enough for every header. A walk over small ones reads all of them, and ends soon.
    """

    def __init__(self, size_bytes: int, request_cost_bytes: int) -> None:
        self._request_cost_bytes = request_cost_bytes
        self._left_bytes = min(size_bytes // _SHARE, _MOST_BYTES)

    def spend(self, size_bytes: int, requests: int = 1) -> None:
        """Count what is read."""
        self._left_bytes -= size_bytes + requests * self._request_cost_bytes

    def spend_on_header(self, batch_bytes: int) -> None:
        """Count a header, and the batch as well where skipping it would take longer."""
        is_hop = batch_bytes > max(PAGE_SIZE_BYTES, self._request_cost_bytes)
        self.spend(HEADER_SIZE_BYTES if is_hop else batch_bytes, int(is_hop))

    def allows(self, size_bytes: int = 0) -> bool:
        """Return True if this many more bytes may be read."""
        return size_bytes <= self._left_bytes


def first_header(segment: SegmentReader) -> BatchHeader | None:
    """Read the header of a segment's first batch alone.

    Returns:
        The header; None if there is no batch.
    """
    with segment.open_log() as log_file:
        return _header_at_start(segment, log_file)


def _header_at_start(segment: SegmentReader, log_file: ReadableFile) -> BatchHeader | None:
    data = log_file.read_at(HEADER_SIZE_BYTES, 0)
    if len(data) < HEADER_SIZE_BYTES:
        return None
    try:
        return parse_batch_header(data, 0, 0, path=segment.log_path)
    except DAMAGE:
        return None


def batch_reaching(segment: SegmentReader, offset: int) -> BatchHeader | None:
    """Find the first batch whose last offset is at least ``offset``.

    Returns:
        Its header; None if there is none, or damage before it.
    """
    try:
        return segment.translate_offset(offset)
    except DAMAGE:
        return None


def indexed_position(segment: SegmentReader, offset: int) -> int:
    """Return the position at or before an offset by the offset index, which is not compared with the log."""
    if offset <= segment.base_offset:
        return 0
    return min(segment.offset_index.lookup(offset).position_bytes, segment.size_bytes)


# A larger timestamp in milliseconds does not fit the column of microseconds, so it is not taken for a time.
_LARGEST_MS: Final = (2**63 - 1) // 1000


def start_offset_by_time(log: PartitionLog, timestamp_ms: int, start_offset: int, end_offset: int) -> int:
    """Find an offset such that all batches from ``start_offset`` to it have earlier timestamps by their headers.

    Returns:
        ``end_offset`` if all batches of the range have; ``start_offset`` if a look-up does not pay.
    """
    segments = SegmentRange(log, start_offset, end_offset)
    if segments.size_bytes < LOOKUP_COST_BYTES:
        return start_offset
    budget = WalkBudget(segments.size_bytes, log.segments[0].traits.request_cost_bytes)
    return _StartSearch(timestamp_ms, budget).run(log, segments, start_offset, end_offset)


def proven_start_offset(
    log: PartitionLog, timestamp_ms: int, start_offset: int, end_offset: int, options: ReadOptions
) -> int:
    """Find an offset such that all records from ``start_offset`` to it have earlier timestamps, whatever headers claim.

    Returns:
        ``end_offset`` if all records of the range have; ``start_offset`` if nothing proves more, or a look-up does not pay.
    """
    disorder_ms = options.max_timestamp_disorder_ms
    segments = SegmentRange(log, start_offset, end_offset)
    if segments.size_bytes < LOOKUP_COST_BYTES:
        return start_offset
    is_promised = disorder_ms is not None
    budget = WalkBudget(segments.size_bytes, log.segments[0].traits.request_cost_bytes)
    search = _StartSearch(timestamp_ms - (disorder_ms or 0), budget, only_proven=not is_promised)
    if not is_promised:
        return search.run(log, segments, start_offset, end_offset)
    is_committed = options.isolation_level == "read_committed"
    segments.indexes = search.without_early(log, segments.indexes, is_committed=is_committed)
    start_offset = max(start_offset, log.segments.base_offsets[segments.indexes[0]])
    found = search.run(log, segments, start_offset, end_offset)
    if found <= start_offset:
        return found
    return max(start_offset, min(found, search.offset_after_proof(log, is_committed=is_committed)))


def end_offset_by_time(
    log: PartitionLog,
    timestamp_ms: int,
    start_offset: int,
    end_offset: int,
    aborted: AbortedTransactions | None = None,
) -> int:
    """Find the first record of a range with a timestamp at or after ``timestamp_ms``.

    Transaction markers do not count: they carry the clock of a broker, not that of a producer. Nor do records of
    aborted transactions, which the read does not return.

    Returns:
        ``end_offset`` if there is none, if no time index leads to it, or if it is so close to the end
        that the look-up does not pay.
    """
    segments = SegmentRange(log, start_offset, end_offset)
    if segments.size_bytes < LOOKUP_COST_BYTES:
        return end_offset
    search = _EndSearch(timestamp_ms, start_offset, aborted or AbortedTransactions())
    first = bisect_left(segments.indexes, True, key=lambda index: search.may_be_in(log, index))
    for index, rest_bytes in zip(segments.indexes[first:], segments.sizes_from_bytes()[first:], strict=True):
        if rest_bytes < LOOKUP_COST_BYTES:
            break
        found = log.read_segment(index, partial(search.first_record_at_or_after, rest_bytes))
        if found is not None:
            return min(found, end_offset)
        log.segments[index].forget_indexes()
    return end_offset


class _StartSearch:
    """Search for the first batch that reaches a timestamp. With ``only_proven``, it passes no batch whose header may be wrong."""

    def __init__(self, timestamp_ms: int, budget: WalkBudget, *, only_proven: bool = False) -> None:
        self._timestamp_ms = timestamp_ms
        self._only_proven = only_proven
        self._budget = budget
        # The last batches that were passed, each with the base offset of its segment.
        self._passed: deque[tuple[int, BatchHeader]] = deque(maxlen=_PROOFS)

    def without_early(self, log: PartitionLog, indexes: list[int], *, is_committed: bool) -> list[int]:
        """Leave out the segments before the last one that begins with an earlier record, as far as a bisection finds it."""

        def is_late(index: int) -> bool:
            found = log.read_segment(index, self._first_batch)
            return (
                found is None
                or not self._offset_after(*found[1:])
                or (is_committed and _is_aborted(log, found[0]))
            )

        # If there are few segments, each is looked at.
        return (
            indexes[bisect_left(indexes, True, 1, key=is_late) - 1 :] if len(indexes) > _PROOFS else indexes
        )

    def _first_batch(self, segment: SegmentReader) -> tuple[BatchHeader, _Int64Array, _Int64Array] | None:
        """Read the offsets and the timestamps of a segment's first batch, unless it is damaged or large."""
        with segment.open_log() as log_file:
            header = _header_at_start(segment, log_file)
            if header is None or header.is_control or not self._budget.allows(header.size_bytes):
                return None
            try:
                return header, *record_timestamps(log_file, header, segment.max_batch_bytes)
            except DAMAGE:
                return None

    def run(self, log: PartitionLog, segments: SegmentRange, start_offset: int, end_offset: int) -> int:
        """Search the segments of a range. Return its end if no batch reaches the timestamp."""
        for index in segments.indexes:
            first_offset = max(start_offset, log.segments.base_offsets[index])
            if not self._budget.allows():
                return first_offset
            found = log.read_segment(
                index,
                partial(self.first_offset_at_or_after, first_offset, is_complete=segments.is_complete(index)),
            )
            if found is not None:
                return min(found, end_offset)
            # With thousands of segments, their indexes would fill the memory.
            log.segments[index].forget_indexes()
        return end_offset

    def offset_after_proof(self, log: PartitionLog, *, is_committed: bool) -> int:
        """Find the offset after the last record that was passed and is earlier. Return 0 if none of the last batches has one."""
        for base_offset, batch in reversed(self._passed):
            index = log.segment_index_for(base_offset)
            if index is None or batch.is_control or not self._budget.allows(batch.size_bytes):
                continue
            self._budget.spend(batch.size_bytes)
            try:
                # Aborted records, which a read of committed ones does not return, are no part of the promise.
                if is_committed and _is_aborted(log, batch):
                    continue
                found = self._offset_after(*log.read_segment(index, partial(_timestamps_of, batch=batch)))
            except DAMAGE:
                continue
            if found:
                return found
        return 0

    def _offset_after(self, offsets: _Int64Array, timestamps_ms: _Int64Array) -> int:
        """Return the offset after the last earlier record of a batch; 0 if it has none."""
        # A negative number is no time.
        early = ((timestamps_ms >= 0) & (timestamps_ms < self._timestamp_ms)).nonzero()[0]
        return int(offsets[early[-1]]) + 1 if len(early) else 0

    def first_offset_at_or_after(
        self, start_offset: int, segment: SegmentReader, *, is_complete: bool
    ) -> int | None:
        """Find the first offset whose batch may reach the timestamp.

        Returns:
            The offset; None if the whole segment is earlier.
        """
        if segment.size_bytes == 0:
            return None
        header = first_header(segment)
        self._budget.spend(HEADER_SIZE_BYTES)
        if header is None or self._may_reach(header):
            return start_offset
        if self._only_proven or segment.size_bytes < LOOKUP_COST_BYTES or not len(segment.time_index):
            is_dear = header.size_bytes < LARGE_BATCH_BYTES and segment.size_bytes >= LOOKUP_COST_BYTES
            return start_offset if is_dear else self._walk(segment, 0, start_offset)
        named, position_bytes = self._indexed_batch(segment, is_complete=is_complete)
        if position_bytes - indexed_position(segment, start_offset) < LOOKUP_COST_BYTES:
            return start_offset
        proven = _proven_batch(segment, named, position_bytes)
        return start_offset if proven is None else self._walk(segment, proven.position_bytes, start_offset)

    def _may_reach(self, header: BatchHeader) -> bool:
        if self._only_proven and not _tells_timestamps(header):
            return True
        # A v0 wrapper has no timestamp, but may hold v1 messages, which have (KAFKA-4298).
        return header.max_timestamp_ms >= self._timestamp_ms or (header.is_wrapper and header.magic == 0)

    def _indexed_batch(self, segment: SegmentReader, *, is_complete: bool) -> tuple[TimestampOffset, int]:
        """Look up where a walk may begin.

        Returns:
            The time index entry before whose batch no batch reaches the timestamp, and a position in bytes.
        """
        self._budget.spend(_INDEX_ENTRIES_BYTES * len(segment.time_index), 2)
        # An earlier batch than the one looked for: a proof needs one.
        entry = segment.time_index.lookup(self._timestamp_ms - 1)
        position_bytes = indexed_position(segment, entry.offset)
        if is_complete and entry == segment.time_index.last_entry and entry.timestamp_ms < self._timestamp_ms:
            # No entry follows because no later timestamp did: nothing up to the last indexed batch reaches it.
            position_bytes = indexed_position(segment, MAX_OFFSET)
        return entry, position_bytes

    def _walk(self, segment: SegmentReader, position_bytes: int, start_offset: int) -> int | None:
        next_offset = start_offset
        try:
            for header in segment.batches(position_bytes):
                if header.position_bytes != position_bytes:
                    # The walk skipped damage, which may have held such a record.
                    return next_offset
                if self._may_reach(header) or not self._budget.allows():
                    return max(start_offset, header.base_offset)
                self._budget.spend_on_header(header.size_bytes)
                self._passed.append((segment.base_offset, header))
                position_bytes = header.end_position_bytes
                next_offset = max(next_offset, header.last_offset + 1)
        except DAMAGE:
            return next_offset
        # A walk also ends, without an error, at zeros and at half a batch: the rest may hold such a record.
        return None if position_bytes == segment.size_bytes else next_offset


class _EndSearch:
    """Search for the first record that reaches a timestamp."""

    def __init__(self, timestamp_ms: int, start_offset: int, aborted: AbortedTransactions) -> None:
        self._timestamp_ms = timestamp_ms
        self._start_offset = start_offset
        self._aborted = aborted

    def may_be_in(self, log: PartitionLog, index: int) -> bool:
        """Return True if the time index of a segment says that it has such a record."""
        last_entry = log.read_segment(index, lambda segment: segment.time_index.last_entry)
        log.segments[index].forget_indexes()
        return last_entry is not None and last_entry.timestamp_ms >= self._timestamp_ms

    def first_record_at_or_after(self, rest_bytes: int, segment: SegmentReader) -> int | None:
        """Find the first record of a segment that reaches the timestamp.

        Args:
            rest_bytes: The size from the segment's start to the end of the range.
            segment: The segment.

        Returns:
            Its offset; None if there is none, if no time index leads to it, or if the look-up does not pay.
        """
        last_entry = segment.time_index.last_entry
        if last_entry is None or last_entry.timestamp_ms < self._timestamp_ms:
            return None
        offset = max(segment.time_index.lookup(self._timestamp_ms).offset, self._start_offset)
        if rest_bytes - indexed_position(segment, offset) < LOOKUP_COST_BYTES:
            return None
        first = batch_reaching(segment, offset)
        if first is None:
            return None
        try:
            for batch in segment.batches(first.position_bytes):
                if rest_bytes - batch.end_position_bytes < LOOKUP_COST_BYTES + batch.size_bytes:
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
        offsets, timestamps_ms = _timestamps_of(segment, batch)
        is_found = (timestamps_ms >= self._timestamp_ms) & (timestamps_ms <= _LARGEST_MS)
        is_found &= offsets >= self._start_offset
        return int(offsets[is_found.argmax()]) if is_found.any() else None


def _is_aborted(log: PartitionLog, batch: BatchHeader) -> bool:
    if not batch.is_transactional:
        return False
    aborted = aborted_transactions(log, batch.base_offset, batch.base_offset + 1)
    return any(each.producer_id == batch.producer_id for each in aborted)


def _tells_timestamps(header: BatchHeader) -> bool:
    """Return True if the header's timestamp is that of each record: with LogAppendTime, and of a message alone."""
    if header.magic < MAGIC_V2:
        return not header.is_wrapper
    return header.is_control or header.record_count == 0 or bool(header.attributes & LOG_APPEND_TIME_FLAG)


def _timestamps_of(segment: SegmentReader, batch: BatchHeader) -> tuple[_Int64Array, _Int64Array]:
    """Read the offset and the timestamp of each record of a batch, whose CRC is checked."""
    return batch_timestamps(
        segment.read_batch(batch), batch, path=segment.log_path, limit_bytes=segment.max_batch_bytes
    )


def _proven_batch(segment: SegmentReader, entry: TimestampOffset, position_bytes: int) -> BatchHeader | None:
    """Find the batch that a walk may begin with.

    Returns:
        Its header; None if the log does not confirm the time index entry.
    """
    named = batch_reaching(segment, entry.offset)
    if named is None or named.base_offset > entry.offset or named.max_timestamp_ms != entry.timestamp_ms:
        segment.ignore_time_index()
        return None
    last_indexed = segment.offset_index.last_entry
    if position_bytes <= named.position_bytes or last_indexed is None:
        return named
    return batch_reaching(segment, last_indexed.offset) or named


_log = logging.getLogger(__name__)
# Reading less than this without need is not worth a warning.
_WORTH_A_WARNING_BYTES: Final = 64 << 20


def prune_range(wanted: PartitionRange, condition: Predicate, options: ReadOptions) -> PartitionRange:
    """Leave out the offsets at both ends of a range that a condition rules out.

    An end within a segment that is read as a whole is that of the segment.
    """
    log = wanted.log
    bounds = prune_partition(condition, log.topic, log.partition)
    start_offset = max(wanted.start_offset, bounds.offset_start or 0)
    end_offset = wanted.end_offset if bounds.offset_end is None else min(wanted.end_offset, bounds.offset_end)
    if bounds.is_empty or start_offset >= end_offset:
        return PartitionRange(log, wanted.start_offset, wanted.start_offset)
    if isinstance(log, JoinedLog) and not log.is_one_history:
        # Times in a part of a segment that is read from another copy say nothing.
        return PartitionRange(log, start_offset, end_offset)
    if bounds.timestamp_start_ms is not None:
        found_offset = proven_start_offset(log, bounds.timestamp_start_ms, start_offset, end_offset, options)
        if log.skip_damage and start_offset < found_offset < end_offset:
            # The timestamps of lost records are not known.
            found_offset = log.start_of_damage_before(found_offset)
        start_offset = max(start_offset, found_offset)
    aborted: AbortedTransactions | None = None
    disorder_ms = options.max_timestamp_disorder_ms
    if bounds.timestamp_end_ms is not None and disorder_ms is not None and start_offset < end_offset:
        if options.isolation_level == "read_committed":
            aborted = AbortedTransactions(aborted_transactions(log, start_offset, end_offset))
        end_offset = end_offset_by_time(
            log, bounds.timestamp_end_ms + disorder_ms, start_offset, end_offset, aborted
        )
    if start_offset < end_offset:
        start_offset = _start_worth_finding(log, start_offset, wanted.start_offset)
        end_offset = _end_worth_finding(log, end_offset, wanted.end_offset)
    return PartitionRange(log, start_offset, end_offset, aborted)


def _start_worth_finding(log: PartitionLog, start_offset: int, given_offset: int) -> int:
    """Return the start, or that of its segment if reading the whole segment is cheaper than locating the start."""
    index = log.segment_index_for(start_offset)
    if index is None or start_offset == given_offset or not _is_read_whole(log, index):
        return start_offset
    return min(start_offset, max(log.segments.base_offsets[index], given_offset))


def _end_worth_finding(log: PartitionLog, end_offset: int, given_offset: int) -> int:
    """Return the end, or that of its segment if reading the whole segment is cheaper than locating the end."""
    index = log.segment_index_for(end_offset - 1)
    if index is None or end_offset == given_offset or not _is_read_whole(log, index):
        return end_offset
    bases = log.segments.base_offsets
    return min(bases[index + 1], given_offset) if index + 1 < len(bases) else given_offset


def _is_read_whole(log: PartitionLog, index: int) -> bool:
    """Return True if a segment is small, or if only a walk over small batches leads to an offset in it."""

    def is_dear(segment: SegmentReader) -> bool:
        # Half of a segment is saved on average.
        if segment.is_one_read or segment.size_bytes < 2 * LOOKUP_COST_BYTES:
            return True
        if len(segment.offset_index):
            return False
        header = first_header(segment)
        return header is None or header.size_bytes < LARGE_BATCH_BYTES

    return log.read_segment(index, is_dear)


def report_bytes_beyond(ranges: Iterable[PartitionRange], condition: Predicate, options: ReadOptions) -> None:
    """Log how much is read only because ``maxTimestampDisorder`` is not set."""
    if options.max_timestamp_disorder_ms is not None:
        return
    bounded = []
    for each in ranges:
        bounds = prune_partition(condition, each.log.topic, each.log.partition)
        if not each.is_empty and (
            bounds.timestamp_start_ms is not None or bounds.timestamp_end_ms is not None
        ):
            bounded.append((each, bounds))
    # The look-up reads a little, so it is left out where nothing would be logged.
    sizes_bytes = (
        SegmentRange(each.log, each.start_offset, each.end_offset).size_bytes for each, _ in bounded
    )
    if not _log.isEnabledFor(logging.INFO) and sum(sizes_bytes) < _WORTH_A_WARNING_BYTES:
        return
    size_bytes, segments, partitions = 0, 0, 0
    for each, bounds in bounded:
        outside = [*_sizes_before(each, bounds), *_sizes_beyond(each, bounds)]
        size_bytes += sum(outside)
        segments += len(outside)
        partitions += bool(outside)
    if size_bytes:
        _log.log(
            logging.WARNING if size_bytes >= _WORTH_A_WARNING_BYTES else logging.INFO,
            "The condition has a bound on timestamps, but maxTimestampDisorder is not set: about %d bytes in "
            "%d segments of %d partitions are read that, by the headers of batches, are before a lower bound or after "
            "the first record beyond an upper one. Headers prove neither. Set maxTimestampDisorder, for example to "
            "'1 hour', to leave these bytes out.",
            size_bytes,
            segments,
            partitions,
        )


def _sizes_before(wanted: PartitionRange, bounds: Bounds) -> list[int]:
    """Count, by segment, the bytes that are read before the first batch that reaches the lower bound."""
    if bounds.timestamp_start_ms is None:
        return []
    log, start_offset = wanted.log, wanted.start_offset
    offset = start_offset_by_time(log, bounds.timestamp_start_ms, start_offset, wanted.end_offset)
    before = SegmentRange(log, start_offset, offset)
    sizes_bytes = list(before.sizes_bytes)
    if sizes_bytes:
        header = log.read_segment(before.indexes[-1], lambda segment: batch_reaching(segment, offset))
        sizes_bytes[-1] = sizes_bytes[-1] if header is None else header.position_bytes
    return sizes_bytes


def _sizes_beyond(wanted: PartitionRange, bounds: Bounds) -> list[int]:
    """Count, by segment, the bytes that are read after the first batch that reaches the upper bound."""
    if bounds.timestamp_end_ms is None:
        return []
    log, end_offset = wanted.log, wanted.end_offset
    offset = start_offset_by_time(log, bounds.timestamp_end_ms, wanted.start_offset, end_offset)
    beyond = SegmentRange(log, offset, end_offset)
    sizes_bytes = list(beyond.sizes_bytes)
    if sizes_bytes and offset > log.segments.base_offsets[beyond.indexes[0]]:
        header = log.read_segment(beyond.indexes[0], lambda segment: batch_reaching(segment, offset))
        sizes_bytes[0] -= sizes_bytes[0] if header is None else header.position_bytes
    return sizes_bytes
