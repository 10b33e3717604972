"""What a broker makes of a partition's directory when it starts (Kafka's ``LogLoader``), foretold without changing a byte.

`storage_core.log.log_loader` loads a log for this package, which is stricter: it cuts where offsets are out of order. A
broker looks at less, and this module says at what:

    clean shutdown     no batch is checked. The log end is found by the last offset index alone
    unclean            from the segment of the recovery point on, each CRC is checked and the indexes are rebuilt. After the
                       first invalid batch, the rest of the segment and all later segments are removed
    any                a segment without an offset index, or with a transaction index that contradicts its name, is
                       recovered. Offset and time indexes themselves are not checked
    refused            files that a broker must read, and cannot
    not known          what depends on how a broker reads bytes that are damaged in a rare way

Source: ``LogLoader``, ``LogSegment.recover``, ``FileRecords`` and ``FileLogInputStream`` of Apache Kafka 4.1.0.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from storage_core.check.segment_check import SegmentFacts

# A file position is an int in Kafka.
_LARGEST_FILE_BYTES: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class BrokerStart:
    """Outcome for a partition at a broker's next start.

    Attributes:
        refusal: Why it does not start with it; None if it does.
        refused_segment: Base offset of the segment that is to blame for that; None if none is.
        unknown: Why it is not known what it does, but for the refusal of other files; None if it is known.
        stray: Why it sets the directory aside, and serves an empty partition instead; None if it does not.
    """

    refusal: str | None = None
    refused_segment: int | None = None
    unknown: str | None = None
    recovered: frozenset[int] = frozenset()
    cuts: Mapping[int, int] = field(default_factory=dict)
    removed: frozenset[int] = frozenset()
    log_start_offset: int = 0
    log_end_offset: int = 0
    stray: str | None = None


class _RefusedError(Exception):
    """A broker would not load the log because of one of its segments."""

    def __init__(self, segment: SegmentFacts, reason: str) -> None:
        super().__init__(reason)
        self.base_offset = segment.base_offset


class _UnknownError(Exception):
    """It is not known what a broker makes of a segment."""

    def __init__(self, segment: SegmentFacts, reason: str) -> None:
        super().__init__(f"{reason} {segment.log_name}")


@dataclass(frozen=True, slots=True)
class KnownOfLog:
    """State of a log that a broker knows before it reads the segments.

    Attributes:
        snapshots: The offsets of the producer snapshots that can be read, ascending.
        refusal: Why it does not come so far.
    """

    is_clean: bool
    recovery_point: int
    log_start_offset: int
    snapshots: Sequence[int] = ()
    has_snapshots: bool = False
    refusal: str | None = None
    without_index: frozenset[int] = frozenset()


def start_of_broker(segments: Sequence[SegmentFacts], known: KnownOfLog) -> BrokerStart:
    """Determine what a broker would do, once interrupted replacements of segments are completed."""
    loading = _Loading(segments, known)
    if known.refusal is not None:
        return BrokerStart(known.refusal, log_end_offset=loading.log_end_offset)
    try:
        loading.load()
    except _RefusedError as refused:
        return BrokerStart(str(refused), refused.base_offset, log_end_offset=loading.log_end_offset)
    except _UnknownError as error:
        return BrokerStart(unknown=str(error), log_end_offset=loading.log_end_offset)
    first = next((each.base_offset for each in loading.kept), known.log_start_offset)
    return BrokerStart(
        None,
        None,
        None,
        frozenset(loading.recovered),
        loading.cuts,
        frozenset(loading.removed),
        max(known.log_start_offset, first),
        loading.log_end_offset,
    )


class _Loading:
    """Loads one log, in the order of Kafka's ``LogLoader``."""

    def __init__(self, segments: Sequence[SegmentFacts], known: KnownOfLog) -> None:
        self.recovered: set[int] = set()
        self.cuts: dict[int, int] = {}
        self.removed: set[int] = set()
        self.log_end_offset = max(
            (each.scan.next_offset for each in segments), default=known.log_start_offset
        )
        self._segments = segments
        self._known = known
        self._bases = [each.base_offset for each in segments]
        # The offsets of the producer snapshots that are left, ascending.
        self._snapshots = list(known.snapshots)

    @property
    def kept(self) -> list[SegmentFacts]:
        """The segments that are left."""
        return [each for each in self._segments if each.base_offset not in self.removed]

    def load(self) -> None:
        for number, segment in enumerate(self._segments):
            if segment.size_bytes > _LARGEST_FILE_BYTES:
                reason = f"{segment.log_name} has {segment.size_bytes} bytes, more than a broker can address"
                raise _RefusedError(segment, reason)
            if (
                segment.base_offset in self._known.without_index
                or segment.transactions.refused_version is not None
            ):
                self._recover(segment, number)
        if not self._known.is_clean:
            self._recover_unflushed()
        self._find_end()
        self._rebuild_producers()

    def _recover_unflushed(self) -> None:
        bases = self._bases
        first = max(0, bisect_right(bases, self._known.recovery_point) - 1)
        for number, segment in enumerate(self._segments[first:], first):
            was_cut = segment.base_offset in self.cuts
            self._recover(segment, number)
            if segment.base_offset in self.cuts and not was_cut:
                self.removed.update(bases[number + 1 :])
                return

    def _recover(self, segment: SegmentFacts, number: int) -> None:
        self._replay(number, self._known.log_start_offset, segment.base_offset)
        scan = segment.scan
        if not scan.is_cut_known:
            raise _UnknownError(
                segment, "it recovers, from a batch on that only its offsets or its magic prove wrong,"
            )
        self.recovered.add(segment.base_offset)
        if scan.next_offset > max([segment.base_offset, *self._snapshots[-1:]]):
            self._snapshots.append(scan.next_offset)
        if scan.valid_bytes < segment.size_bytes:
            self.cuts[segment.base_offset] = scan.valid_bytes

    def _find_end(self) -> None:
        kept = self.kept
        self.log_end_offset = self._known.log_start_offset
        if not kept:
            return
        log_end_offset = self._end_of(kept[-1])
        if log_end_offset < self._known.log_start_offset:
            self.removed.update(each.base_offset for each in kept)
        else:
            self.log_end_offset = log_end_offset

    def _end_of(self, segment: SegmentFacts) -> int:
        """Return the offset after the last segment (``LogSegment.readNextOffset``)."""
        scan = segment.scan
        if segment.base_offset in self.recovered:
            return scan.next_offset
        if not segment.is_offset_index_right:
            raise _UnknownError(segment, "it finds the log end by an offset index that contradicts")
        if scan.last_damage_bytes is None or scan.last_damage_bytes < segment.last_indexed_bytes:
            return segment.next_offset
        if segment.last_indexed_bytes > scan.valid_bytes:
            raise _UnknownError(segment, "it finds the log end in the damaged")
        if scan.error_bytes is not None:
            raise _RefusedError(segment, _no_batch(segment, scan.error_bytes))
        if scan.end_offset is None:
            raise _UnknownError(segment, "it finds the log end in the damaged")
        return scan.end_offset

    def _rebuild_producers(self) -> None:
        kept, end_offset = self.kept, self.log_end_offset
        bases = {each.base_offset for each in kept}
        if self._known.is_clean and not self._known.has_snapshots:
            return
        latest = max(self._snapshots, default=0)
        self._snapshots = [each for each in self._snapshots if each in bases or each == latest]
        first = kept[0].base_offset if kept else 0
        self._replay(len(kept), max(self._known.log_start_offset, first), end_offset)

    def _replay(self, count: int, log_start_offset: int, end_offset: int) -> None:
        """Replay producers from the newest snapshot on (``UnifiedLog.rebuildProducerState``): damaged headers fail it."""
        known = self._snapshots
        known = known[bisect_right(known, log_start_offset) : bisect_right(known, end_offset)]
        self._snapshots = known
        start_offset = known[-1] if known else log_start_offset
        if start_offset < end_offset:
            first = max(0, bisect_right(self._bases, start_offset, hi=count) - 1)
            last = bisect_left(self._bases, end_offset, hi=count)
            for segment in self._segments[first:last]:
                self._read_headers(segment, start_offset)
            known.append(end_offset)

    def _read_headers(self, segment: SegmentFacts, start_offset: int) -> None:
        if segment.base_offset in self.recovered:
            return
        is_from_start = start_offset <= segment.base_offset
        if not (is_from_start or segment.is_offset_index_right):
            raise _UnknownError(segment, "it looks up producers by an offset index that contradicts")
        if segment.scan.error_bytes is not None:
            if is_from_start:
                raise _RefusedError(segment, _no_batch(segment, segment.scan.error_bytes))
            raise _UnknownError(segment, "it reads a part of the damaged")


def _no_batch(segment: SegmentFacts, position_bytes: int) -> str:
    return f"it reads {segment.log_name}, which has no batch at byte {position_bytes}"
