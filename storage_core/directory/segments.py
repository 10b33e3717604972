"""The segments of a log, none of them touched before it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, overload

from storage_core.segment.file_names import SWAP_SUFFIX
from storage_core.segment.segment_reader import SegmentReader

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from storage_core.directory.segment_listing import SegmentListing

__all__ = ["Segments"]

_MOST_OPENED: Final = 16_384


class Segments(Sequence[SegmentReader]):
    """The segments of a log by ascending base offset, each made when it is first taken.

    As many as a log usually has are made once. Of more, those that were taken first are made again when
    they are needed; but never the last one, which ends where the log does.

    Args:
        listing: What the directory held.
        open_segment: Makes a segment from its base offset, the directory's file names if they
            are known, and the suffix of its files.
    """

    def __init__(
        self,
        listing: SegmentListing,
        open_segment: Callable[[int, Collection[str] | None, str], SegmentReader],
    ) -> None:
        self.base_offsets = listing.base_offsets
        self.file_names = listing.file_names
        self._swapped = listing.swapped
        self._open_segment = open_segment
        self._opened: dict[int, SegmentReader] = {}

    def __len__(self) -> int:
        return len(self.base_offsets)

    @overload
    def __getitem__(self, index: int) -> SegmentReader: ...

    @overload
    def __getitem__(self, index: slice) -> list[SegmentReader]: ...

    def __getitem__(self, index: int | slice) -> SegmentReader | list[SegmentReader]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        base_offset = self.base_offsets[index]
        segment = self._opened.get(base_offset)
        if segment is not None:
            return segment
        suffix = SWAP_SUFFIX if base_offset in self._swapped else ""
        return self._keep(self._open_segment(base_offset, self.file_names, suffix))

    def open_again(self, index: int, suffix: str = "") -> SegmentReader:
        """Take a segment's files by their present names; the listing does not count for it any more."""
        return self._keep(self._open_segment(self.base_offsets[index], None, suffix))

    def _keep(self, segment: SegmentReader) -> SegmentReader:
        opened, base_offset = self._opened, segment.base_offset
        if base_offset not in opened and len(opened) >= _MOST_OPENED:
            oldest = next(iter(opened))
            if oldest == self.base_offsets[-1]:
                # Where the log ends was found out for good.
                opened[oldest] = opened.pop(oldest)
                oldest = next(iter(opened))
            del opened[oldest]
        opened[base_offset] = segment
        return segment
