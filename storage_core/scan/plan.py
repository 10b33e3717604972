"""Plan a read on the driver: options → offset ranges → spans of segment files → tasks.

Large spans are cut at batches and small ones packed together, so that neither one huge segment nor
ten thousand small ones make a bad job.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeAlias

from storage_core.directory.consistent import read_consistently
from storage_core.directory.visibility import CommitMonitor
from storage_core.errors import OptionError
from storage_core.filesystem import absolute_path
from storage_core.options.bounds import warn_of_seconds
from storage_core.scan.isolation import AbortedTransactions, aborted_transactions
from storage_core.scan.offset_ranges import PartitionRange, RangePieces, locate_spans, split_ranges
from storage_core.scan.pruning import KnownFields, conjunction, prune, residual
from storage_core.scan.resolve import Resolution, resolve, split_paths
from storage_core.scan.spans import LogSpan, ReadSettings, ScanTask, SpanList
from storage_core.scan.time_pruning import prune_range, report_bytes_beyond

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from storage_core.filesystem import ReadableFileSystem
    from storage_core.options import ReadOptions
    from storage_core.options.predicate import Predicate
    from storage_core.segment import SegmentReader
    from storage_core.values.column_format import ColumnFormat

    Formats: TypeAlias = tuple[ColumnFormat, ...]


DEFAULT_TASK_BYTES: Final = 128 << 20
# Opening a file takes about as long as reading this many bytes.
OPEN_COST_BYTES: Final = 1 << 20


def cut_span(span: LogSpan, segment: SegmentReader, target_bytes: int) -> list[LogSpan]:
    """Cut a span at batches so that the pieces have about ``target_bytes``."""
    # If the file was replaced meanwhile, the task finds that out, and locates the offsets again.
    if span.size_bytes <= target_bytes or segment.version != span.version:
        return [span]
    pieces = []
    rest = span
    for header in segment.cut_points(span.position_bytes, span.end_position_bytes, target_bytes):
        # A batch that the span's start cuts off belongs to the piece before.
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
    spans: SpanList, settings: ReadSettings, *, task_bytes: int, task_records: int | None = None
) -> list[ScanTask]:
    """Pack spans into tasks in order, up to a size in bytes and, if given, in offsets."""
    tasks: list[ScanTask] = []
    start, room_bytes, room_records = 0, 0, 0
    for index, (size_bytes, records) in enumerate(zip(spans.sizes_bytes, spans.offset_counts, strict=True)):
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


# Some hundred bytes each.
_SPANS_AT_ONCE: Final = 1024
# After this many pieces in one batch, its records are looked at: it may claim more offsets than it has records.
_MOST_REPETITIONS: Final = 64


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """Tasks of a read, and the ranges of offsets that they cover.

    Attributes:
        tasks: To be read independently of each other.
        partitions: The offset range of each topic-partition that is read.
        resolution: What the options alone ask for, and which partitions are not read.
        formats: How columns are decoded.
    """

    tasks: tuple[ScanTask, ...]
    partitions: tuple[PartitionRange, ...]
    resolution: Resolution
    formats: Formats = ()

    @property
    def planned_bytes(self) -> int:
        """Number of bytes of log files that the tasks cover."""
        return sum(task.size_bytes for task in self.tasks)

    @property
    def planned_segments(self) -> int:
        """Number of segments that the tasks open."""
        spans = (span for task in self.tasks for span in task.spans)
        # Pieces of one segment are neighbours.
        return sum(1 for _ in groupby(spans, attrgetter("directory", "base_offset")))

    def total_bytes(self) -> int:
        """Sum the sizes of the log files of the chosen partitions, in bytes. Each file's size is looked up."""
        return sum(segment.size_bytes for each in self.partitions for segment in each.log.segments)

    @property
    def total_segments(self) -> int:
        """Number of segments that the chosen partitions have."""
        return sum(len(each.log.segments) for each in self.partitions)


def plan_scan(
    filesystem: ReadableFileSystem,
    options: ReadOptions,
    predicate: Predicate | None = None,
    *,
    formats: Formats | None = None,
) -> ScanPlan:
    """Plan a read.

    Args:
        filesystem: Where to look.
        options: What to read.
        predicate: A condition besides that of the options. What either rules out is not planned; the tasks apply
            both to each row.
        formats: How columns are decoded, from `plan_formats`. It may be left out if all are read as bytes.

    Raises:
        SegmentLogError: These directories cannot give what the options ask for.
    """
    warn_of_seconds(options.starting, options.ending)
    condition = conjunction(options.where, predicate)

    def plan(watch: CommitMonitor) -> ScanPlan:
        return _plan(filesystem, resolve(filesystem, options, condition, watch), options, condition, formats)

    return read_consistently(CommitMonitor(filesystem), plan)


def plan_ranges(
    filesystem: ReadableFileSystem,
    wanted: Sequence[PartitionRange],
    options: ReadOptions,
    *,
    formats: Formats | None = None,
) -> ScanPlan:
    """Plan the read of partitions whose offset ranges are known already.

    Raises:
        SegmentLogError: A partition cannot be read.
    """
    return _plan(filesystem, Resolution(tuple(wanted)), options, conjunction(options.where, None), formats)


def _plan(
    filesystem: ReadableFileSystem,
    resolution: Resolution,
    options: ReadOptions,
    condition: Predicate | None,
    formats: Formats | None,
) -> ScanPlan:
    if formats is None and options.typed_columns:
        choice = options.typed_columns[0]
        raise OptionError(
            f"{choice.column}Format={choice.format} has to be planned first: pass formats=plan_formats(filesystem, options)."
        )
    ranges = resolution.partitions
    if condition is not None:
        pruned = filesystem.map(partial(prune_range, condition=condition, options=options), ranges)
        ranges = tuple(each for each in pruned if not each.is_empty)
        report_bytes_beyond(ranges, condition, options)
    settings = _read_settings(filesystem, ranges, options, condition, formats or ())
    tasks = _plan_tasks(filesystem, ranges, options, condition, settings)
    return ScanPlan(tuple(tasks), ranges, resolution, settings.formats)


def _plan_tasks(
    filesystem: ReadableFileSystem,
    ranges: Sequence[PartitionRange],
    options: ReadOptions,
    condition: Predicate | None,
    settings: ReadSettings,
) -> list[ScanTask]:
    max_records = options.max_records_per_partition
    ranges = list(filesystem.map(partial(_with_aborted_transactions, options=options), ranges))
    by_partition = {(each.topic, each.partition): each for each in ranges}

    def located(split: list[RangePieces]) -> Iterator[Iterable[LogSpan]]:
        by_log = [list(pieces) for _, pieces in groupby(split, attrgetter("whole.log"))]
        return chain.from_iterable(filesystem.map(partial(_located, condition=condition), by_log))

    def tasks_of(spans: SpanList) -> list[ScanTask]:
        spans = _cut_spans(filesystem, spans, by_partition, task_bytes)
        return pack_spans(spans, settings, task_bytes=task_bytes, task_records=max_records)

    spans = SpanList(chain.from_iterable(located(split_ranges(ranges, None, max_records))))
    task_bytes = options.max_bytes_per_partition or _default_task_bytes(spans)
    tasks = tasks_of(spans)
    if options.min_partitions is not None and len(tasks) < options.min_partitions:
        # Fewer than asked for: split by offsets, in the proportions of Spark's Kafka source.
        split = split_ranges(ranges, options.min_partitions, max_records)
        tasks = [task for piece in located(split) for task in tasks_of(SpanList(piece))]
    return tasks


def _read_settings(
    filesystem: ReadableFileSystem,
    ranges: Sequence[PartitionRange],
    options: ReadOptions,
    condition: Predicate | None,
    formats: Formats,
) -> ReadSettings:
    directories = (each.log.directory for each in ranges)
    roots = {
        each.root.path: each.root for directory in directories for each in (directory, *directory.copies)
    }
    return ReadSettings(
        options.max_decompressed_batch_bytes,
        options.fail_on_data_loss,
        ignore_checkpoints=options.ignore_checkpoints,
        use_indexes=options.use_indexes,
        predicate=condition,
        mode=options.mode,
        corrupt_record_column=options.corrupt_record_column,
        # Where files do not change, no truncation is seen while they are read.
        truncations_bytes=tuple(
            (path, root.visibility.truncations_bytes)
            for path, root in roots.items()
            if not filesystem.traits_of(path).are_files_fixed
        ),
        formats=formats,
        storage=options.storage,
        remote_storage=tuple(map(absolute_path, split_paths(filesystem, options.remote_storage or ()))),
    )


def _with_aborted_transactions(wanted: PartitionRange, options: ReadOptions) -> PartitionRange:
    if options.isolation_level != "read_committed" or wanted.aborted is not None:
        return wanted
    aborted = aborted_transactions(wanted.log, wanted.start_offset, wanted.end_offset)
    return dataclasses.replace(wanted, aborted=AbortedTransactions(aborted))


def _located(split: Iterable[RangePieces], condition: Predicate | None) -> Iterator[Iterable[LogSpan]]:
    """Locate pieces of one log: the first spans at once, so that other threads locate those of other logs meanwhile."""
    spans = (spans for pieces in split for spans in _locate_pieces(pieces, condition))
    first: list[Iterable[LogSpan]] = []
    room = _SPANS_AT_ONCE
    for each in spans:
        found = iter(each)
        head = list(islice(found, room))
        room -= len(head)
        if head:
            first.append(chain(head, found))
        if not room:
            break
    return chain(first, spans)


def _locate_pieces(pieces: RangePieces, condition: Predicate | None) -> Iterator[Iterable[LogSpan]]:
    """Locate each piece that has records. A gap in the log, however large, is skipped at once."""
    place: tuple[int, int] | None = None
    repetitions = 0
    next_index = 0
    while (index := _next_piece(pieces, next_index, condition)) < pieces.count:
        piece = pieces.piece(index)
        if index > next_index:
            # No other piece reports damage that begins in what the condition rules out.
            piece = dataclasses.replace(piece, is_first=True)
        spans = locate_spans(piece)
        first = list(islice(spans, 2))
        next_index = index + 1
        # A piece in several segments is the last one in the first of them.
        before, place = place, (first[0].base_offset, first[0].position_bytes) if len(first) == 1 else None
        repetitions = repetitions + 1 if place is not None and place == before else 0
        if first:
            found = chain(first, spans)
            yield (span for span in found if condition is None or _may_match(span, condition))
        if next_index < pieces.count and (not first or repetitions >= _MOST_REPETITIONS):
            # A gap, or a batch that claims more offsets than it may have records.
            next_offset = piece.log.first_record_offset_at_or_after(piece.end_offset)
            if next_offset is None or next_offset >= pieces.whole.end_offset:
                return
            next_index = max(next_index, pieces.index_of(next_offset))


def _next_piece(pieces: RangePieces, index: int, condition: Predicate | None) -> int:
    """Find the first piece from ``index`` on whose offsets a condition does not rule out.

    There may be more pieces than can be tested one by one: runs of them are tested at once, each
    twice as long as the one before while all are ruled out.
    """
    step = 1
    while condition is not None and index < pieces.count:
        last = min(index + step, pieces.count) - 1
        run = pieces.whole.part(pieces.piece(index).start_offset, pieces.piece(last).end_offset)
        if not _may_match(run, condition):
            index = last + 1
            step *= 2
        elif step == 1:
            break
        else:
            step //= 2
    return index


def _may_match(part: PartitionRange | LogSpan, condition: Predicate) -> bool:
    """Return True if offsets alone do not rule out a part of a partition: a condition may leave gaps between them."""
    known = KnownFields(part.topic, part.partition, part.start_offset, part.end_offset)
    return not prune(residual(condition, known)).is_empty


def cut_tasks(filesystem: ReadableFileSystem, plan: ScanPlan, task_bytes: int) -> list[ScanTask]:
    """Cut the tasks of a plan, at least one, into smaller ones in the same order. Segments are cut at batches."""
    by_partition = {(each.topic, each.partition): each for each in plan.partitions}
    spans = SpanList(chain.from_iterable(task.spans for task in plan.tasks))
    spans = _cut_spans(filesystem, spans, by_partition, task_bytes)
    return pack_spans(spans, plan.tasks[0].settings, task_bytes=task_bytes)


def _default_task_bytes(spans: SpanList) -> int:
    """Choose a size in bytes that gives every core a task, of 128 MiB at most."""
    cost_bytes = sum(spans.sizes_bytes) + len(spans) * OPEN_COST_BYTES
    per_core_bytes = -(-cost_bytes // (os.cpu_count() or 1))
    return max(2 * OPEN_COST_BYTES, min(DEFAULT_TASK_BYTES, per_core_bytes))


def _cut_spans(
    filesystem: ReadableFileSystem,
    spans: SpanList,
    by_partition: dict[tuple[str, int], PartitionRange],
    task_bytes: int,
) -> SpanList:
    if max(spans.sizes_bytes, default=0) <= task_bytes:
        return spans

    def pieces(span: LogSpan) -> list[LogSpan]:
        if span.size_bytes <= task_bytes:
            return [span]
        log = by_partition[span.topic, span.partition].log
        index = log.segment_index_for(span.start_offset)
        assert index is not None  # noqa: S101  (the span was located in it)
        return log.read_segment(index, partial(cut_span, span, target_bytes=task_bytes))

    return SpanList(chain.from_iterable(filesystem.map(pieces, spans)))
