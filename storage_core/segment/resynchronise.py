"""Finding the next batch that counts behind damage, and saying what lies between.

A log file is divided into batches that count and damaged ranges between them, always in the same
way, wherever a reader begins. A batch counts if it is whole, its CRC is right and its offsets
follow those of the batch before. No CRC covers a batch's base offset, so of two batches out of
order one is the outlier, and damage.

A walk over batch headers that knows of damage: it goes on behind it, or says where it ends.

A header walk alone notices damage late, or never: a length that was changed leads somewhere else.
So this walk believes a header whose batch is followed by another one without a gap, or at a
place that cannot be told apart from one; any other batch it takes only with a right CRC.

Finding where the whole, valid batches of a log file end.

The last append before a crash may be torn: cut in its middle, or of full length with pages that
never reached the disk. Such a tail is the end of the log and no damage, provided that nothing
valid follows it.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from storage_core.errors import CorruptError, SegmentLogError
from storage_core.record import batch_timestamps
from storage_core.segment.batch_candidates import MAX_ENCODABLE_BATCH_BYTES
from storage_core.segment.batch_search import BatchSearch
from storage_core.segment.batch_walk import USUAL_MAX_BATCH_BYTES, BatchProbe, BatchWalk, read_batch
from storage_core.segment.damage import DamagedRange, OffsetLimits, known_offset, reason_at
from storage_core.segment.file_names import SegmentEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from storage_core.filesystem import OpenFile
    from storage_core.record.batch_header import BatchHeader
    from storage_core.segment.batch_walk import SkimmedBatch

__all__ = ["BatchLocation", "Resynchroniser", "TolerantWalk", "end_of_batches"]


# A transaction's marker is a batch of its own, of 78 bytes as brokers write it today.
_LARGEST_MARKER_BYTES: Final = 256


class Resynchroniser:
    """Tells the batches of one open log file that count from those that do not.

    Args:
        log_file: The file.
        base_offset: The segment's base offset.
        end_bytes: Where the segment ends.
        end_offset: No batch reaches it: the next segment's base offset, or the log end offset. None if
            the segment's end is still to be found out.
        max_batch_bytes: The largest batch that counts.
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
        """The batch at a boundary, if it counts.

        Args:
            position_bytes: Where it would begin.
            lowest_offset: The offset behind the last batch that counts in front of it.
        """
        header = self._search.valid_batch_at(position_bytes, lowest_offset)
        if header is None or self._is_outlier(header, lowest_offset):
            return None
        return header

    def next_log_batch(self, position_bytes: int, lowest_offset: int) -> BatchHeader | None:
        """The first batch that counts at a boundary or behind it; None if none follows."""
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
        """The damaged range that begins at a boundary where no batch counts."""
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
            # A marker has an offset.
            end_offset > lowest_offset
            and self._may_hold_markers(position_bytes, end_bytes, lowest_offset, end_offset),
        )

    def items(self, position_bytes: int, lowest_offset: int) -> Iterator[BatchHeader | DamagedRange]:
        """What there is from a boundary on: batches that count, and the damaged ranges between them.

        Zeros up to the end are the rest of a preallocated file, unless offsets are missing there. In a segment whose end is still to be
        found out, anything else behind the last batch is a torn append, and no damage either.
        """
        while position_bytes < self.end_bytes:
            header = self.log_batch_at(position_bytes, lowest_offset)
            if header is None:
                if self._is_complete(lowest_offset) and self.is_blank(position_bytes):
                    return
                damage = self.damage_at(position_bytes, lowest_offset)
                if damage.end_bytes == self.end_bytes and self.limits.end_offset is None:
                    return
                yield damage
                position_bytes = damage.end_bytes
            else:
                yield header
                position_bytes, lowest_offset = header.end_position_bytes, header.next_offset

    def is_blank(self, position_bytes: int) -> bool:
        """Whether there are only zeros from a place to the end."""
        return self._search.skip_zeros(position_bytes) is None

    def _is_complete(self, next_offset: int) -> bool:
        """Whether no offset is missing up to the segment's end."""
        return self.limits.end_offset is None or next_offset >= self.limits.end_offset

    def is_intact(self, position_bytes: int) -> bool:
        """Whether a whole batch with a right CRC stands here, whatever its offsets."""
        return self._search.intact_batch_at(position_bytes) is not None

    def _reason(self, position_bytes: int, lowest_offset: int) -> SegmentLogError:
        error = reason_at(self.probe, self.limits, position_bytes, lowest_offset, self._max_batch_bytes)
        if error is not None:
            return error
        # Nothing is wrong with the batch itself: the one behind it proves its offsets wrong.
        header = self.probe.header(position_bytes)
        behind = header and self.probe.header(header.end_position_bytes)
        return self.limits.disorder(header, behind, self.probe.path)

    def _is_outlier(self, header: BatchHeader, lowest_offset: int) -> bool:
        """Whether the batch behind proves a batch's offsets wrong, instead of the other way round."""
        behind = self.probe.header(header.end_position_bytes)
        if behind is None or self.limits.follows(behind, header.next_offset):
            return False
        if not self.limits.follows(behind, lowest_offset) or not self.probe.is_crc_right(behind):
            return False
        if (behind.last_offset, behind.crc) == (header.last_offset, header.crc):
            # A batch that stands twice.
            return False
        if not header.is_wrapper:
            if header.base_offset == lowest_offset:
                return False
            if not behind.is_wrapper and lowest_offset + header.last_offset_delta + 1 == behind.base_offset:
                return True
        third = self._search.intact_batch_at(behind.end_position_bytes)
        if third is None:
            return not header.is_wrapper
        if not (behind.is_wrapper or third.is_wrapper):
            filled_offset = header.next_offset + behind.last_offset_delta + 1
            if filled_offset == third.base_offset:
                return False
        return self.limits.follows(third, behind.next_offset)

    def _first_offset(self, header: BatchHeader) -> int:
        """The offset of a batch's first record, which a wrapper has to be decoded for."""
        if not header.is_wrapper:
            return header.base_offset
        try:
            batch = read_batch(self._log_file, header, self._max_batch_bytes)
            offsets, _ = batch_timestamps(
                batch, header, path=self._log_file.path, limit_bytes=self._max_batch_bytes
            )
        except SegmentLogError:
            return header.last_offset
        return int(offsets[0])

    def _may_hold_markers(
        self, position_bytes: int, end_bytes: int, lowest_offset: int, end_offset: int
    ) -> bool:
        """Whether a damaged range can hold a batch as small as a marker.

        It cannot where the headers in it, one behind the other, account for every byte and every offset:
        then the lengths are right, whatever else is wrong.
        """
        while position_bytes < end_bytes:
            header = self.probe.header(position_bytes)
            if header is None or header.is_wrapper or header.base_offset != lowest_offset:
                return True
            if header.size_bytes <= _LARGEST_MARKER_BYTES and header.last_offset_delta == 0:
                return True
            position_bytes, lowest_offset = header.end_position_bytes, header.next_offset
        return (position_bytes, lowest_offset) != (end_bytes, end_offset)


# So many batches in a row may be damaged although their headers are not, before a walk from the
# beginning is needed to find a sound one in front of them.
_REMEMBERED_BATCHES: Final = 256
# How far apart those are that are remembered.
_REMEMBERED_BYTES: Final = 64 * 1024


class BatchLocation:
    """What stands around an offset.

    Attributes:
        before: The last batch that counts with lower offsets only; None if there is none.
        damage: The damaged range behind it, if there is one.
        found: The first batch that counts and reaches the offset; None if there is none.
    """

    __slots__ = ("before", "damage", "found")

    def __init__(
        self, before: BatchHeader | None, damage: DamagedRange | None, found: BatchHeader | None
    ) -> None:
        self.before = before
        self.damage = damage
        self.found = found


class TolerantWalk:
    """Walks as `BatchWalk` does.

    Args:
        log_file: The file.
        base_offset: The segment's base offset.
        resynchroniser: Tells what counts. It knows where the file ends.
        skip_damage: Whether to go on behind damage, or to raise an error that names all of it.
    """

    def __init__(
        self, log_file: OpenFile, base_offset: int, resynchroniser: Resynchroniser, *, skip_damage: bool
    ) -> None:
        self._log_file = log_file
        self._base_offset = base_offset
        self._resynchroniser = resynchroniser
        self._skip_damage = skip_damage
        self.raw = BatchWalk(log_file, base_offset, resynchroniser.end_bytes)

    def skim(self, position_bytes: int = 0) -> Iterator[SkimmedBatch]:
        """Walk from a batch boundary and yield only the fields that look-ups compare.

        Raises:
            CorruptRecordError: There is damage that is not to be skipped.
        """
        if self._skip_damage:
            for header in self._hop(position_bytes):
                yield _skimmed(header)
            return
        before = last = None
        try:
            for batch in self.raw.skim(position_bytes):
                before, last = last, batch
                yield batch
        except CorruptError as error:
            raise self._whole_error(error, before, last) from error

    def batches(self, position_bytes: int = 0) -> Iterator[BatchHeader]:
        """Walk from a batch boundary and yield whole headers; raises as `skim` does."""
        if self._skip_damage:
            yield from self._hop(position_bytes)
            return
        before = last = None
        try:
            for header in self.raw.batches(position_bytes):
                before, last = last, header
                yield header
        except CorruptError as error:
            walked = [None if header is None else _skimmed(header) for header in (before, last)]
            raise self._whole_error(error, *walked) from error

    def batch_at(self, position_bytes: int) -> BatchHeader | None:
        """The header at a batch boundary; None if a walk would end there. Raises as `skim` does."""
        return next(self.batches(position_bytes), None)

    def first_reaching(self, offset: int, position_bytes: int) -> BatchHeader | None:
        """The first batch from a boundary on whose last offset is at least ``offset``; None if the walk ends before.

        A damaged length may lead into a record's value, where batches may be that are not of the log. So the CRCs of
        the batches that the walk went over decide.

        Raises:
            CorruptRecordError: There is damage on the way, and it may have taken the offset.
        """
        if self._skip_damage:
            return self.locate_offset(offset, position_bytes).found
        found = next((batch for batch in self.skim(position_bytes) if batch[3] >= offset), None)
        if found is None:
            return None
        if self.raw.is_proven(found[0], position_bytes):
            header = self.raw.batch_at(found[0])
            return None if header is None else header.with_lower_base(found[2])
        around = self.locate_offset(offset, position_bytes)
        if around.damage is not None and around.damage.end_offset > offset:
            raise around.damage.error()
        return around.found

    def first_at_or_after(self, position_bytes: int, start_bytes: int) -> SkimmedBatch | None:
        """The first batch that does not begin in front of a place, walking from a boundary; None if none follows.

        Where a plain walk hops over the place, or meets damage, every CRC on the way decides.
        """
        found: SkimmedBatch | None = None
        with contextlib.suppress(CorruptError):
            found = next((batch for batch in self.raw.skim(start_bytes) if batch[0] >= position_bytes), None)
            if found is not None and found[0] == position_bytes:
                return found
        if position_bytes - start_bytes > USUAL_MAX_BATCH_BYTES:
            return found
        for item in self._resynchroniser.items(start_bytes, self._base_offset):
            if not isinstance(item, DamagedRange) and item.position_bytes >= position_bytes:
                return _skimmed(item)
        return None

    def locate_offset(self, offset: int, position_bytes: int) -> BatchLocation:
        """What stands around an offset, walking from a boundary in front of it. Every CRC near it is checked."""
        return self.locate_first(lambda header: header.last_offset >= offset, position_bytes)

    def first_log_batch(self, place_bytes: int, position_bytes: int) -> BatchHeader | None:
        """The first batch that counts and does not begin in front of a place, walking from a boundary."""
        return self.locate_first(lambda header: header.position_bytes >= place_bytes, position_bytes).found

    def locate_first(self, is_reached: Callable[[BatchHeader], bool], start_bytes: int) -> BatchLocation:
        """What stands around the first batch of a kind, walking from a boundary. Every CRC near it is checked."""
        before = found = None
        damage_end_bytes, next_bytes = start_bytes, start_bytes
        places: deque[BatchHeader] = deque(maxlen=_REMEMBERED_BATCHES)
        for header in self._hop(start_bytes):
            if header.position_bytes != next_bytes:
                damage_end_bytes = header.position_bytes
            next_bytes = header.end_position_bytes
            if is_reached(header):
                found = header
                break
            before = header
            if not places or header.position_bytes >= places[-1].position_bytes + _REMEMBERED_BYTES:
                places.append(header)
        end_bytes = self._resynchroniser.end_bytes if found is None else found.position_bytes
        start_bytes, lowest_offset = self._far_boundary(places, end_bytes, start_bytes)
        is_whole = found is not None and damage_end_bytes <= start_bytes
        if is_whole and self.raw.are_crcs_right(start_bytes, next_bytes):
            return BatchLocation(before, None, found)
        return self._divided(is_reached, start_bytes, lowest_offset)

    def _far_boundary(self, places: deque[BatchHeader], end_bytes: int, start_bytes: int) -> tuple[int, int]:
        """Where a batch that counts begins, with its offset, so far in front of a place that it does not reach it."""
        for header in reversed(places):
            if header.position_bytes <= end_bytes - USUAL_MAX_BATCH_BYTES:
                lowest_offset = known_offset(header)
                if self._resynchroniser.log_batch_at(header.position_bytes, lowest_offset) is not None:
                    return header.position_bytes, lowest_offset
        return start_bytes, self._base_offset

    def _divided(
        self, is_reached: Callable[[BatchHeader], bool], start_bytes: int, lowest_offset: int
    ) -> BatchLocation:
        before: BatchHeader | None = None
        damage: DamagedRange | None = None
        for item in self._resynchroniser.items(start_bytes, lowest_offset):
            if isinstance(item, DamagedRange):
                damage = item
            elif is_reached(item):
                return BatchLocation(before, damage, item)
            else:
                before, damage = item, None
        return BatchLocation(before, damage, None)

    def _hop(self, start_bytes: int) -> Iterator[BatchHeader]:
        """Walk from a boundary to the end, hopping over damage."""
        resynchroniser = self._resynchroniser
        position_bytes, lowest_offset = start_bytes, self._base_offset
        while position_bytes < resynchroniser.end_bytes:
            for header, is_followed in self._pairs(position_bytes, lowest_offset):
                if position_bytes == start_bytes > 0:
                    # Whoever found the place has proven what begins there.
                    lowest_offset = max(lowest_offset, known_offset(header))
                if not is_followed and resynchroniser.log_batch_at(position_bytes, lowest_offset) is None:
                    break
                yield header
                position_bytes, lowest_offset = header.end_position_bytes, header.next_offset
            found = resynchroniser.next_log_batch(position_bytes, lowest_offset)
            if found is None:
                return
            yield found
            position_bytes, lowest_offset = found.end_position_bytes, found.next_offset

    def _pairs(self, position_bytes: int, lowest_offset: int) -> Iterator[tuple[BatchHeader, bool]]:
        """Headers up to where damage shows, each with whether the next one follows it without a gap."""
        walk = BatchWalk(self._log_file, lowest_offset, self._resynchroniser.end_bytes)
        end_offset = self._resynchroniser.limits.end_offset
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
        self, error: CorruptError, before: SkimmedBatch | None, last: SkimmedBatch | None
    ) -> Exception:
        """The error for all of the damage that a walk has met behind two batches."""
        if error.position_bytes is None:
            return error
        position_bytes, lowest_offset = error.position_bytes, self._base_offset
        if last is not None:
            position_bytes = last[0]
            if before is not None:
                lowest_offset = before[3] + 1
            elif position_bytes > 0:
                lowest_offset = last[2]
            if self._resynchroniser.log_batch_at(position_bytes, lowest_offset) is not None:
                position_bytes, lowest_offset = last[1], last[3] + 1
        damage = self._resynchroniser.damage_at(position_bytes, lowest_offset)
        return error if damage.end_bytes == damage.start_bytes else damage.error()


def _skimmed(header: BatchHeader) -> SkimmedBatch:
    return (
        header.position_bytes,
        header.end_position_bytes,
        header.base_offset,
        header.last_offset,
        header.max_timestamp_ms,
    )


_LOGGER: Final = logging.getLogger(__name__)
# How many batches at the end of a file may be damaged although their headers are not.
_REMEMBERED: Final = 65_536


def end_of_batches(
    log_file: OpenFile,
    base_offset: int,
    start_position_bytes: int,
    end_position_bytes: int,
    *,
    skip_damage: bool = False,
) -> SegmentEnd | None:
    """Where the batches from a boundary on end; None if not one of them is whole and valid.

    Args:
        log_file: The file.
        base_offset: The segment's base offset.
        start_position_bytes: The boundary.
        end_position_bytes: Where the file ends, or where nothing valid is known to follow.
        skip_damage: Whether a valid batch behind damage is an error, or the end lies behind it.

    Raises:
        CorruptRecordError: There is damage with a valid batch behind it.
    """
    # The size of a batch does not matter here: one that is too large for a reader is still no torn append.
    resynchroniser = Resynchroniser(
        log_file, base_offset, end_position_bytes, None, MAX_ENCODABLE_BATCH_BYTES
    )
    walk = TolerantWalk(log_file, base_offset, resynchroniser, skip_damage=skip_damage)
    batches = (walk if skip_damage else walk.raw).skim(start_position_bytes)
    last = _last_valid(batches, resynchroniser)
    if last is None:
        position_bytes, next_offset = start_position_bytes, base_offset
    else:
        _, position_bytes, _, last_offset, _ = last
        next_offset = last_offset + 1
    if resynchroniser.is_blank(position_bytes):
        return None if last is None else SegmentEnd(next_offset, position_bytes)
    found = resynchroniser.next_log_batch(position_bytes, next_offset)
    # What is whole is not torn, even if its offsets are those of another place.
    is_damaged = found is not None or resynchroniser.is_intact(position_bytes)
    if is_damaged or resynchroniser.probe.is_exhausted:
        error = resynchroniser.damage_at(position_bytes, next_offset).error()
        if not skip_damage:
            raise error
        _LOGGER.warning("The log ends in front of damage: %s", error)
        if last is not None:
            # The damage belongs to the log, so that whoever reads it to its end is told.
            return SegmentEnd(next_offset, end_position_bytes)
    return None if last is None else SegmentEnd(next_offset, position_bytes)


def _last_valid(batches: Iterator[SkimmedBatch], resynchroniser: Resynchroniser) -> SkimmedBatch | None:
    """The last batch whose CRC is right."""
    walked: deque[SkimmedBatch] = deque(maxlen=_REMEMBERED)
    # What was walked before an error is in the queue.
    with contextlib.suppress(CorruptError):
        walked.extend(batches)
    return next((batch for batch in reversed(walked) if resynchroniser.is_intact(batch[0])), None)
