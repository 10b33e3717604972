"""Transaction isolation: aborted transactions and the last stable offset, which bound ``read_committed``.

A ``.txnindex`` file lists the aborted transactions whose markers are in its segment. It is trusted if
its writer has completed it: under a clean-shutdown marker, in a closed segment below the recovery
point, and in a log that this process writes. Elsewhere, and where index files were removed, the
control batches in the log decide. Another process may open, recover, write and close the log
meanwhile, so the reason for the trust is checked before the index is read, and again afterwards.

A replay follows transactions by batch headers and control records. A transaction opens in a partition
with a producer's first transactional batch there, and closes with the producer's marker. The producer
snapshot of an offset holds the transactions open there, so a replay need not begin at the first segment.

Where damage is skipped, markers may be lost. The transactions open before the damage then count as
aborted up to it, so that a read returns no record that may have been aborted. They also count as open
until a later marker of the same producer, so that a read returns no record that is not stable yet.
Records that their producers wrote after the damage count as a new transaction.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from bisect import bisect_left
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING

from storage_core.cached_property import cached_property
from storage_core.errors import CorruptError, CorruptRecordError, UnsupportedFormatError
from storage_core.record import BatchHeader, ControlType, control_type
from storage_core.record.batch_header import MAX_OFFSET
from storage_core.segment import AbortedTransaction, DamagedRange, SegmentReader
from storage_core.segment.file_names import (
    TRANSACTION_INDEX_SUFFIX,
    offset_index_file_name,
    transaction_index_file_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from storage_core.directory import PartitionLog


_log = logging.getLogger(__name__)
_SEGMENTS_AHEAD = 16
_UNKNOWN_ABORTS = "Which transactions were aborted cannot be told; read with isolationLevel=read_uncommitted."


class TransactionTracker:
    """Transactions that are open at an offset, told by the batches and markers before it.

    Attributes:
        open: First offset by producer id, the oldest transaction first.
        doubtful: The same for transactions that damage has made undecided: they may still be open.
        undecided: The transactions that were open before damage, as if they had been aborted in it.
    """

    def __init__(self, first_offsets: Mapping[int, int] = MappingProxyType({})) -> None:
        self.open = dict(sorted(first_offsets.items(), key=itemgetter(1)))
        self.doubtful: dict[int, int] = {}
        self.undecided: list[AbortedTransaction] = []

    def copy(self) -> TransactionTracker:
        """Return a tracker of the same transactions that moves on by itself."""
        copied = TransactionTracker(self.open)
        copied.doubtful, copied.undecided = dict(self.doubtful), list(self.undecided)
        return copied

    def open_or_doubtful(self) -> dict[int, int]:
        """Return the first offset of each transaction that is or may be open, by producer id, oldest first."""
        return dict(sorted({**self.open, **self.doubtful}.items(), key=itemgetter(1)))

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Begin a transaction unless the producer has one."""
        self.open.setdefault(producer_id, first_offset)

    def end(self, producer_id: int, marker_offset: int, *, is_abort: bool) -> AbortedTransaction | None:
        """End the producer's transaction by a marker.

        Returns:
            The transaction that it aborts; None if it commits, or if there is none: compaction and refused appends leave
            markers without data.
        """
        self.doubtful.pop(producer_id, None)
        first_offset = self.open.pop(producer_id, None)
        if first_offset is None or not is_abort:
            return None
        last_stable_offset = next(iter(self.open.values()), marker_offset + 1)
        return AbortedTransaction(producer_id, first_offset, marker_offset, last_stable_offset)

    def lose_marker(self, producer_id: int, marker_offset: int) -> list[AbortedTransaction]:
        """End the producer's transaction, if it has one, by a marker that cannot be read: a commit or an abort."""
        first_offset = self.open.pop(producer_id, None)
        if first_offset is None:
            return []
        lost = [AbortedTransaction(producer_id, first_offset, marker_offset, marker_offset + 1)]
        self.undecided += lost
        return lost

    def lose_markers(self, last_offset: int) -> list[AbortedTransaction]:
        """Treat all open transactions as aborted by damage, in which they may have ended."""
        lost = [
            AbortedTransaction(producer_id, first_offset, last_offset, last_offset + 1)
            for producer_id, first_offset in self.open.items()
        ]
        self.doubtful = {**self.open, **self.doubtful}
        self.open.clear()
        self.undecided += lost
        return lost


class TransactionReplay:
    """Transactions that are open at an offset, which moves forward through the log.

    Every move raises `CorruptRecordError` if a header or a control batch on the way is damaged.

    Attributes:
        next_offset: Every batch that begins below it is accounted for.
        is_complete: Whether the last call of `aborted_transactions` saw the end of every
            transaction that began below its upper bound.
    """

    def __init__(self, log: PartitionLog) -> None:
        self.next_offset = log.segments.base_offsets[0] if log.segments else log.log_start_offset
        self.is_complete = False
        self.transactions = TransactionTracker()
        self._log = log
        self._ahead: deque[SegmentReader] = deque()

    def advance_to(self, offset: int) -> None:
        """Account for everything below ``offset``, from the newest snapshot that helps."""
        if self.next_offset >= offset:
            return
        snapshot = self._log.newest_producer_snapshot(offset)
        if snapshot is not None and snapshot.offset > self.next_offset:
            undecided = self.transactions.undecided
            self.transactions = TransactionTracker(
                {
                    entry.producer_id: entry.current_transaction_first_offset
                    for entry in snapshot.producers
                    if entry.current_transaction_first_offset is not None
                }
            )
            self.transactions.undecided = undecided
            self.next_offset = snapshot.offset
        self.aborted_transactions(offset)

    def aborted_transactions(
        self, end_offset: int, upper_bound_offset: int | None = None
    ) -> list[AbortedTransaction]:
        """Advance to ``end_offset``, and return the transactions that abort on the way, in order of their markers.

        Args:
            end_offset: Where to stop.
            upper_bound_offset: Stop earlier, once every transaction that began below this
                offset has ended. Later ones may then be missing.
        """
        aborted: list[AbortedTransaction] = []
        self.is_complete = False
        index = self._log.segment_index_for(self.next_offset) or 0
        base_offsets = self._log.segments.base_offsets
        while index < len(base_offsets) and base_offsets[index] < end_offset:
            if self.is_complete or self.next_offset >= end_offset:
                break
            segment_end_offset = self._log.segments.end_offset(index)
            stop_offset = end_offset if segment_end_offset is None else min(end_offset, segment_end_offset)
            self._fetch_ahead(index)
            aborted += self._walk_again_if_replaced(index, stop_offset, upper_bound_offset)
            index += 1
        if not self.is_complete:
            self.next_offset = max(self.next_offset, end_offset)
        return aborted

    def close(self) -> None:
        """Close what was fetched ahead."""
        while self._ahead:
            self._ahead.popleft().drop_fetched()

    def _fetch_ahead(self, index: int) -> None:
        """Fetch the next segments while one is walked, where a request takes long."""
        segments = self._log.segments
        while self._ahead and self._ahead[0].base_offset <= segments[index].base_offset:
            self._ahead.popleft()
        next_index = index + 1
        for number in range(next_index + len(self._ahead), min(next_index + _SEGMENTS_AHEAD, len(segments))):
            segments[number].fetch_ahead()
            self._ahead.append(segments[number])

    def _walk_again_if_replaced(
        self, index: int, end_offset: int, upper_bound_offset: int | None
    ) -> list[AbortedTransaction]:
        """Walk a segment, from the same state each time that a live broker has replaced its file since the listing."""
        segments = self._log.segments
        # A segment of which only a part is read may have anything after it.
        is_last = index == len(segments) - 1 or segments.end_offset(index) != segments.next_base_offset(index)
        next_offset, transactions = self.next_offset, self.transactions

        def walk(segment: SegmentReader) -> list[AbortedTransaction]:
            self.next_offset, self.transactions = next_offset, transactions.copy()
            if self._log.skip_damage:
                return self._walk_over_damage(segment, end_offset, upper_bound_offset)
            return self._walk_or_blame(segment, end_offset, upper_bound_offset, is_last=is_last)

        return self._log.read_segment(index, walk)

    def _walk_or_blame(
        self, segment: SegmentReader, end_offset: int, upper_bound_offset: int | None, *, is_last: bool
    ) -> list[AbortedTransaction]:
        """Walk a segment. An error names the damaged range from the wrong length on, not from where it led."""
        try:
            return self._walk(segment, end_offset, upper_bound_offset, is_last=is_last)
        except CorruptError as error:
            if error.path != segment.log_path or error.position_bytes is None:
                raise
            damage = _damage_at_or_before(segment, error.position_bytes)
            if damage is None:
                raise
            reason = f"{damage.reason} {_UNKNOWN_ABORTS}"
            raise dataclasses.replace(damage, reason=reason).error() from error

    def _walk(
        self, segment: SegmentReader, end_offset: int, upper_bound_offset: int | None, *, is_last: bool
    ) -> list[AbortedTransaction]:
        aborted: list[AbortedTransaction] = []
        position_bytes = 0
        if self.next_offset > segment.base_offset:
            first = segment.translate_offset(self.next_offset)
            if first is None:
                return aborted
            position_bytes = first.position_bytes
        for batch, header in segment.batches_of_transactions(position_bytes):
            if batch.base_offset >= end_offset:
                return aborted
            if upper_bound_offset is not None and self._has_passed(upper_bound_offset, batch.base_offset):
                self.is_complete = True
                return aborted
            if batch.base_offset >= self.next_offset:
                transaction = None if header is None else self._apply(segment, header)
                if transaction is not None:
                    aborted.append(transaction)
                self.next_offset = batch.last_offset + 1
            position_bytes = batch.end_bytes
        # A walk ends without an error at a torn batch, which only the last segment can have.
        if not is_last and not segment.is_preallocated_after(position_bytes, self.next_offset):
            raise CorruptRecordError(
                "Expected whole batches up to the end of the segment, found a batch that reaches beyond it. "
                + _UNKNOWN_ABORTS,
                path=segment.log_path,
                position_bytes=position_bytes,
                end_position_bytes=segment.size_bytes,
                offset=self.next_offset,
                last_offset=None if segment.offset_limit is None else segment.offset_limit - 1,
            )
        return aborted

    def _walk_over_damage(
        self, segment: SegmentReader, end_offset: int, upper_bound_offset: int | None
    ) -> list[AbortedTransaction]:
        """Walk a segment with every CRC checked, so that no damaged header counts."""
        aborted: list[AbortedTransaction] = []
        position_bytes = 0
        if self.next_offset > segment.base_offset:
            location = segment.locate_offset(self.next_offset)
            first = location.found if location.damage is None else location.before
            if first is not None:
                position_bytes = first.position_bytes
            elif location.damage is None:
                return aborted
        for item in segment.items(position_bytes):
            if isinstance(item, DamagedRange):
                aborted += self._lose(item)
                self.next_offset = max(self.next_offset, item.end_offset)
                continue
            if item.base_offset >= end_offset:
                return aborted
            if upper_bound_offset is not None and self._has_passed(upper_bound_offset, item.base_offset):
                self.is_complete = True
                return aborted
            if item.base_offset >= self.next_offset:
                aborted += self._apply_or_lose(segment, item)
                self.next_offset = item.next_offset
        return aborted

    def _apply_or_lose(self, segment: SegmentReader, header: BatchHeader) -> list[AbortedTransaction]:
        try:
            transaction = self._apply(segment, header)
        except (CorruptError, UnsupportedFormatError) as error:
            # The marker is unreadable: the transaction may have been committed or aborted.
            _log.warning("A transaction counts as aborted, because its marker cannot be read: %s", error)
            return self.transactions.lose_marker(header.producer_id, header.last_offset)
        return [] if transaction is None else [transaction]

    def _lose(self, damage: DamagedRange) -> list[AbortedTransaction]:
        """Return the transactions that may have ended in a damaged range."""
        if not damage.may_hold_markers or not self.transactions.open:
            return []
        last_offset = max(damage.start_offset, damage.end_offset - 1)
        lost = self.transactions.lose_markers(last_offset)
        _log.warning(
            "%d transactions of %s-%d count as aborted up to offset %d, because their markers may be lost: %s",
            len(lost),
            self._log.topic,
            self._log.partition,
            last_offset,
            damage.error(),
        )
        return lost

    def _has_passed(self, upper_bound_offset: int, base_offset: int) -> bool:
        if base_offset < upper_bound_offset:
            return False
        return next(iter(self.transactions.open.values()), upper_bound_offset) >= upper_bound_offset

    def _apply(self, segment: SegmentReader, header: BatchHeader) -> AbortedTransaction | None:
        producer_id = header.producer_id
        if not header.is_transactional or producer_id < 0:
            return None
        if not header.is_control:
            self.transactions.begin(producer_id, header.base_offset)
            return None
        # Compaction leaves control batches without their record.
        if header.record_count == 0:
            return None
        kind = control_type(segment.read_batch(header), header, path=segment.log_path)
        if kind not in (ControlType.ABORT, ControlType.COMMIT):
            return None
        return self.transactions.end(producer_id, header.last_offset, is_abort=kind is ControlType.ABORT)


def _damage_at_or_before(segment: SegmentReader, position_bytes: int) -> DamagedRange | None:
    """Find the last damaged range of a segment that begins at or before a position."""
    last: DamagedRange | None = None
    for item in segment.items(0):
        if isinstance(item, DamagedRange):
            if item.start_bytes > position_bytes:
                break
            last = item
    return last


_NO_COORDINATOR_EPOCH = -1


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that has no marker yet."""

    producer_id: int
    first_offset: int


def open_transactions(log: PartitionLog, end_offset: int | None = None) -> tuple[OpenTransaction, ...]:
    """Return the transactions that are open at an offset, by default the log end, oldest first.

    Raises:
        CorruptRecordError: A header or a control batch on the way is damaged.
    """
    with closing(TransactionReplay(log)) as replay:
        replay.advance_to(log.log_end_offset if end_offset is None else end_offset)
    return tuple(OpenTransaction(*item) for item in replay.transactions.open_or_doubtful().items())


def last_stable_offset(log: PartitionLog, end_offset: int | None = None) -> int:
    """Return the first offset of the oldest transaction that is open at ``end_offset``, or ``end_offset`` if none is.

    With the high watermark as end this is a broker's answer; with the log end, its answer once everything is
    replicated. Never below the log start offset.
    """
    end_offset = log.log_end_offset if end_offset is None else end_offset
    oldest = next(iter(open_transactions(log, end_offset)), None)
    stable_offset = end_offset if oldest is None else min(oldest.first_offset, end_offset)
    return max(stable_offset, log.log_start_offset)


class AbortedTransactions:
    """Aborted transactions, indexed by the offsets that they touch: each segment looks up its own."""

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
        """Return the aborted transactions with an offset from ``start_offset`` to before ``end_offset``, in marker order."""
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
    """Find the aborted transactions that have an offset from ``start_offset`` to below ``end_offset``.

    Markers after ``end_offset`` count too: a transaction may end segments later. Transactions open at the
    log end are not among them; a read stops before them, at the last stable offset.

    Returns:
        In the order of their markers; where damage is skipped, followed by those whose markers may be lost.

    Raises:
        CorruptRecordError: A header or a control batch on the way is damaged.
        DataLossError: A truncation has cut the log since its end was found.
    """
    if start_offset >= end_offset:
        return ()
    trust = _JoinedTrust(log)
    aborted = _collect(log, start_offset, end_offset, trust.is_trusted)
    if trust.has_changed():
        aborted = _collect(log, start_offset, end_offset, lambda _: False)
    # Checked last: `end_offset` may be a last stable offset that was found by markers which are gone by now.
    log.check_not_cut()
    return tuple(
        transaction
        for transaction in aborted
        if transaction.last_offset >= start_offset and transaction.first_offset < end_offset
    )


def _collect(
    log: PartitionLog, start_offset: int, end_offset: int, is_trusted: Callable[[int], bool]
) -> list[AbortedTransaction]:
    aborted: list[AbortedTransaction] = []
    first = log.segment_index_for(start_offset) or 0
    rest = log.filesystem.map(is_trusted, range(first + 1, len(log.segments)))
    # The first answer is about the whole log, too.
    trusted = chain(map(is_trusted, range(first, first + 1)), rest)
    with closing(TransactionReplay(log)) as replay:
        for index, is_index_trusted in zip(range(first, len(log.segments)), trusted, strict=False):
            segment = log.segments[index]
            if is_index_trusted:
                collected, is_complete = _indexed_aborts(log, index, start_offset, end_offset)
            else:
                replay.advance_to(segment.base_offset)
                collected = replay.aborted_transactions(_segment_end_offset(log, index), end_offset)
                is_complete = replay.is_complete
            aborted += collected
            if is_complete or _have_all_ended(log, index, end_offset):
                break
    if log.skip_damage:
        # For the last stable offset, transactions whose marker may be lost are not open either.
        with closing(TransactionReplay(log)) as tail:
            tail.advance_to(log.log_end_offset)
        known = set(aborted)
        aborted += [
            each
            for each in dict.fromkeys((*replay.transactions.undecided, *tail.transactions.undecided))
            if each not in known
        ]
    return aborted


def _indexed_aborts(
    log: PartitionLog, index: int, start_offset: int, end_offset: int
) -> tuple[list[AbortedTransaction], bool]:
    """Collect the transactions that abort in the part of a segment that a joined log reads, from the segment's index.

    Returns:
        Them, and whether no later segment can have others.
    """
    segments = log.segments
    transactions = segments[index].transaction_index
    collected, is_complete = transactions.collect_aborted_transactions(start_offset, end_offset)
    first_offset, limit_offset = segments.base_offsets[index], _segment_end_offset(log, index)
    is_cut = segments.end_offset(index) != segments.next_base_offset(index)
    within = [each for each in collected if first_offset <= each.last_offset < limit_offset]
    return within, is_complete and not is_cut


def _have_all_ended(log: PartitionLog, index: int, end_offset: int) -> bool:
    """Return True if the snapshot at a segment's end has no open transaction that began below an offset."""
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
    """Return the offset that ends a segment: the next one's base offset, or the log end offset."""
    base_offsets = log.segments.base_offsets
    return base_offsets[index + 1] if index + 1 < len(base_offsets) else log.log_end_offset


class _JoinedTrust:
    """Judgement of the transaction indexes of a log whose segments may lie in several directories."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._trusts: dict[str, _IndexTrust] = {}

    def is_trusted(self, index: int) -> bool:
        source, own_index = self._log.source_of(index)
        trust = self._trusts.setdefault(source.path, _IndexTrust(source))
        try:
            return trust.is_trusted(own_index)
        except CorruptError:
            # Damage at the end of a directory from which the end of the log is not read.
            return False

    def has_changed(self) -> bool:
        return any(trust.has_changed() for trust in self._trusts.values())


class _IndexTrust:
    """Judgement of which transaction indexes, and which missing ones, can be trusted.

    The log end must be known.
    """

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._root = log.directory.root
        # The recovery point, or the clean-shutdown marker, is the reason to trust the indexes up to here.
        self._trusted_below = -1
        self._lock = threading.Lock()

    def is_trusted(self, index: int) -> bool:
        """Return True if a segment's index, or its absence, can be trusted, provided that nothing `has_changed` afterwards."""
        segment = self._log.segments[index]
        end_offset = _segment_end_offset(self._log, index)
        is_complete = (
            segment.use_indexes
            # Otherwise more files need not be read.
            and (
                self._is_listed(segment, transaction_index_file_name)
                or self._is_emptiness_trusted(end_offset)
            )
            and self._is_complete_and_fits(index, end_offset)
        )
        if is_complete:
            with self._lock:
                self._trusted_below = max(self._trusted_below, end_offset)
        return is_complete

    def has_changed(self) -> bool:
        """Return True if the reason to trust an index no longer holds."""
        if self._trusted_below < 0 or self._root.is_own:
            return False
        if self._root.clean_shutdown:
            return not self._root.is_still_clean()
        topic_partition = self._log.directory.topic_partition
        return self._root.present_recovery_points().get(topic_partition, 0) < self._trusted_below

    def _is_complete_and_fits(self, index: int, end_offset: int) -> bool:
        """Return True if the writer has completed a segment's index, and it fits the log."""
        segment = self._log.segments[index]
        if self._root.clean_shutdown or self._root.is_own:
            # Without its offset index the segment's index files were removed, or never copied.
            return (
                self._is_listed(segment, offset_index_file_name)
                and self._fits_log(segment, end_offset)
                and segment.is_in_place()
            )
        if index == len(self._log.segments) - 1 or end_offset > self._log.recovery_point:
            # After a crash the last segment is recovered with its indexes, whatever the recovery point.
            return False
        offset_index = segment.closed_offset_index()
        # The transaction index may have been read before it was complete.
        segment.forget_transaction_index()
        return (
            offset_index is not None
            and self._fits_log(segment, end_offset)
            # Brokers rebuild missing and damaged indexes of any segment, and cleaners replace segments.
            and segment.is_offset_index_unchanged(offset_index)
            and segment.is_in_place()
        )

    def _fits_log(self, segment: SegmentReader, end_offset: int) -> bool:
        """Return True if the index, or its absence, fits the log."""
        transactions = segment.transaction_index
        if transactions.problem is not None:
            return False
        if not transactions.exists and self._is_listed(segment, transaction_index_file_name):
            # Retention or a cleaner has deleted it since the listing.
            return False
        last_marker_offset = transactions.last_marker_offset
        if last_marker_offset is None:
            # A recovery leaves an empty file, and so does a failed copy.
            return self._is_emptiness_trusted(end_offset)
        # Entries of a later segment's markers belong to another file.
        return last_marker_offset < end_offset

    def _is_listed(self, segment: SegmentReader, file_name: Callable[[int], str]) -> bool:
        return file_name(segment.base_offset) + segment.suffix in self._log.segments.file_names

    def _is_emptiness_trusted(self, end_offset: int) -> bool:
        """Return True if an index without entries means that the segment has no aborted transaction."""
        return (
            self._root.is_remote or self._has_transaction_indexes or end_offset <= self._untransactional_up_to
        )

    @cached_property
    def _has_transaction_indexes(self) -> bool:
        """Return True if some segment has a transaction index with entries, so that not all were removed."""
        indexes = (
            self._log.segment_index_for(base_offset)
            for base_offset in self._log.segments.file_names.base_offsets(TRANSACTION_INDEX_SUFFIX)
        )
        return any(
            self._log.segments[index].transaction_index.last_marker_offset is not None
            for index in indexes
            if index is not None
        )

    @cached_property
    def _untransactional_up_to(self) -> int:
        """Return the offset of the newest producer snapshot if it has no transactional producer, otherwise -1."""
        snapshot = self._log.newest_producer_snapshot()
        is_untransactional = snapshot is not None and all(
            entry.coordinator_epoch == _NO_COORDINATOR_EPOCH
            and entry.current_transaction_first_offset is None
            for entry in snapshot.producers
        )
        return snapshot.offset if snapshot is not None and is_untransactional else -1
