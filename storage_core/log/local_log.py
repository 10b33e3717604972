"""Forcing a log to disk (Kafka's ``UnifiedLog.flush``).

Beginning a new segment (Kafka's ``UnifiedLog.roll``).

Taking segments out of a log, and deleting their files some time later (Kafka's ``LocalLog.removeAndDeleteSegments``).

Removing records from either end of a log (Kafka's ``truncateTo``, ``maybeIncrementLogStartOffset``).

Putting segments in the place of others (Kafka's ``LocalLog.replaceSegments``), after a compaction or a split.

1. The new ones are complete as ``.cleaned``.
2. They become ``.swap``, the one with the lowest base offset last: as long as it is ``.cleaned``, the old ones count.
3. The old ones become ``.deleted``.
4. The new ones get their plain names.

Each step is on disk before the next begins. So a crash leaves either all of the old ones or all of the new ones, once
`interrupted_work`, or a broker, has finished what it interrupted.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import replace
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from storage_core.errors import LogClosedError, OptionError, StorageError
from storage_core.log.log_read import partition_log_of_view
from storage_core.log.log_state import GroupCommit
from storage_core.log.producer_state_manager import rebuild_producer_state
from storage_core.record.batch_header import MAX_OFFSET
from storage_core.scan.isolation import open_transactions
from storage_core.segment.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    SWAP_SUFFIX,
    log_file_name,
    offset_index_file_name,
    time_index_file_name,
    transaction_index_file_name,
)
from storage_core.segment.log_segment import LogSegment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from storage_core.filesystem import FileSystem
    from storage_core.log.log_state import LogOffsets, LogState

__all__ = [
    "create_segment",
    "delete_due_files",
    "delete_left_over_files",
    "delete_records",
    "flush_appended",
    "flush_directory_if_changed",
    "flush_if_due",
    "flush_up_to",
    "forget_expired_producers",
    "is_flush_due",
    "remove_below_log_start",
    "remove_segments",
    "rename_files",
    "replace_segments",
    "roll",
    "segments_below_log_start",
    "take_due_files",
    "told_to_readers",
    "truncate_fully_and_start_at",
    "truncate_to",
]


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
