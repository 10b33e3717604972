"""Read directories into one table: the plan and its tasks in one process.

It is beside `storage_core.scan.read`, so that a task in another process loads nothing of the planning.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from storage_core.scan.plan import DEFAULT_TASK_BYTES, plan_scan
from storage_core.scan.read import read_schema, read_tasks
from storage_core.scan.typed_columns import plan_formats

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from storage_core.filesystem import ReadableFileSystem
    from storage_core.options import ReadOptions


_SMALL_BATCH_BYTES: Final = 64 << 10
_JOINED_BATCHES: Final = 1_000
_JOINED_BYTES: Final = 8 << 20


def read_records(filesystem: ReadableFileSystem, options: ReadOptions) -> pa.Table:
    """Read all records that the options ask for into one table, ordered by topic, partition and offset."""
    formats = plan_formats(filesystem, options)
    schema = read_schema(options, formats)
    if options.max_bytes_per_partition is None:
        # There is one task at a time: no segment has to be cut, which takes a look-up each.
        options = dataclasses.replace(options, max_bytes_per_partition=DEFAULT_TASK_BYTES)
    plan = plan_scan(filesystem, options, formats=formats)
    batches = read_tasks(filesystem, plan.tasks, schema)
    return pa.Table.from_batches(_with_small_ones_joined(batches), schema=schema)


def _with_small_ones_joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches: each takes kilobytes as well as its rows, and each tiny segment gives one."""
    small: list[pa.RecordBatch] = []
    small_bytes = 0
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
    if small:
        yield pa.concat_batches(small)
