"""Taking segments out of a log, and deleting their files some time later (Kafka's ``LocalLog.removeAndDeleteSegments``)."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from storage_core.log.log_flush import flush_directory_if_changed
from storage_core.segment.file_names import DELETED_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from storage_core.log.log_state import LogState
    from storage_core.segment.log_segment import LogSegment

__all__ = [
    "delete_due_files",
    "remove_below_log_start",
    "remove_segments",
    "segments_below_log_start",
    "take_due_files",
]


def segments_below_log_start(state: LogState) -> list[LogSegment]:
    """The segments all of whose offsets lie below the log start offset; never the active one."""
    log_start_offset, segments = state.offsets.log_start_offset, state.segments.values()
    return [segment for segment, following in pairwise(segments) if following.base_offset <= log_start_offset]


def remove_below_log_start(state: LogState, segments: Sequence[LogSegment]) -> None:
    """Remove segments that lie below the log start offset as a whole. A checkpoint on disk tells of that offset.

    Whatever a crash leaves of their names, what counts begins behind them.
    """
    log_start_offset = state.offsets.log_start_offset
    state.leader_epochs.truncate_from_start(log_start_offset)
    state.producers.on_log_start_offset_incremented(log_start_offset)
    remove_segments(state, segments)
    # A log start that is the base offset of a segment is told by its name alone, later on.
    flush_directory_if_changed(state)
    state.publish_segments(state.offsets)


def remove_segments(state: LogState, segments: Sequence[LogSegment]) -> None:
    """Take segments out of the log. Their files keep their bytes for ``file.delete.delay.ms``."""
    if not segments:
        return
    due_ms = state.clock.now_ms() + state.config.file_delete_delay_ms
    renamed: list[int] = []
    # A crash may bring back any of the old names.
    state.unflushed_directory = True
    try:
        for segment in segments:
            # As long as the rename may fail, somebody has to know of the segment, and close it.
            segment.change_suffix("", DELETED_SUFFIX)
            renamed.append(segment.base_offset)
            state.doomed_files.append((due_ms, segment.delete))
    finally:
        state.segments.remove_all(renamed)
    for snapshot_path in state.producers.snapshots.mark_deleted(renamed):
        state.doomed_files.append((due_ms, partial(state.filesystem.delete, snapshot_path)))
    delete_due_files(state)


def delete_due_files(state: LogState) -> None:
    """Delete the files of removed segments whose time has come."""
    for delete in take_due_files(state):
        delete()


def take_due_files(state: LogState) -> list[Callable[[], object]]:
    """How to delete the files whose time has come: the caller's task from now on, with the log locked or not."""
    if not state.doomed_files:
        return []
    now_ms = state.clock.now_ms()
    due = [delete for due_ms, delete in state.doomed_files if due_ms <= now_ms]
    state.doomed_files[:] = [each for each in state.doomed_files if each[0] > now_ms]
    return due
