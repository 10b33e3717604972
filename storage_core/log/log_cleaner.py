"""One pass of the cleaner over one log (Kafka's ``Cleaner.doClean``).

The last offset of each dirty key is found; then the segments up to there are written anew, a group at a time, without
what is superseded. Appends and reads go on meanwhile: the log is locked only when segments are replaced.

Holding the rate of reading and writing down (Kafka's ``Throttler``).

Cleaning the logs of a log directory (Kafka's ``LogCleaner`` and ``LogCleanerManager``): which one, and when.

`cleanable_state` looks, `cleanable_log` decides, `cleaning_pass` does it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, TypeVar

from storage_core.cached_property import cached_property
from storage_core.compaction import (
    MAP_SLOT_BYTES,
    CleanedTransactions,
    CleanRules,
    CleanStatistics,
    LastRecord,
    OffsetMap,
    build_offset_map,
    clean_into,
)
from storage_core.errors import (
    AppendError,
    CorruptError,
    NotWritableError,
    OptionError,
    SegmentLogError,
    UnsupportedFormatError,
)
from storage_core.log.append import write_pending
from storage_core.log.cleaner_config import CleanerStatistics
from storage_core.log.local_log import flush_up_to, replace_segments
from storage_core.log.log_cleaner_manager import CleaningSources, groups_of, what_is_cleanable
from storage_core.log.retention import apply_retention
from storage_core.segment.batch_windows import WINDOW_BYTES
from storage_core.segment.file_names import CLEANED_SUFFIX
from storage_core.segment.log_segment import LogSegment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from storage_core.compaction import MapStatistics
    from storage_core.log.cleaner_config import CleanerConfig
    from storage_core.log.log_cleaner_manager import CleanableLog
    from storage_core.log.log_state import LogState

__all__ = ["CleaningInterrupted", "CleaningTools", "LogCleaner", "Throttle", "clean_log"]


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


_CHECK_INTERVAL_SECONDS: Final = 0.3


class Throttle:
    """Sleeps where more was done than a rate allows. Shared by whoever is to keep to one rate together.

    Args:
        bytes_per_second: The rate; None for no limit.
        seconds: A clock that never goes back.
        sleep: Waits for some seconds.
    """

    def __init__(
        self,
        bytes_per_second: float | None,
        *,
        seconds: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._seconds = seconds
        self._sleep = sleep
        self._period_start = seconds()
        self._done_bytes = 0

    def __call__(self, size_bytes: int, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Say that so much was read or written, and wait if that was too fast.

        The rate is looked at three times a second at the most: in between, more may be done.

        Args:
            size_bytes: How much.
            should_stop: Whether nobody is to wait any longer; asked three times a second.
        """
        if self._bytes_per_second is None:
            return
        self._done_bytes += size_bytes
        elapsed = self._seconds() - self._period_start
        if elapsed <= _CHECK_INTERVAL_SECONDS or not self._done_bytes:
            return
        due = self._done_bytes / self._bytes_per_second
        end = self._period_start + due
        while (left := end - self._seconds()) > 0 and not should_stop():
            self._sleep(min(left, _CHECK_INTERVAL_SECONDS))
        self._period_start = self._seconds()
        self._done_bytes = 0


_log = logging.getLogger(__name__)
# What is wrong with a log the next time, too: bytes that are no batches, formats unknown, offsets that fit no segment.
_IN_THE_DATA: Final = (CorruptError, UnsupportedFormatError, AppendError)
_Result = TypeVar("_Result")


class LogCleaner:
    """Cleans logs one after the other, with one memory for keys and at one rate.

    Args:
        config: How.
        should_stop: Whether it is to give up.
    """

    def __init__(self, config: CleanerConfig, should_stop: Callable[[], bool] = lambda: False) -> None:
        self._config = config
        self._should_stop = should_stop
        self._throttle = Throttle(config.io_max_bytes_per_second)
        self._offset_map: OffsetMap | None = None

    def clean(self, states: Iterable[LogState], now_ms: int | None = None) -> list[CleanerStatistics]:
        """Clean the logs whose time has come, the dirtiest first; then apply retention to all compacted ones.

        A log with something in its data that cannot be read is left alone from then on, and so is one that somebody
        else is cleaning.

        Args:
            states: The logs of a directory.
            now_ms: The time that decides; that of each log's clock if None.

        Raises:
            SegmentLogError: The file system refused. The other logs are cleaned first.
        """
        cleaned: list[CleanerStatistics] = []
        failures: list[Exception] = []
        compacted = [state for state in states if state.config.is_compacted]
        # The dirtiest one is on top.
        waiting: list[tuple[float, int]] = []
        for number in range(len(compacted)):
            self._put(waiting, compacted, number, now_ms, failures)
        while waiting and not self._should_stop():
            _, number = heappop(waiting)
            state = compacted[number]
            statistics = self._try(state, partial(self.clean_one, state, now_ms, wait=False), failures)
            if statistics is not None:
                cleaned.append(statistics)
                if statistics.end_offset > statistics.start_offset:
                    # The memory for keys may have been too small for all of it.
                    self._put(waiting, compacted, number, now_ms, failures)
        for state in compacted:
            if not self._should_stop() and state.cleaning.problem is None:
                self._try(state, partial(_retain, state, now_ms), failures)
        if failures:
            raise failures[0]
        return cleaned

    def clean_alone(self, state: LogState, now_ms: int | None = None) -> CleanerStatistics | None:
        """Clean one log, whatever its dirty ratio, and apply retention to it. Who cleans it already is waited for.

        Raises:
            OptionError: It is not to be compacted.
            NotWritableError: It is closed, or has failed.
            SegmentLogError: A segment cannot be read, or the file system refuses to write.
        """
        if not state.config.is_compacted:
            raise OptionError(
                f"Expected compact in cleanup.policy of {state.path}, found {','.join(state.config.cleanup_policy)!r}. "
                "Compaction drops all records without a key: alter the configuration first."
            )
        statistics = self.clean_one(state, now_ms, wait=True)
        if not state.cleaning.is_stopped:
            _retain(state, now_ms)
        return statistics

    def clean_one(
        self, state: LogState, now_ms: int | None = None, *, wait: bool
    ) -> CleanerStatistics | None:
        """Clean what is cleanable of a log, whatever its dirty ratio, as far as the memory for keys reaches.

        Args:
            state: The log, not locked.
            now_ms: The time that decides; its clock's if None.
            wait: Whether somebody else who is cleaning it is waited for.

        Returns:
            None if nothing was cleaned.

        Raises:
            NotWritableError: The log is closed, or has failed.
            SegmentLogError: A segment cannot be read, or the file system refuses to write.
        """
        now_ms = state.clock.now_ms() if now_ms is None else now_ms
        with state.cleaning.under_way(wait=wait) as is_mine:
            state.check_writable()
            if not is_mine or not state.config.is_compacted:
                return None
            truncations = state.truncations
            cleanable = what_is_cleanable(state, now_ms)
            if not cleanable.cleanable_bytes:
                return None
            try:
                statistics = clean_log(state, cleanable, self._tools(cleanable), now_ms, truncations)
            except CleaningInterrupted:
                _log.info("Gave up cleaning %s: it was changed meanwhile, or is being closed.", state.path)
                return None
        _log.info("%s", statistics)
        if statistics.invalid_records:
            _log.warning("%s: dropped %d records without a key.", state.path, statistics.invalid_records)
        return statistics

    def _put(
        self,
        waiting: list[tuple[float, int]],
        states: list[LogState],
        number: int,
        now_ms: int | None,
        failures: list[Exception],
    ) -> None:
        """Let a log wait for its turn, if it is time to clean it."""
        state = states[number]
        if self._should_stop() or state.failure is not None or state.cleaning.problem is not None:
            return
        found = self._try(state, partial(_look_at, state, now_ms), failures)
        if found is not None and found.is_eligible(state.config.min_cleanable_dirty_ratio):
            heappush(waiting, (-found.cleanable_ratio, number))

    def _try(self, state: LogState, work: Callable[[], _Result], failures: list[Exception]) -> _Result | None:
        """Do something with one log, which is not to keep the others from their turn."""
        try:
            return work()
        except NotWritableError:
            return None
        except _IN_THE_DATA as error:
            _log.warning("%s is not cleaned any more, until it is opened again: %s", state.path, error)
            state.cleaning.problem = error
        except SegmentLogError as error:
            failures.append(error)
        return None

    def _tools(self, cleanable: CleanableLog) -> CleaningTools:
        config = self._config
        slots = config.dedupe_buffer_size // MAP_SLOT_BYTES
        # There are no more keys than offsets: a small log needs no more memory than that.
        offsets = cleanable.first_uncleanable_offset - cleanable.first_dirty_offset
        needed = min(slots, math.ceil(offsets / config.io_buffer_load_factor) + 2)
        if self._offset_map is None or self._offset_map.slots < needed:
            self._offset_map = OffsetMap(needed * MAP_SLOT_BYTES, config.io_buffer_load_factor)
        window_bytes = max(config.io_buffer_size, WINDOW_BYTES)
        return CleaningTools(self._offset_map, slots, window_bytes, self._throttle, self._should_stop)


def _look_at(state: LogState, now_ms: int | None) -> CleanableLog | None:
    """What is to be cleaned of a log; None if somebody is cleaning it, or it is closed."""
    with state.cleaning.under_way(wait=False) as is_mine:
        now_ms = state.clock.now_ms() if now_ms is None else now_ms
        return what_is_cleanable(state, now_ms) if is_mine else None


def _retain(state: LogState, now_ms: int | None) -> None:
    with state.writing():
        write_pending(state)
        apply_retention(state, state.clock.now_ms() if now_ms is None else now_ms)
