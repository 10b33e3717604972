"""Forcing a log to disk (Kafka's ``UnifiedLog.flush``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_core.errors import LogClosedError, StorageError
from storage_core.log.group_commit import GroupCommit

if TYPE_CHECKING:
    from storage_core.log.log_state import LogState

__all__ = ["flush_appended", "flush_directory_if_changed", "flush_if_due", "flush_up_to", "is_flush_due"]


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


def flush_appended(state: LogState) -> None:
    """Force to disk what was appended so far, together with others who want the same. The log is not locked.

    Raises:
        StorageError: It may not be on disk; the log has failed.
    """
    end_offset = state.offsets.log_end_offset

    def is_covered() -> bool:
        # A roll, a close, or whatever else flushes, may come first; a truncation may leave nothing to be flushed.
        offsets = state.offsets
        return offsets.recovery_point >= min(end_offset, offsets.log_end_offset)

    try:
        _group_commit(state).flush(is_covered, lambda: _flush_while_others_append(state))
    except LogClosedError:
        # Whoever has closed it meanwhile has forced everything to disk, unless that failed.
        if not is_covered():
            raise


def _group_commit(state: LogState) -> GroupCommit:
    # Most logs of many never need it.
    group_commit = state.group_commit
    if group_commit is None:
        with state.lock:
            group_commit = state.group_commit = state.group_commit or GroupCommit()
    return group_commit


def _flush_while_others_append(state: LogState) -> None:
    """Force to disk what was appended so far; the log is not locked while the disk is at work."""
    failure = state.failure
    if failure is not None:
        raise StorageError(
            f"The records were appended, but not forced to disk: a write to this log has failed meanwhile ({failure}). "
            "Open its log directory again.",
            path=state.path,
        ) from failure
    with state.writing():
        offsets, segment = state.offsets, state.segments.active
        end_offset = offsets.log_end_offset
        if offsets.recovery_point < segment.base_offset or state.unflushed_directory:
            # Once a segment: not worth a thought about who changes what meanwhile.
            flush_up_to(state, end_offset, with_indexes=False)
            return
        begun_ms, truncations = state.clock.now_ms(), state.truncations
        prepared = segment.prepare_log_flush()
    try:
        prepared.run()
    except BaseException as error:
        with state.lock:
            state.fail(error)
        raise
    with state.lock:
        state.last_flush_ms = max(state.last_flush_ms, begun_ms)
        # Behind a truncation other records may stand at these offsets now, which came too late for this flush.
        if state.truncations == truncations:
            state.publish(state.offsets.flushed(end_offset))


def flush_directory_if_changed(state: LogState) -> None:
    """Force the names in the log's directory to disk, if any has changed."""
    if state.unflushed_directory:
        state.filesystem.flush_directory(state.path)
        state.unflushed_directory = False


def flush_if_due(state: LogState, now_ms: int) -> None:
    """Force the log to disk if ``flush.messages`` or ``flush.ms`` say so. The log is locked."""
    if is_flush_due(state, now_ms):
        flush_up_to(state, state.offsets.log_end_offset, with_indexes=False)


def is_flush_due(state: LogState, now_ms: int) -> bool:
    """Whether ``flush.messages`` or ``flush.ms`` say that the log is to be forced to disk."""
    offsets, config = state.offsets, state.config
    unflushed = offsets.log_end_offset - offsets.recovery_point
    return unflushed >= config.flush_messages or (
        unflushed > 0 and now_ms - state.last_flush_ms >= config.flush_ms
    )
