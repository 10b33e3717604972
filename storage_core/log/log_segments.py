"""The segments of one log, in order of their base offsets (Kafka's ``LogSegments``)."""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING

from storage_core.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from storage_core.segment.log_segment import LogSegment

__all__ = ["LogSegments"]


_base_offset_of = attrgetter("base_offset")


class LogSegments:
    """Segments by base offset; the last one is the active one. Look-ups take O(log n).

    One thread changes it, any number of threads may look meanwhile: each answer is that of one moment.
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
        """All segments, in order, as they are now."""
        return iter(self._segments.copy())

    def __contains__(self, base_offset: int) -> bool:
        return self.get(base_offset) is not None

    @property
    def base_offsets(self) -> list[int]:
        """All base offsets, ascending."""
        return [segment.base_offset for segment in self._segments]

    @property
    def first(self) -> LogSegment | None:
        """The segment with the lowest base offset; None if there is none."""
        segments = self._segments
        return segments[0] if segments else None

    @property
    def last(self) -> LogSegment | None:
        """The segment with the highest base offset; None if there is none."""
        segments = self._segments
        return segments[-1] if segments else None

    @property
    def active(self) -> LogSegment:
        """The last segment, the one that is appended to. There must be one."""
        return self._segments[-1]

    @property
    def size_bytes(self) -> int:
        """Size of all log files together, as far as they are filled."""
        return sum(segment.size_bytes for segment in self)

    def add(self, segment: LogSegment) -> None:
        """Add a segment, in the place of one with the same base offset if there is one."""
        segments, base_offset = self._segments, segment.base_offset
        if not segments or segments[-1].base_offset < base_offset:
            segments.append(segment)
            return
        number = bisect_left(segments, base_offset, key=_base_offset_of)
        behind = number + (segments[number].base_offset == base_offset)
        self._segments = [*segments[:number], segment, *segments[behind:]]

    def remove(self, base_offset: int) -> LogSegment | None:
        """Take a segment out and return it; None if there is none with this base offset."""
        segments = self._segments
        number = bisect_left(segments, base_offset, key=_base_offset_of)
        if number == len(segments) or segments[number].base_offset != base_offset:
            return None
        self._segments = segments[:number] + segments[number + 1 :]
        return segments[number]

    def remove_all(self, base_offsets: Collection[int]) -> None:
        """Take out the segments that begin at any of these offsets, all at once; those that do not exist are none."""
        removed = frozenset(base_offsets)
        self._segments = [segment for segment in self._segments if segment.base_offset not in removed]

    def clear(self) -> None:
        """Take all segments out."""
        self._segments = []

    def get(self, base_offset: int) -> LogSegment | None:
        """The segment with exactly this base offset; None if there is none."""
        found = self.floor(base_offset)
        return found if found is not None and found.base_offset == base_offset else None

    def floor(self, offset: int) -> LogSegment | None:
        """The segment with the highest base offset up to ``offset``; None if there is none."""
        segments = self._segments
        number = bisect_right(segments, offset, key=_base_offset_of)
        return segments[number - 1] if number else None

    def lower(self, offset: int) -> LogSegment | None:
        """The segment with the highest base offset below ``offset``; None if there is none."""
        segments = self._segments
        number = bisect_left(segments, offset, key=_base_offset_of)
        return segments[number - 1] if number else None

    def higher(self, offset: int) -> LogSegment | None:
        """The segment with the lowest base offset above ``offset``; None if there is none."""
        segments = self._segments
        number = bisect_right(segments, offset, key=_base_offset_of)
        return segments[number] if number < len(segments) else None

    def higher_segments(self, offset: int) -> list[LogSegment]:
        """The segments with base offsets above ``offset``."""
        segments = self._segments
        return segments[bisect_right(segments, offset, key=_base_offset_of) :]

    def values(self, start_offset: int | None = None, end_offset: int | None = None) -> list[LogSegment]:
        """The segments that may hold offsets from ``start_offset`` to before ``end_offset``.

        The first is the one that ``start_offset`` lies in: the segment with the highest base offset up to it.

        Args:
            start_offset: None for the beginning.
            end_offset: None for the end. A segment that begins there is left out.

        Raises:
            OptionError: The end lies in front of the start.
        """
        segments = self._segments
        if start_offset is not None and end_offset is not None and end_offset < start_offset:
            raise OptionError(
                f"Expected a range of offsets that does not end in front of its start, found {start_offset} to "
                f"{end_offset}."
            )
        first, behind = 0, len(segments)
        if start_offset is not None:
            first = max(0, bisect_right(segments, start_offset, key=_base_offset_of) - 1)
        if end_offset is not None:
            behind = bisect_left(segments, end_offset, key=_base_offset_of)
        return segments[first:behind]

    def close(self) -> None:
        """Close all segments, see `LogSegment.close`. One that fails does not keep the others open.

        Raises:
            StorageError: The first failure.
        """
        with contextlib.ExitStack() as stack:
            for segment in self:
                stack.callback(segment.close)

    def close_handlers(self) -> None:
        """Close all files as they are."""
        for segment in self:
            segment.close_handlers()
