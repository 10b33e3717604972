"""From offsets to places: the spans of segment files that hold a range of offsets."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from storage_core.scan.spans import LogSpan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.directory import PartitionLog
    from storage_core.scan.isolation import AbortedTransactions
    from storage_core.segment import SegmentReader

__all__ = ["locate_spans"]


def locate_spans(
    log: PartitionLog,
    start_offset: int,
    end_offset: int,
    aborted: AbortedTransactions | None = None,
    *,
    is_first: bool = True,
) -> Iterator[LogSpan]:
    """The spans that hold the offsets from ``start_offset`` to below ``end_offset``, one per segment.

    Only the segments at the two ends are opened; of the others, the file's size is enough.

    Args:
        log: The partition.
        start_offset: The first offset wanted.
        end_offset: The first offset not wanted any more.
        aborted: A span is told of those that concern it.
        is_first: Whether the read begins here. Otherwise damage that begins in front of ``start_offset``
            is left to the range before.

    Raises:
        CorruptRecordError: Damage in front of one of the two ends.
        DataLossError: A segment vanished since the log was listed.
    """
    bases = log.segments.base_offsets
    first = log.segment_index_for(start_offset) or 0
    for index in range(first, len(bases)):
        base_offset = bases[index]
        if base_offset >= end_offset:
            break
        is_closed = index + 1 < len(bases)
        span_start = max(start_offset, base_offset)
        span_end = min(end_offset, bases[index + 1]) if is_closed else end_offset
        last_offset = None if is_closed and span_end == bases[index + 1] else span_end - 1
        find = _place_over_damage if log.skip_damage else _place
        place = log.ask(
            index,
            partial(
                find,
                start_offset=span_start,
                last_offset=last_offset,
                is_closed=is_closed,
                is_first=is_first and span_start == start_offset,
            ),
        )
        if place is None:
            continue
        yield LogSpan(
            log.topic,
            log.partition,
            log.path,
            base_offset,
            place.file_name,
            place.start_offset,
            span_end,
            place.position_bytes,
            place.end_position_bytes,
            place.inode,
            place.file_size_bytes if is_closed else None,
            () if aborted is None else aborted.touching(span_start, span_end),
            segment_end_bytes=place.file_size_bytes,
            segment_end_offset=place.segment_end_offset,
            is_first=is_first and span_start == start_offset,
        )


@dataclass(frozen=True, slots=True)
class _Place:
    file_name: str
    inode: int
    file_size_bytes: int
    segment_end_offset: int | None
    start_offset: int
    position_bytes: int
    end_position_bytes: int


def _place(
    segment: SegmentReader, start_offset: int, last_offset: int | None, *, is_closed: bool, is_first: bool
) -> _Place | None:
    """Where in the file the offsets lie, to its end if no last one is given; None if it holds none of them."""
    del is_first  # Damage on the way fails the read, wherever it is noticed.
    position_bytes = boundary_bytes = 0
    if start_offset > segment.base_offset:
        header = segment.translate_offset(start_offset)
        if header is None or header.base_offset > start_offset:
            # Only headers say that there is a gap here, and nothing has proven them yet.
            segment.check_gap(start_offset)
        if header is None:
            # What follows is left to the reading, which tells damage from the end of the file.
            position_bytes = segment.stop_position(start_offset)
        else:
            position_bytes = boundary_bytes = header.position_bytes
            # A range that begins in a gap begins behind it: so the first batch tells whether the file is
            # still the one that was planned.
            start_offset = max(start_offset, header.base_offset)
    known_end = segment.known_end
    if last_offset is None:
        end_position_bytes = segment.size_bytes
    elif known_end is not None and last_offset + 1 == known_end.next_offset:
        end_position_bytes = known_end.position_bytes
    else:
        header = segment.translate_offset(last_offset, boundary_bytes)
        if header is None:
            end_position_bytes = segment.size_bytes if is_closed else segment.end().position_bytes
        else:
            # The batch found may begin behind the range: then the range ends in a gap.
            is_behind = header.base_offset > last_offset
            if is_behind:
                segment.check_gap(last_offset)
            end_position_bytes = header.position_bytes if is_behind else header.end_position_bytes
    return _found_place(segment, start_offset, position_bytes, end_position_bytes)


def _place_over_damage(
    segment: SegmentReader, start_offset: int, last_offset: int | None, *, is_closed: bool, is_first: bool
) -> _Place | None:
    """The same, where damage is no error: a damaged range goes to the range of offsets that it begins in.

    Where a range begins with damage, it begins at the last batch in front of that: from there, whoever
    reads finds the damage again, and what is lost with it.
    """
    del is_closed  # What no batch holds any more is lost at the end of any segment.
    position_bytes = 0
    if start_offset > segment.base_offset:
        around = segment.locate_offset(start_offset)
        damage = around.damage
        is_own = damage is not None and (
            damage.start_offset >= start_offset or (is_first and damage.end_offset > start_offset)
        )
        if is_own:
            position_bytes = 0 if around.before is None else around.before.position_bytes
        elif around.found is None:
            return None
        else:
            position_bytes = around.found.position_bytes
            start_offset = max(start_offset, around.found.base_offset)
    if last_offset is None:
        return _found_place(segment, start_offset, position_bytes, segment.size_bytes)
    known_end = segment.known_end
    if known_end is not None and last_offset + 1 == known_end.next_offset:
        return _found_place(segment, start_offset, position_bytes, known_end.position_bytes)
    around = segment.locate_offset(last_offset)
    if around.found is not None and around.found.base_offset <= last_offset:
        end_position_bytes = around.found.end_position_bytes
    elif around.damage is not None:
        end_position_bytes = around.damage.end_bytes
    else:
        end_position_bytes = 0 if around.before is None else around.before.end_position_bytes
    return _found_place(segment, start_offset, position_bytes, end_position_bytes)


def _found_place(
    segment: SegmentReader, start_offset: int, position_bytes: int, end_position_bytes: int
) -> _Place | None:
    if end_position_bytes <= position_bytes:
        return None
    return _Place(
        os.path.basename(segment.log_path),
        segment.inode,
        segment.size_bytes,
        segment.end_offset,
        start_offset,
        position_bytes,
        end_position_bytes,
    )
