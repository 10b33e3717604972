"""Choosing the part of a log to clean, and its groups of segments (Kafka's ``LogCleanerManager`` and ``LogToClean``).

    log start   ≤   first dirty offset   ≤   first uncleanable offset   ≤   log end

Everything below the first dirty offset was cleaned before: each key occurs once in it. What follows, up to the first
uncleanable offset, is dirty.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
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
        """Return True if the log needs cleaning now."""
        if self.is_overdue and self.cleanable_bytes:
            return True
        return self.cleanable_ratio > min_cleanable_dirty_ratio


def find_first_dirty_offset(state: LogState) -> int:
    """Find the offset from which a log is cleaned next: the checkpointed one, or the log start.

    A checkpointed offset outside of the log is replaced.
    """
    offsets, checkpoint = state.view.offsets, state.cleaning.checkpoint
    key = state.directory.topic_partition
    checkpointed = None if checkpoint is None else checkpoint.offset(key)
    if checkpoint is None or checkpointed is None:
        return offsets.log_start_offset
    if offsets.log_start_offset <= checkpointed <= offsets.log_end_offset:
        return checkpointed
    # Retention may remove records below the checkpointed offset, so this is expected then.
    is_usual = "delete" in state.config.cleanup_policy and checkpointed < offsets.log_start_offset
    _log.log(
        logging.DEBUG if is_usual else logging.WARNING,
        "%s: expected a cleaner checkpoint from %d to %d, found %d. The whole log counts as dirty.",
        state.path,
        offsets.log_start_offset,
        offsets.log_end_offset,
        checkpointed,
    )
    checkpoint.update(key, offsets.log_start_offset)
    return offsets.log_start_offset


def find_log_to_clean(state: LogState, now_ms: int) -> LogToClean:
    """Determine the part of an open log to clean now. A checkpointed offset outside of the log is replaced."""
    dirty_offset = find_first_dirty_offset(state)
    view, config = state.view, state.config
    return log_to_clean(
        CleaningSources(view.segments), view.offsets.last_stable_offset, dirty_offset, config, now_ms
    )


def log_to_clean(
    segments: CleaningSources, last_stable_offset: int, dirty_offset: int, config: LogConfig, now_ms: int
) -> LogToClean:
    """Determine the part of a log to clean, from its first dirty offset on. Only whole segments are cleaned."""
    active_base_offset = segments.active_base_offset
    dirty = segments.between(dirty_offset, active_base_offset)
    limits = [last_stable_offset, active_base_offset]
    # Timestamps require reading files, so they are read only where they matter.
    if config.min_compaction_lag_ms > 0:
        oldest_ms = now_ms - config.min_compaction_lag_ms
        young = (segment.base_offset for segment in dirty if _largest_timestamp_ms(segment) > oldest_ms)
        limits.append(next(young, active_base_offset))
    uncleanable_offset = max(dirty_offset, min(limits))
    uncleanable = segments.between(uncleanable_offset, active_base_offset)
    end_offset = uncleanable[0].base_offset if uncleanable else active_base_offset
    cleanable = segments.between(min(dirty_offset, end_offset), end_offset)
    return LogToClean(
        dirty_offset,
        end_offset,
        clean_bytes=sum(segment.size_bytes for segment in segments.between(None, dirty_offset)),
        cleanable_bytes=sum(segment.size_bytes for segment in cleanable),
        is_overdue=config.max_compaction_lag_ms < LONG_MAX
        and any(0 < each.first_batch_timestamp_ms < now_ms - config.max_compaction_lag_ms for each in dirty),
    )


def _largest_timestamp_ms(segment: LogSegment) -> int:
    timestamp_ms = segment.largest_timestamp.timestamp_ms
    return timestamp_ms if timestamp_ms >= 0 else segment.modified_ms


class CleaningSources:
    """The segments of a log at the start of a pass, ascending; the last one is active, and never cleaned."""

    __slots__ = ("_base_offsets", "_segments")

    def __init__(self, segments: Sequence[LogSegment]) -> None:
        self._segments = segments
        self._base_offsets = [segment.base_offset for segment in segments]

    @property
    def active_base_offset(self) -> int:
        """The base offset of the active segment."""
        return self._base_offsets[-1]

    def between(self, start_offset: int | None, end_offset: int | None) -> Sequence[LogSegment]:
        """Return the segments from the one that holds the start to the one before the end. None is no limit."""
        first = 0 if start_offset is None else max(0, bisect_right(self._base_offsets, start_offset) - 1)
        stop = None if end_offset is None else bisect_left(self._base_offsets, end_offset)
        return self._segments[first:stop]

    def aborted_transactions(self, start_offset: int, end_offset: int) -> Iterator[AbortedTransaction]:
        """Iterate over the aborted transactions that overlap a range. Their markers may come after it.

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
        """Iterate over the aborted transactions that overlap a run of inactive segments."""
        if sources:
            end_offset = self._base_offsets[bisect_right(self._base_offsets, sources[-1].base_offset)]
            yield from self.aborted_transactions(sources[0].base_offset, end_offset)


def group_segments(
    segments: Sequence[LogSegment], config: LogConfig, end_offset: int
) -> list[Sequence[LogSegment]]:
    """Divide ascending segments into groups that each fit one segment (Kafka's ``Cleaner.groupSegmentsBySize``).

    ``end_offset`` is above all offsets in the segments.
    """
    groups: list[Sequence[LogSegment]] = []
    start = 0
    while start < len(segments):
        log_bytes = offset_index_bytes = time_index_bytes = 0
        end = start
        while end < len(segments):
            segment = segments[end]
            log_bytes += segment.size_bytes
            offset_index_bytes += len(segment.offset_index) * offset_index.ENTRY_SIZE_BYTES
            time_index_bytes += len(segment.time_index) * time_index.ENTRY_SIZE_BYTES
            # An upper bound, because the exact last offset requires reading the file.
            next_offset = segments[end + 1].base_offset if end + 1 < len(segments) else end_offset
            span = next_offset - 1 - segments[start].base_offset
            if end > start and (
                log_bytes > config.max_segment_bytes
                or offset_index_bytes > config.segment_index_bytes
                or time_index_bytes > config.segment_index_bytes
                # Empty segments do not count: otherwise one would remain for every 2^31 offsets.
                or (segment.size_bytes and span > LARGEST_RELATIVE_OFFSET)
            ):
                break
            end += 1
        groups.append(segments[start:end])
        start = end
    return groups
