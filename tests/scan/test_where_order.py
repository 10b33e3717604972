"""Which word may stand behind which. Versions of sqlglot differ in what they let pass."""

from __future__ import annotations

import pytest
from sqlglot.dialects.dialect import Dialect

from storage_core.errors import OptionError
from storage_core.scan.where_conditions import Operand, Place
from storage_core.scan.where_lexemes import Lexeme, lexemes_of
from storage_core.scan.where_order import check_order, list_items


def lexemes(text):
    """With ``[]`` for a list."""
    found = []
    place = Place(text, 0, 1)
    for part in text.split("[]"):
        found += [
            *lexemes_of(part, Dialect.get_or_raise("spark")),
            Lexeme("list", place, None, Operand("list", (), place)),
        ]
    return found[:-1]  # fmt: skip


def checked(text):
    return [lexeme.word for lexeme in check_order(lexemes(text), Place(text, len(text), len(text)))]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("offset = 5", ["operand", "=", "operand"]),
        # No condition, but not for its order.
        ("offset", ["operand"]),
        ("NOT offset IN [] AND TRUE", ["NOT", "operand", "IN", "list", "AND", "operand"]),
        ("offset NOT IN []", ["operand", "NOT", "IN", "list"]),
        (
            "NOT NOT NOT offset NOT BETWEEN 5 AND 6",
            ["NOT", "operand", "NOT", "BETWEEN", "operand", "AND", "operand"],
        ),
        ("TRUE OR NOT NOT key", ["operand", "OR", "operand"]),
        ("key IS NOT NULL OR key IS NULL", ["operand", "IS", "NOT", "NULL", "OR", "operand", "IS", "NULL"]),
        # Here NULL is a value like any other.
        ("NULL IS NULL AND key = NULL", ["operand", "IS", "NULL", "AND", "operand", "=", "operand"]),
    ],
)
def test_what_sql_has(text, words):
    assert checked(text) == words


@pytest.mark.parametrize(
    "text",
    [
        "", "NOT", "= 5", "offset offset = 5", "offset = = 5", "offset = NOT 5", "offset = 5 NOT", "offset NOT",
        "offset NOT NOT IN []", "offset NOT 5", "NOT IN []", "offset IN 5", "offset IN", "offset [] 5", "[]",
        "offset IN [] = 5", "offset IN [] IS NULL", "offset BETWEEN NOT 5 AND 6", "key LIKE NOT 'a'", "key IS 5",
        "key IS NOT 5", "key IS", "key IS NOT", "key IS NOT NOT NULL", "key IS NULL IS NULL", "key IS NULL = 5",
        "offset = 5 ,", ", offset = 5", "offset AND AND key", "AND offset", "offset OR",
    ],
)  # fmt: skip
def test_what_sql_has_not(text):
    with pytest.raises(OptionError):
        checked(text)


def test_the_items_of_a_list():
    found = list_items(lexemes("5, NULL, 'a'"), Place("", 0, 0))
    assert [item.value for item in found] == [5, None, "a"]


@pytest.mark.parametrize("text", ["", ",", "5,", ", 5", "5 6", "5,, 6", "5, AND", "5 = 6"])
def test_no_list(text):
    with pytest.raises(OptionError):
        list_items(lexemes(text), Place(text, 0, len(text)))
