"""Removing records from either end of a log (Kafka's ``truncateTo``, ``maybeIncrementLogStartOffset``)."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from storage_core.errors import OptionError
from storage_core.log.log_flush import flush_directory_if_changed, flush_up_to
from storage_core.log.log_read import partition_log_of_view
from storage_core.log.log_roll import create_segment
from storage_core.log.producer_state_rebuild import rebuild_producer_state
from storage_core.log.segment_deletion import (
    remove_below_log_start,
    remove_segments,
    segments_below_log_start,
)
from storage_core.record.batch_header import MAX_OFFSET
from storage_core.scan.isolation import open_transactions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.log.log_offsets import LogOffsets
    from storage_core.log.log_state import LogState

__all__ = [
    "delete_records",
    "told_to_readers",
    "truncate_fully_and_start_at",
    "truncate_to",
]


def truncate_to(state: LogState, target_offset: int) -> bool:
    """Remove all records from an offset on; the log ends there exactly, and the removal is on disk.

    The batch that holds the offset goes as a whole, with its records below the offset.

    Returns:
        Whether there was anything to remove.
    """
    _require_offset(target_offset)
    offsets = state.offsets
    if target_offset >= offsets.log_end_offset:
        state.leader_epochs.truncate_from_end(offsets.log_end_offset)
        return False
    if state.view.segments[0].base_offset > target_offset:
        truncate_fully_and_start_at(state, target_offset)
        return True
    lowest_removed = _lowest_removed(state, target_offset)
    lowered = replace(
        offsets.truncated(target_offset), first_unstable_offset=_first_unstable(state, lowest_removed)
    )
    with told_to_readers(state, lowest_removed):
        _truncate_to(state, target_offset, lowered)
    return True


def _truncate_to(state: LogState, target_offset: int, lowered: LogOffsets) -> None:
    # Lowered on disk first: nothing behind the new end may count as flushed once other records stand there.
    state.publish_lowered(lowered)
    state.checkpoint()
    last = state.segments.floor(target_offset)
    _lower_cleaner_checkpoint(state, target_offset if last is None else last.base_offset)
    if _remove_from_the_end(state, target_offset):
        # Who has looked at a segment that is gone now, and has yet to look at this one, would miss what is cut off.
        _tell_readers_again(state)
    active = state.segments.active
    active.truncate_to(target_offset, now_ms=state.clock.now_ms())
    active.resize_indexes()
    active.flush()
    state.leader_epochs.truncate_from_end(target_offset)
    state.leader_epochs.truncate_from_start(lowered.log_start_offset)
    rebuild_producer_state(
        state.producers,
        state.segments,
        lowered.log_start_offset,
        target_offset,
        state.clock.now_ms(),
        is_after_clean_shutdown=False,
    )
    state.publish_segments(lowered)


def truncate_fully_and_start_at(state: LogState, offset: int) -> None:
    """Remove everything: the log begins and ends at an offset."""
    _require_offset(offset)
    with told_to_readers(state, 0):
        restarted = state.offsets.restarted(offset)
        state.restarts_at = offset
        state.publish(restarted)
        state.checkpoint()
        _lower_cleaner_checkpoint(state, offset)
        _remove_from_the_end(state, -1)
        create_segment(state, offset)
        flush_directory_if_changed(state)
        state.restarts_at = None
        state.leader_epochs.clear()
        state.producers.truncate_fully_and_start_at(offset)
        state.publish_segments(restarted)


def delete_records(state: LogState, before_offset: int) -> int:
    """Delete the records below an offset: the log starts there from now on, also after a crash.

    Segments that lie below it as a whole are removed.

    Returns:
        The log start offset.

    Raises:
        OffsetOutOfRangeError: The offset is above the high watermark.
    """
    offsets = state.offsets
    if before_offset == -1:
        before_offset = offsets.high_watermark
    moved = offsets.with_log_start(before_offset)
    if moved is offsets:
        return offsets.log_start_offset
    # The recovery point goes along, and has to be true: what it leaves behind, nobody flushes any more.
    flush_up_to(state, moved.recovery_point, with_indexes=False)
    moved = state.offsets.with_log_start(moved.log_start_offset)
    state.publish(moved)
    state.checkpoint()
    remove_below_log_start(state, segments_below_log_start(state))
    return moved.log_start_offset


@contextlib.contextmanager
def told_to_readers(state: LogState, offset: int) -> Iterator[None]:
    """Let readers know, in this process and in others, that the records from an offset on go: nothing may have changed yet."""
    directory, truncations_file = state.directory, state.truncations_file
    state.truncated_to, state.is_truncating = offset, True
    try:
        if truncations_file is None:
            yield
        else:
            with truncations_file.noted(directory.topic, directory.partition, offset):
                yield
    finally:
        state.is_truncating = False


def _tell_readers_again(state: LogState) -> None:
    """Have those look once more who have begun to look since readers were told."""
    directory = state.directory
    if state.truncations_file is not None:
        state.truncations_file.note_begin(directory.topic, directory.partition, state.truncated_to)


def _lowest_removed(state: LogState, target_offset: int) -> int:
    """The first offset whose record goes: the batch that holds the target goes as a whole."""
    segment = state.segments.floor(target_offset)
    batch = None if segment is None else segment.translate_offset(target_offset)
    return target_offset if batch is None else min(target_offset, batch.base_offset)


def _first_unstable(state: LogState, end_offset: int) -> int | None:
    """Where the oldest transaction begins that is undecided at an offset, also if its marker comes after it."""
    if state.producers.is_empty:
        return None
    end_offset = min(end_offset, state.offsets.high_watermark)
    log = partition_log_of_view(state.filesystem, state.directory, state.view, 0, with_file_names=True)
    return next((each.first_offset for each in open_transactions(log, end_offset)), None)


def _lower_cleaner_checkpoint(state: LogState, active_base_offset: int) -> None:
    """What is going to stand behind the log end has not been cleaned: as in Kafka, from the active segment on."""
    checkpoint = state.cleaning.checkpoint
    # Also of a log that is not compacted now: what was said of it counts as soon as it is again.
    if checkpoint is not None:
        checkpoint.lower(state.directory.topic_partition, active_base_offset)


def _remove_from_the_end(state: LogState, target_offset: int) -> bool:
    """Remove the segments that begin after an offset, the last one first. Says whether there were any.

    A crash on the way leaves no gap: each is off the disk before the one in front of it goes.
    """
    is_any = False
    for segment in reversed(state.segments.values()):
        if segment.base_offset > target_offset:
            is_any = True
            remove_segments(state, [segment])
            flush_directory_if_changed(state)
    return is_any


def _require_offset(offset: int) -> None:
    if not 0 <= offset < MAX_OFFSET:
        raise OptionError(f"Expected an offset from 0 to {MAX_OFFSET - 1}, found {offset}.")
