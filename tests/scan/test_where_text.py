"""Conditions in text: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import time
import zoneinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import OptionError
from storage_core.scan.predicate import And, Comparison, In, IsNull, Not, Or, StartsWith, Unknown
from storage_core.scan.predicate_depth import depth_of
from storage_core.scan.where_text import parse_where

NOW_MS = 1_767_225_600_000
NEW_YEAR_US = NOW_MS * 1000
LOWEST = -(2**63)
TRUE, FALSE = And(()), Or(())


def parse(text):
    return parse_where(text, dt.UTC, NOW_MS)


def offset(operator, value):
    return Comparison("offset", operator, value)


A, B, C = offset("=", 1), offset("=", 2), offset("=", 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "offset >= 100 AND timestamp < '2026-01-01T00:00:00Z' AND key = 'k1'",
            And(
                (
                    offset(">=", 100),
                    Comparison("timestamp", "<", NEW_YEAR_US),
                    Comparison("key", "=", b"k1"),
                )
            ),
        ),
        # comparisons
        ("offset = 1", A),
        ("offset == 1", A),
        ("offset != 1", offset("!=", 1)),
        ("offset <> 1", offset("!=", 1)),
        ("1 < offset", offset(">", 1)),
        ("1 >= offset", offset("<=", 1)),
        ("(1) = (offset)", A),
        ("offset <=> 1", And((Not(IsNull("offset")), A))),
        ("offset <=> NULL", IsNull("offset")),
        ("NULL <=> key", IsNull("key")),
        ("offset = NULL", Unknown()),
        ("NULL < offset", Unknown()),
        ("NULL = NULL", Unknown()),
        ("NULL <=> NULL", TRUE),
        ("5 <=> NULL", FALSE),
        ("1 = 1", TRUE),
        ("'a' >= 'b'", FALSE),
        # numbers
        ("offset = -1", offset("=", -1)),
        ("offset = - 1", offset("=", -1)),
        ("offset = - -1", A),
        ("offset = +1", A),
        ("offset = 001L", A),
        ("offset < 9223372036854775807", offset("<", 2**63 - 1)),
        ("offset < 9223372036854775808", offset(">=", LOWEST)),
        ("offset >= 9223372036854775808", offset("<", LOWEST)),
        ("offset = 99999999999999999999999", offset("<", LOWEST)),
        ("offset <> -99999999999999999999999", offset(">=", LOWEST)),
        ("-99999999999999999999999 > offset", offset("<", LOWEST)),
        ("offset IN (1, 99999999999999999999999)", In("offset", (1,))),
        # sets and ranges
        ("offset IN (1)", In("offset", (1,))),
        ("offset in (1, (2), -3)", In("offset", (1, 2, -3))),
        ("offset NOT IN (1, 2)", Not(In("offset", (1, 2)))),
        ("offset IN (1, NULL)", Or((In("offset", (1,)), Unknown()))),
        ("NULL IN (1, 2)", Unknown()),
        ("offset BETWEEN 1 AND 5", And((offset(">=", 1), offset("<=", 5)))),
        ("offset NOT BETWEEN 1 AND 5", Not(And((offset(">=", 1), offset("<=", 5))))),
        ("offset BETWEEN NULL AND 5", And((Unknown(), offset("<=", 5)))),
        ("offset BETWEEN 1 AND 5 AND offset = 3", And((offset(">=", 1), offset("<=", 5), C))),
        # texts and bytes
        ("topic LIKE 'abc%'", StartsWith("topic", "abc")),
        ("topic LIKE 'abc'", Comparison("topic", "=", "abc")),
        ("topic NOT LIKE 'abc%'", Not(StartsWith("topic", "abc"))),
        (r"topic LIKE 'a\_b%'", StartsWith("topic", "a_b")),
        ("key LIKE 'a/%%' ESCAPE '/'", StartsWith("key", b"a%")),
        ("value LIKE 'ä%'", StartsWith("value", b"\xc3\xa4")),
        ("topic LIKE NULL", Unknown()),
        ("key = X'0aFF'", Comparison("key", "=", b"\x0a\xff")),
        ("key = x''", Comparison("key", "=", b"")),
        ("key = X'123'", Comparison("key", "=", b"\x01\x23")),
        ('topic = "abc"', Comparison("topic", "=", "abc")),
        ("topic = 'a' 'b'", Comparison("topic", "=", "ab")),
        ("topic = 'it''s'", Comparison("topic", "=", "it's")),
        (r"topic = r'a\n'", Comparison("topic", "=", r"a\n")),
        ("key = 'ä'", Comparison("key", "=", b"\xc3\xa4")),
        ("topic = '-- no comment'", Comparison("topic", "=", "-- no comment")),
        ("topic = 'X''zz'", Comparison("topic", "=", "X'zz")),
        # times
        ("timestamp = '2026'", Comparison("timestamp", "=", NEW_YEAR_US)),
        ("timestamp = TIMESTAMP '2026-01-01'", Comparison("timestamp", "=", NEW_YEAR_US)),
        ("timestamp = cast('2026-01-01' AS timestamp)", Comparison("timestamp", "=", NEW_YEAR_US)),
        ("timestamp > '2026-01-01 01:00:00.000001+01:00'", Comparison("timestamp", ">", NEW_YEAR_US + 1)),
        ("timestamp > '-10 minutes'", Comparison("timestamp", ">", NEW_YEAR_US - 600_000_000)),
        # names
        ("`Offset` = 1 AND TOPIC = 'a'", And((A, Comparison("topic", "=", "a")))),
        ("timestamp IS NULL OR partition IS NOT NULL", Or((IsNull("timestamp"), Not(IsNull("partition"))))),
        # logic
        ("TRUE", TRUE),
        ("false", FALSE),
        ("NULL", Unknown()),
        ("NOT NULL", Not(Unknown())),
        ("NULL IS NULL", TRUE),
        ("5 IS NULL", FALSE),
        ("NOT offset = 1 AND offset = 2", And((Not(A), B))),
        ("! offset = 1", Not(A)),
        ("NOT NOT offset = 1", A),
        ("NOT (NOT offset = 1)", Not(Not(A))),
        ("offset = 1 OR offset = 2 AND offset = 3", Or((A, And((B, C))))),
        ("(offset = 1 OR offset = 2) AND offset = 3", And((Or((A, B)), C))),
        ("((((offset = 1))))", A),
        ("offset = 1 AND (offset = 2 AND offset = 3)", And((A, B, C))),
        ("(offset = 1 OR offset = 2) OR offset = 3", Or((A, B, C))),
        ("offset=1 and(offset=2)", And((A, B))),
        ("offset = 1\n\tAND\r\noffset = 2", And((A, B))),
    ],
)
def test_a_condition_becomes_nodes(text, expected):
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "character", "found", "message"),
    [
        ("offset <", 9, "its end", "a column or a value to compare with"),
        ("", 1, "its end", "expected a condition"),
        ("   ", 4, "its end", "expected a condition"),
        ("offset 5", 8, "5", "AND, OR or a comparison"),
        ("offset = 5 6", 12, "6", "AND, OR or a comparison"),
        ("AND offset = 5", 1, "AND", "expected a condition"),
        ("offset = 5 OR", 14, "its end", "expected a condition"),
        ("offset = 5 NOT", 15, "its end", "IN, BETWEEN or LIKE"),
        ("offset NOT = 5", 12, "=", "IN, BETWEEN or LIKE"),
        ("NOT IN (5)", 5, "IN", "expected a condition"),
        ("offset", 1, "offset", "found the column alone"),
        ("5", 1, "5", "found a literal alone"),
        ("offset = 5 AND topic", 16, "topic", "found the column alone"),
        ("(offset = 5", 1, "(", "to be closed"),
        ("offset = 5)", 11, ")", "no parenthesis was opened"),
        ("()", 2, ")", "expected a condition"),
        ("offset IN ()", 11, "()", "values, with commas between"),
        ("offset IN (1,)", 11, "(1,)", "values, with commas between"),
        ("offset IN (1 2)", 14, "2", "a comma"),
        ("offset IN 5", 11, "5", "a list of values in parentheses"),
        ("offset IN (offset)", 12, "offset", "found another column"),
        ("offset IN (topic = 'a')", 18, "=", "a comma"),
        ("5 IN (5)", 1, "5", "a column before IN"),
        ("offset = (1, 2)", 12, ",", "AND, OR or a comparison"),
        ("offset BETWEEN 5", 16, "5", "does not fit"),
        ("offset BETWEEN 5 OR 6", 18, "OR", "does not fit"),
        ("offset IS 5", 11, "5", "NULL or NOT NULL"),
        ("offset IS TRUE", 11, "TRUE", "NULL or NOT NULL"),
        ("(offset = 5) IS NULL", 1, "(offset = 5)", "found a condition"),
        ("(offset = 5) = TRUE", 1, "(offset = 5)", "found a condition"),
        ("offset = TRUE", 10, "TRUE", "found a condition"),
        ("offset = partition", 1, "offset = partition", "found two columns"),
        ("1 = '1'", 1, "1 = '1'", "found two literals"),
        ("offset = '5'", 10, "'5'", "a whole number for offset, found a text"),
        ("partition = X'05'", 13, "X'05'", "a whole number for partition, found bytes"),
        ("topic = 5", 9, "5", "a text ('orders') for topic, found a number"),
        ("topic = X'61'", 9, "X'61'", "for topic, found bytes"),
        ("key = 5", 7, "5", "for key, found a number"),
        ("timestamp > 1767225600000", 13, "1767225600000", "for timestamp, found a number"),
        ("timestamp > '1767225600000'", 13, "'1767225600000'", "expected a time"),
        ("timestamp > 'yesterday'", 13, "'yesterday'", "expected a time"),
        ("timestamp > '-3 months'", 13, "'-3 months'", "no unit of a fixed length"),
        ("key > TIMESTAMP '2026'", 7, "TIMESTAMP '2026'", "for key, found a timestamp"),
        ("offset = 1.5", 10, "1.5", "a whole number"),
        ("offset = 1e3", 10, "1e3", "a whole number"),
        ("offset = .5", 10, ".", "not available"),
        ("offset = 5D", 10, "5D", "a whole number"),
        ("offset LIKE 'a%'", 1, "offset", "topic, key or value before LIKE"),
        ("topic LIKE '%a'", 12, "'%a'", "with % at its end"),
        ("topic LIKE 'a_'", 12, "'a_'", "with % at its end"),
        ("topic LIKE 'a\\\\b'", 12, "'a\\\\b'", "behind the escape character"),
        ("topic LIKE X'61'", 12, "X'61'", "a pattern in quotes"),
        ("topic LIKE 'a' ESCAPE 'bc'", 23, "'bc'", "one character behind ESCAPE"),
        ("topic = 'a' ESCAPE '/'", 13, "ESCAPE", "LIKE 'pattern' ESCAPE 'character'"),
        ("topic = '\\ud800'", 9, "'\\ud800'", "Unicode characters"),
        ("key = X'0g'", 7, "X'0g'", "hexadecimal digits"),
        ("topic = 'open", 9, "'open", "the quote that begins here"),
        ("`open = 5", 1, "`open = 5", "the quote that begins here"),
        ("ofset = 5", 1, "ofset", "Did you mean 'offset'?"),
        (
            "headers IS NULL",
            1,
            "headers",
            "one of the columns topic, partition, offset, timestamp, key, value",
        ),
        ("a.offset = 5", 1, "a", "one of the columns"),
        ("lower(topic) = 'a'", 1, "lower", "functions are not available"),
        ("timestamp > now()", 13, "now", "timestamps may be relative ('-10 minutes')"),
        ("key('a') = 'a'", 4, "('a')", "AND, OR or a comparison"),
        ("offset + 1 > 5", 8, "+", "arithmetic is not available"),
        ("offset > 5 - 3", 12, "-", "arithmetic is not available"),
        ("-offset > 5", 1, "-", "a sign stands before a number"),
        ("offset % 2 = 0", 8, "%", "not available"),
        ("offset IN (SELECT 1)", 12, "SELECT", "subqueries are not available"),
        ("EXISTS (SELECT 1)", 1, "EXISTS", "subqueries are not available"),
        ("CAST(offset AS string) = '5'", 1, "CAST", "only CAST('...' AS TIMESTAMP)"),
        ("CAST('5' AS int) = offset", 1, "CAST", "only CAST('...' AS TIMESTAMP)"),
        ("offset::string = '5'", 7, "::", "not available"),
        ("CASE WHEN offset = 5 THEN TRUE END", 1, "CASE", "one of the columns"),
        ("offset = 5 -- five", 12, "-- five", "comments are not available"),
        ("offset = /* five */ 5", 10, "/* five */", "comments are not available"),
        ("offset = 5;", 11, ";", "not available"),
        ("offset = 5; DROP TABLE t", 11, ";", "not available"),
        ("offset = :five", 10, ":", "not available"),
        ("offset = ?", 10, "?", "not available"),
        ("offset > ALL (5)", 10, "ALL", "functions are not available"),
        ("topic RLIKE 'a.*'", 7, "RLIKE", "one of the columns"),
        ("offset IS DISTINCT FROM 5", 11, "DISTINCT", "one of the columns"),
        ("offset\x00 = 5", 1, r"offset\x00", "not available"),
    ],
)
def test_what_is_not_understood_is_said_where_it_stands(text, character, found, message):
    with pytest.raises(OptionError) as error:
        parse(text)
    said = str(error.value)
    where = found if found == "its end" else f"`{found}`"
    assert f"at character {character}, {where}: " in said
    assert message in said
    assert "\n" not in said


def test_timestamps_without_a_zone_are_of_the_zone_given():
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    expected = Comparison("timestamp", "=", NEW_YEAR_US - 3_600_000_000)
    assert parse_where("timestamp = '2026-01-01'", berlin) == expected
    assert parse_where("timestamp = '2026-01-01 00:00:00Z'", berlin) != expected


def test_relative_timestamps_are_relative_to_the_clock():
    before = time.time() * 1_000_000
    predicate = parse_where("timestamp > '-0 seconds'", dt.UTC)
    assert before - 1000 <= predicate.value <= time.time() * 1_000_000


# -- Limits --------


def test_long_flat_conditions_are_taken():
    alternatives = parse(" OR ".join(f"offset={number}" for number in range(500)))
    assert len(alternatives.children) == 500
    assert depth_of(alternatives) == 2
    assert len(parse(f"offset IN ({','.join('1' * 4000)})").values) == 4000
    assert parse("NOT " * 2000 + "offset = 1") == A
    assert parse("(" * 4000 + "offset = 1" + ")" * 4000) == A
    assert parse(f"offset < {'9' * 8000}") == offset(">=", LOWEST)
    assert parse(f"offset < {'0' * 8000}1") == offset("<", 1)
    assert parse("offset = " + "+" * 8000 + "1") == A


def nested(levels):
    """A condition with so many levels: comparison, AND, OR, AND, ..."""
    text = "offset = 1"
    for number in range(levels - 1):
        text = f"({text}) {'OR' if number % 2 else 'AND'} key = 'k'"
    return text


def test_a_condition_has_64_levels_at_the_most():
    assert depth_of(parse(nested(64))) == 64
    with pytest.raises(OptionError, match=r"at character 1, `.* at most 64 levels"):
        parse(nested(65))
    with pytest.raises(OptionError, match=r"at most 64 levels"):
        parse("NOT (" * 64 + "offset = 1" + ")" * 64)


def test_a_condition_has_8_kib_at_the_most():
    longest = "topic = '" + "ä" * ((8192 - 10) // 2) + "'"
    assert len(longest.encode()) == 8192
    assert parse(longest).column == "topic"
    with pytest.raises(OptionError, match=r"at most 8192 bytes in where, found one of 8193 .*character 1"):
        parse(longest + " ")


@given(
    st.text(max_size=40)
    | st.lists(
        st.sampled_from(
            ["offset", "key", "5", "'a'", "(", ")", ",", "=", "<", "AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE",
             "BETWEEN", "X'61'", "TRUE", "-", "`", "'", "<=>", "ESCAPE", "TIMESTAMP", "CAST", "AS", "--", "/*", "\\", "x"]
        ),
        max_size=12,
    ).map(" ".join)
)  # fmt: skip
def test_any_text_is_a_condition_or_an_error_in_one_line(text):
    try:
        predicate = parse(text)
    except OptionError as error:
        assert "character" in str(error)  # noqa: PT017  (either is right)
    else:
        assert depth_of(predicate) <= 64


def test_without_sqlglot_the_error_says_what_to_install():
    code = """
import sys, datetime
sys.modules["sqlglot"] = None
import storage_core
from storage_core.scan.where_text import parse_where
try:
    parse_where("offset = 1", datetime.timezone.utc)
except storage_core.errors.OptionError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "needs sqlglot, which is not installed" in done.stdout
    assert "pip install 'spark-segmentlog[spark]' (or 'spark-segmentlog[cli]')" in done.stdout


def test_sqlglot_is_loaded_by_a_condition_and_not_before():
    code = """
import sys, datetime
from storage_core.scan import parse_read_options
parse_read_options({"path": "/a"})
before = "sqlglot" in sys.modules
parse_read_options({"path": "/a", "where": "offset = 1"})
print(before, "sqlglot" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
