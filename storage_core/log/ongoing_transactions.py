"""The transactions of a log that are not settled: open, or ended by a marker that may still be lost."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["OngoingTransactions"]


class OngoingTransactions:
    """Where transactions began, in the order of their offsets. One writer.

    Attributes:
        first_unstable_offset: Where the earliest transaction begins that is open, or whose marker is
            not below the high watermark; None if there is none. May be read at any time.
    """

    def __init__(self) -> None:
        self.first_unstable_offset: int | None = None
        # First offset by producer id. Entered in the order of the offsets: the first entry is the oldest.
        self._open: dict[int, int] = {}
        # A heap of the first offset and the marker's offset of transactions that ended. One whose marker
        # is stable may wait in it until it comes to the top.
        self._unreplicated: list[tuple[int, int]] = []
        self._stable_offset = 0

    @property
    def open_transactions(self) -> Mapping[int, int]:
        """First offset of each open transaction by its producer id, oldest first. To be looked at only."""
        return self._open

    def load(self, first_offsets: Iterable[tuple[int, int]]) -> None:
        """Forget all, and begin with these: first offset and producer id, in any order."""
        self._open = {producer_id: first_offset for first_offset, producer_id in sorted(first_offsets)}
        self._unreplicated.clear()
        self._stable_offset = 0
        self.settle()

    def begin(self, producer_id: int, first_offset: int) -> None:
        """A transaction begins behind all that have begun. `settle` is to follow."""
        self._open[producer_id] = first_offset

    def end(self, producer_id: int, marker_offset: int) -> int:
        """A transaction that is open ends. `settle` is to follow.

        Returns:
            Where the earliest other one begins that is open; the offset behind the marker if there is none.
        """
        heappush(self._unreplicated, (self._open.pop(producer_id), marker_offset))
        return next(iter(self._open.values()), marker_offset + 1)

    def on_high_watermark_updated(self, high_watermark: int) -> None:
        """Forget the transactions whose markers lie below the high watermark."""
        if high_watermark > self._stable_offset:
            self._stable_offset = high_watermark
            if self._unreplicated:
                self.settle()

    def settle(self) -> None:
        """Bring the first unstable offset up to date."""
        heap = self._unreplicated
        while heap and heap[0][1] < self._stable_offset:
            heappop(heap)
        first_offset = next(iter(self._open.values()), None)
        if heap and (first_offset is None or heap[0][0] < first_offset):
            first_offset = heap[0][0]
        self.first_unstable_offset = first_offset
