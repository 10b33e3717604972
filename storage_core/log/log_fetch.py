"""The bytes of a log, as a follower fetches them (Kafka's ``UnifiedLog.read``)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from storage_core.errors import OffsetOutOfRangeError, OptionError
from storage_core.segment.log_view import FetchedData

if TYPE_CHECKING:
    from storage_core.directory import PartitionLog
    from storage_core.segment import SegmentReader

__all__ = ["fetch", "require_within"]


def fetch(
    log: PartitionLog, start_offset: int, max_size_bytes: int, limit_offset: int, *, min_one_message: bool
) -> FetchedData:
    """Read bytes of one segment, from the batch on that holds an offset.

    Args:
        log: The log as it is at this moment.
        start_offset: The offset. If it lies in a gap, the batch behind the gap comes first.
        max_size_bytes: So many bytes at the most.
        limit_offset: No batch at or behind it is given out.
        min_one_message: Whether the first batch comes as a whole, however large it is.

    Raises:
        OffsetOutOfRangeError: The start lies below the log start or behind the log end.
    """
    if max_size_bytes < 0:
        raise OptionError(f"Expected a size of at least 0 bytes to fetch, found {max_size_bytes}.")
    require_within(log, start_offset)
    bases = log.segments.base_offsets
    if start_offset < limit_offset:
        for index in range(log.segment_index_for(start_offset) or 0, len(bases)):
            if bases[index] >= limit_offset:
                break
            is_limited = index + 1 == len(bases) or bases[index + 1] > limit_offset
            fetch_part = partial(
                _fetch_of_segment,
                start_offset=start_offset,
                max_size_bytes=max_size_bytes,
                limit_offset=limit_offset if is_limited else None,
                min_one_message=min_one_message,
            )
            found = log.ask(index, fetch_part)
            if found is not None:
                return found
    return FetchedData(min(start_offset, log.log_end_offset), 0, b"", is_first_entry_incomplete=False)


def require_within(log: PartitionLog, offset: int) -> None:
    """Refuse an offset that a log does not have.

    Raises:
        OffsetOutOfRangeError: It lies below the log start or behind the log end.
    """
    if not log.log_start_offset <= offset <= log.log_end_offset:
        raise OffsetOutOfRangeError(
            f"Expected an offset from {log.log_start_offset}, the log start, to {log.log_end_offset}, the log end, "
            f"found {offset}. Read from one of them on.",
            path=log.path,
            offset=offset,
        )


def _fetch_of_segment(
    segment: SegmentReader,
    start_offset: int,
    max_size_bytes: int,
    limit_offset: int | None,
    *,
    min_one_message: bool,
) -> FetchedData | None:
    first = segment.translate_offset(start_offset)
    if first is None:
        return None
    known_end = segment.known_end
    end_bytes = segment.size_bytes if known_end is None else known_end.position_bytes
    if limit_offset is not None and (known_end is None or limit_offset < known_end.next_offset):
        at_limit = segment.translate_offset(limit_offset)
        end_bytes = end_bytes if at_limit is None else min(end_bytes, at_limit.position_bytes)
    wanted_bytes = max(max_size_bytes, first.size_bytes) if min_one_message else max_size_bytes
    size_bytes = max(0, min(wanted_bytes, end_bytes - first.position_bytes))
    data = b""
    if size_bytes:
        with segment.open_log() as log_file:
            data = log_file.read_at(size_bytes, first.position_bytes)
    return FetchedData(
        first.base_offset,
        first.position_bytes,
        data,
        is_first_entry_incomplete=wanted_bytes < first.size_bytes,
    )
