"""Offset ranges, and how they are cut into tasks by number of offsets.

The cutting is that of Spark's Kafka source (``minPartitions``, ``maxRecordsPerPartition``):
it counts offsets, not records or bytes, so pieces of a compacted or transactional log hold
fewer records than their size says. Pieces are made one at a time: a log with a huge gap has more
of them than can be listed, and most are empty.

Cut spans into pieces of about equal size, and pack small ones together into tasks.

Neither one huge segment nor ten thousand small ones shall make a bad job.

Plan a read: options → offset ranges → spans → tasks. Runs once, where the read is started.
"""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Self

from storage_core.directory.visibility import CommitWatch, look_until_settled
from storage_core.errors import DataLossError
from storage_core.scan.isolation import AbortedTransactions, aborted_transactions
from storage_core.scan.locate import locate_spans
from storage_core.scan.pruning import KnownFields, conjunction, prune, prune_partition, residual
from storage_core.scan.resolve import Resolution, ResolvedPartition, resolve_wanted
from storage_core.scan.spans import LogSpan, ReadSettings, ScanTask, SpanList
from storage_core.scan.time_pruning import NarrowedPartition, narrow_partition, report_bytes_beyond

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from storage_core.directory import PartitionLog
    from storage_core.filesystem import FileSystem
    from storage_core.scan.options import ReadOptions
    from storage_core.scan.predicate import Predicate
    from storage_core.segment import SegmentReader

__all__ = [
    "DEFAULT_TASK_BYTES",
    "OPEN_COST_BYTES",
    "PartitionRange",
    "RangePieces",
    "ScanPlan",
    "cut_span",
    "pack_spans",
    "plan_partition",
    "plan_scan",
    "split_ranges",
]


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Offsets ``start_offset`` (inclusive) to ``end_offset`` (exclusive) of one topic-partition."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int

    @property
    def size(self) -> int:
        """The number of offsets, which gaps make larger than the number of records."""
        return self.end_offset - self.start_offset


@dataclass(frozen=True, slots=True)
class RangePieces:
    """A range in ``count`` near-equal pieces, the smaller ones first. None is empty."""

    whole: PartitionRange
    count: int

    def __iter__(self) -> Iterator[PartitionRange]:
        return map(self.piece, range(self.count))

    def piece(self, index: int) -> PartitionRange:
        """The piece of an index from 0 to below ``count``."""
        whole = self.whole
        return PartitionRange(whole.topic, whole.partition, self._start(index), self._start(index + 1))

    def index_of(self, offset: int) -> int:
        """Index of the piece that holds an offset of the range."""
        smaller_size, larger_count = divmod(self.whole.size, self.count)
        smaller_count = self.count - larger_count
        distance = offset - self.whole.start_offset
        if distance < smaller_count * smaller_size:
            return distance // smaller_size
        return smaller_count + (distance - smaller_count * smaller_size) // (smaller_size + 1)

    def _start(self, index: int) -> int:
        smaller_size, larger_count = divmod(self.whole.size, self.count)
        larger_before = max(index - (self.count - larger_count), 0)
        return self.whole.start_offset + index * smaller_size + larger_before


def split_ranges(
    ranges: Iterable[PartitionRange],
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
) -> list[RangePieces]:
    """Cut ranges so that there are enough pieces, and none is larger than asked for.

    First every range is cut into near-equal pieces of at most ``max_records_per_partition``
    offsets. If there are then fewer pieces than ``min_partitions``, larger ones are cut in
    proportion to their sizes; rounding may give a few more or fewer than asked for.

    Args:
        ranges: The ranges wanted; empty ones are dropped.
        min_partitions: The number of pieces wanted at least, or None.
        max_records_per_partition: The largest size wanted, or None.

    Returns:
        The pieces, in the order of the ranges that they come from.
    """
    cut = [
        RangePieces(whole, -(-whole.size // (max_records_per_partition or whole.size)))
        for whole in ranges
        if whole.size > 0
    ]
    if min_partitions is None or sum(each.count for each in cut) >= min_partitions:
        return cut
    pieces = [piece for each in cut for piece in each]
    counts = _proportional_counts([piece.size for piece in pieces], min_partitions)
    # More pieces than offsets would be empty ones.
    return [RangePieces(piece, min(count, piece.size)) for piece, count in zip(pieces, counts, strict=True)]


def _proportional_counts(sizes: Sequence[int], min_partitions: int) -> list[int]:
    """How many pieces each range becomes: two passes, so that small ranges take no share of large ones."""
    total = sum(sizes)
    first_pass = [_share(size, total, min_partitions) for size in sizes]
    large_total = sum(size for size, count in zip(sizes, first_pass, strict=True) if count > 1)
    large_partitions = max(min_partitions - first_pass.count(1), 1)
    return [
        1 if count == 1 else _share(size, large_total, large_partitions)
        for size, count in zip(sizes, first_pass, strict=True)
    ]


def _share(size: int, total: int, partitions: int) -> int:
    # Half is rounded up as in Java; Python's round() would go to the even neighbour.
    return max(math.floor(size / total * partitions + 0.5), 1)


DEFAULT_TASK_BYTES: Final = 128 << 20
# Opening a file costs about as much time as reading so many bytes.
OPEN_COST_BYTES: Final = 1 << 20
_SIZES_AT_ONCE: Final = 1 << 16


def cut_span(span: LogSpan, segment: SegmentReader, target_bytes: int) -> list[LogSpan]:
    """Cut a span at batches so that the pieces have about ``target_bytes``."""
    # Another file by now: whoever reads the span finds that out, and where its offsets lie.
    if span.size_bytes <= target_bytes or segment.inode != span.inode:
        return [span]
    pieces = []
    rest = span
    for header in segment.cut_points(span.position_bytes, span.end_position_bytes, target_bytes):
        # A batch that is cut off by the span's start keeps to the piece before.
        if not rest.start_offset < header.base_offset < span.end_offset:
            continue
        pieces.append(
            dataclasses.replace(rest, end_offset=header.base_offset, end_position_bytes=header.position_bytes)
        )
        rest = dataclasses.replace(
            rest, start_offset=header.base_offset, position_bytes=header.position_bytes
        )
    pieces.append(rest)
    if not span.aborted_transactions:
        return pieces
    aborted = AbortedTransactions(span.aborted_transactions)
    return [
        dataclasses.replace(
            piece, aborted_transactions=aborted.touching(piece.start_offset, piece.end_offset)
        )
        for piece in pieces
    ]


def pack_spans(
    spans: SpanList,
    settings: ReadSettings,
    *,
    task_bytes: int,
    task_records: int | None = None,
) -> list[ScanTask]:
    """Pack spans into tasks in order, up to a size in bytes and, if given, in offsets."""
    tasks: list[ScanTask] = []
    start, room_bytes, room_records = 0, 0, 0
    for index, (size_bytes, records) in enumerate(_sizes(spans)):
        cost_bytes = size_bytes + OPEN_COST_BYTES
        is_full = cost_bytes > room_bytes or (task_records is not None and records > room_records)
        if index > start and is_full:
            tasks.append(ScanTask(spans[start:index], settings))
            start = index
        if index == start:
            room_bytes, room_records = task_bytes, task_records or 0
        room_bytes -= cost_bytes
        room_records -= records
    if start < len(spans):
        tasks.append(ScanTask(spans[start:], settings))
    return tasks


def _sizes(spans: SpanList) -> Iterator[tuple[int, int]]:
    """The bytes and the offsets of each span; a million numbers are not made at once."""
    for first in range(0, len(spans), _SIZES_AT_ONCE):
        part = spans[first : first + _SIZES_AT_ONCE]
        yield from zip(part.sizes_bytes.tolist(), part.offset_counts.tolist(), strict=True)


# So many pieces of one batch may follow each other before it is looked at whether it has records for more.
_MOST_REPETITIONS: Final = 64
# How often a read of a live directory is planned anew before it fails.
_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """What a read will touch.

    Attributes:
        tasks: To be read independently of each other.
        partitions: The offset range of each topic-partition that is read.
        resolution: What the options alone ask for, and which partitions are not read.
    """

    tasks: tuple[ScanTask, ...]
    partitions: tuple[ResolvedPartition, ...]
    resolution: Resolution

    @property
    def planned_bytes(self) -> int:
        """How many bytes of log files the tasks cover."""
        return sum(task.size_bytes for task in self.tasks)

    @property
    def planned_segments(self) -> int:
        """How many segments the tasks open."""
        spans = (span for task in self.tasks for span in task.spans)
        # Pieces of one segment follow each other.
        return sum(1 for _ in groupby(spans, attrgetter("directory", "base_offset")))

    def total_bytes(self) -> int:
        """How many bytes of log files the chosen partitions have in all. Looks at each file's size."""
        return sum(segment.size_bytes for each in self.partitions for segment in each.log.segments)

    @property
    def total_segments(self) -> int:
        """How many segments the chosen partitions have in all."""
        return sum(len(each.log.segments) for each in self.partitions)


def plan_scan(filesystem: FileSystem, options: ReadOptions, predicate: Predicate | None = None) -> ScanPlan:
    """Plan a read.

    Args:
        filesystem: Where to look.
        options: What to read.
        predicate: A condition besides that of the options. Both travel with the tasks, which apply
            them to each row; what they rule out is not planned.

    Raises:
        SegmentLogError: Whatever of the options cannot be had from these directories.
    """
    condition = conjunction(options.where, predicate)
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            return look_until_settled(CommitWatch(filesystem), partial(_plan, filesystem, options, condition))
        except DataLossError:
            # Retention or a cleaner was faster than the planning; a new listing shows what there is now.
            if not attempts_left:
                raise
    raise AssertionError


def plan_partition(resolved: ResolvedPartition, options: ReadOptions) -> ScanPlan:
    """Plan the read of one partition whose range of offsets is known already.

    Raises:
        SegmentLogError: The partition cannot be read.
    """
    return _plan_resolution(Resolution((resolved,)), options, conjunction(options.where, None))


def _plan(
    filesystem: FileSystem, options: ReadOptions, condition: Predicate | None, watch: CommitWatch
) -> ScanPlan:
    resolution = resolve_wanted(
        filesystem,
        options,
        lambda topic, partition: (
            condition is None or not prune_partition(condition, topic, partition).is_empty
        ),
        watch,
    )
    return _plan_resolution(resolution, options, condition)


def _plan_resolution(resolution: Resolution, options: ReadOptions, condition: Predicate | None) -> ScanPlan:
    if condition is None:
        everything = tuple(map(NarrowedPartition, resolution.partitions))
        return ScanPlan(tuple(_split(everything, options, None)), resolution.partitions, resolution)
    found = (narrow_partition(each, condition, options) for each in resolution.partitions)
    narrowed = tuple(each for each in found if not each.is_empty)
    partitions = tuple(each.resolved for each in narrowed)
    report_bytes_beyond(partitions, condition, options)
    return ScanPlan(tuple(_split(narrowed, options, condition)), partitions, resolution)


def _split(
    narrowed: tuple[NarrowedPartition, ...], options: ReadOptions, condition: Predicate | None
) -> list[ScanTask]:
    settings = ReadSettings(
        options.max_decompressed_batch_bytes,
        options.fail_on_data_loss,
        options.use_indexes,
        predicate=condition,
        mode=options.mode,
        corrupt_record_column=options.corrupt_record_column,
        truncations_bytes=_truncations_bytes(narrowed),
    )
    partitions = [each.resolved for each in narrowed]
    sources = {
        (each.resolved.log.topic, each.resolved.log.partition): _Source.of(each, options.isolation_level)
        for each in narrowed
    }
    wanted = [
        PartitionRange(each.log.topic, each.log.partition, each.start_offset, each.end_offset)
        for each in partitions
    ]
    ranges = split_ranges(wanted, None, options.max_records_per_partition)
    spans = SpanList.joined(piece for each in ranges for piece in _locate_pieces(each, sources, condition))
    task_bytes = options.max_bytes_per_partition or _task_bytes(spans)
    tasks = _pack(_cut(spans, sources, task_bytes), task_bytes, settings, options)
    if options.min_partitions is not None and len(tasks) < options.min_partitions:
        # Fewer than asked for: split by offsets, in the proportions of Spark's Kafka source.
        ranges = split_ranges(wanted, options.min_partitions, options.max_records_per_partition)
        pieces = (each for located in ranges for each in _locate_pieces(located, sources, condition))
        tasks = [
            task
            for piece in pieces
            for task in _pack(_cut(piece, sources, task_bytes), task_bytes, settings, options)
        ]
    return tasks


def _truncations_bytes(narrowed: tuple[NarrowedPartition, ...]) -> tuple[tuple[str, int], ...]:
    roots = {each.resolved.log.directory.root.path: each.resolved.log.directory.root for each in narrowed}
    return tuple((path, root.visibility.truncations_bytes) for path, root in roots.items())


@dataclass(frozen=True, slots=True)
class _Source:
    """A partition's log, where its reading starts, and what its spans have to know of transactions."""

    log: PartitionLog
    start_offset: int
    aborted: AbortedTransactions

    @classmethod
    def of(cls, narrowed: NarrowedPartition, isolation_level: str) -> Self:
        resolved, aborted = narrowed.resolved, narrowed.aborted_transactions or ()
        if isolation_level == "read_committed" and narrowed.aborted_transactions is None:
            aborted = aborted_transactions(resolved.log, resolved.start_offset, resolved.end_offset)
        return cls(resolved.log, resolved.start_offset, AbortedTransactions(aborted))


_Sources = dict[tuple[str, int], _Source]


def _locate_pieces(pieces: RangePieces, sources: _Sources, condition: Predicate | None) -> Iterator[SpanList]:
    """The spans of each piece that has any. A gap in the log, however large, is passed over at once."""
    source = sources[pieces.whole.topic, pieces.whole.partition]
    place: tuple[int, int] | None = None
    repetitions = 0
    next_index = 0
    while (index := _next_piece(pieces, next_index, condition)) < pieces.count:
        piece = pieces.piece(index)
        located = locate_spans(
            source.log,
            piece.start_offset,
            piece.end_offset,
            source.aborted,
            # Nobody else reports damage that begins in what a condition leaves out.
            is_first=piece.start_offset == source.start_offset or index > next_index,
        )
        spans = SpanList(located)
        next_index = index + 1
        # A piece in more than one segment is the last one in the first of them.
        before, place = place, (spans[0].base_offset, spans[0].position_bytes) if len(spans) == 1 else None
        repetitions = repetitions + 1 if place is not None and place == before else 0
        if spans:
            yield (
                spans
                if condition is None
                else SpanList(span for span in spans if _may_match(span, condition))
            )
        if next_index < pieces.count and (not spans or repetitions >= _MOST_REPETITIONS):
            # A gap, or a batch that claims more offsets than it may have records.
            next_offset = source.log.first_record_offset_at_or_after(piece.end_offset)
            if next_offset is None or next_offset >= pieces.whole.end_offset:
                return
            next_index = max(next_index, pieces.index_of(next_offset))


def _next_piece(pieces: RangePieces, index: int, condition: Predicate | None) -> int:
    """Index of the first piece from ``index`` on whose offsets a condition does not rule out; the count if none.

    There may be more pieces than can be asked one by one, so many are ruled out at once.
    """
    step = 1
    while condition is not None and index < pieces.count:
        last = min(index + step, pieces.count) - 1
        start_offset, end_offset = pieces.piece(index).start_offset, pieces.piece(last).end_offset
        part = PartitionRange(pieces.whole.topic, pieces.whole.partition, start_offset, end_offset)
        if not _may_match(part, condition):
            index = last + 1
            step *= 2
        elif step == 1:
            break
        else:
            step //= 2
    return index


def _may_match(part: PartitionRange | LogSpan, condition: Predicate) -> bool:
    """Whether offsets alone do not rule out a part of a partition: a condition may leave gaps between them."""
    known = KnownFields(part.topic, part.partition, part.start_offset, part.end_offset)
    return not prune(residual(condition, known)).is_empty


def _task_bytes(spans: SpanList) -> int:
    """The default size of a task: enough tasks for every core, none above 128 MiB."""
    cost_bytes = int(spans.sizes_bytes.sum()) + len(spans) * OPEN_COST_BYTES
    per_core_bytes = -(-cost_bytes // (os.cpu_count() or 1))
    return max(2 * OPEN_COST_BYTES, min(DEFAULT_TASK_BYTES, per_core_bytes))


def _cut(spans: SpanList, sources: _Sources, task_bytes: int) -> SpanList:
    if not (spans.sizes_bytes > task_bytes).any():
        return spans
    return SpanList(piece for span in spans for piece in _pieces(span, sources, task_bytes))


def _pieces(span: LogSpan, sources: _Sources, task_bytes: int) -> list[LogSpan]:
    if span.size_bytes <= task_bytes:
        return [span]
    log = sources[span.topic, span.partition].log
    index = log.segment_index_for(span.base_offset)
    assert index is not None  # noqa: S101  (the span was found in it)
    return log.ask(index, partial(cut_span, span, target_bytes=task_bytes))


def _pack(spans: SpanList, task_bytes: int, settings: ReadSettings, options: ReadOptions) -> list[ScanTask]:
    return pack_spans(spans, settings, task_bytes=task_bytes, task_records=options.max_records_per_partition)
