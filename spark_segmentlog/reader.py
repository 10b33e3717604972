"""The readers of a batch query: they plan on the driver, and read in tasks.

Spark pickles the reader into every task before it calls `partitions`, so it cannot carry the result of
planning: each task gets all that it needs in its partition.

Spark takes a task's batches through a socket, row by row on its side, which costs more than decoding. A
thread decodes a batch or two ahead meanwhile, because the socket releases the interpreter lock.

With ``filterPushdown=true``, filters of ``df.filter(...)`` become predicates and join the option ``where``.
It is opt-in, because Spark 4.1 to 4.3 reuse the plan of a filtered scan for other scans of the same
``load()``, which then lack rows. Every filter is also returned to Spark, which applies it again.
"""

from __future__ import annotations

import contextlib
import os
import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_segmentlog.tracebacks import raises_without_frames, without_frames
from spark_segmentlog.workers import SentToWorkers, explained_memory_limit, main_module, require_directories
from storage_core import views
from storage_core.errors import OptionError, SegmentLogError
from storage_core.options import RECORDS
from storage_core.options.predicate import (
    And,
    Comparison,
    In,
    IsNull,
    Not,
    Operator,
    Predicate,
    StartsWith,
    columns_of,
)
from storage_core.scan import ReadOptions, ScanTask, plan_scan, read_task
from storage_core.scan.read_ahead import read_ahead
from storage_core.scan.resolve import split_paths
from storage_core.scan.spans import record_schema, typed_schema
from storage_core.tier import open_file_system

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql.datasource import Filter

    from spark_segmentlog.schema import ProjectedColumn
    from storage_core.values.column_format import ColumnFormat


# About two batches of a full size.
_AHEAD_BYTES: Final = 16 << 20


class BatchReader(SentToWorkers, DataSourceReader):
    """Base of the readers of a batch query."""

    def __init__(
        self,
        options: ReadOptions,
        columns: tuple[ProjectedColumn, ...],
        formats: tuple[ColumnFormat, ...] = (),
    ) -> None:
        super().__init__()
        self._options = options
        self._columns = columns
        self._formats = formats


class SegmentLogReader(BatchReader):
    """Reads the records of a `load()` as Arrow batches."""

    # The filters that Spark has pushed.
    _predicate: Predicate | None = None

    @raises_without_frames
    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read: one partition per task. Runs once per `load()`, on the driver."""
        plan = plan_scan(
            open_file_system(self._options.storage), self._options, self._predicate, formats=self._formats
        )
        return [InputPartition(task) for task in plan.tasks]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read one partition. Runs in tasks, once for every attempt."""
        # For an empty plan, Spark runs one task: before 4.2 without a partition, later with one without a value.
        task: ScanTask | None = None if partition is None else partition.value
        if task is None:
            return iter(())
        return read_records_of(task, arrow_schema(self._columns, self._options), self._planned_on)


def read_records_of(task: ScanTask, schema: pa.Schema, planned_on: str) -> Iterator[pa.RecordBatch]:
    """Read the records of a task that was planned on a host, which may be another one."""
    schema = typed_schema(schema, task.settings.formats)
    try:
        # Not the partitions: what was deleted since planning is for failOnDataLoss to judge.
        roots = {os.path.dirname(span.directory) for span in task.spans}
        filesystem = open_file_system(task.settings.storage)
        require_directories(filesystem, roots, planned_on)
        batches = read_ahead(partial(read_task, filesystem, schema=schema), [task], room_bytes=_AHEAD_BYTES)
        with explained_memory_limit(), contextlib.closing(batches):
            yield from batches
    except SegmentLogError as error:
        raise without_frames(error) from None


def arrow_schema(columns: tuple[ProjectedColumn, ...], options: ReadOptions) -> pa.Schema:
    """Return the schema that Spark expects of batches, with its nullable flags."""
    if options.view == RECORDS:
        known = record_schema(
            include_headers=True,
            include_metadata=True,
            corrupt_record_column=options.corrupt_record_column,
        )
    else:
        known = views.find_view(options.view).schema
    return pa.schema([known.field(column.name).with_nullable(column.nullable) for column in columns])


class ViewReader(BatchReader):
    """Reads a view that is not the records."""

    @raises_without_frames
    def partitions(self) -> Sequence[InputPartition]:
        """Plan the view: one partition per task, with the directories that it looks into."""
        filesystem = open_file_system(self._options.storage)
        paths = split_paths(filesystem, self._options.paths)
        return [InputPartition((paths, task)) for task in views.plan_view(filesystem, self._options)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Make the rows of one partition."""
        # For an empty plan, Spark runs one task without anything to do.
        if partition is None or partition.value is None:
            return
        paths, task = partition.value
        try:
            filesystem = open_file_system(self._options.storage)
            require_directories(filesystem, set(paths), self._planned_on, may_be_empty=True)
            with explained_memory_limit():
                yield from views.read_view_task(filesystem, task, arrow_schema(self._columns, self._options))
        except SegmentLogError as error:
            raise without_frames(error) from None


_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"
_COLUMNS: Final = frozenset({"topic", "partition", "offset", "timestamp", "key"})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# By the names of Spark's classes, which do not exist before PySpark 4.1.
_COMPARISONS: Final[dict[str, Operator]] = {
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}


def is_pushdown_offered() -> bool:
    """Return True if this process is the one in which Spark passes filters to a reader.

    If pushdown is off in Spark's configuration, Spark fails every read whose reader takes filters,
    even without any. The configuration is not visible here. But Spark plans filtered scans in a
    separate worker program, and only if pushdown is on. If a later Spark renames that program,
    filters are not pushed, and Spark applies them.
    """
    # Without Spark's worker daemon, the program is the main module of this process.
    return _PUSHDOWN_WORKER in sys.modules or main_module() == _PUSHDOWN_WORKER


class PushdownReader(SegmentLogReader):
    """A reader that takes filters, as the method tells Spark."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Keep the filters that can be translated, and return all of them to Spark."""
        # What is compared is bytes, as the condition of the option `where` is.
        typed = {each.column for each in self._formats}
        translated = (to_predicate(each) for each in filters)
        predicates = [each for each in translated if each is not None and typed.isdisjoint(columns_of(each))]
        if predicates:
            self._predicate = And(tuple(predicates))
        return filters


def to_predicate(pushed: Any) -> Predicate | None:
    """Translate one of Spark's filters exactly.

    Returns:
        The predicate; None if none expresses the filter.
    """
    if type(pushed).__name__ == "Not":
        child = to_predicate(pushed.child)
        return None if child is None else Not(child)
    path: Sequence[str] = pushed.attribute
    if len(path) != 1 or path[0] not in _COLUMNS:
        return None
    try:
        return _column_predicate(path[0], pushed)
    except OptionError:
        # The value has another type than the column: left to Spark.
        return None


def _column_predicate(column: str, pushed: Any) -> Predicate | None:
    kind = type(pushed).__name__
    if kind in _COMPARISONS:
        return Comparison(column, _COMPARISONS[kind], _value(pushed.value))
    is_null = IsNull(column)
    predicate: Predicate | None = None
    match kind:
        case "IsNull":
            predicate = is_null
        case "IsNotNull":
            predicate = Not(is_null)
        case "EqualNullSafe" if pushed.value is None:
            predicate = is_null
        case "EqualNullSafe":
            predicate = And((Not(is_null), Comparison(column, "=", _value(pushed.value))))
        case "In":
            predicate = In(column, tuple(map(_value, pushed.value)))
        case "StringStartsWith":
            predicate = StartsWith(column, pushed.value)
    return predicate


def _value(value: Any) -> Any:
    """Convert Spark's value to the unit of the column. The predicate checks its type."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise OptionError(f"Expected a timestamp with a time zone, found {value!r}.")
        return (value - _EPOCH) // timedelta(microseconds=1)
    return bytes(value) if isinstance(value, bytearray) else value
