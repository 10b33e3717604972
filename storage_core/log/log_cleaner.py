"""Cleaning compacted logs (Kafka's ``LogCleaner``, ``Cleaner`` and ``Throttler``).

A pass over one log finds the last offset of each dirty key, then rewrites the segments up to there, one group at a time,
without the superseded records. Appends and reads continue meanwhile: the log is locked only to replace segments.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from storage_core.cached_property import cached_property
from storage_core.compaction import (
    MAP_SLOT_BYTES,
    CleanedTransactions,
    CleanRules,
    CleanStatistics,
    LastRecord,
    MapStatistics,
    OffsetMap,
    build_offset_map,
    clean_into,
)
from storage_core.config import INT_MAX, ConfigKey, ConfigKeys, ConfigKind
from storage_core.errors import (
    AppendError,
    CorruptError,
    CorruptRecordError,
    NotWritableError,
    OptionError,
    SegmentLogError,
    UnsupportedFormatError,
)
from storage_core.log.local_log import flush_up_to, replace_segments
from storage_core.log.log_cleaner_manager import (
    CleaningSources,
    LogToClean,
    find_log_to_clean,
    group_segments,
)
from storage_core.log.retention import apply_retention
from storage_core.segment.batch_windows import WINDOW_BYTES
from storage_core.segment.file_names import CLEANED_SUFFIX
from storage_core.segment.log_segment import LogSegment
from storage_core.segment.segment_reader import DEFAULT_MAX_BATCH_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from storage_core.log.log_state import LogState

_log = logging.getLogger(__name__)
_CHECK_INTERVAL_SECONDS: Final = 0.3
# Errors that recur on the next attempt: bytes that are no batches, unknown formats, offsets that fit no segment.
_DATA_ERRORS: Final = (CorruptError, UnsupportedFormatError, AppendError)
_Result = TypeVar("_Result")


_PREFIX: Final = "log.cleaner."
# fmt: off
CLEANER_KEYS: Final = (
    ConfigKey("log.cleaner.dedupe.buffer.size", 134_217_728, ConfigKind.LONG, unit="bytes", minimum=1,
              doc="Memory for the last offset of each key. If it fills up, a pass cleans only up to there."),
    ConfigKey("log.cleaner.io.buffer.size", 524_288, ConfigKind.INT, unit="bytes", minimum=0, maximum=INT_MAX,
              doc="How much of a segment is read at a time, at least 4 MiB."),
    ConfigKey("log.cleaner.io.buffer.load.factor", 0.9, ConfigKind.DOUBLE, minimum=0, maximum=1,
              doc="How full the memory for keys may become."),
    ConfigKey("log.cleaner.io.max.bytes.per.second", None, ConfigKind.DOUBLE, unit="bytes a second", minimum=0, excluded=(0,),
              doc="The average rate of reading and writing; unlimited if not set."),
    ConfigKey("log.cleaner.backoff.ms", 15_000, ConfigKind.LONG, unit="milliseconds", minimum=0,
              doc="The pause between two checks for logs to clean."),
    ConfigKey("log.cleaner.max.decompressed.batch.bytes", DEFAULT_MAX_BATCH_BYTES, ConfigKind.INT, unit="bytes", minimum=1,
              maximum=INT_MAX, doc="The largest batch that a pass decompresses. Kafka has no such key and no limit."),
)
# fmt: on

_KEYS: Final = ConfigKeys(CLEANER_KEYS, "configuration key of the cleaner", _PREFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerConfig:
    """The configuration of cleaning: Kafka's keys without ``log.cleaner.``, with underscores, and Kafka's defaults.

    Values may also be strings. `CLEANER_KEYS` describes each key.

    Raises:
        OptionError: A value has the wrong type or is out of range, or the memory is too small for two keys.
    """

    dedupe_buffer_size: int = _KEYS.default("dedupe.buffer.size")
    io_buffer_size: int = _KEYS.default("io.buffer.size")
    io_buffer_load_factor: float = _KEYS.default("io.buffer.load.factor")
    io_max_bytes_per_second: float | None = _KEYS.default("io.max.bytes.per.second")
    backoff_ms: int = _KEYS.default("backoff.ms")
    max_decompressed_batch_bytes: int = _KEYS.default("max.decompressed.batch.bytes")

    def __post_init__(self) -> None:
        """Convert each value to its type, and check its range."""
        _KEYS.coerce(self)
        # With room for one key only, a pass would stop at the second key, and the log would never become clean.
        if self.dedupe_buffer_size // MAP_SLOT_BYTES * self.io_buffer_load_factor <= 1:
            raise OptionError(
                f"log.cleaner.dedupe.buffer.size is too small for two keys: {self.dedupe_buffer_size} bytes, at "
                f"{MAP_SLOT_BYTES} bytes a key and a load factor of {self.io_buffer_load_factor}."
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make a configuration from ``{"log.cleaner.backoff.ms": "15000"}`` or ``{"backoff_ms": 15000}``.

        Raises:
            OptionError: A key is unknown or given twice, or a value is invalid.
        """
        return cls(**_KEYS.by_field(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerStatistics:
    """The statistics of one pass over one log.

    Attributes:
        start_offset: The first offset that was dirty.
        end_offset: The first offset that is dirty now.
        bytes_read: The size of the batches that were cleaned.
        bytes_written: The size of the batches that remain of them.
        records_before: The number of records read; batches that were dropped without decoding do not count.
        invalid_records: The number of dropped records without a key.
        map_bytes_read: The size of the dirty batches, from which the map of last offsets was built.
        map_size: The number of their keys.
        map_utilization: How full the memory for keys became, from 0 to 1.
        segments_after: The number of segments that replaced the ones before.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    bytes_read: int
    bytes_written: int
    records_before: int
    records_after: int
    invalid_records: int
    map_bytes_read: int
    map_records_read: int
    map_size: int
    map_utilization: float
    segments_before: int
    segments_after: int
    started_ms: int
    map_built_ms: int
    ended_ms: int

    def __str__(self) -> str:
        return (
            f"Cleaned {self.topic}-{self.partition} from offset {self.start_offset} to {self.end_offset} in "
            f"{self.ended_ms - self.started_ms} ms, {self.map_built_ms - self.started_ms} ms of it for "
            f"{self.map_size} keys in {self.map_bytes_read} bytes ({self.map_utilization:.1%} of the memory for "
            f"keys): {self.segments_before} segments with {self.records_before} records, {self.bytes_read} bytes, "
            f"became {self.segments_after} with {self.records_after} records, {self.bytes_written} bytes."
        )


class CleaningInterrupted(Exception):  # noqa: N818  (no failure, and internal)
    """The log was changed, or is being closed, so its cleaning cannot continue."""


def clean_log(
    state: LogState, cleanable: LogToClean, cleaner: LogCleaner, now_ms: int, truncations: int
) -> CleanerStatistics:
    """Clean the dirty part of a log, as far as the memory for keys allows, and checkpoint the end.

    The log is not locked, but this thread holds `CleaningState.under_way`. ``now_ms`` decides about tombstones and
    markers; ``truncations`` is the number of truncations before ``cleanable``, which is not empty, was determined.

    Raises:
        CleaningInterrupted: The log was truncated, or is being closed. Segments replaced so far stay replaced.
        NotWritableError: The log is closed, or has failed.
        SegmentLogError: A segment cannot be read, or the file system reported an error.
    """
    cleaning_pass = _Pass(state, cleanable, cleaner, now_ms, truncations)
    try:
        return cleaning_pass.run()
    except SegmentLogError as error:
        # Bytes read while they were being cut off or removed can look damaged. An error that failed the log is raised.
        if state.failure is not error and (cleaning_pass.is_interrupted or not cleaning_pass.has_sources):
            raise CleaningInterrupted from error
        raise


def require_disjoint(segments: Iterable[LogSegment], end_offset: int) -> None:
    """Require that no segment that begins below an offset reaches into the next one: merged, their offsets would go back.

    Raises:
        CorruptRecordError: A segment does, as after the files of two copies were merged.
    """
    for segment, following in pairwise(segments):
        if segment.base_offset >= end_offset:
            break
        try:
            next_offset = segment.read_next_offset()
        except CorruptError:
            # Whoever reads its batches says more.
            continue
        if next_offset > following.base_offset:
            raise CorruptRecordError(
                f"Expected offsets below {following.base_offset}, where the next segment begins, found some up to "
                f"{next_offset - 1}: these segments do not belong to one log, as after files of two copies were merged. The "
                "log is not cleaned. Remove the files of one of the two.",
                path=segment.path,
                offset=following.base_offset,
                last_offset=next_offset - 1,
            )


class _Pass:
    def __init__(
        self, state: LogState, cleanable: LogToClean, cleaner: LogCleaner, now_ms: int, truncations: int
    ) -> None:
        self._state = state
        # The same configuration for the whole pass.
        self._config = state.config
        self._cleanable = cleanable
        self._cleaner = cleaner
        self._offset_map = cleaner.offset_map_for(cleanable)
        self._now_ms = now_ms
        self._truncations = truncations
        self._statistics = CleanStatistics()
        with state.writing():
            # A superseding record must be on disk before the superseded one is removed.
            if not self.is_interrupted and state.offsets.recovery_point < cleanable.first_uncleanable_offset:
                flush_up_to(state, cleanable.first_uncleanable_offset)
            self._segments = CleaningSources(state.view.segments)
        # Readers without a writer rely on the checkpoints, so those must cover the superseding records too.
        state.checkpoint()
        # The segments that are read, and not yet replaced.
        self._sources = self._segments.between(
            cleanable.first_dirty_offset, cleanable.first_uncleanable_offset
        )

    @property
    def is_interrupted(self) -> bool:
        """True if the pass must stop."""
        state = self._state
        return (
            state.truncations != self._truncations
            or state.cleaning.is_stopped
            or state.is_closed
            or state.failure is not None
            or self._cleaner.should_stop()
        )

    @property
    def has_sources(self) -> bool:
        """True if the log still has the segments that are read."""
        return self._has(self._sources)

    def run(self) -> CleanerStatistics:
        state, offset_map = self._state, self._offset_map
        self._continue(0)
        require_disjoint(self._segments.between(None, None), self._cleanable.first_uncleanable_offset)
        started_ms = state.clock.now_ms()
        mapped = self._build_map()
        map_built_ms = state.clock.now_ms()
        end_offset = offset_map.latest_offset + 1
        self._sources = sources = self._segments.between(None, end_offset)
        groups = group_segments(sources, self._config, self._cleanable.first_uncleanable_offset)
        transactions = CleanedTransactions()
        # The whole last segment counts, even if the map ends within it.
        transactions.add_aborted(self._segments.aborted_transactions_of(sources))
        for group in groups:
            self._clean_group(group, transactions)
            self._sources = self._sources[len(group) :]
        self._write_checkpoint(end_offset)
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
            map_utilization=offset_map.size / self._cleaner.map_slots,
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
            self._sources,
            first,
            end,
            self._offset_map,
            transactions,
            throttle=self._continue,
            max_batch_bytes=self._cleaner.max_batch_bytes,
        )

    def _clean_group(self, group: Sequence[LogSegment], transactions: CleanedTransactions) -> None:
        self._continue(0)
        cleaned = self._new_segment(group)
        try:
            self._statistics += clean_into(
                cleaned,
                group,
                self._offset_map,
                transactions,
                self._rules(),
                throttle=self._continue,
            )
            cleaned.seal()
            cleaned.set_modified_ms(group[-1].modified_ms)
            cleaned.flush()
        except BaseException:
            # If this fails, the next open of the log deletes it.
            with contextlib.suppress(SegmentLogError):
                cleaned.delete()
            raise
        if not self._replace(cleaned, group):
            cleaned.delete()
            raise CleaningInterrupted

    def _replace(self, cleaned: LogSegment, group: Sequence[LogSegment]) -> bool:
        """Replace a group of segments by its cleaned segment.

        Returns:
            False if the log no longer has the group.
        """
        state = self._state
        with contextlib.suppress(NotWritableError), state.writing():
            if self.is_interrupted or not self._has(group):
                return False
            replace_segments(state, cleaned, group)
            return True
        return False

    def _new_segment(self, group: Sequence[LogSegment]) -> LogSegment:
        state, base_offset = self._state, group[0].base_offset
        now_ms = state.clock.now_ms()
        left_over = LogSegment(
            state.filesystem, state.path, base_offset, self._config, now_ms=now_ms, suffix=CLEANED_SUFFIX
        )
        left_over.delete()
        return LogSegment.create(
            state.filesystem,
            state.path,
            base_offset,
            self._config,
            now_ms=now_ms,
            suffix=CLEANED_SUFFIX,
            like=tuple(segment.path for segment in group),
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
            window_bytes=self._cleaner.window_bytes,
            max_batch_bytes=self._cleaner.max_batch_bytes,
        )

    @cached_property
    def _legacy_delete_horizon_ms(self) -> int:
        clean = self._segments.between(None, self._cleanable.first_dirty_offset)
        return clean[-1].modified_ms - self._config.delete_retention_ms if clean else 0

    def _write_checkpoint(self, end_offset: int) -> None:
        state = self._state
        with state.lock:
            if state.truncations != self._truncations:
                raise CleaningInterrupted
            if state.cleaning.checkpoint is not None:
                state.cleaning.checkpoint.update(state.directory.topic_partition, end_offset)

    def _continue(self, size_bytes: int) -> None:
        if not self.is_interrupted:
            # A low rate may mean a long wait, which must not delay closing the log.
            self._cleaner.throttle(size_bytes, lambda: self.is_interrupted)
        if self.is_interrupted:
            raise CleaningInterrupted

    def _has(self, segments: Sequence[LogSegment]) -> bool:
        current = self._state.segments
        return all(current.floor(segment.base_offset) is segment for segment in segments)


class Throttle:
    """Limits the rate of reading and writing, which several passes may share. None is no limit."""

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
        """Record bytes that were read or written, and sleep if the rate is too high, unless ``should_stop``.

        The rate is checked at most three times a second, and may be exceeded in between.
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


class LogCleaner:
    """Cleans logs one after the other, sharing the memory for keys and the rate."""

    def __init__(self, config: CleanerConfig, should_stop: Callable[[], bool] = lambda: False) -> None:
        self.should_stop = should_stop
        self.throttle = Throttle(config.io_max_bytes_per_second)
        self.window_bytes = max(config.io_buffer_size, WINDOW_BYTES)
        self.max_batch_bytes = config.max_decompressed_batch_bytes
        self.map_slots = config.dedupe_buffer_size // MAP_SLOT_BYTES
        self._config = config
        self._offset_map: OffsetMap | None = None

    def clean(self, states: Iterable[LogState], now_ms: int | None = None) -> list[CleanerStatistics]:
        """Clean the logs that need it, the dirtiest first, then apply retention to all compacted logs.

        A log with unreadable data is skipped from then on. A log that another thread is cleaning is skipped.

        Raises:
            SegmentLogError: The file system reported an error. The other logs are cleaned first.
        """
        cleaned: list[CleanerStatistics] = []
        failures: list[Exception] = []
        compacted = [state for state in states if state.config.is_compacted]
        # A heap with the dirtiest log on top.
        waiting: list[tuple[float, int]] = []
        for number in range(len(compacted)):
            self._queue_if_dirty(waiting, compacted, number, now_ms, failures)
        while waiting and not self.should_stop():
            _, number = heappop(waiting)
            state = compacted[number]
            statistics = self._try(state, partial(self.clean_one, state, now_ms, wait=False), failures)
            if statistics is not None:
                cleaned.append(statistics)
                if statistics.end_offset > statistics.start_offset:
                    # The memory for keys may have been too small for all dirty records.
                    self._queue_if_dirty(waiting, compacted, number, now_ms, failures)
        for state in compacted:
            if not self.should_stop() and state.cleaning.problem is None:
                self._try(state, partial(apply_retention, state, now_ms), failures)
        if failures:
            raise failures[0]
        return cleaned

    def clean_alone(self, state: LogState, now_ms: int | None = None) -> CleanerStatistics | None:
        """Clean one log, after a cleaning in progress, and apply retention to it.

        Returns:
            The statistics of the pass, or None if nothing was cleaned.
        """
        if not state.config.is_compacted:
            raise OptionError(
                f"Expected compact in cleanup.policy of {state.path}, found {','.join(state.config.cleanup_policy)!r}. "
                "Compaction drops all records without a key: alter the configuration first."
            )
        statistics = self.clean_one(state, now_ms, wait=True)
        if not state.cleaning.is_stopped:
            apply_retention(state, now_ms)
        return statistics

    def clean_one(
        self, state: LogState, now_ms: int | None = None, *, wait: bool
    ) -> CleanerStatistics | None:
        """Clean the cleanable part of a log, whatever its dirty ratio, as far as the memory for keys allows.

        The log is not locked.

        Returns:
            The statistics of the pass, or None if nothing was cleaned.
        """
        now_ms = state.clock.now_ms() if now_ms is None else now_ms
        with state.cleaning.under_way(wait=wait) as is_mine:
            state.check_writable()
            if not is_mine or not state.config.is_compacted:
                return None
            truncations = state.truncations
            cleanable = find_log_to_clean(state, now_ms)
            if not cleanable.cleanable_bytes:
                return None
            try:
                statistics = clean_log(state, cleanable, self, now_ms, truncations)
            except CleaningInterrupted:
                _log.info("Stopped cleaning %s: it was changed meanwhile, or is being closed.", state.path)
                return None
        _log.info("%s", statistics)
        if statistics.invalid_records:
            _log.warning("%s: dropped %d records without a key.", state.path, statistics.invalid_records)
        return statistics

    def _queue_if_dirty(
        self,
        waiting: list[tuple[float, int]],
        states: list[LogState],
        number: int,
        now_ms: int | None,
        failures: list[Exception],
    ) -> None:
        """Queue a log if it needs cleaning."""
        state = states[number]
        if self.should_stop() or state.failure is not None or state.cleaning.problem is not None:
            return
        found = self._try(state, partial(_find_unless_cleaning, state, now_ms), failures)
        if found is not None and found.is_eligible(state.config.min_cleanable_dirty_ratio):
            heappush(waiting, (-found.cleanable_ratio, number))

    def _try(self, state: LogState, work: Callable[[], _Result], failures: list[Exception]) -> _Result | None:
        """Process one log, so that an error does not affect the other logs.

        Returns:
            The result of the work, or None after an error.
        """
        try:
            return work()
        except NotWritableError:
            return None
        except _DATA_ERRORS as error:
            _log.warning("%s is no longer cleaned until it is opened again: %s", state.path, error)
            state.cleaning.problem = error
        except SegmentLogError as error:
            failures.append(error)
        return None

    def offset_map_for(self, cleanable: LogToClean) -> OffsetMap:
        """Make a map for the keys of a log, with room for all of its offsets if the configured memory allows it."""
        load_factor = self._config.io_buffer_load_factor
        offsets = cleanable.first_uncleanable_offset - cleanable.first_dirty_offset
        needed = min(self.map_slots, math.ceil(offsets / load_factor) + 2)
        if self._offset_map is None or self._offset_map.slots < needed:
            self._offset_map = OffsetMap(needed * MAP_SLOT_BYTES, load_factor)
        return self._offset_map


def _find_unless_cleaning(state: LogState, now_ms: int | None) -> LogToClean | None:
    """Find the part of a log to clean.

    Returns:
        The part, or None if another thread is cleaning the log, or it is closed.
    """
    with state.cleaning.under_way(wait=False) as is_mine:
        now_ms = state.clock.now_ms() if now_ms is None else now_ms
        return find_log_to_clean(state, now_ms) if is_mine else None
