"""Whole reads with `read_table`: both isolation levels, and projections."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from conformance.rules import ISOLATION_LEVELS, READ_COMMITTED, READ_UNCOMMITTED
from conformance.ways.way import Way

if TYPE_CHECKING:
    import pyarrow as pa

    from conformance.case_under_test import CaseUnderTest

_PROJECTIONS = (
    ("offset",),
    ("timestamp", "offset"),
    ("value", "key"),
    ("headers", "topic"),
    ("timestampType",),
)


def _read(case: CaseUnderTest, isolation_level: str) -> None:
    """The consumer's records, in its order within each partition."""
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
WAYS = (*WHOLE, Way("columns", "projections", _project))
