"""The reading half of a log, the same for a log that is open for writing and for one that is not.

The appending half of a log: records, batches of producers and of leaders, transactions.

One partition's log (Kafka's ``UnifiedLog``): append, read, roll, truncate, delete records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import pyarrow as pa

from storage_core.directory.visibility import CommitWatch, read_consistently
from storage_core.errors import (
    DataLossError,
    LogReadOnlyError,
    LogTruncationError,
    OptionError,
    SegmentLogError,
)
from storage_core.log.append import (
    AppendInfo,
    append_client_batches,
    append_marker,
    append_records,
    append_replicated,
    assign_epoch_start_offset,
    write_pending,
)
from storage_core.log.cleaner_config import CleanerConfig
from storage_core.log.leader_epoch_cache import end_offset_for, epoch_for_offset
from storage_core.log.local_log import (
    delete_due_files,
    delete_records,
    flush_appended,
    flush_up_to,
    roll,
    truncate_fully_and_start_at,
    truncate_to,
)
from storage_core.log.log_cleaner import LogCleaner
from storage_core.log.log_read import (
    OffsetAndTimestamp,
    fetch,
    fetch_isolation,
    offset_for_timestamp,
    partition_log_of_view,
    partition_log_on_disk,
    read_options,
    read_records,
)
from storage_core.log.log_records import readable_batch_bytes
from storage_core.log.log_root import close_log
from storage_core.log.log_validator import batches_up_to_epoch, check_origin, validate_follower_append
from storage_core.log.producer_append_info import check_producer_sequence
from storage_core.log.retention import apply_retention
from storage_core.log.transaction import (
    OpenTransaction,
    Transaction,
    abort_transaction,
    begin_transaction,
    open_transactions,
)
from storage_core.log_config import altered_config
from storage_core.record.record_batches import RecordBatches
from storage_core.scan.isolation import last_stable_offset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from storage_core.checkpoint import EpochEntry
    from storage_core.directory import PartitionDirectory, PartitionLog
    from storage_core.directory.visibility import Visibility
    from storage_core.filesystem import BytesLike, FileSystem
    from storage_core.log.cleaner_config import CleanerStatistics
    from storage_core.log.leader_epoch_cache import EpochEndOffset
    from storage_core.log.log_state import LogOffsets, LogState
    from storage_core.log.log_validator import AppendOrigin
    from storage_core.log_config import LogConfig
    from storage_core.record.record_batches import ProducerSequence
    from storage_core.segment.file_records import FetchedData

__all__ = ["Log", "LogAppender", "LogReader"]


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
        answer = read_consistently(
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


_ACKS: Final = (0, 1, -1, "all")


class LogAppender(LogReader):
    """What can be appended to a log. Any number of threads may append; one at a time does."""

    def __init__(
        self, filesystem: FileSystem, directory: PartitionDirectory, config: LogConfig, state: LogState | None
    ) -> None:
        super().__init__(filesystem, directory, config, state)
        self._config = config

    @property
    def config(self) -> LogConfig:
        """The configuration: the one that it was opened with, or what `Log.alter_config` has made of it."""
        return self._config if self._state is None else self._state.config

    def append(
        self,
        records: pa.Table | pa.RecordBatch,
        *,
        acks: Literal[0, 1, -1, "all"] = 1,
        flush: bool = False,
        leader_epoch: int | None = None,
        producer: ProducerSequence | None = None,
        is_transactional: bool = False,
        origin: AppendOrigin = "client",
    ) -> AppendInfo:
        """Append records at the log end.

        With a producer, records that are appended once more are told by their numbers: while their batches are among
        the producer's last five, nothing is appended and the answer says where they are. Records of an append that
        became several batches count as repeated only if all of them do. After a reopen, the last batch alone is known.

        Args:
            records: Columns ``value`` and, if wanted, ``key``, ``timestamp`` and ``headers``.
            acks: What has happened when this returns. 0: the records are in memory; 1: the operating system has
                them; -1 or "all": they are on disk. Records of a producer are never left in memory.
            flush: The same as ``acks="all"``.
            leader_epoch: Under which they are written; the latest one of the log, or 0, if None.
            producer: Who appends them, in which epoch, and the number of the first record. The others are numbered on,
                behind 2,147,483,647 from 0.
            is_transactional: Whether they belong to a transaction, which `end_transaction` ends. `transaction` does
                all of that by itself.
            origin: Who appends them. A "coordinator" has no sequence numbers: that of the producer is -1, only its
                epoch and its transaction are checked, and repetitions are not told.

        Raises:
            OutOfOrderSequenceError: The producer's records neither follow its last ones nor repeat them as a whole.
            InvalidProducerEpochError: A newer epoch of the producer is known.
            InvalidTxnStateError: The producer has a transaction open, and these records belong to none.
            AppendError: The records are refused, as in all of these cases, and nothing of them is written.
                ``record_errors`` names those that are to blame.
            NotWritableError: The log is closed, read-only, or has failed before.
            StorageError: They could not be written, or not forced to disk: the log has failed.
        """
        if acks not in _ACKS:
            raise OptionError(f"Expected acks of 0, 1, -1 or 'all', found {acks!r}.")
        check_origin(origin)
        if producer is not None:
            check_producer_sequence(producer, has_sequence=origin == "client")
        state = self._writable()
        is_flushed = flush or acks in (-1, "all")
        info = append_records(
            state,
            records,
            leader_epoch=leader_epoch,
            is_pending=acks == 0 and not is_flushed,
            producer=producer,
            is_transactional=is_transactional,
        )
        if is_flushed:
            flush_appended(state)
        return info

    def append_as_leader(
        self,
        batches: BytesLike | RecordBatches,
        *,
        flush: bool = False,
        leader_epoch: int | None = None,
        origin: AppendOrigin = "client",
    ) -> AppendInfo:
        """Append batches that a producer or a coordinator made: the log gives them offsets and a leader epoch.

        They keep their bytes, unless ``compression.type`` or ``message.timestamp.type`` say otherwise. Several, of at most
        ``segment.bytes`` together, are appended all or not at all; they are duplicates only if every one is.

        Args:
            batches: Batches of format v2 that begin at offset 0 each; of bytes, an incomplete last one is left out.
            flush: Whether they are on disk when this returns.
            leader_epoch: Under which they are written; the latest one of the log, or 0, if None.
            origin: Who made them. A "coordinator" may leave out sequence numbers, which are not looked at, and may write
                markers that end transactions. (What a leader sends its replicas is for `append_batches`.)

        Raises:
            CorruptRecordError: A batch's CRC or length is wrong; nothing is written.
            AppendError: The batches are refused, for the same reasons as in `append` or because their origin may not
                write such, and nothing of them is written. ``record_errors`` names the records that are to blame.
            NotWritableError: The log is closed, read-only, or has failed before.
            StorageError: They could not be written, or not forced to disk: the log has failed.
        """
        state = self._writable()
        if not isinstance(batches, RecordBatches):
            batches = RecordBatches.parse(batches)
        info = append_client_batches(state, batches, leader_epoch=leader_epoch, origin=origin)
        if flush:
            flush_appended(state)
        return info

    def append_batches(
        self, batches: BytesLike | RecordBatches, *, flush: bool = False, leader_epoch: int | None = None
    ) -> AppendInfo:
        """Append batches as a replica does: they keep their offsets and leader epochs.

        From then on the high watermark follows `update_high_watermark` alone.

        Args:
            batches: Batches of any format; of bytes, an incomplete last batch is left out.
            flush: Whether they are on disk when this returns.
            leader_epoch: Of the leader that they were asked of. From the first batch of a later epoch on, they are left
                out: by then it may not have been the leader any more (KAFKA-18723).

        Raises:
            CorruptRecordError: A batch is damaged; nothing is written.
            AppendError: The batches are refused, and nothing of them is written.
            NotWritableError: The log is closed, read-only, or has failed before.
            StorageError: They could not be written, or not forced to disk: the log has failed.
        """
        state = self._writable()
        if not isinstance(batches, RecordBatches):
            batches = RecordBatches.parse(batches, lowest_offset=state.next_offset)
        if leader_epoch is not None:
            batches = batches_up_to_epoch(batches, leader_epoch)
        with state.writing():
            write_pending(state)
            validate_follower_append(batches, state.config, state.offsets.log_end_offset, path=self.path)
            info = append_replicated(state, batches, state.clock.now_ms())
        if flush:
            flush_appended(state)
        return info

    def assign_epoch_start_offset(self, leader_epoch: int) -> int:
        """Begin a leader epoch at the log end, before its first batch, as a broker does on becoming the leader.

        Appends without an epoch of their own are written under it, those with an older one are refused, also after a
        crash: it is on disk when this returns. A truncation to where it begins or below takes it back, and so does a
        crash that takes unflushed records below it.

        Args:
            leader_epoch: At least the latest one that the log has seen. For that one, nothing happens.

        Returns:
            The offset that the epoch begins with.

        Raises:
            InvalidRecordError: The log has seen a higher epoch.
            NotWritableError: The log is closed, read-only, or has failed before.
            StorageError: ``leader-epoch-checkpoint`` could not be written: the log has failed.
        """
        state = self._writable()
        with state.writing():
            return assign_epoch_start_offset(state, leader_epoch)

    def transaction(self, producer_id: int | None = None, *, flush: bool = False) -> Transaction:
        """Begin a transaction: a context manager that commits at its end, and aborts on an exception.

        Until then, and after a crash until `abort_transaction` or the producer's next transaction, readers under
        ``read_committed`` stop in front of it. A transaction is one log's: over several logs, each ends by itself.

        Args:
            producer_id: Who writes it. What this producer has left open is aborted, and an older `Transaction` of it
                takes no more records. If None, an id that no transaction uses, from 2^62 on.
            flush: Whether all of it is on disk when it has ended.
        """
        return begin_transaction(self._writable(), producer_id, flush=flush)

    def open_transactions(self) -> tuple[OpenTransaction, ...]:
        """The transactions that have no marker yet, the oldest first."""
        return open_transactions(self._writable())

    def abort_transaction(self, producer_id: int, *, flush: bool = False) -> AppendInfo:
        """Abort a transaction whose producer is gone, and fence the producer.

        Returns:
            Where the marker stands.

        Raises:
            InvalidTxnStateError: None of this producer is open.
        """
        state = self._writable()
        info = abort_transaction(state, producer_id)
        if flush:
            flush_appended(state)
        return info

    def end_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        is_abort: bool,
        coordinator_epoch: int = 0,
        transaction_version: int = 1,
        flush: bool = False,
    ) -> AppendInfo:
        """Append the marker that ends a transaction, as a transaction coordinator has it done.

        Args:
            producer_id: The producer. If it has no transaction open, its epoch alone changes.
            producer_epoch: Its epoch from now on: older ones are refused.
            is_abort: Whether its records do not count.
            coordinator_epoch: Of the coordinator: markers of older ones are refused from now on.
            transaction_version: Of the protocol; from 2 on, the epoch has to be above that of the records.
            flush: Whether everything is on disk when this returns.

        Returns:
            Where the marker stands.

        Raises:
            InvalidProducerEpochError: The epoch is too low.
            TransactionCoordinatorFencedError: A newer coordinator has written a marker for the producer.
        """
        state = self._writable()
        with state.writing():
            info = append_marker(
                state,
                producer_id,
                producer_epoch,
                is_abort=is_abort,
                coordinator_epoch=coordinator_epoch,
                transaction_version=transaction_version,
            )
        if flush:
            flush_appended(state)
        return info

    def _writable(self) -> LogState:
        if self._state is None:
            raise LogReadOnlyError(
                "This log directory was opened read-only. Open it without read_only to write.", path=self.path
            )
        self._state.owner.check(self.path)
        return self._state


class Log(LogAppender):
    """One partition's log, as a `LogDirectory` gives it. One thread at a time writes, any number read meanwhile.

    A log that has failed still reads what was acknowledged.
    """

    def roll(self) -> None:
        """Close the active segment, which is on disk then, and begin another at the log end."""
        state = self._writable()
        with state.writing():
            write_pending(state)
            roll(state)
            delete_due_files(state)

    def flush(self) -> None:
        """Force everything to disk that was appended.

        Raises:
            StorageError: That failed. It is never tried again: the log has failed.
        """
        state = self._writable()
        with state.writing():
            write_pending(state)
            flush_up_to(state, state.offsets.log_end_offset)
            delete_due_files(state)

    def truncate_to(self, offset: int) -> bool:
        """Remove all records from an offset on: the log ends there exactly.

        The batch that holds the offset goes as a whole, with its records below the offset.

        Returns:
            Whether there was anything to remove.
        """
        state = self._writable()
        with state.writing():
            write_pending(state)
            return truncate_to(state, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything: the log begins and ends at an offset."""
        state = self._writable()
        with state.writing():
            write_pending(state)
            truncate_fully_and_start_at(state, offset)

    def delete_records(self, before_offset: int) -> int:
        """Delete the records below an offset; -1 stands for the high watermark.

        Returns:
            The log start offset, which is lower than asked for never, and higher if it was before.

        Raises:
            OffsetOutOfRangeError: The offset is above the high watermark.
        """
        state = self._writable()
        with state.writing():
            write_pending(state)
            return delete_records(state, before_offset)

    def apply_retention(self, now_ms: int | None = None) -> tuple[int, ...]:
        """Delete the old segments that the configuration does not keep, as ``cleanup.policy`` says.

        Below the log start offset: always. With the word delete: while ``retention.bytes`` are left without them, and
        while their youngest record is older than ``retention.ms``. What not every replica has is kept.

        Args:
            now_ms: The time; the clock's if None.

        Returns:
            The base offsets of the segments that were deleted. The log starts behind them, also after a crash.
        """
        state = self._writable()
        with state.writing():
            write_pending(state)
            return apply_retention(state, state.clock.now_ms() if now_ms is None else now_ms)

    def clean(
        self, config: CleanerConfig | None = None, *, now_ms: int | None = None
    ) -> CleanerStatistics | None:
        """Drop the records of closed segments that a later record with the same key supersedes (compaction).

        One pass: as many keys as fit the memory for them. Whatever the dirty ratio is, what ``min.compaction.lag.ms``
        protects stays, and so does what belongs to an undecided transaction. Appends and reads go on meanwhile.
        Then retention is applied, as ``cleanup.policy`` says.

        Args:
            config: How; Kafka's defaults if None.
            now_ms: The time; the clock's if None.

        Returns:
            None if there was nothing to clean, or the log was truncated or closed meanwhile.

        Raises:
            OptionError: ``cleanup.policy`` does not have the word compact.
            CorruptError: A segment holds bytes that are no batches; the log is as it was, or cleaned in front of them.
            StorageError: The file system refused.
        """
        state = self._writable()
        return LogCleaner(config or CleanerConfig()).clean_alone(state, now_ms)

    def alter_config(self, config: LogConfig | Mapping[str, Any]) -> LogConfig:
        """Go on with another configuration, at once: whatever begins later, in any thread, has all of it.

        What is open keeps what it was begun with, as in a broker: ``index.interval.bytes``, ``segment.index.bytes``,
        ``segment.jitter.ms`` and ``preallocate`` count from the next segment on, ``file.delete.delay.ms`` for what is
        deleted from now on. A cleaning that is under way gives up if the log is not to be compacted any more.

        Like a topic's configuration in Kafka, it is kept in no file of the log directory: give it again when you open that.

        Args:
            config: The keys that change, by Kafka's names, as ``{"retention.ms": 3_600_000}``; or all of it.

        Returns:
            The configuration that it has now.

        Raises:
            OptionError: There is no such key, or a value is wrong; nothing has changed.
            NotWritableError: The log is closed, read-only, or has failed before.
        """
        state = self._writable()
        with state.writing():
            before, altered = state.config, altered_config(state.config, config)
            write_pending(state)
            # First: nothing is written that is too large to be read.
            self._max_batch_bytes = max(self._max_batch_bytes, readable_batch_bytes(altered))
            state.alter_config(altered)
        if before.is_compacted and not altered.is_compacted:
            # Without the lock, which it takes at its end.
            state.cleaning.interrupt()
        return altered

    def update_high_watermark(self, high_watermark: int) -> int:
        """Say how far every replica is; from then on appends do not move it.

        Returns:
            The high watermark, within the bounds of the log.
        """
        state = self._writable()
        with state.writing():
            write_pending(state)
            state.is_only_replica = False
            state.publish(state.offsets.with_high_watermark(high_watermark))
            return state.offsets.high_watermark

    def close(self) -> None:
        """Close this log alone, with everything on disk. Its log directory stays open; a second call does nothing.

        Raises:
            LogForkedError: Another process opened it, from which this one was forked.
            StorageError: That failed: the log is recovered when its log directory is opened the next time.
        """
        if self._state is not None:
            close_log(self._state)

    def __repr__(self) -> str:
        return f"Log({self.path!r})"
