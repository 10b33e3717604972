"""Splits: into how many tasks a read is cut changes nothing that is read."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from conformance.rules import ISOLATION_LEVELS
from conformance.ways.bounds import inner_span
from conformance.ways.way import Way
from storage_core.options import parse_read_options
from storage_core.scan.plan import plan_scan
from storage_core.scan.read import read_task
from storage_core.scan.spans import record_schema

if TYPE_CHECKING:
    from conformance.case_under_test import CaseUnderTest, Options

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30


def _split(case: CaseUnderTest, options: Options, *, first: int = 0, last: int = 1000) -> None:
    """Plan and read every task by itself, as Spark's workers do.

    Args:
        case: What to read.
        options: The options that cut.
        first: Where the read starts, in thousandths of each partition.
        last: Where it ends, likewise.
    """
    for isolation_level in ISOLATION_LEVELS:
        for whole in case.spans():
            span = inner_span(case, whole, isolation_level, first, last)
            words = {
                **case.bounded(span),
                **options,
                "isolation_level": isolation_level,
                "include_headers": True,
            }
            case.check_rows(_read_by_tasks(case, words), span, isolation_level, f"tasks of {words}")


def _read_by_tasks(case: CaseUnderTest, options: Options) -> pa.Table:
    filesystem = case.file_system()
    plan = plan_scan(filesystem, parse_read_options({**options, **case.access, "path": case.path}))
    schema = record_schema(include_headers=True)
    batches = [batch for task in plan.tasks for batch in read_task(filesystem, task, schema)]
    return pa.Table.from_batches(batches, schema)


WAYS = (
    *(
        Way(
            "splits",
            f"maxBytesPerPartition={size}",
            partial(_split, options={"max_bytes_per_partition": size}),
            is_quick=False,
        )
        for size in (4 * _KIB, 64 * _KIB, _MIB, _GIB)
    ),
    *(
        Way(
            "splits",
            f"minPartitions={count}",
            partial(_split, options={"min_partitions": count}),
            is_quick=count == 7,
        )
        for count in (1, 2, 7, 50)
    ),
    # Few offsets a task make slow reads of many tasks: a part of each partition says enough.
    *(
        Way(
            "splits",
            f"maxRecordsPerPartition={count}",
            partial(_split, options={"max_records_per_partition": count}, first=first, last=last),
        )
        for count, first, last in ((10, 300, 700), (1, 480, 520))
    ),
)
