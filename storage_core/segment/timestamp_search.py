"""Look-ups by timestamp in one segment (Kafka's ``LogSegment.findOffsetByTimestamp`` and ``largestTimestamp``).

The time index says where a walk may begin, and what the largest timestamp is. An index that disagrees with the batches
that it names is set aside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_core.errors import CorruptError, UnsupportedFormatError
from storage_core.record.batch_header import NO_TIMESTAMP_MS
from storage_core.segment.batch_walk import SkimmedBatch, record_timestamps
from storage_core.segment.file_names import TimestampOffset

if TYPE_CHECKING:
    from storage_core.filesystem import OpenFile
    from storage_core.record.batch_header import BatchHeader
    from storage_core.segment.resynchronise import TolerantWalk
    from storage_core.segment.segment_reader import SegmentReader


class TimestampSearch:
    """Searches one open segment."""

    def __init__(self, segment: SegmentReader, log_file: OpenFile, walk: TolerantWalk) -> None:
        self._segment = segment
        self._log_file = log_file
        self._walk = walk

    def largest_timestamp(self, *, is_complete: bool) -> TimestampOffset:
        """The largest timestamp; see `SegmentReader.largest_timestamp`."""
        segment, walk = self._segment, self._walk
        largest = TimestampOffset(NO_TIMESTAMP_MS, segment.base_offset)
        start_bytes = 0
        entry = None if segment.is_one_page else segment.time_index.last_entry
        named = None if entry is None else self._named_batch(entry)
        if entry is not None and named is None:
            segment.set_time_index_aside()
        elif entry is not None and named is not None:
            _, named_end_bytes, _, _, _ = named
            largest, start_bytes = entry, named_end_bytes
        if is_complete and (named is not None or self._seems_without_timestamps()):
            # The end of the log shows whether entries are missing, unless timestamps descend there.
            last_indexed = segment.offset_index.last_entry
            tail_bytes = start_bytes
            if last_indexed is not None and last_indexed.position_bytes > start_bytes:
                tail_bytes = max(start_bytes, segment.proven_position(walk, len(segment.offset_index) - 1))
            if all(largest_ms <= largest.timestamp_ms for *_, largest_ms in walk.skim(tail_bytes)):
                return largest
        for _, _, _, last_offset, largest_ms in walk.skim(start_bytes):
            if largest_ms > largest.timestamp_ms:
                largest = TimestampOffset(largest_ms, last_offset)
        return largest

    def first_record(self, timestamp_ms: int, start_offset: int) -> TimestampOffset | None:
        """The first record with at least this timestamp and at least this offset.

        Raises:
            StaleTimeIndexError: The time index disagrees with the log, and decided where the search began.
        """
        segment, walk = self._segment, self._walk
        entry = TimestampOffset(NO_TIMESTAMP_MS, segment.base_offset)
        if not segment.is_one_page:
            entry = segment.time_index.lookup(timestamp_ms)
        # An entry below the start offset does not decide anything, so it need not be right.
        is_unproven = entry.timestamp_ms != NO_TIMESTAMP_MS and entry.offset > start_offset
        start_bytes = segment.start_position(walk, max(entry.offset, start_offset))
        before: SkimmedBatch | None = None
        for batch in walk.skim(start_bytes):
            position_bytes, _, _, last_offset, largest_ms = batch
            if is_unproven:
                is_unproven = not _is_batch_of_entry(batch, entry)
            if largest_ms < timestamp_ms or last_offset < start_offset:
                before = batch
                continue
            header = walk.batch_at(position_bytes)
            found = None if header is None else self._record_of(header, timestamp_ms, start_offset)
            if header is None or found is None:
                continue
            if before is not None and self._is_proven_by_indexes(before, batch, start_bytes, entry):
                return found
            skipped = self._skipped_batch(header, start_bytes, timestamp_ms, start_offset)
            if skipped is None:
                return found
            return self._record_of(skipped, timestamp_ms, start_offset) or found
        if is_unproven:
            raise StaleTimeIndexError
        return None

    def _named_batch(self, entry: TimestampOffset) -> SkimmedBatch | None:
        """The batch that an entry of the time index names; None if the two disagree."""
        for batch in self._walk.skim(self._segment.start_position(self._walk, entry.offset)):
            _, _, base_offset, last_offset, largest_ms = batch
            if last_offset >= entry.offset:
                return batch if base_offset <= entry.offset and largest_ms == entry.timestamp_ms else None
        return None

    def _seems_without_timestamps(self) -> bool:
        """Whether an empty time index is plausible: there are other entries, and the first batch has no timestamp."""
        segment = self._segment
        if segment.is_one_page or len(segment.time_index) or segment.time_index.problem is not None:
            return False
        first = next(self._walk.skim(), None)
        if first is None:
            return False
        *_, largest_ms = first
        return len(segment.offset_index) > 0 and largest_ms <= NO_TIMESTAMP_MS

    def _is_proven_by_indexes(
        self, before: SkimmedBatch, found: SkimmedBatch, start_bytes: int, entry: TimestampOffset
    ) -> bool:
        """Whether the time index has an entry for the walk's first batch, and the offset index proves the next one."""
        position_bytes, _, base_offset, last_offset, largest_ms = before
        is_first = position_bytes == start_bytes and base_offset <= entry.offset <= last_offset
        if not is_first or largest_ms != entry.timestamp_ms:
            return False
        return self._segment.index_proves_next(self._walk.raw, before, found)

    def _skipped_batch(
        self, found: BatchHeader, start_bytes: int, timestamp_ms: int, start_offset: int
    ) -> BatchHeader | None:
        """The batch that should have been found, if a damaged length has led the walk past it.

        Raises:
            CorruptRecordError: Damage before it, which may have held the record.
        """
        if self._segment.skip_damage or self._walk.raw.is_proven(found.position_bytes, start_bytes):
            return None
        location = self._walk.locate_first(
            lambda header: header.max_timestamp_ms >= timestamp_ms and header.last_offset >= start_offset,
            start_bytes,
        )
        if location.found is not None and location.found.position_bytes == found.position_bytes:
            return None
        if location.damage is not None:
            raise location.damage.error()
        return location.found

    def _record_of(self, header: BatchHeader, timestamp_ms: int, start_offset: int) -> TimestampOffset | None:
        try:
            offsets, timestamps_ms = record_timestamps(self._log_file, header, self._segment.max_batch_bytes)
        except (CorruptError, UnsupportedFormatError):
            if self._segment.skip_damage:
                return None
            raise
        matches = ((timestamps_ms >= timestamp_ms) & (offsets >= start_offset)).nonzero()[0]
        if not len(matches):
            return None
        first = int(matches[0])
        return TimestampOffset(int(timestamps_ms[first]), int(offsets[first]))


class StaleTimeIndexError(Exception):
    """The time index disagrees with the batches that it names."""


def _is_batch_of_entry(batch: SkimmedBatch, entry: TimestampOffset) -> bool:
    """Whether an entry of the time index names a batch; False before that batch.

    Raises:
        StaleTimeIndexError: The batch contradicts the entry.
    """
    _, _, base_offset, last_offset, largest_ms = batch
    if last_offset < entry.offset:
        if largest_ms >= entry.timestamp_ms:
            raise StaleTimeIndexError
        return False
    if base_offset > entry.offset or largest_ms != entry.timestamp_ms:
        raise StaleTimeIndexError
    return True
