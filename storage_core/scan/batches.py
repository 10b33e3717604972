"""Read a plan in one process: its tasks in threads, as one stream of batches in bounded memory.

It is beside `storage_core.scan.read`, so that a task in another process loads nothing of the planning.
"""

from __future__ import annotations

import dataclasses
import os
from itertools import islice
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from storage_core.errors import SegmentLogError
from storage_core.progress import Progress, advancing
from storage_core.record.batch_header import CODEC_NAMES, MAGIC_V2
from storage_core.scan.plan import DEFAULT_TASK_BYTES, ScanPlan, cut_tasks, plan_scan
from storage_core.scan.read import read_tasks
from storage_core.scan.read_ahead import read_ahead
from storage_core.scan.read_notes import ReadNotes
from storage_core.scan.span_reader import open_span
from storage_core.scan.typed_columns import plan_formats
from storage_core.segment.batch_walk import BatchWalk

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from storage_core.filesystem import ReadableFileSystem
    from storage_core.options import ReadOptions
    from storage_core.scan.spans import LogSpan, ScanTask


_SMALL_BATCH_BYTES: Final = 64 << 10
_JOINED_BATCHES: Final = 1_000
_JOINED_BYTES: Final = 8 << 20
# In smaller ones, a thread takes a third more processor time: it has no buffer in memory yet.
_TASK_BYTES: Final = 32 << 20
# Where requests take long, a task is as long as what is fetched ahead of it.
_COSTS_OF_A_TASK: Final = 16
# Batches are decompressed without the interpreter lock. Larger ones release it for long enough.
_LARGE_BATCH_BYTES: Final = 64 << 10
_PLACES_LOOKED_AT: Final = 4
_BATCHES_LOOKED_AT: Final = 8


def plan_records(filesystem: ReadableFileSystem, options: ReadOptions) -> ScanPlan:
    """Plan a read of records in this process.

    Raises:
        SegmentLogError: These directories cannot give what the options ask for.
    """
    formats = plan_formats(filesystem, options)
    if options.max_bytes_per_partition is None:
        # No segment has to be cut for other processes, which takes a look-up each.
        options = dataclasses.replace(options, max_bytes_per_partition=DEFAULT_TASK_BYTES)
    return plan_scan(filesystem, options, formats=formats)


def read_plan(
    filesystem: ReadableFileSystem,
    plan: ScanPlan,
    schema: pa.Schema,
    *,
    threads: int | None = None,
    progress: Progress = False,
    is_ahead: bool = True,
) -> Generator[pa.RecordBatch]:
    """Read the rows of a plan as `read_tasks` does, in threads.

    Args:
        filesystem: Where to read.
        plan: The tasks.
        schema: The columns to read.
        threads: How many threads decode; None for two where they are faster than one.
        progress: Takes how many bytes of log files were done since its last call; True to show it.
        is_ahead: Whether one thread reads ahead of the consumer. If not, the consumer's own thread reads.
    """
    with advancing(progress, plan.planned_bytes) as advance:
        threads = threads or _threads_that_pay(filesystem, plan, schema)
        tasks: Sequence[ScanTask] = plan.tasks
        if threads > 1 and tasks:
            cost_bytes = filesystem.traits_of(tasks[0].spans[0].directory).request_cost_bytes
            tasks = cut_tasks(filesystem, plan, max(_TASK_BYTES, _COSTS_OF_A_TASK * cost_bytes))
        notes = ReadNotes()
        try:
            yield from read_ahead(
                lambda task: read_tasks(filesystem, (task,), schema, notes),
                tasks,
                threads=threads if is_ahead or threads > 1 else 0,
                finished=lambda task: advance(task.size_bytes),
            )
        finally:
            notes.report()


def _threads_that_pay(filesystem: ReadableFileSystem, plan: ScanPlan, schema: pa.Schema) -> int:
    """Return 2 where two threads are faster than one, as the first batches of some tasks tell."""
    tasks = plan.tasks
    is_decoded = "key" in schema.names or "value" in schema.names
    is_long = sum(task.size_bytes for task in tasks[:2]) >= 2 * _TASK_BYTES
    if plan.formats or not is_decoded or not is_long or _cores() == 1:
        return 1
    chosen = tasks[:: -(-len(tasks) // _PLACES_LOOKED_AT)]
    return 2 if all(_has_large_batches(filesystem, task.spans[0]) for task in chosen) else 1


def _cores() -> int:
    # macOS does not tell which ones this process may use.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _has_large_batches(filesystem: ReadableFileSystem, span: LogSpan) -> bool:
    """Return True if decompression takes most of the time of a span's first batches, or they are large."""
    if filesystem.traits_of(span.directory).request_cost_bytes:
        # The time is that of requests, and one thread fetches several windows ahead.
        return False
    try:
        with open_span(filesystem, span) as opened:
            walk = BatchWalk(opened, span.base_offset, span.end_position_bytes)
            headers = list(islice(walk.batches(span.position_bytes), _BATCHES_LOOKED_AT))
    except SegmentLogError:
        return False
    mean_bytes = sum(header.size_bytes for header in headers) // max(len(headers), 1)
    is_gzip = {header.codec for header in headers} == {CODEC_NAMES.index("gzip")}
    is_new = all(header.magic == MAGIC_V2 for header in headers)
    return is_new and (is_gzip or mean_bytes >= _LARGE_BATCH_BYTES)


def join_small_batches(batches: Generator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
    """Join small batches: each takes kilobytes as well as its rows, and each tiny segment gives one."""
    small: list[pa.RecordBatch] = []
    small_bytes = 0
    error: SegmentLogError | None = None
    try:
        for batch in batches:
            size_bytes = batch.nbytes
            is_small = size_bytes < _SMALL_BATCH_BYTES
            if small and (
                not is_small or len(small) == _JOINED_BATCHES or small_bytes + size_bytes > _JOINED_BYTES
            ):
                yield pa.concat_batches(small)
                small, small_bytes = [], 0
            if is_small:
                small.append(batch)
                small_bytes += size_bytes
            else:
                yield batch
    except SegmentLogError as raised:
        # Rows before an error are still returned.
        error = raised
    finally:
        batches.close()
    if small:
        yield pa.concat_batches(small)
    if error is not None:
        raise error
