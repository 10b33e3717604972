"""What may follow what in a condition.

Checked before sqlglot sees it, which takes some orders of words that no SQL has, and differs
between its versions in which.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.scan.where_conditions import Operand, Place
    from storage_core.scan.where_lexemes import Lexeme

__all__ = ["check_order", "list_items"]

_COMPARISONS: Final = frozenset({"=", "==", "<=>", "<>", "!=", "<", "<=", ">", ">="})
_CONDITION: Final = ({"operand", "NOT"}, "a condition")
_VALUE: Final = ({"operand"}, "a value")
# Behind each word: what may follow, and what to call it.
_FOLLOWING: Final[dict[str, tuple[set[str], str]]] = {
    "start": _CONDITION,
    "operand": (
        {"comparison", "AND", "OR", "NOT behind", "IN", "BETWEEN", "LIKE", "IS", "end"},
        "AND, OR or a comparison",
    ),
    "comparison": ({"operand"}, "a column or a value to compare with"),
    "AND": _CONDITION,
    "OR": _CONDITION,
    "NOT": _CONDITION,
    "NOT behind": ({"IN", "BETWEEN", "LIKE"}, "IN, BETWEEN or LIKE"),
    "IN": ({"list"}, "a list of values in parentheses"),
    "list": ({"AND", "OR", "end"}, "AND or OR"),
    "BETWEEN": _VALUE,
    "LIKE": ({"operand"}, "a pattern"),
    "IS": ({"NULL", "IS NOT"}, "NULL or NOT NULL"),
    "IS NOT": ({"NULL"}, "NULL"),
    "NULL": ({"AND", "OR", "end"}, "AND or OR"),
}


def check_order(lexemes: Sequence[Lexeme], end: Place) -> list[Lexeme]:
    """Check the order of the lexemes of one group.

    Args:
        lexemes: Those between two parentheses, or of the whole condition.
        end: Where they end.

    Returns:
        The same without pairs of NOT, and with the NULL of IS NULL as such.

    Raises:
        OptionError: One stands where it cannot.
    """
    checked: list[Lexeme] = []
    kinds = ["start"]
    for lexeme in lexemes:
        kind = _kind(lexeme, kinds[-1])
        following, expected = _FOLLOWING[kinds[-1]]
        if kind not in following:
            raise lexeme.place.error(f"expected {expected} here.")
        if kind == kinds[-1] == "NOT":
            # They cancel each other, for what is unknown too.
            checked.pop()
            kinds.pop()
            continue
        checked.append(dataclasses.replace(lexeme, word="NULL", operand=None) if kind == "NULL" else lexeme)
        kinds.append(kind)
    following, expected = _FOLLOWING[kinds[-1]]
    if "end" not in following:
        raise end.error(f"expected {expected} before it.")
    return checked


def _kind(lexeme: Lexeme, before: str) -> str:
    if lexeme.word in _COMPARISONS:
        return "comparison"
    if lexeme.word == "NOT":
        return {"operand": "NOT behind", "IS": "IS NOT"}.get(before, "NOT")
    is_null = lexeme.operand is not None and lexeme.operand.kind == "null"
    if is_null and before in ("IS", "IS NOT") and lexeme.place.text[lexeme.place.start] != "(":
        return "NULL"
    return lexeme.word


def list_items(lexemes: Sequence[Lexeme], place: Place) -> tuple[Operand, ...]:
    """The operands of a list, which commas separate.

    Args:
        lexemes: Those between the parentheses.
        place: The list.

    Raises:
        OptionError: It is none, or empty.
    """
    items = []
    for number, lexeme in enumerate(lexemes):
        is_item = number % 2 == 0
        if is_item and lexeme.operand is not None:
            items.append(lexeme.operand)
        elif is_item or lexeme.word != ",":
            raise lexeme.place.error(f"expected {'a value' if is_item else 'a comma'} here.")
    if len(lexemes) % 2 == 0:
        raise place.error("expected values, with commas between them.")
    return tuple(items)
