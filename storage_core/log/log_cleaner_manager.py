"""Which part of a log to clean, and in which groups of segments (Kafka's ``LogCleanerManager`` and ``LogToClean``).

    log start   ≤   first dirty offset   ≤   first uncleanable offset   ≤   log end

Everything below the first dirty offset was cleaned before: each key occurs once in it. What follows, up to the first
uncleanable offset, is dirty.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from storage_core.config import LONG_MAX
from storage_core.segment import offset_index, time_index
from storage_core.segment.index_file import LARGEST_RELATIVE_OFFSET

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from storage_core.log.log_state import LogState
    from storage_core.log_config import LogConfig
    from storage_core.segment.file_names import AbortedTransaction
    from storage_core.segment.log_segment import LogSegment


_log = logging.getLogger(__name__)
_base_offset_of = attrgetter("base_offset")


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """The properties of a segment that decide about cleaning.

    Attributes:
        base_offset: Its base offset.
        size_bytes: The size of its log file.
        largest_timestamp_ms: Its largest timestamp, or the modification time of the file without any. Only set for
            dirty segments, and with ``min.compaction.lag.ms``.
        first_timestamp_ms: The largest timestamp of its first batch; not above 0 without any. Only set for dirty
            segments, and with ``max.compaction.lag.ms``.
    """

    base_offset: int
    size_bytes: int
    largest_timestamp_ms: int = -1
    first_timestamp_ms: int = -1


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The properties of a log that decide about cleaning.

    Attributes:
        segments: Its segments, ascending; the last one is active, and never cleaned.
        log_start_offset: The log start offset.
        log_end_offset: The log end offset.
        last_stable_offset: The offset below which every transaction is decided and every replica has all records.
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
        """The inactive segments, beginning with the one that holds an offset."""
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
        is_reset: Whether the checkpointed offset was outside of the log, and must be replaced.
    """

    offset: int
    is_reset: bool


@dataclass(frozen=True, slots=True)
class LogToClean:
    """The part of a log to clean.

    Attributes:
        first_dirty_offset: Where the cleaning begins.
        first_uncleanable_offset: Where it ends, the base offset of a segment. If it is below the first dirty offset,
            there is nothing to clean.
        clean_bytes: The size of the segments before the first dirty offset.
        cleanable_bytes: The size of the segments between the two; a segment that holds the first dirty offset counts
            in both.
        is_overdue: Whether a record is older than ``max.compaction.lag.ms``.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    is_overdue: bool

    @property
    def cleanable_ratio(self) -> float:
        """The dirty ratio: the fraction of the log to clean."""
        total_bytes = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total_bytes if total_bytes else 0.0

    def is_eligible(self, min_cleanable_dirty_ratio: float) -> bool:
        """Whether the log needs cleaning now."""
        if self.is_overdue and self.cleanable_bytes:
            return True
        return self.cleanable_ratio > min_cleanable_dirty_ratio


def first_dirty_offset(
    checkpointed_offset: int | None, log_start_offset: int, log_end_offset: int
) -> FirstDirtyOffset:
    """Where a cleaning begins, given the checkpointed offset. Without one, everything is dirty."""
    if checkpointed_offset is None:
        return FirstDirtyOffset(log_start_offset, is_reset=False)
    if log_start_offset <= checkpointed_offset <= log_end_offset:
        return FirstDirtyOffset(checkpointed_offset, is_reset=False)
    return FirstDirtyOffset(log_start_offset, is_reset=True)


def log_to_clean(log: LogFacts, dirty_offset: int, config: LogConfig, now_ms: int) -> LogToClean:
    """Determine the part of a log to clean.

    Args:
        log: The log.
        dirty_offset: Its first dirty offset.
        config: Its configuration.
        now_ms: The current time.
    """
    uncleanable_offset = _uncleanable_offset(log, dirty_offset, config, now_ms)
    # Only whole segments are cleaned.
    inactive = log.inactive_from(uncleanable_offset)
    end_offset = inactive[0].base_offset if inactive else log.active_base_offset
    cleanable = _between(log, min(dirty_offset, end_offset), end_offset)
    return LogToClean(
        dirty_offset,
        end_offset,
        clean_bytes=sum(segment.size_bytes for segment in log.below(dirty_offset)),
        cleanable_bytes=sum(segment.size_bytes for segment in cleanable),
        is_overdue=_is_overdue(log, dirty_offset, config, now_ms),
    )


def _uncleanable_offset(log: LogFacts, dirty_offset: int, config: LogConfig, now_ms: int) -> int:
    """The first offset that must not be cleaned yet."""
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
    """The segments from the one that holds the start offset to the one that begins at the end offset, exclusive."""
    first = max(0, bisect_right(log.segments, start_offset, key=_base_offset_of) - 1)
    return log.segments[first : bisect_left(log.segments, end_offset, key=_base_offset_of)]


def find_first_dirty_offset(state: LogState) -> int:
    """Where the next cleaning of a log begins. A checkpointed offset outside of the log is replaced.

    Raises:
        SegmentLogError: The checkpoint cannot be read or written.
    """
    offsets, checkpoint = state.view.offsets, state.cleaning.checkpoint
    key = state.directory.topic_partition
    checkpointed = None if checkpoint is None else checkpoint.offset(key)
    dirty = first_dirty_offset(checkpointed, offsets.log_start_offset, offsets.log_end_offset)
    if dirty.is_reset and checkpoint is not None:
        # Retention may remove records below the checkpointed offset, so this is expected then.
        is_usual = "delete" in state.config.cleanup_policy and (checkpointed or 0) < offsets.log_start_offset
        _log.log(
            logging.DEBUG if is_usual else logging.WARNING,
            "%s: expected a cleaner checkpoint from %d to %d, found %d. The whole log counts as dirty.",
            state.path,
            offsets.log_start_offset,
            offsets.log_end_offset,
            checkpointed,
        )
        checkpoint.update(key, dirty.offset)
    return dirty.offset


def find_log_to_clean(state: LogState, now_ms: int) -> LogToClean:
    """Determine the part of an open log to clean now. A checkpointed offset outside of the log is replaced.

    Raises:
        SegmentLogError: A file cannot be read, or the checkpoint cannot be written.
    """
    dirty_offset = find_first_dirty_offset(state)
    view, config = state.view, state.config
    offsets = view.offsets
    # Timestamps require reading files, so they are read only where they matter.
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
    return log_to_clean(log, dirty_offset, config, now_ms)


def _largest_timestamp_ms(segment: LogSegment) -> int:
    timestamp_ms = segment.largest_timestamp.timestamp_ms
    return timestamp_ms if timestamp_ms >= 0 else segment.modified_ms


@dataclass(frozen=True, slots=True)
class SegmentSizes:
    """The sizes of a segment to clean.

    Attributes:
        base_offset: Its base offset.
        log_bytes: The size of its log file.
        offset_index_bytes: The size of its offset index.
        time_index_bytes: The size of its time index.
    """

    base_offset: int
    log_bytes: int
    offset_index_bytes: int = 0
    time_index_bytes: int = 0


def group_segments(
    segments: Sequence[SegmentSizes], *, max_log_bytes: int, max_index_bytes: int, end_offset: int
) -> tuple[range, ...]:
    """Divide segments into groups that each fit one segment (Kafka's ``Cleaner.groupSegmentsBySize``).

    Args:
        segments: The segments, ascending.
        max_log_bytes: ``segment.bytes``.
        max_index_bytes: ``segment.index.bytes``.
        end_offset: An offset above all offsets in the segments.

    Returns:
        The positions of the segments of each group; each segment is in exactly one.
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
            # An upper bound, because the exact last offset requires reading the file.
            next_offset = segments[end + 1].base_offset if end + 1 < len(segments) else end_offset
            if (
                log_bytes > max_log_bytes
                or offset_index_bytes > max_index_bytes
                or time_index_bytes > max_index_bytes
                # Empty segments do not count: otherwise one would remain for every 2^31 offsets.
                or (segment.log_bytes and next_offset - 1 - first.base_offset > LARGEST_RELATIVE_OFFSET)
            ):
                break
            end += 1
        groups.append(range(start, end))
        start = end
    return tuple(groups)


class CleaningSources:
    """The segments of a log at the start of a pass, ascending; the last one is active."""

    __slots__ = ("_base_offsets", "_segments")

    def __init__(self, segments: Sequence[LogSegment]) -> None:
        self._segments = segments
        self._base_offsets = [segment.base_offset for segment in segments]

    def between(self, start_offset: int | None, end_offset: int | None) -> Sequence[LogSegment]:
        """The segments from the one that holds the start to the one that begins at the end, exclusive; None is no limit."""
        first = 0 if start_offset is None else max(0, bisect_right(self._base_offsets, start_offset) - 1)
        stop = None if end_offset is None else bisect_left(self._base_offsets, end_offset)
        return self._segments[first:stop]

    def aborted_transactions(self, start_offset: int, end_offset: int) -> Iterator[AbortedTransaction]:
        """The aborted transactions that overlap a range; their markers may come after it.

        Raises:
            CorruptIndexError: A transaction index is damaged: aborted records would be taken for committed ones.
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
        """The aborted transactions that overlap a run of inactive segments."""
        if sources:
            end_offset = self._base_offsets[bisect_right(self._base_offsets, sources[-1].base_offset)]
            yield from self.aborted_transactions(sources[0].base_offset, end_offset)


def group_log_segments(
    sources: Sequence[LogSegment], config: LogConfig, end_offset: int
) -> list[Sequence[LogSegment]]:
    """Divide segments into groups that each fit one segment, see `group_segments`."""
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
