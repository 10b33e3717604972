"""What a condition leaves of a partition's offsets: the step between resolving and locating."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from storage_core.record.batch_header import MAX_OFFSET
from storage_core.scan.isolation import aborted_transactions
from storage_core.scan.look_up import (
    LARGE_BATCH_BYTES,
    LOOK_UP_PRICE_BYTES,
    RangeOfSegments,
    batch_reaching,
    first_header,
    indexed_position,
)
from storage_core.scan.partition_resolver import ResolvedPartition
from storage_core.scan.pruning import prune_partition
from storage_core.scan.time_bounds import end_offset_by_time, start_offset_by_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from storage_core.directory import PartitionLog
    from storage_core.scan.options import ReadOptions
    from storage_core.scan.predicate import Predicate
    from storage_core.segment import AbortedTransaction, SegmentReader

__all__ = ["NarrowedPartition", "narrow_partition", "report_bytes_beyond"]

_log = logging.getLogger(__name__)

# Reading less than this in vain is not worth a warning.
_WORTH_A_WARNING_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class NarrowedPartition:
    """What is left of a partition.

    Attributes:
        resolved: The range to read; its start is its end where nothing is left.
        aborted_transactions: Those of the range, and perhaps others, if they had to be found; otherwise None.
    """

    resolved: ResolvedPartition
    aborted_transactions: tuple[AbortedTransaction, ...] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left."""
        return self.resolved.start_offset >= self.resolved.end_offset


def narrow_partition(
    resolved: ResolvedPartition, condition: Predicate, options: ReadOptions
) -> NarrowedPartition:
    """Leave out the offsets at both ends of which a condition rules out all.

    Within a segment an end is moved only where that saves more than it costs.

    Raises:
        DataLossError: A segment vanished since the log was listed.
    """
    log = resolved.log
    bounds = prune_partition(condition, log.topic, log.partition)
    start_offset = max(resolved.start_offset, bounds.offset_start or 0)
    end_offset = (
        resolved.end_offset if bounds.offset_end is None else min(resolved.end_offset, bounds.offset_end)
    )
    if bounds.is_empty or start_offset >= end_offset:
        return NarrowedPartition(ResolvedPartition(log, resolved.start_offset, resolved.start_offset))
    aborted: tuple[AbortedTransaction, ...] | None = None
    if bounds.timestamp_start_ms is not None:
        found_offset = start_offset_by_time(log, bounds.timestamp_start_ms, start_offset, end_offset)
        if log.skip_damage and start_offset < found_offset < end_offset:
            # How young the records were that are lost there, nobody knows.
            found_offset = log.offset_of_damage_in_front(found_offset)
        start_offset = max(start_offset, found_offset)
    disorder_ms = options.max_timestamp_disorder_ms
    if bounds.timestamp_end_ms is not None and disorder_ms is not None and start_offset < end_offset:
        if options.isolation_level == "read_committed":
            aborted = aborted_transactions(log, start_offset, end_offset)
        end_offset = end_offset_by_time(
            log, bounds.timestamp_end_ms + disorder_ms, start_offset, end_offset, aborted or ()
        )
    if start_offset < end_offset:
        start_offset = _start_worth_finding(log, start_offset, resolved.start_offset)
        end_offset = _end_worth_finding(log, end_offset, resolved.end_offset)
    return NarrowedPartition(ResolvedPartition(log, start_offset, end_offset), aborted)


def _start_worth_finding(log: PartitionLog, start_offset: int, given_offset: int) -> int:
    """A start, or an earlier one where reading on from there is cheaper than finding it."""
    index = log.segment_index_for(start_offset)
    if index is None or start_offset == given_offset:
        return start_offset
    earlier_offset = max(log.segments.base_offsets[index], given_offset)
    gain_bytes = log.ask(index, partial(_bytes_between, start_offset=earlier_offset, end_offset=start_offset))
    return start_offset if gain_bytes >= LOOK_UP_PRICE_BYTES else earlier_offset


def _end_worth_finding(log: PartitionLog, end_offset: int, given_offset: int) -> int:
    """An end, or a later one where reading on to there is cheaper than finding it."""
    index = log.segment_index_for(end_offset - 1)
    if index is None or end_offset == given_offset:
        return end_offset
    bases = log.segments.base_offsets
    later_offset = min(bases[index + 1], given_offset) if index + 1 < len(bases) else given_offset
    gain_bytes = log.ask(index, partial(_bytes_between, start_offset=end_offset, end_offset=later_offset))
    return end_offset if gain_bytes >= LOOK_UP_PRICE_BYTES else later_offset


def _bytes_between(segment: SegmentReader, start_offset: int, end_offset: int) -> int:
    """About how many bytes lie between two offsets of a segment; 0 if a walk over small batches had to tell."""
    if segment.size_bytes < LOOK_UP_PRICE_BYTES:
        return 0
    if len(segment.offset_index):
        start_bytes, end_bytes = (
            indexed_position(segment, start_offset),
            indexed_position(segment, end_offset),
        )
        # Behind the last entry of an index, as before the first, it says nothing.
        return (
            end_bytes if end_bytes < indexed_position(segment, MAX_OFFSET) else segment.size_bytes
        ) - start_bytes
    header = first_header(segment)
    if header is None or header.size_bytes < LARGE_BATCH_BYTES:
        return 0
    start, end = batch_reaching(segment, start_offset), batch_reaching(segment, end_offset)
    if start is None:
        return 0
    return (segment.size_bytes if end is None else end.position_bytes) - start.position_bytes


def report_bytes_beyond(
    narrowed: Iterable[ResolvedPartition], condition: Predicate, options: ReadOptions
) -> None:
    """Say in one log line how much is read only because nobody vouches for the order of timestamps.

    Raises:
        DataLossError: A segment vanished since the log was listed.
    """
    if options.max_timestamp_disorder_ms is not None:
        return
    bounded = []
    for each in narrowed:
        end_ms = prune_partition(condition, each.log.topic, each.log.partition).timestamp_end_ms
        if end_ms is not None and each.start_offset < each.end_offset:
            bounded.append((each, end_ms))
    # Finding it out reads a little, so where nobody would hear of it, it is not found out.
    sizes_bytes = (
        RangeOfSegments(each.log, each.start_offset, each.end_offset).size_bytes for each, _ in bounded
    )
    if not _log.isEnabledFor(logging.INFO) and sum(sizes_bytes) < _WORTH_A_WARNING_BYTES:
        return
    size_bytes, segments, partitions = 0, 0, 0
    for each, end_ms in bounded:
        beyond = _sizes_beyond(each, end_ms)
        size_bytes += sum(beyond)
        segments += len(beyond)
        partitions += bool(beyond)
    if size_bytes:
        _log.log(
            logging.WARNING if size_bytes >= _WORTH_A_WARNING_BYTES else logging.INFO,
            "The condition bounds timestamps from above, but nothing says how far they are out of order: about %d "
            "bytes in %d segments of %d partitions are read from the first record on that is too young. "
            "Set maxTimestampDisorder, for example to '1 hour', to end there.",
            size_bytes,
            segments,
            partitions,
        )


def _sizes_beyond(resolved: ResolvedPartition, timestamp_ms: int) -> list[int]:
    """By segment, how many bytes are read from the first batch on that reaches a timestamp."""
    log, end_offset = resolved.log, resolved.end_offset
    offset = start_offset_by_time(log, timestamp_ms, resolved.start_offset, end_offset)
    beyond = RangeOfSegments(log, offset, end_offset)
    sizes_bytes = list(beyond.sizes_bytes)
    if sizes_bytes and offset > log.segments.base_offsets[beyond.indexes[0]]:
        header = log.ask(beyond.indexes[0], lambda segment: batch_reaching(segment, offset))
        sizes_bytes[0] -= sizes_bytes[0] if header is None else header.position_bytes
    return sizes_bytes
