"""Loading a log from its directory, and recovering it after a crash (Kafka's ``LogLoader``).

interrupted swaps completed → segments opened → unflushed segments recovered → offsets, epochs, producers
"""

from __future__ import annotations

import logging
import os
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint import LEADER_EPOCH_CHECKPOINT
from storage_core.errors import CorruptError, CorruptRecordError, OffsetOverflowError
from storage_core.filesystem.file_system import TEMPORARY_FILE
from storage_core.log.leader_epoch_cache import LeaderEpochCache
from storage_core.log.local_log import rename_files
from storage_core.log.log_segments import LogSegments
from storage_core.log.log_state import LogOffsets, LogState, LogView, ScheduledDeletion
from storage_core.log.producer_state_manager import ProducerStateManager, rebuild_producer_state
from storage_core.log.recovery_check import (
    has_ascending_offsets,
    list_regular_files,
    log_base_offsets,
    segments_to_recover,
)
from storage_core.segment import AbortedTransaction, SegmentReader
from storage_core.segment.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    base_offset_of,
    log_file_name,
    log_paths_beside,
    offset_index_file_name,
    time_index_file_name,
    transaction_index_file_name,
)
from storage_core.segment.index_file import LARGEST_RELATIVE_OFFSET
from storage_core.segment.log_segment import LogSegment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from storage_core.directory import PartitionDirectory
    from storage_core.filesystem import FileSystem
    from storage_core.log.clock import Clock
    from storage_core.log_config import LogConfig
    from storage_core.record.batch_window import BatchWindow
    from storage_core.segment.segment_recovery import RecoveredSegment


_log = logging.getLogger(__name__)
# Snapshots that Kafka's controllers keep in the directory of their log.
_CONTROLLER_SNAPSHOT_DELETED: Final = ".checkpoint" + DELETED_SUFFIX
_TEMPORARY: Final = (
    "leader-epoch-checkpoint.tmp",
    "partition.metadata.tmp",
    ".snapshot.tmp",
    TRANSACTION_INDEX_SUFFIX + ".tmp",
)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Facts about a log that are known before its directory is read.

    Attributes:
        recovery_point: The offset below which everything is on disk.
        log_start_offset: The checkpointed log start; None without a checkpoint.
        high_watermark: The checkpointed high watermark; None without a checkpoint.
        file_names: The regular files in its directory, sorted; None if it was not listed yet.
        note_cut: Called with the first offset that is about to be cut off, if valid batches may go.
    """

    config: LogConfig
    is_clean: bool = True
    recovery_point: int = 0
    log_start_offset: int | None = None
    high_watermark: int | None = None
    file_names: tuple[str, ...] | None = None
    note_cut: Callable[[int], None] | None = None


def load_state(
    filesystem: FileSystem, directory: PartitionDirectory, clock: Clock, options: LoadOptions
) -> LogState:
    """Load a log by Kafka's rules. An empty directory is an empty log."""
    return _LogLoader(filesystem, directory, clock, options).load()


class _LogLoader:
    """Loads one log. Recovery rebuilds indexes, leader epochs and producer state from the valid batches.

    What follows the last valid batch of an unflushed segment is cut off, and later segments are removed.
    """

    def __init__(
        self, filesystem: FileSystem, directory: PartitionDirectory, clock: Clock, options: LoadOptions
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._path = directory.path
        self._clock = clock
        self._options = options
        self._start_offset = options.log_start_offset or 0
        self._now_ms = clock.now_ms()
        self._is_begun_anew = False
        self._epochs = LeaderEpochCache(filesystem, os.path.join(directory.path, LEADER_EPOCH_CHECKPOINT))
        self._names: set[str] = set()
        self._deletions: list[ScheduledDeletion] = []

    def load(self) -> LogState:
        names = complete_interrupted_swaps(self._filesystem, self._path, self._options.file_names)
        segments = LogSegments(self._open_segments(names))
        try:
            return self._load(segments, names)
        except BaseException:
            segments.close_handlers()
            raise

    def _load(self, segments: LogSegments, names: list[str]) -> LogState:
        options = self._options
        self._names = set(names)
        self._split_overflowing(segments)
        has_recovered = self._recover(segments)
        log_end_offset = self._log_end_offset(segments)
        # The indexes of a cleanly closed log are trimmed, and stay so if nothing is appended.
        segments.active.resize_indexes(on_write=not has_recovered)
        if self._deletions or (self._start_offset and not options.is_clean):
            # The log start checkpoint omits offsets that file names already give, so the names must be on disk.
            self._filesystem.flush_directory(self._path)
        offsets = self._offsets(segments, log_end_offset)
        # An epoch may begin at the log end without a record. A broker forgets it here, and is elected again.
        self._epochs.truncate_from_end(offsets.log_end_offset + 1)
        # Uses the checkpointed log start: a lost first segment says nothing about epochs.
        self._epochs.truncate_from_start(self._start_offset)
        state = LogState(
            self._filesystem,
            self._directory,
            options.config,
            self._clock,
            segments,
            self._epochs,
            self._load_producers(segments, offsets, None if has_recovered else names),
            LogView(offsets, tuple(segments.values()), segments.active.size_bytes),
            last_flush_ms=self._now_ms,
            last_expiration_ms=self._now_ms,
            scheduled_deletions=self._deletions,
        )
        state.publish(offsets)
        return state

    def _open_segments(self, names: list[str]) -> list[LogSegment]:
        known = frozenset(names)
        base_offsets = log_base_offsets(names)
        for base_offset in base_offsets:
            name = time_index_file_name(base_offset)
            if name not in known:
                # A broker takes a missing time index for damage.
                path = os.path.join(self._path, name)
                with self._filesystem.open_for_writing(path, create=True, like=log_paths_beside(path)):
                    pass
        segments = [self._open_segment(base_offset) for base_offset in base_offsets]
        for segment in segments:
            if transaction_index_file_name(segment.base_offset) not in known:
                segment.transaction_index.note_absence()
        return segments

    def _open_segment(self, base_offset: int) -> LogSegment:
        return LogSegment(
            self._filesystem, self._path, base_offset, self._options.config, now_ms=self._now_ms
        )

    def _split_overflowing(self, segments: LogSegments) -> None:
        """Split segments whose offsets exceed their indexes. Only one that spans 2^31 offsets can be one."""
        for segment, following in pairwise(segments.values()):
            if following.base_offset - segment.base_offset > LARGEST_RELATIVE_OFFSET:
                try:
                    last_offset = segment.read_next_offset() - 1
                except CorruptError:
                    # Left to the recovery, if there is one.
                    continue
                if last_offset - segment.base_offset > LARGEST_RELATIVE_OFFSET:
                    self._split(segments, segment)

    def _recover(self, segments: LogSegments) -> bool:
        """Recover the segments that may be damaged, and return True if there were any."""
        options, bases, listed = self._options, segments.base_offsets, segments.values()
        chosen = segments_to_recover(
            self._filesystem,
            self._path,
            bases,
            self._names,
            options.recovery_point,
            is_clean=options.is_clean,
            open_segment=lambda base_offset: SegmentReader(
                self._filesystem, self._path, base_offset, self._names
            ),
        )
        for index, is_unflushed in chosen:
            try:
                is_cut = self._recover_segment(
                    segments, listed[index], listed[index + 1 :], is_unflushed=is_unflushed
                )
            except OffsetOverflowError as error:
                self._repair_overflow(segments, listed[index], error)
                return self._recover(segments)
            if is_cut and is_unflushed:
                break
        return bool(chosen)

    def _recover_segment(
        self, segments: LogSegments, segment: LogSegment, later: list[LogSegment], *, is_unflushed: bool
    ) -> bool:
        """Recover one segment. If an unflushed one is cut, the later ones are removed first, to leave no gap."""
        _log.info("%s: recovering the segment.", segment.path)
        producers = ProducerStateManager(
            self._filesystem, self._path, expiration_ms=self._options.config.producer_id_expiration_ms
        )
        rebuild_producer_state(
            producers,
            segments,
            self._start_offset,
            segment.base_offset,
            self._now_ms,
            is_after_clean_shutdown=False,
        )

        def observe(window: BatchWindow) -> list[AbortedTransaction]:
            # First: it may reject the window, which is then cut off with the epochs in it.
            aborted = producers.observe(window)
            self._epochs.observe(window.headers)
            return aborted

        def remove_later(recovered: RecoveredSegment) -> None:
            if recovered.truncated_bytes:
                self._note_cut(recovered.next_offset)
                _log.warning(
                    "%s: cut off %d bytes after the last valid batch%s.",
                    segment.path,
                    recovered.truncated_bytes,
                    f", and {len(later)} later segments" if later and is_unflushed else "",
                )
                if is_unflushed:
                    self._remove(segments, later)

        recovered = segment.recover(observe, confirm=remove_later)
        if later and recovered.next_offset > later[0].base_offset:
            _log.warning(
                "%s: expected offsets below %d, where the next segment begins, found some up to %d: these segments do not "
                "belong to one log, as after files of two copies were merged. Remove the files of one of the two.",
                *(segment.path, later[0].base_offset, recovered.next_offset - 1),
            )
        if not is_unflushed:
            # It is below the recovery point, so no later flush covers it.
            segment.flush()
        elif recovered.truncated_bytes:
            # A crash must not restore the bytes that were cut off after the next append.
            segment.flush_log()
        segment.close_handlers()
        producers.take_snapshot()
        return recovered.truncated_bytes > 0

    def _remove(self, segments: LogSegments, removed: Sequence[LogSegment]) -> None:
        """Remove segments from the log, last first: a crash leaves no gap."""
        due_ms = self._now_ms + self._options.config.file_delete_delay_ms
        for segment in reversed(removed):
            segment.change_suffix("", DELETED_SUFFIX)
            segments.remove_all([segment.base_offset])
            segment.close_handlers()
            self._filesystem.flush_directory(self._path)
            self._deletions.append(ScheduledDeletion(due_ms, segment.delete))

    def _split(self, segments: LogSegments, segment: LogSegment) -> None:
        parts = split_segment(self._filesystem, self._path, segment, self._options.config, self._now_ms)
        segments.remove_all([segment.base_offset])
        for part in parts:
            segments.add(part)
            self._names.add(offset_index_file_name(part.base_offset))

    def _repair_overflow(
        self, segments: LogSegments, segment: LogSegment, error: OffsetOverflowError
    ) -> None:
        """Split a segment whose ascending offsets exceed its indexes, or cut it where an offset is damaged."""
        reader = SegmentReader(self._filesystem, self._path, segment.base_offset)
        if has_ascending_offsets(reader):
            self._split(segments, segment)
            return
        position_bytes = error.position_bytes or 0
        _log.warning(
            "Cut off everything from byte %d on, where an offset is damaged: %s", position_bytes, error
        )
        self._note_cut(segment.base_offset)
        # Later segments first, so that a crash leaves no gap.
        self._remove(segments, segments.higher_segments(segment.base_offset))
        with self._filesystem.open_for_writing(segment.path) as log_file:
            log_file.truncate(position_bytes)
            log_file.flush()
        segments.remove_all([segment.base_offset])
        segments.add(self._open_segment(segment.base_offset))

    def _note_cut(self, offset: int) -> None:
        if self._options.note_cut is not None:
            self._options.note_cut(offset)

    def _log_end_offset(self, segments: LogSegments) -> int:
        start_offset = self._start_offset
        log_end_offset = self._end_of_last_segment(segments.active) if len(segments) else start_offset
        if log_end_offset < start_offset:
            _log.warning(
                "%s: the log ends at offset %d, below its start at %d: the remaining segments are removed.",
                self._path,
                log_end_offset,
                start_offset,
            )
            self._remove(segments, segments.values())
            self._epochs.clear()
            log_end_offset = start_offset
        if not len(segments):
            self._is_begun_anew = True
            segments.add(
                LogSegment.create(
                    self._filesystem, self._path, log_end_offset, self._options.config, now_ms=self._now_ms
                )
            )
        return log_end_offset

    def _end_of_last_segment(self, active: LogSegment) -> int:
        log_end_offset = active.read_next_offset()
        if not self._options.is_clean or log_end_offset == self._options.recovery_point:
            return log_end_offset
        # The log was closed with a different or unknown end, so the offset index cannot be trusted alone.
        walked_offset = active.walked_next_offset()
        if walked_offset != log_end_offset:
            _log.warning(
                "%s: by its offset index the log ends at offset %d, by its batches at %d: the index is reset.",
                active.path,
                log_end_offset,
                walked_offset,
            )
            active.offset_index.reset()
        return walked_offset

    def _offsets(self, segments: LogSegments, log_end_offset: int) -> LogOffsets:
        options = self._options
        first_base_offset = segments.base_offsets[0]
        # A lost first segment looks like one that only remote storage still has.
        is_known = options.log_start_offset is not None and not self._is_begun_anew
        is_start_kept = is_known and self._start_offset <= first_base_offset
        offsets = LogOffsets(
            max(self._start_offset, first_base_offset),
            log_end_offset,
            log_end_offset,
            log_end_offset if options.is_clean else min(options.recovery_point, log_end_offset),
            checkpointed_start=self._start_offset if is_start_kept else None,
        )
        return (
            offsets if options.high_watermark is None else offsets.with_high_watermark(options.high_watermark)
        )

    def _load_producers(
        self, segments: LogSegments, offsets: LogOffsets, file_names: list[str] | None
    ) -> ProducerStateManager:
        producers = ProducerStateManager(
            self._filesystem,
            self._path,
            expiration_ms=self._options.config.producer_id_expiration_ms,
            file_names=file_names,
        )
        producers.snapshots.delete_strays(segments.base_offsets)
        rebuild_producer_state(
            producers,
            segments,
            offsets.whole_log_start,
            offsets.log_end_offset,
            self._now_ms,
            is_after_clean_shutdown=self._options.is_clean,
        )
        return producers


def complete_interrupted_swaps(
    filesystem: FileSystem,
    path: str,
    file_names: Sequence[str] | None = None,
    *,
    keep_orphans: bool = False,
) -> list[str]:
    """Complete or roll back the replacement of segments that a crash interrupted.

        <file>.deleted    awaits deletion                               → deleted
        <file>.cleaned    incomplete output of a compaction or a split  → deleted
        <file>.swap       complete output                               → replaces the originals, unless part of
                                                                          the output of a split is still .cleaned

    No other process changes the directory. ``file_names`` are the regular files in it, if already listed. Indexes without
    a log file are deleted, too, unless they are kept as evidence of it.

    Returns:
        The names of the remaining files, sorted.
    """
    if file_names is None:
        file_names = list_regular_files(filesystem, path)
    swaps = _InterruptedSwaps(filesystem, path, dict.fromkeys(file_names))
    if swaps.complete_output():
        # A killed process may have left a `.swap` that is still `.cleaned` on disk: after a power failure it would be
        # deleted together with the originals.
        filesystem.flush_directory(path)
    swaps.remove_leftovers()
    swaps.complete()
    if not keep_orphans:
        swaps.remove_orphans()
    if swaps.has_changed:
        filesystem.flush_directory(path)
    return sorted(swaps.names)


class _InterruptedSwaps:
    """The files of a partition's directory, and whether any was changed."""

    def __init__(self, filesystem: FileSystem, path: str, names: dict[str, None]) -> None:
        self.names = names
        self.has_changed = False
        self._filesystem = filesystem
        self._path = path

    def remove_leftovers(self) -> None:
        """Remove files that await deletion, and incomplete output."""
        cleaned = [name for name in self.names if name.endswith(CLEANED_SUFFIX)]
        cleaned_offsets = [offset for name in cleaned if (offset := base_offset_of(name)) is not None]
        if cleaned_offsets:
            # A split had not renamed all of its output, so the original is intact.
            first = min(cleaned_offsets)
            # Delete these before the last `.cleaned`, which shows that they must not be completed.
            self._delete(name for name, offset in self.complete_output() if offset >= first)
            self._filesystem.flush_directory(self._path)
        self._delete(cleaned)
        self._delete(
            name
            for name in list(self.names)
            if (name.endswith(DELETED_SUFFIX) and not name.endswith(_CONTROLLER_SNAPSHOT_DELETED))
            or name.endswith(_TEMPORARY)
            or TEMPORARY_FILE.fullmatch(name)
        )

    def complete(self) -> None:
        """Replace the original segments with complete output."""
        swaps = self.complete_output()
        bases = [offset for name, offset in swaps if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
        if bases:
            # Even empty output replaces all files of the original with the same name.
            start = min(bases)
            end = max(start + 1, *(self._end_offset(base_offset) for base_offset in bases))
            self._delete(
                name
                for name in list(self.names)
                if not name.endswith(SWAP_SUFFIX)
                and (offset := base_offset_of(name)) is not None
                and start <= offset < end
            )
            # Flush the deletions before the renames: without a `.swap` file, a crash could restore originals.
            self._filesystem.flush_directory(self._path)
        for name, _ in swaps:
            plain = name.removesuffix(SWAP_SUFFIX)
            self._filesystem.rename(self._path_of(name), self._path_of(plain))
            del self.names[name]
            self.names[plain] = None
            self.has_changed = True

    def remove_orphans(self) -> None:
        """Remove index files without a log file."""
        for name in list(self.names):
            if name.endswith(INDEX_SUFFIXES):
                base_offset = base_offset_of(name)
                if base_offset is not None and log_file_name(base_offset) not in self.names:
                    _log.warning("Deleted %s: it has no log file.", self._path_of(name))
                    self._delete([name])

    def complete_output(self) -> list[tuple[str, int]]:
        """List the names of complete output, each with its base offset."""
        return [
            (name, offset)
            for name in self.names
            if name.endswith(SWAP_SUFFIX) and (offset := base_offset_of(name)) is not None
        ]

    def _end_offset(self, base_offset: int) -> int:
        reader = SegmentReader(self._filesystem, self._path, base_offset, None, suffix=SWAP_SUFFIX)
        return reader.end().next_offset

    def _delete(self, names: Iterable[str]) -> None:
        for name in list(names):
            self._filesystem.delete(self._path_of(name))
            del self.names[name]
            self.has_changed = True

    def _path_of(self, name: str) -> str:
        return os.path.join(self._path, name)


def split_segment(
    filesystem: FileSystem, path: str, segment: LogSegment, config: LogConfig, now_ms: int
) -> list[LogSegment]:
    """Split a segment whose offsets exceed its indexes (Kafka's ``LocalLog.splitOverflowedSegment``), and delete it.

    Old versions of Kafka compacted too much into one segment. A crash at any point leaves either the original or all of
    its parts; see `rename_files`.

    Raises:
        CorruptRecordError: The segment has bytes that are no batch; nothing has changed then.
    """
    parts = _copy(filesystem, path, segment, config, now_ms)
    rename_files(filesystem, path, parts, [segment])
    segment.delete()
    _log.warning("Split %s into %d segments: its offsets did not fit one.", segment.path, len(parts))
    return parts


def _copy(
    filesystem: FileSystem, path: str, segment: LogSegment, config: LogConfig, now_ms: int
) -> list[LogSegment]:
    parts: list[LogSegment] = []
    position_bytes = 0
    # If the index is damaged, its segment is recovered anyway.
    aborted = deque(segment.transaction_index.read().entries)
    while position_bytes < segment.size_bytes:
        window = next(segment.windows(position_bytes), None)
        if window is None or not len(window.headers):
            raise CorruptRecordError(
                "Expected a complete batch in a segment to split, found none. Open the log directory with "
                "recovery='kafka' to cut it off.",
                path=segment.path,
                position_bytes=position_bytes,
            )
        part = LogSegment.create(
            filesystem,
            path,
            int(window.headers["base_offset"][0]),
            config,
            now_ms=now_ms,
            suffix=CLEANED_SUFFIX,
            like=(segment.path,),
        )
        position_bytes += part.append_from_file(segment, position_bytes)
        next_offset = part.read_next_offset()
        while aborted and aborted[0].last_offset < next_offset:
            part.append_aborted_transaction(aborted.popleft())
        part.seal()
        part.flush()
        parts.append(part)
    return parts
