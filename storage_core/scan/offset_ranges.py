"""Offset ranges of partitions: split into pieces, and located in segment files.

Ranges are split as Spark's ``KafkaOffsetRangeCalculator`` does (``minPartitions``,
``maxRecordsPerPartition``): by offsets, not by records or bytes, so pieces of a compacted or
transactional log hold fewer records than their size says. A log with a huge gap has more pieces
than can be listed, and most are empty, so pieces are made one at a time.
"""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from storage_core.errors import DataLossError
from storage_core.scan.spans import LogSpan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from storage_core.directory import PartitionLog
    from storage_core.errors import SegmentLogError
    from storage_core.scan.isolation import AbortedTransactions
    from storage_core.segment import SegmentReader


_log = logging.getLogger(__name__)


def report_data_loss(
    message: str,
    *,
    fails: bool,
    advice: str = "Set failOnDataLoss to false to read the records left.",
    then: str = "The read continues without them",
    error_type: type[SegmentLogError] = DataLossError,
    **position: Any,
) -> None:
    """Raise an error about records that are gone, or warn of them and say what the read does then."""
    if fails:
        raise error_type(f"{message} {advice}", **position)
    _log.warning("%s %s, because failOnDataLoss is false.", message, then)


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Offsets to read of one partition.

    Attributes:
        aborted: The aborted transactions of the range, and perhaps others; None if they were not looked up.
        is_first: Whether the read of the partition begins here. If not, damage that begins before
            ``start_offset`` is left to the range before.
    """

    log: PartitionLog
    start_offset: int
    end_offset: int
    aborted: AbortedTransactions | None = field(default=None, compare=False, repr=False)
    is_first: bool = field(default=True, compare=False)

    @property
    def topic(self) -> str:
        """Topic of the log."""
        return self.log.topic

    @property
    def partition(self) -> int:
        """Number of the partition."""
        return self.log.partition

    @property
    def size(self) -> int:
        """Number of offsets, which gaps make larger than the number of records."""
        return self.end_offset - self.start_offset

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to read."""
        return self.start_offset >= self.end_offset

    def part(self, start_offset: int, end_offset: int) -> PartitionRange:
        """Return a part of the range."""
        is_first = self.is_first and start_offset == self.start_offset
        return PartitionRange(self.log, start_offset, end_offset, self.aborted, is_first)


@dataclass(frozen=True, slots=True)
class RangePieces:
    """A range in ``count`` near-equal pieces, the smaller ones first. None is empty."""

    whole: PartitionRange
    count: int

    def __iter__(self) -> Iterator[PartitionRange]:
        return map(self.piece, range(self.count))

    def piece(self, index: int) -> PartitionRange:
        """Return the piece of an index from 0 to below ``count``."""
        return self.whole.part(self._start(index), self._start(index + 1))

    def index_of(self, offset: int) -> int:
        """Return the index of the piece that holds an offset of the range."""
        smaller_size, larger_count = divmod(self.whole.size, self.count)
        smaller_count = self.count - larger_count
        distance = offset - self.whole.start_offset
        if distance < smaller_count * smaller_size:
            return distance // smaller_size
        return smaller_count + (distance - smaller_count * smaller_size) // (smaller_size + 1)

    def _start(self, index: int) -> int:
        smaller_size, larger_count = divmod(self.whole.size, self.count)
        larger_before = max(index - (self.count - larger_count), 0)
        return self.whole.start_offset + index * smaller_size + larger_before


def split_ranges(
    ranges: Iterable[PartitionRange],
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
) -> list[RangePieces]:
    """Split ranges so that there are enough pieces, and none is larger than asked for.

    First every range is split into near-equal pieces of at most ``max_records_per_partition``
    offsets. If there are then fewer pieces than ``min_partitions``, larger ones are split in
    proportion to their sizes; rounding may give a few more or fewer than asked for. Empty ranges are dropped.
    """
    split = [
        RangePieces(whole, -(-whole.size // (max_records_per_partition or whole.size)))
        for whole in ranges
        if whole.size > 0
    ]
    if min_partitions is None or sum(each.count for each in split) >= min_partitions:
        return split
    pieces = [piece for each in split for piece in each]
    counts = _proportional_counts([piece.size for piece in pieces], min_partitions)
    # More pieces than offsets would be empty ones.
    return [RangePieces(piece, min(count, piece.size)) for piece, count in zip(pieces, counts, strict=True)]


def _proportional_counts(sizes: Sequence[int], min_partitions: int) -> list[int]:
    """Decide how many pieces each range becomes, in two passes, so that small ranges take no share of large ones."""
    total = sum(sizes)
    first_pass = [_share(size, total, min_partitions) for size in sizes]
    large_total = sum(size for size, count in zip(sizes, first_pass, strict=True) if count > 1)
    large_partitions = max(min_partitions - first_pass.count(1), 1)
    return [
        1 if count == 1 else _share(size, large_total, large_partitions)
        for size, count in zip(sizes, first_pass, strict=True)
    ]


def _share(size: int, total: int, partitions: int) -> int:
    # Half is rounded up as in Java; Python's round() would go to the even neighbour.
    return max(math.floor(size / total * partitions + 0.5), 1)


def locate_spans(wanted: PartitionRange) -> Iterator[LogSpan]:
    """Find the spans that hold a range, at most one per segment, and one without bytes for what the log's end has lost.

    Only the first and the last segment are opened; of the others, the file's size is enough.

    Raises:
        CorruptRecordError: Damage before one of the two ends.
        DataLossError: A segment vanished since the log was listed.
    """
    log = wanted.log
    bases = log.segments.base_offsets
    for index in range(log.segment_index_for(wanted.start_offset) or 0, len(bases)):
        base_offset = bases[index]
        if base_offset >= wanted.end_offset:
            break
        next_base_offset = log.segments.next_base_offset(index)
        segment_end_offset = log.segments.end_offset(index)
        end_offset = wanted.end_offset
        if segment_end_offset is not None:
            end_offset = min(end_offset, segment_end_offset)
        if max(wanted.start_offset, base_offset) >= end_offset:
            continue
        part = wanted.part(max(wanted.start_offset, base_offset), end_offset)
        if part.start_offset == base_offset > log.segments.file_base_offset(index):
            # No span before it reports damage that reaches into it.
            part = replace(part, is_first=True)
        span = log.read_segment(index, partial(_span_of, wanted=part, next_base_offset=next_base_offset))
        if span is not None:
            yield span
    missing_from = log.missing_from
    if (
        missing_from is not None
        and wanted.end_offset > missing_from
        and (wanted.start_offset <= missing_from or wanted.is_first or not log.skip_damage)
    ):
        yield _missing_span(wanted, max(wanted.start_offset, missing_from))


def _missing_span(wanted: PartitionRange, start_offset: int) -> LogSpan:
    """Return a span without bytes at the end of the last segment: the task reports that records are missing there."""
    log = wanted.log
    segment = log.segments[-1]
    size_bytes = segment.size_bytes
    return LogSpan(
        wanted.topic,
        wanted.partition,
        segment.directory,
        segment.base_offset,
        os.path.basename(segment.log_path),
        start_offset,
        log.log_end_offset,
        size_bytes,
        size_bytes,
        segment.version,
        segment_end_bytes=size_bytes,
    )


class _Place(NamedTuple):
    """Bytes of a segment file, and the first offset wanted of them."""

    start_offset: int
    position_bytes: int
    end_position_bytes: int


def _span_of(segment: SegmentReader, wanted: PartitionRange, next_base_offset: int | None) -> LogSpan | None:
    """Locate a range that begins and ends in one segment.

    Args:
        segment: The segment.
        wanted: The range.
        next_base_offset: The base offset of the next segment; None for the last one.

    Returns:
        The span; None if no batch can hold any of the offsets.
    """
    locate = _locate_with_damage if wanted.log.skip_damage else _locate
    place = locate(segment, wanted, next_base_offset)
    if place is None or place.end_position_bytes <= place.position_bytes:
        return None
    return LogSpan(
        wanted.topic,
        wanted.partition,
        segment.directory,
        segment.base_offset,
        os.path.basename(segment.log_path),
        place.start_offset,
        wanted.end_offset,
        place.position_bytes,
        place.end_position_bytes,
        segment.version,
        None if next_base_offset is None else segment.size_bytes,
        () if wanted.aborted is None else wanted.aborted.touching(wanted.start_offset, wanted.end_offset),
        segment_end_bytes=segment.size_bytes,
        segment_end_offset=segment.offset_limit,
        is_first=wanted.is_first,
    )


def _locate(segment: SegmentReader, wanted: PartitionRange, next_base_offset: int | None) -> _Place:
    """Locate a range where damage is an error."""
    start_offset, last_offset = wanted.start_offset, wanted.end_offset - 1
    position_bytes = boundary_bytes = 0
    if start_offset > segment.base_offset:
        first = segment.translate_offset(start_offset)
        if first is None or first.base_offset > start_offset:
            # Only headers say that there is a gap here, and nothing has proven them yet.
            segment.check_gap(start_offset)
        if first is None:
            # The task reads on from here: it tells damage from the end of the file.
            position_bytes = segment.stop_position(start_offset)
        else:
            position_bytes = boundary_bytes = first.position_bytes
            # A range that begins in a gap begins after it: then its first batch tells the task whether
            # the file is still the one that was planned.
            start_offset = max(start_offset, first.base_offset)
    end_position_bytes = _known_end_position(segment, wanted, next_base_offset)
    if end_position_bytes is not None:
        return _Place(start_offset, position_bytes, end_position_bytes)
    last = segment.translate_offset(last_offset, boundary_bytes)
    if last is None:
        end_position_bytes = segment.end().position_bytes if next_base_offset is None else segment.size_bytes
    elif last.base_offset > last_offset:
        # The range ends in a gap.
        segment.check_gap(last_offset)
        end_position_bytes = last.position_bytes
    else:
        end_position_bytes = last.end_position_bytes
    return _Place(start_offset, position_bytes, end_position_bytes)


def _locate_with_damage(
    segment: SegmentReader, wanted: PartitionRange, next_base_offset: int | None
) -> _Place | None:
    """Locate a range where damage is skipped. A damaged range belongs to the range of offsets that it begins in.

    A range that begins with damage is read from the last batch before it, so that the task finds
    the damage again, and what is lost with it.
    """
    start_offset, last_offset = wanted.start_offset, wanted.end_offset - 1
    position_bytes = 0
    if start_offset > segment.base_offset:
        location = segment.locate_offset(start_offset)
        damage = location.damage
        if damage is not None and (
            damage.start_offset >= start_offset or (wanted.is_first and damage.end_offset > start_offset)
        ):
            position_bytes = 0 if location.before is None else location.before.position_bytes
        elif location.found is None:
            return None
        else:
            position_bytes = location.found.position_bytes
            start_offset = max(start_offset, location.found.base_offset)
    end_position_bytes = _known_end_position(segment, wanted, next_base_offset)
    if end_position_bytes is not None:
        return _Place(start_offset, position_bytes, end_position_bytes)
    location = segment.locate_offset(last_offset)
    if location.found is not None and location.found.base_offset <= last_offset:
        end_position_bytes = location.found.end_position_bytes
    elif location.damage is not None:
        end_position_bytes = location.damage.end_bytes
    else:
        end_position_bytes = 0 if location.before is None else location.before.end_position_bytes
    return _Place(start_offset, position_bytes, end_position_bytes)


def _known_end_position(
    segment: SegmentReader, wanted: PartitionRange, next_base_offset: int | None
) -> int | None:
    """Return the end position of a range that reaches to the end of the segment.

    Returns:
        Bytes from the start of the file; None if the end has to be looked up.
    """
    if wanted.end_offset == next_base_offset:
        return segment.size_bytes
    known_end = segment.known_end
    is_known = known_end is not None and wanted.end_offset == known_end.next_offset
    return known_end.position_bytes if known_end is not None and is_known else None
