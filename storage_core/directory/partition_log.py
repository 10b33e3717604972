"""A partition's log on disk at one moment, for reading (the read side of Kafka's ``UnifiedLog``).

Segments are opened when they are first used. Producer snapshots are chosen as by Kafka's
``ProducerStateManager.truncateAndReload``.
"""

from __future__ import annotations

import bisect
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar, overload

import numpy as np

from storage_core.cached_property import cached_property
from storage_core.checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    EpochEntry,
    ProducerStateEntry,
    read_leader_epoch_checkpoint,
    read_partition_metadata,
    read_producer_snapshot,
)
from storage_core.directory.segment_listing import SegmentFiles, list_segments
from storage_core.directory.vouched_end import VouchedEnd, Vouchers, vouchers_of
from storage_core.errors import (
    CorruptCheckpointError,
    CorruptError,
    CorruptRecordError,
    CorruptSnapshotError,
    DataLossError,
    LogDirectoryError,
    UnsupportedFormatError,
    visible,
    warn_once,
)
from storage_core.segment.file_names import (
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TimestampOffset,
    snapshot_file_name,
)
from storage_core.segment.segment_reader import DEFAULT_MAX_BATCH_BYTES, SegmentReader

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from storage_core.directory.log_directory_files import PartitionDirectory
    from storage_core.filesystem import ReadableFileSystem
    from storage_core.record.batch_header import BatchHeader
    from storage_core.segment.damage_scanner import TailKind


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProducerSnapshot:
    """The producers known before ``offset``."""

    offset: int
    producers: tuple[ProducerStateEntry, ...]


_MOST_OPENED: Final = 16_384


class SegmentSequence(Sequence[SegmentReader]):
    """The segments of a log by ascending base offset, each created at its first use.

    A bounded number of them is kept. The oldest are created again when they are needed, but never the last
    segment, which is limited to the log end. Threads may look at different segments. ``open_segment`` creates one from its base offset, the directory's file
    names if they are known, and the suffix of its files.
    """

    def __init__(
        self,
        listing: SegmentFiles,
        open_segment: Callable[[int, Collection[str] | None, str], SegmentReader],
    ) -> None:
        self.listing = listing
        self.base_offsets = listing.base_offsets
        self.file_names = listing.file_names
        self._open_segment = open_segment
        self._opened: dict[int, SegmentReader] = {}
        self._lock = threading.Lock()

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
        suffix = SWAP_SUFFIX if base_offset in self.listing.swapped else ""
        return self._keep(self._open_segment(base_offset, self.file_names, suffix))

    def next_base_offset(self, index: int) -> int | None:
        """Return the base offset of the next segment in the same directory, or None for the last one."""
        return self.base_offsets[index + 1] if index + 1 < len(self) else None

    def end_offset(self, index: int) -> int | None:
        """Return the offset up to which a segment is read, or None for the log end."""
        return self.next_base_offset(index)

    def file_base_offset(self, index: int) -> int:
        """Return the base offset in the name of a segment's file, which may be below the offset from which on it is read."""
        return self.base_offsets[index]

    def reopen(self, index: int, suffix: str = "") -> SegmentReader:
        """Create a segment again from the present names of its files, whatever the listing says."""
        return self._keep(self._open_segment(self.base_offsets[index], None, suffix))

    def _keep(self, segment: SegmentReader) -> SegmentReader:
        opened, base_offset = self._opened, segment.base_offset
        with self._lock:
            if base_offset not in opened and len(opened) >= _MOST_OPENED:
                oldest = next(iter(opened))
                if oldest == self.base_offsets[-1]:
                    # The last segment knows the log end, which must not change.
                    opened[oldest] = opened.pop(oldest)
                    oldest = next(iter(opened))
                del opened[oldest]
            opened[base_offset] = segment
        return segment


_Answer = TypeVar("_Answer")


class PartitionLog:
    """The segments that a listing found, and the offsets that bound the log.

    Everything but the listing is read at its first use, and then does not change.
    Changes of a commit that is not visible yet are not seen (see `visibility`).
    Offsets below ``log_start_offset`` are logically deleted, though segments may still hold them.

    Attributes:
        notices: What whoever reads the log should know, in sentences.
        missing_from: Once `log_end_offset` is known, the first offset of those at the log's end of which the files have
            lost every byte; None if there are none.
    """

    def __init__(
        self,
        filesystem: ReadableFileSystem,
        directory: PartitionDirectory,
        segments: SegmentSequence,
        *,
        skip_damage: bool = False,
    ) -> None:
        self.directory = directory
        self.segments = segments
        self.skip_damage = skip_damage
        self.notices: list[str] = []
        self.filesystem = filesystem
        self._is_followed = False
        self.missing_from: int | None = None
        self._vouchers: Vouchers | None = None
        # The reader that found the log end. `segments` may open the last segment anew, with another end.
        self._last_segment: SegmentReader | None = None

    @classmethod
    def load(
        cls,
        filesystem: ReadableFileSystem,
        directory: PartitionDirectory,
        *,
        use_indexes: bool = True,
        max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
        skip_damage: bool = False,
        listing: SegmentFiles | None = None,
        is_followed: bool = False,
    ) -> PartitionLog:
        """List a partition directory.

        Args:
            filesystem: Where to read.
            directory: The partition, as `find_partitions` gives it.
            use_indexes: False walks every header instead.
            max_batch_bytes: The largest batch that is read, compressed or not.
            skip_damage: Whether look-ups continue after damage; otherwise damage is an error.
            listing: The segments, if the caller has listed them.
            is_followed: Whether the log is read again later. Records that are known, but that its last file ends
                without, then may still be copied: the log ends before them.

        Raises:
            UnreadableError: This user may not list the directory.
            LogDirectoryError: It does not exist, or an entry named like a log file is not a regular file.
        """
        base_offsets: Sequence[int] = ()
        # Before the segments are listed: a running broker's checkpoints then say nothing of later ones.
        vouchers = vouchers_of(directory)
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
                offset_limit=base_offsets[next_index] if next_index < len(base_offsets) else None,
                skip_damage=skip_damage,
            )
            if changing is not None and base_offsets and next_index == len(base_offsets):
                segment.end_before(changing.log_end_before)
            return segment

        if listing is None:
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
            listing = listing.before(changing.log_end_before)
        base_offsets = listing.base_offsets
        log = cls(filesystem, directory, SegmentSequence(listing, open_segment), skip_damage=skip_damage)
        log._vouchers, log._is_followed = vouchers, is_followed
        if changing is not None:
            log.log_start_offset, log.log_end_offset = changing.log_start_before, changing.log_end_before
            log.valid_end_offset = changing.log_end_before
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
        """Return True if the broker closed this log before it stopped."""
        return self.directory.root.clean_shutdown

    @property
    def recovery_point(self) -> int:
        """First offset not known to be flushed, as of its first use."""
        return self.directory.root.recovery_points.get(self.directory.topic_partition, 0)

    @cached_property
    def topic_id(self) -> str | None:
        """Return the topic's id, or None if ``partition.metadata`` is missing or cannot be read. No row needs it."""
        try:
            return read_partition_metadata(self.filesystem, os.path.join(self.path, PARTITION_METADATA))
        except (CorruptCheckpointError, LogDirectoryError) as error:
            warn_once(_log, f"Ignored a file, so that the topic id of {self.path} is not known: {error}")
            return None

    @cached_property
    def leader_epochs(self) -> tuple[EpochEntry, ...]:
        """Return the entries of ``leader-epoch-checkpoint``. After a crash, the last ones may begin beyond the log end."""
        return read_leader_epoch_checkpoint(self.filesystem, os.path.join(self.path, LEADER_EPOCH_CHECKPOINT))

    @cached_property
    def log_start_offset(self) -> int:
        """Return the checkpointed log start offset, but at least the base offset of the first segment."""
        checkpointed = self.directory.root.log_start_offsets.get(self.directory.topic_partition, 0)
        first_base_offset = self.segments.base_offsets[0] if self.segments else 0
        return max(checkpointed, first_base_offset)

    @cached_property
    def start_below_segments(self) -> int | None:
        """Return the checkpointed log start if it is below the first segment: the records between are in remote storage, or lost.

        Returns:
            None if the checkpoint does not name this log, or the log begins in a segment.
        """
        checkpointed = self.directory.root.log_start_offsets.get(self.directory.topic_partition)
        is_below = checkpointed is not None and self.segments and checkpointed < self.segments.base_offsets[0]
        return checkpointed if is_below else None

    @cached_property
    def valid_end_offset(self) -> int:
        """Return the next offset after the last whole, valid batch. This raises what `log_end_offset` raises."""
        if not self.segments:
            return self.log_start_offset
        end = self.read_segment(len(self.segments) - 1, lambda segment: segment.end())
        # A log that ends below its start counts as empty: a broker would drop its segments.
        return max(end.next_offset, self.log_start_offset)

    @cached_property
    def log_end_offset(self) -> int:
        """Return the next offset after the last whole, valid batch, or after what is known to have followed it.

        Raises:
            CorruptRecordError: Damage in the last segment, followed by a valid batch.
        """
        valid_end_offset = self.valid_end_offset
        vouched = self._vouched_end(valid_end_offset)
        if not self.segments:
            if vouched is not None:
                self._report_no_segments(vouched.offset)
            return valid_end_offset
        last_segment = self._last_segment = self.segments[-1]
        end = last_segment.end()
        if vouched is not None and end.position_bytes < last_segment.size_bytes:
            last_segment.end_at_file_end(vouched.offset)
            return vouched.offset
        # Limit the last segment to it: torn batches, preallocated zeros and later appends are not seen.
        last_segment.known_status = replace(last_segment.status, size_bytes=end.position_bytes)
        last_segment.offset_limit = end.next_offset
        if vouched is None:
            self._warn_of_later_names(valid_end_offset)
            return valid_end_offset
        self.missing_from = valid_end_offset
        return vouched.offset

    def _warn_of_later_names(self, end_offset: int) -> None:
        """After a clean stop, warn of snapshots and indexes of offsets that the log does not reach."""
        if self._vouchers is None or not self._vouchers.is_closed:
            return
        names = self.segments.file_names
        later = max(
            (names.base_offsets(suffix)[-1:] for suffix in (SNAPSHOT_SUFFIX, *INDEX_SUFFIXES)), key=list
        )
        if len(later) and later[0] > end_offset and self.directory.root.is_still_clean():
            _log.warning(
                "%s-%d ends at offset %d, and a snapshot or an index in %s is of offset %d: the records between may be "
                "lost. segmentlog verify tells more.",
                *(self.topic, self.partition, end_offset, visible(self.path), later[0]),
            )

    def check_not_cut(self) -> None:
        """Check that the last segment still reaches the log end that was found.

        A read that begins and ends within a truncation does not notice it otherwise, and may miss markers that were
        there when the end was found.

        Raises:
            DataLossError: The segment is shorter now.
        """
        last = self._last_segment
        if last is None or last.traits.are_files_fixed:
            return
        status, end_bytes = self.filesystem.status(last.log_path), last.end().position_bytes
        # Before a truncation cuts a segment, it notes that it has removed the later ones: only a cut goes unnoticed.
        if status is not None and status.size_bytes < end_bytes:
            raise DataLossError(
                f"Expected a segment of at least {end_bytes} bytes, as when the log end was found, found "
                f"{status.size_bytes} bytes: the log is being truncated. Read again.",
                path=last.log_path,
            )

    def end_with_valid_batches(self) -> PartitionLog:
        """Let the log end with its valid batches, whatever says that it was longer: another copy may have the rest."""
        self._vouchers = None
        return self

    @property
    def known_end_offset(self) -> int:
        """Return the offset that the log reached, as far as checkpoints say, or 0."""
        vouchers = self._vouchers
        return vouchers.known_offset if vouchers is not None and vouchers.is_of_this_log else 0

    def _vouched_end(self, next_offset: int) -> VouchedEnd | None:
        """Return the end that the log is known to have had, if it is after that of its valid batches."""
        vouchers = self._vouchers
        if vouchers is None:
            return None
        end = self.segments[-1].end() if self.segments else None
        if end is not None and end.next_offset < next_offset:
            # The log ends below its start.
            return None
        is_whole = end is None or end.position_bytes >= self.segments[-1].size_bytes
        if next_offset >= vouchers.known_offset and (is_whole or not vouchers.is_closed):
            return None
        tail: TailKind = "none"
        declared_offset = next_offset
        if end is not None:
            tail, declared_offset = self.read_segment(
                len(self.segments) - 1, lambda segment: segment.tail_after(end)
            )
        vouchers = vouchers.lowered_to(vouchers_of(self.directory, is_present=True))
        found = vouchers.end_after(next_offset, tail, declared_offset)
        was_flushed = vouchers.is_closed or next_offset < vouchers.recovery_point
        is_damaged = was_flushed and tail in ("cut", "bad")
        if found is not None and not is_damaged and not self.directory.root.is_brokers:
            # Our own logs promise what is flushed, on disks that leave any bytes of the rest after a power cut. A log that
            # merely ends early may be as it was truncated, before truncations lowered the checkpoints to its last batch.
            found = found._replace(is_lost_by_crash=True)
        if found is None or not (found.is_lost_by_crash or (self._is_followed and tail != "bad")):
            return found
        reported, lost = self.directory.root.reported, (self.path, found.offset)
        if lost not in reported:
            reported.add(lost)
            _log.warning(
                "%s-%d ends at offset %d, and the checkpoints say that it reached %d: the records between are missing, as "
                "after a power cut, or in a copy that was made while a broker wrote, or is not complete.",
                *(self.topic, self.partition, next_offset, found.offset),
            )
        return None

    def _report_no_segments(self, end_offset: int) -> None:
        error = CorruptRecordError(
            "Expected the segments of a log whose records are known from checkpoints, found none.",
            path=self.path,
            offset=self.log_start_offset,
            last_offset=end_offset - 1,
        )
        if not self.skip_damage:
            raise error
        _log.warning("Read nothing of %s-%d: %s", self.topic, self.partition, error)

    @cached_property
    def high_watermark(self) -> int | None:
        """Return the checkpointed high watermark, within the log's bounds, or None."""
        checkpointed = self.directory.root.high_watermarks.get(self.directory.topic_partition)
        if checkpointed is None:
            return None
        return max(self.log_start_offset, min(checkpointed, self.log_end_offset))

    def segment_index_for(self, offset: int) -> int | None:
        """Return the index in ``segments`` of the segment that would hold ``offset``, or None below the first one."""
        index = bisect.bisect_right(self.segments.base_offsets, offset) - 1
        return index if index >= 0 else None

    def source_of(self, index: int) -> tuple[PartitionLog, int]:
        """Return the log of the directory that a segment lies in, and the segment's index there."""
        return self, index

    def read_segment(self, index: int, read: Callable[[SegmentReader], _Answer]) -> _Answer:
        """Read from a segment, and again if a live broker has renamed or replaced its file since the listing.

        Raises:
            DataLossError: The segment was deleted.
        """
        try:
            return read(self.segments[index])
        except (FileNotFoundError, DataLossError):
            pass
        try:
            return read(self.segments.reopen(index))
        except FileNotFoundError:
            pass
        try:
            return read(self.segments.reopen(index, DELETED_SUFFIX))
        except FileNotFoundError as error:
            message = (
                "Expected a segment that was listed a moment ago, found it deleted by retention or a cleaner. "
                "Read again."
            )
            offset = self.segments.base_offsets[index]
            raise DataLossError(message, path=self.path, offset=offset) from error

    def first_batch_at_or_after(self, offset: int) -> tuple[SegmentReader, BatchHeader] | None:
        """Find the first batch with an offset of at least ``offset``.

        Returns:
            The segment, and the batch's header; None at the log end.
        """
        if offset >= self.log_end_offset:
            return None
        for index in range(self.segment_index_for(offset) or 0, len(self.segments)):
            header = self.read_segment(index, lambda segment: segment.translate_offset(offset))
            end_offset = self.segments.end_offset(index)
            if header is not None and (end_offset is None or header.base_offset < end_offset):
                # After the log end only torn or damaged bytes can follow.
                return (self.segments[index], header) if header.base_offset < self.log_end_offset else None
        return None

    def first_offset_at_or_after(self, offset: int) -> int | None:
        """Return the first offset from ``offset`` on at which a batch or a segment begins, or None.

        Segments count because damage may begin with them.

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
        """Return the first offset from ``offset`` on of a record, whatever offsets its batch's header claims.

        A header may claim far more offsets than its batch has records. A batch that cannot be decoded counts as
        one without records.
        """
        found = self.first_batch_at_or_after(offset)
        if found is None or found[1].base_offset >= offset:
            return self.first_offset_at_or_after(offset)
        segment, header = found
        try:
            offsets = segment.record_offsets(header)
        except (CorruptError, UnsupportedFormatError):
            offsets = []
        index = bisect.bisect_left(offsets, offset)
        return offsets[index] if index < len(offsets) else self.first_offset_at_or_after(header.next_offset)

    def start_of_damage_before(self, offset: int) -> int:
        """Return the first offset of damage, within the log, that ends at an offset. Without damage, that is the offset itself.

        A look-up that found the offset may have missed records in the damage.
        """
        for index in (self.segment_index_for(offset), self.segment_index_for(offset - 1)):
            if index is None:
                continue
            damage = self.read_segment(index, lambda segment: segment.locate_offset(offset).damage)
            if damage is not None:
                return max(self.log_start_offset, min(damage.start_offset, offset))
        return offset

    def offset_for_timestamp(
        self, timestamp_ms: int, limit_offset: int | None = None
    ) -> TimestampOffset | None:
        """Find the first record with a timestamp at or after ``timestamp_ms``, as a broker's ListOffsets does.

        Only the first segment whose largest timestamp reaches it is searched, as in Kafka. For a
        segment without timestamps, the modification time of its file counts. Records below the log start
        offset do not count, nor does a segment that only they would decide for.

        Args:
            timestamp_ms: Milliseconds since 1970.
            limit_offset: The record's offset must be below it; without it, below the log end offset.

        Returns:
            The timestamp and offset of the record, which may be a control record; None if there is none.
        """
        limit_offset = self.log_end_offset if limit_offset is None else limit_offset
        if self.log_start_offset >= limit_offset:
            return None
        live = range(self.segment_index_for(self.log_start_offset) or 0, len(self.segments))
        for index, largest_ms in zip(
            live, self.filesystem.map(self._largest_timestamp_ms, live), strict=True
        ):
            if largest_ms < timestamp_ms:
                # With thousands of segments, their indexes would fill the memory.
                self.segments[index].forget_indexes()
            else:
                found = self.read_segment(
                    index, lambda segment: segment.offset_for_timestamp(timestamp_ms, self.log_start_offset)
                )
                is_partly_dead = self.segments.base_offsets[index] < self.log_start_offset
                is_claimed = self.segments[index].status.newest_timestamp_ms is not None
                if found is None and (
                    is_partly_dead or is_claimed or self._may_be_damaged(index, timestamp_ms)
                ):
                    continue
                return found if found is not None and found.offset < limit_offset else None
        return None

    def newest_producer_snapshot(self, up_to_offset: int | None = None) -> ProducerSnapshot | None:
        """Find the newest valid snapshot at or below an offset, by default the log end offset."""
        up_to_offset = self.log_end_offset if up_to_offset is None else up_to_offset
        offsets = self._snapshot_offsets
        # Where the records before the first segment are in remote storage, its snapshot tells of them.
        start_offset = self.start_below_segments
        start_offset = self.log_start_offset if start_offset is None else start_offset
        for index in reversed(range(bisect.bisect_right(offsets, up_to_offset))):
            offset = offsets[index]
            if offset <= start_offset:
                break
            path = os.path.join(self.path, snapshot_file_name(offset))
            try:
                producers = read_producer_snapshot(self.filesystem, path)
            except CorruptSnapshotError as error:
                _log.warning("Ignored a producer snapshot, and used an older one or the log: %s", error)
                continue
            if producers is not None:
                return ProducerSnapshot(offset, producers)
        return None

    @cached_property
    def _snapshot_offsets(self) -> Sequence[int]:
        """Offsets of the snapshots that a starting broker would keep, ascending.

        A snapshot that belongs to no segment is kept only if it is the newest.
        """
        offsets = self.segments.file_names.base_offsets(SNAPSHOT_SUFFIX)
        is_kept = np.isin(offsets, self.segments.base_offsets)
        if len(offsets) and (not self.segments or offsets[-1] >= self.segments.base_offsets[-1]):
            # The newest one; if a segment begins at its offset, it is kept already.
            is_kept[-1] = True
        kept: list[int] = np.asarray(offsets, np.int64)[is_kept].tolist()
        return kept

    def _may_be_damaged(self, index: int, timestamp_ms: int) -> bool:
        """Return True if a segment's largest timestamp reaches a timestamp, so that damage hides the record that has it."""
        segment = self.segments[index]
        if not segment.skip_damage:
            return False
        largest = segment.largest_timestamp(is_complete=self.is_complete(index))
        return largest.timestamp_ms >= timestamp_ms

    def _largest_timestamp_ms(self, index: int) -> int:
        is_complete = self.is_complete(index)
        return self.read_segment(index, lambda segment: segment.largest_timestamp_ms(is_complete=is_complete))

    def is_complete(self, index: int) -> bool:
        """Return True if a broker has closed a segment and its time index."""
        return index < len(self.segments) - 1 or self.is_clean

    def __repr__(self) -> str:
        return f"PartitionLog({self.path!r}, {len(self.segments)} segments)"
