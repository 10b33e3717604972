"""Cut spans into pieces of about equal size, and pack small ones together into tasks.

Neither one huge segment nor ten thousand small ones shall make a bad job.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from storage_core.scan.isolation import AbortedTransactions
from storage_core.scan.spans import LogSpan, ReadSettings, ScanTask, SpanList

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.segment import SegmentReader

__all__ = ["DEFAULT_TASK_BYTES", "OPEN_COST_BYTES", "cut_span", "pack_spans"]

DEFAULT_TASK_BYTES: Final = 128 << 20
# Opening a file costs about as much time as reading so many bytes.
OPEN_COST_BYTES: Final = 1 << 20
_SIZES_AT_ONCE: Final = 1 << 16


def cut_span(span: LogSpan, segment: SegmentReader, target_bytes: int) -> list[LogSpan]:
    """Cut a span at batches so that the pieces have about ``target_bytes``."""
    # Another file by now: whoever reads the span finds that out, and where its offsets lie.
    if span.size_bytes <= target_bytes or segment.inode != span.inode:
        return [span]
    pieces = []
    rest = span
    for header in segment.cut_points(span.position_bytes, span.end_position_bytes, target_bytes):
        # A batch that is cut off by the span's start keeps to the piece before.
        if not rest.start_offset < header.base_offset < span.end_offset:
            continue
        pieces.append(
            dataclasses.replace(rest, end_offset=header.base_offset, end_position_bytes=header.position_bytes)
        )
        rest = dataclasses.replace(
            rest, start_offset=header.base_offset, position_bytes=header.position_bytes
        )
    pieces.append(rest)
    if not span.aborted_transactions:
        return pieces
    aborted = AbortedTransactions(span.aborted_transactions)
    return [
        dataclasses.replace(
            piece, aborted_transactions=aborted.touching(piece.start_offset, piece.end_offset)
        )
        for piece in pieces
    ]


def pack_spans(
    spans: SpanList,
    settings: ReadSettings,
    *,
    task_bytes: int,
    task_records: int | None = None,
) -> list[ScanTask]:
    """Pack spans into tasks in order, up to a size in bytes and, if given, in offsets."""
    tasks: list[ScanTask] = []
    start, room_bytes, room_records = 0, 0, 0
    for index, (size_bytes, records) in enumerate(_sizes(spans)):
        cost_bytes = size_bytes + OPEN_COST_BYTES
        is_full = cost_bytes > room_bytes or (task_records is not None and records > room_records)
        if index > start and is_full:
            tasks.append(ScanTask(spans[start:index], settings))
            start = index
        if index == start:
            room_bytes, room_records = task_bytes, task_records or 0
        room_bytes -= cost_bytes
        room_records -= records
    if start < len(spans):
        tasks.append(ScanTask(spans[start:], settings))
    return tasks


def _sizes(spans: SpanList) -> Iterator[tuple[int, int]]:
    """The bytes and the offsets of each span; a million numbers are not made at once."""
    for first in range(0, len(spans), _SIZES_AT_ONCE):
        part = spans[first : first + _SIZES_AT_ONCE]
        yield from zip(part.sizes_bytes.tolist(), part.offset_counts.tolist(), strict=True)
