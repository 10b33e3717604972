"""What is known of one producer (Kafka's ``ProducerStateEntry`` and ``BatchMetadata``)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from storage_core.checkpoint import ProducerStateEntry
from storage_core.record.batch_encode import SEQUENCES

__all__ = ["KEPT_BATCHES", "BatchMetadata", "ProducerState"]

KEPT_BATCHES: Final = 5
"""A producer has at most so many requests under way, so that it can repeat no older batch."""

_NONE: Final = -1


class BatchMetadata(NamedTuple):
    """A data batch as it is remembered. A tuple: a replay makes one for each batch."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        """Sequence number of the first record: behind the largest integer follows 0."""
        return (self.last_sequence - self.offset_delta) % SEQUENCES

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return self.last_offset - self.offset_delta


@dataclass(slots=True)
class ProducerState:
    """One producer: its epochs, its last batches, its open transaction. -1 stands for none.

    Attributes:
        producer_id: Whose state it is.
        producer_epoch: The epoch of its last batch or marker.
        coordinator_epoch: The epoch of the coordinator that wrote its last marker.
        timestamp_ms: Of its last batch or marker.
        current_transaction_first_offset: Where its open transaction begins.
        batches: Its last data batches of this epoch, at most `KEPT_BATCHES`, the oldest first.
    """

    producer_id: int
    producer_epoch: int = _NONE
    coordinator_epoch: int = _NONE
    timestamp_ms: int = _NONE
    current_transaction_first_offset: int | None = None
    batches: deque[BatchMetadata] = field(default_factory=lambda: deque(maxlen=KEPT_BATCHES))

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record."""
        return self.batches[-1].last_sequence if self.batches else _NONE

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return self.batches[-1].last_offset if self.batches else _NONE

    def add_batch(self, epoch: int, batch: BatchMetadata) -> None:
        """Remember a data batch."""
        if epoch != self.producer_epoch:
            self._begin_epoch(epoch)
        self.batches.append(batch)
        self.timestamp_ms = batch.timestamp_ms

    def end_transaction(self, epoch: int, coordinator_epoch: int, timestamp_ms: int) -> int | None:
        """Take note of a marker; return where the transaction began that it ends, if there is one."""
        first_offset = self.current_transaction_first_offset
        self.current_transaction_first_offset = None
        if epoch != self.producer_epoch:
            self._begin_epoch(epoch)
        self.coordinator_epoch = coordinator_epoch
        self.timestamp_ms = timestamp_ms
        return first_offset

    def has_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether nothing was heard of it for so long, and no transaction of it is open."""
        return self.current_transaction_first_offset is None and now_ms - self.timestamp_ms >= expiration_ms

    def snapshot_entry(self) -> ProducerStateEntry:
        """This state as a producer snapshot holds it: with the last batch alone."""
        last = self.batches[-1] if self.batches else None
        return ProducerStateEntry(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            last_sequence=_NONE if last is None else last.last_sequence,
            last_offset=_NONE if last is None else last.last_offset,
            offset_delta=0 if last is None else last.offset_delta,
            timestamp_ms=self.timestamp_ms,
            coordinator_epoch=self.coordinator_epoch,
            current_transaction_first_offset=self.current_transaction_first_offset,
        )

    @classmethod
    def of_snapshot_entry(cls, entry: ProducerStateEntry) -> ProducerState:
        """The state that a producer snapshot tells of."""
        state = cls(
            entry.producer_id,
            entry.producer_epoch,
            entry.coordinator_epoch,
            entry.timestamp_ms,
            entry.current_transaction_first_offset,
        )
        # A producer of which only a marker is known has no batch.
        if entry.last_offset >= 0:
            state.batches.append(
                BatchMetadata(entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp_ms)
            )
        return state

    def _begin_epoch(self, epoch: int) -> None:
        self.batches.clear()
        self.producer_epoch = epoch
