"""From operands of a condition in text to predicate nodes: which column takes which literal.

A column is compared with literals of its own type only. Where Spark would cast between a number
and a text, this is an error: the cast may fail for some rows only, or compare what nobody meant.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from storage_core.errors import OptionError
from storage_core.scan.predicate import (
    And,
    Comparison,
    In,
    IsNull,
    Not,
    Or,
    Predicate,
    StartsWith,
    Unknown,
)
from storage_core.scan.residual import ALWAYS, NEVER
from storage_core.scan.sql_strings import LikePatternError, like_prefix
from storage_core.scan.time_text import parse_sql_timestamp_us

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from storage_core.scan.predicate import Operator

__all__ = ["ConditionBuilder", "Operand", "Place"]

_INT64_LIMIT: Final = 1 << 63
_LONGEST_SHOWN: Final = 80
_FLIPPED: Final[dict[Operator, Operator]] = {
    "=": "=",
    "!=": "!=",
    "<": ">",
    "<=": ">=",
    ">": "<",
    ">=": "<=",
}
_COMPARE: Final = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_EXPECTED: Final = {
    "topic": "a text ('orders')",
    "partition": "a whole number",
    "offset": "a whole number",
    "timestamp": "a time ('2026-01-01T00:00:00Z', '2026-01-01', '-10 minutes')",
    "key": "a text ('k1') or bytes (X'6b31')",
    "value": "a text ('v1') or bytes (X'7631')",
}
_KINDS: Final = {
    "column": "another column",
    "text": "a text",
    "time": "a timestamp",
    "number": "a number",
    "bytes": "bytes",
    "null": "NULL",
    "list": "a list",
    "condition": "a condition",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands in the text of a condition."""

    text: str
    start: int
    end: int

    def error(self, message: str) -> OptionError:
        """Say why the condition is refused for what stands here."""
        found = self.text[self.start : self.end]
        if len(found) > _LONGEST_SHOWN:
            found = f"{found[:_LONGEST_SHOWN]}..."
        what = f"`{found}`" if found else "its end"
        where = f"at character {self.start + 1}, {what}"
        return OptionError(f"The condition in where is not understood {where}: {message}")

    def to(self, other: Place) -> Place:
        """From the beginning of this place to the end of another."""
        return Place(self.text, self.start, other.end)


@dataclass(frozen=True, slots=True)
class Operand:
    """A column, a literal, a list of operands, or a condition in parentheses.

    Attributes:
        kind: What it is.
        value: The column's name, the literal's value, or the condition.
        place: Where it stands.
        escape: Of a LIKE pattern, its escape character.
    """

    kind: Literal["column", "text", "time", "number", "bytes", "null", "list", "condition"]
    value: Any
    place: Place
    escape: str = "\\"


class ConditionBuilder:
    """Makes nodes.

    Args:
        zone: The zone of timestamps that name none.
        now_ms: What relative timestamps are relative to.
    """

    def __init__(self, zone: dt.tzinfo, now_ms: int) -> None:
        self._zone = zone
        self._now_ms = now_ms

    def condition(self, operand: Operand) -> Predicate:
        """An operand that stands alone, or beside AND, OR or NOT."""
        if operand.kind == "null":
            return Unknown()
        if operand.kind != "condition":
            what = "the column alone" if operand.kind == "column" else "a literal alone"
            raise operand.place.error(f"expected a condition (offset >= 100), found {what}.")
        predicate: Predicate = operand.value
        return predicate

    def comparison(self, left: Operand, comparison: Operator, right: Operand) -> Predicate:
        """``left <comparison> right``."""
        self._check_sides(left, right)
        if "null" in (left.kind, right.kind):
            return Unknown()
        if left.kind == "column":
            return self._column_comparison(left.value, comparison, right)
        if right.kind == "column":
            return self._column_comparison(right.value, _FLIPPED[comparison], left)
        if left.kind != right.kind or left.kind == "time":
            raise left.place.to(right.place).error("expected a column on one side, found two literals.")
        return ALWAYS if _COMPARE[comparison](left.value, right.value) else NEVER

    def null_safe_equality(self, left: Operand, right: Operand) -> Predicate:
        """``left <=> right``."""
        self._check_sides(left, right)
        if left.kind == "null" or right.kind == "null":
            return self.is_null(left if right.kind == "null" else right)
        equal = self.comparison(left, "=", right)
        column = left if left.kind == "column" else right
        return equal if column.kind != "column" else And((Not(IsNull(column.value)), equal))

    def is_null(self, operand: Operand) -> Predicate:
        """``operand IS NULL``."""
        if operand.kind == "condition":
            raise operand.place.error("expected a column before IS NULL, found a condition.")
        if operand.kind == "column":
            return IsNull(operand.value)
        return ALWAYS if operand.kind == "null" else NEVER

    def membership(self, operand: Operand, items: Sequence[Operand]) -> Predicate:
        """``operand IN (items)``."""
        if operand.kind == "null":
            return Unknown()
        column = self._column(operand, "IN")
        values = [self._value(column, item) for item in items if item.kind != "null"]
        fitting = In(column, tuple(value for value in values if not _is_beyond(value)))
        # Equal to none of the values, but perhaps to what is not known.
        return fitting if len(values) == len(items) else Or((fitting, Unknown()))

    def between(self, operand: Operand, low: Operand, high: Operand) -> Predicate:
        """``operand BETWEEN low AND high``."""
        if operand.kind != "null":
            self._column(operand, "BETWEEN")
        return And((self.comparison(operand, ">=", low), self.comparison(operand, "<=", high)))

    def like(self, operand: Operand, pattern: Operand) -> Predicate:
        """``operand LIKE pattern``."""
        if "null" in (operand.kind, pattern.kind):
            return Unknown()
        column = self._column(operand, "LIKE")
        if column not in ("topic", "key", "value"):
            raise operand.place.error("expected topic, key or value before LIKE.")
        if pattern.kind != "text":
            raise pattern.place.error("expected a pattern in quotes behind LIKE ('abc%').")
        try:
            text, is_prefix = like_prefix(pattern.value, pattern.escape)
        except LikePatternError as error:
            raise pattern.place.error(str(error)) from None
        value = text if column == "topic" else text.encode()
        return StartsWith(column, value) if is_prefix else Comparison(column, "=", value)

    def _check_sides(self, left: Operand, right: Operand) -> None:
        for operand in (left, right):
            if operand.kind == "condition":
                raise operand.place.error(
                    "expected a column or a literal to compare with, found a condition."
                )
        if left.kind == right.kind == "column":
            raise left.place.to(right.place).error("expected a literal on one side, found two columns.")

    def _column(self, operand: Operand, word: str) -> str:
        if operand.kind != "column":
            raise operand.place.error(f"expected a column before {word}.")
        name: str = operand.value
        return name

    def _column_comparison(self, column: str, comparison: Operator, literal: Operand) -> Predicate:
        value = self._value(column, literal)
        if not _is_beyond(value):
            return Comparison(column, comparison, value)
        # No 64-bit integer is as large, or as small: the same answer for all but nulls.
        is_true = _COMPARE[comparison](0, value)
        return Comparison(column, ">=" if is_true else "<", -_INT64_LIMIT)

    def _value(self, column: str, literal: Operand) -> Any:
        """A literal as the value of a column."""
        kind, value = literal.kind, literal.value
        if column == "timestamp" and kind in ("text", "time"):
            return self._timestamp_us(literal)
        if column == "topic" and kind == "text":
            return value
        if column in ("partition", "offset") and kind == "number":
            return value
        if column in ("key", "value") and kind in ("text", "bytes"):
            return value.encode() if kind == "text" else value
        raise literal.place.error(f"expected {_EXPECTED[column]} for {column}, found {_KINDS[kind]}.")

    def _timestamp_us(self, literal: Operand) -> int:
        try:
            timestamp_us = parse_sql_timestamp_us(literal.value, self._zone, self._now_ms)
        except OptionError as error:
            raise literal.place.error(str(error)) from None
        if timestamp_us is None:
            raise literal.place.error(f"expected {_EXPECTED['timestamp']}.")
        return timestamp_us


def _is_beyond(value: object) -> bool:
    return isinstance(value, int) and not -_INT64_LIMIT <= value < _INT64_LIMIT
