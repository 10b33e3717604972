"""Forcing a log to disk (Kafka's ``UnifiedLog.flush``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage_core.log.log_state import LogState

__all__ = ["flush_directory_if_changed", "flush_if_due", "flush_up_to"]


def flush_up_to(state: LogState, offset: int, *, with_indexes: bool = True) -> None:
    """Force to disk what lies below an offset, and let the recovery point follow.

    Args:
        state: The log, locked; nothing is pending.
        offset: At most the log end offset.
        with_indexes: Whether the active segment's indexes are forced to disk too. Recovery makes those of
            the segment that holds the recovery point anew; those below it have to be whole.
    """
    recovery_point = state.offsets.recovery_point
    if offset > recovery_point:
        active = state.segments.active
        for segment in state.segments.values(recovery_point, offset):
            if segment is active and not with_indexes:
                segment.flush_log()
            else:
                segment.flush()
        flush_directory_if_changed(state)
        state.publish(state.offsets.flushed(offset))
    state.last_flush_ms = state.clock.now_ms()


def flush_directory_if_changed(state: LogState) -> None:
    """Force the names in the log's directory to disk, if any has changed."""
    if state.unflushed_directory:
        state.filesystem.flush_directory(state.path)
        state.unflushed_directory = False


def flush_if_due(state: LogState, now_ms: int) -> None:
    """Force the log to disk if ``flush.messages`` or ``flush.ms`` say so."""
    offsets, config = state.offsets, state.config
    unflushed = offsets.log_end_offset - offsets.recovery_point
    if unflushed >= config.flush_messages or (unflushed and now_ms - state.last_flush_ms >= config.flush_ms):
        flush_up_to(state, offsets.log_end_offset, with_indexes=False)
