"""The reading half of a log, the same for a log that is open for writing and for one that is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from storage_core.directory.visibility import CommitWatch, look_until_settled
from storage_core.errors import (
    DataLossError,
    LogTruncationError,
    SegmentLogError,
)
from storage_core.log.leader_epoch_cache import end_offset_for, epoch_for_offset
from storage_core.log.log_append import write_pending
from storage_core.log.log_fetch import fetch, fetch_isolation
from storage_core.log.log_read import partition_log_of_view, partition_log_on_disk, read_options, read_records
from storage_core.log.log_records import readable_batch_bytes
from storage_core.log.log_time import OffsetAndTimestamp, offset_for_timestamp
from storage_core.scan.isolation import last_stable_offset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from storage_core.checkpoint import EpochEntry
    from storage_core.directory import PartitionDirectory, PartitionLog
    from storage_core.directory.visibility import Visibility
    from storage_core.filesystem import FileSystem
    from storage_core.log.leader_epoch_cache import EpochEndOffset
    from storage_core.log.log_offsets import LogOffsets
    from storage_core.log.log_state import LogState
    from storage_core.log_config import LogConfig
    from storage_core.segment.log_view import FetchedData

__all__ = ["LogReader"]

_READ_ATTEMPTS: Final = 3

_Answer = TypeVar("_Answer")


class LogReader:
    """What can be asked of a log. Any number of threads may ask while another one writes.

    Of a log directory that was opened read-only, and in a process that was forked from the one that opened it, the log
    is looked up on disk for each answer: it shows what another process has appended since. Its log end is the last
    whole batch, its high watermark that of the last checkpoint.
    """

    def __init__(
        self, filesystem: FileSystem, directory: PartitionDirectory, config: LogConfig, state: LogState | None
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._max_batch_bytes = readable_batch_bytes(config)
        self._state = state
        # Where the next look may begin; a dict that is never changed.
        self._known_commits: Mapping[str, Visibility] = {}

    @property
    def topic(self) -> str:
        """The topic."""
        return self._directory.topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self._directory.partition

    @property
    def path(self) -> str:
        """The partition's directory."""
        return self._directory.path

    @property
    def topic_id(self) -> str | None:
        """The id of the topic; None if there is no ``partition.metadata``."""
        return self._ask_disk(lambda log: log.topic_id)

    @property
    def log_start_offset(self) -> int:
        """The first offset that counts."""
        state = self._live_state
        return self._ask_disk(_log_start_offset) if state is None else state.offsets.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets. What was acknowledged from memory counts, unless the log has failed."""
        state = self._live_state
        return self._ask_disk(_log_end_offset) if state is None else state.next_offset

    @property
    def high_watermark(self) -> int:
        """The offset behind the last record that every replica has."""
        state = self._live_state
        return self._ask_disk(_high_watermark) if state is None else state.offsets.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Up to here every transaction is decided: under ``read_committed`` nothing is read behind it."""
        state = self._live_state
        if state is None:
            return self._ask_disk(lambda log: _last_stable_offset(log, None))
        return state.offsets.last_stable_offset

    @property
    def recovery_point(self) -> int:
        """The first offset that is not known to be on disk."""
        state = self._live_state
        return (
            self._ask_disk(lambda log: log.recovery_point) if state is None else state.offsets.recovery_point
        )

    @property
    def segment_base_offsets(self) -> tuple[int, ...]:
        """The base offset of each segment; the last one is active."""
        state = self._live_state
        if state is None:
            return self._ask_disk(lambda log: tuple(log.segments.base_offsets))
        return tuple(segment.base_offset for segment in state.view.segments)

    @property
    def leader_epochs(self) -> tuple[EpochEntry, ...]:
        """Which offset each leader epoch began with. What waits in memory is written first: it may begin one."""
        state = self._live_state
        if state is None:
            return self._ask_disk(lambda log: log.leader_epochs)
        self._write_pending(state)
        return state.leader_epochs.entries

    def read(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        isolation_level: str = "read_uncommitted",
        max_bytes: int | None = None,
        **options: Any,
    ) -> Iterator[pa.RecordBatch]:
        """Read records, as they stand in the log at this moment.

        Args:
            start_offset: The first offset; the log start if None.
            end_offset: The first offset not wanted any more; the log end if None, or the last stable offset under
                ``read_committed``, behind which nothing is read.
            isolation_level: ``read_uncommitted`` or ``read_committed``.
            max_bytes: End with the record batch that reaches so many bytes.
            options: Those of `read_table` that concern records: ``columns``, ``where``, ``include_headers`` ...

        Raises:
            OffsetOutOfRangeError: The start lies below the log start or behind the log end.
            OptionError: An option is unknown or wrong.
            LogTruncationError: The log was truncated below the end of the read, or deleted, since the read began; while
                the batches are taken, too. None was given out that is of another history than those before it.
            SegmentLogError: What is asked for cannot be read.
        """
        parsed = read_options(self.path, isolation_level, options, self._max_batch_bytes)
        is_committed = parsed.isolation_level == "read_committed"

        def plan(log: PartitionLog, offsets: LogOffsets | None) -> Iterator[pa.RecordBatch]:
            limit_offset = _last_stable_offset(log, offsets) if is_committed else log.log_end_offset
            return read_records(
                self._filesystem, log, start_offset, end_offset, limit_offset, parsed, max_bytes
            )

        return self._ask(plan, with_file_names=is_committed)

    def fetch(
        self,
        start_offset: int,
        max_size_bytes: int,
        *,
        isolation: Literal["log_end", "high_watermark", "committed"] | None = None,
        isolation_level: Literal["read_uncommitted", "read_committed"] | None = None,
        min_one_message: bool = True,
    ) -> FetchedData:
        """Read the bytes of batches, as a replica or a consumer fetches them: from one segment at a time.

        Args:
            start_offset: The batch that holds it comes first.
            max_size_bytes: So many bytes at the most; the last batch may be cut off.
            isolation: What limits the read: the log end (also if None), the high watermark or the last stable offset.
                With ``committed``, the aborted transactions among the batches come with them.
            isolation_level: The same as a consumer says it: ``read_uncommitted`` reads up to the high watermark,
                ``read_committed`` is ``committed``.
            min_one_message: Whether the first batch comes as a whole, however large it is.

        Raises:
            OffsetOutOfRangeError: The start lies below the log start or behind the log end.
            OptionError: There is no such isolation, or both are given.
        """
        limit = fetch_isolation(isolation, isolation_level)

        def fetch_from(log: PartitionLog, offsets: LogOffsets | None) -> FetchedData:
            limit_offset = log.log_end_offset
            if limit == "high_watermark":
                limit_offset = _high_watermark(log)
            elif limit == "committed":
                limit_offset = _last_stable_offset(log, offsets)
            return fetch(
                log,
                start_offset,
                max_size_bytes,
                limit_offset,
                min_one_message=min_one_message,
                is_committed=limit == "committed",
            )

        return self._ask(fetch_from, with_file_names=limit == "committed")

    def offset_for_timestamp(self, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """Find the first record that is at least so young, control records included.

        Args:
            timestamp_ms: Milliseconds since 1970; or -1: the log end, -2 and -4: the log start, -3: the first
                record with the largest timestamp, -5: the end of what another tier holds, which is nothing.

        Returns:
            Its offset, timestamp and leader epoch; None if there is no such record.
        """
        return self._ask(
            lambda log, offsets: offset_for_timestamp(
                log, timestamp_ms, log.leader_epochs if offsets is None else self.leader_epochs
            )
        )

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset:
        """The epoch up to which a replica whose last one is ``leader_epoch`` agrees with this log, and where it ends.

        A replica truncates to there, or to the end of its own records of that epoch if that is lower.

        Returns:
            The epoch and the offset behind its last record; -1 and -1 if the epoch is above all that are known.
        """
        # The end first: if an epoch begins meanwhile, a replica is told too little, never too much.
        log_end_offset = self.log_end_offset
        return end_offset_for(self.leader_epochs, leader_epoch, log_end_offset)

    def leader_epoch_at(self, offset: int) -> int | None:
        """The leader epoch under which an offset was, or will be, written; None before all epochs that are known."""
        return epoch_for_offset(self.leader_epochs, offset)

    @property
    def _live_state(self) -> LogState | None:
        """The state, if this process opened the log. What a forked process has of it grows old, and its locks may be held."""
        state = self._state
        return state if state is not None and state.owner.is_this else None

    def _ask_disk(self, question: Callable[[PartitionLog], _Answer]) -> _Answer:
        """Ask the log as it stands on disk now, with all of a job's rows or none of them."""
        watch = CommitWatch(self._filesystem, self._known_commits)
        answer = look_until_settled(
            watch,
            lambda watch: question(
                partition_log_on_disk(self._filesystem, self._directory, watch, self._max_batch_bytes)
            ),
        )
        self._known_commits = watch.known
        return answer

    def _ask(
        self, question: Callable[[PartitionLog, LogOffsets | None], _Answer], *, with_file_names: bool = False
    ) -> _Answer:
        """Ask the log as it is now; again if meanwhile segments were removed that the answer needs, or it was truncated."""
        state = self._live_state
        for attempts_left in reversed(range(_READ_ATTEMPTS)):
            try:
                if state is None:
                    return self._ask_disk(lambda log: question(log, None))
                return self._ask_state(state, question, with_file_names=with_file_names)
            except DataLossError:
                if not attempts_left:
                    raise
                if state is not None:
                    # Whoever takes segments away shows what is left only at the end of it.
                    with state.lock:
                        pass
        raise AssertionError

    def _ask_state(
        self,
        state: LogState,
        question: Callable[[PartitionLog, LogOffsets | None], _Answer],
        *,
        with_file_names: bool,
    ) -> _Answer:
        state.check_open()
        self._write_pending(state)
        # Before the view: what was noted by now shows in it, or its end will be noted.
        truncations_file, truncations = state.truncations_file, state.truncations
        truncations_bytes = 0 if truncations_file is None else truncations_file.size_bytes
        if state.is_truncating:
            # Files and view do not agree, and the producers with neither.
            raise self._truncated(state)
        view = state.view
        try:
            log = partition_log_of_view(
                self._filesystem, self._directory, view, truncations_bytes, with_file_names=with_file_names
            )
            answer = question(log, view.offsets)
        except SegmentLogError as error:
            # What is cut off while it is looked at may look like anything.
            if not state.has_been_truncated(truncations):
                raise
            raise self._truncated(state) from error
        if state.truncations != truncations:
            raise self._truncated(state)
        return answer

    def _truncated(self, state: LogState) -> LogTruncationError:
        # Nothing is there to be read again of a log that was deleted.
        state.check_open()
        # It may have grown again since then.
        offset = state.truncated_to
        return LogTruncationError(
            f"Expected the log to stay as it was while it was looked at, found it truncated to offset {offset}. "
            "Read again.",
            path=self.path,
            offset=offset,
        )

    @staticmethod
    def _write_pending(state: LogState) -> None:
        # Reads see what was acknowledged from memory: written here, or by a thread that is at it and is waited for.
        if state.pending.batches:
            with state.lock:
                # Lost, if the log has failed meanwhile.
                if state.pending.batches:
                    with state.writing():
                        write_pending(state)


def _log_start_offset(log: PartitionLog) -> int:
    return log.log_start_offset


def _log_end_offset(log: PartitionLog) -> int:
    return log.log_end_offset


def _high_watermark(log: PartitionLog) -> int:
    return log.log_end_offset if log.high_watermark is None else log.high_watermark


def _last_stable_offset(log: PartitionLog, offsets: LogOffsets | None) -> int:
    return last_stable_offset(log, _high_watermark(log)) if offsets is None else offsets.last_stable_offset
