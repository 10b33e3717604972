"""Beginning a new segment (Kafka's ``UnifiedLog.roll``)."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from storage_core.errors import StorageError
from storage_core.log.log_flush import flush_directory_if_changed, flush_up_to
from storage_core.segment.file_names import (
    log_file_name,
    offset_index_file_name,
    time_index_file_name,
    transaction_index_file_name,
)
from storage_core.segment.log_segment import LogSegment

if TYPE_CHECKING:
    from storage_core.log.log_state import LogState

__all__ = ["create_segment", "delete_left_over_files", "forget_expired_producers", "roll"]

_log = logging.getLogger(__name__)

_EXPIRATION_INTERVAL_MS: Final = 600_000
"""Kafka's ``producer.id.expiration.check.interval.ms``."""


def roll(state: LogState, expected_next_offset: int = 0) -> LogSegment:
    """Close the active segment and begin another at the log end offset, or at a higher one that is expected.

    The segment that was active is on disk when this returns, as are all before it.

    Returns:
        The new active segment.
    """
    active = state.segments.active
    new_base_offset = max(expected_next_offset, state.offsets.log_end_offset)
    if new_base_offset == active.base_offset and active.size_bytes == 0:
        # Kafka deletes the segment and makes it anew. But its name alone tells where the log is.
        _log.info("%s: rolled an empty segment: it begins anew.", active.path)
        active.truncate_to(active.base_offset, now_ms=state.clock.now_ms())
        active.resize_indexes()
        return active
    if new_base_offset <= active.base_offset:
        raise StorageError(
            f"Expected the log end offset to be above the base offset {active.base_offset} of the segment that is "
            f"to be closed, found {new_base_offset}. The log is damaged: open its log directory again.",
            path=state.path,
        )
    active.seal()
    if state.offsets.recovery_point >= state.offsets.log_end_offset:
        # Its records are on disk, but not its indexes: from here on, no recovery makes them anew.
        active.flush()
        flush_directory_if_changed(state)
    # Before there is a successor: then no crash leaves a gap in front of something newer.
    flush_up_to(state, state.offsets.log_end_offset)
    state.producers.move_map_end_offset(new_base_offset)
    forget_expired_producers(state)
    state.producers.take_snapshot()
    segment = create_segment(state, new_base_offset)
    state.publish_segments(state.offsets)
    state.checkpoint_if_due()
    return segment


def forget_expired_producers(state: LogState) -> None:
    """Forget who was silent for too long, as seldom as a broker does, so that snapshots tell the same."""
    now_ms = state.clock.now_ms()
    if now_ms - state.last_expiration_ms >= _EXPIRATION_INTERVAL_MS:
        state.last_expiration_ms = now_ms
        state.producers.remove_expired(now_ms)


def create_segment(state: LogState, base_offset: int) -> LogSegment:
    """Begin a segment, and add it to the log."""
    delete_left_over_files(state, base_offset)
    segment = LogSegment.create(
        state.filesystem, state.path, base_offset, state.config, now_ms=state.clock.now_ms()
    )
    segment.transaction_index.note_absence()
    state.unflushed_directory = True
    state.segments.add(segment)
    return segment


def delete_left_over_files(state: LogState, base_offset: int) -> None:
    """Delete what an earlier life of the log has left under the names of a new segment."""
    for name in (
        log_file_name(base_offset),
        offset_index_file_name(base_offset),
        time_index_file_name(base_offset),
        transaction_index_file_name(base_offset),
    ):
        path = os.path.join(state.path, name)
        if state.filesystem.delete(path):
            _log.warning("Deleted %s, which stood where a new segment begins.", path)
