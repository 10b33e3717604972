"""Reading a log file with damage: which batches belong to the log, what is lost between them, and where the log ends."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from storage_core.errors import CorruptError, SegmentLogError
from storage_core.record.batch_header import LOG_OVERHEAD_BYTES
from storage_core.segment.batch_candidates import MAX_ENCODABLE_BATCH_BYTES
from storage_core.segment.batch_search import BatchSearch
from storage_core.segment.batch_walk import USUAL_MAX_BATCH_BYTES, BatchSummary, BatchWalk, record_timestamps
from storage_core.segment.damage import BatchProbe, DamagedRange, OffsetLimits, known_offset, reason_at
from storage_core.segment.file_names import SegmentEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from storage_core.filesystem import OpenFile
    from storage_core.record.batch_header import BatchHeader


TailKind = Literal["none", "blank", "cut", "bad"]
"""What follows the last valid batch of a file: nothing, only zeros, the beginning of a batch, or other bytes.

A crash leaves the first three; the last one is mostly damage.
"""
# At most this many batches at the end of a file may be damaged although their headers are not.
_LARGEST_DAMAGED_TAIL: Final = 65_536
# A transaction marker is a batch of its own; current brokers write 78 bytes.
_LARGEST_MARKER_BYTES: Final = 256


class DamageScanner:
    """Divides one open log file into batches of the log and damaged ranges.

    The division is the same wherever a reader begins. A batch belongs to the log if it is whole, its CRC
    matches, and its offsets follow those of the previous batch. No CRC covers a batch's base offset, so
    of two batches out of order, one is an outlier and counts as damage.

    No batch reaches the end offset: the next segment's base offset, or the log end offset. It is None if the
    segment's end is not known yet.
    """

    def __init__(
        self,
        log_file: OpenFile,
        base_offset: int,
        end_bytes: int,
        end_offset: int | None,
        max_batch_bytes: int,
    ) -> None:
        self.end_bytes = end_bytes
        self.probe = BatchProbe(log_file, end_bytes)
        self.limits = OffsetLimits(base_offset, end_offset)
        self._log_file = log_file
        self._max_batch_bytes = max_batch_bytes
        self._search = BatchSearch(self.probe, self.limits, max_batch_bytes)

    def log_batch_at(self, position_bytes: int, lowest_offset: int) -> BatchHeader | None:
        """Return the batch of the log at a boundary, after those below an offset, or None if there is damage."""
        header = self._search.valid_batch_at(position_bytes, lowest_offset)
        if header is None or self._is_outlier(header, lowest_offset):
            return None
        return header

    def next_log_batch(self, position_bytes: int, lowest_offset: int) -> BatchHeader | None:
        """Find the first batch of the log at or after a boundary, or None."""
        found = self.log_batch_at(position_bytes, lowest_offset)
        while found is None and position_bytes < self.end_bytes:
            self.probe.advance_to(position_bytes)
            next_position = self._search.position_after_damage(position_bytes, lowest_offset)
            if next_position is None:
                return None
            position_bytes = next_position
            found = self.log_batch_at(position_bytes, lowest_offset)
        return found

    def damage_at(self, position_bytes: int, lowest_offset: int) -> DamagedRange:
        """Return the damaged range that begins at a boundary without a batch of the log."""
        error = self._reason(position_bytes, lowest_offset)
        found = self.next_log_batch(position_bytes, lowest_offset)
        if found is not None:
            end_bytes, end_offset = found.position_bytes, self._first_offset(found)
        else:
            end_bytes = self.end_bytes
            end_offset = lowest_offset if self.limits.end_offset is None else self.limits.end_offset
        end_offset = max(lowest_offset, end_offset)
        return DamagedRange(
            self._log_file.path,
            position_bytes,
            end_bytes,
            lowest_offset,
            end_offset,
            str(error.args[0]),
            type(error),
            # A marker takes an offset.
            end_offset > lowest_offset
            and self._may_hold_markers(position_bytes, end_bytes, lowest_offset, end_offset),
        )

    def items(self, position_bytes: int, lowest_offset: int) -> Iterator[BatchHeader | DamagedRange]:
        """Yield the batches of the log from a boundary on, and the damaged ranges between them.

        Zeros up to the end are preallocated space, unless offsets are missing there. In a segment whose end is
        not known yet, anything else after the last batch is a torn append, which is no damage either.
        """
        while position_bytes < self.end_bytes:
            header = self.log_batch_at(position_bytes, lowest_offset)
            if header is None:
                end_offset = self.limits.end_offset
                if (end_offset is None or lowest_offset >= end_offset) and self.is_blank(position_bytes):
                    return
                damage = self.damage_at(position_bytes, lowest_offset)
                if damage.end_bytes == self.end_bytes and end_offset is None:
                    return
                yield damage
                position_bytes = damage.end_bytes
            else:
                yield header
                position_bytes, lowest_offset = header.end_position_bytes, header.next_offset

    def is_blank(self, position_bytes: int) -> bool:
        """Return True if only zeros follow up to the end."""
        return self._search.skip_zeros(position_bytes) is None

    def tail_kind(self, position_bytes: int) -> TailKind:
        """Return what follows the last valid batch, which ends here."""
        if position_bytes >= self.end_bytes:
            return "none"
        if self.is_blank(position_bytes):
            return "blank"
        header = self.probe.header(position_bytes)
        if header is None:
            return "cut" if self.end_bytes - position_bytes < LOG_OVERHEAD_BYTES else "bad"
        return "cut" if header.end_position_bytes > self.end_bytes else "bad"

    def declared_end(self, position_bytes: int, next_offset: int) -> int:
        """Return the offset after the batches that are declared from here on, one directly after the other."""
        for _ in range(_LARGEST_DAMAGED_TAIL):
            header = self.probe.header(position_bytes)
            if (
                header is None
                or header.base_offset != next_offset
                or header.record_count != header.last_offset_delta + 1
            ):
                break
            position_bytes, next_offset = header.end_position_bytes, header.next_offset
        return next_offset

    def is_intact(self, position_bytes: int) -> bool:
        """Return True if there is a whole batch with a matching CRC here, whatever its offsets."""
        return self._search.intact_batch_at(position_bytes) is not None

    def _reason(self, position_bytes: int, lowest_offset: int) -> SegmentLogError:
        error = reason_at(self.probe, self.limits, position_bytes, lowest_offset, self._max_batch_bytes)
        if error is not None:
            return error
        # Nothing is wrong with the batch itself: the next one proves its offsets wrong.
        header = self.probe.header(position_bytes)
        following = header and self.probe.header(header.end_position_bytes)
        return self.limits.disorder(header, following, self.probe.path)

    def _is_outlier(self, header: BatchHeader, lowest_offset: int) -> bool:
        """Return True if the next batch proves a batch's offsets wrong, instead of the other way round."""
        following = self.probe.header(header.end_position_bytes)
        if following is None or self.limits.follows(following, header.next_offset):
            return False
        if not self.limits.follows(following, lowest_offset) or not self.probe.is_crc_right(following):
            return False
        if (following.last_offset, following.crc) == (header.last_offset, header.crc):
            # The same batch twice.
            return False
        if not header.is_wrapper:
            if header.base_offset == lowest_offset:
                return False
            if (
                not following.is_wrapper
                and lowest_offset + header.last_offset_delta + 1 == following.base_offset
            ):
                return True
        third = self._search.intact_batch_at(following.end_position_bytes)
        if third is None:
            return not header.is_wrapper
        if not (following.is_wrapper or third.is_wrapper):
            filled_offset = header.next_offset + following.last_offset_delta + 1
            if filled_offset == third.base_offset:
                return False
        return self.limits.follows(third, following.next_offset)

    def _first_offset(self, header: BatchHeader) -> int:
        """Return the offset of a batch's first record. A wrapper is decoded for it."""
        if not header.is_wrapper:
            return header.base_offset
        try:
            offsets, _ = record_timestamps(self._log_file, header, self._max_batch_bytes)
        except SegmentLogError:
            return header.last_offset
        return int(offsets[0])

    def _may_hold_markers(
        self, position_bytes: int, end_bytes: int, lowest_offset: int, end_offset: int
    ) -> bool:
        """Return True if a damaged range can hold a batch as small as a marker.

        It cannot if the headers in it, back to back, account for every byte and every offset: then the lengths
        are right, whatever else is wrong.
        """
        while position_bytes < end_bytes:
            header = self.probe.header(position_bytes)
            if header is None or header.is_wrapper or header.base_offset != lowest_offset:
                return True
            if header.size_bytes <= _LARGEST_MARKER_BYTES and header.last_offset_delta == 0:
                return True
            position_bytes, lowest_offset = header.end_position_bytes, header.next_offset
        return (position_bytes, lowest_offset) != (end_bytes, end_offset)


# A walk remembers this many batches, this far apart: it returns to one of them to check every CRC from there.
_REMEMBERED_BATCHES: Final = 256
_REMEMBERED_DISTANCE_BYTES: Final = 64 * 1024


class BatchLocation(NamedTuple):
    """A batch of the log that was looked for, and what precedes it.

    Attributes:
        before: The last batch of the log before the one looked for; None if there is none.
        damage: The damaged range after that, if there is one.
        found: The batch; None if there is none.
    """

    before: BatchHeader | None
    damage: DamagedRange | None
    found: BatchHeader | None


class DamageSkippingReader:
    """A walk over batch headers that continues after damage, or raises an error that covers all of it.

    A plain header walk notices damage late, or never: a changed length leads somewhere else. So this walk
    trusts a header if the next batch follows without a gap in offsets. For any other batch, the CRC decides.

    The scanner tells batches of the log from damage, and knows where the file ends.
    """

    def __init__(
        self, log_file: OpenFile, base_offset: int, scanner: DamageScanner, *, skip_damage: bool
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
        """Walk from a batch boundary and yield whole headers. This raises what `iter_summaries` raises."""
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
            CorruptRecordError: Damage on the way, which may have held the offset.
        """
        if self._skip_damage:
            return self.locate_offset(offset, position_bytes).found
        before: BatchSummary | None = None
        for batch in self.iter_summaries(position_bytes):
            if batch.last_offset >= offset:
                break
            before = batch
        else:
            return None
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
        return location.found

    def first_at_or_after(self, position_bytes: int, start_bytes: int) -> BatchSummary | None:
        """Find the first batch that begins at or after a position, walking from a boundary, or None.

        If a plain walk hops over the position, or meets damage, every CRC on the way is checked.
        """
        found: BatchSummary | None = None
        with contextlib.suppress(CorruptError):
            for batch in self.strict.iter_summaries(start_bytes):
                if batch.position_bytes == position_bytes:
                    return batch
                if batch.position_bytes > position_bytes:
                    found = batch
                    break
        if position_bytes - start_bytes > USUAL_MAX_BATCH_BYTES:
            return found
        for item in self._scanner.items(start_bytes, self._base_offset):
            if not isinstance(item, DamagedRange) and item.position_bytes >= position_bytes:
                return _summary_of(item)
        return None

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
            nearest_bytes = remembered[-1].position_bytes + _REMEMBERED_DISTANCE_BYTES if remembered else 0
            if header.position_bytes >= nearest_bytes:
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
        return start_bytes, self._base_offset

    def _locate_by_crcs(
        self, is_reached: Callable[[BatchHeader], bool], start_bytes: int, lowest_offset: int
    ) -> BatchLocation:
        """Do what `locate_first` does, with every CRC checked from the boundary on."""
        before: BatchHeader | None = None
        damage: DamagedRange | None = None
        for item in self._scanner.items(start_bytes, lowest_offset):
            if isinstance(item, DamagedRange):
                damage = item
            elif is_reached(item):
                return BatchLocation(before, damage, item)
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
        """Return the error that covers all of the damage that a walk has met after two batches."""
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


_LOGGER: Final = logging.getLogger(__name__)


def end_of_batches(
    log_file: OpenFile,
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
    found = scanner.next_log_batch(position_bytes, next_offset)
    # A whole batch is not torn, even if its offsets do not fit.
    is_damaged = found is not None or scanner.is_intact(position_bytes)
    if is_damaged or scanner.probe.is_exhausted:
        error = scanner.damage_at(position_bytes, next_offset).error()
        if not skip_damage:
            raise error
        _LOGGER.warning("The log ends before damage: %s", error)
        if last is not None:
            # The damage belongs to the log, so that readers of its end report it.
            return SegmentEnd(next_offset, end_position_bytes)
    return None if last is None else SegmentEnd(next_offset, position_bytes)


def _last_valid(batches: Iterator[BatchSummary], scanner: DamageScanner) -> BatchSummary | None:
    """Return the last batch whose CRC matches, or None."""
    walked: deque[BatchSummary] = deque(maxlen=_LARGEST_DAMAGED_TAIL)
    # The batches before an error are in the queue.
    with contextlib.suppress(CorruptError):
        walked.extend(batches)
    for batch in reversed(walked):
        if scanner.is_intact(batch.position_bytes):
            return batch
    return None
