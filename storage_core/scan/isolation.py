"""What ``read_committed`` leaves out: aborted transactions, and everything from the last stable offset on.

A ``.txnindex`` file lists the aborted transactions whose markers stand in its segment. It is
believed where its writer has finished it: under a clean-shutdown marker, in a closed segment below
the recovery point, and in a log that this process writes. Elsewhere, and where index files were
removed, the control batches in the log decide.

Another process may open, recover, write and close the log meanwhile. So what makes an index
believable is looked at before the index, and once more after it; if it is no longer true, the control
batches decide.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from storage_core.cached_property import cached_property
from storage_core.record.batch_header import MAX_OFFSET
from storage_core.scan.transaction_replay import TransactionReplay
from storage_core.segment.file_names import (
    TRANSACTION_INDEX_SUFFIX,
    offset_index_file_name,
    transaction_index_file_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from storage_core.directory import PartitionLog
    from storage_core.segment import AbortedTransaction, SegmentReader

__all__ = [
    "AbortedTransactions",
    "OpenTransaction",
    "aborted_transactions",
    "last_stable_offset",
    "open_transactions",
]

_NO_COORDINATOR_EPOCH = -1


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that has no marker yet."""

    producer_id: int
    first_offset: int


def open_transactions(log: PartitionLog, end_offset: int | None = None) -> tuple[OpenTransaction, ...]:
    """The transactions that are open at an offset, oldest first.

    Args:
        log: The partition.
        end_offset: What stands at or behind it does not count; the log end offset if None.

    Raises:
        CorruptRecordError: A header or a control batch on the way is damaged.
    """
    replay = TransactionReplay(log)
    replay.advance_to(log.log_end_offset if end_offset is None else end_offset)
    return tuple(OpenTransaction(*item) for item in replay.open_transactions().items())


def last_stable_offset(log: PartitionLog, end_offset: int | None = None) -> int:
    """The first offset of the oldest transaction open at ``end_offset``; without one, ``end_offset``.

    With the high watermark as end this is what a broker answers, with the log end what it would
    answer once everything is replicated. Never below the log start offset.
    """
    end_offset = log.log_end_offset if end_offset is None else end_offset
    oldest = next(iter(open_transactions(log, end_offset)), None)
    stable_offset = end_offset if oldest is None else min(oldest.first_offset, end_offset)
    return max(stable_offset, log.log_start_offset)


class AbortedTransactions:
    """Aborted transactions, ready to be asked which of them touch some offsets, as often as there are segments."""

    __slots__ = ("_first_leaf", "_last_offsets", "_lowest_first_offsets", "_transactions")

    def __init__(self, transactions: Iterable[AbortedTransaction] = ()) -> None:
        self._transactions = sorted(transactions, key=attrgetter("last_offset"))
        self._last_offsets = [each.last_offset for each in self._transactions]
        # A tree whose nodes know the lowest first offset below them: node n has the children 2 n and 2 n + 1.
        self._first_leaf = 1 << max(len(self._transactions) - 1, 0).bit_length()
        lowest = [MAX_OFFSET + 1] * self._first_leaf
        lowest += [each.first_offset for each in self._transactions]
        lowest += [MAX_OFFSET + 1] * (2 * self._first_leaf - len(lowest))
        for node in reversed(range(1, self._first_leaf)):
            lowest[node] = min(lowest[2 * node], lowest[2 * node + 1])
        self._lowest_first_offsets = lowest

    def touching(self, start_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """Those that have an offset from ``start_offset`` to below ``end_offset``, in the order of their markers."""
        first_index = bisect_left(self._last_offsets, start_offset)
        if first_index == len(self._transactions):
            return ()
        found = []
        # A node, the index of the first transaction below it, and how many there are.
        nodes = [(1, 0, self._first_leaf)]
        while nodes:
            node, index, count = nodes.pop()
            if index + count <= first_index or self._lowest_first_offsets[node] >= end_offset:
                continue
            if count == 1:
                found.append(self._transactions[index])
            else:
                half = count // 2
                nodes += ((2 * node + 1, index + half, half), (2 * node, index, half))
        return tuple(found)


def aborted_transactions(
    log: PartitionLog, start_offset: int, end_offset: int
) -> tuple[AbortedTransaction, ...]:
    """The aborted transactions that have an offset from ``start_offset`` to below ``end_offset``.

    Markers are looked for behind ``end_offset`` too: a transaction may end segments later. Of a
    transaction that is open at the log end nothing is known; the last stable offset keeps a
    read away from it.

    Returns:
        In the order of their markers. Where damage is skipped, those behind them whose markers may be lost.

    Raises:
        CorruptRecordError: A header or a control batch on the way is damaged.
    """
    if start_offset >= end_offset:
        return ()
    trust = _IndexTrust(log)
    aborted = _collect(log, start_offset, end_offset, trust.is_index_complete)
    if trust.has_moved():
        aborted = _collect(log, start_offset, end_offset, lambda _: False)
    return tuple(
        transaction
        for transaction in aborted
        if transaction.last_offset >= start_offset and transaction.first_offset < end_offset
    )


def _collect(
    log: PartitionLog, start_offset: int, end_offset: int, is_index_complete: Callable[[int], bool]
) -> list[AbortedTransaction]:
    aborted: list[AbortedTransaction] = []
    replay = TransactionReplay(log)
    for index in range(log.segment_index_for(start_offset) or 0, len(log.segments)):
        segment = log.segments[index]
        if is_index_complete(index):
            collected, is_complete = segment.transaction_index.collect_aborted_transactions(
                start_offset, end_offset
            )
        else:
            replay.advance_to(segment.base_offset)
            collected = replay.aborted_transactions(_segment_end_offset(log, index), end_offset)
            is_complete = replay.is_complete
        aborted += collected
        if is_complete or _have_all_ended(log, index, end_offset):
            break
    if log.skip_damage:
        # Those whose end may be lost are not open any more for the last stable offset either.
        tail = TransactionReplay(log)
        tail.advance_to(log.log_end_offset)
        known = set(aborted)
        aborted += [each for each in dict.fromkeys((*replay.undecided, *tail.undecided)) if each not in known]
    return aborted


def _have_all_ended(log: PartitionLog, index: int, end_offset: int) -> bool:
    """Whether the snapshot at a segment's end says that no transaction is open there that began below an offset."""
    segment_end_offset = _segment_end_offset(log, index)
    if segment_end_offset < end_offset or index + 1 == len(log.segments) or log.skip_damage:
        return False
    snapshot = log.newest_producer_snapshot(segment_end_offset)
    return (
        snapshot is not None
        and snapshot.offset == segment_end_offset
        and all(
            entry.current_transaction_first_offset is None
            or entry.current_transaction_first_offset >= end_offset
            for entry in snapshot.producers
        )
    )


def _segment_end_offset(log: PartitionLog, index: int) -> int:
    """The offset that ends a segment: the next one's base offset, or the log end offset."""
    base_offsets = log.segments.base_offsets
    return base_offsets[index + 1] if index + 1 < len(base_offsets) else log.log_end_offset


class _IndexTrust:
    """Whether a segment's transaction index, or the absence of one, tells all there is to tell.

    The log end has to be known before.
    """

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._root = log.directory.root
        # What is said of an index up to here rests on the recovery point, or on the marker.
        self._believed_below = -1

    def is_index_complete(self, index: int) -> bool:
        """Whether the index of a segment, or its absence, is to be believed, unless something `has_moved`."""
        segment = self._log.segments[index]
        end_offset = _segment_end_offset(self._log, index)
        is_complete = (
            segment.use_indexes
            # Otherwise there is nothing to be gained by a look at more files.
            and (
                self._is_listed(segment, transaction_index_file_name) or self._is_silence_believed(end_offset)
            )
            and self._is_finished_and_tells_all(index, end_offset)
        )
        if is_complete:
            self._believed_below = max(self._believed_below, end_offset)
        return is_complete

    def has_moved(self) -> bool:
        """Whether an index was believed for a reason that was not true all the time."""
        if self._believed_below < 0 or self._root.is_own:
            return False
        if self._root.clean_shutdown:
            return not self._root.is_still_clean()
        topic_partition = self._log.directory.topic_partition
        return self._root.present_recovery_points().get(topic_partition, 0) < self._believed_below

    def _is_finished_and_tells_all(self, index: int, end_offset: int) -> bool:
        """Whether its writer has finished the index of a segment, which fits the log."""
        segment = self._log.segments[index]
        if self._root.clean_shutdown or self._root.is_own:
            # Without its offset index the segment's index files were removed, or never copied.
            return (
                self._is_listed(segment, offset_index_file_name)
                and self._tells_all(segment, end_offset)
                and segment.is_in_place()
            )
        if index == len(self._log.segments) - 1 or end_offset > self._log.recovery_point:
            # Wherever the recovery point is, a log's last segment is recovered after a crash, and its indexes with it.
            return False
        offset_index = segment.closed_offset_index()
        # The transaction index may have been read before, when only a part of it was written.
        segment.forget_transaction_index()
        return (
            offset_index is not None
            and self._tells_all(segment, end_offset)
            # Index files that are missing or damaged are built anew in any segment. And cleaners replace segments.
            and segment.has_offset_index(offset_index)
            and segment.is_in_place()
        )

    def _tells_all(self, segment: SegmentReader, end_offset: int) -> bool:
        """Whether what the index says, or its silence, fits the log."""
        transactions = segment.transaction_index
        if transactions.problem is not None:
            return False
        if not transactions.exists and self._is_listed(segment, transaction_index_file_name):
            # Retention or a cleaner has taken it away since.
            return False
        last_marker_offset = transactions.last_marker_offset
        if last_marker_offset is None:
            # A recovery leaves an empty file, and so does a copy that failed.
            return self._is_silence_believed(end_offset)
        # Entries of a later segment's markers belong to another file.
        return last_marker_offset < end_offset

    def _is_listed(self, segment: SegmentReader, file_name: Callable[[int], str]) -> bool:
        return file_name(segment.base_offset) + segment.suffix in self._log.segments.file_names

    def _is_silence_believed(self, end_offset: int) -> bool:
        """Whether no transaction was aborted in a segment up to its end, if its index says nothing."""
        return self._has_transaction_indexes or self._has_no_transactions(end_offset)

    @cached_property
    def _has_transaction_indexes(self) -> bool:
        """Whether some segment has a transaction index with entries, so that they were not all removed."""
        indexes = (
            self._log.segment_index_for(base_offset)
            for base_offset in self._log.segments.file_names.base_offsets(TRANSACTION_INDEX_SUFFIX)
        )
        return any(
            self._log.segments[index].transaction_index.last_marker_offset is not None
            for index in indexes
            if index is not None
        )

    def _has_no_transactions(self, end_offset: int) -> bool:
        """Whether a producer snapshot taken at a segment's end, or after it, knows of no transactional producer."""
        snapshot = self._newest_snapshot
        if snapshot is None:
            return False
        offset, is_transactional = snapshot
        return not is_transactional and offset >= end_offset

    @cached_property
    def _newest_snapshot(self) -> tuple[int, bool] | None:
        """Offset of the newest producer snapshot, and whether it knows transactional producers."""
        snapshot = self._log.newest_producer_snapshot()
        if snapshot is None:
            return None
        return snapshot.offset, any(
            entry.coordinator_epoch != _NO_COORDINATOR_EPOCH
            or entry.current_transaction_first_offset is not None
            for entry in snapshot.producers
        )
