"""Loading a log from its directory, and recovering it after a crash (Kafka's ``LogLoader``).

interrupted work finished → segments opened → unflushed ones recovered → offsets, epochs, producers
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from storage_core.checkpoint import LEADER_EPOCH_CHECKPOINT
from storage_core.log.interrupted_work import finish_interrupted_work
from storage_core.log.leader_epoch_cache import LeaderEpochCache
from storage_core.log.log_offsets import LogOffsets
from storage_core.log.log_segments import LogSegments
from storage_core.log.log_state import LogState, LogView
from storage_core.log.producer_state import ProducerStateManager
from storage_core.log.producer_state_rebuild import rebuild_producer_state
from storage_core.log.recovery import Recovery
from storage_core.log.recovery_check import log_base_offsets
from storage_core.segment.file_names import time_index_file_name, transaction_index_file_name
from storage_core.segment.log_segment import LogSegment

if TYPE_CHECKING:
    from storage_core.directory import PartitionDirectory
    from storage_core.filesystem import FileSystem
    from storage_core.log.clock import Clock
    from storage_core.log.recovery import LoadOptions

__all__ = ["load_log"]

_log = logging.getLogger(__name__)


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
