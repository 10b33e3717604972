"""Which segments a cleaning joins into one (Kafka's ``Cleaner.groupSegmentsBySize``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_core.segment.offset_index_file import LARGEST_RELATIVE_OFFSET

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SegmentSizes", "group_segments"]


@dataclass(frozen=True, slots=True)
class SegmentSizes:
    """A segment that is to be cleaned.

    Attributes:
        base_offset: Its base offset.
        log_bytes: Size of its log file.
        offset_index_bytes: Size of its offset index.
        time_index_bytes: Size of its time index.
    """

    base_offset: int
    log_bytes: int
    offset_index_bytes: int = 0
    time_index_bytes: int = 0


def group_segments(
    segments: Sequence[SegmentSizes], *, max_log_bytes: int, max_index_bytes: int, end_offset: int
) -> tuple[range, ...]:
    """Divide segments into groups, each of which fits one segment whatever is left of it.

    Args:
        segments: The segments, ascending.
        max_log_bytes: ``segment.bytes``.
        max_index_bytes: ``segment.index.bytes``.
        end_offset: Every offset in the segments lies below it.

    Returns:
        Of each group, the positions of its segments; each segment is in exactly one.
    """
    groups: list[range] = []
    start = 0
    while start < len(segments):
        first = segments[start]
        log_bytes, offset_index_bytes = first.log_bytes, first.offset_index_bytes
        time_index_bytes = first.time_index_bytes
        end = start + 1
        while end < len(segments):
            segment = segments[end]
            log_bytes += segment.log_bytes
            offset_index_bytes += segment.offset_index_bytes
            time_index_bytes += segment.time_index_bytes
            # What is really the last offset would take a look into the file.
            behind = segments[end + 1].base_offset if end + 1 < len(segments) else end_offset
            if (
                log_bytes > max_log_bytes
                or offset_index_bytes > max_index_bytes
                or time_index_bytes > max_index_bytes
                # An empty one reaches nowhere: otherwise one would be left for every 2^31 offsets.
                or (segment.log_bytes and behind - 1 - first.base_offset > LARGEST_RELATIVE_OFFSET)
            ):
                break
            end += 1
        groups.append(range(start, end))
        start = end
    return tuple(groups)
