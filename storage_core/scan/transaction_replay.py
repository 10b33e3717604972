"""Following transactions through a log by its batch headers and control records.

A transaction opens in a partition with a producer's first transactional data batch there, and
closes with the producer's marker. What was open at some offset stands in the producer snapshot
of that offset, so a replay need not begin at the first segment.

Where damage is skipped, a marker may be among what is lost. Then nobody knows how the transactions
ended that were open in front of it, or whether they did. Their records up to there count as aborted,
so that nothing is shown that may have been taken back; and they count as open until a later marker
of the same producer proves that they are not, so that nothing is shown that is not stable yet. What
their producers wrote behind the damage counts as a transaction of its own.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from storage_core.errors import CorruptError, CorruptRecordError, DataLossError, UnsupportedFormatError
from storage_core.record import ControlType, control_type
from storage_core.segment import AbortedTransaction, DamagedRange
from storage_core.segment.file_names import DELETED_SUFFIX

if TYPE_CHECKING:
    from storage_core.directory import PartitionLog
    from storage_core.record import BatchHeader
    from storage_core.segment import SegmentReader

__all__ = ["TransactionReplay"]

_log = logging.getLogger(__name__)
_NOT_TOLD = "Which transactions were aborted cannot be told; read with isolationLevel=read_uncommitted."


class TransactionReplay:
    """The transactions open at an offset, and a way to move that offset forward.

    Attributes:
        next_offset: Every batch that begins below it is accounted for.
        is_complete: Whether the last call of `aborted_transactions` saw the end of every
            transaction that matters to its bound.
        undecided: The transactions that were open in front of damage, as if they had been aborted in it.
    """

    def __init__(self, log: PartitionLog) -> None:
        self.next_offset = log.segments.base_offsets[0] if log.segments else log.log_start_offset
        self.is_complete = False
        self.undecided: list[AbortedTransaction] = []
        self._log = log
        # First offset by producer id. In order of the offsets: the first entry is the oldest.
        self._open: dict[int, int] = {}
        # The same of transactions whose marker may be lost, and that may be open all the same.
        self._doubtful: dict[int, int] = {}

    def open_transactions(self) -> dict[int, int]:
        """First offset of each transaction that is, or may be, open, by producer id, oldest first."""
        first_offsets = {**self._open, **self._doubtful}
        return dict(sorted(first_offsets.items(), key=lambda item: item[1]))

    def advance_to(self, offset: int) -> None:
        """Account for everything below ``offset``, from the newest snapshot that helps.

        Raises:
            CorruptRecordError: A header or a control batch on the way is damaged.
        """
        if self.next_offset >= offset:
            return
        snapshot = self._log.newest_producer_snapshot(offset)
        if snapshot is not None and snapshot.offset > self.next_offset:
            first_offsets = {
                entry.producer_id: entry.current_transaction_first_offset
                for entry in snapshot.producers
                if entry.current_transaction_first_offset is not None
            }
            self._open = dict(sorted(first_offsets.items(), key=lambda item: item[1]))
            self._doubtful.clear()
            self.next_offset = snapshot.offset
        self.aborted_transactions(offset)

    def aborted_transactions(
        self, end_offset: int, upper_bound_offset: int | None = None
    ) -> list[AbortedTransaction]:
        """Go on to ``end_offset``; return the transactions that abort on the way, by their markers.

        Args:
            end_offset: Where to stop.
            upper_bound_offset: Stop earlier, once every transaction that began below this
                offset has ended. What begins behind may then be missing.

        Raises:
            CorruptRecordError: A header or a control batch on the way is damaged.
        """
        aborted: list[AbortedTransaction] = []
        self.is_complete = False
        index = self._log.segment_index_for(self.next_offset) or 0
        base_offsets = self._log.segments.base_offsets
        while (
            self._is_to_go_on(end_offset) and index < len(base_offsets) and base_offsets[index] < end_offset
        ):
            aborted += self._walk_again_if_replaced(index, end_offset, upper_bound_offset)
            index += 1
        if not self.is_complete:
            self.next_offset = max(self.next_offset, end_offset)
        return aborted

    def _is_to_go_on(self, end_offset: int) -> bool:
        return not self.is_complete and self.next_offset < end_offset

    def _walk_again_if_replaced(
        self, index: int, end_offset: int, upper_bound_offset: int | None
    ) -> list[AbortedTransaction]:
        """Walk a segment; once more if a live broker has renamed or replaced its file since the listing."""
        segments = self._log.segments
        is_last = index == len(segments) - 1
        before = dict(self._open), self.next_offset, list(self.undecided), dict(self._doubtful)
        for reopen in (None, "", DELETED_SUFFIX):
            segment = segments[index] if reopen is None else segments.open_again(index, reopen)
            try:
                if self._log.skip_damage:
                    return self._walk_over_damage(segment, end_offset, upper_bound_offset)
                return self._walk_or_blame(segment, end_offset, upper_bound_offset, is_last=is_last)
            except (FileNotFoundError, DataLossError):
                self._open, self.next_offset = dict(before[0]), before[1]
                self.undecided, self._doubtful = list(before[2]), dict(before[3])
        message = (
            "Expected a segment that was listed a moment ago, found it gone: retention or a cleaner was "
            "faster. Read again."
        )
        raise DataLossError(message, path=self._log.path, offset=segments.base_offsets[index])

    def _walk_or_blame(
        self, segment: SegmentReader, end_offset: int, upper_bound_offset: int | None, *, is_last: bool
    ) -> list[AbortedTransaction]:
        """Walk a segment; an error names the damaged range, which begins where a length was forged, not where it led."""
        try:
            return self._walk(segment, end_offset, upper_bound_offset, is_last=is_last)
        except CorruptError as error:
            if error.path != segment.log_path or error.position_bytes is None:
                raise
            damage = _damage_at_or_before(segment, error.position_bytes)
            if damage is None:
                raise
            reason = f"{damage.reason} {_NOT_TOLD}"
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
            _, batch_end_bytes, base_offset, last_offset, _ = batch
            if base_offset >= end_offset:
                return aborted
            if upper_bound_offset is not None and self._has_passed(upper_bound_offset, base_offset):
                self.is_complete = True
                return aborted
            if base_offset >= self.next_offset:
                transaction = None if header is None else self._apply(segment, header)
                if transaction is not None:
                    aborted.append(transaction)
                self.next_offset = last_offset + 1
            position_bytes = batch_end_bytes
        # A walk ends silently at a torn batch, which only the last segment can have.
        if not is_last and not segment.is_blank_behind(position_bytes, self.next_offset):
            raise CorruptRecordError(
                "Expected whole batches up to the end of the segment, found a batch that reaches beyond it. "
                + _NOT_TOLD,
                path=segment.log_path,
                position_bytes=position_bytes,
                end_position_bytes=segment.size_bytes,
                offset=self.next_offset,
                last_offset=None if segment.end_offset is None else segment.end_offset - 1,
            )
        return aborted

    def _walk_over_damage(
        self, segment: SegmentReader, end_offset: int, upper_bound_offset: int | None
    ) -> list[AbortedTransaction]:
        """The same with every CRC checked: no header is believed that may say what never was."""
        aborted: list[AbortedTransaction] = []
        position_bytes = 0
        if self.next_offset > segment.base_offset:
            around = segment.around(self.next_offset)
            first = around.found if around.damage is None else around.before
            if first is not None:
                position_bytes = first.position_bytes
            elif around.damage is None:
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
            # A marker that says nothing: its producer's transaction may have ended in either way.
            _log.warning("Took a transaction for aborted whose marker cannot be read: %s", error)
            first_offset = self._open.pop(header.producer_id, None)
            if first_offset is None:
                return []
            self.undecided.append(
                AbortedTransaction(header.producer_id, first_offset, header.last_offset, header.next_offset)
            )
            return self.undecided[-1:]
        return [] if transaction is None else [transaction]

    def _lose(self, damage: DamagedRange) -> list[AbortedTransaction]:
        """The transactions that may have ended in a damaged range."""
        if not damage.may_hold_markers or not self._open:
            return []
        last_offset = max(damage.start_offset, damage.end_offset - 1)
        lost = [
            AbortedTransaction(producer_id, first_offset, last_offset, last_offset + 1)
            for producer_id, first_offset in self._open.items()
        ]
        _log.warning(
            "Took %d transactions of %s-%d for aborted up to offset %d, because their markers may be lost: %s",
            len(lost),
            self._log.topic,
            self._log.partition,
            last_offset,
            damage.error(),
        )
        self._doubtful = {**self._open, **self._doubtful}
        self._open.clear()
        self.undecided += lost
        return lost

    def _has_passed(self, upper_bound_offset: int, base_offset: int) -> bool:
        if base_offset < upper_bound_offset:
            return False
        return next(iter(self._open.values()), upper_bound_offset) >= upper_bound_offset

    def _apply(self, segment: SegmentReader, header: BatchHeader) -> AbortedTransaction | None:
        producer_id = header.producer_id
        if not header.is_transactional or producer_id < 0:
            return None
        if not header.is_control:
            self._open.setdefault(producer_id, header.base_offset)
            return None
        # Compaction leaves control batches without their record, which say nothing any more.
        if header.record_count == 0:
            return None
        kind = control_type(segment.read_batch(header), header, path=segment.log_path)
        if kind not in (ControlType.ABORT, ControlType.COMMIT):
            return None
        self._doubtful.pop(producer_id, None)
        first_offset = self._open.pop(producer_id, None)
        # A marker without data, as compaction or a refused append leaves it, ends nothing.
        if first_offset is None or kind is ControlType.COMMIT:
            return None
        marker_offset = header.last_offset
        last_stable_offset = next(iter(self._open.values()), marker_offset + 1)
        return AbortedTransaction(producer_id, first_offset, marker_offset, last_stable_offset)


def _damage_at_or_before(segment: SegmentReader, position_bytes: int) -> DamagedRange | None:
    """The last damaged range of a segment that begins at a position or in front of it."""
    last: DamagedRange | None = None
    for item in segment.items(0):
        if isinstance(item, DamagedRange):
            if item.start_bytes > position_bytes:
                break
            last = item
    return last
