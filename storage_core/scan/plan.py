"""Plan a read: options → offset ranges → spans → tasks. Runs once, where the read is started."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from storage_core.errors import DataLossError
from storage_core.scan.isolation import aborted_transactions
from storage_core.scan.locate import locate_spans
from storage_core.scan.pruning import prune
from storage_core.scan.ranges import PartitionRange, split_ranges
from storage_core.scan.resolve import ResolvedPartition, resolve
from storage_core.scan.spans import LogSpan, ReadSettings, ScanTask
from storage_core.scan.split import DEFAULT_TASK_BYTES, OPEN_COST_BYTES, cut_span, pack_spans

if TYPE_CHECKING:
    from storage_core.directory import PartitionLog
    from storage_core.filesystem import FileSystem
    from storage_core.scan.options import ReadOptions
    from storage_core.scan.predicate import Predicate
    from storage_core.scan.pruning import Bounds
    from storage_core.segment import AbortedTransaction

__all__ = ["ScanPlan", "plan_scan"]

# How often a read of a live directory is planned anew before it fails.
_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """What a read will touch.

    Attributes:
        tasks: To be read independently of each other.
        partitions: The offset range of each topic-partition.
    """

    tasks: tuple[ScanTask, ...]
    partitions: tuple[ResolvedPartition, ...]

    @property
    def planned_bytes(self) -> int:
        """How many bytes of log files the tasks cover."""
        return sum(task.size_bytes for task in self.tasks)

    @property
    def planned_segments(self) -> int:
        """How many segments the tasks open."""
        spans = [span for task in self.tasks for span in task.spans]
        return len({(span.directory, span.base_offset) for span in spans})

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
        predicate: A condition that is applied to the rows later; what it rules out is not planned.

    Raises:
        SegmentLogError: Whatever of the options cannot be had from these directories.
    """
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            return _plan(filesystem, options, predicate)
        except DataLossError:
            # Retention or a cleaner was faster than the planning; a new listing shows what there is now.
            if not attempts_left:
                raise
    raise AssertionError


def _plan(filesystem: FileSystem, options: ReadOptions, predicate: Predicate | None) -> ScanPlan:
    partitions = resolve(filesystem, options)
    if predicate is not None:
        partitions = _narrow(partitions, prune(predicate))
    return ScanPlan(tuple(_split(partitions, options)), partitions)


def _narrow(partitions: tuple[ResolvedPartition, ...], bounds: Bounds) -> tuple[ResolvedPartition, ...]:
    narrowed = []
    for each in partitions:
        if not bounds.includes(each.log.topic, each.log.partition):
            continue
        start_offset, end_offset = each.start_offset, each.end_offset
        if bounds.offset_start is not None:
            start_offset = max(start_offset, bounds.offset_start)
        if bounds.offset_end is not None:
            end_offset = min(end_offset, bounds.offset_end)
        if bounds.timestamp_start_ms is not None and bounds.timestamp_start_ms >= 0:
            # Every record in front of the first one that is young enough is older. Finding none
            # proves nothing: a segment without timestamps is judged by its file's age.
            found = each.log.offset_for_timestamp(bounds.timestamp_start_ms)
            if found is not None:
                start_offset = max(start_offset, found.offset)
        if start_offset < end_offset:
            narrowed.append(ResolvedPartition(each.log, start_offset, end_offset))
    return tuple(narrowed)


def _split(partitions: tuple[ResolvedPartition, ...], options: ReadOptions) -> list[ScanTask]:
    sources = {
        (each.log.topic, each.log.partition): _Source.of(each, options.isolation_level) for each in partitions
    }
    ranges = [
        PartitionRange(each.log.topic, each.log.partition, each.start_offset, each.end_offset)
        for each in partitions
    ]
    ranges = split_ranges(ranges, None, options.max_records_per_partition)
    spans = _locate(ranges, sources)
    task_bytes = options.max_bytes_per_partition or _task_bytes(spans)
    tasks = _pack(_cut(spans, sources, task_bytes), task_bytes, options)
    if options.min_partitions is not None and len(tasks) < options.min_partitions:
        # Fewer than asked for: split by offsets, in the proportions of Spark's Kafka source.
        ranges = split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
        pieces = [_cut(_locate([each], sources), sources, task_bytes) for each in ranges]
        tasks = [task for piece in pieces for task in _pack(piece, task_bytes, options)]
    return tasks


@dataclass(frozen=True, slots=True)
class _Source:
    """A partition's log, and what its spans have to know of transactions."""

    log: PartitionLog
    aborted_transactions: tuple[AbortedTransaction, ...]

    @classmethod
    def of(cls, resolved: ResolvedPartition, isolation_level: str) -> Self:
        aborted: tuple[AbortedTransaction, ...] = ()
        if isolation_level == "read_committed":
            aborted = aborted_transactions(resolved.log, resolved.start_offset, resolved.end_offset)
        return cls(resolved.log, aborted)


_Sources = dict[tuple[str, int], _Source]


def _locate(ranges: list[PartitionRange], sources: _Sources) -> list[LogSpan]:
    spans = []
    for each in ranges:
        source = sources[each.topic, each.partition]
        spans += locate_spans(source.log, each.start_offset, each.end_offset, source.aborted_transactions)
    return spans


def _task_bytes(spans: list[LogSpan]) -> int:
    """The default size of a task: enough tasks for every core, none above 128 MiB."""
    cost_bytes = sum(span.size_bytes + OPEN_COST_BYTES for span in spans)
    per_core_bytes = -(-cost_bytes // (os.cpu_count() or 1))
    return max(2 * OPEN_COST_BYTES, min(DEFAULT_TASK_BYTES, per_core_bytes))


def _cut(spans: list[LogSpan], sources: _Sources, task_bytes: int) -> list[LogSpan]:
    pieces = []
    for span in spans:
        if span.size_bytes <= task_bytes:
            pieces.append(span)
            continue
        log = sources[span.topic, span.partition].log
        index = log.segment_index_for(span.base_offset)
        assert index is not None  # noqa: S101  (the span was found in it)
        pieces += log.ask(index, partial(cut_span, span, target_bytes=task_bytes))
    return pieces


def _pack(spans: list[LogSpan], task_bytes: int, options: ReadOptions) -> list[ScanTask]:
    settings = ReadSettings(
        options.max_decompressed_batch_bytes, options.fail_on_data_loss, options.use_indexes
    )
    return pack_spans(spans, settings, task_bytes=task_bytes, task_records=options.max_records_per_partition)
