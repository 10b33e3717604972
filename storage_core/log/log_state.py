"""How cleaning a log and changing it otherwise keep apart (the states of Kafka's ``LogCleanerManager``).

A cleaning reads segments without the log's lock, and takes it to replace some of them: then it looks whether the log still
has them, and was not truncated. Whoever closes the log waits for the cleaning to end.

One flush for many who wait for it (what databases call group commit).

The first to come flushes for all who have come by then; those who come while it does wait, and one of them flushes for
all of these. So nobody is served by a flush that began before it came.

The offsets that bound a log, and the rules by which they move (Kafka's ``UnifiedLog``).

    log start offset  ≤  last stable offset  ≤  high watermark  ≤  log end offset

The log end moves on load, append and truncation; the log start on load, truncation, deletion of
segments and of records. The high watermark stays between the two, the recovery point at or below
the log end.

What a log that is open for writing consists of, and who may change it.

One writer at a time holds the lock. Readers take no lock: they take the `LogView` that the last
change left, which never changes.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from storage_core.errors import (
    AppendError,
    LogClosedError,
    LogFailedError,
    NotWritableError,
    OffsetOutOfRangeError,
    OptionError,
)
from storage_core.filesystem import OwningProcess
from storage_core.log.log_records import encoding_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from storage_core.checkpoint.truncations_file import TruncationsFile
    from storage_core.directory import PartitionDirectory
    from storage_core.filesystem import FileSystem
    from storage_core.log.background import Clock
    from storage_core.log.leader_epoch_cache import LeaderEpochCache
    from storage_core.log.log_segments import LogSegments
    from storage_core.log.producer_state_manager import ProducerStateManager
    from storage_core.log.root_checkpoints import CleanerCheckpoint
    from storage_core.log.transaction import Transaction
    from storage_core.log_config import LogConfig
    from storage_core.record.encode import BatchEncoding
    from storage_core.record.record_batches import RecordBatches
    from storage_core.segment.log_segment import LogSegment

__all__ = ["CleaningState", "GroupCommit", "LogOffsets", "LogState", "LogView", "PendingBatches"]


class CleaningState:
    """What is known of one log's cleaning.

    Attributes:
        checkpoint: Up to where the logs of the directory were cleaned; None for a log that belongs to none.
        problem: Why it cannot be cleaned: something in its data.
    """

    def __init__(self) -> None:
        self.checkpoint: CleanerCheckpoint | None = None
        self.problem: Exception | None = None
        self._lock = threading.Lock()
        self._is_stopped = False
        self._interrupting = 0
        # For the number.
        self._guard = threading.Lock()

    @property
    def is_stopped(self) -> bool:
        """Whether it is not to be cleaned any more; a cleaning that is under way gives up."""
        return self._is_stopped or self._interrupting > 0

    @contextmanager
    def under_way(self, *, wait: bool) -> Iterator[bool]:
        """Clean the log, as a context manager: one does at a time.

        Args:
            wait: Whether another cleaning is waited for.

        Returns:
            Whether this is the one: otherwise, or if it is not to be cleaned any more, leave it alone.
        """
        is_mine = self._lock.acquire(blocking=wait)
        try:
            yield is_mine and not self.is_stopped
        finally:
            if is_mine:
                self._lock.release()

    def stop(self) -> None:
        """Make a cleaning give up, and wait for its end. The log is not locked by this thread."""
        self._is_stopped = True
        with self._lock:
            pass

    def interrupt(self) -> None:
        """The same, but afterwards it may be cleaned again."""
        with self._guard:
            self._interrupting += 1
        with self._lock, self._guard:
            self._interrupting -= 1


# A disk may be quicker than many threads are: who flushes waits for those who came the last time, but not for longer
# than this, and not if nobody at all has come for so long.
_LONGEST_WAIT_SECONDS: Final = 0.005
_LONGEST_SILENCE_SECONDS: Final = 0.0005


class GroupCommit:
    """Those who wait for the flush of one log, and who of them does it."""

    __slots__ = (
        "_begun",
        "_expected",
        "_has_ended",
        "_is_complete",
        "_is_flushing",
        "_lock",
        "_succeeded",
        "_waiting",
    )

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # What the two conditions are about: all have come who are expected; a flush has ended.
        self._is_complete = threading.Condition(self._lock)
        self._has_ended = threading.Condition(self._lock)
        self._is_flushing = False
        self._waiting = 0
        self._expected = 1
        # Flushes have numbers, and run one after the other.
        self._begun = 0
        self._succeeded = 0

    def flush(self, is_covered: Callable[[], bool], flush_all: Callable[[], None]) -> None:
        """Return once a flush has succeeded that began after this was called.

        Args:
            is_covered: Whether the caller needs no flush any more.
            flush_all: Flushes for everybody who has come, and raises an error each time after it has failed once.
        """
        with self._lock:
            number = self._begun + 1
            self._waiting += 1
            if self._waiting >= self._expected:
                self._is_complete.notify()
            while self._succeeded < number and not is_covered():
                if self._is_flushing:
                    self._has_ended.wait()
                else:
                    self._flush(flush_all)

    def _flush(self, flush_all: Callable[[], None]) -> None:
        """Flush for all who wait. Called with the lock, which is given back meanwhile."""
        self._is_flushing = True
        served = 0
        try:
            self._wait_for_others()
            self._begun += 1
            waiting, self._waiting = self._waiting, 0
            self._lock.release()
            try:
                flush_all()
            finally:
                self._lock.acquire()
            self._succeeded = self._begun
            served = waiting
        finally:
            self._is_flushing = False
            self._expected = served
            self._has_ended.notify_all()

    def _wait_for_others(self) -> None:
        ends_at = time.monotonic() + _LONGEST_WAIT_SECONDS
        while self._waiting < self._expected and time.monotonic() < ends_at:
            come = self._waiting
            self._is_complete.wait(_LONGEST_SILENCE_SECONDS)
            if self._waiting == come:
                break


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """The offsets of a log at one moment.

    Attributes:
        log_start_offset: The first offset that counts; what lies below is deleted.
        log_end_offset: The offset behind the last record: the next append gets it.
        high_watermark: The offset behind the last record that every replica has.
        recovery_point: The first offset that is not known to be on disk.
        first_unstable_offset: Where the oldest transaction begins that is not decided yet, as far as every
            replica knows; None without any.
    """

    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    recovery_point: int
    first_unstable_offset: int | None = None

    @property
    def last_stable_offset(self) -> int:
        """Up to here, every transaction is decided: a ``read_committed`` consumer gets no further."""
        unstable = self.first_unstable_offset
        if unstable is None or unstable >= self.high_watermark:
            return self.high_watermark
        # A transaction may have begun in records that are deleted by now.
        return max(unstable, self.log_start_offset)

    def appended(self, log_end_offset: int, *, is_only_replica: bool) -> LogOffsets:
        """After an append. What the only replica of a log has, every replica has."""
        return LogOffsets(
            self.log_start_offset,
            log_end_offset,
            log_end_offset if is_only_replica else self.high_watermark,
            self.recovery_point,
            self.first_unstable_offset,
        )

    def flushed(self, up_to_offset: int) -> LogOffsets:
        """After everything below an offset was forced to disk."""
        return replace(self, recovery_point=max(self.recovery_point, up_to_offset))

    def with_high_watermark(self, high_watermark: int) -> LogOffsets:
        """With another high watermark, as near to it as the bounds of the log allow."""
        clamped = max(self.log_start_offset, min(high_watermark, self.log_end_offset))
        return replace(self, high_watermark=clamped)

    def with_log_start(self, log_start_offset: int) -> LogOffsets:
        """With a higher log start; a lower one changes nothing.

        Raises:
            OffsetOutOfRangeError: It is above the high watermark.
        """
        if log_start_offset > self.high_watermark:
            raise OffsetOutOfRangeError(
                f"Expected a new log start offset of at most {self.high_watermark}, the high watermark, found "
                f"{log_start_offset}. What not every replica has cannot be deleted.",
                offset=log_start_offset,
            )
        if log_start_offset <= self.log_start_offset:
            return self
        return replace(
            self,
            log_start_offset=log_start_offset,
            recovery_point=max(self.recovery_point, log_start_offset),
        )

    def truncated(self, log_end_offset: int) -> LogOffsets:
        """After a truncation to an offset, which is at or below the log end."""
        return replace(
            self,
            log_start_offset=min(self.log_start_offset, log_end_offset),
            log_end_offset=log_end_offset,
            high_watermark=min(self.high_watermark, log_end_offset),
            recovery_point=min(self.recovery_point, log_end_offset),
        )

    def restarted(self, offset: int) -> LogOffsets:
        """After everything was removed, with a log that begins and ends at an offset."""
        return LogOffsets(offset, offset, offset, offset)


_log = logging.getLogger(__name__)
# What is raised before anything was changed: the log is as it was.
_REFUSALS = (AppendError, NotWritableError, OffsetOutOfRangeError, OptionError)


@dataclass(frozen=True, slots=True)
class LogView:
    """A log at one moment.

    Attributes:
        offsets: The offsets that bound it.
        segments: Its segments; the last one is active, and may have grown since.
        active_size_bytes: The size that the active one had.
    """

    offsets: LogOffsets
    segments: tuple[LogSegment, ...]
    active_size_bytes: int


@dataclass(slots=True, eq=False)
class PendingBatches:
    """Batches that were acknowledged from memory: they have offsets, but are in no file yet.

    A reader without the lock looks here first, and then at the view: batches are added here before they are
    acknowledged, and removed after the view shows them.
    """

    batches: list[RecordBatches] = field(default_factory=list)
    size_bytes: int = 0
    next_offset: int = 0

    def add(self, batches: RecordBatches) -> None:
        """Keep batches."""
        # First what is looked at once there are batches.
        self.next_offset = batches.next_offset
        self.batches.append(batches)
        self.size_bytes += batches.size_bytes

    def clear(self) -> None:
        """Keep nothing any more."""
        self.batches, self.size_bytes = [], 0


@dataclass(slots=True, eq=False)
class LogState:
    """The parts of a log, and the lock of whoever changes them.

    Attributes:
        config: The configuration. To use more than one value of it without the lock, take it once.
        encoding: How it wants batches to be made.
        view: What readers see.
        is_only_replica: Whether the high watermark follows the log end.
        last_flush_ms: When everything was last known to be on disk.
        last_expiration_ms: When producers were last looked at that may have been silent for too long.
        unflushed_directory: Whether a file of the log was created or renamed since the directory was
            forced to disk.
        is_deleted: Whether its directory has another name by now, and its files wait for their removal. It is closed.
        restarts_at: Where the log begins anew while all its segments are being replaced: until the new one is there,
            no file name tells.
        doomed_files: Files that wait for their removal, and when it is due.
        current_transactions: By producer id, its newest transaction in this process that has not ended.
        failure: What made the log fail: since then nothing is written.
        lost_offsets: Those that were acknowledged from memory alone when it failed.
        config_altered: Called after the configuration was altered.
        checkpoint: Writes the checkpoints of the log directory.
        checkpoint_if_due: The same, if they have not been written for some time.
        truncations: How often the log end has moved back, as far as the view shows.
        truncations_file: Tells readers of truncations, also in other processes; None for a log that belongs to no log
            directory.
        is_truncating: Whether what a truncation takes away is going just now: the view is of no use then.
        truncated_to: The first offset that the last truncation took away.
        group_commit: Those who wait for a flush; None until somebody does.
        cleaning: What is known of its cleaning.
        owner: The process that opened it, which alone may change it.
    """

    filesystem: FileSystem
    directory: PartitionDirectory
    config: LogConfig
    clock: Clock
    segments: LogSegments
    leader_epochs: LeaderEpochCache
    producers: ProducerStateManager
    view: LogView
    last_flush_ms: int
    last_expiration_ms: int
    is_only_replica: bool = True
    unflushed_directory: bool = True
    restarts_at: int | None = None
    pending: PendingBatches = field(default_factory=PendingBatches)
    doomed_files: list[tuple[int, Callable[[], object]]] = field(default_factory=list)
    current_transactions: WeakValueDictionary[int, Transaction] = field(default_factory=WeakValueDictionary)
    failure: BaseException | None = None
    lost_offsets: range = range(0)
    is_closed: bool = False
    is_deleted: bool = False
    checkpoint: Callable[[], None] = lambda: None
    checkpoint_if_due: Callable[[], None] = lambda: None
    config_altered: Callable[[], None] = lambda: None
    lock: threading.RLock = field(default_factory=threading.RLock)
    truncations: int = 0
    truncations_file: TruncationsFile | None = None
    is_truncating: bool = False
    truncated_to: int = 0
    group_commit: GroupCommit | None = None
    cleaning: CleaningState = field(default_factory=CleaningState)
    owner: OwningProcess = field(default_factory=OwningProcess)
    encoding: BatchEncoding = field(init=False)

    def __post_init__(self) -> None:
        """Derive what the configuration decides."""
        self.encoding = encoding_of(self.config)

    @property
    def path(self) -> str:
        """The partition's directory."""
        return self.directory.path

    @property
    def offsets(self) -> LogOffsets:
        """The offsets that bound the log."""
        return self.view.offsets

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets: behind those that wait in memory."""
        return self.pending.next_offset if self.pending.batches else self.view.offsets.log_end_offset

    def has_been_truncated(self, since: int) -> bool:
        """Whether the log is being truncated, or was since it had been truncated so many times."""
        # In this order: a truncation that ends between the two questions counts.
        return self.is_truncating or self.truncations != since

    def alter_config(self, config: LogConfig) -> None:
        """Go on with another configuration, an object that was none before. The log is locked; nothing is pending."""
        self.segments.active.alter_config(config)
        self.producers.expiration_ms = config.producer_id_expiration_ms
        self.encoding = encoding_of(config)
        # Last: a prepared append checks whether this is another object by now.
        self.config = config
        self.config_altered()

    def publish(self, offsets: LogOffsets) -> None:
        """Show readers what has become of the log."""
        self._show(self._with_transactions(offsets), self.view.segments)

    def publish_lowered(self, offsets: LogOffsets) -> None:
        """Show where the log is about to be cut. What the producers had open there, they do not know yet."""
        self._show(offsets, self.view.segments)

    def publish_segments(self, offsets: LogOffsets) -> None:
        """The same, after segments were added or removed."""
        self._show(self._with_transactions(offsets), tuple(self.segments.values()))

    def _show(self, offsets: LogOffsets, segments: tuple[LogSegment, ...]) -> None:
        is_truncated = offsets.log_end_offset < self.view.offsets.log_end_offset
        self.view = LogView(offsets, segments, segments[-1].size_bytes)
        # Who has seen the new number sees the new view.
        self.truncations += is_truncated

    def _with_transactions(self, offsets: LogOffsets) -> LogOffsets:
        producers = self.producers
        producers.on_high_watermark_updated(offsets.high_watermark)
        if producers.first_unstable_offset == offsets.first_unstable_offset:
            return offsets
        return replace(offsets, first_unstable_offset=producers.first_unstable_offset)

    def fail(self, error: BaseException) -> None:
        """Note what made the log fail; needs the lock. What was acknowledged from memory alone is lost."""
        if self.failure is not None:
            return
        log_end_offset, pending = self.view.offsets.log_end_offset, self.pending
        if pending.batches and pending.next_offset > log_end_offset:
            self.lost_offsets = range(log_end_offset, pending.next_offset)
            lost = f"{_offsets(self.lost_offsets)} acknowledged from memory (acks=0), and lost"
            error.add_note(f"{self.path}: {lost}.")
            _log.warning("%s: %s, because the log has failed: %s", self.path, lost, error)
        pending.clear()
        self.failure = error

    def writing(self) -> _Writing:
        """Hold the lock for a change, as a context manager. A change that fails midway fails the log.

        Raises:
            LogClosedError: The log is closed.
            LogFailedError: A write failed before.
            LogForkedError: Another process opened it. Its lock may be held by a thread that this process does not have.
        """
        self.owner.check(self.path)
        return _Writing(self)

    def check_open(self) -> None:
        """Refuse to do anything with a log that is closed, or was deleted."""
        if self.is_deleted:
            raise LogClosedError(
                "This log was deleted. Take one that was made since with get(), or make it with create().",
                path=self.path,
            )
        if self.is_closed:
            raise LogClosedError("This log is closed. Open its log directory again.", path=self.path)

    def check_writable(self) -> None:
        """Refuse a change of a log that takes none."""
        self.check_open()
        if self.failure is not None:
            lost = self.lost_offsets
            but = f", but for {_offsets(lost)} acknowledged from memory (acks=0)" if lost else ""
            raise LogFailedError(
                f"A write to this log failed before ({self.failure}), so nothing more is written. Close its log "
                f"directory and open it again: what was acknowledged is found again then{but}.",
                path=self.path,
                offset=lost.start if lost else None,
                last_offset=lost.stop - 1 if lost else None,
            ) from self.failure


class _Writing:
    """A change of a log, from the first check to the end."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    def __enter__(self) -> None:
        state = self._state
        # Who waits for a lock may be interrupted when it has it: only this statement gives it back then.
        with state.lock:
            state.check_writable()
            # Once more, for the change: nobody waits for what is one's own.
            state.lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        state = self._state
        if error is not None and not isinstance(error, _REFUSALS):
            state.fail(error)
        state.lock.release()


def _offsets(lost: range) -> str:
    return f"offset {lost.start} was" if len(lost) == 1 else f"offsets {lost.start} to {lost.stop - 1} were"
