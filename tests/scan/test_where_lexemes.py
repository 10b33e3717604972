"""From text to words: what sqlglot finds, and what a condition may have of it."""

from __future__ import annotations

import pytest
from sqlglot.dialects.dialect import Dialect

from storage_core.errors import OptionError
from storage_core.scan.where_lexemes import lexemes_of


def lexemes(text):
    return lexemes_of(text, Dialect.get_or_raise("spark"))


def shown(text):
    """The words, and of operands kind and value."""
    return [
        (lexeme.operand.kind, lexeme.operand.value) if lexeme.operand else lexeme.word
        for lexeme in lexemes(text)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("offset >= -5", [("column", "offset"), ">=", ("number", -5)]),
        ("`KEY`<=>X'61'", [("column", "key"), "<=>", ("bytes", b"a")]),
        ("! (topic in ('a', null))", ["NOT", "(", ("column", "topic"), "IN", "(", ("text", "a"), ",", ("null", None), ")", ")"]),
        ("timestamp TIMESTAMP '2026'", [("column", "timestamp"), ("time", "2026")]),
        ("CAST ( '2026' AS TIMESTAMP )", [("time", "2026")]),
        ("topic LIKE 'a' ESCAPE '/'", [("column", "topic"), "LIKE", ("text", "a")]),
        ("'a''b' 'c' \"d\"", [("text", "a'bcd")]),
        ("'a' r'b'", [("text", "a"), ("text", "b")]),
        (r"key = r'a\' or r'\n' = 'a\''", [("column", "key"), "=", ("text", "a\\"), "OR", ("text", r"\n"), "=", ("text", "a'")]),
        ("5L, 05 = - - +5", [("number", 5), ",", ("number", 5), "=", ("number", 5)]),
    ],
)  # fmt: skip
def test_words_are_keywords_symbols_and_operands(text, expected):
    assert shown(text) == expected


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("offset = 'ä' AND key", ["offset", "=", "'ä'", "AND", "key"]),
        ("offset = - 5", ["offset", "=", "- 5"]),
        ("topic = 'a'  'b'", ["topic", "=", "'a'  'b'"]),
        ("timestamp = CAST('1' AS TIMESTAMP)", ["timestamp", "=", "CAST('1' AS TIMESTAMP)"]),
        ("timestamp = timestamp  '1'", ["timestamp", "=", "timestamp  '1'"]),
        ("key = X''", ["key", "=", "X''"]),
    ],
)
def test_each_word_knows_where_it_stands(text, places):
    found = lexemes(text)
    assert [text[lexeme.place.start : lexeme.place.end] for lexeme in found] == places
    assert all(lexeme.operand.place == lexeme.place for lexeme in found if lexeme.operand)


def test_an_escape_goes_with_its_pattern():
    *_, pattern = lexemes("topic LIKE 'a' ESCAPE '/'")
    assert pattern.operand.escape == "/"
    assert lexemes("topic LIKE 'a'")[-1].operand.escape == "\\"


def test_huge_numbers_keep_their_sign_and_no_more():
    assert shown("9" * 5000) == [("number", 10**30)]
    assert shown("-" + "9" * 5000) == [("number", -(10**30))]
    assert shown("9" * 30) == [("number", 10**30 - 1)]


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
        ("-", "a sign stands before a number"),
        ("topic LIKE 'a' ESCAPE", "LIKE 'pattern' ESCAPE 'character'"),
        ("topic LIKE key ESCAPE", "LIKE 'pattern' ESCAPE 'character'"),
        ("n'a'", "not available"),
        ("`no such`", "one of the columns"),
        ("X'61'X'62'", "a blank behind it"),
        ("r'a''b'", "a blank behind it"),
        ("0x61", "whole number|one of the columns|not available"),
        ("$1", "not available"),
        ("/*+ hint */ offset = 5", "not available"),
    ],
)
def test_everything_else_is_refused(text, message):
    with pytest.raises(OptionError, match=message):
        lexemes(text)
