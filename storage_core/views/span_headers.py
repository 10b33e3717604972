"""The batches of a span of a log file by their headers, as columns, without reading their records.

The span is read by the reader of records, which trusts headers here as long as they lead from batch to batch, and offsets
ascend, and hops over large batches. Where they do not, it checks every CRC, so that it goes on at the next batch that
certainly belongs to the log.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from storage_core.errors import CorruptError, FileReplacedError, visible
from storage_core.record.batch_header import (
    HEADER_DTYPE,
    LOG_OVERHEAD_BYTES,
    batch_crc_matches,
    batch_sizes_bytes,
)
from storage_core.record.batch_window import BatchWindow
from storage_core.record.control_records import MAX_CONTROL_BYTES, read_marker
from storage_core.scan.offset_ranges import locate_spans, report_data_loss
from storage_core.scan.span_reader import SpanReader, missing_range, open_span
from storage_core.scan.spans import LogSpan, ReadSettings
from storage_core.segment import DamagedRange
from storage_core.segment.batch_windows import WINDOW_BYTES, WindowBuffer, part_of
from storage_core.segment.damage import BatchProbe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from storage_core.filesystem import ReadableFile, ReadableFileSystem
    from storage_core.options import ReadOptions
    from storage_core.record.control_records import EndTransactionMarker
    from storage_core.scan.offset_ranges import PartitionRange
    from storage_core.segment import SegmentEnd, SegmentReader

_log = logging.getLogger(__name__)
_Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class HeaderChunk:
    """Neighbouring batches of a span, and perhaps their bytes.

    Attributes:
        opened: The log file, while the chunk is the present one.
        window: The batches; their bytes, if there are any, while the chunk is the present one. The base offset of a wrapper
            is a lower bound.
    """

    opened: ReadableFile
    window: BatchWindow

    def __len__(self) -> int:
        return len(self.window.starts)

    @property
    def positions(self) -> _Int64Array:
        """Per batch, where it begins."""
        return self.window.position_bytes + self.window.starts

    @property
    def sizes_bytes(self) -> _Int64Array:
        """Per batch, its size, header included."""
        return batch_sizes_bytes(self.window.headers)

    @property
    def _has_bytes(self) -> bool:
        return len(self.window.buffer) > 0

    def part(self, start: int, end: int) -> HeaderChunk:
        """Return some of the batches."""
        return HeaderChunk(self.opened, part_of(self.window, start, end))

    def batch(self, index: int, limit_bytes: int) -> memoryview | None:
        """Read the bytes of one batch.

        Returns:
            None if they are more than ``limit_bytes``, or if the file is shorter by now.
        """
        size_bytes = int(self.window.headers["batch_length"][index]) + LOG_OVERHEAD_BYTES
        start = int(self.window.starts[index])
        if size_bytes > limit_bytes:
            return None
        if self._has_bytes:
            return self.window.buffer.data[start : start + size_bytes]
        data = self.opened.read_at(size_bytes, self.window.position_bytes + start)
        return memoryview(data) if len(data) == size_bytes else None

    def marker(self, index: int) -> EndTransactionMarker | None:
        """Read what a control batch says of a transaction.

        Returns:
            None if it is about something else, is emptied, or is damaged.
        """
        header = self.window.header(index)
        if header.record_count == 0:
            return None
        batch = self.batch(index, MAX_CONTROL_BYTES)
        if batch is None or not batch_crc_matches(batch):
            _log.warning(
                "%s: the control batch at offset %d is damaged. If it is a marker, its transaction counts as open, and may "
                "be joined with the next one of its producer.",
                visible(self.opened.path),
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
        if self._has_bytes:
            are_right[self.window.crc_mismatches(np.arange(len(self)))] = False
            return are_right
        probe = BatchProbe(self.opened, self.opened.size_bytes())
        for index in range(len(self)):
            header = self.window.header(index)
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
        settings = ReadSettings(options.max_decompressed_batch_bytes, options.fail_on_data_loss)
        spans = () if wanted.is_empty else tuple(locate_spans(wanted))
        return cls(wanted.topic, wanted.partition, wanted.start_offset, wanted.end_offset, spans, settings)

    @property
    def size_bytes(self) -> int:
        """Bytes of log files in the range."""
        return sum(span.size_bytes for span in self.spans)

    def chunks(
        self, filesystem: ReadableFileSystem, on_damage: Callable[[DamagedRange], None] | None = None
    ) -> Iterator[HeaderChunk]:
        """Read the headers of the batches that hold an offset of the range; see `iter_header_chunks`."""
        for span in self.spans:
            yield from iter_header_chunks(filesystem, span, self.settings, on_damage=on_damage)


def whole_span(segment: SegmentReader, end: SegmentEnd) -> LogSpan:
    """Return the span of all batches of a segment up to an end, of no partition in particular."""
    return LogSpan(
        topic="",
        partition=0,
        directory=segment.directory,
        base_offset=segment.base_offset,
        file_name=os.path.basename(segment.log_path),
        start_offset=segment.base_offset,
        end_offset=end.next_offset,
        position_bytes=0,
        end_position_bytes=end.position_bytes,
        version=segment.version,
        segment_end_offset=segment.offset_limit,
    )


def iter_header_chunks(
    filesystem: ReadableFileSystem,
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
        on_damage: Called with each range in which no batch can be made out.

    Raises:
        DataLossError: The segment was deleted or replaced since the span was planned.
    """
    if not span.size_bytes:
        if on_damage is not None:
            on_damage(missing_range(span))
        return
    try:
        with open_span(filesystem, span) as opened:
            reader = SpanReader(
                opened,
                span,
                WindowBuffer(min(WINDOW_BYTES, span.size_bytes)),
                settings.max_batch_bytes,
                trusts_headers=True,
                with_bytes=with_records,
            )
            for part in reader.parts():
                if isinstance(part, DamagedRange):
                    window = _batches_in(opened, part)
                    if window is None:
                        if on_damage is not None:
                            on_damage(part)
                        continue
                else:
                    window = part.valid_window()
                yield from _overlapping(HeaderChunk(opened, window), span)
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
    """Yield the batches of a chunk that hold an offset of the span. No batch is in two spans, which are cut between batches."""
    window = chunk.window
    inside = np.flatnonzero(
        (window.last_offsets >= span.start_offset) & (window.base_offsets < span.end_offset)
    )
    if len(inside) == len(chunk):
        yield chunk
    elif len(inside):
        # Neighbours, as offsets ascend.
        yield chunk.part(int(inside[0]), int(inside[-1]) + 1)


def _batches_in(opened: ReadableFile, damage: DamagedRange) -> BatchWindow | None:
    """Divide a damaged range into batches.

    Returns:
        A window without bytes; None unless the headers alone are sound.
    """
    rows: list[tuple[int, ...]] = []
    starts: list[int] = []
    probe = BatchProbe(opened, damage.end_bytes)
    position_bytes, lowest_offset = damage.start_bytes, damage.start_offset
    while position_bytes < damage.end_bytes:
        header = probe.header(position_bytes)
        if (
            header is None
            or not lowest_offset <= header.base_offset <= header.last_offset < damage.end_offset
            or header.end_position_bytes > damage.end_bytes
        ):
            return None
        header = header.with_base_offset(lowest_offset)
        _, base_offset, size_bytes, *rest = dataclasses.astuple(header)
        rows.append((base_offset, size_bytes - LOG_OVERHEAD_BYTES, *rest))
        starts.append(position_bytes - damage.start_bytes)
        position_bytes, lowest_offset = header.end_position_bytes, header.next_offset
    headers = np.array(rows, HEADER_DTYPE)
    return (
        BatchWindow.without_bytes(opened.path, damage.start_bytes, np.array(starts, np.int64), headers)
        if rows
        else None
    )
