"""Finding the next batch that counts behind damage, and saying what lies between.

A log file is divided into batches that count and damaged ranges between them, always in the same
way, wherever a reader begins. A batch counts if it is whole, its CRC is right and its offsets
follow those of the batch before. No CRC covers a batch's base offset, so of two batches out of
order one is the outlier, and damage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from storage_core.errors import SegmentLogError
from storage_core.record import batch_timestamps
from storage_core.segment.batch_probe import BatchProbe
from storage_core.segment.batch_read import read_batch
from storage_core.segment.batch_search import BatchSearch
from storage_core.segment.damage import DamagedRange
from storage_core.segment.damage_reason import reason_at
from storage_core.segment.offset_order import OffsetLimits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.filesystem import OpenFile
    from storage_core.record.batch_header import BatchHeader

__all__ = ["Resynchroniser"]

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

    def accepted(self, position_bytes: int, lowest_offset: int) -> BatchHeader | None:
        """The batch at a boundary, if it counts.

        Args:
            position_bytes: Where it would begin.
            lowest_offset: The offset behind the last batch that counts in front of it.
        """
        header = self._search.sound(position_bytes, lowest_offset)
        if header is None or self._is_outlier(header, lowest_offset):
            return None
        return header

    def next_accepted(self, position_bytes: int, lowest_offset: int) -> BatchHeader | None:
        """The first batch that counts at a boundary or behind it; None if none follows."""
        found = self.accepted(position_bytes, lowest_offset)
        while found is None and position_bytes < self.end_bytes:
            self.probe.advance_to(position_bytes)
            next_position = self._search.behind(position_bytes, lowest_offset)
            if next_position is None:
                return None
            position_bytes = next_position
            found = self.accepted(position_bytes, lowest_offset)
        return found

    def damage_at(self, position_bytes: int, lowest_offset: int) -> DamagedRange:
        """The damaged range that begins at a boundary where no batch counts."""
        error = self._reason(position_bytes, lowest_offset)
        found = self.next_accepted(position_bytes, lowest_offset)
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
            header = self.accepted(position_bytes, lowest_offset)
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
        return self._search.whole(position_bytes) is not None

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
        third = self._search.whole(behind.end_position_bytes)
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
