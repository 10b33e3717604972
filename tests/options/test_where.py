"""Conditions in text: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

import datetime as dt
import sys
import zoneinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import OptionError
from storage_core.options import parse_read_options
from storage_core.options.predicate import And, Comparison, In, IsNull, Not, Or, StartsWith, Unknown, depth_of
from storage_core.options.where import _parts, _Source, parse_where

NOW_MS = 1_767_225_600_000
NEW_YEAR_US = NOW_MS * 1000
LOWEST = -(2**63)
TRUE, FALSE = And(()), Or(())


def parse(text):
    return parse_where(text, dt.UTC, NOW_MS).predicate


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
        ("topic LIKE 'a' ESCAPE '/'", Comparison("topic", "=", "a")),
        ("topic LIKE ('a/%') ESCAPE r'/'", Comparison("topic", "=", "a%")),
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
        # comparisons with what no column can hold: the same answer for all but nulls
        ("offset <= 9223372036854775808", offset(">=", LOWEST)),
        ("offset != 9223372036854775808", offset(">=", LOWEST)),
        ("offset = 9223372036854775808", offset("<", LOWEST)),
        ("offset > 9223372036854775808", offset("<", LOWEST)),
        ("offset > -9223372036854775809", offset(">=", LOWEST)),
        ("offset < -9223372036854775809", offset("<", LOWEST)),
        # null is unknown, but for the operators that ask for it
        ("key = NULL", Unknown()),
        ("NULL < 5", Unknown()),
        ("key <=> NULL", IsNull("key")),
        ("5 <=> 5", TRUE),
        ("'a' <=> topic", And((Not(IsNull("topic")), Comparison("topic", "=", "a")))),
        ("'' IS NULL", FALSE),
        ("offset IN (NULL)", Or((In("offset", ()), Unknown()))),
        ("NULL IN (5)", Unknown()),
        ("NULL BETWEEN 1 AND 5", And((Unknown(), Unknown()))),
        ("NULL LIKE 'a'", Unknown()),
        ("key LIKE NULL", Unknown()),
        ("(key IS NULL)", IsNull("key")),
        ("NULL IS NULL AND key = NULL", And((TRUE, Unknown()))),
        ("key IS NOT NULL OR key IS NULL", Or((Not(IsNull("key")), IsNull("key")))),
        # times
        ("timestamp = '2026'", Comparison("timestamp", "=", NEW_YEAR_US)),
        ("timestamp = TIMESTAMP '2026-01-01'", Comparison("timestamp", "=", NEW_YEAR_US)),
        ("timestamp = cast('2026-01-01' AS timestamp)", Comparison("timestamp", "=", NEW_YEAR_US)),
        ("timestamp > '2026-01-01 01:00:00.000001+01:00'", Comparison("timestamp", ">", NEW_YEAR_US + 1)),
        ("timestamp > '-10 minutes'", Comparison("timestamp", ">", NEW_YEAR_US - 600_000_000)),
        # names
        ("`Offset` = 1 AND TOPIC = 'a'", And((A, Comparison("topic", "=", "a")))),
        ("timestamp IS NULL OR partition IS NOT NULL", Or((IsNull("timestamp"), Not(IsNull("partition"))))),
        ("`KEY`<=>X'61'", And((Not(IsNull("key")), Comparison("key", "=", b"a")))),
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
        ("NOT offset IN (5) AND TRUE", And((Not(In("offset", (5,))), TRUE))),
        ("NOT NOT NOT offset NOT BETWEEN 5 AND 6", Not(Not(And((offset(">=", 5), offset("<=", 6)))))),
        ("TRUE OR NOT NOT FALSE", Or((TRUE, FALSE))),
        ("! (topic in ('a', null))", Not(Or((In("topic", ("a",)), Unknown())))),
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
        ("timestamp > '-3 months'", 13, "'-3 months'", "not a unit of a fixed length"),
        ("key > TIMESTAMP '2026'", 7, "TIMESTAMP '2026'", "for key, found a timestamp"),
        ("offset = 1.5", 10, "1.5", "a whole number"),
        ("offset = 1e3", 10, "1e3", "a whole number"),
        ("offset = .5", 10, ".", "not available"),
        ("offset = 5D", 10, "5D", "a whole number"),
        ("offset LIKE 'a%'", 1, "offset", "topic, key or value before LIKE"),
        ("topic LIKE '%a'", 12, "'%a'", "with % at its end"),
        ("topic LIKE 'a_'", 12, "'a_'", "with % at its end"),
        ("topic LIKE 'a\\\\b'", 12, "'a\\\\b'", "after the escape character"),
        ("topic LIKE X'61'", 12, "X'61'", "a pattern in quotes"),
        ("topic LIKE 'a' ESCAPE 'bc'", 23, "'bc'", "one character after ESCAPE"),
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
        ("timestamp > now()", 13, "now", "Timestamps may be relative ('-10 minutes')"),
        ("key('a') = 'a'", 4, "('a')", "AND, OR or a comparison"),
        ("offset + 1 > 5", 8, "+", "arithmetic is not available"),
        ("offset > 5 - 3", 12, "-", "arithmetic is not available"),
        ("-offset > 5", 1, "-", "a sign comes before a number"),
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
        # Of several mistakes, the first is reported, but what is not a part of any condition comes before all.
        ("1 < offset < 5", 1, "1 < offset", "expected a column or a literal here"),
        ("offset = 5 NOT IN (5)", 1, "offset = 5", "expected a column or a literal here"),
        ("offset BETWEEN 1 AND", 21, "its end", "expected a value"),
        ("offset BETWEEN 1 2", 18, "2", "does not fit"),
        ("offset 5 AND ofset = 5", 14, "ofset", "Did you mean 'offset'?"),
        ("topic = 'it's'", 14, "'", "the quote that begins here"),
        ("offset => 5", 8, "=>", "not available"),
        ("offset = 5 /* five", 12, "/* five", "comments are not available"),
        ("5 BETWEEN 1 AND 2", 1, "5", "a column before BETWEEN"),
        ("5 LIKE 'a'", 1, "5", "a column before LIKE"),
        ("timestamp LIKE 'a'", 1, "timestamp", "topic, key or value before LIKE"),
        ("topic LIKE 1", 12, "1", "a pattern in quotes"),
        ("topic LIKE '%a%'", 12, "'%a%'", "with % at its end"),
        ("key = value", 1, "key = value", "found two columns"),
        ("(key IS NULL) = 1", 1, "(key IS NULL)", "found a condition"),
        ("(key IS NULL) <=> NULL", 1, "(key IS NULL)", "found a condition"),
        ("(key IS NULL) IS NULL", 1, "(key IS NULL)", "a column before IS NULL"),
        ("offset IN ((key IS NULL))", 12, "(key IS NULL)", "found a condition"),
        ("timestamp = 'soon'", 13, "'soon'", "expected a time"),
        ("timestamp = 5", 13, "5", "for timestamp, found a number"),
        ("offset = '1'", 10, "'1'", "a whole number for offset, found a text"),
        ("topic = 1", 9, "1", "for topic, found a number"),
        ("1", 1, "1", "found a literal alone"),
        ("key", 1, "key", "found the column alone"),
        ("1 IN (1)", 1, "1", "a column before IN"),
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


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("key == customer-1219", "customer"),
        ("topic<>orders", "orders"),
        ("topic = `orders`", "orders"),
        ("key LIKE abc", "abc"),
        ("topic BETWEEN a AND 'b'", "a"),
        ("topic in ( a, 'b')", "a"),
        ("topic IN ('a', b)", "b"),
    ],
)
def test_a_word_in_the_place_of_a_value_needs_quotes(text, word):
    with pytest.raises(
        OptionError, match=f"timestamp, key, value[.] Text needs single quotes, for example '{word}'[.]$"
    ):
        parse(text)


@pytest.mark.parametrize("text", ["size > 5", "offset > 5 AND size", "(size = 1)", "topic RLIKE 'a'"])
def test_a_word_in_the_place_of_a_column_needs_no_quotes(text):
    with pytest.raises(OptionError, match=r"timestamp, key, value[.]$"):
        parse(text)


def test_timestamps_without_a_zone_are_of_the_zone_given():
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    expected = Comparison("timestamp", "=", NEW_YEAR_US - 3_600_000_000)
    assert parse_where("timestamp = '2026-01-01'", berlin, NOW_MS).predicate == expected
    assert parse_where("timestamp = '2026-01-01 00:00:00Z'", berlin, NOW_MS).predicate != expected


def test_an_error_names_the_character_the_text_and_the_reason():
    with pytest.raises(OptionError) as error:
        parse("some text")
    assert str(error.value).startswith(
        "The condition in where is not understood at character 1, `some`: expected one of the columns topic, "
    )
    with pytest.raises(OptionError, match=f"at character 10, `'{'x' * 79}[.]{{3}}`: "):
        parse(f"offset = '{'x' * 500}'")
    with pytest.raises(OptionError, match="at character 11, its end: "):
        parse("offset IS ")


def test_errors_list_no_columns_that_views_refuse():
    with pytest.raises(OptionError, match=r"one of the columns topic, partition, offset, timestamp[.]$"):
        parse_read_options({"path": "/logs", "view": "segments", "where": "size > 5"})
    with pytest.raises(OptionError, match=r"timestamp, key, value[.]$"):
        parse_read_options({"path": "/logs", "where": "size > 5"})


@pytest.mark.parametrize(
    ("comparison", "flipped"), [("=", "="), ("!=", "!="), ("<", ">"), ("<=", ">="), (">", "<"), (">=", "<=")]
)
def test_a_literal_may_stand_on_either_side(comparison, flipped):
    assert parse(f"offset {comparison} 5") == Comparison("offset", comparison, 5)
    assert parse(f"5 {comparison} offset") == Comparison("offset", flipped, 5)


@pytest.mark.parametrize(
    ("column", "literal", "value"),
    [
        ("topic", "'ä'", "ä"),
        ("key", "'ä'", b"\xc3\xa4"),
        ("value", "X'ff'", b"\xff"),
        ("partition", "1099511627776", 2**40),
        ("timestamp", "'1970-01-01 00:00:01'", 1_000_000),
        ("timestamp", "TIMESTAMP '1970'", 0),
        ("timestamp", "'-1 second'", NEW_YEAR_US - 1_000_000),
    ],
)
def test_literals_become_values_of_their_column(column, literal, value):
    assert parse(f"{column} = {literal}") == Comparison(column, "=", value)
    assert parse(f"{column} IN ({literal}, {literal})") == In(column, (value, value))


# -- Texts; what Spark makes of them was looked up in Spark 4.3 --------


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        ("''", ""),
        ("'abc'", "abc"),
        ('"abc"', "abc"),
        ("'it''s'", "it's"),
        ('"it\'s"', "it's"),
        (r"'it\'s'", "it's"),
        (r"'a\\b'", "a\\b"),
        (r"'\n\t\r\b\0\Z'", "\n\t\r\b\0\x1a"),
        # For LIKE to see them.
        (r"'\%\_'", r"\%\_"),
        (r"'\q\ä\x41'", "qäx41"),
        (r"'\u0041\u00e4'", "Aä"),
        (r"'\u004'", "u004"),
        (r"'\U0001f600'", "\U0001f600"),
        (r"'\ud83d\ude00'", "\U0001f600"),
        (r"'\101\060'", "A0"),
        # Beyond ASCII an octal code is none.
        (r"'\344'", "344"),
        (r"'\08'", "\x008"),
        (r"r'a\nb'", r"a\nb"),
        (r'R"a\"', "a\\"),
        ("'a\nb'", "a\nb"),
        # Literals that follow each other are one; without a blank, the quote is doubled.
        ("'a''b' 'c' \"d\"", "a'bcd"),
        ("'a'\"b\"", "ab"),
        (r"r'\'  '\n''b'", "\\\n'b"),
        (r'"\"""b"', '""b'),
    ],
)
def test_a_literal_stands_for_a_text(literal, text):
    assert parse(f"topic = {literal}") == Comparison("topic", "=", text)


@pytest.mark.parametrize("literal", [r"'\ud800'", r"'\ude00\ud83d'", r"'\Uffffffff'"])
def test_half_a_pair_and_no_character_are_refused(literal):
    with pytest.raises(OptionError, match="expected a text of Unicode characters"):
        parse(f"topic = {literal}")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", ("", False)),
        ("abc", ("abc", False)),
        ("abc%", ("abc", True)),
        ("abc%%%", ("abc", True)),
        ("%", ("", True)),
        (r"a\%b%", ("a%b", True)),
        (r"a\_b", ("a_b", False)),
        (r"a\\%", ("a\\", True)),
        (r"a\\\%", ("a\\%", False)),
        ("a\n%", ("a\n", True)),
    ],
)
def test_a_pattern_is_a_text_or_a_prefix(pattern, expected):
    assert like(pattern) == expected


def like(pattern, escape=""):
    """Return the text of a pattern, and whether more may follow."""
    predicate = parse(f"topic LIKE r'{pattern}' {escape}")
    if isinstance(predicate, StartsWith):
        return predicate.prefix, True
    assert predicate.operator == "="
    return predicate.value, False


def test_the_escape_character_may_be_another():
    assert like("a/%/_//%", "ESCAPE '/'") == ("a%_/", True)
    assert like("a\\%", "ESCAPE '/'") == ("a\\", True)
    # Even a wildcard: then it is one no more.
    assert like("abc", "ESCAPE '%'") == ("abc", False)
    assert like("a%%b", "ESCAPE '%'") == ("a%b", False)
    assert like("a^^^%%", "ESCAPE '^'") == ("a^%", True)
    assert like("a/%", "ESCAPE '/'") == ("a%", False)
    assert like("a\n\n", "ESCAPE '\n'") == ("a\n", False)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("%a", "without wildcards, or with % at its end"),
        ("a%b%", "without wildcards, or with % at its end"),
        ("a_", "without wildcards, or with % at its end"),
        (r"a\b", "after the escape character"),
        ("a\\", "after the escape character"),
    ],
)
def test_other_patterns_are_refused(pattern, message):
    with pytest.raises(OptionError, match=message):
        like(pattern)


# -- Parts: keywords, symbols and operands --------


def parts(text):
    return _parts(_Source(text, dt.UTC, NOW_MS))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("offset >= -5", [("column", "offset"), ">=", ("number", -5)]),
        ("`KEY`<=>X'61'", [("column", "key"), "<=>", ("bytes", b"a")]),
        ("! (topic in ('a', null))", ["NOT", "(", ("column", "topic"), "IN", "(", ("text", "a"), ",", ("null", Unknown()), ")", ")"]),
        ("timestamp TIMESTAMP '2026'", [("column", "timestamp"), ("time", "2026")]),
        ("CAST ( '2026' AS TIMESTAMP )", [("time", "2026")]),
        ("'a''b' 'c' \"d\"", [("text", "a'bcd")]),
        ("'a' r'b'", [("text", "a"), ("text", "b")]),
        (r"key = r'a\' or r'\n' = 'a\''", [("column", "key"), "=", ("text", "a\\"), "OR", ("text", r"\n"), "=", ("text", "a'")]),
        ("5L, 05 = - - +5", [("number", 5), ",", ("number", 5), "=", ("number", 5)]),
        # Huge numbers keep their sign and no more.
        ("9" * 5000, [("number", 10**30)]),
        ("-" + "9" * 5000, [("number", -(10**30))]),
        ("9" * 30, [("number", 10**30 - 1)]),
    ],
)  # fmt: skip
def test_a_text_is_split_into_parts(text, expected):
    assert [part.kind if part.value is None else (part.kind, part.value) for part in parts(text)] == expected


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("offset = 'ä' AND key", ["offset", "=", "'ä'", "AND", "key"]),
        ("offset = - 5", ["offset", "=", "- 5"]),
        ("topic = 'a'  'b'", ["topic", "=", "'a'  'b'"]),
        ("timestamp = CAST('1' AS TIMESTAMP)", ["timestamp", "=", "CAST('1' AS TIMESTAMP)"]),
        ("timestamp = timestamp  '1'", ["timestamp", "=", "timestamp  '1'"]),
        ("key = X''", ["key", "=", "X''"]),
        ("topic LIKE 'a' ESCAPE '/'", ["topic", "LIKE", "'a'", "ESCAPE", "'/'"]),
    ],
)
def test_each_part_knows_where_it_stands(text, places):
    assert [part.raw for part in parts(text)] == places


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("offset = '", "the quote that begins here"),
        ('key = X"0', "the quote that begins here"),
        ("offset /* a */ = 5", "comments are not available"),
        ("-- a", "comments are not available"),
        ("CAST('1' AS DATE)", "only CAST"),
        ("CAST('1' AS TIMESTAMP", "only CAST"),
        ("CAST(", "only CAST"),
        ("5 +", "arithmetic is not available"),
        ("-", "a sign comes before a number"),
        ("topic LIKE 'a' ESCAPE", "LIKE 'pattern' ESCAPE 'character'"),
        ("topic LIKE key ESCAPE", "LIKE 'pattern' ESCAPE 'character'"),
        ("n'a'", "not available"),
        ("`no such`", "one of the columns"),
        ("`key```", "one of the columns"),
        ("X'61'X'62'", "a blank after it"),
        ("r'a''b'", "a blank after it"),
        ("0x61", "whole number|one of the columns|not available"),
        ("$1", "not available"),
        ("/*+ hint */ offset = 5", "not available"),
    ],
)
def test_what_is_not_a_part_of_any_condition_is_refused(text, message):
    with pytest.raises(OptionError, match=message):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "NOT", "= 5", "offset offset = 5", "offset = = 5", "offset = NOT 5", "offset = 5 NOT", "offset NOT",
        "offset NOT NOT IN (5)", "offset NOT 5", "NOT IN (5)", "offset IN 5", "offset IN", "offset (5) 5", "(5)",
        "offset IN (5) = 5", "offset IN (5) IS NULL", "offset BETWEEN NOT 5 AND 6", "key LIKE NOT 'a'", "key IS 5",
        "key IS NOT 5", "key IS", "key IS NOT", "key IS NOT NOT NULL", "key IS NULL IS NULL", "key IS NULL = 5",
        "offset = 5 ,", ", offset = 5", "offset AND AND key", "offset AND TRUE", "AND offset", "offset OR", "key IS (NULL)",
        "TRUE OR NOT NOT key", "topic LIKE 'a' ESCAPE ('/')", "topic LIKE 'a' ESCAPE '/' ESCAPE '/'",
    ],
)  # fmt: skip
def test_parts_in_an_order_that_sql_does_not_have_are_refused(text):
    with pytest.raises(OptionError):
        parse(text)


def test_a_list_has_a_comma_between_its_values():
    assert parse("offset IN (5, NULL, 6)") == Or((In("offset", (5, 6)), Unknown()))
    for items in ["", ",", "5,", ", 5", "5 6", "5,, 6", "5, AND", "5 = 6"]:
        with pytest.raises(OptionError, match=r"a value|a comma|values, with commas between"):
            parse(f"offset IN ({items})")


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
    assert len(parse("(" * 700 + "key=''" + " OR 1=1)" * 700).children) == 701
    assert len(parse("1=1 or(" * 1000 + "1=1" + ")" * 1000).children) == 1001


def calls_to_parse(text):
    """Return how many functions are called."""
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        parse(text)
    except OptionError:
        pass
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(
    ("begin", "middle", "end"),
    [
        ("1=1 or(", "1=1", ")"),
        ("(", "1=1", " or 1=1)"),
        ("(1=1)or ", "1=1", ""),
        ("(", "1=1", ""),
        ("!(", "1=1", ")"),
        ("- ", "x", ""),
        ("''", "x", ""),
        ("1,", "1", ""),
        ("NOT ", "1=1", ""),
    ],
)
def test_twice_the_text_takes_twice_the_work(begin, middle, end):
    once, twice = (calls_to_parse(begin * times + middle + end * times) for times in (400, 800))
    assert twice < 2.2 * once


def nested(levels):
    """Return a condition with this many levels: comparison, AND, OR, AND, ..."""
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
