"""Transactions within one log, without a coordinator.

A producer's first transactional batch opens a transaction, a marker ends it. While it is open, also after a crash,
``read_committed`` readers stop before it. As in transactions version 2, a marker carries the epoch after that of the data,
so that no late batch can join an ended transaction. After its 32,768 epochs, a producer stays in the last one, and
continues its sequence numbers.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from storage_core.errors import InvalidProducerEpochError, InvalidTxnStateError, SegmentLogError
from storage_core.log.append import AppendInfo, append_marker, append_records
from storage_core.log.local_log import flush_appended
from storage_core.log.producer_append_info import LARGEST_EPOCH, check_producer_id, next_sequence
from storage_core.record.record_batches import ProducerSequence, advance_sequence

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa

    from storage_core.log.log_state import LogState
    from storage_core.log.producer_batches import ProducerState


_log = logging.getLogger(__name__)
# A cluster assigns ids from 0 on, so these never collide with a producer's.
_FIRST_OWN_ID: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction without a marker.

    Attributes:
        producer_id: Its producer.
        producer_epoch: The epoch of its records.
        first_offset: The offset of its first record.
        last_timestamp_ms: The largest timestamp of its last batch.
    """

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_timestamp_ms: int


def abort_transaction(state: LogState, producer_id: int) -> AppendInfo:
    """Abort the transaction of a producer that is gone, as `Log.abort_transaction` does."""
    with state.writing():
        if producer_id not in state.producers.open_transactions:
            raise InvalidTxnStateError(
                f"Producer {producer_id} has no open transaction: it has already ended.",
                producer_id=producer_id,
                path=state.path,
            )
        state.current_transactions.pop(producer_id, None)
        return end_open_transaction(state, producer_id, is_abort=True)


def open_transactions(state: LogState) -> tuple[OpenTransaction, ...]:
    """List the transactions without a marker, oldest first."""
    with state.lock:
        producers = state.producers.producers
        return tuple(
            OpenTransaction(
                producer_id,
                producers[producer_id].producer_epoch,
                first_offset,
                producers[producer_id].timestamp_ms,
            )
            for producer_id, first_offset in state.producers.open_transactions.items()
        )


def end_open_transaction(state: LogState, producer_id: int, *, is_abort: bool) -> AppendInfo:
    """Append the marker that ends an open transaction, with the producer's next epoch."""
    known = state.producers.producers[producer_id]
    return append_marker(
        state,
        producer_id,
        min(known.producer_epoch + 1, LARGEST_EPOCH),
        is_abort=is_abort,
        coordinator_epoch=max(known.coordinator_epoch, 0),
    )


class Transaction(contextlib.AbstractContextManager["Transaction"]):
    """Records that become visible to ``read_committed`` readers together, or never. One thread at a time.

    `Log.transaction` returns it. As a context manager, it commits on exit, and aborts on an exception.

    Attributes:
        producer_id: The producer.
        producer_epoch: The epoch of its records.
        first_offset: The offset of its first record; None before the first one.
    """

    def __init__(self, state: LogState, producer: ProducerSequence, *, flush: bool) -> None:
        self.producer_id = producer.producer_id
        self.producer_epoch = producer.producer_epoch
        self.first_offset: int | None = None
        self._state = state
        self._next_sequence = producer.base_sequence
        self._flush = flush
        self._has_ended = False

    def append(self, records: pa.Table | pa.RecordBatch, *, leader_epoch: int | None = None) -> AppendInfo:
        """Append records to the transaction. Arguments and errors are those of `Log.append`.

        Raises:
            InvalidTxnStateError: The transaction has ended.
            InvalidProducerEpochError: A newer transaction of the same producer has begun.
        """
        producer = ProducerSequence(self.producer_id, self.producer_epoch, self._next_sequence)
        info = append_records(
            self._state,
            records,
            leader_epoch=leader_epoch,
            producer=producer,
            is_transactional=True,
            check=self._require_open,
        )
        if info.is_duplicate:
            raise InvalidTxnStateError(
                f"Another writer has used sequence number {producer.base_sequence} of producer {self.producer_id}. Abort "
                "the transaction.",
                producer_id=self.producer_id,
                path=self._state.path,
                offset=info.first_offset,
            )
        if records.num_rows:
            self._next_sequence = advance_sequence(self._next_sequence, records.num_rows)
            if self.first_offset is None:
                self.first_offset = info.first_offset
        return info

    def commit(self, *, flush: bool | None = None) -> AppendInfo | None:
        """Commit the transaction.

        Args:
            flush: Whether records and marker are on disk when this returns; if None, as given to `Log.transaction`.

        Returns:
            The position of the marker; None without any record, because no marker is written then.

        Raises:
            InvalidTxnStateError: The transaction has ended, or another caller truncated part of it or added to it, so
                it can only be aborted.
            InvalidProducerEpochError: A newer transaction of the same producer has begun, and aborted this one.
            StorageError: The marker could not be written or flushed. The outcome is known after the log was opened
                again: the transaction is committed, or in `Log.open_transactions`.
        """
        return self._end(is_abort=False, flush=flush)

    def abort(self, *, flush: bool | None = None) -> AppendInfo | None:
        """Abort the transaction. Arguments, result and errors are those of `commit`."""
        return self._end(is_abort=True, flush=flush)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._has_ended:
            return
        if error is None:
            self.commit()
            return
        try:
            self.abort()
        except SegmentLogError as problem:
            # The first error is the more useful one.
            error.add_note(f"The transaction of producer {self.producer_id} could not be aborted: {problem}")

    def _end(self, *, is_abort: bool, flush: bool | None) -> AppendInfo | None:
        state, info = self._state, None
        with state.writing():
            self._require_open()
            if self.first_offset is not None:
                if not is_abort:
                    self._require_complete()
                info = end_open_transaction(state, self.producer_id, is_abort=is_abort)
            self._has_ended = True
            del state.current_transactions[self.producer_id]
        if info is not None and (self._flush if flush is None else flush):
            flush_appended(state)
        return info

    def _require_open(self) -> None:
        state, producer_id = self._state, self.producer_id
        if self._has_ended:
            raise InvalidTxnStateError(
                "This transaction has ended. Begin a new one.",
                producer_id=producer_id,
                path=state.path,
            )
        if state.current_transactions.get(producer_id) is not self:
            raise InvalidProducerEpochError(
                f"This transaction of producer {producer_id}, of epoch {self.producer_epoch}, was aborted: a newer one has "
                "begun, or abort_transaction was called.",
                producer_id=producer_id,
                path=state.path,
            )
        if state.producers.open_transactions.get(producer_id) != self.first_offset:
            raise InvalidTxnStateError(
                f"The transaction of producer {producer_id} is not open from offset {self.first_offset} on any more: another "
                "caller has ended or begun one, or truncated the log.",
                producer_id=producer_id,
                path=state.path,
            )

    def _require_complete(self) -> None:
        """Check that the log has all records of this transaction, and no others in it."""
        known = self._state.producers.producers[self.producer_id]
        if (known.producer_epoch, next_sequence(known.last_sequence)) != (
            self.producer_epoch,
            self._next_sequence,
        ):
            raise InvalidTxnStateError(
                f"The last record of producer {self.producer_id} is not that of this transaction: another caller truncated "
                "the log, or wrote as this producer. Abort the transaction.",
                producer_id=self.producer_id,
                path=self._state.path,
            )

    def __repr__(self) -> str:
        return f"Transaction(producer_id={self.producer_id}, producer_epoch={self.producer_epoch})"


def begin_transaction(state: LogState, producer_id: int | None, *, flush: bool) -> Transaction:
    """Begin a transaction, and abort an open one of the same producer, as `Log.transaction` does."""
    if producer_id is not None:
        check_producer_id(producer_id)
    with state.writing():
        if producer_id is None:
            producer_id = _free_id(state)
        if producer_id in state.producers.open_transactions:
            _log.warning("%s: aborted the open transaction of producer %d.", state.path, producer_id)
            end_open_transaction(state, producer_id, is_abort=True)
        producer = _next_incarnation(producer_id, state.producers.producers.get(producer_id))
        transaction = Transaction(state, producer, flush=flush)
        state.current_transactions[producer_id] = transaction
    return transaction


def _next_incarnation(producer_id: int, known: ProducerState | None) -> ProducerSequence:
    """Return the epoch of a producer's next transaction, and the sequence number of its first record."""
    if known is None:
        return ProducerSequence(producer_id, 0, 0)
    if not known.batches:
        # The marker of the last transaction has already begun this epoch.
        return ProducerSequence(producer_id, known.producer_epoch, 0)
    if known.producer_epoch < LARGEST_EPOCH:
        return ProducerSequence(producer_id, known.producer_epoch + 1, 0)
    return ProducerSequence(producer_id, LARGEST_EPOCH, next_sequence(known.last_sequence))


def _free_id(state: LogState) -> int:
    """Return the lowest producer id without a transaction, whether begun here or open in the log."""
    producer_id = _FIRST_OWN_ID
    while producer_id in state.current_transactions or producer_id in state.producers.open_transactions:
        producer_id += 1
    return producer_id
