"""The view ``damage``: the damaged ranges of the log files, as a read with ``mode=PERMISSIVE`` reports them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.filesystem import ReadableFileSystem
from storage_core.options import ReadOptions
from storage_core.record.batch_header import MAX_OFFSET
from storage_core.scan.plan import plan_ranges
from storage_core.scan.read import read_task
from storage_core.scan.spans import ScanTask, project, record_schema
from storage_core.views.view import PARTITION_COLUMNS, Column, View, resolved_ranges

_COLUMNS: Final = (
    *PARTITION_COLUMNS,
    Column("segment", pa.string(), "The name of the log file."),
    Column("startByte", pa.int64(), "Position of the first damaged byte."),
    Column("endByte", pa.int64(), "Position after the last one."),
    Column("startOffset", pa.int64(), "The first offset that may be lost."),
    Column(
        "endOffset", pa.int64(), "The offset after the last that may be lost; `startOffset` if none is lost."
    ),
    Column("error", pa.string(), "The error that a read with `mode=FAILFAST` fails with."),
    Column("reason", pa.string(), "What was expected at the first byte, and what was found."),
    Column("file", pa.string(), "Path of the log file."),
)


def _plan(filesystem: ReadableFileSystem, options: ReadOptions) -> Sequence[ScanTask]:
    # Aborted records are as damaged as others.
    permissive = dataclasses.replace(
        options, mode="PERMISSIVE", isolation_level="read_uncommitted", where=None, columns=None
    )
    return plan_ranges(filesystem, resolved_ranges(filesystem, options), permissive).tasks


def _read(
    filesystem: ReadableFileSystem, task: ScanTask, _wanted: frozenset[str]
) -> Iterator[pa.RecordBatch]:
    damage = task.settings.corrupt_record_column
    # Headers are the last field of a record: whoever wants them decodes its whole structure, but copies no value.
    schema = project(record_schema(include_headers=True, corrupt_record_column=damage), ("headers", damage))
    for batch in read_task(filesystem, task, schema):
        found = batch.column(damage)
        if found.null_count < len(found):
            yield _rows(pc.drop_null(found).to_pylist())


def _rows(texts: list[str]) -> pa.RecordBatch:
    rows = [json.loads(text) for text in texts]
    for row in rows:
        row["segment"] = row["file"].rpartition("/")[2]
        # No offset follows the largest one.
        row["endOffset"] = min(row["endOffset"], MAX_OFFSET)
    schema = pa.schema([(column.name, column.type) for column in _COLUMNS])
    return pa.RecordBatch.from_pylist(rows, schema=schema)


DAMAGE_VIEW: Final = View(
    "damage",
    "A damaged range of a log file: the bytes between two batches of the log, or between one and the end of its segment.",
    _COLUMNS,
    _plan,
    _read,
)
