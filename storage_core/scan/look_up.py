"""What a look-up in planning may cost, and what the indexes say of its gain before the log is looked at.

A condition is applied to the rows anyway, so leaving out a part of a file is worth no more than
it saves. What is read in looking is counted against that, and a look-up that would not pay is
not made: then whole segments are read.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final

from storage_core.cached_property import cached_property
from storage_core.errors import CorruptError, UnsupportedFormatError
from storage_core.record.batch_header import HEADER_SIZE_BYTES, parse_batch_header

if TYPE_CHECKING:
    from storage_core.directory import PartitionLog
    from storage_core.record.batch_header import BatchHeader
    from storage_core.segment import SegmentReader

__all__ = [
    "DAMAGE",
    "LARGE_BATCH_BYTES",
    "LOOK_UP_PRICE_BYTES",
    "Budget",
    "RangeOfSegments",
    "batch_reaching",
    "first_header",
    "indexed_position",
]

# The most that it takes to find a batch by the indexes, to prove what they say, and to find it once more when
# spans are located: a few blocks of a page and of four.
LOOK_UP_PRICE_BYTES: Final = 96 << 10
# Of batches from this size on, a walk reads the headers alone. Of smaller ones it reads most.
LARGE_BATCH_BYTES: Final = 16 << 10
# What may be lost in looking without any gain: so little of the whole.
_LOSS_SHARE: Final = 64
# One byte read is worth it where it saves so many.
_GAIN: Final = 2
# But planning is one thread's work: no look-up in one partition reads more, some seconds' worth of headers.
_MOST_BYTES: Final = 64 << 20

DAMAGE: Final = (CorruptError, UnsupportedFormatError)
"""What a look-up meets and leaves for the reading to report."""


class RangeOfSegments:
    """The segments that hold a range of offsets.

    Args:
        log: The partition. Of its last segment only what stands in front of the log's end counts.
        start_offset: The first offset.
        end_offset: The offset behind the last one.
    """

    def __init__(self, log: PartitionLog, start_offset: int, end_offset: int) -> None:
        self._log = log
        bases = log.segments.base_offsets
        first = log.segment_index_for(start_offset) or 0
        end = len(bases) if start_offset < end_offset else 0
        self.indexes = [index for index in range(first, end) if bases[index] < end_offset]
        if self.indexes and self.indexes[-1] == len(bases) - 1:
            # From here on the last segment ends where the log does.
            _ = log.log_end_offset

    @cached_property
    def sizes_bytes(self) -> list[int]:
        """Each segment's size.

        Raises:
            DataLossError: A segment vanished since the log was listed.
        """
        return [self._log.ask(index, lambda segment: segment.size_bytes) for index in self.indexes]

    @property
    def size_bytes(self) -> int:
        """The size of all of them."""
        return sum(self.sizes_bytes)

    def sizes_from_bytes(self) -> list[int]:
        """For each segment, its size and that of all behind it."""
        return list(accumulate(reversed(self.sizes_bytes)))[::-1]

    def is_complete(self, index: int) -> bool:
        """Whether a broker has closed the time index, and so has written the largest timestamp into it."""
        return index < len(self._log.segments) - 1 or self._log.is_clean


class Budget:
    """What walks over headers may read: little in vain, and otherwise less than they save.

    Args:
        size_bytes: Of how many bytes there is to be saved.
    """

    def __init__(self, size_bytes: int) -> None:
        self._free_bytes = size_bytes // _LOSS_SHARE
        self._bytes_at_first: int | None = None
        self._passed_bytes = 0

    def pass_over(self, segment: SegmentReader, size_bytes: int) -> None:
        """Note that so many bytes need not be read."""
        self.spent_bytes(segment)
        self._passed_bytes += size_bytes

    def is_spent(self, segment: SegmentReader) -> bool:
        """Whether going on would cost more than it may save."""
        return not self.allows(segment, 0)

    def allows(self, segment: SegmentReader, size_bytes: int) -> bool:
        """Whether so many bytes more may be read."""
        allowed_bytes = self._free_bytes + self._passed_bytes // _GAIN
        return self.spent_bytes(segment) + size_bytes <= min(allowed_bytes, _MOST_BYTES)

    def spent_bytes(self, segment: SegmentReader) -> int:
        """How many bytes were read since this was asked first."""
        bytes_read = segment.filesystem.statistics.bytes_read
        if self._bytes_at_first is None:
            self._bytes_at_first = bytes_read
        return bytes_read - self._bytes_at_first


def first_header(segment: SegmentReader) -> BatchHeader | None:
    """The header of a segment's first batch, read alone; None if there is no batch."""
    with segment.open_log() as log_file:
        data = log_file.read_at(HEADER_SIZE_BYTES, 0)
    if len(data) < HEADER_SIZE_BYTES:
        return None
    try:
        return parse_batch_header(data, 0, 0, path=segment.log_path)
    except DAMAGE:
        return None


def batch_reaching(segment: SegmentReader, offset: int) -> BatchHeader | None:
    """The first batch whose last offset is at least ``offset``; None if there is none, or damage in front of it."""
    try:
        return segment.translate_offset(offset)
    except DAMAGE:
        return None


def indexed_position(segment: SegmentReader, offset: int) -> int:
    """Where the offset index says that an offset stands, or something before it. Only the log can prove it."""
    if offset <= segment.base_offset:
        return 0
    return min(segment.offset_index.lookup(offset).position_bytes, segment.size_bytes)
