"""The segments of one log, in order of their base offsets (Kafka's ``LogSegments``)."""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from storage_core.segment.log_segment import LogSegment


_base_offset_of = attrgetter("base_offset")


class LogSegments:
    """Segments by base offset; the last one is active. Look-ups take O(log n).

    One thread changes the segments; any number may read them meanwhile, and each call sees one state.
    """

    __slots__ = ("_segments",)

    def __init__(self, segments: Iterable[LogSegment] = ()) -> None:
        # Changed in place only by appending; otherwise replaced, so that a look-up sees one state.
        self._segments: list[LogSegment] = []
        for segment in sorted(segments, key=_base_offset_of):
            self.add(segment)

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[LogSegment]:
        """Iterate over all segments, in order, as they are now."""
        return iter(self._segments.copy())

    @property
    def base_offsets(self) -> list[int]:
        """The base offsets, ascending."""
        return [segment.base_offset for segment in self._segments]

    @property
    def active(self) -> LogSegment:
        """The last segment, to which batches are appended. There must be one."""
        return self._segments[-1]

    def add(self, segment: LogSegment) -> None:
        """Add a segment, replacing one with the same base offset."""
        segments, base_offset = self._segments, segment.base_offset
        if not segments or segments[-1].base_offset < base_offset:
            segments.append(segment)
            return
        number = bisect_left(segments, base_offset, key=_base_offset_of)
        following = number + (segments[number].base_offset == base_offset)
        self._segments = [*segments[:number], segment, *segments[following:]]

    def remove_all(self, base_offsets: Collection[int]) -> None:
        """Remove the segments with any of these base offsets in one step. Unknown offsets are ignored."""
        removed = frozenset(base_offsets)
        self._segments = [segment for segment in self._segments if segment.base_offset not in removed]

    def floor(self, offset: int) -> LogSegment | None:
        """Find the segment with the highest base offset up to ``offset``.

        Returns:
            The segment, or None if there is none.
        """
        segments = self._segments
        number = bisect_right(segments, offset, key=_base_offset_of)
        return segments[number - 1] if number else None

    def higher_segments(self, offset: int) -> list[LogSegment]:
        """Return the segments with base offsets above ``offset``."""
        segments = self._segments
        return segments[bisect_right(segments, offset, key=_base_offset_of) :]

    def values(self, start_offset: int | None = None, end_offset: int | None = None) -> list[LogSegment]:
        """Return the segments that may hold offsets from ``start_offset`` to before ``end_offset``. None is no limit.

        The first one is the segment with the highest base offset at or below ``start_offset``.
        """
        segments = self._segments
        first, stop = 0, len(segments)
        if start_offset is not None:
            first = max(0, bisect_right(segments, start_offset, key=_base_offset_of) - 1)
        if end_offset is not None:
            stop = bisect_left(segments, end_offset, key=_base_offset_of)
        return segments[first:stop]

    def close(self) -> None:
        """Close all segments, see `LogSegment.close`. A failure does not keep the others open.

        Raises:
            StorageError: The first failure.
        """
        with contextlib.ExitStack() as stack:
            for segment in self:
                stack.callback(segment.close)

    def close_handlers(self) -> None:
        """Close all files without flushing them."""
        for segment in self:
            segment.close_handlers()
