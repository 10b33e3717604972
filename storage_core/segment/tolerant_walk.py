"""A walk over batch headers that knows of damage: it goes on behind it, or says where it ends.

A header walk alone notices damage late, or never: a length that was changed leads somewhere else.
So this walk believes a header whose batch is followed by another one without a gap, or at a
place that cannot be told apart from one; any other batch it takes only with a right CRC.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING, Final

from storage_core.errors import CorruptError
from storage_core.segment.batch_walk import LARGEST_BATCH_BYTES, BatchWalk
from storage_core.segment.damage import DamagedRange
from storage_core.segment.offset_order import known_offset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from storage_core.filesystem import OpenFile
    from storage_core.record.batch_header import BatchHeader
    from storage_core.segment.batch_walk import SkimmedBatch
    from storage_core.segment.resynchronise import Resynchroniser

__all__ = ["Surroundings", "TolerantWalk"]

# So many batches in a row may be damaged although their headers are not, before a walk from the
# beginning is needed to find a sound one in front of them.
_REMEMBERED: Final = 256
# How far apart those are that are remembered.
_REMEMBERED_BYTES: Final = 64 * 1024


class Surroundings:
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
            return self.around(offset, position_bytes).found
        found = next((batch for batch in self.skim(position_bytes) if batch[3] >= offset), None)
        if found is None:
            return None
        if self.raw.is_proven(found[0], position_bytes):
            header = self.raw.batch_at(found[0])
            return None if header is None else header.with_lower_base(found[2])
        around = self.around(offset, position_bytes)
        if around.damage is not None and around.damage.end_offset > offset:
            raise around.damage.error()
        return around.found

    def first_at_or_behind(self, position_bytes: int, start_bytes: int) -> SkimmedBatch | None:
        """The first batch that does not begin in front of a place, walking from a boundary; None if none follows.

        Where a plain walk hops over the place, or meets damage, every CRC on the way decides.
        """
        found: SkimmedBatch | None = None
        with contextlib.suppress(CorruptError):
            found = next((batch for batch in self.raw.skim(start_bytes) if batch[0] >= position_bytes), None)
            if found is not None and found[0] == position_bytes:
                return found
        if position_bytes - start_bytes > LARGEST_BATCH_BYTES:
            return found
        for item in self._resynchroniser.items(start_bytes, self._base_offset):
            if not isinstance(item, DamagedRange) and item.position_bytes >= position_bytes:
                return _skimmed(item)
        return None

    def around(self, offset: int, position_bytes: int) -> Surroundings:
        """What stands around an offset, walking from a boundary in front of it. Every CRC near it is checked."""
        return self.first_that(lambda header: header.last_offset >= offset, position_bytes)

    def first_counted(self, place_bytes: int, position_bytes: int) -> BatchHeader | None:
        """The first batch that counts and does not begin in front of a place, walking from a boundary."""
        return self.first_that(lambda header: header.position_bytes >= place_bytes, position_bytes).found

    def first_that(self, is_reached: Callable[[BatchHeader], bool], start_bytes: int) -> Surroundings:
        """What stands around the first batch of a kind, walking from a boundary. Every CRC near it is checked."""
        before = found = None
        damage_end_bytes, next_bytes = start_bytes, start_bytes
        places: deque[BatchHeader] = deque(maxlen=_REMEMBERED)
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
            return Surroundings(before, None, found)
        return self._divided(is_reached, start_bytes, lowest_offset)

    def _far_boundary(self, places: deque[BatchHeader], end_bytes: int, start_bytes: int) -> tuple[int, int]:
        """Where a batch that counts begins, with its offset, so far in front of a place that it does not reach it."""
        for header in reversed(places):
            if header.position_bytes <= end_bytes - LARGEST_BATCH_BYTES:
                lowest_offset = known_offset(header)
                if self._resynchroniser.accepted(header.position_bytes, lowest_offset) is not None:
                    return header.position_bytes, lowest_offset
        return start_bytes, self._base_offset

    def _divided(
        self, is_reached: Callable[[BatchHeader], bool], start_bytes: int, lowest_offset: int
    ) -> Surroundings:
        before: BatchHeader | None = None
        damage: DamagedRange | None = None
        for item in self._resynchroniser.items(start_bytes, lowest_offset):
            if isinstance(item, DamagedRange):
                damage = item
            elif is_reached(item):
                return Surroundings(before, damage, item)
            else:
                before, damage = item, None
        return Surroundings(before, damage, None)

    def _hop(self, start_bytes: int) -> Iterator[BatchHeader]:
        """Walk from a boundary to the end, hopping over damage."""
        resynchroniser = self._resynchroniser
        position_bytes, lowest_offset = start_bytes, self._base_offset
        while position_bytes < resynchroniser.end_bytes:
            for header, is_followed in self._pairs(position_bytes, lowest_offset):
                if position_bytes == start_bytes > 0:
                    # Whoever found the place has proven what begins there.
                    lowest_offset = max(lowest_offset, known_offset(header))
                if not is_followed and resynchroniser.accepted(position_bytes, lowest_offset) is None:
                    break
                yield header
                position_bytes, lowest_offset = header.end_position_bytes, header.next_offset
            found = resynchroniser.next_accepted(position_bytes, lowest_offset)
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
            if self._resynchroniser.accepted(position_bytes, lowest_offset) is not None:
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
