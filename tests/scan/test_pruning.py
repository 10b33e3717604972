"""Pruning: nothing that could match is left out. Residuals: the same answer from less, and as little left as can be."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.options.predicate import (
    ALWAYS,
    NEVER,
    And,
    Comparison,
    In,
    IsNull,
    Not,
    Or,
    StartsWith,
    Unknown,
    columns_of,
)
from storage_core.scan.pruning import Bounds, KnownFields, conjunction, prune, prune_partition, residual
from storage_core.scan.row_filter import evaluate
from tests.examples import examples

OPERATORS = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
TOPICS = st.sampled_from(["", "a", "ab", "b"])
VALUES = {
    "topic": TOPICS,
    "partition": st.integers(0, 2),
    "offset": st.integers(-1, 9),
    "timestamp": st.integers(-2, 2) | st.integers(-2500, 2500),
    "key": st.sampled_from([b"", b"a", b"ab"]),
}
COLUMNS = st.sampled_from(list(VALUES))
PREDICATES = st.recursive(
    COLUMNS.flatmap(lambda column: st.builds(Comparison, st.just(column), OPERATORS, VALUES[column]))
    | COLUMNS.flatmap(
        lambda column: st.builds(In, st.just(column), st.lists(VALUES[column], max_size=3).map(tuple))
    )
    | st.builds(StartsWith, st.just("topic"), TOPICS)
    | st.builds(StartsWith, st.just("key"), VALUES["key"])
    | st.builds(IsNull, COLUMNS)
    | st.just(Unknown()),
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


ROWS = st.fixed_dictionaries(
    {
        "topic": TOPICS,
        "partition": st.integers(0, 2),
        "offset": st.integers(0, 8),
        "timestamp": st.none() | st.integers(-3, 3),
        "key": st.none() | VALUES["key"],
    }
)


@examples(500)
@given(PREDICATES, ROWS)
def test_a_row_that_matches_lies_within_the_bounds(predicate, row):
    timestamp_ms = row["timestamp"]
    in_us = None if timestamp_ms is None else timestamp_ms * 1000
    batch = pa.RecordBatch.from_pylist([row | {"timestamp": in_us}], schema=SCHEMA)
    if not evaluate(predicate, batch)[0].as_py():
        return
    for bounds in (prune(predicate), prune_partition(predicate, row["topic"], row["partition"])):
        assert not bounds.is_empty
        assert bounds.offset_start is None or bounds.offset_start <= row["offset"]
        assert bounds.offset_end is None or row["offset"] < bounds.offset_end
        if timestamp_ms is None:
            # Nothing but the absence of bounds lets a record through whose timestamp is not known.
            assert (bounds.timestamp_start_ms, bounds.timestamp_end_ms) == (None, None)
        else:
            assert bounds.timestamp_start_ms is None or bounds.timestamp_start_ms <= timestamp_ms
            assert bounds.timestamp_end_ms is None or timestamp_ms < bounds.timestamp_end_ms


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
        (Comparison("topic", ">", "a"), Bounds()),
        (Comparison("partition", "=", 1), Bounds()),
        (timestamp(">=", 1000), Bounds(timestamp_start_ms=1)),
        (timestamp(">=", 1001), Bounds(timestamp_start_ms=2)),
        (timestamp(">", 1000), Bounds(timestamp_start_ms=2)),
        (timestamp(">", 999), Bounds(timestamp_start_ms=1)),
        (timestamp("=", 5000), Bounds(timestamp_start_ms=5, timestamp_end_ms=6)),
        (timestamp(">=", -1), Bounds(timestamp_start_ms=0)),
        (timestamp(">", -1001), Bounds(timestamp_start_ms=-1)),
        (timestamp("<", 5000), Bounds(timestamp_end_ms=5)),
        (timestamp("<", 5001), Bounds(timestamp_end_ms=6)),
        (timestamp("<=", 5000), Bounds(timestamp_end_ms=6)),
        (timestamp("<=", 5999), Bounds(timestamp_end_ms=6)),
        (timestamp("<", -1), Bounds(timestamp_end_ms=0)),
        (timestamp("<=", -1), Bounds(timestamp_end_ms=0)),
        (In("timestamp", (1000, 7000)), Bounds(timestamp_start_ms=1, timestamp_end_ms=8)),
        (Or((timestamp("<", 5000), offset("<", 3))), Bounds()),
        (And((timestamp("<", 5000), offset("<", 3))), Bounds(offset_end=3, timestamp_end_ms=5)),
        (IsNull("key"), Bounds()),
        (IsNull("timestamp"), Bounds()),
        (Not(IsNull("offset")), Bounds()),
        (Not(StartsWith("key", b"a")), Bounds()),
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
        # No millisecond is at half past another.
        timestamp("=", 1500),
        And((timestamp("<", 5000), timestamp(">=", 5000))),
        IsNull("topic"),
        IsNull("partition"),
        IsNull("offset"),
        Unknown(),
        Not(Unknown()),
        And((offset(">", 1), Unknown())),
        Or((Unknown(), And((offset("<", 1), offset(">", 1))), In("key", ()))),
    ],
)
def test_a_contradiction_leaves_nothing(predicate):
    assert prune(predicate).is_empty


def test_an_empty_alternative_does_not_widen():
    assert prune(Or((In("offset", ()), offset("=", 5)))) == Bounds(offset_start=5, offset_end=6)


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (Comparison("topic", "=", "orders"), {("orders", 0), ("orders", 1)}),
        (Comparison("topic", ">", "orders"), {("payments", 0)}),
        (In("topic", ("payments", "x")), {("payments", 0)}),
        (StartsWith("topic", "ord"), {("orders", 0), ("orders", 1)}),
        (Not(StartsWith("topic", "ord")), {("payments", 0)}),
        (Comparison("partition", "<", 1), {("orders", 0), ("payments", 0)}),
        (Not(Comparison("partition", "!=", 1)), {("orders", 1)}),
        (In("partition", (1, 7)), {("orders", 1)}),
        (Not(In("partition", (0,))), {("orders", 1)}),
        (And((Comparison("topic", "=", "orders"), Comparison("topic", "=", "payments"))), set()),
        (IsNull("topic"), set()),
        (
            Or(
                (
                    And((Comparison("topic", "=", "orders"), Comparison("partition", "=", 1))),
                    And((Comparison("topic", "=", "payments"), Comparison("partition", "=", 1))),
                )
            ),
            {("orders", 1)},
        ),
    ],
)
def test_partitions_are_decided_by_their_names(predicate, expected):
    partitions = {("orders", 0), ("orders", 1), ("payments", 0)}
    assert {each for each in partitions if not prune_partition(predicate, *each).is_empty} == expected


def test_each_partition_has_bounds_of_its_own():
    predicate = Or(
        (
            And((Comparison("partition", "=", 0), offset(">=", 5))),
            And((Comparison("partition", "=", 1), offset("<", 3))),
        )
    )
    assert prune(predicate) == Bounds()
    assert prune_partition(predicate, "a", 0) == Bounds(offset_start=5)
    assert prune_partition(predicate, "a", 1) == Bounds(offset_end=3)
    assert prune_partition(predicate, "a", 2).is_empty


@examples(500)
@given(
    PREDICATES,
    VALUES["topic"],
    VALUES["partition"],
    st.tuples(st.integers(0, 8), st.integers(1, 4)),
    st.booleans(),
    st.none() | VALUES["timestamp"],
    st.none() | VALUES["key"],
)
def test_a_residual_answers_the_same(predicate, topic, partition, offsets, is_range_known, timestamp, key):
    start, count = offsets
    rows = [
        {"topic": topic, "partition": partition, "offset": offset, "timestamp": timestamp, "key": key}
        for offset in range(start, start + count)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    bounds = (start, start + count) if is_range_known else ()
    rest = residual(predicate, KnownFields(topic, partition, *bounds))
    assert evaluate(rest, batch).equals(evaluate(predicate, batch))
    assert columns_of(rest) <= {"offset", "timestamp", "key"}
    # Constants are left only where they are all that is left.
    assert rest in (ALWAYS, NEVER) or not {ALWAYS, NEVER} & set(nodes(rest))


def nodes(predicate):
    yield predicate
    match predicate:
        case And(children) | Or(children):
            for child in children:
                yield from nodes(child)
        case Not(child):
            yield from nodes(child)


KEY = Comparison("key", "=", b"a")


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (Comparison("topic", "=", "orders"), ALWAYS),
        (And((StartsWith("topic", "ord"), KEY)), KEY),
        (And((Comparison("partition", "=", 4), KEY)), NEVER),
        (Or((Comparison("partition", "<", 4), KEY)), ALWAYS),
        (Not(In("topic", ("payments",))), ALWAYS),
        (offset(">=", 10), ALWAYS),
        (offset(">=", 11), offset(">=", 11)),
        (offset("<", 20), ALWAYS),
        (offset("<", 19), offset("<", 19)),
        (offset("<", 10), NEVER),
        (offset("=", 9), NEVER),
        (offset("=", 20), NEVER),
        (offset("=", 15), offset("=", 15)),
        (offset("!=", 20), ALWAYS),
        (offset("!=", 15), offset("!=", 15)),
        (In("offset", (1, 12, 20)), In("offset", (12,))),
        (In("offset", (1, 20)), NEVER),
        (And((offset(">=", 5), offset("<", 100), KEY)), KEY),
        (Or((And((offset("<", 5), KEY)), Not(KEY))), Not(KEY)),
        (IsNull("offset"), NEVER),
        (Not(IsNull("topic")), ALWAYS),
        (IsNull("timestamp"), IsNull("timestamp")),
        (Not(Not(KEY)), KEY),
        (Not(Unknown()), Unknown()),
    ],
)
def test_what_is_known_is_left_out(predicate, expected):
    assert residual(predicate, KnownFields("orders", 1, 10, 20)) == expected


def test_a_single_offset_decides_whatever_it_is_compared_with():
    known = KnownFields("orders", 1, 7, 8)
    assert residual(offset("=", 7), known) == ALWAYS
    assert residual(In("offset", (3, 7)), known) == ALWAYS
    assert residual(offset("!=", 7), known) == NEVER


def test_conjunctions_leave_out_what_demands_nothing():
    assert conjunction(None, None) is None
    assert conjunction(ALWAYS, None) is None
    assert conjunction(None, KEY) is KEY
    assert conjunction(KEY, ALWAYS) is KEY
    assert conjunction(KEY, offset("=", 1)) == And((KEY, offset("=", 1)))
