"""Read a span of a segment file: valid batches and damaged ranges, in file order and in bounded memory.

The file is read in windows of whole batches. Headers, CRCs and the order of offsets are checked for a
window at once. Only if a check fails, a `DamageScanner` finds out what is damaged, from where to where.
Views that need only headers use the same loop, without CRCs as long as the headers agree.
"""

from __future__ import annotations

import dataclasses
import os
import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from storage_core.errors import FileReplacedError
from storage_core.record.batch_header import (
    CODEC_MASK,
    CONTROL_FLAG,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    MIN_LENGTH_BY_MAGIC,
    SMALLEST_RECORD_BYTES,
    TRANSACTIONAL_FLAG,
    wrapper_rows,
)
from storage_core.record.batch_window import BatchWindow
from storage_core.segment import AbortedTransaction, DamagedRange, DamageScanner
from storage_core.segment.batch_windows import WindowBuffer, WindowReader, part_of
from storage_core.segment.damage import known_offset
from storage_core.segment.file_names import DELETED_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    import numpy.typing as npt

    from storage_core.filesystem import ReadableFile, ReadableFileSystem
    from storage_core.scan.spans import LogSpan


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class BatchSelection:
    """Batches of a window within a span's offsets.

    Attributes:
        decoded: Indexes of the batches with records that consumers may see.
        out_of_place: Indexes of the batches that cannot be valid at their position: the offsets do not ascend, or
            are outside of the segment, or the batch is too large.
    """

    decoded: npt.NDArray[np.int64]
    out_of_place: npt.NDArray[np.int64]
    base_offsets: npt.NDArray[np.int64]
    last_offsets: npt.NDArray[np.int64]


def select_batches(
    window: BatchWindow, span: LogSpan, aborted: AbortedRanges, lowest_offset: int, max_batch_bytes: int
) -> BatchSelection:
    """Choose the batches of a window to decode by their headers, and find those that are out of place.

    No batch may begin below ``lowest_offset``: the segment's base offset, or the next offset after the previous batch.
    """
    headers = window.headers
    base_offsets = headers["base_offset"].astype(np.int64)
    last_offsets = base_offsets + headers["last_offset_delta"]
    visible = (last_offsets >= span.start_offset) & (base_offsets < span.end_offset)
    visible &= (headers["record_count"] != 0) & ((headers["attributes"] & CONTROL_FLAG) == 0)
    visible &= ~aborted.cover(headers, base_offsets)
    out_of_place = last_offsets < base_offsets
    out_of_place[0] |= int(base_offsets[0]) < lowest_offset
    # The offset after the largest one would have a negative sign.
    out_of_place[1:] |= base_offsets[1:] <= last_offsets[:-1]
    out_of_place |= headers["batch_length"] > max_batch_bytes - LOG_OVERHEAD_BYTES
    if span.segment_end_offset is not None:
        out_of_place |= last_offsets > span.segment_end_offset - 1
    return BatchSelection(np.flatnonzero(visible), np.flatnonzero(out_of_place), base_offsets, last_offsets)


class AbortedRanges:
    """Aborted transactions of a span, by producer."""

    def __init__(self, transactions: tuple[AbortedTransaction, ...]) -> None:
        by_producer: dict[int, list[tuple[int, int]]] = {}
        for each in transactions:
            by_producer.setdefault(each.producer_id, []).append((each.first_offset, each.last_offset))
        self._by_producer = {
            producer_id: _OffsetRanges(ranges) for producer_id, ranges in by_producer.items()
        }

    def cover(self, headers: npt.NDArray[Any], base_offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return a flag for each batch: True if it is data of an aborted transaction."""
        covered = np.zeros(len(headers), np.bool_)
        if not self._by_producer:
            return covered
        indexes = np.flatnonzero(headers["attributes"] & TRANSACTIONAL_FLAG)
        producer_ids = headers["producer_id"][indexes].astype(np.int64)
        order = np.argsort(producer_ids, kind="stable")
        found, first_rows = np.unique(producer_ids[order], return_index=True)
        for producer_id, rows in zip(found.tolist(), np.split(order, first_rows[1:]), strict=False):
            ranges = self._by_producer.get(producer_id)
            if ranges is not None:
                own = indexes[rows]
                covered[own] = ranges.cover(base_offsets[own])
        return covered


class _OffsetRanges:
    """Ranges of offsets, both ends included."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        table = np.array(sorted(ranges), np.int64)
        self._first_offsets = table[:, 0]
        # The highest last offset of this range and of those that begin before it.
        self._last_offsets = np.maximum.accumulate(table[:, 1])

    def cover(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return a flag for each offset: True if it is in one of the ranges."""
        numbers = np.searchsorted(self._first_offsets, offsets, side="right") - 1
        covered: npt.NDArray[np.bool_] = (numbers >= 0) & (offsets <= self._last_offsets[numbers])
        return covered


def missing_range(span: LogSpan) -> DamagedRange:
    """Return a damaged range without bytes for the records that are missing at the end of a log."""
    return DamagedRange(
        os.path.join(span.directory, span.file_name),
        span.position_bytes,
        span.position_bytes,
        span.start_offset,
        span.end_offset,
        f"Expected records up to offset {span.end_offset - 1}, as the checkpoints of the log directory say, found the "
        "end of the log: the file was cut off, or a later one is gone.",
    )


def open_span(filesystem: ReadableFileSystem, span: LogSpan) -> ReadableFile:
    """Open the log file that was planned, under its name or with the suffix ``.deleted``.

    Raises:
        FileReplacedError: Neither name leads to the file that was planned.
    """
    path = os.path.join(span.directory, span.file_name)
    for candidate in (path, path + DELETED_SUFFIX):
        try:
            opened = filesystem.open(candidate, span.version)
        except FileNotFoundError:
            continue
        if _is_as_planned(opened, span):
            return opened
        opened.close()
    raise replaced(span)


def replaced(span: LogSpan) -> FileReplacedError:
    """Return the error for a file that is not the one that was planned, or is shorter: locate the span again."""
    return FileReplacedError(
        "Expected the file that was planned, found another one, or a shorter one. Read again.",
        path=os.path.join(span.directory, span.file_name),
        offset=span.start_offset,
    )


def _is_as_planned(opened: ReadableFile, span: LogSpan) -> bool:
    status = opened.status
    if status.version != span.version:
        return False
    if span.file_size_bytes is not None:
        return status.size_bytes == span.file_size_bytes
    return status.size_bytes >= span.end_position_bytes


_OFFSET_BYTES: Final = 8
# Base offset, length and magic.
_FORMAT: Final = struct.Struct(">qi4xb")
# After damage, a batch that claims more than this is verified before memory is allocated for it.
_LARGE_BATCH_BYTES: Final = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class WindowPart:
    """Neighbouring valid batches of a window.

    Attributes:
        window: The window. Its bytes are valid until the next part is taken.
        decoded: Indexes of the batches to decode.
        next_offset: The next offset after the last batch.
    """

    window: BatchWindow
    decoded: npt.NDArray[np.int64]
    next_offset: int
    first: int
    end: int

    def valid_window(self) -> BatchWindow:
        """Return the window of these batches alone."""
        return part_of(self.window, self.first, self.end)


def count_by_headers(
    part: WindowPart, span: LogSpan, max_batch_bytes: int
) -> tuple[int, npt.NDArray[np.int64]]:
    """Count the records of a part that are within a span's offsets, as far as headers tell.

    Returns:
        The count, and the indexes of the batches that are not in it: wrappers, whose headers have no count, compacted batches
        that the span cuts, and those whose header contradicts itself or claims more records than have room.
    """
    headers = part.window.headers[part.decoded]
    first_offsets, last_offsets = (
        part.window.base_offsets[part.decoded],
        part.window.last_offsets[part.decoded],
    )
    counts = headers["record_count"].astype(np.int64)
    spread = last_offsets - first_offsets + 1
    inside = np.minimum(last_offsets, span.end_offset - 1) - np.maximum(first_offsets, span.start_offset) + 1
    is_told = (counts > 0) & (counts <= spread) & ((counts == spread) | (inside == spread))
    is_compressed = (headers["attributes"] & CODEC_MASK) != 0
    room_bytes = np.where(is_compressed, max_batch_bytes, headers["batch_length"])
    is_told &= ~wrapper_rows(headers) & (counts * SMALLEST_RECORD_BYTES <= room_bytes)
    return int(np.minimum(counts, inside)[is_told].sum()), part.decoded[~is_told]


class SpanReader:
    """Reads one span of the file that it was planned for.

    With ``trusts_headers``, CRCs are checked only where headers contradict each other or lead nowhere, so a batch may be
    damaged whose boundaries are beyond doubt. Without ``with_bytes``, large batches are hopped over.
    """

    def __init__(
        self,
        opened: ReadableFile,
        span: LogSpan,
        buffer: WindowBuffer,
        max_batch_bytes: int,
        *,
        trusts_headers: bool = False,
        with_bytes: bool = True,
    ) -> None:
        self._opened = opened
        self._span = span
        self._max_batch_bytes = max_batch_bytes
        self._aborted = AbortedRanges(span.aborted_transactions)
        self._source = WindowReader(opened, span.position_bytes, span.end_position_bytes, buffer)
        self._lowest_offset = span.base_offset
        self._is_past_end = False
        # A wrapper of old formats after damage begins there: its own offsets are relative.
        self._damage_end_offset = 0
        self._known_scanner: DamageScanner | None = None
        self._trusts_headers = trusts_headers
        self._with_bytes = with_bytes
        # Up to here, headers are not trusted.
        self._doubtful_end_bytes = 0

    def parts(self) -> Iterator[WindowPart | DamagedRange]:
        """Yield the span's batches, window by window, and its damaged ranges.

        Raises:
            FileReplacedError: The file is another one, or became shorter.
        """
        source = self._source
        if not self._span.size_bytes:
            yield self._missing_range()
        while not (source.is_at_end or self._is_past_end):
            read = source.headers if self._is_trusting and not self._with_bytes else source.window
            window = read(max(self._lowest_offset, self._damage_end_offset))
            if source.end_position_bytes < self._span.end_position_bytes:
                raise replaced(self._span)
            next_bytes: int | None = None
            if len(window.starts):
                if source.position_bytes == self._span.position_bytes:
                    self._begin(window)
                next_bytes = yield from self._good_batches(window)
            if next_bytes is None and not self._is_past_end:
                damage = self._damage_after(window)
                if damage is None:
                    if window.is_preallocated_after or source.is_last:
                        return
                    source.advance(window)
                    continue
                yield damage
                next_bytes = damage.end_bytes
            if next_bytes is not None:
                source.skip_damage(next_bytes)

    def _missing_range(self) -> DamagedRange:
        if self._opened.size_bytes() > self._span.end_position_bytes:
            # It was copied, or is appended to, meanwhile.
            raise replaced(self._span)
        return missing_range(self._span)

    def _begin(self, window: BatchWindow) -> None:
        """Check that the span still begins with the planned batch: a compacted file may lack it."""
        # Not again, should the window be read twice.
        if self._span.position_bytes > 0 and self._lowest_offset == self._span.base_offset:
            header = window.header(0)
            if header.base_offset > self._span.start_offset:
                raise replaced(self._span)
            # Of a wrapper, only the last offset is certain, and the first ones may be below those that are asked for.
            lowest_offset = min(known_offset(header), self._span.start_offset)
            self._lowest_offset = max(self._lowest_offset, lowest_offset)

    def _is_sound(self, window: BatchWindow, chosen: BatchSelection) -> bool:
        """Return True if the headers of a window agree with each other and with what follows: the end, or a header."""
        position_bytes = window.position_bytes + window.end
        if len(chosen.out_of_place):
            return False
        if position_bytes >= self._span.end_position_bytes:
            return True
        head = self._opened.read_at(_FORMAT.size, position_bytes)
        if len(head) < _FORMAT.size:
            return False
        offset, length, magic = _FORMAT.unpack(head)
        is_header: bool = 0 <= magic <= MAGIC_V2 and length >= MIN_LENGTH_BY_MAGIC[magic]
        return is_header and bool(offset > chosen.last_offsets[-1])

    @property
    def _is_trusting(self) -> bool:
        return self._trusts_headers and self._source.position_bytes >= self._doubtful_end_bytes

    def _good_batches(self, window: BatchWindow) -> Generator[WindowPart | DamagedRange, None, int | None]:
        """Yield the parts of a window.

        Returns:
            The position to continue at, if the batch boundaries after some damage are not known, or if CRCs have to tell
            what is damaged; None otherwise.
        """
        chosen = select_batches(window, self._span, self._aborted, self._lowest_offset, self._max_batch_bytes)
        if self._is_trusting:
            if self._is_sound(window, chosen):
                yield self._part(window, chosen, 0, len(window.starts))
                return None
            self._doubtful_end_bytes = window.position_bytes + window.end
            return window.position_bytes
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
            # A wrapper's first offset depends on the previous batch, which was damaged.
            if not is_border or (window.headers["magic"] != MAGIC_V2).any():
                return damage.end_bytes
        if first < count:
            yield self._part(window, chosen, first, count)
        return None

    def _suspects(self, window: BatchWindow, chosen: BatchSelection) -> list[int]:
        """Return the indexes of bad batches. The bytes after the last batch count as one more."""
        # Batches outside of the span's offsets are checked too: their headers may be damaged.
        suspects: list[int] = window.crc_mismatches(np.arange(len(window.starts))).tolist()
        if len(chosen.out_of_place):
            suspects = sorted({*suspects, *chosen.out_of_place.tolist()})
        if self._is_order_broken_after(window, int(chosen.last_offsets[-1])):
            suspects.append(len(window.starts))
        return suspects

    def _is_order_broken_after(self, window: BatchWindow, last_offset: int) -> bool:
        """Return True if the bytes after a window's last batch are an offset that may not follow it."""
        if window.is_preallocated_after:
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
        """Determine which batch is damaged.

        Returns:
            The index of the suspect or of the batch before it; None if both are valid.
        """
        scanner = self._scanner
        for index in (suspect - 1, suspect):
            if first <= index < len(window.starts):
                lowest_offset = self._lowest_offset
                if index > first:
                    lowest_offset = int(chosen.last_offsets[index - 1]) + 1
                position_bytes = window.position_bytes + int(window.starts[index])
                if scanner.log_batch_at(position_bytes, lowest_offset) is None:
                    return index
        return None

    def _part(self, window: BatchWindow, chosen: BatchSelection, first: int, end: int) -> WindowPart:
        self._lowest_offset = int(chosen.last_offsets[end - 1]) + 1
        self._is_past_end = bool(chosen.base_offsets[end - 1] >= self._span.end_offset)
        decoded = chosen.decoded
        if end - first < len(window.starts):
            decoded = decoded[slice(*np.searchsorted(decoded, (first, end)))]
        return WindowPart(window, decoded, self._lowest_offset, first, end)

    def _damage_after(self, window: BatchWindow) -> DamagedRange | None:
        """Find damage that begins after a window's last batch.

        Returns:
            The damaged range; None if there is none, or if a larger window has to tell.
        """
        position_bytes = window.position_bytes + window.end
        if window.is_preallocated_after:
            if not self._is_complete or not self._scanner.is_blank(position_bytes):
                return self._damage_at(position_bytes)
            self._require_whole_file()
            return None
        if window.error is not None:
            return self._damage_at(position_bytes)
        rest_bytes = self._source.size_bytes - window.end
        if self._source.is_last and rest_bytes:
            is_blank = not window.buffer[window.end : self._source.size_bytes].any()
            is_at_segment_end = self._span.end_position_bytes >= self._segment_end_bytes
            is_preallocated = is_blank and is_at_segment_end and self._is_complete
            return None if is_preallocated else self._damage_at(position_bytes)
        size_bytes = self._source.needed_bytes
        if size_bytes > self._max_batch_bytes or (
            self._known_scanner is not None
            and size_bytes > _LARGE_BATCH_BYTES
            and self._scanner.log_batch_at(position_bytes, self._lowest_offset) is None
        ):
            return self._damage_at(position_bytes)
        return None

    def _damage_at(self, position_bytes: int) -> DamagedRange:
        damage = self._scanner.damage_at(position_bytes, self._lowest_offset)
        self._damage_end_offset = damage.end_offset
        self._require_whole_file()
        if damage.end_bytes <= position_bytes:
            # A valid batch, but the span ends within it: a wrong index misled the planning.
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
            raise replaced(self._span)

    @property
    def _segment_end_bytes(self) -> int:
        end_bytes = self._span.segment_end_bytes
        return self._span.end_position_bytes if end_bytes is None else end_bytes

    @property
    def _is_complete(self) -> bool:
        """True if no offset is missing up to the next segment. If some are, zeros may be lost batches."""
        end_offset = self._span.segment_end_offset
        return end_offset is None or self._lowest_offset >= end_offset

    @property
    def _scanner(self) -> DamageScanner:
        if self._known_scanner is None:
            self._known_scanner = DamageScanner(
                self._opened,
                self._span.base_offset,
                self._segment_end_bytes,
                self._span.segment_end_offset,
                self._max_batch_bytes,
            )
        return self._known_scanner
