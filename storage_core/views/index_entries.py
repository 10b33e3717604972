"""The view ``index``: the entries of a segment's indexes, and whether the log agrees with each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.filesystem import ReadableFileSystem
from storage_core.options import ReadOptions
from storage_core.scan.offset_ranges import PartitionRange
from storage_core.views.index_comparison import (
    DAMAGED,
    FINE,
    PROBLEMS,
    TIME,
    IndexComparison,
    compare_indexes,
)
from storage_core.views.segments import SegmentFile, segment_files
from storage_core.views.view import PARTITION_COLUMNS, TIMESTAMP, Column, View, resolved_ranges, timestamps

_MAX_ROWS: Final = 65_536
_SEGMENTS_IN_A_TASK: Final = 32


@dataclass(frozen=True, slots=True)
class IndexTask:
    """Some segments of a partition, and the bounds of the index entries that are listed; None for no bound."""

    segments: tuple[SegmentFile, ...]
    start_offset: int | None
    end_offset: int | None
    max_batch_bytes: int


def _plan(filesystem: ReadableFileSystem, options: ReadOptions) -> list[IndexTask]:
    return [
        task
        for wanted in resolved_ranges(filesystem, options)
        for task in _tasks_of(wanted, options.max_decompressed_batch_bytes)
    ]


def _tasks_of(wanted: PartitionRange, max_batch_bytes: int) -> Iterator[IndexTask]:
    log = wanted.log
    # Entries outside the log, which are wrong, are listed too unless the options give a bound.
    start_offset = wanted.start_offset if wanted.start_offset > log.log_start_offset else None
    end_offset = wanted.end_offset if wanted.end_offset < log.log_end_offset else None
    chosen = [
        file
        for file in segment_files(log)
        if (start_offset is None or file.end_offset is None or file.end_offset > start_offset)
        and (end_offset is None or file.base_offset < end_offset)
    ]
    for first in range(0, len(chosen), _SEGMENTS_IN_A_TASK):
        files = tuple(chosen[first : first + _SEGMENTS_IN_A_TASK])
        yield IndexTask(files, start_offset, end_offset, max_batch_bytes)


def _read(
    filesystem: ReadableFileSystem, task: IndexTask, _wanted: frozenset[str]
) -> Iterator[pa.RecordBatch]:
    for file in task.segments:
        segment = file.reader(filesystem, skip_damage=True, max_batch_bytes=task.max_batch_bytes)
        try:
            compared = compare_indexes(filesystem, segment)
        except FileNotFoundError:
            # A live broker deletes old segments.
            continue
        for index in compared.indexes:
            yield from _batches_of(task, file, index)


def _batches_of(task: IndexTask, file: SegmentFile, index: IndexComparison) -> Iterator[pa.RecordBatch]:
    if index.is_unusable:
        yield _rows(file, index, None)
    is_inside = np.ones(len(index), np.bool_)
    if task.start_offset is not None:
        is_inside &= index.columns.get("lastOffset", index.columns["offset"]) >= task.start_offset
    if task.end_offset is not None:
        is_inside &= index.columns["offset"] < task.end_offset
    numbers = np.flatnonzero(is_inside)
    for first in range(0, len(numbers), _MAX_ROWS):
        yield _rows(file, index, numbers[first : first + _MAX_ROWS])


def _rows(file: SegmentFile, index: IndexComparison, numbers: npt.NDArray[np.int64] | None) -> pa.RecordBatch:
    """Return the rows of some entries, or the row about the whole file."""
    count = 1 if numbers is None else len(numbers)
    arrays: dict[str, pa.Array] = {
        "topic": pa.repeat(file.topic, count),
        "partition": pa.repeat(pa.scalar(file.partition, pa.int32()), count),
        "segment": pa.repeat(file.file_name, count),
        "kind": pa.repeat(index.kind, count),
    }
    if numbers is None:
        arrays |= {"agrees": pa.array([False]), "problem": pa.array([index.problem])}
    else:
        arrays |= _entry_columns(index, numbers)
    schema = INDEX_VIEW.schema
    columns = [
        arrays[field.name] if field.name in arrays else pa.nulls(count, field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _entry_columns(index: IndexComparison, numbers: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
    codes = index.codes[numbers]
    arrays = {name: pa.array(column[numbers]) for name, column in index.columns.items()}
    arrays["entry"] = pa.array(numbers)
    arrays["agrees"] = pa.array(codes == FINE, mask=codes == DAMAGED)
    arrays["problem"] = pa.array(PROBLEMS, pa.string()).take(pa.array(codes))
    if index.kind == TIME:
        timestamps_ms = index.columns["timestampMs"][numbers]
        arrays["timestamp"] = timestamps(timestamps_ms, is_null=timestamps_ms < 0)
    return arrays


INDEX_VIEW: Final = View(
    "index",
    "Every entry of the offset, time and transaction indexes, and whether the log agrees. A file that is missing or cut "
    "within an entry has a row without an entry number. The whole log is read.",
    (
        *PARTITION_COLUMNS,
        Column("segment", pa.string(), "Name of the segment's log file."),
        Column("kind", pa.string(), "`offset`, `time` or `transaction`."),
        Column("entry", pa.int64(), "Number of the entry in its file, from 0."),
        Column("offset", pa.int64(), "The entry's offset; of an aborted transaction, its first one."),
        Column("lastOffset", pa.int64(), "Offset of the transaction's abort marker."),
        Column(
            "position",
            pa.int64(),
            "Position in the log file of the batch that an entry of an offset index names.",
        ),
        Column(
            "timestamp",
            TIMESTAMP,
            "The largest timestamp up to the entry's batch; null if it is out of range.",
        ),
        Column("timestampMs", pa.int64(), "The same in milliseconds, as it is in the file."),
        Column("producerId", pa.int64(), "The producer whose transaction was aborted."),
        Column("lastStableOffset", pa.int64(), "The last stable offset when the transaction was aborted."),
        Column("agrees", pa.bool_(), "Whether the log agrees; null where the log itself is damaged."),
        Column("problem", pa.string(), "What is wrong with the entry, or with the file; null if nothing is."),
    ),
    _plan,
    _read,
)
