"""Cleaning the logs of a log directory (Kafka's ``LogCleaner`` and ``LogCleanerManager``): which one, and when.

`cleanable_state` looks, `cleanable_log` decides, `cleaning_pass` does it.
"""

from __future__ import annotations

import logging
import math
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, TypeVar

from storage_core.compaction import MAP_SLOT_BYTES, OffsetMap
from storage_core.errors import (
    AppendError,
    CorruptError,
    NotWritableError,
    OptionError,
    SegmentLogError,
    UnsupportedFormatError,
)
from storage_core.log.cleanable_state import what_is_cleanable
from storage_core.log.cleaning_pass import CleaningInterrupted, CleaningTools, clean_log
from storage_core.log.log_append import write_pending
from storage_core.log.retention import apply_retention
from storage_core.log.throttle import Throttle
from storage_core.segment.segment_windows import WINDOW_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from storage_core.log.cleanable_log import CleanableLog
    from storage_core.log.cleaner_config import CleanerConfig
    from storage_core.log.cleaner_statistics import CleanerStatistics
    from storage_core.log.log_state import LogState

__all__ = ["LogCleaner"]

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
