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
from storage_core.scan.predicate import columns_of, matching_rows
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
        with contextlib.closing(prefetch(lambda: self._batches(task))) as batches:
            yield from batches

    def _batches(self, task: ScanTask) -> Iterator[pa.RecordBatch]:
        schema = _arrow_schema(self._columns)
        if self._predicate is None:
            return read_task(FileSystem(), task, schema)
        return _matching_batches(task, schema, self._predicate)


def _matching_batches(task: ScanTask, schema: pa.Schema, predicate: Predicate) -> Iterator[pa.RecordBatch]:
    """Read the columns that the predicate needs besides, apply it, and drop them again."""
    records = record_schema(include_headers=True, include_metadata=True)
    widened = schema
    for name in sorted(columns_of(predicate) - set(schema.names)):
        widened = widened.append(records.field(name))
    for batch in read_task(FileSystem(), task, widened):
        matching = matching_rows(predicate, batch)
        if matching.num_rows:
            yield matching.select(schema.names)


def _arrow_schema(columns: tuple[ProjectedColumn, ...]) -> pa.Schema:
    """The schema that Spark compares batches with, nullable flags included."""
    records = record_schema(include_headers=True, include_metadata=True)
    return pa.schema([records.field(column.name).with_nullable(column.nullable) for column in columns])
