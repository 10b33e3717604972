"""The bytes of a log, as a follower fetches them (Kafka's ``UnifiedLog.read``)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from storage_core.errors import OffsetOutOfRangeError, OptionError
from storage_core.record.batch_window import walk_window
from storage_core.record.section import PADDING_BYTES
from storage_core.scan.isolation import aborted_transactions
from storage_core.segment.log_view import FetchedData

if TYPE_CHECKING:
    from storage_core.directory import PartitionLog
    from storage_core.record.batch_header import BatchHeader
    from storage_core.segment import SegmentReader

__all__ = ["fetch", "fetch_isolation", "require_within"]

_OF_CONSUMERS: Final = {"read_uncommitted": "high_watermark", "read_committed": "committed"}


def fetch(
    log: PartitionLog,
    start_offset: int,
    max_size_bytes: int,
    limit_offset: int,
    *,
    min_one_message: bool,
    is_committed: bool = False,
) -> FetchedData:
    """Read bytes of one segment, from the batch on that holds an offset.

    Args:
        log: The log as it is at this moment.
        start_offset: The offset. If it lies in a gap, the batch behind the gap comes first.
        max_size_bytes: So many bytes at the most.
        limit_offset: No batch at or behind it is given out.
        min_one_message: Whether the first batch comes as a whole, however large it is.
        is_committed: Whether the aborted transactions among the batches are to be told.

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
                return _with_aborted(log, start_offset, *found) if is_committed else found[0]
    nothing = FetchedData(min(start_offset, log.log_end_offset), 0, b"", is_first_entry_incomplete=False)
    return replace(nothing, aborted_transactions=()) if is_committed else nothing


def _with_aborted(
    log: PartitionLog, start_offset: int, fetched: FetchedData, first: BatchHeader
) -> FetchedData:
    """With the aborted transactions that a consumer of the batches has to leave out."""
    end_offset = start_offset
    if fetched.data:
        size_bytes = len(fetched.data)
        buffer = np.zeros(size_bytes + PADDING_BYTES, np.uint8)
        buffer[:size_bytes] = np.frombuffer(fetched.data, np.uint8)
        window = walk_window(log.path, fetched.position_bytes, buffer, size_bytes, fetched.base_offset)
        # Of a batch that is cut off nothing can be read.
        end_offset = window.header(-1).next_offset if len(window.starts) else first.next_offset
    return replace(fetched, aborted_transactions=aborted_transactions(log, start_offset, end_offset))


def fetch_isolation(isolation: str | None, isolation_level: str | None) -> str:
    """What limits a fetch, as it was asked for by one word or the other (Kafka's ``FetchIsolation``).

    Raises:
        OptionError: There is no such isolation, or both are given.
    """
    if isolation_level is None:
        if isolation not in (None, "log_end", "high_watermark", "committed"):
            raise OptionError(
                f"Expected isolation log_end, high_watermark or committed, found {isolation!r}."
            )
        return isolation or "log_end"
    if isolation is not None:
        raise OptionError("Expected isolation or isolation_level, found both. Give one of them.")
    if isolation_level not in _OF_CONSUMERS:
        raise OptionError(
            f"Expected isolation_level read_uncommitted or read_committed, found {isolation_level!r}."
        )
    return _OF_CONSUMERS[isolation_level]


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
) -> tuple[FetchedData, BatchHeader] | None:
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
    fetched = FetchedData(
        first.base_offset,
        first.position_bytes,
        data,
        is_first_entry_incomplete=wanted_bytes < first.size_bytes,
    )
    return fetched, first
