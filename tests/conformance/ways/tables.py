"""Whole reads with `read_table` and `read_batches`: both isolation levels, threads, and projections."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import pyarrow as pa

import storage_core
from conformance.rules import ISOLATION_LEVELS, READ_COMMITTED, READ_UNCOMMITTED
from conformance.ways.way import Way

if TYPE_CHECKING:
    from conformance.case_under_test import CaseUnderTest

_PROJECTIONS = (
    ("offset",),
    ("timestamp", "offset"),
    ("value", "key"),
    ("headers", "topic"),
    ("timestampType",),
)


def _read(case: CaseUnderTest, isolation_level: str) -> None:
    """Check the consumer's records, in its order within each partition."""
    for span in case.spans():
        rows = case.read(case.bounded(span), isolation_level)
        case.check_rows(rows, span, isolation_level, f"read_table of {dict(span)}")
        _check_order(case, rows)


def _check_order(case: CaseUnderTest, rows: pa.Table) -> None:
    for partition in case.partitions:
        topic_rows = np.asarray(rows["topic"].to_numpy(zero_copy_only=False) == partition.topic)
        mine = topic_rows & (rows["partition"].to_numpy() == partition.partition)
        offsets = rows["offset"].to_numpy()[mine]
        assert (np.diff(offsets) > 0).all(), f"{partition.name}: rows are not in the order of their offsets"


def _read_batches(case: CaseUnderTest, threads: int) -> None:
    """Check the same rows in the same order as a stream of batches, of tasks small enough for threads to share."""
    for isolation_level in ISOLATION_LEVELS:
        for span in case.spans():
            words = {
                **case.bounded(span),
                **case.access,
                "isolation_level": isolation_level,
                "include_headers": True,
            }
            with (
                patch("storage_core.scan.batches._TASK_BYTES", 4096),
                storage_core.read_batches(case.path, threads=threads, **words) as reader,
            ):
                rows = pa.Table.from_batches(reader, schema=reader.schema)
            case.check_rows(rows, span, isolation_level, f"read_batches of {dict(span)}, {threads} threads")
            _check_order(case, rows)


def _project(case: CaseUnderTest) -> None:
    """Fewer columns are the same rows: what is not asked for must not change what is."""
    for isolation_level in ISOLATION_LEVELS:
        for span in case.spans():
            options = case.bounded(span)
            full = case.read(options, isolation_level)
            for columns in _PROJECTIONS:
                projected = case.read({**options, "columns": columns}, isolation_level)
                same = projected.combine_chunks().equals(full.select(columns).combine_chunks())
                case.check_equal(same, True, f"columns={columns}, {isolation_level}: rows as in a full read")


# What `make test` tries on every case.
WHOLE = (
    Way("table", READ_UNCOMMITTED, partial(_read, isolation_level=READ_UNCOMMITTED)),
    Way("committed", READ_COMMITTED, partial(_read, isolation_level=READ_COMMITTED)),
)
WAYS = (
    *WHOLE,
    *(Way("batches", f"threads={count}", partial(_read_batches, threads=count)) for count in (1, 2)),
    Way("columns", "projections", _project),
)
