"""Choosing the producer snapshot to start from (Kafka's ``ProducerStateManager.truncateAndReload``).

The segments of a log, none of them touched before it is needed.

A partition's log as it stands on disk at one moment, for reading (the read side of Kafka's ``UnifiedLog``).
"""

from __future__ import annotations

import bisect
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar, overload

import numpy as np

from storage_core.cached_property import cached_property
from storage_core.checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    read_leader_epoch_checkpoint,
    read_partition_metadata,
    read_producer_snapshot,
)
from storage_core.directory.segment_listing import list_segments
from storage_core.errors import CorruptError, CorruptSnapshotError, DataLossError, UnsupportedFormatError
from storage_core.segment.file_names import DELETED_SUFFIX, SNAPSHOT_SUFFIX, SWAP_SUFFIX, snapshot_file_name
from storage_core.segment.segment_reader import DEFAULT_MAX_BATCH_BYTES, SegmentReader

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from storage_core.checkpoint import EpochEntry, ProducerStateEntry
    from storage_core.directory.log_directory_files import PartitionDirectory
    from storage_core.directory.segment_listing import SegmentListing
    from storage_core.filesystem import FileSystem
    from storage_core.record.batch_header import BatchHeader
    from storage_core.segment.file_names import TimestampOffset

__all__ = [
    "PartitionLog",
    "ProducerSnapshot",
    "Segments",
    "kept_snapshot_offsets",
    "newest_producer_snapshot",
]


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProducerSnapshot:
    """The producers known before ``offset``."""

    offset: int
    producers: tuple[ProducerStateEntry, ...]


def newest_producer_snapshot(
    filesystem: FileSystem, path: str, offsets: Sequence[int], *, above_offset: int, up_to_offset: int
) -> ProducerSnapshot | None:
    """The newest usable snapshot within some offsets. A damaged one makes room for the next older one.

    Args:
        filesystem: Where to read.
        path: The partition's directory.
        offsets: Those of the snapshots that count, ascending: `kept_snapshot_offsets`.
        above_offset: A snapshot here or below is of no use: the log start offset.
        up_to_offset: The highest offset that a snapshot may have.
    """
    for index in reversed(range(bisect.bisect_right(offsets, up_to_offset))):
        offset = offsets[index]
        if offset <= above_offset:
            break
        try:
            producers = read_producer_snapshot(filesystem, os.path.join(path, snapshot_file_name(offset)))
        except CorruptSnapshotError as error:
            _log.warning("Ignored a producer snapshot, and took an older one or the log: %s", error)
            continue
        if producers is not None:
            return ProducerSnapshot(offset, producers)
    return None


def kept_snapshot_offsets(segments: Segments) -> Sequence[int]:
    """Offsets of the snapshots that a starting broker would keep, ascending.

    One that belongs to no segment counts only as the newest of all.
    """
    offsets = segments.file_names.base_offsets(SNAPSHOT_SUFFIX)
    is_kept = np.isin(offsets, segments.base_offsets)
    if len(offsets) and (not segments or offsets[-1] >= segments.base_offsets[-1]):
        # The newest of all; if a segment begins with it, it counts in any case.
        is_kept[-1] = True
    kept: list[int] = np.asarray(offsets, np.int64)[is_kept].tolist()
    return kept


_MOST_OPENED: Final = 16_384


class Segments(Sequence[SegmentReader]):
    """The segments of a log by ascending base offset, each made when it is first taken.

    As many as a log usually has are made once. Of more, those that were taken first are made again when
    they are needed; but never the last one, which ends where the log does.

    Args:
        listing: What the directory held.
        open_segment: Makes a segment from its base offset, the directory's file names if they
            are known, and the suffix of its files.
    """

    def __init__(
        self,
        listing: SegmentListing,
        open_segment: Callable[[int, Collection[str] | None, str], SegmentReader],
    ) -> None:
        self.base_offsets = listing.base_offsets
        self.file_names = listing.file_names
        self._swapped = listing.swapped
        self._open_segment = open_segment
        self._opened: dict[int, SegmentReader] = {}

    def __len__(self) -> int:
        return len(self.base_offsets)

    @overload
    def __getitem__(self, index: int) -> SegmentReader: ...

    @overload
    def __getitem__(self, index: slice) -> list[SegmentReader]: ...

    def __getitem__(self, index: int | slice) -> SegmentReader | list[SegmentReader]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        base_offset = self.base_offsets[index]
        segment = self._opened.get(base_offset)
        if segment is not None:
            return segment
        suffix = SWAP_SUFFIX if base_offset in self._swapped else ""
        return self._keep(self._open_segment(base_offset, self.file_names, suffix))

    def open_again(self, index: int, suffix: str = "") -> SegmentReader:
        """Take a segment's files by their present names; the listing does not count for it any more."""
        return self._keep(self._open_segment(self.base_offsets[index], None, suffix))

    def _keep(self, segment: SegmentReader) -> SegmentReader:
        opened, base_offset = self._opened, segment.base_offset
        if base_offset not in opened and len(opened) >= _MOST_OPENED:
            oldest = next(iter(opened))
            if oldest == self.base_offsets[-1]:
                # Where the log ends was found out for good.
                opened[oldest] = opened.pop(oldest)
                oldest = next(iter(opened))
            del opened[oldest]
        opened[base_offset] = segment
        return segment


_Answer = TypeVar("_Answer")


class PartitionLog:
    """The segments that a listing found, and the offsets that bound the log.

    Nothing but the listing is read before it is asked for; what was asked stays as it was then.
    Of a log that a commit is changing, nothing is seen that was not there before (see `visibility`).
    Offsets below ``log_start_offset`` are logically deleted, though segments may still hold them.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        directory: PartitionDirectory,
        segments: Segments,
        *,
        skip_damage: bool = False,
    ) -> None:
        self.directory = directory
        self.segments = segments
        self.skip_damage = skip_damage
        self._filesystem = filesystem

    @classmethod
    def load(
        cls,
        filesystem: FileSystem,
        directory: PartitionDirectory,
        *,
        use_indexes: bool = True,
        max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
        skip_damage: bool = False,
    ) -> PartitionLog:
        """List a partition directory.

        Args:
            filesystem: Where to read.
            directory: The partition, as `find_partitions` gives it.
            use_indexes: False walks every header instead.
            max_batch_bytes: The largest batch that is read, compressed or not.
            skip_damage: Whether every answer goes on behind damage; otherwise it is an error.

        Raises:
            UnreadableError: The directory may not be listed by this user.
            LogDirectoryError: It does not exist, or what is named like a log file is no regular file.
        """
        base_offsets: Sequence[int] = ()
        changing = directory.root.visibility.partitions.get(directory.topic_partition)

        def open_segment(base_offset: int, file_names: Collection[str] | None, suffix: str) -> SegmentReader:
            next_index = bisect.bisect_right(base_offsets, base_offset)
            segment = SegmentReader(
                filesystem,
                directory.path,
                base_offset,
                file_names,
                use_indexes,
                suffix,
                max_batch_bytes,
                end_offset=base_offsets[next_index] if next_index < len(base_offsets) else None,
                skip_damage=skip_damage,
            )
            if changing is not None and base_offsets and next_index == len(base_offsets):
                segment.end_before(changing.log_end_before)
            return segment

        listing = list_segments(
            filesystem,
            directory.path,
            is_clean=directory.root.clean_shutdown,
            is_still_clean=directory.root.is_still_clean,
            swap_end_offset=lambda base_offset: (
                open_segment(base_offset, None, SWAP_SUFFIX).end().next_offset
            ),
        )
        if changing is not None:
            listing = listing.in_front_of(changing.log_end_before)
        base_offsets = listing.base_offsets
        log = cls(filesystem, directory, Segments(listing, open_segment), skip_damage=skip_damage)
        if changing is not None:
            log.log_start_offset, log.log_end_offset = changing.log_start_before, changing.log_end_before
        return log

    @property
    def topic(self) -> str:
        """The topic."""
        return self.directory.topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self.directory.partition

    @property
    def path(self) -> str:
        """The partition's directory."""
        return self.directory.path

    @property
    def is_clean(self) -> bool:
        """Whether the broker closed this log before it stopped."""
        return self.directory.root.clean_shutdown

    @property
    def recovery_point(self) -> int:
        """First offset not known to be flushed, when it was first asked for."""
        return self.directory.root.recovery_points.get(self.directory.topic_partition, 0)

    @cached_property
    def topic_id(self) -> str | None:
        """The topic's id; None without ``partition.metadata``."""
        return read_partition_metadata(self._filesystem, os.path.join(self.path, PARTITION_METADATA))

    @cached_property
    def leader_epochs(self) -> tuple[EpochEntry, ...]:
        """What ``leader-epoch-checkpoint`` lists; after a crash the last ones may begin beyond the log end."""
        return read_leader_epoch_checkpoint(
            self._filesystem, os.path.join(self.path, LEADER_EPOCH_CHECKPOINT)
        )

    @cached_property
    def log_start_offset(self) -> int:
        """The first offset that counts: as checkpointed, but not below the first segment."""
        checkpointed = self.directory.root.log_start_offsets.get(self.directory.topic_partition, 0)
        first_base_offset = self.segments.base_offsets[0] if self.segments else 0
        return max(checkpointed, first_base_offset)

    @cached_property
    def log_end_offset(self) -> int:
        """The offset behind the last whole, valid batch.

        Raises:
            CorruptRecordError: Damage in the last segment with a valid batch behind it.
        """
        if not self.segments:
            return self.log_start_offset
        end = self.ask(len(self.segments) - 1, lambda segment: segment.end())
        # From here on the last segment ends there: nothing torn, preallocated or appended later is seen.
        last_segment = self.segments[-1]
        last_segment.known_status = replace(last_segment.status, size_bytes=end.position_bytes)
        last_segment.end_offset = end.next_offset
        # A log that ends below its start counts as empty: a broker would drop its segments.
        return max(end.next_offset, self.log_start_offset)

    @cached_property
    def high_watermark(self) -> int | None:
        """The checkpointed high watermark, within the log's bounds; None if there is none.

        Raises:
            CorruptCheckpointError: The root's checkpoint cannot be parsed.
        """
        checkpointed = self.directory.root.high_watermarks.get(self.directory.topic_partition)
        if checkpointed is None:
            return None
        return max(self.log_start_offset, min(checkpointed, self.log_end_offset))

    def segment_index_for(self, offset: int) -> int | None:
        """Index in ``segments`` of the segment that would hold ``offset``; None below the first one."""
        index = bisect.bisect_right(self.segments.base_offsets, offset) - 1
        return index if index >= 0 else None

    def ask(self, index: int, question: Callable[[SegmentReader], _Answer]) -> _Answer:
        """Ask a segment; once more if a live broker has renamed or replaced its file since the listing.

        Raises:
            DataLossError: It is gone.
        """
        try:
            return question(self.segments[index])
        except (FileNotFoundError, DataLossError):
            pass
        try:
            return question(self.segments.open_again(index))
        except FileNotFoundError:
            pass
        try:
            return question(self.segments.open_again(index, DELETED_SUFFIX))
        except FileNotFoundError as error:
            message = (
                "Expected a segment that was listed a moment ago, found it gone: retention or a cleaner was "
                "faster. Read again."
            )
            offset = self.segments.base_offsets[index]
            raise DataLossError(message, path=self.path, offset=offset) from error

    def first_batch_at_or_after(self, offset: int) -> tuple[SegmentReader, BatchHeader] | None:
        """The first batch with an offset of at least ``offset``, in whichever segment; None at the log end.

        Raises:
            CorruptRecordError: Damage on the way to it.
        """
        if offset >= self.log_end_offset:
            return None
        for index in range(self.segment_index_for(offset) or 0, len(self.segments)):
            header = self.ask(index, lambda segment: segment.translate_offset(offset))
            if header is not None:
                # Behind the log end only what is torn or damaged can follow.
                return (self.segments[index], header) if header.base_offset < self.log_end_offset else None
        return None

    def first_offset_at_or_after(self, offset: int) -> int | None:
        """The first offset from ``offset`` on at which there may be something; None if there is nothing.

        That is a batch, or the beginning of a segment: damage may begin with it.

        Raises:
            CorruptRecordError: Damage on the way to it.
        """
        found = self.first_batch_at_or_after(offset)
        first_offset = None if found is None else max(found[1].base_offset, offset)
        index = bisect.bisect_left(self.segments.base_offsets, offset)
        if index < len(self.segments):
            base_offset = self.segments.base_offsets[index]
            first_offset = base_offset if first_offset is None else min(first_offset, base_offset)
        return first_offset

    def first_record_offset_at_or_after(self, offset: int) -> int | None:
        """The same, but a batch counts by the records that it holds, not by the offsets that its header claims.

        A header of a few bytes may claim as many offsets as no log has records. A batch that cannot be decoded
        counts as one without records.
        """
        found = self.first_batch_at_or_after(offset)
        if found is None or found[1].base_offset >= offset:
            return self.first_offset_at_or_after(offset)
        segment, header = found
        try:
            offsets = segment.record_offsets(header)
        except (CorruptError, UnsupportedFormatError):
            offsets = []
        behind = bisect.bisect_left(offsets, offset)
        return offsets[behind] if behind < len(offsets) else self.first_offset_at_or_after(header.next_offset)

    def offset_of_damage_in_front(self, offset: int) -> int:
        """Where damage begins that ends at an offset, but not in front of the log start; without any, the offset.

        What is lost there may be what somebody looked for who has found the offset.
        """
        for index in (self.segment_index_for(offset), self.segment_index_for(offset - 1)):
            if index is None:
                continue
            damage = self.ask(index, lambda segment: segment.locate_offset(offset).damage)
            if damage is not None:
                return max(self.log_start_offset, min(damage.start_offset, offset))
        return offset

    def offset_for_timestamp(
        self, timestamp_ms: int, limit_offset: int | None = None
    ) -> TimestampOffset | None:
        """The first offset whose record is at least as young, as a broker's ListOffsets answers.

        Only the first segment whose largest timestamp is young enough is searched, as in Kafka;
        a segment without timestamps is as old as its file.

        Args:
            timestamp_ms: Milliseconds since 1970.
            limit_offset: An answer at or above it is none; without it, the log end offset.

        Returns:
            The record's own timestamp and offset, control records included; None if there is none.
        """
        limit_offset = self.log_end_offset if limit_offset is None else limit_offset
        if self.log_start_offset >= limit_offset:
            return None
        for index in range(len(self.segments)):
            if self._largest_timestamp_ms(index) < timestamp_ms:
                # With thousands of segments, the indexes of those passed over would fill the memory.
                self.segments[index].forget_indexes()
            else:
                found = self.ask(
                    index, lambda segment: segment.offset_for_timestamp(timestamp_ms, self.log_start_offset)
                )
                if found is None and self._is_young_by_damage(index, timestamp_ms):
                    continue
                return found if found is not None and found.offset < limit_offset else None
        return None

    def newest_producer_snapshot(self, up_to_offset: int | None = None) -> ProducerSnapshot | None:
        """The newest usable snapshot at or below an offset (without it, the log end offset).

        Without any, the state of the producers has to be built from the log start.
        """
        return newest_producer_snapshot(
            self._filesystem,
            self.path,
            self._snapshot_offsets,
            above_offset=self.log_start_offset,
            up_to_offset=self.log_end_offset if up_to_offset is None else up_to_offset,
        )

    @cached_property
    def _snapshot_offsets(self) -> Sequence[int]:
        return kept_snapshot_offsets(self.segments)

    def _is_young_by_damage(self, index: int, timestamp_ms: int) -> bool:
        """Whether what made a segment seem young enough may be damage, and not the age of its file."""
        segment = self.segments[index]
        if not segment.skip_damage:
            return False
        largest = segment.largest_timestamp(is_complete=self._is_complete(index))
        return largest.timestamp_ms >= timestamp_ms

    def _largest_timestamp_ms(self, index: int) -> int:
        is_complete = self._is_complete(index)
        return self.ask(index, lambda segment: segment.largest_timestamp_ms(is_complete=is_complete))

    def _is_complete(self, index: int) -> bool:
        """Whether a broker has closed a segment, and its time index."""
        return index < len(self.segments) - 1 or self.is_clean

    def __repr__(self) -> str:
        return f"PartitionLog({self.path!r}, {len(self.segments)} segments)"
