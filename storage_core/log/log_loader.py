"""Finishing, or undoing, what a crash interrupted in a partition's directory (the first passes of Kafka's ``LogLoader``).

    <file>.deleted    waits for its removal                          → removed
    <file>.cleaned    output of a compaction or split, not complete  → removed
    <file>.swap       complete output that is to replace originals   → takes their place, unless some of
                                                                       the output of a split is still .cleaned

Both kinds of recovery do the same here: each file has another one that holds its batches.

Splitting a segment whose offsets do not fit its indexes (Kafka's ``LocalLog.splitOverflowedSegment``).

Old versions of Kafka compacted too much into one segment. A crash at any point leaves either the original or the
whole of what replaces it; see `replace_segments`.

Recovering the segments of a log after a crash (Kafka's ``LogLoader.recoverLog``).

What a segment's valid batches say is written anew: its indexes, leader epochs, producers. What stands
behind them is cut off, and later segments with it.

Loading a log from its directory, and recovering it after a crash (Kafka's ``LogLoader``).

interrupted work finished → segments opened → unflushed ones recovered → offsets, epochs, producers
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
from storage_core.log.leader_epoch_cache import LeaderEpochCache
from storage_core.log.local_log import rename_files
from storage_core.log.log_segments import LogSegments
from storage_core.log.log_state import LogOffsets, LogState, LogView
from storage_core.log.producer_state_manager import ProducerStateManager, rebuild_producer_state
from storage_core.log.recovery_check import (
    ascends_to_its_end,
    ends_whole,
    indexes_to_recover,
    list_regular_files,
    log_base_offsets,
    with_corrupt_transaction_index,
)
from storage_core.segment import SegmentReader
from storage_core.segment.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    base_offset_of,
    log_file_name,
    offset_index_file_name,
    time_index_file_name,
    transaction_index_file_name,
)
from storage_core.segment.log_segment import LogSegment
from storage_core.segment.offset_index import LARGEST_RELATIVE_OFFSET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from storage_core.directory import PartitionDirectory
    from storage_core.filesystem import FileSystem
    from storage_core.log.background import Clock
    from storage_core.log_config import LogConfig
    from storage_core.record.batch_window import BatchWindow
    from storage_core.segment import AbortedTransaction
    from storage_core.segment.segment_recovery import RecoveredSegment

__all__ = ["LoadOptions", "Recovery", "finish_interrupted_work", "load_log", "split_segment"]


_log = logging.getLogger(__name__)
_INDEX_SUFFIXES: Final = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
# What Kafka's controllers keep beside their log.
_OTHER_DELETED: Final = ".checkpoint" + DELETED_SUFFIX
_TEMPORARY: Final = (
    "leader-epoch-checkpoint.tmp",
    "partition.metadata.tmp",
    ".snapshot.tmp",
    TRANSACTION_INDEX_SUFFIX + ".tmp",
)


def finish_interrupted_work(
    filesystem: FileSystem, path: str, file_names: Sequence[str] | None = None
) -> list[str]:
    """Bring a partition's directory to a state in which every file counts.

    Args:
        filesystem: Where to work.
        path: The partition's directory. Nobody else is at work there.
        file_names: The regular files in it, if they are known already.

    Returns:
        The names of the regular files that are left, in order.
    """
    if file_names is None:
        file_names = list_regular_files(filesystem, path)
    work = _Work(filesystem, path, dict.fromkeys(file_names))
    if work.has_swaps:
        # Whoever was killed may have left a `.swap` that the disk still knows as `.cleaned`: then, after a power cut, it
        # would be removed, and what it replaces is gone.
        filesystem.flush_directory(path)
    work.remove_leftovers()
    work.complete_swaps()
    work.remove_orphans()
    if work.has_changed:
        filesystem.flush_directory(path)
    return sorted(work.names)


class _Work:
    """The directory, and what was changed in it."""

    def __init__(self, filesystem: FileSystem, path: str, names: dict[str, None]) -> None:
        self.names = names
        self.has_changed = False
        self._filesystem = filesystem
        self._path = path

    @property
    def has_swaps(self) -> bool:
        """Whether complete output is there."""
        return bool(self._swaps())

    def remove_leftovers(self) -> None:
        """Remove what waits for its removal, and what is not complete."""
        cleaned = [name for name in self.names if name.endswith(CLEANED_SUFFIX)]
        cleaned_offsets = [offset for name in cleaned if (offset := base_offset_of(name)) is not None]
        if cleaned_offsets:
            # A split had not yet renamed all of its output, so the original still stands.
            first = min(cleaned_offsets)
            # Before the last `.cleaned` is gone: it is what tells that these are not to be completed.
            self._delete(name for name, offset in self._swaps() if offset >= first)
            self._filesystem.flush_directory(self._path)
        self._delete(cleaned)
        self._delete(
            name
            for name in list(self.names)
            if (name.endswith(DELETED_SUFFIX) and not name.endswith(_OTHER_DELETED))
            or name.endswith(_TEMPORARY)
        )

    def complete_swaps(self) -> None:
        """Let complete output take the place of what it replaces."""
        swaps = self._swaps()
        bases = [offset for name, offset in swaps if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
        if bases:
            # Also of one that is empty: the original of the same name goes with all of its files.
            start = min(bases)
            end = max(start + 1, *(self._end_offset(base_offset) for base_offset in bases))
            self._delete(
                name
                for name in list(self.names)
                if not name.endswith(SWAP_SUFFIX)
                and (offset := base_offset_of(name)) is not None
                and start <= offset < end
            )
            # A rename must not reach the disk before the deletions: without a `.swap`, nobody knows of them.
            self._filesystem.flush_directory(self._path)
        for name, _ in swaps:
            plain = name.removesuffix(SWAP_SUFFIX)
            self._filesystem.rename(os.path.join(self._path, name), os.path.join(self._path, plain))
            del self.names[name]
            self.names[plain] = None
            self.has_changed = True

    def remove_orphans(self) -> None:
        """Remove index files without a log file."""
        for name in list(self.names):
            if name.endswith(_INDEX_SUFFIXES):
                base_offset = base_offset_of(name)
                if base_offset is not None and log_file_name(base_offset) not in self.names:
                    _log.warning("Deleted %s: there is no log file that it belongs to.", self._of(name))
                    self._delete([name])

    def _swaps(self) -> list[tuple[str, int]]:
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
            self._filesystem.delete(self._of(name))
            del self.names[name]
            self.has_changed = True

    def _of(self, name: str) -> str:
        return os.path.join(self._path, name)


def split_segment(
    filesystem: FileSystem, path: str, segment: LogSegment, config: LogConfig, now_ms: int
) -> list[LogSegment]:
    """Replace a segment by several whose offsets fit.

    Args:
        filesystem: Where to work.
        path: The partition's directory.
        segment: The segment. It is gone when this returns.
        config: The log's configuration.
        now_ms: The time.

    Returns:
        What took its place, in order.

    Raises:
        CorruptRecordError: Its batches do not go to its end; nothing has changed then.
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
    # One that is damaged has its segment recovered, whatever it says.
    aborted = deque(segment.transaction_index.read().entries)
    while position_bytes < segment.size_bytes:
        window = next(segment.windows(position_bytes), None)
        if window is None or not len(window.headers):
            raise CorruptRecordError(
                "Expected a whole batch in a segment that is to be split, found none. Open the log directory with "
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
        )
        position_bytes += part.append_from_file(segment, position_bytes)
        next_offset = part.read_next_offset()
        while aborted and aborted[0].last_offset < next_offset:
            part.append_aborted_transaction(aborted.popleft())
        part.seal()
        part.flush()
        parts.append(part)
    return parts


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What is known of a log before its directory is looked at.

    Attributes:
        config: Its configuration.
        is_clean: Whether it was closed before.
        recovery_point: Below it, everything is on disk.
        log_start_offset: As checkpointed; 0 without.
        high_watermark: As checkpointed; None without.
        file_names: The regular files in its directory, in order; None if it was not listed yet.
        note_cut: Is told from which offset on whole batches may go, before they do.
    """

    config: LogConfig
    is_clean: bool = True
    recovery_point: int = 0
    log_start_offset: int = 0
    high_watermark: int | None = None
    file_names: tuple[str, ...] | None = None
    note_cut: Callable[[int], None] | None = None


class Recovery:
    """The recovery of one log.

    Args:
        filesystem: Where to work.
        path: The partition's directory. Nobody else is at work there.
        options: What is known of the log.
        now_ms: The time.
        epochs: The log's leader epochs: those that batches say are added.
        file_names: The regular files in the directory.

    Attributes:
        doomed_files: How to delete what was taken out of the log, and when that is due.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        path: str,
        options: LoadOptions,
        now_ms: int,
        epochs: LeaderEpochCache,
        file_names: list[str],
    ) -> None:
        self.doomed_files: list[tuple[int, Callable[[], object]]] = []
        self._filesystem = filesystem
        self._path = path
        self._options = options
        self._now_ms = now_ms
        self._epochs = epochs
        self._names = dict.fromkeys(file_names)

    def split_overflowing(self, segments: LogSegments) -> None:
        """Split the segments whose offsets do not fit; only one that spans so many can be of that kind."""
        for segment, following in pairwise(segments.values()):
            if following.base_offset - segment.base_offset > LARGEST_RELATIVE_OFFSET:
                try:
                    last_offset = segment.read_next_offset() - 1
                except CorruptError:
                    # For the recovery to see, if there is one.
                    continue
                if last_offset - segment.base_offset > LARGEST_RELATIVE_OFFSET:
                    self._split(segments, segment)

    def recover(self, segments: LogSegments) -> bool:
        """Recover what may not be whole; return whether there was anything."""
        options = self._options
        bases = segments.base_offsets
        chosen = set(
            indexes_to_recover(bases, self._names, options.recovery_point, is_clean=options.is_clean)
        )
        chosen.update(with_corrupt_transaction_index(self._filesystem, self._path, bases, self._names, {}))
        if options.is_clean and bases and len(bases) - 1 not in chosen and not self._ends_whole(bases[-1]):
            chosen.add(len(bases) - 1)
        listed = segments.values()
        for index in sorted(chosen):
            is_unflushed = not options.is_clean and (
                index + 1 == len(listed) or bases[index + 1] > options.recovery_point
            )
            try:
                is_cut = self._recover_segment(
                    segments, listed[index], listed[index + 1 :], is_unflushed=is_unflushed
                )
            except OffsetOverflowError as error:
                self._mend_overflow(segments, listed[index], error)
                return self.recover(segments)
            if is_cut and is_unflushed:
                break
        return bool(chosen)

    def remove(self, segments: LogSegments, removed: Sequence[LogSegment]) -> None:
        """Take segments out of the log, the last one first: no crash leaves a gap."""
        due_ms = self._now_ms + self._options.config.file_delete_delay_ms
        for segment in reversed(removed):
            segment.change_suffix("", DELETED_SUFFIX)
            segments.remove(segment.base_offset)
            segment.close_handlers()
            self._filesystem.flush_directory(self._path)
            self.doomed_files.append((due_ms, segment.delete))

    def _recover_segment(
        self, segments: LogSegments, segment: LogSegment, later: list[LogSegment], *, is_unflushed: bool
    ) -> bool:
        """Recover one segment; if an unflushed one is cut, the later ones go first: no crash leaves a gap."""
        _log.info("%s: recovering the segment.", segment.path)
        producers = ProducerStateManager(
            self._filesystem, self._path, expiration_ms=self._options.config.producer_id_expiration_ms
        )
        rebuild_producer_state(
            producers,
            segments,
            self._options.log_start_offset,
            segment.base_offset,
            self._now_ms,
            is_after_clean_shutdown=False,
        )

        def observe(window: BatchWindow) -> list[AbortedTransaction]:
            # First who may refuse the window: what it then says of epochs is cut off.
            aborted = producers.observe(window)
            self._epochs.observe(window.headers)
            return aborted

        def remove_later(recovered: RecoveredSegment) -> None:
            if recovered.truncated_bytes:
                self._note_cut(recovered.next_offset)
                _log.warning(
                    "%s: cut off %d bytes behind the last valid batch%s.",
                    segment.path,
                    recovered.truncated_bytes,
                    f", and {len(later)} later segments" if later and is_unflushed else "",
                )
                if is_unflushed:
                    self.remove(segments, later)

        recovered = segment.recover(observe, confirm=remove_later)
        if not is_unflushed:
            # It counts as flushed: nothing else is going to force it to disk.
            segment.flush()
        elif recovered.truncated_bytes:
            # Or what was cut off might come back behind what is appended next.
            segment.flush_log()
        segment.close_handlers()
        producers.take_snapshot()
        return recovered.truncated_bytes > 0

    def _split(self, segments: LogSegments, segment: LogSegment) -> None:
        parts = split_segment(self._filesystem, self._path, segment, self._options.config, self._now_ms)
        segments.remove(segment.base_offset)
        for part in parts:
            segments.add(part)
            self._names[offset_index_file_name(part.base_offset)] = None

    def _mend_overflow(self, segments: LogSegments, segment: LogSegment, error: OffsetOverflowError) -> None:
        """Split a segment whose offsets ascend out of its reach; where they do not ascend, they are damaged."""
        reader = SegmentReader(self._filesystem, self._path, segment.base_offset)
        if ascends_to_its_end(reader):
            self._split(segments, segment)
            return
        position_bytes = error.position_bytes or 0
        _log.warning("Cut off from byte %d on, whose offset is damaged: %s", position_bytes, error)
        self._note_cut(segment.base_offset)
        # First, so that no crash leaves a gap.
        self.remove(segments, segments.higher_segments(segment.base_offset))
        with self._filesystem.open_for_writing(segment.path) as log_file:
            log_file.truncate(position_bytes)
            log_file.flush()
        segments.remove(segment.base_offset)
        segments.add(
            LogSegment.open(
                self._filesystem, self._path, segment.base_offset, self._options.config, now_ms=self._now_ms
            )
        )

    def _note_cut(self, offset: int) -> None:
        if self._options.note_cut is not None:
            self._options.note_cut(offset)

    def _ends_whole(self, base_offset: int) -> bool:
        return ends_whole(SegmentReader(self._filesystem, self._path, base_offset, self._names))


def load_log(
    filesystem: FileSystem, directory: PartitionDirectory, clock: Clock, options: LoadOptions
) -> LogState:
    """Load a log by Kafka's rules. An empty directory is an empty log.

    Raises:
        SegmentLogError: A file cannot be read, or the file system refuses to write.
    """
    return _Loader(filesystem, directory, clock, options).load()


class _Loader:
    def __init__(
        self, filesystem: FileSystem, directory: PartitionDirectory, clock: Clock, options: LoadOptions
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._path = directory.path
        self._clock = clock
        self._options = options
        self._now_ms = clock.now_ms()
        self._epochs = LeaderEpochCache(filesystem, os.path.join(directory.path, LEADER_EPOCH_CHECKPOINT))

    def load(self) -> LogState:
        names = finish_interrupted_work(self._filesystem, self._path, self._options.file_names)
        segments = LogSegments(self._open_segments(names))
        try:
            return self._load(segments, names)
        except BaseException:
            segments.close_handlers()
            raise

    def _load(self, segments: LogSegments, names: list[str]) -> LogState:
        options = self._options
        recovery = Recovery(self._filesystem, self._path, options, self._now_ms, self._epochs, names)
        recovery.split_overflowing(segments)
        has_recovered = recovery.recover(segments)
        log_end_offset = self._log_end_offset(segments, recovery)
        # Those of a log that was closed are cut, and stay so if nothing is appended.
        segments.active.resize_indexes(on_write=not has_recovered)
        if recovery.doomed_files or (options.log_start_offset and not options.is_clean):
            # The checkpoint stops telling of a log start that a file name tells: then the disk has to know of the names.
            self._filesystem.flush_directory(self._path)
        offsets = self._offsets(segments, log_end_offset)
        # An epoch may have begun at the log end without a record yet. A broker forgets it here, and is elected anew.
        self._epochs.truncate_from_end(offsets.log_end_offset + 1)
        # As checkpointed: a first segment that is lost says nothing of epochs.
        self._epochs.truncate_from_start(options.log_start_offset)
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
            doomed_files=recovery.doomed_files,
        )
        state.publish(offsets)
        return state

    def _open_segments(self, names: list[str]) -> list[LogSegment]:
        known = frozenset(names)
        base_offsets = log_base_offsets(names)
        for base_offset in base_offsets:
            name = time_index_file_name(base_offset)
            if name not in known:
                # So that its absence does not look like damage to a broker.
                with self._filesystem.open_for_writing(os.path.join(self._path, name), create=True):
                    pass
        config, now_ms = self._options.config, self._now_ms
        segments = [
            LogSegment.open(self._filesystem, self._path, base_offset, config, now_ms=now_ms)
            for base_offset in base_offsets
        ]
        for segment in segments:
            if transaction_index_file_name(segment.base_offset) not in known:
                segment.transaction_index.note_absence()
        return segments

    def _log_end_offset(self, segments: LogSegments, recovery: Recovery) -> int:
        start_offset = self._options.log_start_offset
        log_end_offset = self._end_of_last_segment(segments.active) if len(segments) else start_offset
        if log_end_offset < start_offset:
            _log.warning(
                "%s: the log ends at offset %d, below its start at %d: what is left of it is removed.",
                self._path,
                log_end_offset,
                start_offset,
            )
            recovery.remove(segments, segments.values())
            self._epochs.clear()
            log_end_offset = start_offset
        if not len(segments):
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
        # When the log was closed it ended elsewhere, or at an unknown offset: the index alone does not decide.
        proven_offset = active.walked_next_offset()
        if proven_offset != log_end_offset:
            _log.warning(
                "%s: the offset index leads to the end offset %d, the log ends at %d: the index is emptied.",
                active.path,
                log_end_offset,
                proven_offset,
            )
            active.offset_index.reset()
        return proven_offset

    def _offsets(self, segments: LogSegments, log_end_offset: int) -> LogOffsets:
        options = self._options
        first = segments.first
        log_start_offset = max(options.log_start_offset, first.base_offset if first else 0)
        offsets = LogOffsets(
            log_start_offset,
            log_end_offset,
            log_end_offset,
            log_end_offset if options.is_clean else min(options.recovery_point, log_end_offset),
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
        producers.remove_stray_snapshots(segments.base_offsets)
        rebuild_producer_state(
            producers,
            segments,
            offsets.log_start_offset,
            offsets.log_end_offset,
            self._now_ms,
            is_after_clean_shutdown=self._options.is_clean,
        )
        return producers
