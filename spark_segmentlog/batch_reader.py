"""The reader of a batch query: plans on the driver, reads in tasks.

Spark pickles the reader into every task before it calls `partitions`, so nothing that
planning finds may be kept on it: each task finds all that it needs in its partition.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_segmentlog.prefetch import prefetch
from storage_core.filesystem import FileSystem
from storage_core.scan import plan_scan, read_task
from storage_core.scan.schema import record_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spark_segmentlog.schema import ProjectedColumn
    from storage_core.scan import ReadOptions, ScanTask
    from storage_core.scan.predicate import Predicate

__all__ = ["SegmentLogReader"]


class SegmentLogReader(DataSourceReader):
    """Reads the records of a `load()` as Arrow batches."""

    def __init__(self, options: ReadOptions, columns: tuple[ProjectedColumn, ...]) -> None:
        self._options = options
        self._columns = columns
        self._predicate: Predicate | None = None

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read: one partition per task. Runs once per `load()`, on the driver."""
        plan = plan_scan(FileSystem(), self._options, self._predicate)
        return [InputPartition(task) for task in plan.tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition. Runs in tasks, and afresh for every attempt."""
        task: ScanTask | None = partition.value
        # Spark makes one partition without a value out of an empty plan.
        if task is None:
            return
        schema = _arrow_schema(self._columns, self._options)
        with contextlib.closing(prefetch(lambda: read_task(FileSystem(), task, schema))) as batches:
            yield from batches


def _arrow_schema(columns: tuple[ProjectedColumn, ...], options: ReadOptions) -> pa.Schema:
    """The schema that Spark compares batches with, nullable flags included."""
    records = record_schema(
        include_headers=True,
        include_metadata=True,
        corrupt_record_column=options.corrupt_record_column,
    )
    return pa.schema([records.field(column.name).with_nullable(column.nullable) for column in columns])
