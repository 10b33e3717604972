"""Predicates: the evaluator against a row-by-row reading of SQL, and value checks."""

from __future__ import annotations

import operator
import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import OptionError
from storage_core.options.predicate import (
    And,
    Comparison,
    In,
    IsNull,
    Not,
    Or,
    StartsWith,
    Unknown,
    checked_predicate,
    columns_of,
    depth_of,
)
from storage_core.scan.row_filter import evaluate

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)
VALUES = {
    "topic": st.sampled_from(["", "a", "ab", "b", "ä"]),
    "partition": st.sampled_from([0, 1, 2]),
    "offset": st.integers(-1, 8),
    "timestamp": st.integers(-2500, 2500),
    "key": st.sampled_from([b"", b"a", b"a\x00", b"ab", b"\x7f", b"\xff"]),
}
ROW = st.tuples(
    st.none() | VALUES["key"],
    VALUES["topic"],
    VALUES["partition"],
    VALUES["offset"],
    st.none() | st.integers(-3, 3).map(lambda milliseconds: milliseconds * 1000),
)


def batch_of(rows):
    columns = list(zip(*rows, strict=True)) if rows else [[]] * len(SCHEMA)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, type=field.type) for column, field in zip(columns, SCHEMA, strict=True)],
        schema=SCHEMA,
    )


def comparisons():
    return st.sampled_from(list(VALUES)).flatmap(
        lambda column: st.builds(Comparison, st.just(column), st.sampled_from(list(COMPARE)), VALUES[column])
    )


def memberships():
    return st.sampled_from(list(VALUES)).flatmap(
        lambda column: st.builds(In, st.just(column), st.lists(VALUES[column], max_size=3).map(tuple))
    )


def prefixes():
    return st.sampled_from(["topic", "key"]).flatmap(
        lambda column: st.builds(StartsWith, st.just(column), VALUES[column])
    )


PREDICATES = st.recursive(
    comparisons()
    | memberships()
    | prefixes()
    | st.builds(IsNull, st.sampled_from(list(VALUES)))
    | st.just(Unknown()),
    lambda children: (
        st.builds(Not, children)
        | st.builds(And, st.lists(children, max_size=3).map(tuple))
        | st.builds(Or, st.lists(children, max_size=3).map(tuple))
    ),
    max_leaves=6,
)


COMPARE = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def holds(predicate, row):
    """SQL's answer for one row as a dict: True, False or None for unknown."""
    match predicate:
        case And(children):
            answers = [holds(child, row) for child in children]
            return False if False in answers else None if None in answers else True
        case Or(children):
            answers = [holds(child, row) for child in children]
            return True if True in answers else None if None in answers else False
        case Not(child):
            answer = holds(child, row)
            return None if answer is None else not answer
        case IsNull(column):
            return row[column] is None
        case Unknown():
            return None
        case _:
            value = row[predicate.column]
            return None if value is None else value_holds(predicate, value)


def value_holds(predicate, value):
    match predicate:
        case Comparison(_, comparison, other):
            return COMPARE[comparison](value, other)
        case In(_, values):
            return value in values
        case StartsWith(_, prefix):
            return value.startswith(prefix)


def as_dict(row):
    return dict(zip(SCHEMA.names, row, strict=True))


@given(PREDICATES, st.lists(ROW, max_size=8))
def test_evaluator_answers_as_sql_does_row_by_row(predicate, rows):
    expected = [holds(predicate, as_dict(row)) for row in rows]
    batch = batch_of(rows)
    assert evaluate(predicate, batch).to_pylist() == expected


@given(PREDICATES, st.lists(ROW, max_size=8), st.integers(0, 8))
def test_a_slice_of_a_batch_is_evaluated_like_the_rows_in_it(predicate, rows, start):
    expected = [holds(predicate, as_dict(row)) for row in rows[start:]]
    assert evaluate(predicate, batch_of(rows).slice(start)).to_pylist() == expected


@given(PREDICATES)
def test_only_the_columns_named_are_needed(predicate):
    batch = batch_of([(b"a", "a", 0, 0, 0)])
    needed = [name for name in SCHEMA.names if name in columns_of(predicate)]
    # A batch without columns has no row count, so one is always kept.
    evaluate(predicate, batch.select(needed or ["offset"]))


def test_a_null_safe_comparison_is_false_for_null():
    null_safe = And((Not(IsNull("key")), Comparison("key", "=", b"a")))
    batch = batch_of([(None, "a", 0, 0, 0), (b"a", "a", 0, 1, 0), (b"b", "a", 0, 2, 0)])
    assert evaluate(null_safe, batch).to_pylist() == [False, True, False]
    assert evaluate(Not(null_safe), batch).to_pylist() == [True, False, True]


def test_bytes_are_compared_unsigned_and_a_prefix_is_smaller():
    batch = batch_of([(key, "a", 0, 0, 0) for key in (b"", b"a", b"a\x00", b"\x7f", b"\x80")])
    above = evaluate(Comparison("key", ">", b"a"), batch)
    assert above.to_pylist() == [False, False, True, True, True]


def test_a_partition_may_be_compared_with_any_64_bit_integer():
    batch = batch_of([(None, "a", 2, 0, 0)])
    assert evaluate(Comparison("partition", "<", 2**40), batch).to_pylist() == [True]
    assert evaluate(In("partition", (2**40, 2)), batch).to_pylist() == [True]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Comparison("offset", "=", "5"), "type int for column 'offset'.*found '5' of type str"),
        (lambda: Comparison("offset", "=", True), "type int for column 'offset'.*found True of type bool"),
        (lambda: Comparison("offset", "=", 2**63), "64-bit integer for column 'offset'"),
        (lambda: Comparison("offset", "==", 5), "one of =, !=, <, <=, >, >=, found operator '=='"),
        (lambda: Comparison("headers", "=", b""), "found column 'headers'"),
        (lambda: Comparison("key", "=", "a"), "type bytes for column 'key'"),
        (lambda: Comparison("key", "=", None), "found None of type NoneType"),
        (lambda: In("topic", ("a", b"b")), "type str for column 'topic'"),
        (lambda: In("offsets", ()), "found column 'offsets'"),
        (lambda: IsNull("_metadata"), "found column '_metadata'"),
        (lambda: StartsWith("offset", 5), "text or binary column for a prefix, found 'offset'"),
        (lambda: StartsWith("topic", b"a"), "type str for column 'topic'"),
    ],
)
def test_a_wrong_node_is_refused_when_it_is_made(make, message):
    with pytest.raises(OptionError, match=message):
        make()


@given(PREDICATES)
def test_predicates_are_hashable_and_travel_as_pickles(predicate):
    assert hash(pickle.loads(pickle.dumps(predicate))) == hash(predicate)


# -- Predicates that were built elsewhere --------


def test_the_depth_is_that_of_the_longest_branch():
    leaf = Comparison("offset", "=", 1)
    assert depth_of(leaf) == depth_of(And(())) == 1
    assert depth_of(And((leaf, Not(Or((leaf, leaf)))))) == 4


def nested(levels):
    predicate = Comparison("offset", "=", 1)
    for _ in range(levels - 1):
        predicate = Not(predicate)
    return predicate


def test_a_predicate_that_was_built_elsewhere_is_taken_as_it_is():
    predicate = Or((nested(63), IsNull("key"), In("topic", ("a",)), StartsWith("key", b"a"), Unknown()))
    assert checked_predicate(predicate) is predicate


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (nested(65), "at most 64 levels"),
        (nested(100_000), "at most 64 levels"),
        (5, "the text of a condition or a Predicate, found 5 of type int"),
        (And((nested(1), "offset = 5")), "found 'offset = 5' of type str"),
        (Not(None), "found None"),
        (True, "found True"),
    ],
)
def test_what_is_no_predicate_is_refused(value, message):
    with pytest.raises(OptionError, match=message):
        checked_predicate(value)
