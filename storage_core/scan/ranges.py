"""Offset ranges, and how they are cut into tasks by number of offsets.

The cutting is that of Spark's Kafka source (``minPartitions``, ``maxRecordsPerPartition``):
it counts offsets, not records or bytes, so pieces of a compacted or transactional log hold
fewer records than their size says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["PartitionRange", "split_ranges"]


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


def split_ranges(
    ranges: Iterable[PartitionRange],
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
) -> list[PartitionRange]:
    """Cut ranges so that there are enough of them, and none is larger than asked for.

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
    pieces = [piece for piece in ranges if piece.size > 0]
    if max_records_per_partition is not None:
        pieces = _cut_all(pieces, [-(-piece.size // max_records_per_partition) for piece in pieces])
    if min_partitions is None or len(pieces) >= min_partitions:
        return pieces
    return _cut_all(pieces, _proportional_counts([piece.size for piece in pieces], min_partitions))


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


def _cut_all(ranges: Sequence[PartitionRange], counts: Sequence[int]) -> list[PartitionRange]:
    return [piece for whole, count in zip(ranges, counts, strict=True) for piece in _cut(whole, count)]


def _cut(whole: PartitionRange, count: int) -> list[PartitionRange]:
    # More pieces than offsets would only add empty pieces in front.
    count = min(count, whole.size)
    pieces = []
    start = whole.start_offset
    for index in range(count):
        end = start + (whole.end_offset - start) // (count - index)
        pieces.append(PartitionRange(whole.topic, whole.partition, start, end))
        start = end
    return pieces
