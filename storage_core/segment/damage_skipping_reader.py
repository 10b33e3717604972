"""Walking the batches of a log file over damage, and finding where the log ends."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from storage_core.errors import CorruptError
from storage_core.segment.batch_walk import USUAL_MAX_BATCH_BYTES, BatchSummary, BatchWalk
from storage_core.segment.damage import MAX_ENCODABLE_BATCH_BYTES, DamagedRange, known_offset
from storage_core.segment.damage_scanner import LARGEST_DAMAGED_TAIL, DamageScanner
from storage_core.segment.file_names import SegmentEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from storage_core.filesystem import ReadableFile
    from storage_core.record.batch_header import BatchHeader


# A walk remembers this many batches, this far apart: it returns to one of them to check every CRC from there.
_REMEMBERED_BATCHES: Final = 256
_REMEMBERED_DISTANCE_BYTES: Final = 64 * 1024


class BatchLocation(NamedTuple):
    """A batch of the log that was looked for, and what precedes it.

    Attributes:
        before: The last batch of the log before the one looked for; None if there is none.
        damage: The damaged range after that, if there is one.
        found: The batch; None if there is none.
        spanning: A damaged range of which a batch may reach over the one found, which is then part of a record's value.
            None if there is none, if no batch is found, and where damage is skipped.
    """

    before: BatchHeader | None
    damage: DamagedRange | None
    found: BatchHeader | None
    spanning: DamagedRange | None = None


class DamageSkippingReader:
    """A walk over batch headers that continues after damage, or raises an error that covers all of it.

    A plain header walk notices damage late, or never: a changed length leads somewhere else. So this walk
    trusts a header if the next batch follows without a gap in offsets. For any other batch, the CRC decides.

    The scanner tells batches of the log from damage, and knows where the file ends.
    """

    def __init__(
        self, log_file: ReadableFile, base_offset: int, scanner: DamageScanner, *, skip_damage: bool
    ) -> None:
        self._log_file = log_file
        self._base_offset = base_offset
        self._scanner = scanner
        self._skip_damage = skip_damage
        self.strict = BatchWalk(log_file, base_offset, scanner.end_bytes)

    def iter_summaries(self, position_bytes: int = 0) -> Iterator[BatchSummary]:
        """Walk from a batch boundary and yield only the fields that look-ups compare.

        Raises:
            CorruptRecordError: Damage, unless it is skipped.
        """
        if self._skip_damage:
            for header in self._hop(position_bytes):
                yield _summary_of(header)
            return
        before = last = None
        try:
            for batch in self.strict.iter_summaries(position_bytes):
                before, last = last, batch
                yield batch
        except CorruptError as error:
            raise self._whole_error(error, before, last) from error

    def batches(self, position_bytes: int = 0) -> Iterator[BatchHeader]:
        """Walk from a batch boundary and yield whole headers; raises what `iter_summaries` raises."""
        if self._skip_damage:
            yield from self._hop(position_bytes)
            return
        for batch in self.iter_summaries(position_bytes):
            yield self.strict.header(batch.position_bytes, batch.base_offset)

    def batch_at(self, position_bytes: int) -> BatchHeader | None:
        """Return the header at a batch boundary.

        Returns:
            The header; None if a walk would end there.

        Raises:
            CorruptRecordError: The bytes are no batch, unless damage is skipped.
        """
        return next(self.batches(position_bytes), None)

    def first_reaching(
        self,
        offset: int,
        position_bytes: int,
        index_proves_next: Callable[[BatchSummary, BatchSummary], bool] | None = None,
    ) -> BatchHeader | None:
        """Find the first batch from a boundary on whose last offset is at least ``offset``, or None.

        A damaged length may lead into a record's value, which may hold batches of another log. So the CRCs of
        the batches on the way are checked, unless only one is on the way and ``index_proves_next`` says that its
        length is right.

        Raises:
            CorruptRecordError: Damage on the way, which may have held the offset, or may reach over the batch found.
        """
        if self._skip_damage:
            return self.locate_offset(offset, position_bytes).found
        earlier = before = None
        try:
            # Not by `iter_summaries`, which would pass on each batch once more.
            for batch in self.strict.iter_summaries(position_bytes):
                if batch.last_offset >= offset:
                    break
                earlier, before = before, batch
            else:
                return None
        except CorruptError as error:
            raise self._whole_error(error, earlier, before) from error
        is_proven = (
            index_proves_next is not None
            and before is not None
            and before.position_bytes == position_bytes
            and index_proves_next(before, batch)
        )
        if is_proven or self.strict.is_proven(batch.position_bytes, position_bytes):
            header = self.strict.batch_at(batch.position_bytes)
            return None if header is None else header.with_base_offset(batch.base_offset)
        location = self.locate_offset(offset, position_bytes)
        if location.damage is not None and location.damage.end_offset > offset:
            raise location.damage.error()
        if location.spanning is not None:
            raise location.spanning.error()
        return location.found

    def first_at_or_after(self, position_bytes: int, start_bytes: int, far_bytes: int) -> BatchSummary | None:
        """Find the first batch that begins at or after a position, walking from a boundary, or None.

        If a header walk hops over a near position, or meets damage, every CRC on the way is checked. The boundary may then
        itself be inside a value, so a batch at the position is confirmed by a walk from ``far_bytes``, a boundary that
        is further away than a batch is large.
        """
        found: BatchSummary | None = None
        with contextlib.suppress(CorruptError):
            batches = self.strict.iter_summaries(start_bytes)
            found = next((batch for batch in batches if batch.position_bytes >= position_bytes), None)
        is_exact = found is not None and found.position_bytes == position_bytes
        if is_exact or position_bytes - start_bytes > USUAL_MAX_BATCH_BYTES:
            return found
        for boundary_bytes in (start_bytes, far_bytes):
            header = self._locate_by_crcs(
                lambda header: header.position_bytes >= position_bytes, boundary_bytes, self._base_offset
            ).found
            if header is None or header.position_bytes != position_bytes:
                break
        return None if header is None else _summary_of(header)

    def locate_offset(self, offset: int, position_bytes: int) -> BatchLocation:
        """Find the first batch that reaches an offset, walking from a boundary before it. Every CRC near it is checked."""
        return self.locate_first(lambda header: header.last_offset >= offset, position_bytes)

    def locate_first(self, is_reached: Callable[[BatchHeader], bool], start_bytes: int) -> BatchLocation:
        """Find the first batch that satisfies a condition, walking from a boundary. Every CRC near it is checked."""
        before = found = None
        damage_end_bytes, next_bytes = start_bytes, start_bytes
        remembered: deque[BatchHeader] = deque(maxlen=_REMEMBERED_BATCHES)
        for header in self._hop(start_bytes):
            if header.position_bytes != next_bytes:
                damage_end_bytes = header.position_bytes
            next_bytes = header.end_position_bytes
            if is_reached(header):
                found = header
                break
            before = header
            if (
                not remembered
                or header.position_bytes >= remembered[-1].position_bytes + _REMEMBERED_DISTANCE_BYTES
            ):
                remembered.append(header)
        end_bytes = self._scanner.end_bytes if found is None else found.position_bytes
        start_bytes, lowest_offset = self._far_boundary(remembered, end_bytes, start_bytes)
        is_whole = found is not None and damage_end_bytes <= start_bytes
        if is_whole and self.strict.are_crcs_right(start_bytes, next_bytes):
            return BatchLocation(before, None, found)
        return self._locate_by_crcs(is_reached, start_bytes, lowest_offset)

    def _far_boundary(
        self, remembered: deque[BatchHeader], end_bytes: int, start_bytes: int
    ) -> tuple[int, int]:
        """Choose a remembered batch too far before ``end_bytes`` for a usual batch to span the two.

        Returns:
            Its position, and its offset.
        """
        for header in reversed(remembered):
            if header.position_bytes <= end_bytes - USUAL_MAX_BATCH_BYTES:
                lowest_offset = known_offset(header)
                if self._scanner.log_batch_at(header.position_bytes, lowest_offset) is not None:
                    return header.position_bytes, lowest_offset
        if remembered and remembered[0].position_bytes == start_bytes > 0:
            # The caller has proven this one, which the next one may contradict.
            return start_bytes, max(self._base_offset, known_offset(remembered[0]))
        return start_bytes, self._base_offset

    def _locate_by_crcs(
        self, is_reached: Callable[[BatchHeader], bool], start_bytes: int, lowest_offset: int
    ) -> BatchLocation:
        """Do what `locate_first` does, with every CRC checked from the boundary on."""
        before: BatchHeader | None = None
        damage: DamagedRange | None = None
        spanning, spanning_end_bytes = None, 0
        for item in self._scanner.items(start_bytes, lowest_offset):
            if isinstance(item, DamagedRange):
                damage = item
                # Where damage is skipped, what is read for proofs is left to the scanner.
                if not self._skip_damage:
                    farthest_end_bytes = self._scanner.farthest_end(item.start_bytes)
                    if farthest_end_bytes > spanning_end_bytes:
                        spanning, spanning_end_bytes = item, farthest_end_bytes
            elif is_reached(item):
                if spanning_end_bytes <= item.position_bytes:
                    spanning = None
                return BatchLocation(before, damage, item, spanning)
            else:
                before, damage = item, None
        return BatchLocation(before, damage, None)

    def _hop(self, start_bytes: int) -> Iterator[BatchHeader]:
        """Walk from a boundary to the end, continuing after damage."""
        scanner = self._scanner
        position_bytes, lowest_offset = start_bytes, self._base_offset
        while position_bytes < scanner.end_bytes:
            for header, is_followed in self._pairs(position_bytes, lowest_offset):
                if position_bytes == start_bytes > 0:
                    # The caller has proven the batch at the boundary.
                    lowest_offset = max(lowest_offset, known_offset(header))
                if not is_followed and scanner.log_batch_at(position_bytes, lowest_offset) is None:
                    break
                yield header
                position_bytes, lowest_offset = header.end_position_bytes, header.next_offset
            found = scanner.next_log_batch(position_bytes, lowest_offset)
            if found is None:
                return
            yield found
            position_bytes, lowest_offset = found.end_position_bytes, found.next_offset

    def _pairs(self, position_bytes: int, lowest_offset: int) -> Iterator[tuple[BatchHeader, bool]]:
        """Yield headers up to visible damage, each with whether the next one follows it without a gap."""
        walk = BatchWalk(self._log_file, lowest_offset, self._scanner.end_bytes)
        end_offset = self._scanner.limits.end_offset
        before: BatchHeader | None = None
        with contextlib.suppress(CorruptError):
            for header in walk.batches(position_bytes):
                if end_offset is not None and header.last_offset >= end_offset:
                    break
                if before is not None:
                    is_followed = not header.is_wrapper and header.base_offset == before.next_offset
                    yield before, is_followed
                before = header
        if before is not None:
            yield before, False

    def _whole_error(
        self, error: CorruptError, before: BatchSummary | None, last: BatchSummary | None
    ) -> Exception:
        """Return an error about the whole damaged range that a walk met after ``before`` and ``last``."""
        if error.position_bytes is None:
            return error
        position_bytes, lowest_offset = error.position_bytes, self._base_offset
        if last is not None:
            position_bytes = last.position_bytes
            if before is not None:
                lowest_offset = before.last_offset + 1
            elif position_bytes > 0:
                lowest_offset = last.base_offset
            if self._scanner.log_batch_at(position_bytes, lowest_offset) is not None:
                position_bytes, lowest_offset = last.end_bytes, last.last_offset + 1
        damage = self._scanner.damage_at(position_bytes, lowest_offset)
        return error if damage.end_bytes == damage.start_bytes else damage.error()


def _summary_of(header: BatchHeader) -> BatchSummary:
    return BatchSummary(
        header.position_bytes,
        header.end_position_bytes,
        header.base_offset,
        header.last_offset,
        header.max_timestamp_ms,
    )


_log: Final = logging.getLogger(__name__)


def end_of_batches(
    log_file: ReadableFile,
    base_offset: int,
    start_position_bytes: int,
    end_position_bytes: int,
    *,
    skip_damage: bool = False,
) -> SegmentEnd | None:
    """Find where the batches from a boundary on end.

    The last append before a crash may be torn: cut in the middle, or of full length with pages that
    never reached the disk. Such a tail is the end of the log and no damage, if nothing valid follows it.

    Nothing valid is known to follow ``end_position_bytes``.

    Returns:
        Their end; None if none of them is whole and valid.

    Raises:
        CorruptRecordError: Damage that a valid batch follows, unless damage is skipped.
    """
    # A batch that is too large for a reader is still no torn append.
    scanner = DamageScanner(log_file, base_offset, end_position_bytes, None, MAX_ENCODABLE_BATCH_BYTES)
    walk = DamageSkippingReader(log_file, base_offset, scanner, skip_damage=skip_damage)
    batches = (walk if skip_damage else walk.strict).iter_summaries(start_position_bytes)
    last = _last_valid(batches, scanner)
    if last is None:
        position_bytes, next_offset = start_position_bytes, base_offset
    else:
        position_bytes, next_offset = last.end_bytes, last.last_offset + 1
    if scanner.is_blank(position_bytes):
        return None if last is None else SegmentEnd(next_offset, position_bytes)
    if scanner.lost_after(position_bytes, next_offset) is not None:
        error = scanner.damage_at(position_bytes, next_offset).error()
        if not skip_damage:
            raise error
        _log.warning("The log ends before damage: %s", error)
        if last is not None:
            # The damage belongs to the log, so that readers of its end report it.
            return SegmentEnd(next_offset, end_position_bytes)
    return None if last is None else SegmentEnd(next_offset, position_bytes)


def _last_valid(batches: Iterator[BatchSummary], scanner: DamageScanner) -> BatchSummary | None:
    """Return the last batch whose CRC matches, or None."""
    walked: deque[BatchSummary] = deque(maxlen=LARGEST_DAMAGED_TAIL)
    # The batches before an error are in the queue.
    with contextlib.suppress(CorruptError):
        walked.extend(batches)
    for batch in reversed(walked):
        if scanner.is_intact(batch.position_bytes):
            return batch
    return None
