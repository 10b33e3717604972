"""One pass of the cleaner over one log (Kafka's ``Cleaner.doClean``).

The last offset of each dirty key is found; then the segments up to there are written anew, a group at a time, without
what is superseded. Appends and reads go on meanwhile: the log is locked only when segments are replaced.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_core.cached_property import cached_property
from storage_core.compaction import (
    CleanedTransactions,
    CleanRules,
    CleanStatistics,
    LastRecord,
    build_offset_map,
    clean_into,
)
from storage_core.errors import NotWritableError, SegmentLogError
from storage_core.log.cleaner_statistics import CleanerStatistics
from storage_core.log.cleaning_sources import CleaningSources, groups_of
from storage_core.log.log_append import write_pending
from storage_core.log.log_flush import flush_up_to
from storage_core.log.replace_segments import replace_segments
from storage_core.segment.file_names import CLEANED_SUFFIX
from storage_core.segment.log_segment import LogSegment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from storage_core.compaction import MapStatistics, OffsetMap
    from storage_core.log.cleanable_log import CleanableLog
    from storage_core.log.log_state import LogState
    from storage_core.log.throttle import Throttle

__all__ = ["CleaningInterrupted", "CleaningTools", "clean_log"]


class CleaningInterrupted(Exception):  # noqa: N818  (no failure, and not for users)
    """The log was changed, or is being closed, so that its cleaning cannot go on."""


@dataclass(frozen=True, slots=True)
class CleaningTools:
    """What passes over several logs share.

    Attributes:
        offset_map: The memory for keys.
        map_slots: How many keys the whole memory has room for, of which the map may have less.
        window_bytes: How much of a segment is read at a time.
        throttle: Is told of what is read and written, and waits where that is too fast.
        should_stop: Whether the cleaning is to give up.
    """

    offset_map: OffsetMap
    map_slots: int
    window_bytes: int
    throttle: Throttle
    should_stop: Callable[[], bool]


def clean_log(
    state: LogState, cleanable: CleanableLog, tools: CleaningTools, now_ms: int, truncations: int
) -> CleanerStatistics:
    """Clean what is dirty of a log, as far as the memory for keys reaches, and note up to where.

    Args:
        state: The log, not locked. Its `CleaningState.under_way` is this thread's.
        cleanable: What is to be cleaned of it: something.
        tools: What passes share.
        now_ms: The time that decides about null values and markers.
        truncations: How often the log had been truncated before that was found.

    Raises:
        CleaningInterrupted: The log was truncated, or is being closed. What was replaced so far stays so.
        NotWritableError: The log is closed, or has failed.
        SegmentLogError: A segment cannot be read, or the file system refuses to write.
    """
    cleaning_pass = _Pass(state, cleanable, tools, now_ms, truncations)
    try:
        return cleaning_pass.run()
    except SegmentLogError as error:
        # What was read while it was being cut or removed may look like anything. What failed the log is told.
        if state.failure is not error and (cleaning_pass.is_interrupted or not cleaning_pass.is_all_there):
            raise CleaningInterrupted from error
        raise


class _Pass:
    def __init__(
        self, state: LogState, cleanable: CleanableLog, tools: CleaningTools, now_ms: int, truncations: int
    ) -> None:
        self._state = state
        # One pass, one configuration.
        self._config = state.config
        self._cleanable = cleanable
        self._tools = tools
        self._now_ms = now_ms
        self._truncations = truncations
        self._statistics = CleanStatistics()
        with state.writing():
            write_pending(state)
            # What supersedes a record has to be on disk before that one goes.
            if not self.is_interrupted and state.offsets.recovery_point < cleanable.first_uncleanable_offset:
                flush_up_to(state, cleanable.first_uncleanable_offset)
            self._segments = CleaningSources(state.view.segments)
        # Who reads the files alone believes what the checkpoints say: there, too, what supersedes comes first.
        state.checkpoint()
        # What is read, and was not replaced yet.
        self._sources = self._segments.between(
            cleanable.first_dirty_offset, cleanable.first_uncleanable_offset
        )

    @property
    def is_interrupted(self) -> bool:
        """Whether the pass is to give up."""
        state = self._state
        return (
            state.truncations != self._truncations
            or state.cleaning.is_stopped
            or state.is_closed
            or state.failure is not None
            or self._tools.should_stop()
        )

    @property
    def is_all_there(self) -> bool:
        """Whether the log still has what is being read."""
        return self._has(self._sources)

    def run(self) -> CleanerStatistics:
        state, offset_map = self._state, self._tools.offset_map
        self._go_on(0)
        started_ms = state.clock.now_ms()
        mapped = self._build_map()
        map_built_ms = state.clock.now_ms()
        end_offset = offset_map.latest_offset + 1
        self._sources = sources = self._segments.between(None, end_offset)
        groups = groups_of(sources, self._config, self._cleanable.first_uncleanable_offset)
        transactions = CleanedTransactions()
        # All of the last source counts, also where the map ends within it.
        transactions.add_aborted(self._segments.aborted_transactions_of(sources))
        for group in groups:
            self._clean_group(group, transactions)
            self._sources = self._sources[len(group) :]
        self._note(end_offset)
        statistics = self._statistics
        return CleanerStatistics(
            topic=state.directory.topic,
            partition=state.directory.partition,
            start_offset=self._cleanable.first_dirty_offset,
            end_offset=end_offset,
            bytes_read=statistics.bytes_read,
            bytes_written=statistics.bytes_retained,
            records_before=statistics.records_read,
            records_after=statistics.records_retained,
            invalid_records=statistics.invalid_records,
            map_bytes_read=mapped.bytes_read,
            map_records_read=mapped.records_read,
            map_size=offset_map.size,
            map_utilization=offset_map.size / self._tools.map_slots,
            segments_before=len(sources),
            segments_after=len(groups),
            started_ms=started_ms,
            map_built_ms=map_built_ms,
            ended_ms=state.clock.now_ms(),
        )

    def _build_map(self) -> MapStatistics:
        first, end = self._cleanable.first_dirty_offset, self._cleanable.first_uncleanable_offset
        transactions = CleanedTransactions()
        transactions.add_aborted(self._segments.aborted_transactions(first, end))
        return build_offset_map(
            self._sources, first, end, self._tools.offset_map, transactions, throttle=self._go_on
        )

    def _clean_group(self, group: Sequence[LogSegment], transactions: CleanedTransactions) -> None:
        self._go_on(0)
        cleaned = self._new_segment(group[0].base_offset)
        try:
            self._statistics += clean_into(
                cleaned,
                group,
                self._tools.offset_map,
                transactions,
                self._rules(),
                throttle=self._go_on,
            )
            cleaned.seal()
            cleaned.set_modified_ms(group[-1].modified_ms)
            cleaned.flush()
        except BaseException:
            # Whoever opens the log next removes it if that fails.
            with contextlib.suppress(SegmentLogError):
                cleaned.delete()
            raise
        if not self._replace(cleaned, group):
            cleaned.delete()
            raise CleaningInterrupted

    def _replace(self, cleaned: LogSegment, group: Sequence[LogSegment]) -> bool:
        """Replace segments by what was made of them; False if they are not what they were any more."""
        state = self._state
        with contextlib.suppress(NotWritableError), state.writing():
            if self.is_interrupted or not self._has(group):
                return False
            replace_segments(state, cleaned, group)
            return True
        return False

    def _new_segment(self, base_offset: int) -> LogSegment:
        state = self._state
        now_ms = state.clock.now_ms()
        left_over = LogSegment.open(
            state.filesystem, state.path, base_offset, self._config, now_ms=now_ms, suffix=CLEANED_SUFFIX
        )
        left_over.delete()
        return LogSegment.create(
            state.filesystem, state.path, base_offset, self._config, now_ms=now_ms, suffix=CLEANED_SUFFIX
        )

    def _rules(self) -> CleanRules:
        state = self._state
        with state.lock:
            last_records = {
                producer.producer_id: LastRecord(
                    producer.last_offset if producer.last_offset >= 0 else None, producer.producer_epoch
                )
                for producer in state.producers.producers.values()
            }
        return CleanRules(
            now_ms=self._now_ms,
            delete_retention_ms=self._config.delete_retention_ms,
            legacy_delete_horizon_ms=self._legacy_delete_horizon_ms,
            upper_bound_offset=self._cleanable.first_uncleanable_offset,
            last_records=last_records,
            window_bytes=self._tools.window_bytes,
        )

    @cached_property
    def _legacy_delete_horizon_ms(self) -> int:
        clean = self._segments.between(None, self._cleanable.first_dirty_offset)
        return clean[-1].modified_ms - self._config.delete_retention_ms if clean else 0

    def _note(self, end_offset: int) -> None:
        state = self._state
        with state.lock:
            if state.truncations != self._truncations:
                raise CleaningInterrupted
            if state.cleaning.checkpoint is not None:
                state.cleaning.checkpoint.update(state.directory.topic_partition, end_offset)

    def _go_on(self, size_bytes: int) -> None:
        if not self.is_interrupted:
            # A low rate may mean a long wait, which whoever closes the log does not share.
            self._tools.throttle(size_bytes, lambda: self.is_interrupted)
        if self.is_interrupted:
            raise CleaningInterrupted

    def _has(self, segments: Sequence[LogSegment]) -> bool:
        there = self._state.segments
        return all(there.get(segment.base_offset) is segment for segment in segments)
