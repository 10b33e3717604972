"""Residuals: the same answer from less, and as little left as can be."""

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
from storage_core.scan.pruning import KnownFields, conjunction, residual
from storage_core.scan.rows import evaluate
from tests.examples import examples

VALUES = {
    "topic": st.sampled_from(["", "a", "ab", "b"]),
    "partition": st.integers(0, 2),
    "offset": st.integers(-1, 9),
    "timestamp": st.integers(-2, 2),
    "key": st.sampled_from([b"", b"a", b"ab"]),
}
COLUMNS = st.sampled_from(list(VALUES))
OPERATORS = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
PREDICATES = st.recursive(
    COLUMNS.flatmap(lambda column: st.builds(Comparison, st.just(column), OPERATORS, VALUES[column]))
    | COLUMNS.flatmap(
        lambda column: st.builds(In, st.just(column), st.lists(VALUES[column], max_size=4).map(tuple))
    )
    | st.builds(StartsWith, st.just("topic"), VALUES["topic"])
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


def offset(operator, value):
    return Comparison("offset", operator, value)


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
