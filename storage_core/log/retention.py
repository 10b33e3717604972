"""Deleting the segments that a log need not keep any longer (Kafka's ``UnifiedLog.deleteOldSegments``).

The log start offset is raised, and on disk, before the first file gets another name. So a crash leaves the log as it was,
or one that begins where it is to begin, whatever has become of the files in front of that.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from storage_core.errors import LogClosedError, LogFailedError
from storage_core.log.append import write_pending
from storage_core.log.local_log import remove_below_log_start, roll, segments_below_log_start

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.log.log_state import LogState
    from storage_core.log.root_checkpoints import RootCheckpoints
    from storage_core.segment.log_segment import LogSegment

__all__ = ["apply_retention", "apply_retention_to_all", "count_deletable"]


_log = logging.getLogger(__name__)


def apply_retention(state: LogState, now_ms: int) -> tuple[int, ...]:
    """Delete what lies below the log start offset, and what ``retention.bytes`` and ``retention.ms`` do not keep.

    Args:
        state: The log, locked; nothing is pending.
        now_ms: The time.

    Returns:
        The base offsets of the segments that were removed.
    """
    removed = _raise_log_start(state, now_ms)
    if removed:
        state.checkpoint()
        remove_below_log_start(state, removed)
    return tuple(segment.base_offset for segment in removed)


def apply_retention_to_all(
    checkpoints: RootCheckpoints, now_ms: int, *, with_compacted: bool = True
) -> dict[tuple[str, int], tuple[int, ...]]:
    """Do the same for all logs of a log directory, with one checkpoint for all of them.

    A log that fails does not keep the others from it. One that is closed, or failed before, is left out.

    Args:
        checkpoints: The log directory's checkpoints, and its logs.
        now_ms: The time.
        with_compacted: Whether the logs take part that are compacted, too.

    Returns:
        The base offsets of the segments that were removed, of each log that lost any.

    Raises:
        SegmentLogError: What the first log met that failed; the others are done.
    """
    failures: list[Exception] = []
    raised: dict[tuple[str, int], list[LogSegment]] = {}
    states = dict(checkpoints.states)
    for key, state in states.items():
        if with_compacted or not state.config.is_compacted:
            try:
                with state.writing():
                    write_pending(state)
                    segments = _raise_log_start(state, now_ms)
            except Exception as error:  # noqa: BLE001  (the other logs take their turn)
                _note_failure(state, error, failures)
            else:
                if segments:
                    raised[key] = segments
    if raised:
        checkpoints.write()
    removed: dict[tuple[str, int], tuple[int, ...]] = {}
    for key, segments in raised.items():
        state = states[key]
        try:
            with state.writing():
                removed[key] = _remove_raised(state, segments)
        except Exception as error:  # noqa: BLE001
            _note_failure(state, error, failures)
    if failures:
        raise failures[0]
    return {key: base_offsets for key, base_offsets in removed.items() if base_offsets}


def count_deletable(state: LogState, segments: Sequence[LogSegment], now_ms: int) -> int:
    """How many of a log's oldest segments are to go: by log start offset, then by size, then by time.

    No log file is opened: their sizes, and the timestamps that time indexes end with, tell enough.
    """
    config, offsets = state.config, state.offsets
    base_offsets = [segment.base_offset for segment in segments]
    # A segment goes only if every replica has all of it. It ends where the next one begins.
    limit = bisect_right([*base_offsets[1:], offsets.log_end_offset], offsets.high_watermark)
    if limit == len(segments) and segments[-1].size_bytes == 0:
        limit -= 1
    count = min(limit, bisect_right(base_offsets, offsets.log_start_offset, lo=1) - 1)
    if "delete" in config.cleanup_policy:
        if config.retention_bytes >= 0:
            count += _count_by_size(segments[count:], limit - count, config.retention_bytes)
        if config.retention_ms >= 0:
            oldest_ms = now_ms - config.retention_ms
            while count < limit and _is_older(state, segments[count], oldest_ms):
                count += 1
    return count


def _count_by_size(segments: Sequence[LogSegment], limit: int, retention_bytes: int) -> int:
    """As many as leave no less than what is to be kept."""
    sizes_bytes = [segment.size_bytes for segment in segments]
    excess_bytes = sum(sizes_bytes) - retention_bytes
    return bisect_right(list(accumulate(sizes_bytes[:limit])), excess_bytes)


def _is_older(state: LogState, segment: LogSegment, oldest_ms: int) -> bool:
    """Whether the largest timestamp lies before a time; without any, when the file was written last."""
    largest_ms = segment.largest_timestamp.timestamp_ms
    if largest_ms >= 0:
        return largest_ms < oldest_ms
    status = state.filesystem.status(segment.path)
    return status is not None and status.modified_ms < oldest_ms


def _raise_log_start(state: LogState, now_ms: int) -> list[LogSegment]:
    """Let the log begin behind the segments that are to go, and return them. No checkpoint tells of it yet."""
    segments = state.segments.values()
    count = count_deletable(state, segments, now_ms)
    if count == 0:
        return []
    # There is always one segment.
    first = segments[count] if count < len(segments) else roll(state)
    # No need to force to disk what lies below: nobody is going to read it.
    state.publish(state.offsets.with_log_start(first.base_offset))
    return segments[:count]


def _remove_raised(state: LogState, segments: Sequence[LogSegment]) -> tuple[int, ...]:
    """Remove the segments that are still to go: meanwhile the log may have been truncated."""
    chosen = frozenset(segments)
    removed = [segment for segment in segments_below_log_start(state) if segment in chosen]
    if removed:
        remove_below_log_start(state, removed)
    return tuple(segment.base_offset for segment in removed)


def _note_failure(state: LogState, error: Exception, failures: list[Exception]) -> None:
    if not isinstance(error, (LogClosedError, LogFailedError)):
        _log.warning("%s: old segments could not be deleted: %s", state.path, error)
        failures.append(error)
