"""A span of a segment file, divided into batches that count and damaged ranges, in file order.

Nothing is looked at twice where all is well: headers, CRCs and order are checked for a window as a
whole. Where something is wrong, a `Resynchroniser` says what is damaged, from where to where.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

from storage_core.record.batch_header import MAGIC_V2
from storage_core.scan.selection import AbortedRanges, select_batches
from storage_core.scan.window_reader import FileReplacedError, WindowSource, needed_bytes
from storage_core.segment import DamagedRange, Resynchroniser
from storage_core.segment.offset_order import known_offset

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    import numpy.typing as npt

    from storage_core.filesystem import OpenFile
    from storage_core.record.batch_window import BatchWindow
    from storage_core.scan.selection import BatchSelection
    from storage_core.scan.spans import LogSpan
    from storage_core.scan.window_reader import WindowBuffer

__all__ = ["SpanReader", "WindowPart"]

_OFFSET_BYTES: Final = 8
# A batch that declares more than this is looked at twice before memory is given to it, once damage was met.
_LARGE_BATCH_BYTES: Final = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class WindowPart:
    """Neighbouring batches of a window that count.

    Attributes:
        window: The window. Its bytes are valid until the next part is asked for.
        decoded: Indexes of those batches whose records are wanted.
        next_offset: The offset behind the last of the batches.
    """

    window: BatchWindow
    decoded: npt.NDArray[np.int64]
    next_offset: int


class SpanReader:
    """Reads one span.

    Args:
        opened: The file that the span was planned for.
        span: What to read.
        buffer: Where its bytes go.
        max_batch_bytes: The largest batch that counts.
    """

    def __init__(self, opened: OpenFile, span: LogSpan, buffer: WindowBuffer, max_batch_bytes: int) -> None:
        self._opened = opened
        self._span = span
        self._max_batch_bytes = max_batch_bytes
        self._aborted = AbortedRanges(span.aborted_transactions)
        self._source = WindowSource(opened, span, buffer)
        self._lowest_offset = span.base_offset
        self._is_past_end = False
        self._known_resynchroniser: Resynchroniser | None = None

    def parts(self) -> Iterator[WindowPart | DamagedRange]:
        """The span's batches, window by window, and its damaged ranges.

        Raises:
            FileReplacedError: The file is another one, or became shorter.
        """
        source = self._source
        while not (source.is_at_end or self._is_past_end):
            window = source.window(self._lowest_offset)
            next_bytes: int | None = None
            if len(window.starts):
                if source.position_bytes == self._span.position_bytes:
                    self._begin(window)
                next_bytes = yield from self._good_batches(window)
            if next_bytes is None and not self._is_past_end:
                damage = self._damage_behind(window)
                if damage is None:
                    if window.is_blank_behind or source.is_last:
                        return
                    source.go_behind(window)
                    continue
                yield damage
                next_bytes = damage.end_bytes
            if next_bytes is not None:
                source.go_behind_damage(next_bytes)

    def _begin(self, window: BatchWindow) -> None:
        """Check that the file is still the one that was planned: offsets may be missing in another one."""
        if self._span.position_bytes > 0:
            header = window.header(0)
            if header.base_offset > self._span.start_offset:
                raise FileReplacedError
            self._lowest_offset = max(self._lowest_offset, known_offset(header))

    # What is in a window.

    def _good_batches(self, window: BatchWindow) -> Generator[WindowPart | DamagedRange, None, int | None]:
        """The parts of a window. Returns where to go on if the walk over it was wrong from some place on."""
        chosen = select_batches(window, self._span, self._aborted, self._lowest_offset, self._max_batch_bytes)
        suspects = self._suspects(window, chosen)
        first, count = 0, len(window.starts)
        for suspect in suspects:
            if suspect < first:
                continue
            bad = self._bad_index(window, chosen, first, suspect)
            if bad is None:
                continue
            if bad > first:
                yield self._part(window, chosen, first, bad)
                if self._is_past_end:
                    return None
            damage = self._damage_at(window.position_bytes + int(window.starts[bad]))
            yield damage
            first = int(np.searchsorted(window.starts, damage.end_bytes - window.position_bytes))
            is_border = first < count and window.starts[first] == damage.end_bytes - window.position_bytes
            # Where wrappers begin depends on the batch before, which was damaged.
            if not is_border or (window.headers["magic"] != MAGIC_V2).any():
                return damage.end_bytes
        if first < count:
            yield self._part(window, chosen, first, count)
        return None

    def _suspects(self, window: BatchWindow, chosen: BatchSelection) -> list[int]:
        """Indexes of batches at which something is wrong; their number if it is so behind the last one."""
        # Also of those that seem to lie outside of the span's offsets: a damaged header hides what they hold.
        suspects: list[int] = window.crc_mismatches(np.arange(len(window.starts))).tolist()
        if len(chosen.misfits):
            suspects = sorted({*suspects, *chosen.misfits.tolist()})
        if self._is_order_broken_behind(window, int(chosen.last_offsets[-1])):
            suspects.append(len(window.starts))
        return suspects

    def _is_order_broken_behind(self, window: BatchWindow, last_offset: int) -> bool:
        """Whether the offset behind a window's last batch is none that may follow it."""
        if window.is_blank_behind:
            return False
        offset = bytes(window.buffer[window.end : min(window.end + _OFFSET_BYTES, self._source.size_bytes)])
        if len(offset) < _OFFSET_BYTES:
            position_bytes = window.position_bytes + window.end
            size_bytes = min(_OFFSET_BYTES, self._segment_end_bytes - position_bytes)
            if size_bytes < _OFFSET_BYTES:
                return False
            offset = self._opened.read_at(size_bytes, position_bytes)
        return int.from_bytes(offset, "big", signed=True) <= last_offset

    def _bad_index(self, window: BatchWindow, chosen: BatchSelection, first: int, suspect: int) -> int | None:
        """Where damage begins that shows at a batch: there, or at the one before; None if all is well."""
        resynchroniser = self._resynchroniser
        for index in (suspect - 1, suspect):
            if first <= index < len(window.starts):
                lowest_offset = self._lowest_offset
                if index > first:
                    lowest_offset = int(chosen.last_offsets[index - 1]) + 1
                position_bytes = window.position_bytes + int(window.starts[index])
                if resynchroniser.accepted(position_bytes, lowest_offset) is None:
                    return index
        return None

    def _part(self, window: BatchWindow, chosen: BatchSelection, first: int, end: int) -> WindowPart:
        self._lowest_offset = int(chosen.last_offsets[end - 1]) + 1
        self._is_past_end = bool(chosen.base_offsets[end - 1] >= self._span.end_offset)
        decoded = chosen.decoded
        if end - first < len(window.starts):
            decoded = decoded[slice(*np.searchsorted(decoded, (first, end)))]
        return WindowPart(window, decoded, self._lowest_offset)

    # What is behind it.

    def _damage_behind(self, window: BatchWindow) -> DamagedRange | None:
        """The damage that begins behind a window's last batch; None if there is none, or it cannot be told yet."""
        position_bytes = window.position_bytes + window.end
        if window.is_blank_behind:
            if not self._is_complete or not self._resynchroniser.is_blank(position_bytes):
                return self._damage_at(position_bytes)
            self._require_whole_file()
            return None
        if window.error is not None:
            return self._damage_at(position_bytes)
        rest_bytes = self._source.size_bytes - window.end
        if self._source.is_last and rest_bytes:
            is_blank = not window.buffer[window.end : self._source.size_bytes].any()
            is_preallocated = is_blank and self._is_at_segment_end and self._is_complete
            return None if is_preallocated else self._damage_at(position_bytes)
        size_bytes = needed_bytes(window, self._source.size_bytes)
        if size_bytes > self._max_batch_bytes or (
            self._known_resynchroniser is not None
            and size_bytes > _LARGE_BATCH_BYTES
            and self._resynchroniser.accepted(position_bytes, self._lowest_offset) is None
        ):
            return self._damage_at(position_bytes)
        return None

    def _damage_at(self, position_bytes: int) -> DamagedRange:
        damage = self._resynchroniser.damage_at(position_bytes, self._lowest_offset)
        self._require_whole_file()
        if damage.end_bytes <= position_bytes:
            # A sound batch, but the span ends within it: whoever planned it was told wrong by an index.
            damage = dataclasses.replace(
                damage,
                end_bytes=self._span.end_position_bytes,
                end_offset=max(self._lowest_offset, self._span.end_offset),
                reason="Expected the span to end with a batch, found it to end within one.",
            )
        if damage.end_bytes == self._segment_end_bytes and self._span.segment_end_offset is None:
            end_offset = max(damage.end_offset, self._span.end_offset)
            damage = dataclasses.replace(damage, end_offset=end_offset)
        return damage

    def _require_whole_file(self) -> None:
        if self._opened.size_bytes() < self._segment_end_bytes:
            raise FileReplacedError

    @property
    def _segment_end_bytes(self) -> int:
        end_bytes = self._span.segment_end_bytes
        return self._span.end_position_bytes if end_bytes is None else end_bytes

    @property
    def _is_complete(self) -> bool:
        """Whether no offset is missing up to the next segment. Where some are, zeros may be what was lost."""
        end_offset = self._span.segment_end_offset
        return end_offset is None or self._lowest_offset >= end_offset

    @property
    def _is_at_segment_end(self) -> bool:
        return self._span.end_position_bytes >= self._segment_end_bytes

    @property
    def _resynchroniser(self) -> Resynchroniser:
        if self._known_resynchroniser is None:
            self._known_resynchroniser = Resynchroniser(
                self._opened,
                self._span.base_offset,
                self._segment_end_bytes,
                self._span.segment_end_offset,
                self._max_batch_bytes,
            )
        return self._known_resynchroniser
