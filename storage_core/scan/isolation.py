"""What ``read_committed`` leaves out: aborted transactions, and all behind the last stable offset.

A ``.txnindex`` file lists the aborted transactions whose markers stand in its segment. It is
believed where the broker has finished it: under a clean-shutdown marker, or below the recovery
point. Elsewhere, and where index files were removed, the control batches in the log decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_core.cached_property import cached_property
from storage_core.scan.transaction_replay import TransactionReplay
from storage_core.segment.file_names import (
    TRANSACTION_INDEX_SUFFIX,
    base_offset_of,
    offset_index_file_name,
    transaction_index_file_name,
)

if TYPE_CHECKING:
    from storage_core.directory import PartitionLog
    from storage_core.segment import AbortedTransaction

__all__ = ["OpenTransaction", "aborted_transactions", "last_stable_offset", "open_transactions"]

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
    aborted: list[AbortedTransaction] = []
    trust = _IndexTrust(log)
    replay = TransactionReplay(log)
    for index in range(log.segment_index_for(start_offset) or 0, len(log.segments)):
        segment = log.segments[index]
        if trust.is_index_complete(index):
            collected, is_complete = segment.transaction_index.collect_aborted_transactions(
                start_offset, end_offset
            )
        else:
            replay.advance_to(segment.base_offset)
            collected = replay.aborted_transactions(trust.segment_end_offset(index), end_offset)
            is_complete = replay.is_complete
        aborted += collected
        if is_complete:
            break
    if log.skip_damage:
        # Those whose end may be lost are not open any more for the last stable offset either.
        tail = TransactionReplay(log)
        tail.advance_to(log.log_end_offset)
        known = set(aborted)
        aborted += [each for each in dict.fromkeys((*replay.undecided, *tail.undecided)) if each not in known]
    return tuple(
        transaction
        for transaction in aborted
        if transaction.last_offset >= start_offset and transaction.first_offset < end_offset
    )


class _IndexTrust:
    """Whether a segment's transaction index, or the absence of one, tells all there is to tell."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def segment_end_offset(self, index: int) -> int:
        """The offset that ends a segment: the next one's base offset, or the log end offset."""
        base_offsets = self._log.segments.base_offsets
        return base_offsets[index + 1] if index + 1 < len(base_offsets) else self._log.log_end_offset

    def is_index_complete(self, index: int) -> bool:
        log = self._log
        segment = log.segments[index]
        if not segment.use_indexes:
            return False
        if not log.is_clean and self.segment_end_offset(index) > log.recovery_point:
            return False
        # Without its offset index the segment's index files were removed, or never copied.
        names = log.segments.file_names
        if offset_index_file_name(segment.base_offset) + segment.suffix not in names:
            return False
        if transaction_index_file_name(segment.base_offset) + segment.suffix not in names:
            return self._is_silence_believable or self._has_no_transactions(index)
        transactions = segment.transaction_index
        # Listed, but gone by now: a live broker has taken the segment away, or replaced it.
        if transactions.problem is not None or not transactions.exists:
            return False
        last_marker_offset = transactions.last_marker_offset
        if last_marker_offset is None:
            # A recovery leaves an empty file, and so does a copy that failed.
            return self._is_silence_believable or self._has_no_transactions(index)
        # Entries of a later segment's markers belong to another file.
        return last_marker_offset < self.segment_end_offset(index)

    @cached_property
    def _is_silence_believable(self) -> bool:
        """Whether some segment has a transaction index with entries, so that they were not all removed."""
        for name in self._log.segments.file_names:
            if not name.endswith(TRANSACTION_INDEX_SUFFIX):
                continue
            base_offset = base_offset_of(name)
            index = None if base_offset is None else self._log.segment_index_for(base_offset)
            if index is None:
                continue
            if self._log.segments[index].transaction_index.last_marker_offset is not None:
                return True
        return False

    def _has_no_transactions(self, index: int) -> bool:
        """Whether a producer snapshot taken behind the segment knows of no transactional producer."""
        snapshot = self._newest_snapshot
        if snapshot is None:
            return False
        offset, is_transactional = snapshot
        return not is_transactional and offset >= self.segment_end_offset(index)

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
