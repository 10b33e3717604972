"""Which batches get an entry in a segment's indexes (the rule of Kafka's ``LogSegment.append``).

A batch gets one if more than ``index.interval.bytes`` lie between its beginning and that of the
last batch that got one: the first batch of a segment never does.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from storage_core.segment.values import TimestampOffset

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["IndexEntries", "index_entries"]


_Int64Array: TypeAlias = "npt.NDArray[np.int64]"


@dataclass(frozen=True, slots=True, eq=False)
class IndexEntries:
    """The entries for some batches that lie back to back, and what the next ones start with.

    Args:
        offsets: Last offset of each batch that gets an entry.
        positions_bytes: Where it begins in the file.
        timestamps_ms: The largest timestamp up to and including it. The time index takes it if it is new.
        timestamp_offsets: Last offset of the first batch that holds this timestamp.
        largest_timestamp: The largest timestamp up to and including the last batch.
        bytes_since_last_entry: Size of the batches from the last one with an entry on.
    """

    offsets: _Int64Array
    positions_bytes: _Int64Array
    timestamps_ms: _Int64Array
    timestamp_offsets: _Int64Array
    largest_timestamp: TimestampOffset
    bytes_since_last_entry: int


def index_entries(
    last_offsets: _Int64Array,
    max_timestamps_ms: npt.NDArray[Any],
    sizes_bytes: _Int64Array,
    position_bytes: int,
    interval_bytes: int,
    *,
    largest_timestamp: TimestampOffset,
    bytes_since_last_entry: int,
) -> IndexEntries:
    """The entries for batches that are appended at a position.

    Args:
        last_offsets: Last offset of each batch; at least one.
        max_timestamps_ms: Its largest timestamp.
        sizes_bytes: Its size.
        position_bytes: Where the first one begins.
        interval_bytes: ``index.interval.bytes``.
        largest_timestamp: The largest timestamp in front of them.
        bytes_since_last_entry: Size of the batches in front of them from the last one with an entry on.
    """
    ends = np.cumsum(sizes_bytes)
    # Places are counted from the last batch with an entry.
    places = ends - sizes_bytes + bytes_since_last_entry
    numbers, reference = _chosen(places, sizes_bytes, interval_bytes)
    # In front of the batches stands what was largest before them.
    timestamps_ms = np.concatenate([[largest_timestamp.timestamp_ms], max_timestamps_ms.astype(np.int64)])
    offsets = np.concatenate([[largest_timestamp.offset], last_offsets])
    running_ms = np.maximum.accumulate(timestamps_ms)
    holders = np.zeros(len(running_ms), np.int64)
    holders[1:] = np.where(running_ms[1:] > running_ms[:-1], np.arange(1, len(running_ms)), 0)
    holders = np.maximum.accumulate(holders)
    last_holder = holders[-1]
    holders = holders[1:][numbers]
    return IndexEntries(
        last_offsets[numbers],
        places[numbers] + (position_bytes - bytes_since_last_entry),
        timestamps_ms[holders],
        offsets[holders],
        TimestampOffset(int(timestamps_ms[last_holder]), int(offsets[last_holder])),
        bytes_since_last_entry + int(ends[-1]) - reference,
    )


def _chosen(places: _Int64Array, sizes_bytes: _Int64Array, interval_bytes: int) -> tuple[_Int64Array, int]:
    """The numbers of the batches that get an entry, and the place of the last of them."""
    if int(sizes_bytes.min()) > interval_bytes:
        # Large batches: every one does, unless the first one stands right behind the last that did.
        chosen = np.arange(0 if places[0] > interval_bytes else 1, len(places))
        return chosen, int(places[-1]) if len(chosen) else 0
    listed = places.tolist()
    numbers: list[int] = []
    number = reference = 0
    while (number := bisect_right(listed, reference + interval_bytes, lo=number)) < len(listed):
        numbers.append(number)
        reference = listed[number]
    return np.array(numbers, np.int64), reference
