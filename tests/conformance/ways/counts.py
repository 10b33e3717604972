"""Counts: `count_records` says how many rows `read_table` returns, whatever is asked for."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import storage_core
from conformance.rules import ISOLATION_LEVELS
from conformance.ways.bounds import inner_span
from conformance.ways.way import Way

if TYPE_CHECKING:
    from conformance.case_under_test import CaseUnderTest, Options

_TURNS = 2
_CONDITIONS = (
    "offset >= {offset}",
    "offset < {offset} AND partition = 0",
    "offset >= 3 AND (offset < {offset} OR offset > {after})",
    "offset IN ({offset}, 0)",
    "topic != 'none'",
    "key IS NULL OR offset = {offset}",
    "value >= 'm'",
    "timestamp >= '2024-01-01' OR offset < {offset}",
)
_COLUMNS = (None, ["offset"], ["value"], ["timestamp", "topic"])


def _within_bounds(case: CaseUnderTest) -> None:
    """Bounds cut batches in two, and conditions need few columns or none."""
    for isolation_level in ISOLATION_LEVELS:
        for span in case.spans():
            chosen = random.Random(f"{case.name} {isolation_level} {sorted(span.items())}")
            _check(case, case.bounded(span), isolation_level)
            for _ in range(_TURNS):
                first, last = sorted(chosen.choices(range(1001), k=2))
                inner = case.bounded(inner_span(case, span, isolation_level, first, last))
                offset = chosen.choice(list(span.values()))[0] + chosen.randrange(50)
                where = chosen.choice(_CONDITIONS).format(offset=offset, after=offset + 2)
                _check(case, inner, isolation_level)
                _check(case, {**inner, "where": where}, isolation_level)
                _check(case, {**inner, "use_indexes": False, "min_partitions": 5}, isolation_level)


def _with_damage(case: CaseUnderTest) -> None:
    """Rows that damage leaves out, and those that it adds."""
    for isolation_level in ISOLATION_LEVELS:
        for mode in ("DROPMALFORMED", "PERMISSIVE"):
            for columns in _COLUMNS:
                _check(case, {**case.selection(), "mode": mode, "columns": columns}, isolation_level)


def _check(case: CaseUnderTest, options: Options, isolation_level: str) -> None:
    words = {**options, **case.access, "isolation_level": isolation_level}
    read = storage_core.read_table(case.path, **words).num_rows
    case.check_equal(storage_core.count_records(case.path, **words), read, f"count of {words}")


WAYS = (
    Way("columns", "count", _within_bounds),
    Way("columns", "count of malformed", _with_damage, is_quick=False),
)
