"""The batches of a span of a log file by their headers, as columns, without reading their records.

Large batches are hopped over, one header at a time; small ones are read by the window. Lengths are trusted as long as
they lead from batch to batch, and offsets ascend. Where they do not, the stretch is walked again with every CRC
checked, so that the walk goes on at the next batch that certainly belongs to the log.
"""

from __future__ import annotations

import dataclasses
import logging
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from storage_core.errors import CorruptError
from storage_core.record.batch_header import (
    HEADER_DTYPE,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_V2,
    MAX_OFFSET,
    MIN_LENGTH_BY_MAGIC,
    BatchHeader,
    batch_crc_matches,
)
from storage_core.record.control_records import MAX_CONTROL_BYTES, read_marker
from storage_core.scan.offset_ranges import locate_spans, report_data_loss
from storage_core.scan.span_reader import FileReplacedError, missing_range, open_span
from storage_core.scan.spans import ReadSettings
from storage_core.segment import DamagedRange, DamageScanner
from storage_core.segment.batch_windows import WINDOW_BYTES, WindowBuffer, WindowReader, hop_over_batches
from storage_core.segment.damage import BatchProbe, known_offset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from storage_core.filesystem import FileSystem, OpenFile
    from storage_core.options import ReadOptions
    from storage_core.record.batch_window import BatchWindow
    from storage_core.record.control_records import EndTransactionMarker
    from storage_core.scan.offset_ranges import PartitionRange
    from storage_core.scan.spans import LogSpan

_log = logging.getLogger(__name__)
# Copying this many bytes takes as long as a call that reads one header.
_HOP_BYTES: Final = 8 << 10
# After damage, the rows of this many batches are handed on at once.
_MOST_ROWS: Final = 4096
# Base offset, length and magic.
_FORMAT: Final = struct.Struct(">qi4xb")
_Headers = npt.NDArray[Any]
_Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class HeaderChunk:
    """Neighbouring batches of a span, and perhaps their bytes.

    Attributes:
        opened: The log file, while the chunk is the present one.
        headers: Per batch, its header: a structured array of `HEADER_DTYPE`. The base offset of a wrapper is a lower
            bound.
        window: A window that holds the bytes of all of these batches, while the chunk is the present one; None if they
            were not read.
        first: The number of the first batch in the window.
    """

    opened: OpenFile
    headers: _Headers
    positions: _Int64Array
    window: BatchWindow | None = None
    first: int = 0

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def base_offsets(self) -> _Int64Array:
        """Per batch, its base offset."""
        base_offsets: _Int64Array = self.headers["base_offset"].astype(np.int64)
        return base_offsets

    @property
    def last_offsets(self) -> _Int64Array:
        """Per batch, its last offset."""
        last_offsets: _Int64Array = self.base_offsets + self.headers["last_offset_delta"]
        return last_offsets

    @property
    def sizes_bytes(self) -> _Int64Array:
        """Per batch, its size, header included."""
        sizes_bytes: _Int64Array = self.headers["batch_length"] + np.int64(LOG_OVERHEAD_BYTES)
        return sizes_bytes

    def part(self, start: int, end: int) -> HeaderChunk:
        """Return some of the batches."""
        return HeaderChunk(
            self.opened, self.headers[start:end], self.positions[start:end], self.window, self.first + start
        )

    def header(self, index: int) -> BatchHeader:
        """Return the header of one batch."""
        base_offset, length, *rest = self.headers[index].item()
        return BatchHeader(int(self.positions[index]), base_offset, length + LOG_OVERHEAD_BYTES, *rest)

    def batch(self, index: int, limit_bytes: int) -> memoryview | None:
        """Read the bytes of one batch.

        Returns:
            None if they are more than ``limit_bytes``, or if the file is shorter by now.
        """
        size_bytes = int(self.headers["batch_length"][index]) + LOG_OVERHEAD_BYTES
        position_bytes = int(self.positions[index])
        if size_bytes > limit_bytes:
            return None
        if self.window is not None:
            start = position_bytes - self.window.position_bytes
            return self.window.buffer.data[start : start + size_bytes]
        data = self.opened.read_at(size_bytes, position_bytes)
        return memoryview(data) if len(data) == size_bytes else None

    def marker(self, index: int) -> EndTransactionMarker | None:
        """Read what a control batch says of a transaction.

        Returns:
            None if it is about something else, is emptied, or is damaged.
        """
        header = self.header(index)
        if header.record_count == 0:
            return None
        batch = self.batch(index, MAX_CONTROL_BYTES)
        if batch is None or not batch_crc_matches(batch):
            _log.warning(
                "%s: the control batch at offset %d is damaged. If it is a marker, its transaction counts as open, and may "
                "be joined with the next one of its producer.",
                self.opened.path,
                header.base_offset,
            )
            return None
        try:
            return read_marker(batch, header, path=self.opened.path)
        except CorruptError as error:
            _log.warning("A marker cannot be read, and its transaction counts as open: %s", error)
            return None

    def crcs_are_right(self) -> npt.NDArray[np.bool_]:
        """Check the CRC of each batch. Batches that are not in memory are read."""
        are_right = np.ones(len(self), np.bool_)
        if self.window is not None:
            wrong = self.window.crc_mismatches(np.arange(self.first, self.first + len(self)))
            are_right[wrong - self.first] = False
            return are_right
        probe = BatchProbe(self.opened, self.opened.size_bytes())
        for index in range(len(self)):
            header = self.header(index)
            are_right[index] = (
                header.end_position_bytes <= probe.end_bytes and probe.batch_crc(header) == header.crc
            )
        return are_right


@dataclass(frozen=True, slots=True)
class PartitionSpans:
    """A range of a partition's offsets, and where its batches are: all that a task needs to walk over them."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    spans: tuple[LogSpan, ...]
    settings: ReadSettings

    @classmethod
    def of(cls, wanted: PartitionRange, options: ReadOptions) -> PartitionSpans:
        """Locate a range of offsets. Damage is skipped if the log was loaded so."""
        settings = ReadSettings(
            options.max_decompressed_batch_bytes, options.fail_on_data_loss, mode=options.mode
        )
        spans = () if wanted.is_empty else tuple(locate_spans(wanted))
        return cls(wanted.topic, wanted.partition, wanted.start_offset, wanted.end_offset, spans, settings)

    @property
    def size_bytes(self) -> int:
        """Bytes of log files in the range."""
        return sum(span.size_bytes for span in self.spans)

    def chunks(
        self, filesystem: FileSystem, on_damage: Callable[[DamagedRange], None] | None = None
    ) -> Iterator[HeaderChunk]:
        """Read the headers of the batches that hold an offset of the range; see `iter_header_chunks`."""
        for span in self.spans:
            yield from iter_header_chunks(filesystem, span, self.settings, on_damage=on_damage)


def iter_header_chunks(
    filesystem: FileSystem,
    span: LogSpan,
    settings: ReadSettings,
    *,
    with_records: bool = False,
    on_damage: Callable[[DamagedRange], None] | None = None,
) -> Iterator[HeaderChunk]:
    """Read the headers of the batches that hold an offset of a span, in file order.

    Damaged ranges are left out. A batch whose CRC does not match is among them if its boundaries are beyond doubt.

    Args:
        filesystem: Where to read.
        span: As planned by `plan_scan`.
        settings: The largest batch that is read, and whether a vanished file is an error.
        with_records: Whether to read whole batches.
        on_damage: Is told of each range in which no batch can be made out.

    Raises:
        DataLossError: The segment was deleted or replaced since the span was planned.
    """
    if not span.size_bytes:
        if on_damage is not None:
            on_damage(missing_range(span))
        return
    try:
        with open_span(filesystem, span) as opened:
            reader = _HeaderReader(opened, span, settings.max_batch_bytes, with_records=with_records)
            reader.on_damage = on_damage
            for chunk in reader.chunks():
                yield from _overlapping(chunk, span)
    except FileReplacedError:
        report_data_loss(
            f"Expected the batches with offsets {span.start_offset} to {span.end_offset - 1} in the file that was listed, "
            "found it deleted by retention, or replaced by a cleaner.",
            fails=settings.fail_on_data_loss,
            advice="Read again.",
            path=f"{span.directory}/{span.file_name}",
            offset=span.start_offset,
        )


def _overlapping(chunk: HeaderChunk, span: LogSpan) -> Iterator[HeaderChunk]:
    """Yield the batches of a chunk that hold an offset of the span. Spans are cut where batches begin: none holds two spans'."""
    inside = np.flatnonzero(
        (chunk.last_offsets >= span.start_offset) & (chunk.base_offsets < span.end_offset)
    )
    if len(inside) == len(chunk):
        yield chunk
    elif len(inside):
        # Neighbours, as offsets ascend.
        yield chunk.part(int(inside[0]), int(inside[-1]) + 1)


class _HeaderReader:
    """Walks over the batches of one span.

    Attributes:
        on_damage: Receives each range in which no batch can be made out.
    """

    def __init__(self, opened: OpenFile, span: LogSpan, max_batch_bytes: int, *, with_records: bool) -> None:
        self.on_damage: Callable[[DamagedRange], None] | None = None
        self._opened = opened
        self._span = span
        self._max_batch_bytes = max_batch_bytes
        self._with_records = with_records
        self._position_bytes = span.position_bytes
        self._end_bytes = span.end_position_bytes
        # No batch may begin below it.
        self._lowest_offset = span.base_offset
        self._typical_bytes = 0
        buffer = WindowBuffer(min(WINDOW_BYTES, span.size_bytes))
        self._windows = WindowReader(opened, span.position_bytes, span.end_position_bytes, buffer)
        self._window: BatchWindow | None = None
        segment_end_bytes = span.segment_end_bytes
        self._scanner = DamageScanner(
            opened,
            span.base_offset,
            span.end_position_bytes if segment_end_bytes is None else segment_end_bytes,
            span.segment_end_offset,
            max_batch_bytes,
        )

    def chunks(self) -> Iterator[HeaderChunk]:
        """Read the headers from the span's first position to its last.

        Raises:
            FileReplacedError: The file is another one, or became shorter.
        """
        self._begin()
        while self._position_bytes < self._end_bytes:
            chunk, end_bytes = self._next_chunk()
            if self._is_sound(chunk, end_bytes):
                self._typical_bytes = (end_bytes - self._position_bytes) // len(chunk)
                yield chunk
                self._position_bytes = end_bytes
                self._lowest_offset = int(chunk.last_offsets[-1]) + 1
            else:
                yield from self._checked_chunks(end_bytes)

    def _begin(self) -> None:
        """Check that the span still begins with the planned batch, and see how large batches are."""
        header = self._scanner.probe.header(self._position_bytes)
        if header is None:
            return
        self._typical_bytes = header.size_bytes
        if self._position_bytes > 0:
            if header.base_offset > self._span.start_offset and not header.is_wrapper:
                raise FileReplacedError
            lowest_offset = min(known_offset(header), self._span.start_offset)
            self._lowest_offset = max(self._lowest_offset, lowest_offset)

    def _next_chunk(self) -> tuple[HeaderChunk, int]:
        """Read the whole batches from the position on.

        Returns:
            The batches, and the position where they end; no batches if the next one is damaged or torn.
        """
        if self._with_records:
            return self._chunk_of_window(self._next_window())
        if self._typical_bytes >= _HOP_BYTES:
            chunk, end_bytes = self._hop()
            if len(chunk):
                return chunk, end_bytes
        # Messages of older formats are read by the window, however large they are.
        window = self._next_window()
        return self._chunk_of_window(window) if len(window.starts) else self._hop()

    def _chunk_of_window(self, window: BatchWindow) -> tuple[HeaderChunk, int]:
        positions = window.starts + window.position_bytes
        chunk = HeaderChunk(self._opened, window.headers, positions, window)
        return chunk, window.position_bytes + window.end

    def _next_window(self) -> BatchWindow:
        windows, window = self._windows, self._window
        if window is not None and windows.position_bytes + window.end == self._position_bytes:
            windows.advance(window)
        elif windows.position_bytes != self._position_bytes:
            windows.skip_damage(self._position_bytes)
        window = windows.window(self._lowest_offset)
        if not len(window.starts) and self._must_read_more(window):
            window = windows.window(self._lowest_offset)
        if windows.end_position_bytes < self._end_bytes:
            raise FileReplacedError
        self._window = window
        return window

    def _must_read_more(self, window: BatchWindow) -> bool:
        """Return True if the first batch is larger than the window, and there is no hopping over it."""
        is_read = self._with_records or bool(window.buffer[window.end + MAGIC_POSITION] != MAGIC_V2)
        return is_read and 0 < self._windows.needed_bytes <= self._max_batch_bytes

    def _hop(self) -> tuple[HeaderChunk, int]:
        """Read the headers of batches of format v2 alone."""
        found = hop_over_batches(self._opened, self._position_bytes, self._end_bytes)
        if found.end_bytes < self._end_bytes and self._opened.size_bytes() < self._end_bytes:
            raise FileReplacedError
        return HeaderChunk(self._opened, found.headers, found.positions_bytes), found.end_bytes

    def _is_sound(self, chunk: HeaderChunk, end_bytes: int) -> bool:
        """Return True if offsets ascend within a chunk, and what follows it may be the next batch."""
        if not len(chunk):
            return False
        base_offsets, last_offsets = chunk.base_offsets, chunk.last_offsets
        end_offset = self._span.segment_end_offset
        largest = MAX_OFFSET if end_offset is None else end_offset - 1
        is_sound = (
            base_offsets[0] >= self._lowest_offset
            and last_offsets[-1] <= largest
            and (base_offsets <= last_offsets).all()
            and (last_offsets[:-1] < base_offsets[1:]).all()
            and chunk.headers["batch_length"].max() <= self._max_batch_bytes - LOG_OVERHEAD_BYTES
        )
        return bool(is_sound) and self._may_begin_at(end_bytes, int(last_offsets[-1]) + 1)

    def _may_begin_at(self, position_bytes: int, lowest_offset: int) -> bool:
        """Return True if the span ends here, or the next batch may begin here."""
        if position_bytes >= self._end_bytes:
            return True
        head = self._opened.read_at(_FORMAT.size, position_bytes)
        if len(head) < _FORMAT.size:
            return False
        offset, length, magic = _FORMAT.unpack(head)
        is_header: bool = 0 <= magic <= MAGIC_V2 and length >= MIN_LENGTH_BY_MAGIC[magic]
        return is_header and bool(offset >= lowest_offset)

    def _checked_chunks(self, checked_end_bytes: int) -> Iterator[HeaderChunk]:
        """Walk on with every CRC checked, at least up to a position, and up to a batch of the log."""
        rows: list[BatchHeader] = []
        start_bytes = self._position_bytes
        self._position_bytes, position_bytes = self._end_bytes, start_bytes
        for item in self._scanner.items(start_bytes, self._lowest_offset):
            if isinstance(item, DamagedRange):
                found = self._batches_in(item)
                if not found and self.on_damage is not None:
                    # Those before it come first.
                    if rows:
                        yield self._chunk_of(rows)
                        rows = []
                    self.on_damage(item)
                rows += found
                continue
            position_bytes = item.position_bytes
            if position_bytes >= self._end_bytes:
                break
            if position_bytes >= checked_end_bytes and position_bytes > start_bytes:
                self._position_bytes = position_bytes
                break
            rows.append(item)
            self._lowest_offset = item.next_offset
            if len(rows) >= _MOST_ROWS:
                yield self._chunk_of(rows)
                rows = []
        if rows:
            yield self._chunk_of(rows)

    def _batches_in(self, damage: DamagedRange) -> list[BatchHeader]:
        """Divide a damaged range into batches, if their headers alone are sound.

        Returns:
            The headers; none otherwise.
        """
        found: list[BatchHeader] = []
        position_bytes, lowest_offset = damage.start_bytes, damage.start_offset
        while position_bytes < damage.end_bytes:
            header = self._scanner.probe.header(position_bytes)
            if (
                header is None
                or not lowest_offset <= header.base_offset <= header.last_offset < damage.end_offset
                or header.end_position_bytes > damage.end_bytes
            ):
                return []
            header = header.with_base_offset(lowest_offset)
            found.append(header)
            position_bytes, lowest_offset = header.end_position_bytes, header.next_offset
        return found

    def _chunk_of(self, rows: list[BatchHeader]) -> HeaderChunk:
        headers = np.array([_fields(row) for row in rows], HEADER_DTYPE)
        return HeaderChunk(self._opened, headers, np.array([row.position_bytes for row in rows], np.int64))


def _fields(header: BatchHeader) -> tuple[int, ...]:
    """Return the fields of a header, in the order of `HEADER_DTYPE`."""
    _, base_offset, size_bytes, *rest = dataclasses.astuple(header)
    return (base_offset, size_bytes - LOG_OVERHEAD_BYTES, *rest)
