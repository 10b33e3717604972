"""What of a log is to be cleaned, and which log first (Kafka's ``LogCleanerManager`` and ``LogToClean``).

    log start   ≤   first dirty offset   ≤   first uncleanable offset   ≤   log end

What lies below the first dirty offset was cleaned before: it has each key once. What follows, up to the first
uncleanable offset, is dirty. Nothing here touches a file.

What of a log that is open is to be cleaned: the facts by which `cleanable_log` decides, and the checkpoint.

Which segments a cleaning joins into one (Kafka's ``Cleaner.groupSegmentsBySize``).

The segments of a log as a pass of the cleaner found them.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from storage_core.config import LONG_MAX
from storage_core.segment import offset_index, time_index
from storage_core.segment.offset_index import LARGEST_RELATIVE_OFFSET

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from storage_core.log.log_state import LogState
    from storage_core.log_config import LogConfig
    from storage_core.segment.file_names import AbortedTransaction
    from storage_core.segment.log_segment import LogSegment

__all__ = [
    "CleanableLog",
    "CleaningSources",
    "FirstDirtyOffset",
    "LogFacts",
    "SegmentFacts",
    "SegmentSizes",
    "cleanable_log",
    "find_first_dirty_offset",
    "first_dirty_offset",
    "group_segments",
    "groups_of",
    "what_is_cleanable",
]


_base_offset_of = attrgetter("base_offset")


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What counts of a segment here.

    Attributes:
        base_offset: Its base offset.
        size_bytes: Size of its log file.
        largest_timestamp_ms: Its largest timestamp, or when the file was changed if it has none. Only of a dirty
            segment, and if ``min.compaction.lag.ms`` is set.
        first_timestamp_ms: The largest timestamp of its first batch; none above 0 if that has none. Only of a dirty
            segment, and if ``max.compaction.lag.ms`` is set.
    """

    base_offset: int
    size_bytes: int
    largest_timestamp_ms: int = -1
    first_timestamp_ms: int = -1


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What counts of a log here.

    Attributes:
        segments: Its segments, ascending; the last one is active, and never cleaned.
        log_start_offset: Where it begins.
        log_end_offset: Where it ends.
        last_stable_offset: Up to here every transaction is decided, and every replica has everything.
    """

    segments: tuple[SegmentFacts, ...]
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int

    @property
    def active_base_offset(self) -> int:
        """The base offset of the active segment."""
        return self.segments[-1].base_offset

    def inactive_from(self, offset: int) -> Sequence[SegmentFacts]:
        """The inactive segments from the one on that holds an offset."""
        if offset > self.active_base_offset:
            return ()
        first = bisect_right(self.segments, offset, key=_base_offset_of) - 1
        return self.segments[max(0, first) : -1]

    def below(self, offset: int) -> Sequence[SegmentFacts]:
        """The segments that begin below an offset."""
        return self.segments[: bisect_left(self.segments, offset, key=_base_offset_of)]


@dataclass(frozen=True, slots=True)
class FirstDirtyOffset:
    """Where a cleaning begins.

    Attributes:
        offset: The first offset that was not cleaned yet.
        is_reset: Whether the checkpoint said something that cannot be, and is to be written anew.
    """

    offset: int
    is_reset: bool


@dataclass(frozen=True, slots=True)
class CleanableLog:
    """How much of a log is to be cleaned.

    Attributes:
        first_dirty_offset: Where a cleaning begins.
        first_uncleanable_offset: Where it ends, the base offset of a segment. It may lie below the first dirty
            offset: then there is nothing to clean.
        clean_bytes: How much lies in front of the first dirty offset.
        cleanable_bytes: How much lies between the two; a segment that holds the first dirty offset counts in both.
        is_overdue: Whether something in it waits for longer than ``max.compaction.lag.ms``.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    is_overdue: bool

    @property
    def cleanable_ratio(self) -> float:
        """The dirty ratio: which part of the log is to be cleaned."""
        total_bytes = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total_bytes if total_bytes else 0.0

    def is_eligible(self, min_cleanable_dirty_ratio: float) -> bool:
        """Whether it is time to clean it."""
        if self.is_overdue and self.cleanable_bytes:
            return True
        return self.cleanable_ratio > min_cleanable_dirty_ratio


def first_dirty_offset(
    checkpointed_offset: int | None, log_start_offset: int, log_end_offset: int
) -> FirstDirtyOffset:
    """Where a cleaning begins, by what the checkpoint says. Without one, everything is dirty."""
    if checkpointed_offset is None:
        return FirstDirtyOffset(log_start_offset, is_reset=False)
    if log_start_offset <= checkpointed_offset <= log_end_offset:
        return FirstDirtyOffset(checkpointed_offset, is_reset=False)
    return FirstDirtyOffset(log_start_offset, is_reset=True)


def cleanable_log(log: LogFacts, dirty_offset: int, config: LogConfig, now_ms: int) -> CleanableLog:
    """How much of a log is to be cleaned.

    Args:
        log: The log.
        dirty_offset: Its first dirty offset.
        config: Its configuration.
        now_ms: The time.
    """
    uncleanable_offset = _uncleanable_offset(log, dirty_offset, config, now_ms)
    # Only whole segments are cleaned.
    inactive = log.inactive_from(uncleanable_offset)
    end_offset = inactive[0].base_offset if inactive else log.active_base_offset
    cleanable = _between(log, min(dirty_offset, end_offset), end_offset)
    return CleanableLog(
        dirty_offset,
        end_offset,
        clean_bytes=sum(segment.size_bytes for segment in log.below(dirty_offset)),
        cleanable_bytes=sum(segment.size_bytes for segment in cleanable),
        is_overdue=_is_overdue(log, dirty_offset, config, now_ms),
    )


def _uncleanable_offset(log: LogFacts, dirty_offset: int, config: LogConfig, now_ms: int) -> int:
    """The first offset that may not be cleaned yet."""
    offsets = [log.last_stable_offset, log.active_base_offset]
    if config.min_compaction_lag_ms > 0:
        oldest_ms = now_ms - config.min_compaction_lag_ms
        dirty = log.inactive_from(dirty_offset)
        young = (segment for segment in dirty if segment.largest_timestamp_ms > oldest_ms)
        first_young = next(young, None)
        if first_young is not None:
            offsets.append(first_young.base_offset)
    return max(dirty_offset, min(offsets))


def _is_overdue(log: LogFacts, dirty_offset: int, config: LogConfig, now_ms: int) -> bool:
    timestamps_ms = (segment.first_timestamp_ms for segment in log.inactive_from(dirty_offset))
    earliest_ms = min((timestamp_ms for timestamp_ms in timestamps_ms if timestamp_ms > 0), default=None)
    return earliest_ms is not None and earliest_ms < now_ms - config.max_compaction_lag_ms


def _between(log: LogFacts, start_offset: int, end_offset: int) -> Sequence[SegmentFacts]:
    """The segments from the one on that holds an offset, up to one that begins at another."""
    first = max(0, bisect_right(log.segments, start_offset, key=_base_offset_of) - 1)
    return log.segments[first : bisect_left(log.segments, end_offset, key=_base_offset_of)]


_log = logging.getLogger(__name__)


def find_first_dirty_offset(state: LogState) -> int:
    """Where the next cleaning of a log begins. A checkpoint that cannot be true is set right.

    Raises:
        SegmentLogError: The checkpoint cannot be read or written.
    """
    offsets, checkpoint = state.view.offsets, state.cleaning.checkpoint
    key = state.directory.topic_partition
    checkpointed = None if checkpoint is None else checkpoint.offset(key)
    dirty = first_dirty_offset(checkpointed, offsets.log_start_offset, offsets.log_end_offset)
    if dirty.is_reset and checkpoint is not None:
        # What retention has taken was clean, or is gone all the same.
        is_usual = "delete" in state.config.cleanup_policy and (checkpointed or 0) < offsets.log_start_offset
        _log.log(
            logging.DEBUG if is_usual else logging.WARNING,
            "%s: expected to have cleaned up to an offset from %d to %d, found %d. All counts as dirty.",
            state.path,
            offsets.log_start_offset,
            offsets.log_end_offset,
            checkpointed,
        )
        checkpoint.update(key, dirty.offset)
    return dirty.offset


def what_is_cleanable(state: LogState, now_ms: int) -> CleanableLog:
    """How much of a log is to be cleaned now. A checkpoint that cannot be true is set right.

    Raises:
        SegmentLogError: A file cannot be read, or the checkpoint not be written.
    """
    dirty_offset = find_first_dirty_offset(state)
    view, config = state.view, state.config
    offsets = view.offsets
    # What takes a look into files is left out where it decides nothing.
    with_largest, with_first = config.min_compaction_lag_ms > 0, config.max_compaction_lag_ms < LONG_MAX
    bases = (segment.base_offset for segment in reversed(view.segments))
    dirty_base_offset = next((base for base in bases if base <= dirty_offset), dirty_offset)
    facts = [
        SegmentFacts(
            segment.base_offset,
            segment.size_bytes,
            _largest_timestamp_ms(segment) if with_largest and is_dirty else -1,
            segment.first_batch_timestamp_ms if with_first and is_dirty else -1,
        )
        for segment in view.segments
        for is_dirty in [segment.base_offset >= dirty_base_offset and segment is not view.segments[-1]]
    ]
    log = LogFacts(tuple(facts), offsets.log_start_offset, offsets.log_end_offset, offsets.last_stable_offset)
    return cleanable_log(log, dirty_offset, config, now_ms)


def _largest_timestamp_ms(segment: LogSegment) -> int:
    timestamp_ms = segment.largest_timestamp.timestamp_ms
    return timestamp_ms if timestamp_ms >= 0 else segment.modified_ms


@dataclass(frozen=True, slots=True)
class SegmentSizes:
    """A segment that is to be cleaned.

    Attributes:
        base_offset: Its base offset.
        log_bytes: Size of its log file.
        offset_index_bytes: Size of its offset index.
        time_index_bytes: Size of its time index.
    """

    base_offset: int
    log_bytes: int
    offset_index_bytes: int = 0
    time_index_bytes: int = 0


def group_segments(
    segments: Sequence[SegmentSizes], *, max_log_bytes: int, max_index_bytes: int, end_offset: int
) -> tuple[range, ...]:
    """Divide segments into groups, each of which fits one segment whatever is left of it.

    Args:
        segments: The segments, ascending.
        max_log_bytes: ``segment.bytes``.
        max_index_bytes: ``segment.index.bytes``.
        end_offset: Every offset in the segments lies below it.

    Returns:
        Of each group, the positions of its segments; each segment is in exactly one.
    """
    groups: list[range] = []
    start = 0
    while start < len(segments):
        first = segments[start]
        log_bytes, offset_index_bytes = first.log_bytes, first.offset_index_bytes
        time_index_bytes = first.time_index_bytes
        end = start + 1
        while end < len(segments):
            segment = segments[end]
            log_bytes += segment.log_bytes
            offset_index_bytes += segment.offset_index_bytes
            time_index_bytes += segment.time_index_bytes
            # What is really the last offset would take a look into the file.
            behind = segments[end + 1].base_offset if end + 1 < len(segments) else end_offset
            if (
                log_bytes > max_log_bytes
                or offset_index_bytes > max_index_bytes
                or time_index_bytes > max_index_bytes
                # An empty one reaches nowhere: otherwise one would be left for every 2^31 offsets.
                or (segment.log_bytes and behind - 1 - first.base_offset > LARGEST_RELATIVE_OFFSET)
            ):
                break
            end += 1
        groups.append(range(start, end))
        start = end
    return tuple(groups)


class CleaningSources:
    """Segments, ascending; the last one is active.

    Args:
        segments: The segments.
    """

    __slots__ = ("_base_offsets", "_segments")

    def __init__(self, segments: Sequence[LogSegment]) -> None:
        self._segments = segments
        self._base_offsets = [segment.base_offset for segment in segments]

    def between(self, start_offset: int | None, end_offset: int | None) -> Sequence[LogSegment]:
        """The segments from the one on that holds an offset, up to one that begins at another; None for the ends."""
        first = 0 if start_offset is None else max(0, bisect_right(self._base_offsets, start_offset) - 1)
        behind = None if end_offset is None else bisect_left(self._base_offsets, end_offset)
        return self._segments[first:behind]

    def aborted_transactions(self, start_offset: int, end_offset: int) -> Iterator[AbortedTransaction]:
        """The aborted transactions that reach into a range; their markers may stand behind it.

        Raises:
            CorruptIndexError: A transaction index is damaged: what was aborted would count as if it were not.
        """
        for segment in self.between(start_offset, None):
            index = segment.transaction_index.read()
            if index.problem is not None:
                segment.transaction_index.check()
            aborted, is_all = index.collect_aborted_transactions(start_offset, end_offset)
            yield from aborted
            if is_all:
                return

    def aborted_transactions_of(self, sources: Sequence[LogSegment]) -> Iterator[AbortedTransaction]:
        """Those that reach into some of the first segments, none of them active."""
        if sources:
            behind = self._base_offsets[bisect_right(self._base_offsets, sources[-1].base_offset)]
            yield from self.aborted_transactions(sources[0].base_offset, behind)


def groups_of(
    sources: Sequence[LogSegment], config: LogConfig, end_offset: int
) -> list[Sequence[LogSegment]]:
    """Segments in groups each of which fits one segment, see `group_segments`."""
    sizes = [
        SegmentSizes(
            segment.base_offset,
            segment.size_bytes,
            len(segment.offset_index) * offset_index.ENTRY_SIZE_BYTES,
            len(segment.time_index) * time_index.ENTRY_SIZE_BYTES,
        )
        for segment in sources
    ]
    groups = group_segments(
        sizes,
        max_log_bytes=config.max_segment_bytes,
        max_index_bytes=config.segment_index_bytes,
        end_offset=end_offset,
    )
    return [sources[group.start : group.stop] for group in groups]
