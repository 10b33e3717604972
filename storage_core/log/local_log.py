"""Changing the segments of a log: flush, roll, delete, truncate, replace (Kafka's ``LocalLog``).

The order of writes and flushes here makes a log crash-safe: a crash at any point leaves a log that recovery, or a broker,
completes or rolls back.
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
from storage_core.log.log_state import LogOffsets, LogState, ScheduledDeletion, partition_log_of_view
from storage_core.log.producer_state_manager import rebuild_producer_state
from storage_core.record.batch_header import MAX_OFFSET
from storage_core.scan.isolation import open_transactions
from storage_core.segment.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    SWAP_SUFFIX,
    log_file_name,
    log_paths_beside,
    offset_index_file_name,
    time_index_file_name,
    transaction_index_file_name,
)
from storage_core.segment.log_segment import LogSegment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from storage_core.filesystem import FileSystem

_log = logging.getLogger(__name__)
_EXPIRATION_INTERVAL_MS: Final = 600_000
"""Kafka's ``producer.id.expiration.check.interval.ms``."""
_base_offset_of = attrgetter("base_offset")


def flush_up_to(state: LogState, offset: int, *, with_indexes: bool = True) -> None:
    """Flush everything below an offset, and move the recovery point to it (Kafka's ``UnifiedLog.flush``).

    The log is locked. The active segment's indexes may be left out, because recovery rebuilds
    the indexes of the segment that holds the recovery point; those of earlier segments must be intact.
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
    """Flush what was appended so far, sharing the flush with other threads. The log is not locked."""
    end_offset = state.offsets.batches_end_offset

    def is_covered() -> bool:
        # A roll or a close may flush first, and a truncation may leave nothing to flush.
        offsets = state.offsets
        return offsets.recovery_point >= min(end_offset, offsets.batches_end_offset)

    try:
        state.group_commit.flush(is_covered, partial(_flush_while_others_append, state))
    except LogClosedError:
        # A successful close has flushed everything.
        if not is_covered():
            raise


def _flush_while_others_append(state: LogState) -> None:
    """Flush what was appended so far, without holding the lock during the flush."""
    failure = state.failure
    if failure is not None:
        raise StorageError(
            f"The records were appended, but not flushed: a write to this log has failed meanwhile ({failure}). "
            "Open its log directory again.",
            path=state.path,
        ) from failure
    with state.writing():
        offsets, segment = state.offsets, state.segments.active
        end_offset = offsets.batches_end_offset
        if offsets.recovery_point < segment.base_offset or state.unflushed_directory:
            # Happens once per segment, so holding the lock is acceptable.
            flush_up_to(state, end_offset, with_indexes=False)
            return
        begun_ms, truncations = state.clock.now_ms(), state.truncations
        flush = segment.prepare_log_flush()
    try:
        flush()
    except BaseException as error:
        with state.lock:
            state.fail(error)
        raise
    with state.lock:
        state.last_flush_ms = max(state.last_flush_ms, begun_ms)
        # After a truncation, these offsets may hold newer records, which this flush did not cover.
        if state.truncations == truncations:
            state.publish(state.offsets.flushed(end_offset))


def flush_directory_if_changed(state: LogState) -> None:
    """Flush the log's directory if a file in it was created or renamed."""
    if state.unflushed_directory:
        state.filesystem.flush_directory(state.path)
        state.unflushed_directory = False


def flush_if_due(state: LogState, now_ms: int) -> None:
    """Flush the log if ``flush.messages`` or ``flush.ms`` requires it. The log is locked."""
    if is_flush_due(state, now_ms):
        flush_up_to(state, state.offsets.log_end_offset, with_indexes=False)


def is_flush_due(state: LogState, now_ms: int) -> bool:
    """Return True if ``flush.messages`` or ``flush.ms`` requires a flush."""
    offsets, config = state.offsets, state.config
    unflushed = offsets.batches_end_offset - offsets.recovery_point
    return unflushed >= config.flush_messages or (
        unflushed > 0 and now_ms - state.last_flush_ms >= config.flush_ms
    )


def roll(state: LogState, expected_next_offset: int = 0) -> LogSegment:
    """Close the active segment, and begin a new one at the log end or a higher expected offset (``UnifiedLog.roll``).

    Returns:
        The new segment. The previously active one, and all before it, are on disk then.
    """
    active = state.segments.active
    new_base_offset = max(expected_next_offset, state.offsets.log_end_offset)
    if new_base_offset == active.base_offset and active.size_bytes == 0:
        # Kafka deletes and recreates the segment. But the log's position is known only from this file's name.
        _log.info("%s: rolled an empty segment: it starts over.", active.path)
        active.truncate_to(active.base_offset, now_ms=state.clock.now_ms())
        active.resize_indexes()
        return active
    if new_base_offset <= active.base_offset:
        raise StorageError(
            f"Expected the log end offset to be above the base offset {active.base_offset} of the segment to close, "
            f"found {new_base_offset}. The log is damaged: open its log directory again.",
            path=state.path,
        )
    active.seal()
    if state.offsets.recovery_point >= state.offsets.log_end_offset:
        # Its records are on disk, but its indexes are not, and no later recovery rebuilds them.
        active.flush()
        flush_directory_if_changed(state)
    # Before its successor exists: no crash may leave a gap before newer records.
    flush_up_to(state, state.offsets.log_end_offset)
    state.producers.map_end_offset = new_base_offset
    forget_expired_producers(state)
    state.producers.take_snapshot()
    segment = create_segment(state, new_base_offset)
    # Its name says where the log goes on.
    state.publish_segments(replace(state.offsets, gap_start=None))
    state.checkpoint_if_due()
    return segment


def forget_expired_producers(state: LogState) -> None:
    """Remove expired producers, as rarely as a broker does, so that snapshots have the same contents."""
    now_ms = state.clock.now_ms()
    if now_ms - state.last_expiration_ms >= _EXPIRATION_INTERVAL_MS:
        state.last_expiration_ms = now_ms
        state.producers.remove_expired(now_ms)


def create_segment(state: LogState, base_offset: int) -> LogSegment:
    """Create a segment, and add it to the log."""
    delete_left_over_files(state, base_offset)
    like = (state.segments.active.path,) if len(state.segments) else ()
    segment = LogSegment.create(
        state.filesystem, state.path, base_offset, state.config, now_ms=state.clock.now_ms(), like=like
    )
    segment.transaction_index.note_absence()
    state.unflushed_directory = True
    state.segments.add(segment)
    return segment


def delete_left_over_files(state: LogState, base_offset: int) -> None:
    """Delete files with the names of a new segment that an earlier crash left."""
    for name in (
        log_file_name(base_offset),
        offset_index_file_name(base_offset),
        time_index_file_name(base_offset),
        transaction_index_file_name(base_offset),
    ):
        path = os.path.join(state.path, name)
        if state.filesystem.delete(path):
            _log.warning("Deleted %s, a leftover file with the name of a new segment.", path)


def close_log(state: LogState) -> None:
    """Flush a log, complete its indexes and close its files, so that the next open, here or in a broker, need not recover it.

    A log that has failed is only closed.

    Raises:
        LogForkedError: Another process opened it.
        StorageError: The flush failed: the log must be recovered.
    """
    if state.is_closed:
        return
    state.owner.check(state.path)
    # Without the lock, which the cleaning takes at its end.
    state.cleaning.stop()
    with state.lock:
        _close_locked(state)


def _close_locked(state: LogState) -> None:
    if state.is_closed:
        return
    try:
        if state.failure is None:
            with state.writing():
                _close(state)
    finally:
        state.is_closed = True
        state.segments.close_handlers()


def _close(state: LogState) -> None:
    delete_due_files(state)
    log_end_offset = state.offsets.log_end_offset
    # The next open finds the end of the batches.
    state.producers.map_end_offset = state.offsets.batches_end_offset
    state.producers.take_snapshot()
    if state.offsets.recovery_point < log_end_offset:
        # Before the flush, so that each file is flushed once.
        state.segments.active.seal()
    flush_up_to(state, log_end_offset)
    state.leader_epochs.flush()
    state.segments.close()
    _make_index_files(state)
    flush_directory_if_changed(state)


def _make_index_files(state: LogState) -> None:
    """Create missing index files: a broker recovers even an empty segment without them."""
    base_offset = state.segments.active.base_offset
    for name in (offset_index_file_name(base_offset), time_index_file_name(base_offset)):
        path = os.path.join(state.path, name)
        if state.filesystem.status(path) is None:
            like = log_paths_beside(path)
            with state.filesystem.open_for_writing(path, create=True, like=like) as index_file:
                index_file.flush()
            state.unflushed_directory = True


def segments_below_log_start(state: LogState) -> list[LogSegment]:
    """Return the inactive segments that end at or below the log start offset."""
    log_start_offset, segments = state.offsets.log_start_offset, state.segments.values()
    return [segment for segment, following in pairwise(segments) if following.base_offset <= log_start_offset]


def remove_below_log_start(state: LogState, segments: Sequence[LogSegment]) -> None:
    """Remove segments that end at or below the log start offset.

    The log start checkpoint is already on disk: whichever of their files a crash brings back, the log starts after them.
    """
    log_start_offset = state.offsets.whole_log_start
    state.leader_epochs.truncate_from_start(log_start_offset)
    state.producers.on_log_start_offset_incremented(log_start_offset)
    remove_segments(state, segments)
    # The checkpoint omits a log start that equals the first segment's base offset.
    flush_directory_if_changed(state)
    state.publish_segments(state.offsets)


def remove_segments(state: LogState, segments: Sequence[LogSegment]) -> None:
    """Remove segments from the log. Their files are deleted after ``file.delete.delay.ms``."""
    if not segments:
        return
    due_ms = state.clock.now_ms() + state.config.file_delete_delay_ms
    renamed: list[int] = []
    # A crash may restore any of the old names.
    state.unflushed_directory = True
    try:
        for segment in segments:
            # The segment stays in the list until its rename succeeds, so that it is closed in any case.
            segment.change_suffix("", DELETED_SUFFIX)
            renamed.append(segment.base_offset)
            state.scheduled_deletions.append(ScheduledDeletion(due_ms, segment.delete))
    finally:
        state.segments.remove_all(renamed)
    _delete_snapshots(state, renamed, due_ms)
    delete_due_files(state)


def _delete_snapshots(state: LogState, base_offsets: Sequence[int], due_ms: int) -> None:
    state.scheduled_deletions += [
        ScheduledDeletion(due_ms, partial(state.filesystem.delete, path))
        for path in state.producers.snapshots.mark_deleted(base_offsets)
    ]


def delete_due_files(state: LogState) -> None:
    """Delete the files of removed segments whose delay has passed."""
    for delete in take_due_files(state):
        delete()


def take_due_files(state: LogState) -> list[Callable[[], object]]:
    """Take the due deletions off the schedule: the caller makes them, with or without the lock."""
    scheduled = state.scheduled_deletions
    if not scheduled:
        return []
    now_ms = state.clock.now_ms()
    due = [each.delete for each in scheduled if each.due_ms <= now_ms]
    scheduled[:] = [each for each in scheduled if each.due_ms > now_ms]
    return due


def truncate_to(state: LogState, target_offset: int) -> bool:
    """Truncate the log, flush the removal, and return True if anything was removed.

    The batch that holds the offset is removed entirely, including its records below the offset.
    """
    _require_offset(target_offset)
    offsets = state.offsets
    if target_offset >= offsets.log_end_offset:
        state.leader_epochs.truncate_from_end(offsets.log_end_offset)
        return False
    if state.view.segments[0].base_offset > target_offset:
        _restart(state, target_offset, min(offsets.whole_log_start, target_offset))
        return True
    lowest_removed = _lowest_removed(state, target_offset)
    lowered = replace(
        offsets.truncated(target_offset, _end_of_batches_before(state, lowest_removed)),
        first_unstable_offset=_first_unstable(state, lowest_removed),
    )
    with announced_truncation(state, lowest_removed):
        _truncate_to(state, target_offset, lowered)
    return True


def _truncate_to(state: LogState, target_offset: int, lowered: LogOffsets) -> None:
    # Lower the checkpoints first: what is removed, and what is appended after the new end, must not count as flushed.
    state.publish_lowered(lowered)
    state.checkpoint()
    last = state.segments.floor(target_offset)
    _lower_cleaner_checkpoint(state, target_offset if last is None else last.base_offset)
    if _remove_from_the_end(state, target_offset):
        # A reader that has read a removed segment, but not yet this one, would otherwise miss the cut.
        _announce_truncation_again(state)
    active = state.segments.active
    active.truncate_to(target_offset, now_ms=state.clock.now_ms())
    active.resize_indexes()
    active.flush()
    state.leader_epochs.truncate_from_end(target_offset)
    state.leader_epochs.truncate_from_start(lowered.whole_log_start)
    rebuild_producer_state(
        state.producers,
        state.segments,
        lowered.whole_log_start,
        lowered.batches_end_offset,
        state.clock.now_ms(),
        is_after_clean_shutdown=False,
    )
    state.publish_segments(lowered)


def truncate_fully_and_start_at(state: LogState, offset: int) -> None:
    """Remove all records: the log begins and ends at an offset."""
    _require_offset(offset)
    _restart(state, offset, offset)


def _restart(state: LogState, offset: int, whole_log_start: int) -> None:
    restarted = state.offsets.restarted(offset, whole_log_start)
    with announced_truncation(state, 0):
        state.restarts_at = whole_log_start
        state.publish(restarted)
        state.checkpoint()
        _lower_cleaner_checkpoint(state, offset)
        _remove_from_the_end(state, -1)
        # A reader could take the new segment for a removed one of the same name.
        _announce_truncation_again(state)
        create_segment(state, offset)
        flush_directory_if_changed(state)
        state.restarts_at = None
        if whole_log_start < offset:
            # The epochs of records in remote storage stay.
            state.leader_epochs.truncate_from_end(offset)
        else:
            state.leader_epochs.clear()
        state.producers.truncate_fully_and_start_at(offset)
        state.publish_segments(restarted)


def delete_records(state: LogState, before_offset: int) -> int:
    """Delete the records below an offset, and the segments entirely below it.

    Returns:
        The new log start offset.
    """
    offsets = state.offsets
    if before_offset == -1:
        before_offset = offsets.high_watermark
    moved = offsets.with_log_start(before_offset)
    if moved is offsets:
        return offsets.log_start_offset
    # The recovery point moves too, and nothing below it is flushed later.
    flush_up_to(state, moved.recovery_point, with_indexes=False)
    moved = state.offsets.with_log_start(before_offset)
    state.publish(moved)
    state.checkpoint()
    remove_below_log_start(state, segments_below_log_start(state))
    return moved.log_start_offset


@contextlib.contextmanager
def announced_truncation(state: LogState, offset: int) -> Iterator[None]:
    """Announce to readers, in all processes, that records at or after an offset are about to be removed."""
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


def _announce_truncation_again(state: LogState) -> None:
    """Make readers that began after the first announcement retry."""
    directory = state.directory
    if state.truncations_file is not None:
        state.truncations_file.note_begin(directory.topic, directory.partition, state.truncated_to)


def _lowest_removed(state: LogState, target_offset: int) -> int:
    """Return the first offset that a truncation removes, which is that of the batch that holds the target."""
    segment = state.segments.floor(target_offset)
    batch = None if segment is None else segment.translate_offset(target_offset)
    return target_offset if batch is None else min(target_offset, batch.base_offset)


def _end_of_batches_before(state: LogState, offset: int) -> int:
    """Return where the batches below an offset end in its segment; for an offset in a gap, before the gap."""
    segment = state.segments.floor(offset)
    if segment is None:
        return offset
    before = segment.reader().locate_offset(offset).before
    return segment.base_offset if before is None else before.last_offset + 1


def _first_unstable(state: LogState, end_offset: int) -> int | None:
    """Find the oldest transaction that is undecided at an offset, even if its marker comes after it.

    Returns:
        The first offset of the transaction, or None if all are decided.
    """
    if state.producers.is_empty:
        return None
    end_offset = min(end_offset, state.offsets.high_watermark)
    log = partition_log_of_view(state, state.view, 0, with_file_names=True)
    return next((each.first_offset for each in open_transactions(log, end_offset)), None)


def _lower_cleaner_checkpoint(state: LogState, active_base_offset: int) -> None:
    """Mark what will be appended after the truncation as dirty: as in Kafka, from the active segment on."""
    checkpoint = state.cleaning.checkpoint
    # Also for a log that is not compacted now: the checkpoint applies again as soon as it is.
    if checkpoint is not None:
        checkpoint.lower(state.directory.topic_partition, active_base_offset)


def _remove_from_the_end(state: LogState, target_offset: int) -> bool:
    """Remove the segments that begin after an offset, and return whether any did.

    They are removed last first, each on disk before the next, so that no crash leaves a gap.
    """
    has_removed = False
    for segment in reversed(state.segments.values()):
        if segment.base_offset > target_offset:
            has_removed = True
            remove_segments(state, [segment])
            flush_directory_if_changed(state)
    return has_removed


def _require_offset(offset: int) -> None:
    if not 0 <= offset < MAX_OFFSET:
        raise OptionError(f"Expected an offset from 0 to {MAX_OFFSET - 1}, found {offset}.")


def rename_files(
    filesystem: FileSystem,
    path: str,
    new_segments: Sequence[LogSegment],
    old_segments: Sequence[LogSegment],
) -> None:
    """Replace the files of segments, after a compaction or a split (Kafka's ``LocalLog.replaceSegments``).

    1. The new segments are complete, with the suffix ``.cleaned``, and their files are on disk.
    2. They become ``.swap``, the lowest base offset last: while it is ``.cleaned``, the old segments count.
    3. The old segments, all from the first base offset of the new ones to their end, become ``.deleted``.
    4. The new segments lose their suffix.

    Each step is on disk before the next begins. After a crash, `complete_interrupted_swaps`, or a broker, restores either
    all of the old segments or all of the new ones.
    """
    filesystem.flush_directory(path)
    in_order = sorted(new_segments, key=_base_offset_of)
    for segment in reversed(in_order):
        segment.change_suffix(CLEANED_SUFFIX, SWAP_SUFFIX)
        filesystem.flush_directory(path)
    for segment in sorted(old_segments, key=_base_offset_of):
        segment.change_suffix("", DELETED_SUFFIX)
    # Without a `.swap` file, a crash could restore one of them.
    filesystem.flush_directory(path)
    for segment in in_order:
        segment.change_suffix(SWAP_SUFFIX, "")
    filesystem.flush_directory(path)


def replace_segments(state: LogState, new_segment: LogSegment, old_segments: Sequence[LogSegment]) -> None:
    """Replace segments of an open log by one segment.

    The log is locked. The new segment is complete as ``.cleaned``, with its files on disk. The old ones are those that
    it was made of, ascending, and the first of them has the same base offset. Their files are deleted after
    ``file.delete.delay.ms``.
    """
    # After a crash, a swap is completed up to this offset. Segments beyond it kept no record.
    end_offset = max(new_segment.read_next_offset(), new_segment.base_offset + 1)
    replaced = [segment for segment in old_segments if segment.base_offset < end_offset]
    due_ms = state.clock.now_ms() + state.config.file_delete_delay_ms
    rename_files(state.filesystem, state.path, [new_segment], replaced)
    state.unflushed_directory = False
    state.scheduled_deletions += [ScheduledDeletion(due_ms, segment.delete) for segment in replaced]
    removed = [segment.base_offset for segment in replaced if segment.base_offset != new_segment.base_offset]
    _delete_snapshots(state, removed, due_ms)
    state.segments.remove_all(removed)
    state.segments.add(new_segment)
    state.publish_segments(state.offsets)
    # One by one, in order: if a crash restored a value but not its later tombstone, the value would reappear.
    for segment in old_segments[len(replaced) :]:
        remove_segments(state, [segment])
        flush_directory_if_changed(state)
        state.publish_segments(state.offsets)
