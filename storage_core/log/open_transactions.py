"""Transactions of a log that have no marker yet: of this process, or left open by a crash or by a broker's producer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_core.errors import InvalidTxnStateError
from storage_core.log.leader_append import append_marker
from storage_core.log.producer_numbers import LARGEST_EPOCH

if TYPE_CHECKING:
    from storage_core.log.log_append import AppendInfo
    from storage_core.log.log_state import LogState

__all__ = ["OpenTransaction", "abort_transaction", "end_open_transaction", "open_transactions"]


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that has no marker yet.

    Attributes:
        producer_id: Whose it is.
        producer_epoch: The epoch of its records.
        first_offset: The offset of its first record.
        last_timestamp_ms: The largest timestamp of its last batch.
    """

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_timestamp_ms: int


def abort_transaction(state: LogState, producer_id: int) -> AppendInfo:
    """End a transaction whose producer is gone; see `Log.abort_transaction`."""
    with state.writing():
        if producer_id not in state.producers.open_transactions:
            raise InvalidTxnStateError(
                f"Expected a transaction of producer {producer_id} that is open, found none: it has ended already.",
                producer_id=producer_id,
                path=state.path,
            )
        state.current_transactions.pop(producer_id, None)
        return end_open_transaction(state, producer_id, is_abort=True)


def open_transactions(state: LogState) -> tuple[OpenTransaction, ...]:
    """The transactions that have no marker yet, the oldest first."""
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
    """Append the marker that ends an open transaction, and moves its producer to the next epoch."""
    known = state.producers.producers[producer_id]
    return append_marker(
        state,
        producer_id,
        min(known.producer_epoch + 1, LARGEST_EPOCH),
        is_abort=is_abort,
        coordinator_epoch=max(known.coordinator_epoch, 0),
    )
