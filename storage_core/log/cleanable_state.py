"""What of a log that is open is to be cleaned: the facts by which `cleanable_log` decides, and the checkpoint."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from storage_core.config import LONG_MAX
from storage_core.log.cleanable_log import (
    CleanableLog,
    LogFacts,
    SegmentFacts,
    cleanable_log,
    first_dirty_offset,
)

if TYPE_CHECKING:
    from storage_core.log.log_state import LogState
    from storage_core.segment.log_segment import LogSegment

__all__ = ["find_first_dirty_offset", "what_is_cleanable"]

_log = logging.getLogger(__name__)


def find_first_dirty_offset(state: LogState) -> int:
    """Where the next cleaning of a log begins. A checkpoint that cannot be true is set right.

    Raises:
        SegmentLogError: The checkpoint cannot be read or written.
    """
    offsets, checkpoint = state.view.offsets, state.cleaning.checkpoint
    key = state.directory.topic_partition
    checkpointed = None if checkpoint is None else checkpoint.offset(key)
    dirty = first_dirty_offset(checkpointed, offsets.log_start_offset, offsets.log_end_offset)
    if dirty.is_reset and checkpoint is not None:
        # What retention has taken was clean, or is gone all the same.
        is_usual = "delete" in state.config.cleanup_policy and (checkpointed or 0) < offsets.log_start_offset
        _log.log(
            logging.DEBUG if is_usual else logging.WARNING,
            "%s: expected to have cleaned up to an offset from %d to %d, found %d. All counts as dirty.",
            state.path,
            offsets.log_start_offset,
            offsets.log_end_offset,
            checkpointed,
        )
        checkpoint.update(key, dirty.offset)
    return dirty.offset


def what_is_cleanable(state: LogState, now_ms: int) -> CleanableLog:
    """How much of a log is to be cleaned now. A checkpoint that cannot be true is set right.

    Raises:
        SegmentLogError: A file cannot be read, or the checkpoint not be written.
    """
    dirty_offset = find_first_dirty_offset(state)
    view, config = state.view, state.config
    offsets = view.offsets
    # What takes a look into files is left out where it decides nothing.
    with_largest, with_first = config.min_compaction_lag_ms > 0, config.max_compaction_lag_ms < LONG_MAX
    bases = (segment.base_offset for segment in reversed(view.segments))
    dirty_base_offset = next((base for base in bases if base <= dirty_offset), dirty_offset)
    facts = [
        SegmentFacts(
            segment.base_offset,
            segment.size_bytes,
            _largest_timestamp_ms(segment) if with_largest and is_dirty else -1,
            segment.first_batch_timestamp_ms if with_first and is_dirty else -1,
        )
        for segment in view.segments
        for is_dirty in [segment.base_offset >= dirty_base_offset and segment is not view.segments[-1]]
    ]
    log = LogFacts(tuple(facts), offsets.log_start_offset, offsets.log_end_offset, offsets.last_stable_offset)
    return cleanable_log(log, dirty_offset, config, now_ms)


def _largest_timestamp_ms(segment: LogSegment) -> int:
    timestamp_ms = segment.largest_timestamp.timestamp_ms
    return timestamp_ms if timestamp_ms >= 0 else segment.modified_ms
