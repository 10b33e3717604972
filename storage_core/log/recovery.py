"""Recovering the segments of a log after a crash (Kafka's ``LogLoader.recoverLog``).

What a segment's valid batches say is written anew: its indexes, leader epochs, producers. What stands
behind them is cut off, and later segments with it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from storage_core.errors import CorruptError, OffsetOverflowError
from storage_core.log.producer_state import ProducerStateManager
from storage_core.log.producer_state_rebuild import rebuild_producer_state
from storage_core.log.recovery_check import (
    ascends_to_its_end,
    ends_whole,
    indexes_to_recover,
    with_corrupt_transaction_index,
)
from storage_core.log.segment_split import split_segment
from storage_core.segment import SegmentReader
from storage_core.segment.file_names import DELETED_SUFFIX, offset_index_file_name
from storage_core.segment.log_segment import LogSegment
from storage_core.segment.offset_index_file import LARGEST_RELATIVE_OFFSET

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from storage_core.filesystem import FileSystem
    from storage_core.log.leader_epoch_cache import LeaderEpochCache
    from storage_core.log.log_segments import LogSegments
    from storage_core.log_config import LogConfig
    from storage_core.record.batch_window import BatchWindow
    from storage_core.segment import AbortedTransaction
    from storage_core.segment.segment_recovery import RecoveredSegment

__all__ = ["LoadOptions", "Recovery"]

_log = logging.getLogger(__name__)


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
