"""Putting segments in the place of others (Kafka's ``LocalLog.replaceSegments``), after a compaction or a split.

1. The new ones are complete as ``.cleaned``.
2. They become ``.swap``, the one with the lowest base offset last: as long as it is ``.cleaned``, the old ones count.
3. The old ones become ``.deleted``.
4. The new ones get their plain names.

Each step is on disk before the next begins. So a crash leaves either all of the old ones or all of the new ones, once
`interrupted_work`, or a broker, has finished what it interrupted.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from storage_core.log.log_flush import flush_directory_if_changed
from storage_core.log.segment_deletion import remove_segments
from storage_core.segment.file_names import CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.filesystem import FileSystem
    from storage_core.log.log_state import LogState
    from storage_core.segment.log_segment import LogSegment

__all__ = ["rename_files", "replace_segments"]

_base_offset_of = attrgetter("base_offset")


def rename_files(
    filesystem: FileSystem, path: str, new_segments: Sequence[LogSegment], old_segments: Sequence[LogSegment]
) -> None:
    """Let the files of segments take the place of others', which are ``.deleted`` afterwards.

    Args:
        filesystem: Where to work.
        path: The partition's directory.
        new_segments: Complete as ``.cleaned``, and their files on disk.
        old_segments: All whose offsets lie between the first base offset of the new ones and their end.
    """
    filesystem.flush_directory(path)
    in_order = sorted(new_segments, key=_base_offset_of)
    for segment in reversed(in_order):
        segment.change_suffix(CLEANED_SUFFIX, SWAP_SUFFIX)
        filesystem.flush_directory(path)
    for segment in sorted(old_segments, key=_base_offset_of):
        segment.change_suffix("", DELETED_SUFFIX)
    # Without a `.swap`, nobody would know that one of them is to go.
    filesystem.flush_directory(path)
    for segment in in_order:
        segment.change_suffix(SWAP_SUFFIX, "")
    filesystem.flush_directory(path)


def replace_segments(state: LogState, new_segment: LogSegment, old_segments: Sequence[LogSegment]) -> None:
    """Let a segment take the place of others in a log that is open for writing, and is locked.

    The old files keep their bytes for ``file.delete.delay.ms``.

    Args:
        state: The log.
        new_segment: Complete as ``.cleaned``, and its files on disk.
        old_segments: What it was made of, ascending. The first one has its base offset.
    """
    # What a crash interrupts is completed up to here. Of the segments behind, nothing was left.
    end_offset = max(new_segment.read_next_offset(), new_segment.base_offset + 1)
    replaced = [segment for segment in old_segments if segment.base_offset < end_offset]
    due_ms = state.clock.now_ms() + state.config.file_delete_delay_ms
    rename_files(state.filesystem, state.path, [new_segment], replaced)
    state.unflushed_directory = False
    state.doomed_files += [(due_ms, segment.delete) for segment in replaced]
    # As of the base offsets of segments that there are no more.
    gone = [segment.base_offset for segment in replaced if segment.base_offset != new_segment.base_offset]
    for snapshot_path in state.producers.snapshots.mark_deleted(gone):
        state.doomed_files.append((due_ms, partial(state.filesystem.delete, snapshot_path)))
    state.segments.remove_all(gone)
    state.segments.add(new_segment)
    state.publish_segments(state.offsets)
    # One by one: without a null value that is gone, an older value of the same key would be back.
    for segment in old_segments[len(replaced) :]:
        remove_segments(state, [segment])
        flush_directory_if_changed(state)
        state.publish_segments(state.offsets)
