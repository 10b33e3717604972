"""What of a log is to be cleaned, and which log first (Kafka's ``LogCleanerManager`` and ``LogToClean``).

    log start   ≤   first dirty offset   ≤   first uncleanable offset   ≤   log end

What lies below the first dirty offset was cleaned before: it has each key once. What follows, up to the first
uncleanable offset, is dirty. Nothing here touches a file.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.log_config import LogConfig

__all__ = [
    "CleanableLog",
    "FirstDirtyOffset",
    "LogFacts",
    "SegmentFacts",
    "cleanable_log",
    "first_dirty_offset",
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
