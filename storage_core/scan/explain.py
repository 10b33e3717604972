"""`explain`: what a read would open, read and pass over, without reading it."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from storage_core.errors import CorruptError, UnsupportedFormatError
from storage_core.filesystem import FileSystem, IoStatistics
from storage_core.scan.explanation import (
    PartitionExplanation,
    ScanExplanation,
    ScanTotals,
    SpanExplanation,
    TaskExplanation,
)
from storage_core.scan.plan import plan_scan
from storage_core.scan.table import options_of

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from storage_core.directory import PartitionDirectory, PartitionLog
    from storage_core.scan.plan import ScanPlan
    from storage_core.scan.resolve import ResolvedPartition
    from storage_core.scan.spans import LogSpan
    from storage_core.segment import SegmentReader

__all__ = ["explain", "explain_plan"]

_NOT_ASKED_FOR = "the options do not ask for it"
_RULED_OUT = "the condition rules it out"
_NOTHING_LEFT = "the condition leaves none of the offsets"
_NOTHING_THERE = "there are no offsets in the range asked for"

_Numbered = tuple[int, "LogSpan"]


def explain(
    *paths: str | os.PathLike[str], filesystem: FileSystem | None = None, **options: object
) -> ScanExplanation:
    """Plan a read as `read_table` does, and say what it would open and skip.

    Headers are walked to count the batches, which reads more than planning does.

    Args:
        paths: Log directories, folders of them, or partition directories.
        filesystem: Where to look.
        options: As for `read_table`.

    Raises:
        OptionError: An option is unknown or wrong.
        SegmentLogError: What is asked for cannot be had.
    """
    filesystem = filesystem or FileSystem()
    parsed = options_of(paths, options)
    before = dataclasses.replace(filesystem.statistics)
    plan = plan_scan(filesystem, parsed)
    planning = IoStatistics(
        **{
            field.name: getattr(filesystem.statistics, field.name) - getattr(before, field.name)
            for field in dataclasses.fields(IoStatistics)
        }
    )
    return explain_plan(plan, planning)


def explain_plan(plan: ScanPlan, planning: IoStatistics) -> ScanExplanation:
    """Say what a plan opens and skips.

    Args:
        plan: The plan.
        planning: What making it has asked of the file system.
    """
    spans: defaultdict[tuple[str, int], list[_Numbered]] = defaultdict(list)
    for number, task in enumerate(plan.tasks):
        for span in task.spans:
            spans[span.topic, span.partition].append((number, span))
    read = {(each.log.topic, each.log.partition): each for each in plan.partitions}
    partitions = [
        _partition(resolved, read.get(name), spans[name])
        for resolved in plan.resolution.partitions
        for name in [(resolved.log.topic, resolved.log.partition)]
    ]
    partitions += [_not_looked_at(each, _NOT_ASKED_FOR) for each in plan.resolution.not_asked_for]
    partitions += [_not_looked_at(each, _RULED_OUT) for each in plan.resolution.ruled_out]
    partitions.sort(key=lambda each: (each.topic, each.partition))
    tasks = _tasks(plan, partitions)
    return ScanExplanation(tuple(partitions), tasks, _totals(partitions, tasks), planning)


def _not_looked_at(directory: PartitionDirectory, reason: str) -> PartitionExplanation:
    return PartitionExplanation(directory.topic, directory.partition, directory.path, reason)


def _partition(
    resolved: ResolvedPartition, read: ResolvedPartition | None, numbered: Sequence[_Numbered]
) -> PartitionExplanation:
    log = resolved.log
    skipped = None
    if not numbered:
        skipped = _NOTHING_THERE if resolved.start_offset >= resolved.end_offset else _NOTHING_LEFT
        if read is not None and read == resolved:
            # Offsets in which there is no batch.
            skipped = _NOTHING_THERE
    bases = log.segments.base_offsets
    opened = sorted({log.segment_index_for(span.base_offset) or 0 for _, span in numbered})
    return PartitionExplanation(
        log.topic,
        log.partition,
        log.path,
        skipped,
        log.log_start_offset,
        _log_end_offset(log),
        resolved.start_offset,
        resolved.end_offset,
        None if read is None else read.start_offset,
        None if read is None else read.end_offset,
        len(bases),
        len(opened),
        opened[0] if opened else 0,
        len(bases) - 1 - opened[-1] if opened else 0,
        sum(log.ask(index, lambda segment: segment.size_bytes) for index in range(len(bases))),
        _spans(log, numbered),
    )


def _log_end_offset(log: PartitionLog) -> int | None:
    try:
        return log.log_end_offset
    except (CorruptError, UnsupportedFormatError):
        return None


def _spans(log: PartitionLog, numbered: Sequence[_Numbered]) -> tuple[SpanExplanation, ...]:
    explained = []
    for place, (number, span) in enumerate(numbered):
        index = log.segment_index_for(span.base_offset) or 0
        size_bytes = log.ask(index, lambda segment: segment.size_bytes)
        before = numbered[place - 1][1] if place else None
        is_last = place + 1 == len(numbered) or numbered[place + 1][1].base_offset != span.base_offset
        read_before_bytes = 0
        if before is not None and before.base_offset == span.base_offset:
            read_before_bytes = before.end_position_bytes
        explained.append(
            SpanExplanation(
                f"{span.directory}/{span.file_name}",
                size_bytes,
                span.position_bytes,
                span.end_position_bytes,
                max(span.position_bytes - read_before_bytes, 0),
                max(size_bytes - span.end_position_bytes, 0) if is_last else 0,
                span.start_offset,
                span.end_offset,
                log.ask(index, partial(_batches, span=span)),
                number,
            )
        )
    return tuple(explained)


def _batches(segment: SegmentReader, span: LogSpan) -> int:
    """How many batches a span holds, as far as they can be walked."""
    count = 0
    try:
        for _ in segment.batches(span.position_bytes, span.end_position_bytes):
            count += 1
    except (CorruptError, UnsupportedFormatError):
        pass
    return count


def _tasks(plan: ScanPlan, partitions: Sequence[PartitionExplanation]) -> tuple[TaskExplanation, ...]:
    batches = [0] * len(plan.tasks)
    for partition in partitions:
        for span in partition.spans:
            batches[span.task] += span.batches
    return tuple(
        TaskExplanation(len(task.spans), task.size_bytes, count)
        for task, count in zip(plan.tasks, batches, strict=True)
    )


def _totals(partitions: Sequence[PartitionExplanation], tasks: Sequence[TaskExplanation]) -> ScanTotals:
    return ScanTotals(
        len(partitions),
        sum(bool(each.spans) for each in partitions),
        sum(each.segments or 0 for each in partitions),
        sum(each.segments_opened for each in partitions),
        sum(task.spans for task in tasks),
        len(tasks),
        sum(each.total_bytes or 0 for each in partitions),
        sum(each.planned_bytes for each in partitions),
        sum(task.batches for task in tasks),
    )
