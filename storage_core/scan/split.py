"""Cut spans into pieces of about equal size, and pack small ones together into tasks.

Neither one huge segment nor ten thousand small ones shall make a bad job.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from storage_core.scan.spans import LogSpan, ReadSettings, ScanTask

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from storage_core.segment import SegmentReader

__all__ = ["DEFAULT_TASK_BYTES", "OPEN_COST_BYTES", "cut_span", "pack_spans"]

DEFAULT_TASK_BYTES: Final = 128 << 20
# Opening a file costs about as much time as reading so many bytes.
OPEN_COST_BYTES: Final = 1 << 20


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
    return [_with_own_transactions(piece) for piece in pieces]


def _with_own_transactions(span: LogSpan) -> LogSpan:
    if not span.aborted_transactions:
        return span
    own = tuple(
        each
        for each in span.aborted_transactions
        if each.last_offset >= span.start_offset and each.first_offset < span.end_offset
    )
    return dataclasses.replace(span, aborted_transactions=own)


def pack_spans(
    spans: Iterable[LogSpan],
    settings: ReadSettings,
    *,
    task_bytes: int,
    task_records: int | None = None,
) -> list[ScanTask]:
    """Pack spans into tasks in order, up to a size in bytes and, if given, in offsets."""
    tasks: list[ScanTask] = []
    packed: list[LogSpan] = []
    room_bytes, room_records = 0, 0
    for span in spans:
        cost_bytes = span.size_bytes + OPEN_COST_BYTES
        records = span.end_offset - span.start_offset
        is_full = cost_bytes > room_bytes or (task_records is not None and records > room_records)
        if packed and is_full:
            tasks.append(_task(packed, settings))
            packed = []
        if not packed:
            room_bytes, room_records = task_bytes, task_records or 0
        packed.append(span)
        room_bytes -= cost_bytes
        room_records -= records
    if packed:
        tasks.append(_task(packed, settings))
    return tasks


def _task(spans: Sequence[LogSpan], settings: ReadSettings) -> ScanTask:
    return ScanTask(tuple(spans), settings)
