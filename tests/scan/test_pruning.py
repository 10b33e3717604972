"""Pruning: nothing that could match is left out, and what can be known is known."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.scan.predicate import And, Comparison, In, IsNull, Not, Or, StartsWith, matching_rows
from storage_core.scan.pruning import Bounds, prune

OPERATORS = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
TOPICS = st.sampled_from(["a", "ab", "b"])
VALUES = {
    "topic": TOPICS,
    "partition": st.integers(0, 2),
    "offset": st.integers(-1, 8),
    "timestamp": st.integers(-2500, 2500),
    "key": st.sampled_from([b"", b"a"]),
}
COLUMNS = st.sampled_from(list(VALUES))
PREDICATES = st.recursive(
    COLUMNS.flatmap(lambda column: st.builds(Comparison, st.just(column), OPERATORS, VALUES[column]))
    | COLUMNS.flatmap(
        lambda column: st.builds(In, st.just(column), st.lists(VALUES[column], max_size=3).map(tuple))
    )
    | st.builds(StartsWith, st.just("topic"), TOPICS)
    | st.builds(IsNull, COLUMNS),
    lambda children: (
        st.builds(Not, children)
        | st.builds(And, st.lists(children, max_size=3).map(tuple))
        | st.builds(Or, st.lists(children, max_size=3).map(tuple))
    ),
    max_leaves=8,
)


SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
    ]
)


# The first evaluation loads Arrow's functions, which takes longer than the usual deadline.
@settings(deadline=None, max_examples=300)
@given(
    PREDICATES,
    st.fixed_dictionaries(
        {
            "topic": TOPICS,
            "partition": st.integers(0, 2),
            "offset": st.integers(0, 8),
            "timestamp": st.integers(-3, 3),
            "key": st.none() | VALUES["key"],
        }
    ),
)
def test_a_row_that_matches_lies_within_the_bounds(predicate, row):
    timestamp_ms = row["timestamp"]
    bounds = prune(predicate)
    batch = pa.RecordBatch.from_pylist([row | {"timestamp": timestamp_ms * 1000}], schema=SCHEMA)
    if matching_rows(predicate, batch).num_rows:
        assert not bounds.is_empty
        assert bounds.includes(row["topic"], row["partition"])
        assert bounds.offset_start is None or bounds.offset_start <= row["offset"]
        assert bounds.offset_end is None or row["offset"] < bounds.offset_end
        assert bounds.timestamp_start_ms is None or bounds.timestamp_start_ms <= timestamp_ms


def offset(operator, value):
    return Comparison("offset", operator, value)


def timestamp(operator, value_us):
    return Comparison("timestamp", operator, value_us)


@pytest.mark.parametrize(
    ("predicate", "bounds"),
    [
        (And(()), Bounds()),
        (offset("=", 5), Bounds(offset_start=5, offset_end=6)),
        (offset(">", 5), Bounds(offset_start=6)),
        (offset(">=", 5), Bounds(offset_start=5)),
        (offset("<", 5), Bounds(offset_end=5)),
        (offset("<=", 5), Bounds(offset_end=6)),
        (offset("!=", 5), Bounds()),
        (Not(offset("!=", 5)), Bounds(offset_start=5, offset_end=6)),
        (Not(offset("<", 5)), Bounds(offset_start=5)),
        (And((offset(">=", 5), offset("<", 9))), Bounds(offset_start=5, offset_end=9)),
        (In("offset", (7, 3)), Bounds(offset_start=3, offset_end=8)),
        (Or((offset("=", 2), offset("=", 9))), Bounds(offset_start=2, offset_end=10)),
        (Or((offset("=", 2), Comparison("key", "=", b"a"))), Bounds()),
        (Not(Or((offset("<", 2), offset(">", 9)))), Bounds(offset_start=2, offset_end=10)),
        (Comparison("topic", "=", "a"), Bounds(topics=frozenset({"a"}))),
        (In("topic", ("a", "b")), Bounds(topics=frozenset({"a", "b"}))),
        (Comparison("topic", ">", "a"), Bounds()),
        (StartsWith("topic", "a"), Bounds()),
        (Not(In("topic", ("a",))), Bounds()),
        (Comparison("partition", "=", 1), Bounds(partitions=frozenset({1}))),
        (In("partition", (1, 2)), Bounds(partitions=frozenset({1, 2}))),
        (timestamp(">=", 1000), Bounds(timestamp_start_ms=1)),
        (timestamp(">=", 1001), Bounds(timestamp_start_ms=2)),
        (timestamp(">", 1000), Bounds(timestamp_start_ms=2)),
        (timestamp(">", 999), Bounds(timestamp_start_ms=1)),
        (timestamp("=", 5000), Bounds(timestamp_start_ms=5)),
        (timestamp(">=", -1), Bounds(timestamp_start_ms=0)),
        (timestamp(">", -1001), Bounds(timestamp_start_ms=-1)),
        (timestamp("<", 5000), Bounds()),
        (IsNull("key"), Bounds()),
        (Comparison("key", "=", b"a"), Bounds()),
    ],
)
def test_bounds(predicate, bounds):
    assert prune(predicate) == bounds


@pytest.mark.parametrize(
    "predicate",
    [
        Or(()),
        In("key", ()),
        And((offset("<", 5), offset(">=", 5))),
        And((Comparison("topic", "=", "a"), Comparison("topic", "=", "b"))),
        And((In("partition", (1,)), In("partition", (2,)))),
        Or((And((offset("<", 1), offset(">", 1))), In("topic", ()))),
    ],
)
def test_a_contradiction_leaves_nothing(predicate):
    bounds = prune(predicate)
    assert bounds.is_empty
    assert not bounds.includes("a", 1)


def test_an_empty_alternative_does_not_widen():
    assert prune(Or((In("topic", ()), offset("=", 5)))) == Bounds(offset_start=5, offset_end=6)
