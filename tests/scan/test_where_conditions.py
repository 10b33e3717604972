"""Operands to nodes: which column is compared with which literal, and what a literal of another type is told."""

from __future__ import annotations

import datetime as dt

import pytest

from storage_core.errors import OptionError
from storage_core.scan.predicate import And, Comparison, In, IsNull, Not, Or, StartsWith, Unknown
from storage_core.scan.where_conditions import ConditionBuilder, Operand, Place

PLACE = Place("some text", 0, 4)
BUILDER = ConditionBuilder(dt.UTC, 0)
NULL = Operand("null", None, PLACE)
CONDITION = Operand("condition", IsNull("key"), PLACE)


def column(name):
    return Operand("column", name, PLACE)


def number(value):
    return Operand("number", value, PLACE)


def text(value, escape="\\"):
    return Operand("text", value, PLACE, escape)


def test_an_error_names_the_character_the_text_and_the_reason():
    assert str(PLACE.error("why.")) == "The condition in where is not understood at character 1, `some`: why."
    assert str(Place("some text", 9, 9).error("why.")).endswith("at character 10, its end: why.")
    long = Place("x" * 500, 0, 500).error("why.")
    assert f"`{'x' * 80}...`" in str(long)
    assert PLACE.to(Place("some text", 5, 9)) == Place("some text", 0, 9)


@pytest.mark.parametrize(
    ("comparison", "flipped"), [("=", "="), ("!=", "!="), ("<", ">"), ("<=", ">="), (">", "<"), (">=", "<=")]
)
def test_a_literal_may_stand_on_either_side(comparison, flipped):
    assert BUILDER.comparison(column("offset"), comparison, number(5)) == Comparison("offset", comparison, 5)
    assert BUILDER.comparison(number(5), comparison, column("offset")) == Comparison("offset", flipped, 5)


@pytest.mark.parametrize(
    ("name", "literal", "value"),
    [
        ("topic", text("ä"), "ä"),
        ("key", text("ä"), b"\xc3\xa4"),
        ("value", Operand("bytes", b"\xff", PLACE), b"\xff"),
        ("partition", number(2**40), 2**40),
        ("timestamp", text("1970-01-01 00:00:01"), 1_000_000),
        ("timestamp", Operand("time", "1970", PLACE), 0),
        ("timestamp", text("-1 second"), -1_000_000),
    ],
)
def test_literals_become_values_of_their_column(name, literal, value):
    assert BUILDER.comparison(column(name), "=", literal) == Comparison(name, "=", value)
    assert BUILDER.membership(column(name), [literal, literal]) == In(name, (value, value))


@pytest.mark.parametrize(
    ("value", "comparison", "operator"),
    [
        (2**63, "<", ">="),
        (2**63, "<=", ">="),
        (2**63, "!=", ">="),
        (2**63, "=", "<"),
        (2**63, ">", "<"),
        (-(2**63) - 1, ">", ">="),
        (-(2**63) - 1, "<", "<"),
    ],
)
def test_what_no_column_can_hold_is_the_same_for_all_but_nulls(value, comparison, operator):
    expected = Comparison("offset", operator, -(2**63))
    assert BUILDER.comparison(column("offset"), comparison, number(value)) == expected


def test_null_makes_unknown_but_for_the_operators_that_ask_for_it():
    assert BUILDER.comparison(column("key"), "=", NULL) == Unknown()
    assert BUILDER.comparison(NULL, "<", number(5)) == Unknown()
    assert BUILDER.null_safe_equality(column("key"), NULL) == IsNull("key")
    assert BUILDER.null_safe_equality(NULL, NULL) == And(())
    assert BUILDER.null_safe_equality(number(5), NULL) == Or(())
    assert BUILDER.null_safe_equality(number(5), number(5)) == And(())
    assert BUILDER.null_safe_equality(text("a"), column("topic")) == And(
        (Not(IsNull("topic")), Comparison("topic", "=", "a"))
    )
    assert BUILDER.is_null(NULL) == And(())
    assert BUILDER.is_null(text("")) == Or(())
    assert BUILDER.membership(column("offset"), [NULL]) == Or((In("offset", ()), Unknown()))
    assert BUILDER.membership(NULL, [number(5)]) == Unknown()
    assert BUILDER.between(NULL, number(1), number(5)) == And((Unknown(), Unknown()))
    assert BUILDER.like(NULL, text("a")) == BUILDER.like(column("key"), NULL) == Unknown()
    assert BUILDER.condition(NULL) == Unknown()
    assert BUILDER.condition(CONDITION) == IsNull("key")


def test_patterns():
    assert BUILDER.like(column("key"), text("a%")) == StartsWith("key", b"a")
    assert BUILDER.like(column("topic"), text("a/%", "/")) == Comparison("topic", "=", "a%")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BUILDER.condition(column("key")), "found the column alone"),
        (lambda: BUILDER.condition(number(1)), "found a literal alone"),
        (lambda: BUILDER.comparison(column("key"), "=", column("value")), "found two columns"),
        (lambda: BUILDER.comparison(CONDITION, "=", number(1)), "found a condition"),
        (lambda: BUILDER.comparison(number(1), "=", text("1")), "found two literals"),
        (
            lambda: BUILDER.comparison(column("offset"), "=", text("1")),
            "a whole number for offset, found a text",
        ),
        (lambda: BUILDER.comparison(column("topic"), "=", number(1)), "for topic, found a number"),
        (lambda: BUILDER.comparison(column("timestamp"), "=", text("soon")), "expected a time"),
        (lambda: BUILDER.comparison(column("timestamp"), "=", number(5)), "for timestamp, found a number"),
        (lambda: BUILDER.null_safe_equality(CONDITION, NULL), "found a condition"),
        (lambda: BUILDER.is_null(CONDITION), "a column before IS NULL"),
        (lambda: BUILDER.membership(number(1), [number(1)]), "a column before IN"),
        (lambda: BUILDER.membership(column("offset"), [CONDITION]), "found a condition"),
        (lambda: BUILDER.between(number(1), number(1), number(1)), "a column before BETWEEN"),
        (lambda: BUILDER.like(number(1), text("a")), "a column before LIKE"),
        (lambda: BUILDER.like(column("timestamp"), text("a")), "topic, key or value before LIKE"),
        (lambda: BUILDER.like(column("topic"), number(1)), "a pattern in quotes"),
        (lambda: BUILDER.like(column("topic"), text("%a%")), "with % at its end"),
    ],
)
def test_what_fits_no_column_is_refused(make, message):
    with pytest.raises(OptionError, match=message):
        make()
