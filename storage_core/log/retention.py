"""Deleting segments by retention (Kafka's ``UnifiedLog.deleteOldSegments``).

The log start offset is raised, and on disk, before the first file is renamed. So after a crash the log is unchanged, or
begins at its new start, whichever earlier files remain.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from storage_core.errors import LogClosedError, LogFailedError
from storage_core.log.local_log import remove_below_log_start, roll, segments_below_log_start

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.log.log_root import RootCheckpoints
    from storage_core.log.log_state import LogState
    from storage_core.segment.log_segment import LogSegment


_log = logging.getLogger(__name__)


def apply_retention(state: LogState, now_ms: int | None = None) -> tuple[int, ...]:
    """Delete segments below the log start offset, and those that exceed ``retention.bytes`` or ``retention.ms``.

    The log is not locked.

    Returns:
        The base offsets of the removed segments.
    """
    with state.writing():
        removed = _raise_log_start(state, state.clock.now_ms() if now_ms is None else now_ms)
        if removed:
            state.checkpoint()
            remove_below_log_start(state, removed)
    return tuple(segment.base_offset for segment in removed)


def apply_retention_to_all(
    checkpoints: RootCheckpoints, now_ms: int, *, with_compacted: bool = True
) -> dict[tuple[str, int], tuple[int, ...]]:
    """Apply retention to all logs of a log directory, writing the checkpoints once.

    Logs that are closed, or failed before, are skipped. Only logs with removed segments are in the result.
    """
    failures: list[Exception] = []
    raised: dict[tuple[str, int], list[LogSegment]] = {}
    states = dict(checkpoints.states)
    for key, state in states.items():
        if with_compacted or not state.config.is_compacted:
            try:
                with state.writing():
                    segments = _raise_log_start(state, now_ms)
            except Exception as error:  # noqa: BLE001  (the other logs are processed anyway)
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
    """Count a log's oldest segments to delete: by log start offset, then by size, then by time.

    No log file is opened: file sizes and the last entries of time indexes are sufficient.
    """
    config, offsets = state.config, state.offsets
    base_offsets = [segment.base_offset for segment in segments]
    # Every replica must have the whole segment, which ends where the next one begins.
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
    """Count the oldest segments whose removal keeps at least ``retention.bytes``."""
    sizes_bytes = [segment.size_bytes for segment in segments]
    excess_bytes = sum(sizes_bytes) - retention_bytes
    return bisect_right(list(accumulate(sizes_bytes[:limit])), excess_bytes)


def _is_older(state: LogState, segment: LogSegment, oldest_ms: int) -> bool:
    """Return True if the largest timestamp, or the modification time of a file without any, is before a time."""
    largest_ms = segment.largest_timestamp.timestamp_ms
    if largest_ms >= 0:
        return largest_ms < oldest_ms
    status = state.filesystem.status(segment.path)
    return status is not None and status.modified_ms < oldest_ms


def _raise_log_start(state: LogState, now_ms: int) -> list[LogSegment]:
    """Raise the log start above the segments to delete, and return them. The checkpoint is not written yet."""
    segments = state.segments.values()
    count = count_deletable(state, segments, now_ms)
    if count == 0:
        return []
    # A log always has a segment.
    first = segments[count] if count < len(segments) else roll(state)
    # Records below the log start need no flush: they are never read again.
    state.publish(state.offsets.with_log_start(first.base_offset))
    return segments[:count]


def _remove_raised(state: LogState, segments: Sequence[LogSegment]) -> tuple[int, ...]:
    """Remove those of the segments that are still below the log start: the log may have been truncated meanwhile."""
    chosen = frozenset(segments)
    removed = [segment for segment in segments_below_log_start(state) if segment in chosen]
    if removed:
        remove_below_log_start(state, removed)
    return tuple(segment.base_offset for segment in removed)


def _note_failure(state: LogState, error: Exception, failures: list[Exception]) -> None:
    if not isinstance(error, (LogClosedError, LogFailedError)):
        _log.warning("%s: old segments could not be deleted: %s", state.path, error)
        failures.append(error)
