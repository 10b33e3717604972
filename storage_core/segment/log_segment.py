"""One segment of a partition's log, for reading (the read side of Kafka's ``LogSegment``).

No answer depends on the indexes: they only say where a walk over the batch headers may begin,
and one that disagrees with the log is set aside.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from storage_core.errors import CorruptRecordError
from storage_core.record import batch_timestamps
from storage_core.segment.batch_walk import BatchWalk, corrupt_batch, read_batch
from storage_core.segment.segment_end import crc_matches, end_of_batches
from storage_core.segment.segment_files import SegmentFiles
from storage_core.segment.time_index import NO_TIMESTAMP_MS
from storage_core.segment.values import SegmentEnd, TimestampOffset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.filesystem import OpenFile
    from storage_core.record.batch_header import BatchHeader
    from storage_core.segment.batch_walk import SkimmedBatch

__all__ = ["LogSegment"]


@dataclass(slots=True, eq=False)
class LogSegment(SegmentFiles):
    """One segment: its files, see `SegmentFiles`, and what can be asked of them.

    Positions that are passed in are batch boundaries: 0, or taken from a batch header.
    """

    _end: SegmentEnd | None = field(default=None, init=False, repr=False)
    _largest_timestamp: TimestampOffset | None = field(default=None, init=False, repr=False)

    def batches(
        self, position_bytes: int = 0, end_position_bytes: int | None = None
    ) -> Iterator[BatchHeader]:
        """Walk the batch headers from a batch boundary on.

        The walk ends without an error at a torn last batch and at a preallocated tail. Of a
        closed segment, whoever needs all of it compares the end with ``size_bytes``.

        Raises:
            UnsupportedFormatError: A message of format v0 or v1.
            CorruptRecordError: Bytes that are no batch, or offsets that do not ascend.
        """
        with self.open_log() as log_file:
            yield from self._walk(log_file, end_position_bytes).batches(position_bytes)

    def read_batch(self, header: BatchHeader) -> bytes:
        """Read one whole batch, header included, and check its CRC.

        Raises:
            BatchTooLargeError: It has more than ``max_batch_bytes``.
            CorruptRecordError: The CRC does not match.
        """
        with self.open_log() as log_file:
            return read_batch(log_file, header, self.max_batch_bytes)

    def translate_offset(self, offset: int) -> BatchHeader | None:
        """The first batch whose last offset is at least ``offset``; None if there is none.

        If ``offset`` lies in a gap, that is the batch behind the gap.
        """
        with self.open_log() as log_file:
            walk = self._walk(log_file)
            return walk.first_reaching(offset, self.start_position(walk, offset))

    def check_batch_before(self, offset: int) -> None:
        """Check the CRC of the batch in front of an offset that no batch seems to hold.

        If its last offset was damaged, what looks like a gap are its records.

        Raises:
            CorruptRecordError: The CRC does not match.
        """
        with self.open_log() as log_file:
            walk = self._walk(log_file)
            before: SkimmedBatch | None = None
            for batch in walk.skim(self.start_position(walk, offset)):
                if batch[2] > offset:
                    break
                before = batch
            if before is not None and not crc_matches(log_file, before[0], before[1]):
                header = walk.batch_at(before[0])
                if header is not None:
                    raise corrupt_batch(self.log_path, header)

    def end(self) -> SegmentEnd:
        """Where the whole, valid batches of the segment end.

        Bad batches at the end are left out if nothing valid follows them. From then on, every
        other answer is limited to what stands before the end: ask a log's last segment first
        for its end.

        Raises:
            CorruptRecordError: Bytes that are no batch, with a valid batch behind them.
        """
        if self._end is None:
            with self.open_log() as log_file:
                self._end = self._find_end(log_file)
        return self._end

    def largest_timestamp(self, *, is_complete: bool) -> TimestampOffset:
        """The largest timestamp, and the last offset of the first batch that holds it.

        Args:
            is_complete: Whether the broker has closed the time index, and so has written the
                segment's largest timestamp into it: true of every segment but the last, and of
                the last one in a directory that was cleanly stopped.

        Returns:
            (-1, base offset) if the segment has no timestamps.
        """
        if self._largest_timestamp is None:
            with self.open_log() as log_file:
                self._largest_timestamp = self._find_largest_timestamp(self._walk(log_file), is_complete)
        return self._largest_timestamp

    def largest_timestamp_ms(self, *, is_complete: bool) -> int:
        """The largest timestamp as a broker's look-ups see it: without any, the file's age counts."""
        timestamp_ms = self.largest_timestamp(is_complete=is_complete).timestamp_ms
        return timestamp_ms if timestamp_ms >= 0 else self.modified_ms

    def offset_for_timestamp(self, timestamp_ms: int, start_offset: int = 0) -> TimestampOffset | None:
        """The first record, markers included, that is at least so young and not below an offset.

        A broker's algorithm, within one segment.

        Raises:
            CorruptRecordError: A batch on the way is damaged.
        """
        with self.open_log() as log_file:
            while True:
                walk = self._walk(log_file)
                try:
                    return self._find_timestamp(log_file, walk, timestamp_ms, start_offset)
                except _StaleTimeIndexError:
                    self.set_time_index_aside()

    def cut_points(
        self, start_position_bytes: int, end_position_bytes: int, target_bytes: int
    ) -> list[BatchHeader]:
        """Batches at which a range can be cut into pieces of about ``target_bytes``.

        Args:
            start_position_bytes: The range's beginning, a batch boundary.
            end_position_bytes: The range's end.
            target_bytes: The least distance of a cut from the one before.

        Returns:
            The batches that begin a piece, but for the first. Where damage is met they end: it
            is reported to whoever reads there.
        """
        cuts: list[BatchHeader] = []
        with self.open_log() as log_file:
            walk = self._walk(log_file)
            boundary_bytes = start_position_bytes
            while (goal_bytes := boundary_bytes + max(1, target_bytes)) < end_position_bytes:
                try:
                    header = self._batch_at_or_after(walk, goal_bytes, boundary_bytes)
                except CorruptRecordError:
                    break
                if header is None or header.position_bytes >= end_position_bytes:
                    break
                cuts.append(header)
                boundary_bytes = header.position_bytes
        return cuts

    def _walk(self, log_file: OpenFile, end_position_bytes: int | None = None) -> BatchWalk:
        end_bytes = self.size_bytes if self._end is None else self._end.position_bytes
        if end_position_bytes is not None:
            end_bytes = min(end_bytes, end_position_bytes)
        return BatchWalk(log_file, self.base_offset, end_bytes)

    def _find_end(self, log_file: OpenFile) -> SegmentEnd:
        walk = self._walk(log_file)
        stop_bytes = self.size_bytes
        number = len(self.offset_index) - 1
        while True:
            start_bytes = self.proven_position(walk, number)
            end = end_of_batches(log_file, self.base_offset, start_bytes, stop_bytes)
            if end is not None:
                return end
            if start_bytes == 0:
                return SegmentEnd(self.base_offset, 0)
            # Nothing behind this entry is valid: look between the entry before and this one.
            stop_bytes = start_bytes
            number -= 1

    def _named_batch(self, walk: BatchWalk, entry: TimestampOffset) -> SkimmedBatch | None:
        """The batch that an entry of the time index names; None if the two disagree."""
        for batch in walk.skim(self.start_position(walk, entry.offset)):
            _, _, base_offset, last_offset, largest_ms = batch
            if last_offset >= entry.offset:
                return batch if base_offset <= entry.offset and largest_ms == entry.timestamp_ms else None
        return None

    def _find_largest_timestamp(self, walk: BatchWalk, is_complete: bool) -> TimestampOffset:
        largest = TimestampOffset(NO_TIMESTAMP_MS, self.base_offset)
        start_bytes = 0
        entry = None if self.is_one_page else self.time_index.last_entry
        if entry is not None:
            named = self._named_batch(walk, entry)
            if named is None:
                self.set_time_index_aside()
            else:
                largest, start_bytes = entry, named[1]
        if largest is entry and is_complete:
            # An index that was cut short shows at the end of the log, unless time ran backwards there.
            last_indexed = self.offset_index.last_entry
            tail_bytes = start_bytes
            if last_indexed is not None and last_indexed.position_bytes > start_bytes:
                tail_bytes = max(start_bytes, self.proven_position(walk, len(self.offset_index) - 1))
            if all(batch[4] <= largest.timestamp_ms for batch in walk.skim(tail_bytes)):
                return largest
        for _, _, _, last_offset, largest_ms in walk.skim(start_bytes):
            if largest_ms > largest.timestamp_ms:
                largest = TimestampOffset(largest_ms, last_offset)
        return largest

    def _find_timestamp(
        self, log_file: OpenFile, walk: BatchWalk, timestamp_ms: int, start_offset: int
    ) -> TimestampOffset | None:
        entry = TimestampOffset(NO_TIMESTAMP_MS, self.base_offset)
        if not self.is_one_page:
            entry = self.time_index.lookup(timestamp_ms)
        # An entry below the start offset does not decide anything, so it need not be right.
        is_unproven = entry.timestamp_ms != NO_TIMESTAMP_MS and entry.offset > start_offset
        for batch in walk.skim(self.start_position(walk, max(entry.offset, start_offset))):
            position_bytes, _, base_offset, last_offset, largest_ms = batch
            if is_unproven:
                if last_offset >= entry.offset:
                    if base_offset > entry.offset or largest_ms != entry.timestamp_ms:
                        raise _StaleTimeIndexError
                    is_unproven = False
                elif largest_ms >= entry.timestamp_ms:
                    raise _StaleTimeIndexError
            if largest_ms >= timestamp_ms and last_offset >= start_offset:
                header = walk.batch_at(position_bytes)
                found = header and self._first_record(log_file, header, timestamp_ms, start_offset)
                if found:
                    return found
        if is_unproven:
            raise _StaleTimeIndexError
        return None

    def _first_record(
        self, log_file: OpenFile, header: BatchHeader, timestamp_ms: int, start_offset: int
    ) -> TimestampOffset | None:
        batch = read_batch(log_file, header, self.max_batch_bytes)
        offsets, timestamps_ms = batch_timestamps(
            batch, header, path=self.log_path, limit_bytes=self.max_batch_bytes
        )
        matches = ((timestamps_ms >= timestamp_ms) & (offsets >= start_offset)).nonzero()[0]
        if not len(matches):
            return None
        first = int(matches[0])
        return TimestampOffset(int(timestamps_ms[first]), int(offsets[first]))

    def _batch_at_or_after(
        self, walk: BatchWalk, position_bytes: int, boundary_bytes: int
    ) -> BatchHeader | None:
        """The first indexed batch at or behind a position, or the first batch where the index ends."""
        number = int(self.offset_index.positions.searchsorted(position_bytes))
        if number < len(self.offset_index):
            proven_bytes = self.proven_position(walk, number)
            if proven_bytes >= position_bytes:
                return walk.batch_at(proven_bytes)
        # The index ends before: walk from its last entry.
        start_bytes = max(boundary_bytes, self.proven_position(walk, len(self.offset_index) - 1))
        for header in walk.batches(start_bytes):
            if header.position_bytes >= position_bytes:
                return header
        return None


class _StaleTimeIndexError(Exception):
    """The time index disagrees with the batches that it names."""
