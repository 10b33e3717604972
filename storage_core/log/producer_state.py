"""What is known of a log's producers, and their open transactions (Kafka's ``ProducerStateManager``).

The state is that behind every batch below ``map_end_offset``. It is rebuilt from the newest usable
snapshot and the batches behind it. Replayed batches are believed: they were checked when they were
appended, and retention or compaction may have taken what a check would compare them with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_core.log.ongoing_transactions import OngoingTransactions
from storage_core.log.producer_batches import ProducerBatches
from storage_core.log.producer_snapshots import ProducerSnapshots
from storage_core.log.producer_state_entry import BatchMetadata, ProducerState
from storage_core.segment.values import AbortedTransaction

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from storage_core.filesystem import FileSystem
    from storage_core.log.producer_batches import ProducerBatch
    from storage_core.record.batch_window import BatchWindow

__all__ = ["ProducerStateManager"]


class ProducerStateManager:
    """The producers and transactions of one log. One writer; ``first_unstable_offset`` may be read at any time.

    Args:
        filesystem: Where the snapshots stand.
        directory: The partition's directory.
        expiration_ms: The log's ``producer.id.expiration.ms``.
        read_only: Snapshots are neither written nor deleted.

    Attributes:
        expiration_ms: A producer whose last batch is older than this is forgotten. It may be changed at any time.
        map_end_offset: Every batch that begins below it is accounted for.
        snapshots: The snapshots on disk.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        directory: str,
        *,
        expiration_ms: int,
        read_only: bool = False,
        file_names: Iterable[str] | None = None,
    ) -> None:
        self.snapshots = ProducerSnapshots(filesystem, directory, read_only=read_only, file_names=file_names)
        self.expiration_ms = expiration_ms
        self.map_end_offset = 0
        self._last_snapshot_offset = 0
        self._producers: dict[int, ProducerState] = {}
        self._transactions = OngoingTransactions()

    @property
    def producers(self) -> Mapping[int, ProducerState]:
        """What is known of each producer, by its id. To be looked at only."""
        return self._producers

    @property
    def is_empty(self) -> bool:
        """Whether no producer is known."""
        return not self._producers

    @property
    def open_transactions(self) -> Mapping[int, int]:
        """First offset of each open transaction by its producer id, oldest first. To be looked at only."""
        return self._transactions.open_transactions

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the earliest transaction begins that is open, or whose marker is not below the high watermark.

        None if there is none. It may lie below the log start.
        """
        return self._transactions.first_unstable_offset

    def update(self, batches: ProducerBatches) -> list[AbortedTransaction]:
        """Account for batches that now stand in the log.

        Returns:
            The transactions that they abort, in the order of their markers: to be added to the
            transaction index of the segment that holds the batches.
        """
        aborted: list[AbortedTransaction] = []
        if batches.batches:
            for batch in batches.batches:
                if batch.marker is None:
                    self._add_data(batch)
                else:
                    transaction = self._end_transaction(batch)
                    if transaction is not None:
                        aborted.append(transaction)
            self._transactions.settle()
        if batches.next_offset is not None:
            self.map_end_offset = batches.next_offset
        return aborted

    def observe(self, window: BatchWindow) -> list[AbortedTransaction]:
        """Account for a window of batches that recovery or a rebuild found; returns what `update` does.

        Raises:
            CorruptRecordError: A marker is malformed; nothing of the window is accounted for.
        """
        return self.update(ProducerBatches.of_window(window))

    def move_map_end_offset(self, offset: int) -> None:
        """Say that nothing up to an offset concerns any producer: the log begins, or has a gap, there."""
        self.map_end_offset = offset

    def on_high_watermark_updated(self, high_watermark: int) -> None:
        """Forget the transactions whose markers lie below the high watermark: they are stable."""
        self._transactions.on_high_watermark_updated(high_watermark)

    def on_log_start_offset_incremented(self, log_start_offset: int) -> None:
        """Follow the log start: what ended below it is stable, and snapshots may have gone."""
        self.on_high_watermark_updated(log_start_offset)
        self.map_end_offset = max(self.map_end_offset, log_start_offset)
        latest = self.snapshots.latest_offset
        self._last_snapshot_offset = log_start_offset if latest is None else latest

    def remove_expired(self, now_ms: int) -> None:
        """Forget the producers that were silent for too long and have no open transaction."""
        expired = [
            state.producer_id
            for state in self._producers.values()
            if state.has_expired(now_ms, self.expiration_ms)
        ]
        for producer_id in expired:
            del self._producers[producer_id]

    def take_snapshot(self, *, flush: bool = True) -> int | None:
        """Write a snapshot, unless the newest one is as of the same offset or a later one.

        Args:
            flush: Whether it is to be on disk before this returns. A roll need not wait for it: a torn
                snapshot is found out, and the log tells the same.

        Returns:
            The snapshot's offset; None if none was written.

        Raises:
            StorageError: The file could not be written.
        """
        offset = self.map_end_offset
        if offset <= self._last_snapshot_offset:
            return None
        states = sorted(self._producers.values(), key=_producer_id)
        self.snapshots.write(offset, (state.snapshot_entry() for state in states), flush=flush)
        self._last_snapshot_offset = offset
        return offset

    def truncate_and_reload(self, log_start_offset: int, log_end_offset: int, now_ms: int) -> None:
        """Go back to the newest snapshot within a log's offsets, unless the state is as of its end.

        What lies between ``map_end_offset`` and the log end is then to be replayed.

        Raises:
            UnreadableError: This user may not read a snapshot.
        """
        self.snapshots.delete_outside(log_start_offset, log_end_offset)
        if log_end_offset == self.map_end_offset:
            self.on_log_start_offset_incremented(log_start_offset)
            return
        offset, entries = self.snapshots.read_latest() or (log_start_offset, ())
        states = map(ProducerState.of_snapshot_entry, entries)
        self._load(state for state in states if not state.has_expired(now_ms, self.expiration_ms))
        self.map_end_offset = self._last_snapshot_offset = offset

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Forget everything, and delete every snapshot: the log is empty and begins at an offset."""
        self._load(())
        self.snapshots.delete_all()
        self._last_snapshot_offset = 0
        self.map_end_offset = offset

    def remove_stray_snapshots(self, segment_base_offsets: Collection[int]) -> None:
        """Delete the snapshots that belong to no segment, but for the newest one behind all of them."""
        self.snapshots.delete_strays(segment_base_offsets)

    def _add_data(self, batch: ProducerBatch) -> None:
        state = self._state(batch.producer_id)
        state.add_batch(
            batch.producer_epoch,
            BatchMetadata(batch.last_sequence, batch.last_offset, batch.offset_delta, batch.timestamp_ms),
        )
        if batch.is_transactional and state.current_transaction_first_offset is None:
            state.current_transaction_first_offset = batch.base_offset
            self._transactions.begin(batch.producer_id, batch.base_offset)

    def _end_transaction(self, batch: ProducerBatch) -> AbortedTransaction | None:
        marker = batch.marker
        assert marker is not None  # noqa: S101  (the caller has looked)
        first_offset = self._state(batch.producer_id).end_transaction(
            batch.producer_epoch, marker.coordinator_epoch, batch.timestamp_ms
        )
        # A marker without data, as compaction or a refused append leaves it, ends nothing.
        if first_offset is None:
            return None
        last_stable_offset = self._transactions.end(batch.producer_id, batch.base_offset)
        if not marker.is_abort:
            return None
        return AbortedTransaction(batch.producer_id, first_offset, batch.base_offset, last_stable_offset)

    def _state(self, producer_id: int) -> ProducerState:
        state = self._producers.get(producer_id)
        if state is None:
            state = self._producers[producer_id] = ProducerState(producer_id)
        return state

    def _load(self, states: Iterable[ProducerState]) -> None:
        self._producers = {state.producer_id: state for state in states}
        self._transactions.load(
            (state.current_transaction_first_offset, state.producer_id)
            for state in self._producers.values()
            if state.current_transaction_first_offset is not None
        )


def _producer_id(state: ProducerState) -> int:
    return state.producer_id
