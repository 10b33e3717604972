"""The segments of a log as a pass of the cleaner found them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from storage_core.log.segment_groups import SegmentSizes, group_segments
from storage_core.segment import offset_index, time_index

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from storage_core.log_config import LogConfig
    from storage_core.segment.log_segment import LogSegment
    from storage_core.segment.values import AbortedTransaction

__all__ = ["CleaningSources", "groups_of"]


class CleaningSources:
    """Segments, ascending; the last one is active.

    Args:
        segments: The segments.
    """

    __slots__ = ("_base_offsets", "_segments")

    def __init__(self, segments: Sequence[LogSegment]) -> None:
        self._segments = segments
        self._base_offsets = [segment.base_offset for segment in segments]

    def between(self, start_offset: int | None, end_offset: int | None) -> Sequence[LogSegment]:
        """The segments from the one on that holds an offset, up to one that begins at another; None for the ends."""
        first = 0 if start_offset is None else max(0, bisect_right(self._base_offsets, start_offset) - 1)
        behind = None if end_offset is None else bisect_left(self._base_offsets, end_offset)
        return self._segments[first:behind]

    def aborted_transactions(self, start_offset: int, end_offset: int) -> Iterator[AbortedTransaction]:
        """The aborted transactions that reach into a range; their markers may stand behind it.

        Raises:
            CorruptIndexError: A transaction index is damaged: what was aborted would count as if it were not.
        """
        for segment in self.between(start_offset, None):
            index = segment.transaction_index.read()
            if index.problem is not None:
                segment.transaction_index.check()
            aborted, is_all = index.collect_aborted_transactions(start_offset, end_offset)
            yield from aborted
            if is_all:
                return

    def aborted_transactions_of(self, sources: Sequence[LogSegment]) -> Iterator[AbortedTransaction]:
        """Those that reach into some of the first segments, none of them active."""
        if sources:
            behind = self._base_offsets[bisect_right(self._base_offsets, sources[-1].base_offset)]
            yield from self.aborted_transactions(sources[0].base_offset, behind)


def groups_of(
    sources: Sequence[LogSegment], config: LogConfig, end_offset: int
) -> list[Sequence[LogSegment]]:
    """Segments in groups each of which fits one segment, see `group_segments`."""
    sizes = [
        SegmentSizes(
            segment.base_offset,
            segment.size_bytes,
            len(segment.offset_index) * offset_index.ENTRY_SIZE_BYTES,
            len(segment.time_index) * time_index.ENTRY_SIZE_BYTES,
        )
        for segment in sources
    ]
    groups = group_segments(
        sizes,
        max_log_bytes=config.max_segment_bytes,
        max_index_bytes=config.segment_index_bytes,
        end_offset=end_offset,
    )
    return [sources[group.start : group.stop] for group in groups]
