"""Streams: micro-batches of any size, each planned once more by another run of the query, make up what a batch reads."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from conformance.rules import ISOLATION_LEVELS, READ_COMMITTED
from conformance.ways.way import Way
from storage_core.options import parse_stream_options
from storage_core.scan.read import read_task
from storage_core.scan.spans import record_schema
from storage_core.scan.stream import MicroBatchPlanner

if TYPE_CHECKING:
    from conformance.case_under_test import CaseUnderTest, Options
    from conformance.spark_process import ClassicSpark


def _stream_options(case: CaseUnderTest, isolation_level: str) -> Options:
    """From where a batch read starts, after damage, to where it ends by default."""
    *_, span = case.spans()
    return {
        "starting_offsets": "earliest",
        **case.bounded(span),
        "ending_at": "logEnd",
        "isolation_level": isolation_level,
        "include_headers": True,
    }


def _micro_batches(case: CaseUnderTest, limits: Options) -> None:
    *_, span = case.spans()
    for isolation_level in ISOLATION_LEVELS:
        options = {**_stream_options(case, isolation_level), **limits}
        case.check_rows(_rows(case, options), span, isolation_level, f"micro-batches of {options}")


def _rows(case: CaseUnderTest, options: Options) -> pa.Table:
    parsed = parse_stream_options({**options, **case.access, "path": case.path})
    filesystem = case.file_system()
    running, repeating, restarted = (MicroBatchPlanner(filesystem, parsed) for _ in range(3))
    schema = record_schema(include_headers=True)
    batches = []
    start = initial = running.initial_offsets()
    # Spark asks for it again before it repeats the first batch, but before no later one.
    repeating.initial_offsets()
    while (end := running.latest_offsets(start)) != start:
        tasks = running.plan(start, end).tasks
        planned_again = (repeating if start == initial else restarted).plan(start, end).tasks
        case.check_equal(planned_again, tasks, "the plan of a micro-batch that is repeated")
        batches += [batch for task in tasks for batch in read_task(filesystem, task, schema)]
        start = end
    return pa.Table.from_batches(batches, schema)


def _spark(case: CaseUnderTest, session: ClassicSpark) -> None:
    *_, span = case.spans()
    options = {**_stream_options(case, READ_COMMITTED), "max_offsets_per_trigger": 5_000}
    rows = session.stream(case.path, {**options, **case.access})
    case.check_rows(rows, span, READ_COMMITTED, f"Spark's micro-batches of {options}")


WAYS = (
    Way("streams", "all at once", partial(_micro_batches, limits={})),
    Way("streams", "few offsets", partial(_micro_batches, limits={"max_offsets_per_trigger": 1_000})),
    Way("streams", "few bytes", partial(_micro_batches, limits={"max_bytes_per_trigger": 100_000})),
    Way("streams", "Spark", _spark, session="classic", is_quick=False),
)
