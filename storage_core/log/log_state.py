"""The state of a log that is open for writing: its parts, its offsets, and the lock for changes.

One writer at a time holds the lock. Readers take no lock: they take the immutable `LogView` that the last change
published. The offsets of a log (Kafka's ``UnifiedLog``) are ordered:

    log start offset  ≤  last stable offset  ≤  high watermark  ≤  log end offset

Loading, appends and truncations move the log end; loading, truncations and deletions move the log start. The high
watermark stays between the two, and the recovery point at or below the log end.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from storage_core.directory import LogDirectoryFiles, PartitionDirectory, PartitionLog, SegmentSequence
from storage_core.directory.segment_listing import FileNames, SegmentFiles
from storage_core.directory.visibility import VisibleCommits
from storage_core.errors import (
    AppendError,
    LogClosedError,
    LogFailedError,
    NotWritableError,
    OffsetOutOfRangeError,
    OptionError,
)
from storage_core.filesystem import FileSystem, OwningProcess
from storage_core.log.group_commit import GroupCommit
from storage_core.options.values import (
    DEFAULT_MAX_DECOMPRESSED_BATCH_BYTES,
    LARGEST_MAX_DECOMPRESSED_BATCH_BYTES,
)
from storage_core.record.encode import BatchEncoding
from storage_core.segment import SegmentEnd, SegmentReader

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import TracebackType

    from storage_core.checkpoint.root_files import CleanerCheckpoint
    from storage_core.checkpoint.truncations_file import TruncationsFile
    from storage_core.log.clock import Clock
    from storage_core.log.leader_epoch_cache import LeaderEpochCache
    from storage_core.log.log_segments import LogSegments
    from storage_core.log.producer_state_manager import ProducerStateManager
    from storage_core.log_config import LogConfig
    from storage_core.segment.log_segment import LogSegment

# Errors raised before anything changes: they do not fail the log.
_REFUSALS = (AppendError, NotWritableError, OffsetOutOfRangeError, OptionError)


class CleaningState:
    """The cleaning of one log (the states of Kafka's ``LogCleanerManager``).

    A cleaning reads segments without the log's lock, and takes the lock to replace them. It then checks that the log
    still has these segments and was not truncated. Closing a log waits for its cleaning to end.

    Attributes:
        checkpoint: The cleaner checkpoint of the log directory; None for a log outside of one.
        problem: Why the log cannot be cleaned: an error in its data.
    """

    def __init__(self) -> None:
        self.checkpoint: CleanerCheckpoint | None = None
        self.problem: Exception | None = None
        self._lock = threading.Lock()
        self._is_stopped = False
        self._interrupting = 0
        # Guards the number of interrupts.
        self._guard = threading.Lock()

    @property
    def is_stopped(self) -> bool:
        """True if the log must not be cleaned. A cleaning in progress gives up."""
        return self._is_stopped or self._interrupting > 0

    @contextmanager
    def under_way(self, *, wait: bool) -> Iterator[bool]:
        """Hold the exclusive right to clean the log, as a context manager.

        With ``wait``, it is obtained after another cleaning. Yields True if it was obtained and the log may be cleaned.
        """
        is_mine = self._lock.acquire(blocking=wait)
        try:
            yield is_mine and not self.is_stopped
        finally:
            if is_mine:
                self._lock.release()

    def stop(self) -> None:
        """Stop cleaning for good, and wait for a cleaning in progress. This thread does not hold the log's lock."""
        self._is_stopped = True
        with self._lock:
            pass

    def interrupt(self) -> None:
        """Stop a cleaning in progress, and wait for it. Later ones may begin."""
        with self._guard:
            self._interrupting += 1
        with self._lock, self._guard:
            self._interrupting -= 1


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """The offsets of a log at one moment.

    Attributes:
        log_start_offset: The first offset that is not deleted.
        log_end_offset: The offset after the last record, which the next record gets.
        high_watermark: The offset after the last record that every replica has.
        recovery_point: The first offset that is not known to be on disk.
        first_unstable_offset: The start of the oldest transaction that is undecided, or whose marker not every replica
            has; None without any.
        gap_start: Where the last batch ends, if the log ends after it, because a truncation has removed the batch that
            held the log end; None otherwise. No file says where such a log ends.
        checkpointed_start: The log start as the checkpoint names it if the first segment begins there or above it, as in a
            log whose older records are in remote storage; None otherwise. Only a deletion of records raises it: a broker
            deletes remote segments below it.
    """

    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    recovery_point: int
    first_unstable_offset: int | None = None
    gap_start: int | None = None
    checkpointed_start: int | None = None

    @property
    def whole_log_start(self) -> int:
        """Return the log start with the records in remote storage, to which leader epochs and snapshots reach back."""
        return self.log_start_offset if self.checkpointed_start is None else self.checkpointed_start

    @property
    def batches_end_offset(self) -> int:
        """Return the end of the last batch, which is what files and checkpoints say of the log end."""
        return self.log_end_offset if self.gap_start is None else self.gap_start

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction is decided: the end for ``read_committed`` consumers."""
        unstable = self.first_unstable_offset
        if unstable is None or unstable >= self.high_watermark:
            return self.high_watermark
        # The transaction may have begun in records that are already deleted.
        return max(unstable, self.log_start_offset)

    def appended(self, log_end_offset: int, *, is_only_replica: bool) -> LogOffsets:
        """Return the offsets after an append, which moves the high watermark if this is the only replica."""
        return LogOffsets(
            self.log_start_offset,
            log_end_offset,
            log_end_offset if is_only_replica else self.high_watermark,
            self.recovery_point,
            self.first_unstable_offset,
            checkpointed_start=self.checkpointed_start,
        )

    def flushed(self, up_to_offset: int) -> LogOffsets:
        """Return the offsets after everything below an offset was flushed."""
        flushed_offset = min(up_to_offset, self.batches_end_offset)
        return replace(self, recovery_point=max(self.recovery_point, flushed_offset))

    def with_high_watermark(self, high_watermark: int) -> LogOffsets:
        """Return the offsets with a new high watermark, clamped to the bounds of the log."""
        clamped = max(self.log_start_offset, min(high_watermark, self.log_end_offset))
        return replace(self, high_watermark=clamped)

    def with_log_start(self, log_start_offset: int) -> LogOffsets:
        """Return the offsets with a higher log start. A lower one changes nothing.

        Raises:
            OffsetOutOfRangeError: The log start is above the high watermark.
        """
        if log_start_offset > self.high_watermark:
            raise OffsetOutOfRangeError(
                f"Expected a new log start offset of at most {self.high_watermark}, the high watermark, found "
                f"{log_start_offset}. Records that not every replica has cannot be deleted.",
                offset=log_start_offset,
            )
        if log_start_offset <= self.whole_log_start:
            return self
        return replace(
            self,
            log_start_offset=max(self.log_start_offset, log_start_offset),
            checkpointed_start=None if self.checkpointed_start is None else log_start_offset,
            recovery_point=max(self.recovery_point, log_start_offset),
        )

    def truncated(self, log_end_offset: int, batches_end_offset: int) -> LogOffsets:
        """Return the offsets after a truncation to an offset at or below the log end, before which the last batch ends."""
        return replace(
            self,
            log_start_offset=min(self.log_start_offset, log_end_offset),
            log_end_offset=log_end_offset,
            high_watermark=min(self.high_watermark, log_end_offset),
            recovery_point=min(self.recovery_point, batches_end_offset),
            gap_start=batches_end_offset if batches_end_offset < log_end_offset else None,
            checkpointed_start=None
            if self.checkpointed_start is None
            else min(self.checkpointed_start, log_end_offset),
        )

    def restarted(self, offset: int, whole_log_start: int) -> LogOffsets:
        """Return the offsets of a log whose segments are removed, and that goes on at an offset."""
        checkpointed_start = None if self.checkpointed_start is None else whole_log_start
        return LogOffsets(offset, offset, offset, offset, checkpointed_start=checkpointed_start)


@dataclass(frozen=True, slots=True)
class LogView:
    """A log at one moment. The last segment is active, and may have grown beyond ``active_size_bytes`` since."""

    offsets: LogOffsets
    segments: tuple[LogSegment, ...]
    active_size_bytes: int


class ScheduledDeletion(NamedTuple):
    """A file to delete once it is due; ``delete`` deletes it."""

    due_ms: int
    delete: Callable[[], object]


@dataclass(slots=True, eq=False)
class LogState:
    """The parts of a log, and the lock for changes.

    Attributes:
        config: The configuration. Read it once to use several of its values without the lock.
        is_only_replica: Whether the high watermark follows the log end.
        last_flush_ms: When everything was last known to be on disk.
        unflushed_directory: Whether a file of the log was created or renamed since the directory was last flushed.
        is_deleted: Whether the log is deleted: closed, with its directory renamed and its files awaiting deletion.
        restarts_at: Where the log restarts while all its segments are being replaced. Until the new segment exists, no
            file name has this offset.
        current_transactions: The latest unfinished `Transaction` of each producer id in this process.
        failure: What made the log fail: nothing has been written since.
        checkpoint_if_due: Writes them if they were not written for some time.
        truncations: How often the log end has moved back in the view.
        truncations_file: Announces truncations to readers, also in other processes; None outside of a log directory.
        is_truncating: Whether a truncation is removing data: the view is inconsistent meanwhile.
        truncated_to: The first offset that the last truncation removed.
        owner: The process that opened the log; only this process may change it.
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
    scheduled_deletions: list[ScheduledDeletion] = field(default_factory=list)
    current_transactions: WeakValueDictionary[int, object] = field(default_factory=WeakValueDictionary)
    failure: BaseException | None = None
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
    group_commit: GroupCommit = field(default_factory=GroupCommit)
    cleaning: CleaningState = field(default_factory=CleaningState)
    owner: OwningProcess = field(default_factory=OwningProcess)
    encoding: BatchEncoding = field(init=False)

    def __post_init__(self) -> None:
        """Derive the encoding from the configuration."""
        self.encoding = _encoding_of(self.config)

    @property
    def path(self) -> str:
        """The partition's directory."""
        return self.directory.path

    @property
    def offsets(self) -> LogOffsets:
        """The offsets of the log."""
        return self.view.offsets

    def has_been_truncated(self, since: int) -> bool:
        """Return True if the log is being truncated, or was since ``truncations`` had a value."""
        # In this order, a truncation that ends between the two checks is seen.
        return self.is_truncating or self.truncations != since

    def alter_config(self, config: LogConfig) -> None:
        """Replace the configuration by a new object. The log is locked."""
        self.segments.active.alter_config(config)
        self.producers.expiration_ms = config.producer_id_expiration_ms
        self.encoding = _encoding_of(config)
        # Last: an append that was prepared without the lock checks whether this object has changed.
        self.config = config
        self.config_altered()

    def publish(self, offsets: LogOffsets) -> None:
        """Publish new offsets to readers."""
        self._show(self._with_transactions(offsets), self.view.segments)

    def publish_lowered(self, offsets: LogOffsets) -> None:
        """Publish the offsets of a truncation that follows. The producer state is not truncated yet."""
        self._show(offsets, self.view.segments)

    def publish_segments(self, offsets: LogOffsets) -> None:
        """Publish new offsets and segments to readers."""
        self._show(self._with_transactions(offsets), tuple(self.segments.values()))

    def _show(self, offsets: LogOffsets, segments: tuple[LogSegment, ...]) -> None:
        is_truncated = offsets.log_end_offset < self.view.offsets.log_end_offset
        self.view = LogView(offsets, segments, segments[-1].size_bytes)
        # Last: a reader that sees the new number sees the new view.
        self.truncations += is_truncated

    def _with_transactions(self, offsets: LogOffsets) -> LogOffsets:
        producers = self.producers
        producers.on_high_watermark_updated(offsets.high_watermark)
        if producers.first_unstable_offset == offsets.first_unstable_offset:
            return offsets
        return replace(offsets, first_unstable_offset=producers.first_unstable_offset)

    def fail(self, error: BaseException) -> None:
        """Mark the log as failed, if it has not failed before. The caller holds the lock."""
        if self.failure is None:
            self.failure = error

    def writing(self) -> _Writing:
        """Hold the lock for a change, as a context manager. A change that fails midway fails the log.

        Raises:
            LogClosedError: The log is closed.
            LogFailedError: A write failed before.
            LogForkedError: Another process opened it. A thread that does not exist in this process may hold the lock.
        """
        self.owner.check(self.path)
        return _Writing(self)

    def check_open(self) -> None:
        """Raise `LogClosedError` if the log is closed or deleted."""
        if self.is_deleted:
            raise LogClosedError(
                "This log was deleted. Get its replacement with get(), or make one with create().",
                path=self.path,
            )
        if self.is_closed:
            raise LogClosedError("This log is closed. Open its log directory again.", path=self.path)

    def check_writable(self) -> None:
        """Raise an error if the log is closed or has failed."""
        self.check_open()
        if self.failure is not None:
            raise LogFailedError(
                f"A write to this log failed before ({self.failure}), so it accepts no more writes. Close its log "
                f"directory and open it again: acknowledged records are recovered then.",
                path=self.path,
            ) from self.failure


class _Writing:
    """Holds the lock of a log for a change, and marks the log as failed if the change does."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    def __enter__(self) -> None:
        state = self._state
        # An interrupt may arrive just after the lock was taken: only a with statement releases it then.
        with state.lock:
            state.check_writable()
            # Again, for the duration of the change: the lock is reentrant, so this does not wait.
            state.lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        state = self._state
        if error is not None and not isinstance(error, _REFUSALS):
            state.fail(error)
        state.lock.release()


def _encoding_of(config: LogConfig) -> BatchEncoding:
    return BatchEncoding(
        config.compression_codec,
        config.compression_level,
        config.batch_size,
        readable_batch_bytes(config),
    )


def readable_batch_bytes(config: LogConfig) -> int:
    """Return the size of the largest decompressed batch that a log with this configuration writes and reads."""
    return min(
        max(DEFAULT_MAX_DECOMPRESSED_BATCH_BYTES, config.max_message_bytes),
        LARGEST_MAX_DECOMPRESSED_BATCH_BYTES,
    )


def partition_log_of_view(
    state: LogState, view: LogView, truncations_bytes: int, *, with_file_names: bool
) -> PartitionLog:
    """Return an open log as its readers see it at a view: later appends are not visible.

    ``truncations_bytes`` is the size of the directory's truncations file before the view was taken. Only queries about
    transactions need the file names, for which the directory is listed.
    """
    filesystem, directory, offsets = state.filesystem, state.directory, view.offsets
    readers = {segment.base_offset: segment for segment in view.segments}
    base_offsets = tuple(readers)
    ends = dict(zip(base_offsets, (*base_offsets[1:], offsets.log_end_offset), strict=True))

    def open_segment(base_offset: int, file_names: Collection[str] | None, suffix: str) -> SegmentReader:
        if suffix or file_names is None:
            return SegmentReader(filesystem, directory.path, base_offset, None, suffix=suffix)
        reader = readers[base_offset].reader()
        reader.offset_limit = ends[base_offset]
        if base_offset == base_offsets[-1]:
            reader.known_status = replace(reader.status, size_bytes=view.active_size_bytes)
            reader.known_end = SegmentEnd(offsets.log_end_offset, view.active_size_bytes)
        return reader

    names = FileNames()
    if with_file_names:
        names = FileNames(entry.name for entry in filesystem.walk_directory(directory.path))
    root = LogDirectoryFiles(filesystem, directory.root.path)
    # The view is newer than the checkpoint files of the root.
    root.is_own, root.clean_shutdown = True, False
    root.visibility = VisibleCommits(truncations_bytes=truncations_bytes)
    key = directory.topic_partition
    root.recovery_points = {key: offsets.recovery_point}
    root.log_start_offsets = {key: offsets.log_start_offset}
    root.high_watermarks = {key: offsets.high_watermark}
    log = PartitionLog(
        filesystem,
        PartitionDirectory(directory.path, directory.topic, directory.partition, root),
        SegmentSequence(SegmentFiles(base_offsets, names), open_segment),
    )
    log.log_start_offset = offsets.log_start_offset
    log.log_end_offset = offsets.log_end_offset
    return log
