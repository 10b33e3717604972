"""The package under test, called as Spark's reader and `read_table` call it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from storage_core.filesystem import FileSystem
from storage_core.options import parse_read_options
from storage_core.scan.plan import ScanPlan, plan_scan
from storage_core.scan.read import read_task
from storage_core.scan.spans import ScanTask, project, record_schema

if TYPE_CHECKING:
    import pyarrow as pa


def plan_read(filesystem: FileSystem, path: Path, **options: object) -> ScanPlan:
    """Plan a read of ``path``; further options by their documented names or in snake_case."""
    return plan_scan(filesystem, parse_read_options({"path": str(path), **options}))


def task_batches(
    filesystem: FileSystem, task: ScanTask, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Return the rows of one task: all seven columns, or those named."""
    schema = project(record_schema(), None if columns is None else tuple(columns))
    return read_task(filesystem, task, schema)


def count_rows(
    filesystem: FileSystem, path: Path, columns: Sequence[str] | None = None, /, **options: object
) -> int:
    """Plan and read to the end, task by task; the number of rows."""
    return sum(
        batch.num_rows
        for task in plan_read(filesystem, path, **options).tasks
        for batch in task_batches(filesystem, task, columns)
    )
