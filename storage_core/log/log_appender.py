"""The appending half of a log: records, batches of producers and of leaders, transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa

from storage_core.errors import LogReadOnlyError, OptionError
from storage_core.log.append_validation import (
    batches_up_to_epoch,
    check_origin,
    validate_follower_append,
)
from storage_core.log.leader_append import (
    append_client_batches,
    append_marker,
    append_records,
    assign_epoch_start_offset,
)
from storage_core.log.log_append import AppendInfo, append_replicated, write_pending
from storage_core.log.log_flush import flush_appended
from storage_core.log.log_reader import LogReader
from storage_core.log.open_transactions import OpenTransaction, abort_transaction, open_transactions
from storage_core.log.producer_numbers import check_producer_sequence
from storage_core.log.transaction import Transaction, begin_transaction
from storage_core.record.record_batches import RecordBatches

if TYPE_CHECKING:
    from storage_core.directory import PartitionDirectory
    from storage_core.filesystem import BytesLike, FileSystem
    from storage_core.log.append_validation import AppendOrigin
    from storage_core.log.log_state import LogState
    from storage_core.log_config import LogConfig
    from storage_core.record.batch_encode import ProducerSequence

__all__ = ["LogAppender"]

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
