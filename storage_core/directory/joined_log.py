"""One log from several directories of a partition: dated backups, the disks of several brokers, or remote storage.

The preferred copy is read wherever it has records. The others give what it lacks: older records below its start, newer
ones beyond its end, and those of segments that are missing, empty or cut short in it. Where copies contradict each
other, a copy gives nothing from there on; see ``docs/decisions/0017-copies-of-one-log.md``.
"""

from __future__ import annotations

import bisect
import contextlib
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from storage_core.cached_property import cached_property
from storage_core.directory.partition_log import PartitionLog, ProducerSnapshot, SegmentSequence
from storage_core.directory.segment_listing import FileNames
from storage_core.errors import CorruptError, SegmentLogError
from storage_core.record.batch_header import MAX_OFFSET

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from storage_core.checkpoint import EpochEntry
    from storage_core.filesystem import ReadableFileSystem
    from storage_core.segment import SegmentReader
    from storage_core.segment.file_names import TimestampOffset


# Batches are compared at so many beginnings of leader epochs, besides the two ends of what two copies share.
_MOST_EPOCHS = 16
_SHOWN_RANGES = 5


UP_TO_LOG_END: Final = MAX_OFFSET + 1


class Piece(NamedTuple):
    """A range of offsets, and the copy that they are read from. The last one may end with its log, `UP_TO_LOG_END`."""

    start_offset: int
    end_offset: int
    log: PartitionLog


class JoinedLog(PartitionLog):
    """A log whose segments are those of several copies, each for a part of the offsets.

    Attributes:
        is_one_history: Whether what is not read of the segments is no other history, so that their times hold.
    """

    def __init__(
        self,
        filesystem: ReadableFileSystem,
        pieces: Sequence[Piece],
        logs: Sequence[PartitionLog],
        *,
        is_one_history: bool = False,
    ) -> None:
        primary = logs[0]
        self._joined = _JoinedSegments(pieces)
        super().__init__(filesystem, primary.directory, self._joined, skip_damage=primary.skip_damage)
        self.log_start_offset = pieces[0].start_offset
        self.is_one_history = is_one_history
        self._pieces = pieces
        self._logs = logs

    @cached_property
    def log_end_offset(self) -> int:
        """Return the end of the last piece, or of its log."""
        last = self._pieces[-1]
        if last.end_offset < UP_TO_LOG_END:
            return last.end_offset
        end_offset = last.log.log_end_offset
        self.missing_from = last.log.missing_from
        return end_offset

    def check_not_cut(self) -> None:
        """Check the copies as `PartitionLog.check_not_cut` does: the last segment belongs to one of them."""
        for log in self._logs:
            log.check_not_cut()

    @cached_property
    def high_watermark(self) -> int | None:
        """Return the highest high watermark of all copies."""
        return max(
            (each.high_watermark for each in self._logs if each.high_watermark is not None), default=None
        )

    def offset_for_timestamp(
        self, timestamp_ms: int, limit_offset: int | None = None
    ) -> TimestampOffset | None:
        """Find a record as `PartitionLog.offset_for_timestamp` does, in the part of each segment that is read."""
        limit_offset = self.log_end_offset if limit_offset is None else limit_offset
        bounds = self._joined.bounds

        def look_up(index: int) -> TimestampOffset | None:
            found = None
            if self._largest_timestamp_ms(index) >= timestamp_ms:
                found = self.read_segment(
                    index, lambda segment: segment.offset_for_timestamp(timestamp_ms, bounds[index][0])
                )
            self.segments[index].forget_indexes()
            return found

        answers = zip(bounds, self.filesystem.map(look_up, range(len(bounds))), strict=True)
        inside = (
            found
            for (_, end_offset), found in answers
            if found is not None and found.offset < min(end_offset, limit_offset)
        )
        return next(inside, None)

    def newest_producer_snapshot(self, up_to_offset: int | None = None) -> ProducerSnapshot | None:
        """Find the newest valid snapshot as `PartitionLog.newest_producer_snapshot` does, beside the segments of that offset."""
        up_to_offset = self.log_end_offset if up_to_offset is None else up_to_offset
        for piece in reversed(self._pieces):
            if piece.start_offset < up_to_offset:
                found = piece.log.newest_producer_snapshot(min(up_to_offset, piece.end_offset))
                if found is not None and found.offset >= max(piece.start_offset, self.log_start_offset + 1):
                    return found
        return None

    def source_of(self, index: int) -> tuple[PartitionLog, int]:
        """Return the log of the directory that a segment lies in, and the segment's index there."""
        log, own_index = self._joined.places[index]
        return log.source_of(own_index)

    def is_complete(self, index: int) -> bool:
        """Return True if a broker has closed a segment and its time index."""
        source, own_index = self.source_of(index)
        return source.is_complete(own_index)


class _JoinedSegments(SegmentSequence):
    """Segments of several logs, each from the offset on that is read from it.

    Attributes:
        bounds: The offsets that are read from each segment.
        places: The log that each is a segment of, and its index there.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.bounds: list[tuple[int, int]] = []
        self.places: list[tuple[PartitionLog, int]] = []
        for piece in pieces:
            bases = piece.log.segments.base_offsets
            for index in range(piece.log.segment_index_for(piece.start_offset) or 0, len(bases)):
                if bases[index] >= piece.end_offset:
                    break
                next_base_offset = bases[index + 1] if index + 1 < len(bases) else piece.end_offset
                start_offset = max(bases[index], piece.start_offset)
                self.bounds.append((start_offset, min(next_base_offset, piece.end_offset)))
                self.places.append((piece.log, index))
        self.base_offsets = [start_offset for start_offset, _ in self.bounds]
        self.file_names = FileNames()

    def __getitem__(self, index: int) -> SegmentReader:  # type: ignore[override]
        log, own_index = self.places[index]
        return log.segments[own_index]

    def reopen(self, index: int, suffix: str = "") -> SegmentReader:
        log, own_index = self.places[index]
        return log.segments.reopen(own_index, suffix)

    def next_base_offset(self, index: int) -> int | None:
        log, own_index = self.places[index]
        return log.segments.next_base_offset(own_index)

    def end_offset(self, index: int) -> int | None:
        end_offset = self.bounds[index][1]
        return end_offset if end_offset < UP_TO_LOG_END else None

    def file_base_offset(self, index: int) -> int:
        log, own_index = self.places[index]
        return log.segments.file_base_offset(own_index)


def join_copies(filesystem: ReadableFileSystem, logs: Sequence[PartitionLog]) -> PartitionLog:
    """Join the logs of copies, the preferred one first. The notices of the result say what comes from where.

    Returns:
        The first log itself if the others have nothing that it lacks.
    """
    scouts = [
        PartitionLog.load(
            filesystem, log.directory, skip_damage=True, listing=log.segments.listing
        ).end_with_valid_batches()
        for log in logs
    ]
    join = _Join(scouts)
    for log, scout in zip(logs, scouts, strict=True):
        join.add(log, scout)
    pieces = join.result()
    joined = logs[0]
    end_offset = reached_offset = max(scout.log_end_offset for scout in scouts)
    # A log that is read alone knows what its own checkpoints say.
    known_end_offset = max(log.known_end_offset for log in logs[1:])
    if any(piece.log is not joined for piece in pieces):
        known_end_offset = max(log.known_end_offset for log in logs)
        last = pieces[-1].log
        is_last_whole = scouts[logs.index(last)].log_end_offset == pieces[-1].end_offset
        for log in logs:
            if log is not last or not is_last_whole:
                log.end_with_valid_batches()
            # Limits the last segment to the log end. Damage there is an error only for who reads it.
            with contextlib.suppress(CorruptError):
                _ = log.log_end_offset
                if log is last and is_last_whole:
                    # No other copy has what is known to have followed.
                    pieces[-1] = pieces[-1]._replace(end_offset=log.log_end_offset)
        joined = JoinedLog(filesystem, pieces, logs)
        joined.missing_from = last.missing_from
        end_offset = joined.log_end_offset
        reached_offset = max(end_offset, last.known_end_offset)
    if known_end_offset > reached_offset:
        join.notices.append(
            f"No copy of {joined.topic}-{joined.partition} has offsets {end_offset} to {known_end_offset - 1}, which its "
            "checkpoints know."
        )
    joined.notices = [*(notice for log in logs for notice in log.notices), *join.notices]
    return joined


class _Join:
    """The pieces so far. Each log that is added gives what those before it lack.

    Attributes:
        notices: What whoever reads them should know.
    """

    def __init__(self, scouts: Sequence[PartitionLog]) -> None:
        self.notices: list[str] = []
        self._scouts = scouts
        self._is_compacted = any(scout.directory.is_compacted for scout in scouts)
        self._name = f"{scouts[0].topic}-{scouts[0].partition}"
        self._added: list[PartitionLog] = []
        self._pieces: list[Piece] = []
        # Where segments of a copy end early.
        self._holes: list[Piece] = []

    def add(self, log: PartitionLog, scout: PartitionLog) -> None:
        """Add a copy: its log, and the same log with damage skipped."""
        own = [(scout.log_start_offset, scout.log_end_offset)]
        # A copy that can give nothing is not looked into.
        if next(uncovered(*own[0], self._pieces), None) is not None:
            others = [each for each in self._scouts if each is not scout]
            own = list(_ranges_of(scout, others, is_compacted=self._is_compacted))
        limit_offset = self._limit_of(scout)
        found = [each for start, end in own for each in uncovered(start, end, self._pieces)]
        left_out = [(max(start, limit_offset), end) for start, end in found if end > limit_offset]
        found = [(start, min(end, limit_offset)) for start, end in found if start < limit_offset]
        if left_out:
            self.notices.append(
                f"Offsets {shown_ranges(left_out)} of {self._name} are only in {log.path}, and are not read: they follow records "
                "that another copy contradicts. To read them, give the path of this copy alone."
            )
        if self._added and found:
            self.notices.append(
                f"Offsets {shown_ranges(found)} of {self._name} are read from {log.path}: the preferred copies do not have them."
            )
        self._take(Piece(start, end, log) for start, end in found)
        holes = ((end, min(start, limit_offset)) for (_, end), (start, _) in pairwise(own))
        self._holes += (Piece(start, end, log) for start, end in holes)
        self._added.append(scout)

    def result(self) -> list[Piece]:
        """Return the pieces in order. What no copy has at the end of a segment may be damage there, which a read reports."""
        missing = [
            (before.end_offset, after.start_offset)
            for before, after in pairwise(self._pieces)
            if before.end_offset < after.start_offset
        ]
        if missing and not self._is_compacted:
            self.notices.append(f"No copy of {self._name} has offsets {shown_ranges(missing)}.")
        for hole in self._holes:
            left = list(uncovered(hole.start_offset, hole.end_offset, self._pieces))
            self._take(Piece(start, end, hole.log) for start, end in left)
        return self._pieces

    def _take(self, pieces: Iterable[Piece]) -> None:
        self._pieces = sorted([*self._pieces, *pieces], key=lambda piece: piece[:2])

    def _limit_of(self, scout: PartitionLog) -> int:
        """Find the offset from which on a copy contradicts those before it."""
        limit_offset = UP_TO_LOG_END
        if self._is_compacted:
            return limit_offset
        for other in self._added:
            start_offset = max(other.log_start_offset, scout.log_start_offset)
            end_offset = min(other.log_end_offset, scout.log_end_offset, limit_offset)
            if other.log_end_offset <= scout.log_start_offset < limit_offset:
                if _epochs_of(scout) and _newest_epoch(scout) < _newest_epoch(other):
                    limit_offset = scout.log_start_offset
                    self.notices.append(
                        f"{scout.path} begins at offset {limit_offset}, where {other.path} has ended, but with an older "
                        "leader epoch: it is a part of another history."
                    )
                continue
            found = _first_difference(other, scout, start_offset, end_offset)
            if found is not None:
                limit_offset = found
                self.notices.append(
                    f"Copies of {self._name} contradict each other from offset {found} on, up to {end_offset - 1} at most: "
                    f"{other.path} is read there, not {scout.path}. One of them went another way, or its topic was "
                    "created anew."
                )
        return limit_offset


def _ranges_of(
    log: PartitionLog, others: Sequence[PartitionLog], *, is_compacted: bool
) -> Iterator[tuple[int, int]]:
    """Find the ranges of offsets that a copy has, without what is missing at the end of its segments.

    A segment's end is looked up only if another copy may have more: if it has a segment that begins in between, or a
    longer one in its place.
    """
    start_offset, end_offset = log.log_start_offset, log.log_end_offset
    bases = log.segments.base_offsets
    for index in range(log.segment_index_for(start_offset) or 0, len(bases) - 1):
        if is_compacted or not any(_may_have_more(other, log, index) for other in others):
            continue
        own_end_offset = max(_end_of_segment(log, index), start_offset)
        if own_end_offset < bases[index + 1]:
            if start_offset < own_end_offset:
                yield start_offset, own_end_offset
            start_offset = max(start_offset, bases[index + 1])
    if start_offset < end_offset:
        yield start_offset, end_offset


def _may_have_more(other: PartitionLog, log: PartitionLog, index: int) -> bool:
    """Return True if a copy may have records at the end of another one's segment that the other one lacks."""
    base_offset, next_base_offset = log.segments.base_offsets[index : index + 2]
    if not (other.log_start_offset < next_base_offset and base_offset < other.log_end_offset):
        return False
    bases = other.segments.base_offsets
    place = bisect.bisect_left(bases, base_offset)
    if place == len(bases) or bases[place] != base_offset:
        return True
    other_next_offset = bases[place + 1] if place + 1 < len(bases) else other.log_end_offset
    is_longer = _size_bytes(other, place) > _size_bytes(log, index)
    return (
        is_longer
        or other_next_offset > next_base_offset
        or (other_next_offset < next_base_offset and place + 1 < len(bases))
    )


def _size_bytes(log: PartitionLog, index: int) -> int:
    return log.read_segment(index, lambda segment: segment.size_bytes)


def _end_of_segment(log: PartitionLog, index: int) -> int:
    """Find the next offset after a segment's last batch, or after damage at its end."""
    next_base_offset = log.segments.base_offsets[index + 1]
    try:
        location = log.read_segment(index, lambda segment: segment.locate_offset(next_base_offset - 1))
    except SegmentLogError:
        return next_base_offset
    finally:
        log.segments[index].forget_indexes()
    if location.found is not None:
        return next_base_offset
    return log.segments.base_offsets[index] if location.before is None else location.before.next_offset


def uncovered(start_offset: int, end_offset: int, pieces: Sequence[Piece]) -> Iterator[tuple[int, int]]:
    """Find the parts of a range that no piece covers."""
    for piece in pieces:
        if start_offset < min(piece.start_offset, end_offset):
            yield start_offset, min(piece.start_offset, end_offset)
        start_offset = max(start_offset, piece.end_offset)
    if start_offset < end_offset:
        yield start_offset, end_offset


def _first_difference(
    first: PartitionLog, second: PartitionLog, start_offset: int, end_offset: int
) -> int | None:
    """Find the lowest offset in a range at which the batches of two logs differ. Both logs have the range.

    Returns:
        The offset; None if no difference was found.
    """
    if start_offset >= end_offset:
        return None
    epochs = {
        entry.start_offset
        for log in (first, second)
        for entry in _epochs_of(log)[-_MOST_EPOCHS:]
        if start_offset < entry.start_offset < end_offset
    }
    same_below = start_offset
    for offset in sorted({start_offset, end_offset - 1, *epochs}):
        if _differ(first, second, offset):
            break
        same_below = offset
    else:
        return None
    # Two replicas share a beginning, so the first difference is found by bisection.
    low, high = same_below, offset
    while low < high:
        middle = (low + high) // 2
        if _differ(first, second, middle):
            high = middle
        else:
            low = middle + 1
    return high


def _epochs_of(log: PartitionLog) -> list[EpochEntry]:
    """Return the leader epochs that have a batch."""
    try:
        return [entry for entry in log.leader_epochs if entry.start_offset < log.log_end_offset]
    except SegmentLogError:
        return []


def _newest_epoch(log: PartitionLog) -> int:
    return max((entry.epoch for entry in _epochs_of(log)), default=0)


def _differ(first: PartitionLog, second: PartitionLog, offset: int) -> bool:
    """Return True if both logs have a batch with an offset, and these batches are not the same."""
    one, two = _batch_with(first, offset), _batch_with(second, offset)
    return one is not None and two is not None and one != two


def _batch_with(log: PartitionLog, offset: int) -> tuple[int, int] | None:
    """Find the batch that holds an offset.

    Returns:
        Its last offset and its CRC; None if there is none.
    """
    index = log.segment_index_for(offset)
    if index is None:
        return None
    try:
        header = log.read_segment(index, lambda segment: segment.locate_offset(offset)).found
    except SegmentLogError:
        return None
    if header is None or (header.base_offset > offset and not header.is_wrapper):
        return None
    return header.last_offset, header.crc


def shown_ranges(ranges: Sequence[tuple[int, int]]) -> str:
    """Write ranges of offsets for a message, of many only the first ones."""
    shown = [f"{start} to {end - 1}" for start, end in ranges[:_SHOWN_RANGES]]
    more = len(ranges) - _SHOWN_RANGES
    return ", ".join(shown) + (f" and {more} more ranges" if more > 0 else "")
