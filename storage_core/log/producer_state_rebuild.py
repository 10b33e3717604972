"""Bringing the producer state up to an offset of the log (Kafka's ``UnifiedLog.rebuildProducerState``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage_core.log.log_segments import LogSegments
    from storage_core.log.producer_state import ProducerStateManager
    from storage_core.segment.log_segment import LogSegment

__all__ = ["rebuild_producer_state"]


def rebuild_producer_state(
    manager: ProducerStateManager,
    segments: LogSegments,
    log_start_offset: int,
    last_offset: int,
    now_ms: int,
    *,
    is_after_clean_shutdown: bool,
) -> None:
    """Let the state be that of everything from the log start to below ``last_offset``, and take snapshots.

    Only what lies behind the newest usable snapshot is read. Snapshots as of the last two segments'
    base offsets serve a truncation that may follow.

    Args:
        manager: The state; snapshots outside the offsets are deleted.
        segments: The log's segments.
        log_start_offset: Where the log begins.
        last_offset: Up to where it is to be accounted for: the log end, or a segment's base offset.
        now_ms: The time, for producers that have expired.
        is_after_clean_shutdown: If there is no snapshot at all, there were no producers either.

    Raises:
        CorruptRecordError: A batch or a marker on the way is damaged.
    """
    offsets_to_snapshot = (*segments.base_offsets[-2:], last_offset)
    if manager.snapshots.latest_offset is None and is_after_clean_shutdown:
        for offset in offsets_to_snapshot:
            manager.move_map_end_offset(offset)
            manager.take_snapshot()
        return
    # Who knew of no producer behind the truncation finds none before it.
    was_empty = manager.is_empty and manager.map_end_offset >= last_offset
    manager.truncate_and_reload(log_start_offset, last_offset, now_ms)
    if last_offset > manager.map_end_offset and not was_empty:
        for segment in segments.values(manager.map_end_offset, last_offset):
            manager.move_map_end_offset(max(segment.base_offset, manager.map_end_offset))
            if segment.base_offset in offsets_to_snapshot:
                manager.take_snapshot()
            _replay(manager, segment, last_offset)
    manager.move_map_end_offset(last_offset)
    manager.take_snapshot()


def _replay(manager: ProducerStateManager, segment: LogSegment, last_offset: int) -> None:
    start = segment.translate_offset(manager.map_end_offset)
    if start is None:
        return
    end = segment.translate_offset(last_offset)
    end_position_bytes = segment.size_bytes if end is None else end.position_bytes
    for window in segment.windows(start.position_bytes, end_position_bytes):
        manager.observe(window)
