"""Views: what a log directory holds as tables, beside its records.

options → partitions and offset ranges → tasks of the view → its rows → those that meet the condition

Each view is defined in the module of its concept. Rows of a task are made wherever the task runs; the condition and the
choice of columns are applied here, alike for all views.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import Any, Final, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.directory import PartitionDirectory
from storage_core.directory.consistent import read_consistently
from storage_core.directory.visibility import CommitMonitor
from storage_core.errors import (
    DataLossError,
    LogDirectoryError,
    OptionError,
    SegmentLogError,
    UnreadableError,
)
from storage_core.filesystem import ReadableFileSystem
from storage_core.filesystem.values import MissingError
from storage_core.options import RECORDS, VIEWS, ReadOptions, options_of
from storage_core.options.bounds import OffsetsBound, TimestampsBound
from storage_core.options.keywords import ReadKeywords, with_options
from storage_core.options.predicate import And, IsNull, Not, Or, Predicate, columns_of
from storage_core.progress import Progress
from storage_core.record.batch_header import NO_TIMESTAMP_MS
from storage_core.scan.batch_reader import BatchReader
from storage_core.scan.batches import join_small_batches, plan_records, read_plan
from storage_core.scan.offset_ranges import PartitionRange
from storage_core.scan.pruning import conjunction
from storage_core.scan.read import read_schema, read_tasks
from storage_core.scan.read_ahead import read_ahead
from storage_core.scan.resolve import (
    directories_to_open,
    find_directories,
    resolve_partitions,
    select_partitions,
)
from storage_core.scan.row_filter import evaluate
from storage_core.scan.rows import LARGEST_TIMESTAMP_MS
from storage_core.scan.spans import project
from storage_core.tier import open_file_system
from storage_core.views.texts import escaped_surrogates

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
"""The type of timestamps in views, as of the records' own."""
_TEXTS: Final = pa.list_(pa.string())
_ROWS_PER_BATCH: Final = 16_384
VIEW_NAMES: Final = tuple(name for name in VIEWS if name != RECORDS)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a view."""

    name: str
    type: pa.DataType
    doc: str


PARTITION_COLUMNS: Final = (
    Column("topic", pa.string(), "The topic."),
    Column("partition", pa.int32(), "The partition."),
)
"""Which partition a row is about."""


@dataclass(frozen=True, slots=True)
class View:
    """A table that can be made of log directories.

    Attributes:
        doc: What a row is, in a sentence.
        plan: Makes tasks that can be read independently of each other, in other processes too. The options have the
            topics, bounds and condition that rule out partitions and offsets.
        read: Makes the rows of a task. Of the columns, whose names it is given, it may leave out or leave null those
            that are not wanted.
    """

    name: str
    doc: str
    columns: tuple[Column, ...]
    plan: Callable[[ReadableFileSystem, ReadOptions], Sequence[object]]
    read: Callable[[ReadableFileSystem, Any, frozenset[str]], Iterator[pa.RecordBatch]]

    @property
    def schema(self) -> pa.Schema:
        """All columns."""
        return pa.schema([(column.name, column.type) for column in self.columns])

    def column_of(self, name: str) -> str | None:
        """Return the column that a name in a condition means.

        Returns:
            Its name; None if the view has no such column.
        """
        names = VIEWS[self.name]
        meant = {"offset": names.offset, "timestamp": names.timestamp}.get(name)
        found = meant or name
        return found if found in self.schema.names else None


@dataclass(frozen=True, slots=True)
class ViewTask:
    """Rows of a view that one task makes: those for which the condition is true, if there is one."""

    view: str
    part: object
    condition: Predicate | None = None


def find_view(name: str) -> View:
    """Return the view of a name that `parse_read_options` accepted: ``<NAME>_VIEW`` of its module."""
    module = import_module(f"storage_core.views.{VIEWS[name].module or name}")
    view: View = getattr(module, f"{name.upper()}_VIEW")
    return view


def plan_view(filesystem: ReadableFileSystem, options: ReadOptions) -> list[ViewTask]:
    """Plan the tasks of the view that the options name.

    Raises:
        OptionError: The condition names a column that the view does not have.
        SegmentLogError: These directories cannot give what the options ask for.
    """
    view = find_view(options.view)
    check_condition(view, options.where)
    return [ViewTask(view.name, part, options.where) for part in view.plan(filesystem, options)]


def read_view_task(
    filesystem: ReadableFileSystem, task: ViewTask, schema: pa.Schema
) -> Generator[pa.RecordBatch]:
    """Yield the rows of a task that `plan_view` planned: record batches of exactly this schema, none empty."""
    view = find_view(task.view)
    wanted = frozenset(schema.names) | _columns_of(view, task.condition)
    for batch in view.read(filesystem, task.part, wanted):
        chosen = batch if task.condition is None else _matching(view, task.condition, batch)
        if chosen.num_rows:
            yield _with_columns(chosen, schema)


def view_schema(options: ReadOptions) -> pa.Schema:
    """Return the columns that ``columns`` chooses of the view that the options name.

    Raises:
        OptionError: The view has no such column.
    """
    return project(find_view(options.view).schema, options.columns)


@with_options
def read_batches(
    *paths: str | os.PathLike[str],
    filesystem: object = None,
    threads: int | None = None,
    progress: Progress = False,
    **options: Unpack[ReadKeywords],
) -> pa.RecordBatchReader:
    """Read log directories as a stream of batches: the rows of `read_table` in the same order, in bounded memory.

    DuckDB, Polars, pandas, DataFusion and all else that imports Arrow's C streams take the reader as it is. It takes at most
    300 MB of memory with one or two threads, however large the directory is, as long as a decompressed batch and its
    rows are below 16 MiB. Threads read ahead of the consumer. The reader ends them and closes its files after the last
    row, by ``close()``, at the end of a ``with`` block, or when it is dropped.

    Args:
        paths: Log directories, folders of them, or partition directories.
        filesystem: Where to read, as for `read_table`.
        threads: How many threads decode. None means two where they are faster than one (gzip, and batches of 64 KiB or more),
            and one elsewhere. Each thread beyond the second may take another 100 MB.
        progress: True shows the progress of a read of records on standard error. A function takes how many bytes of log files
            were read since its last call.
        options: Those of `read_table`.

    Raises:
        OptionError: An option is unknown or wrong.
        SegmentLogError: What is asked for cannot be read; also from ``read_next_batch`` of the reader.
    """
    return _open_reader(options_of(paths, options), filesystem, threads, progress, is_ahead=True)


def _open_reader(
    options: ReadOptions, filesystem: object, threads: Any, progress: Progress, *, is_ahead: bool
) -> BatchReader:
    """Plan a read; its one thread, if it has no more, is that of the consumer unless it reads ahead."""
    if threads is not None and not (isinstance(threads, int) and threads > 0):
        raise OptionError(f"threads: expected a number from 1 on, or None, found {threads!r}.")
    opened = open_file_system(options.storage, filesystem)
    if options.view == RECORDS:
        plan = plan_records(opened, options)
        schema = read_schema(options, plan.formats)
        batches = read_plan(opened, plan, schema, threads=threads, progress=progress, is_ahead=is_ahead)
    else:
        schema = view_schema(options)
        batches = read_ahead(
            lambda task: read_view_task(opened, task, schema),
            plan_view(opened, options),
            threads=threads or int(is_ahead),
        )
    return BatchReader(schema, join_small_batches(batches))


@with_options
def read_table(
    *paths: str | os.PathLike[str],
    filesystem: object = None,
    threads: int | None = None,
    progress: Progress = False,
    **options: Unpack[ReadKeywords],
) -> pa.Table:
    """Read log directories into one table: their records, ordered by topic, partition and offset, or another view.

    Args:
        paths: Log directories, folders of them, or partition directories.
        filesystem: Where to read: a `FileSystem`, whose ``statistics`` say afterwards what was read, or one of ``pyarrow.fs``
            or fsspec, through which URIs are read.
        threads: How many threads decode, as for `read_batches`.
        progress: True, or a function that is told the progress, as for `read_batches`.
        options: The read options of the Spark source in snake_case: ``subscribe="orders"``,
            ``starting_timestamp=...``, ``isolation_level="read_committed"``, ``columns=[...]``,
            ``where="key = 'k1'"`` (or a `Predicate`), ``view="batches"``.

    Returns:
        The columns of Spark's Kafka source: ``key``, ``value``, ``topic``, ``partition``,
        ``offset``, ``timestamp`` (microseconds, UTC), ``timestampType``; ``headers`` and
        ``_metadata`` if asked for; ``_corrupt_record`` with ``mode="PERMISSIVE"``. Of another view, its own columns.

    Raises:
        OptionError: An option is unknown or wrong.
        SegmentLogError: What is asked for cannot be read.
    """
    parsed = options_of(paths, options)
    with _open_reader(parsed, filesystem, threads, progress, is_ahead=False) as reader:
        return reader.read_all()


@with_options
def count_records(
    *paths: str | os.PathLike[str], filesystem: object = None, **options: Unpack[ReadKeywords]
) -> int:
    """Count the rows that `read_table` returns with the same arguments.

    The counts in batch headers are trusted, so damaged records count too. Batches are decoded only where headers do not
    tell: compressed messages of format v0 or v1, compacted batches that an offset bound cuts, and batches that a condition
    on keys, values or timestamps applies to. With ``mode="DROPMALFORMED"`` or ``"PERMISSIVE"``, all are decoded, because
    damage decides which rows there are.

    Raises:
        OptionError: An option is unknown or wrong.
        SegmentLogError: What is asked for cannot be read.
    """
    parsed = options_of(paths, options)
    opened = open_file_system(parsed.storage, filesystem)
    if parsed.view != RECORDS:
        column = pa.schema([view_schema(parsed).field(0)])
        parts = (read_view_task(opened, task, column) for task in plan_view(opened, parsed))
        return sum(len(batch) for part in parts for batch in part)
    by_headers = parsed.mode == "FAILFAST"
    if by_headers:
        parsed = dataclasses.replace(parsed, columns=("offset",))
    plan = plan_records(opened, parsed)
    schema = read_schema(parsed, plan.formats)
    return sum(len(batch) for batch in read_tasks(opened, plan.tasks, schema, by_headers=by_headers))


def batches_of_rows(columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> Iterator[pa.RecordBatch]:
    """Yield batches of rows, each with a value for each column.

    Timestamps are in milliseconds, null for -1 and where they do not fit. Bytes of a file name that are not UTF-8
    become escapes.
    """
    remaining = iter(rows)
    while chunk := list(islice(remaining, _ROWS_PER_BATCH)):
        values = zip(*chunk, strict=True)
        arrays = [_array(column.type, of_column) for column, of_column in zip(columns, values, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


def rows_read(
    columns: Sequence[Column],
    rows: Callable[[ReadableFileSystem, Any, frozenset[str]], Iterable[Sequence[Any]]],
) -> Callable[[ReadableFileSystem, Any, frozenset[str]], Iterator[pa.RecordBatch]]:
    """Make `View.read` of a function that makes rows for `batches_of_rows`."""
    return lambda filesystem, task, wanted: batches_of_rows(columns, rows(filesystem, task, wanted))


def _array(kind: pa.DataType, values: Sequence[Any]) -> pa.Array:
    if kind == TIMESTAMP:
        known_ms = [NO_TIMESTAMP_MS if value is None else value for value in values]
        return timestamps(np.array(known_ms, np.int64))
    if kind == pa.string():
        return pa.array([value if value is None else escaped_surrogates(value) for value in values], kind)
    if kind == _TEXTS:
        return pa.array(
            [value if value is None else [escaped_surrogates(each) for each in value] for value in values],
            kind,
        )
    return pa.array(values, kind)


def timestamps(
    timestamps_ms: npt.NDArray[Any], is_null: npt.NDArray[np.bool_] | None = None
) -> pa.TimestampArray:
    """Convert milliseconds to timestamps; null for -1, and where they do not fit."""
    native = timestamps_ms.astype(np.int64)
    is_absent = (
        (native == NO_TIMESTAMP_MS) | (native > LARGEST_TIMESTAMP_MS) | (native < -LARGEST_TIMESTAMP_MS)
    )
    if is_null is not None:
        is_absent |= is_null
    return pa.array(np.where(is_absent, 0, native) * 1000, mask=is_absent).cast(TIMESTAMP)


def resolved_ranges(
    filesystem: ReadableFileSystem,
    options: ReadOptions,
    *,
    with_internal_topics: bool = False,
    refused: Callable[[PartitionDirectory, LogDirectoryError], None] | None = None,
) -> tuple[PartitionRange, ...]:
    """Resolve the partitions that the options ask for, and the offsets of each. Look-ups skip damage.

    A partition that is deleted meanwhile is left out. ``refused`` takes each one in which something else has the name of a log
    file, and why; without it, that is an error. Internal topics may count although neither topics nor bounds name them.

    Raises:
        SegmentLogError: These directories cannot give what the options ask for.
    """
    tolerant = tolerating_damage(options)
    condition = _without_null_offsets(options.where)
    takes_all = with_internal_topics and not _names_partitions(options)

    def resolved(watch: CommitMonitor) -> tuple[PartitionRange, ...]:
        found = find_directories(filesystem, tolerant, watch)
        selected = found if takes_all else select_partitions(found, tolerant)
        return present_ranges(
            filesystem, directories_to_open(selected, tolerant, condition), tolerant, refused
        )

    return read_consistently(CommitMonitor(filesystem), resolved)


def _names_partitions(options: ReadOptions) -> bool:
    by_partition = (OffsetsBound, TimestampsBound)
    is_bounded = isinstance(options.starting, by_partition) or isinstance(options.ending, by_partition)
    return is_bounded or options.names_topics


def present_ranges(
    filesystem: ReadableFileSystem,
    directories: Iterable[PartitionDirectory],
    options: ReadOptions,
    refused: Callable[[PartitionDirectory, LogDirectoryError], None] | None = None,
) -> tuple[PartitionRange, ...]:
    """Resolve the offsets of partitions, as `resolved_ranges` does. Those that are deleted meanwhile are left out."""
    directories = list(directories)
    resolved = resolve_partitions(filesystem, directories, options)
    ranges = []
    for directory, found in zip(directories, resolved, strict=True):
        if isinstance(found, (MissingError, DataLossError)):
            if filesystem.status(directory.path) is not None:
                raise found
        elif isinstance(found, LogDirectoryError) and not isinstance(found, UnreadableError) and refused:
            refused(directory, found)
        elif isinstance(found, SegmentLogError):
            raise found
        else:
            ranges.append(found)
    return tuple(ranges)


def _without_null_offsets(condition: Predicate | None) -> Predicate | None:
    """Drop the parts of a condition that ask whether the offset is null: that of a record never is."""
    match condition:
        case And(children):
            return conjunction(*map(_without_null_offsets, children))
        case _:
            return None if _asks_for_null_offsets(condition) else condition


def _asks_for_null_offsets(condition: Predicate | None) -> bool:
    match condition:
        case And(children) | Or(children):
            return any(map(_asks_for_null_offsets, children))
        case Not(child):
            return _asks_for_null_offsets(child)
        case _:
            return condition == IsNull("offset")


def tolerating_damage(options: ReadOptions) -> ReadOptions:
    """Change options for a look at directories that may be damaged."""
    return dataclasses.replace(options, mode="DROPMALFORMED")


def check_condition(view: View, condition: Predicate | None) -> None:
    """Raise `OptionError` if a condition names a column that a view does not have."""
    for name in columns_of(condition) if condition else ():
        if view.column_of(name) is None:
            raise OptionError(
                f"The condition in where names {name}, and view={view.name} has no such column. Leave it out."
            )


def _columns_of(view: View, condition: Predicate | None) -> frozenset[str]:
    found = (view.column_of(name) for name in columns_of(condition)) if condition else ()
    return frozenset(name for name in found if name is not None)


def _matching(view: View, condition: Predicate, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Keep the rows for which a condition is true."""
    named = {name: batch.column(view.column_of(name)) for name in columns_of(condition)}
    if not named:
        # As `TRUE` or `NULL`.
        named = {"offset": pa.nulls(batch.num_rows, pa.int64())}
    return batch.filter(evaluate(condition, pa.RecordBatch.from_pydict(named)))


def _with_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a schema; those that the view left out are null."""
    present = frozenset(batch.schema.names)
    arrays = [
        batch.column(field.name) if field.name in present else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
