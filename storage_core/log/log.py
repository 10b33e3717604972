"""One partition's log (Kafka's ``UnifiedLog``): the class that users see."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from storage_core.errors import LogReadOnlyError, OptionError
from storage_core.log.append import (
    AppendInfo,
    append_client_batches,
    append_marker,
    append_records,
    append_replicated,
    assign_epoch_start_offset,
)
from storage_core.log.leader_epoch_cache import EpochEndOffset, end_offset_for, epoch_for_offset
from storage_core.log.local_log import (
    close_log,
    delete_due_files,
    delete_records,
    flush_appended,
    flush_up_to,
    roll,
    truncate_fully_and_start_at,
    truncate_to,
)
from storage_core.log.log_cleaner import CleanerConfig, CleanerStatistics, LogCleaner
from storage_core.log.log_read import (
    LogQueries,
    OffsetAndTimestamp,
    fetch,
    high_watermark_of,
    last_stable_offset_of,
    offset_for_timestamp,
    options_of_read,
    read_range,
)
from storage_core.log.log_state import LogState, readable_batch_bytes
from storage_core.log.log_validator import (
    AppendOrigin,
    batches_up_to_epoch,
    check_origin,
    validate_follower_append,
)
from storage_core.log.producer_append_info import check_producer_sequence
from storage_core.log.retention import apply_retention
from storage_core.log.transaction import (
    OpenTransaction,
    Transaction,
    abort_transaction,
    begin_transaction,
    open_transactions,
)
from storage_core.log_config import LogConfig, altered_config
from storage_core.record.record_batches import ProducerSequence, RecordBatches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from storage_core.checkpoint import EpochEntry
    from storage_core.directory import PartitionDirectory
    from storage_core.filesystem import BytesLike, FileSystem
    from storage_core.log.log_read import FetchedData


_ACKS: Final = (0, 1, -1, "all")


class Log:
    """One partition's log, which a `LogDirectory` returns. Any thread may read while one thread at a time writes.

    A log in a directory that was opened read-only, or that a forked process inherited, is read from disk for each call,
    so it shows what another process has appended since. Its log end is then the end of the last complete batch, and its
    high watermark the checkpointed one. A log that has failed still reads what was acknowledged.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        directory: PartitionDirectory,
        config: LogConfig,
        state: LogState | None,
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._config = config
        self._state = state
        self._queries = LogQueries(filesystem, directory, state, readable_batch_bytes(config))

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
    def config(self) -> LogConfig:
        """The current configuration, including the changes made by `alter_config`."""
        return self._config if self._state is None else self._state.config

    @property
    def topic_id(self) -> str | None:
        """The topic's id, or None without a ``partition.metadata`` file."""
        return self._queries.ask_disk(lambda log: log.topic_id)

    @property
    def log_start_offset(self) -> int:
        """The first offset that is not deleted."""
        return self._queries.ask_either(
            lambda state: state.offsets.log_start_offset, lambda log: log.log_start_offset
        )

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self._queries.ask_either(
            lambda state: state.offsets.log_end_offset, lambda log: log.log_end_offset
        )

    @property
    def high_watermark(self) -> int:
        """The offset after the last record that every replica has."""
        return self._queries.ask_either(lambda state: state.offsets.high_watermark, high_watermark_of)

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction is decided: ``read_committed`` reads no further."""
        return self._queries.ask_either(lambda state: state.offsets.last_stable_offset, last_stable_offset_of)

    @property
    def recovery_point(self) -> int:
        """The first offset that is not known to be on disk."""
        return self._queries.ask_either(
            lambda state: state.offsets.recovery_point, lambda log: log.recovery_point
        )

    @property
    def segment_base_offsets(self) -> tuple[int, ...]:
        """The base offset of each segment. The last segment is active."""
        return self._queries.ask_either(
            lambda state: tuple(segment.base_offset for segment in state.view.segments),
            lambda log: tuple(log.segments.base_offsets),
        )

    @property
    def leader_epochs(self) -> tuple[EpochEntry, ...]:
        """The start offset of each leader epoch."""
        return self._queries.ask_either(
            lambda state: state.leader_epochs.entries, lambda log: log.leader_epochs
        )

    def read(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        isolation_level: str = "read_uncommitted",
        max_bytes: int | None = None,
        **options: Any,
    ) -> Iterator[pa.RecordBatch]:
        """Read records as of now.

        Args:
            start_offset: The first offset; the log start if None.
            end_offset: The offset at which to stop. If None, the log end, or the last stable offset under
                ``read_committed``, which never reads beyond it.
            isolation_level: ``read_uncommitted`` or ``read_committed``.
            max_bytes: Stop after the record batch that reaches this many bytes.
            options: The options of `read_table` that concern records: ``columns``, ``where``, ``include_headers`` ...

        Raises:
            OffsetOutOfRangeError: The start is below the log start or beyond the log end.
            OptionError: An option is unknown or invalid.
            LogTruncationError: The log was truncated below the end of the read, or deleted, after the read began. This
                may also be raised while the batches are consumed. Batches already returned are consistent.
            SegmentLogError: The log cannot be read.
        """
        parsed = options_of_read(self.path, isolation_level, options, self._queries.max_batch_bytes)
        return self._queries.ask(
            partial(
                read_range,
                filesystem=self._filesystem,
                start_offset=start_offset,
                end_offset=end_offset,
                options=parsed,
                max_bytes=max_bytes,
            ),
            with_file_names=parsed.isolation_level == "read_committed",
        )

    def fetch(
        self,
        start_offset: int,
        max_size_bytes: int,
        *,
        isolation_level: Literal["read_uncommitted", "read_committed"] | None = None,
        min_one_message: bool = True,
    ) -> FetchedData:
        """Read the bytes of batches as a replica or a consumer fetches them, from one segment at a time.

        Args:
            start_offset: The batch that holds this offset comes first.
            max_size_bytes: Return at most this many bytes; the last batch may be cut off.
            isolation_level: How far a consumer reads: up to the high watermark (``read_uncommitted``), or up to the
                last stable offset (``read_committed``), which also returns the aborted transactions among the batches.
                If None, up to the log end, as a replica.
            min_one_message: Whether the first batch is returned in full, however large it is.

        Raises:
            OffsetOutOfRangeError: The start is below the log start or beyond the log end.
            OptionError: The isolation level is unknown.
        """
        return self._queries.ask(
            partial(
                fetch,
                start_offset=start_offset,
                max_size_bytes=max_size_bytes,
                isolation_level=isolation_level,
                min_one_message=min_one_message,
            ),
            with_file_names=isolation_level == "read_committed",
        )

    def offset_for_timestamp(self, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """Find the first record whose timestamp is at least the given one, control records included.

        Args:
            timestamp_ms: Milliseconds since 1970; or -1: the log end, -2 and -4: the log start, -3: the first
                record with the largest timestamp, -5: the end of the tiered part of the log, which is always empty.

        Returns:
            Its offset, timestamp and leader epoch; None if there is no such record.
        """
        return self._queries.ask(
            lambda log, offsets: offset_for_timestamp(
                log, timestamp_ms, log.leader_epochs if offsets is None else self.leader_epochs
            )
        )

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset:
        """Find the latest epoch that a replica at ``leader_epoch`` shares with this log, and where that epoch ends.

        A replica truncates to this offset, or to the end of its own records of that epoch if that is lower.

        Returns:
            The epoch and the offset after its last record; -1 and -1 if ``leader_epoch`` is above all known epochs.
        """
        # The end is read first: if an epoch begins meanwhile, the answer is too low, which is safe.
        log_end_offset = self.log_end_offset
        return end_offset_for(self.leader_epochs, leader_epoch, log_end_offset)

    def leader_epoch_at(self, offset: int) -> int | None:
        """Find the leader epoch of an offset, which may be one that is not written yet.

        Returns:
            The epoch, or None before all known epochs.
        """
        return epoch_for_offset(self.leader_epochs, offset)

    def append(
        self,
        records: pa.Table | pa.RecordBatch,
        *,
        acks: Literal[0, 1, -1, "all"] = 1,
        leader_epoch: int | None = None,
        producer: ProducerSequence | None = None,
        is_transactional: bool = False,
        origin: AppendOrigin = "client",
    ) -> AppendInfo:
        """Append records at the log end.

        With a producer, a repeated append is recognised by its sequence numbers: while its batches are among the
        producer's last five, nothing is appended and the result says where the records are. An append that became
        several batches is a duplicate only if every batch is. After a reopen, only the last batch is known.

        Args:
            records: Columns ``value`` and, if wanted, ``key``, ``timestamp`` and ``headers``.
            acks: Where the records are when this returns. 1: written to the operating system; -1 or "all": on disk. 0 is
                the same as 1, but the result has no offsets (-1), as a producer with ``acks=0`` learns none.
            leader_epoch: The leader epoch of the batches; if None, the log's latest one, or 0.
            producer: The producer, its epoch, and the sequence number of the first record. After 2,147,483,647, the
                numbers continue at 0.
            is_transactional: Whether the records belong to a transaction, which `end_transaction` ends. `transaction`
                does all of this for you.
            origin: The kind of writer. A "coordinator" has no sequence numbers: the producer's is -1, only its epoch
                and its transaction are checked, and duplicates are not recognised.

        Raises:
            OutOfOrderSequenceError: The producer's records neither follow its last ones nor repeat them entirely.
            InvalidProducerEpochError: A newer epoch of the producer is known.
            InvalidTxnStateError: The producer has an open transaction, and these records belong to none.
            AppendError: The records are rejected, as in all of these cases, and none is written.
                ``record_errors`` names the invalid ones.
            NotWritableError: The log is closed, read-only, or has failed before.
            StorageError: The records could not be written or flushed: the log has failed.
        """
        if acks not in _ACKS:
            raise OptionError(f"Expected acks of 0, 1, -1 or 'all', found {acks!r}.")
        check_origin(origin)
        if producer is not None:
            check_producer_sequence(producer, has_sequence=origin == "client")
        state = self._writable()
        info = append_records(
            state,
            records,
            leader_epoch=leader_epoch,
            producer=producer,
            is_transactional=is_transactional,
        )
        if acks in (-1, "all"):
            flush_appended(state)
        return info if acks else info.without_offsets()

    def append_as_leader(
        self,
        batches: BytesLike | RecordBatches,
        *,
        flush: bool = False,
        leader_epoch: int | None = None,
        origin: AppendOrigin = "client",
    ) -> AppendInfo:
        """Append batches of a producer or a coordinator: the log assigns their offsets and leader epoch.

        Batches keep their bytes, unless ``compression.type`` or ``message.timestamp.type`` requires otherwise. Several
        batches, together at most ``segment.bytes``, are appended all or none; they are duplicates only if all are.

        Args:
            batches: Batches of format v2, each with base offset 0; an incomplete last batch in bytes is ignored.
            flush: Whether they are on disk when this returns.
            leader_epoch: The leader epoch of the batches; if None, the log's latest one, or 0.
            origin: The kind of writer. A "coordinator" may omit sequence numbers, which are not checked, and may write
                markers that end transactions. (Use `append_batches` for what a leader sends its replicas.)

        Raises:
            CorruptRecordError: A batch's CRC or length is wrong; nothing is written.
            AppendError: The batches are rejected, for the same reasons as in `append` or because their origin may not
                write them, and none is written. ``record_errors`` names the invalid records.
            NotWritableError: The log is closed, read-only, or has failed before.
            StorageError: The batches could not be written or flushed: the log has failed.
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

        From then on, only `update_high_watermark` moves the high watermark.

        Args:
            batches: Batches of any format; an incomplete last batch in bytes is ignored.
            flush: Whether they are on disk when this returns.
            leader_epoch: The epoch of the leader they were fetched from. The first batch of a later epoch, and all
                after it, are ignored: the sender may no longer have been the leader (KAFKA-18723).

        Raises:
            CorruptRecordError: A batch is damaged; nothing is written.
            AppendError: The batches are rejected, and none is written.
            NotWritableError: The log is closed, read-only, or has failed before.
            StorageError: The batches could not be written or flushed: the log has failed.
        """
        state = self._writable()
        if not isinstance(batches, RecordBatches):
            batches = RecordBatches.parse(batches, lowest_offset=state.offsets.log_end_offset)
        if leader_epoch is not None:
            batches = batches_up_to_epoch(batches, leader_epoch)
        with state.writing():
            validate_follower_append(batches, state.config, state.offsets.log_end_offset, path=self.path)
            info = append_replicated(state, batches, state.clock.now_ms())
        if flush:
            flush_appended(state)
        return info

    def assign_epoch_start_offset(self, leader_epoch: int) -> int:
        """Begin a leader epoch at the log end, before its first batch, as a broker does on becoming the leader.

        Later appends without an explicit epoch use it, and appends with an older one are rejected, also after a crash:
        it is on disk when this returns. A truncation to its start offset or below removes it again, and so does a crash
        that loses unflushed records below it.

        Args:
            leader_epoch: At least the log's latest epoch; for the latest one, nothing happens.

        Returns:
            The start offset of the epoch.

        Raises:
            InvalidRecordError: The log has seen a higher epoch.
            NotWritableError: The log is closed, read-only, or has failed before.
            StorageError: ``leader-epoch-checkpoint`` could not be written: the log has failed.
        """
        state = self._writable()
        with state.writing():
            return assign_epoch_start_offset(state, leader_epoch)

    def transaction(self, producer_id: int | None = None, *, flush: bool = False) -> Transaction:
        """Begin a transaction: a context manager that commits on exit, and aborts on an exception.

        Until it ends, ``read_committed`` readers stop before it; after a crash, until `abort_transaction` or the
        producer's next transaction. A transaction belongs to one log: several logs have separate transactions.

        Args:
            producer_id: The producer. Its open transaction, if any, is aborted, and an older `Transaction` object of it
                is fenced. If None, an id of 2^62 or above that no transaction uses.
            flush: Whether the whole transaction is on disk when it has ended.
        """
        return begin_transaction(self._writable(), producer_id, flush=flush)

    def open_transactions(self) -> tuple[OpenTransaction, ...]:
        """List the transactions without a marker, oldest first."""
        return open_transactions(self._writable())

    def abort_transaction(self, producer_id: int, *, flush: bool = False) -> AppendInfo:
        """Abort the transaction of a producer that is gone, and fence the producer.

        Returns:
            The position of the marker.

        Raises:
            InvalidTxnStateError: The producer has no open transaction.
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
        """Append the marker that ends a transaction, as a transaction coordinator does.

        Args:
            producer_id: The producer. If it has no open transaction, only its epoch changes.
            producer_epoch: Its new epoch: older ones are rejected from now on.
            is_abort: Whether to abort the transaction rather than commit it.
            coordinator_epoch: The coordinator's epoch: markers of older ones are rejected from now on.
            transaction_version: The version of the protocol; from 2 on, the epoch must be above that of the records.
            flush: Whether everything is on disk when this returns.

        Returns:
            The position of the marker.

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

    def roll(self) -> None:
        """Close and flush the active segment, and begin a new one at the log end."""
        state = self._writable()
        with state.writing():
            roll(state)
            delete_due_files(state)

    def flush(self) -> None:
        """Flush everything that was appended.

        Raises:
            StorageError: The flush failed. It is never retried: the log has failed.
        """
        state = self._writable()
        with state.writing():
            flush_up_to(state, state.offsets.log_end_offset)
            delete_due_files(state)

    def truncate_to(self, offset: int) -> bool:
        """Remove all records at or after an offset, which becomes the log end offset.

        The batch that holds the offset is removed entirely, including its records below the offset.

        Returns:
            Whether anything was removed.
        """
        state = self._writable()
        with state.writing():
            return truncate_to(state, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything: the log begins and ends at an offset."""
        state = self._writable()
        with state.writing():
            truncate_fully_and_start_at(state, offset)

    def delete_records(self, before_offset: int) -> int:
        """Delete the records below an offset. -1 stands for the high watermark.

        Returns:
            The new log start offset, which is above the given one only if it was before.

        Raises:
            OffsetOutOfRangeError: The offset is above the high watermark.
        """
        state = self._writable()
        with state.writing():
            return delete_records(state, before_offset)

    def apply_retention(self, now_ms: int | None = None) -> tuple[int, ...]:
        """Delete old segments according to ``cleanup.policy``.

        Segments below the log start offset are always deleted. With the policy ``delete``, the oldest segments are
        deleted while at least ``retention.bytes`` remain, and while their newest record is older than
        ``retention.ms``. Segments that not every replica has are kept.

        Args:
            now_ms: The time; the clock's if None.

        Returns:
            The base offsets of the deleted segments. The log starts after them, also after a crash.
        """
        return apply_retention(self._writable(), now_ms)

    def clean(
        self, config: CleanerConfig | None = None, *, now_ms: int | None = None
    ) -> CleanerStatistics | None:
        """Compact the log: drop records of closed segments that a later record with the same key supersedes.

        This makes one pass over as many keys as fit the memory for them, whatever the dirty ratio. Records within
        ``min.compaction.lag.ms`` and records of undecided transactions are kept. Appends and reads continue
        meanwhile. Afterwards retention is applied according to ``cleanup.policy``.

        Args:
            config: The cleaner's configuration; Kafka's defaults if None.
            now_ms: The time; the clock's if None.

        Returns:
            None if there was nothing to clean, or the log was truncated or closed meanwhile.

        Raises:
            OptionError: ``cleanup.policy`` does not contain ``compact``.
            CorruptError: A segment holds bytes that are no batches; nothing at or after them was cleaned.
            StorageError: The file system reported an error.
        """
        state = self._writable()
        return LogCleaner(config or CleanerConfig()).clean_alone(state, now_ms)

    def alter_config(self, config: LogConfig | Mapping[str, Any]) -> LogConfig:
        """Change the configuration at once: every later operation, in any thread, uses the new one.

        As in a broker, ``index.interval.bytes``, ``segment.index.bytes``, ``segment.jitter.ms`` and ``preallocate`` take
        effect with the next segment, and ``file.delete.delay.ms`` applies to later deletions. A cleaning in progress
        stops if the new configuration does not compact the log.

        As with a topic's configuration in Kafka, no file of the log directory stores it: pass it again on the next open.

        Args:
            config: The keys to change, by Kafka's names, such as ``{"retention.ms": 3_600_000}``; or a complete one.

        Returns:
            The new configuration.

        Raises:
            OptionError: A key is unknown, or a value is invalid; nothing has changed.
            NotWritableError: The log is closed, read-only, or has failed before.
        """
        state = self._writable()
        with state.writing():
            before, altered = state.config, altered_config(state.config, config)
            # Readers first: nothing may be written that is too large to be read.
            queries = self._queries
            queries.max_batch_bytes = max(queries.max_batch_bytes, readable_batch_bytes(altered))
            state.alter_config(altered)
        if before.is_compacted and not altered.is_compacted:
            # Without the lock, which the cleaning takes at its end.
            state.cleaning.interrupt()
        return altered

    def update_high_watermark(self, high_watermark: int) -> int:
        """Set the offset up to which every replica has the log. Later appends do not move it.

        Returns:
            The high watermark, clamped to the bounds of the log.
        """
        state = self._writable()
        with state.writing():
            state.is_only_replica = False
            state.publish(state.offsets.with_high_watermark(high_watermark))
            return state.offsets.high_watermark

    def close(self) -> None:
        """Flush and close this log. Its log directory stays open, and a second call does nothing.

        Raises:
            LogForkedError: The log was opened by the process that this one was forked from.
            StorageError: The flush failed: the next open of the log directory recovers the log.
        """
        if self._state is not None:
            close_log(self._state)

    def _writable(self) -> LogState:
        if self._state is None:
            raise LogReadOnlyError(
                "This log directory was opened read-only. Open it without read_only to write.", path=self.path
            )
        self._state.owner.check(self.path)
        return self._state

    def __repr__(self) -> str:
        return f"Log({self.path!r})"
