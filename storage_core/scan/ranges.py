"""Offset ranges, and how they are cut into tasks by number of offsets.

The cutting is that of Spark's Kafka source (``minPartitions``, ``maxRecordsPerPartition``):
it counts offsets, not records or bytes, so pieces of a compacted or transactional log hold
fewer records than their size says. Pieces are made one at a time: a log with a huge gap has more
of them than can be listed, and most are empty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["PartitionRange", "RangePieces", "split_ranges"]


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Offsets ``start_offset`` (inclusive) to ``end_offset`` (exclusive) of one topic-partition."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int

    @property
    def size(self) -> int:
        """The number of offsets, which gaps make larger than the number of records."""
        return self.end_offset - self.start_offset


@dataclass(frozen=True, slots=True)
class RangePieces:
    """A range in ``count`` near-equal pieces, the smaller ones first. None is empty."""

    whole: PartitionRange
    count: int

    def __iter__(self) -> Iterator[PartitionRange]:
        return map(self.piece, range(self.count))

    def piece(self, index: int) -> PartitionRange:
        """The piece of an index from 0 to below ``count``."""
        whole = self.whole
        return PartitionRange(whole.topic, whole.partition, self._start(index), self._start(index + 1))

    def index_of(self, offset: int) -> int:
        """Index of the piece that holds an offset of the range."""
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
    """Cut ranges so that there are enough pieces, and none is larger than asked for.

    First every range is cut into near-equal pieces of at most ``max_records_per_partition``
    offsets. If there are then fewer pieces than ``min_partitions``, larger ones are cut in
    proportion to their sizes; rounding may give a few more or fewer than asked for.

    Args:
        ranges: The ranges wanted; empty ones are dropped.
        min_partitions: The number of pieces wanted at least, or None.
        max_records_per_partition: The largest size wanted, or None.

    Returns:
        The pieces, in the order of the ranges that they come from.
    """
    cut = [
        RangePieces(whole, -(-whole.size // (max_records_per_partition or whole.size)))
        for whole in ranges
        if whole.size > 0
    ]
    if min_partitions is None or sum(each.count for each in cut) >= min_partitions:
        return cut
    pieces = [piece for each in cut for piece in each]
    counts = _proportional_counts([piece.size for piece in pieces], min_partitions)
    # More pieces than offsets would be empty ones.
    return [RangePieces(piece, min(count, piece.size)) for piece, count in zip(pieces, counts, strict=True)]


def _proportional_counts(sizes: Sequence[int], min_partitions: int) -> list[int]:
    """How many pieces each range becomes: two passes, so that small ranges take no share of large ones."""
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
