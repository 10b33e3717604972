"""The producers and transactions of a log (Kafka's ``ProducerStateManager``).

The state covers every batch below ``map_end_offset``. It is rebuilt from the latest usable snapshot and the batches after
it. Replayed batches are not checked: they were checked when they were appended, and retention or compaction may have
removed what a check would need.
"""

from __future__ import annotations

import logging
import os
from bisect import insort
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from storage_core.checkpoint import ProducerStateEntry, read_producer_snapshot
from storage_core.checkpoint.partition_files import write_producer_snapshot
from storage_core.errors import CorruptSnapshotError
from storage_core.log.producer_batches import ProducerBatches, ProducerState
from storage_core.segment.file_names import (
    DELETED_SUFFIX,
    SNAPSHOT_SUFFIX,
    AbortedTransaction,
    base_offset_of,
    snapshot_file_name,
)
from storage_core.segment.index_file import rename_if_exists

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from storage_core.filesystem import FileSystem
    from storage_core.log.log_segments import LogSegments
    from storage_core.record.batch_window import BatchWindow
    from storage_core.segment.log_segment import LogSegment


_log = logging.getLogger(__name__)


class _UnreplicatedTransaction(NamedTuple):
    first_offset: int
    marker_offset: int


class OngoingTransactions:
    """The first offsets of transactions that are open, or whose marker may still be lost. One writer.

    Attributes:
        first_unstable_offset: The start of the earliest transaction that is open, or whose marker is not below the
            high watermark; None without any. May be read at any time.
    """

    def __init__(self) -> None:
        self.first_unstable_offset: int | None = None
        # First offset by producer id, in the order of the offsets: the first entry is the oldest.
        self._open: dict[int, int] = {}
        # A heap. A transaction whose marker is stable is removed once it is on top.
        self._unreplicated: list[_UnreplicatedTransaction] = []
        self._stable_offset = 0

    @property
    def open_transactions(self) -> Mapping[int, int]:
        """The first offset of each open transaction by producer id, oldest first."""
        return self._open

    def load(self, first_offsets: Iterable[tuple[int, int]]) -> None:
        """Replace the state by open transactions, given as first offset and producer id in any order."""
        self._open = {producer_id: first_offset for first_offset, producer_id in sorted(first_offsets)}
        self._unreplicated.clear()
        self._stable_offset = 0
        self.settle()

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Add a transaction that begins after all others. Call `settle` afterwards."""
        self._open[producer_id] = first_offset

    def end(self, producer_id: int, marker_offset: int) -> int:
        """End an open transaction. Call `settle` afterwards.

        Returns:
            The start of the earliest other open transaction; the offset after the marker without any.
        """
        heappush(self._unreplicated, _UnreplicatedTransaction(self._open.pop(producer_id), marker_offset))
        return next(iter(self._open.values()), marker_offset + 1)

    def on_high_watermark_updated(self, high_watermark: int) -> None:
        """Remove the transactions whose markers are below the high watermark."""
        if high_watermark > self._stable_offset:
            self._stable_offset = high_watermark
            if self._unreplicated:
                self.settle()

    def settle(self) -> None:
        """Update the first unstable offset."""
        heap = self._unreplicated
        while heap and heap[0].marker_offset < self._stable_offset:
            heappop(heap)
        first_offset = next(iter(self._open.values()), None)
        if heap and (first_offset is None or heap[0].first_offset < first_offset):
            first_offset = heap[0].first_offset
        self.first_unstable_offset = first_offset


class ProducerSnapshots:
    """The snapshot files of a partition directory, by offset."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: str,
        *,
        file_names: Iterable[str] | None = None,
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        if file_names is None:
            file_names = (
                entry.name for entry in filesystem.list_directory(directory) if entry.is_regular_file
            )
        self._offsets = sorted({offset for name in file_names if (offset := _offset_of(name)) is not None})

    @property
    def offsets(self) -> tuple[int, ...]:
        """The offsets of all snapshots, ascending."""
        return tuple(self._offsets)

    @property
    def latest_offset(self) -> int | None:
        """The offset of the latest snapshot."""
        return self._offsets[-1] if self._offsets else None

    def path(self, offset: int) -> str:
        """Return the path of the snapshot of an offset."""
        return os.path.join(self._directory, snapshot_file_name(offset))

    def read_latest(self) -> tuple[int, tuple[ProducerStateEntry, ...]] | None:
        """Read the latest readable snapshot. Unreadable later ones are deleted.

        Returns:
            Its offset and its entries, or None if there is none.
        """
        while self._offsets:
            offset = self._offsets[-1]
            try:
                entries = read_producer_snapshot(self._filesystem, self.path(offset))
            except CorruptSnapshotError as error:
                _log.warning("Deleted a producer snapshot; an older one or the log replaces it: %s", error)
                entries = None
            if entries is not None:
                return offset, entries
            self.delete(offset)
        return None

    def write(self, offset: int, entries: Iterable[ProducerStateEntry], *, flush: bool = True) -> None:
        """Write the snapshot of an offset, replacing an existing one.

        Without a flush, a crash may leave a torn snapshot, which its CRC reveals.
        """
        write_producer_snapshot(self._filesystem, self.path(offset), tuple(entries), flush=flush)
        if offset not in self._offsets:
            insort(self._offsets, offset)

    def delete(self, offset: int) -> None:
        """Delete the snapshot of an offset, if there is one."""
        if offset not in self._offsets:
            return
        self._filesystem.delete(self.path(offset))
        self._offsets.remove(offset)

    def delete_outside(self, log_start_offset: int, log_end_offset: int) -> None:
        """Delete the snapshots at or before the log start, and those after the log end, durably."""
        self._delete_for_good(
            [each for each in self._offsets if not log_start_offset < each <= log_end_offset]
        )

    def delete_all(self) -> None:
        """Delete all snapshots, durably."""
        self._delete_for_good(self.offsets)

    def delete_strays(self, segment_base_offsets: Collection[int]) -> None:
        """Delete the snapshots at no segment's base offset, except the latest one if no segment begins after it."""
        bases = set(segment_base_offsets)
        strays = [offset for offset in self._offsets if offset not in bases]
        if strays and (not bases or strays[-1] >= max(bases)):
            strays.pop()
        for offset in strays:
            self.delete(offset)

    def mark_deleted(self, offsets: Iterable[int]) -> list[str]:
        """Rename the snapshots of deleted segments to ``.deleted``, if they exist.

        Returns:
            The new paths of those that do, for deletion later.
        """
        marked = frozenset(self._offsets).intersection(offsets)
        self._offsets = [offset for offset in self._offsets if offset not in marked]
        paths = [(self.path(offset), self.path(offset) + DELETED_SUFFIX) for offset in sorted(marked)]
        return [renamed for path, renamed in paths if rename_if_exists(self._filesystem, path, renamed)]

    def _delete_for_good(self, offsets: Sequence[int]) -> None:
        """Delete durably: a snapshot restored by a crash must not describe records that were replaced since."""
        for offset in offsets:
            self.delete(offset)
        if offsets:
            self._filesystem.flush_directory(self._directory)


def _offset_of(name: str) -> int | None:
    return base_offset_of(name) if name.endswith(SNAPSHOT_SUFFIX) else None


class ProducerStateManager:
    """The producers and transactions of one log. One writer; ``first_unstable_offset`` may be read at any time.

    Attributes:
        expiration_ms: Producers whose last batch is older than this are removed. May be changed at any time.
        map_end_offset: The state includes every batch that begins below this offset.
        snapshots: The snapshots on disk.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        directory: str,
        *,
        expiration_ms: int,
        file_names: Iterable[str] | None = None,
    ) -> None:
        self.snapshots = ProducerSnapshots(filesystem, directory, file_names=file_names)
        self.expiration_ms = expiration_ms
        self.map_end_offset = 0
        self._last_snapshot_offset = 0
        self._producers: dict[int, ProducerState] = {}
        self._transactions = OngoingTransactions()

    @property
    def producers(self) -> Mapping[int, ProducerState]:
        """The state of each producer, by its id."""
        return self._producers

    @property
    def is_empty(self) -> bool:
        """True if the log has no producer."""
        return not self._producers

    @property
    def open_transactions(self) -> Mapping[int, int]:
        """The first offset of each open transaction by producer id, oldest first."""
        return self._transactions.open_transactions

    @property
    def first_unstable_offset(self) -> int | None:
        """The start of the earliest transaction that is open, or whose marker is not below the high watermark.

        None without any. It may be below the log start.
        """
        return self._transactions.first_unstable_offset

    def update(self, batches: ProducerBatches) -> list[AbortedTransaction]:
        """Update the state with batches that were appended.

        Returns:
            The transactions that they abort, in the order of their markers, for the segment's transaction index.
        """
        aborted: list[AbortedTransaction] = []
        for batch in batches.batches:
            state = self._producers.get(batch.producer_id)
            if state is None:
                state = self._producers[batch.producer_id] = ProducerState(batch.producer_id)
            first_offset = state.current_transaction_first_offset
            state.apply(batch)
            if batch.marker is None:
                if first_offset is None and batch.is_transactional:
                    self._transactions.begin(batch.producer_id, batch.base_offset)
            # A marker without data, after a compaction or a rejected append, ends no transaction.
            elif first_offset is not None:
                last_stable_offset = self._transactions.end(batch.producer_id, batch.base_offset)
                if batch.marker.is_abort:
                    aborted.append(
                        AbortedTransaction(
                            batch.producer_id, first_offset, batch.base_offset, last_stable_offset
                        )
                    )
        if batches.batches:
            self._transactions.settle()
        if batches.next_offset is not None:
            self.map_end_offset = batches.next_offset
        return aborted

    def observe(self, window: BatchWindow) -> list[AbortedTransaction]:
        """Update the state with batches that a recovery or a rebuild reads.

        Returns:
            The aborted transactions that the batches end, as `update` does.

        Raises:
            CorruptRecordError: A marker is malformed; the state has not changed.
        """
        return self.update(ProducerBatches.of_window(window))

    def on_high_watermark_updated(self, high_watermark: int) -> None:
        """Remove the transactions whose markers are below the high watermark: they are stable."""
        self._transactions.on_high_watermark_updated(high_watermark)

    def on_log_start_offset_incremented(self, log_start_offset: int) -> None:
        """Follow the log start: transactions that ended below it are stable, and snapshots may have been deleted."""
        self.on_high_watermark_updated(log_start_offset)
        self.map_end_offset = max(self.map_end_offset, log_start_offset)
        latest = self.snapshots.latest_offset
        self._last_snapshot_offset = log_start_offset if latest is None else latest

    def remove_expired(self, now_ms: int) -> None:
        """Remove the expired producers without an open transaction."""
        expired = [
            state.producer_id
            for state in self._producers.values()
            if state.has_expired(now_ms, self.expiration_ms)
        ]
        for producer_id in expired:
            del self._producers[producer_id]

    def take_snapshot(self) -> int | None:
        """Write a snapshot, unless the latest one has the same offset or a later one.

        Returns:
            The offset of the snapshot, or None if none was written.
        """
        offset = self.map_end_offset
        if offset <= self._last_snapshot_offset:
            return None
        states = [self._producers[producer_id] for producer_id in sorted(self._producers)]
        self.snapshots.write(offset, (state.snapshot_entry() for state in states))
        self._last_snapshot_offset = offset
        return offset

    def truncate_and_reload(self, log_start_offset: int, log_end_offset: int, now_ms: int) -> None:
        """Load the latest snapshot within a log's offsets, unless the state already ends at the log end.

        The caller then replays the batches from ``map_end_offset`` to the log end.
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
        """Remove all producers and all snapshots: the log is empty and begins at an offset."""
        self._load(())
        self.snapshots.delete_all()
        self._last_snapshot_offset = 0
        self.map_end_offset = offset

    def _load(self, states: Iterable[ProducerState]) -> None:
        self._producers = {state.producer_id: state for state in states}
        self._transactions.load(
            (state.current_transaction_first_offset, state.producer_id)
            for state in self._producers.values()
            if state.current_transaction_first_offset is not None
        )


def rebuild_producer_state(
    manager: ProducerStateManager,
    segments: LogSegments,
    log_start_offset: int,
    last_offset: int,
    now_ms: int,
    *,
    is_after_clean_shutdown: bool,
) -> None:
    """Rebuild the state from the log start to ``last_offset``, and take snapshots (``UnifiedLog.rebuildProducerState``).

    Only batches after the latest usable snapshot are read. Snapshots at the last two segments' base offsets make a later
    truncation cheap. After a clean shutdown, the absence of snapshots proves that there were no producers.

    ``last_offset`` is the log end, or a segment's base offset. Snapshots outside the offsets are deleted.

    Raises:
        CorruptRecordError: A batch or a marker is damaged.
    """
    offsets_to_snapshot = (*segments.base_offsets[-2:], last_offset)
    if manager.snapshots.latest_offset is None and is_after_clean_shutdown:
        for offset in offsets_to_snapshot:
            manager.map_end_offset = offset
            manager.take_snapshot()
        return
    # Without a producer after the truncation point, there is none before it.
    was_empty = manager.is_empty and manager.map_end_offset >= last_offset
    manager.truncate_and_reload(log_start_offset, last_offset, now_ms)
    if last_offset > manager.map_end_offset and not was_empty:
        for segment in segments.values(manager.map_end_offset, last_offset):
            manager.map_end_offset = max(segment.base_offset, manager.map_end_offset)
            if segment.base_offset in offsets_to_snapshot:
                manager.take_snapshot()
            _replay(manager, segment, last_offset)
    manager.map_end_offset = last_offset
    manager.take_snapshot()


def _replay(manager: ProducerStateManager, segment: LogSegment, last_offset: int) -> None:
    start = segment.translate_offset(manager.map_end_offset)
    if start is None:
        return
    end = segment.translate_offset(last_offset)
    end_position_bytes = segment.size_bytes if end is None else end.position_bytes
    for window in segment.windows(start.position_bytes, end_position_bytes):
        manager.observe(window)
