"""Conditions on records: frozen nodes.

A predicate is a small tree over the columns ``topic``, ``partition``, ``offset``,
``timestamp``, ``key`` and ``value``. Filters that Spark pushes down and conditions in text are
translated into these nodes.

`storage_core.scan.row_filter.evaluate` applies a predicate exactly, with SQL's three-valued logic: a comparison with a null
is unknown, and a row is kept only where the whole predicate is true. `storage_core.scan.pruning` derives what need not
be read.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, get_args

from storage_core.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

Operator: TypeAlias = Literal["=", "!=", "<", "<=", ">", ">="]
OPERATORS: Final[tuple[Operator, ...]] = get_args(Operator)
Value: TypeAlias = str | int | bytes
# Bounds the recursion over a predicate.
MAX_DEPTH: Final = 64
# The type of values by column. Timestamps are microseconds since 1970, the unit of the column: no
# precision is lost, and no time zone is left to guess.
VALUE_TYPES: Final[dict[str, type]] = {
    "topic": str,
    "partition": int,
    "offset": int,
    "timestamp": int,
    "key": bytes,
    "value": bytes,
}
INT64_LIMIT: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class And:
    """True where every child is true; no child: true everywhere."""

    children: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """True where at least one child is true; no child: false everywhere."""

    children: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """True where the child is false; unknown where the child is unknown."""

    child: Predicate


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of a column with a value; unknown where the column is null."""

    column: str
    operator: Operator
    value: Value

    def __post_init__(self) -> None:
        _check_value(self.column, self.value)
        if self.operator not in OPERATORS:
            raise OptionError(f"Expected one of {', '.join(OPERATORS)}, found operator {self.operator!r}.")


@dataclass(frozen=True, slots=True)
class In:
    """True where the column equals one of the values; unknown where it is null."""

    column: str
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        _check_column(self.column)
        for value in self.values:
            _check_value(self.column, value)


@dataclass(frozen=True, slots=True)
class IsNull:
    """True where the column is null, false elsewhere; never unknown."""

    column: str

    def __post_init__(self) -> None:
        _check_column(self.column)


@dataclass(frozen=True, slots=True)
class StartsWith:
    """True where a text or binary column begins with the prefix; unknown where it is null."""

    column: str
    prefix: str | bytes

    def __post_init__(self) -> None:
        _check_value(self.column, self.prefix)
        if VALUE_TYPES[self.column] is int:
            raise OptionError(f"Expected a text or binary column for a prefix, found {self.column!r}.")


@dataclass(frozen=True, slots=True)
class Unknown:
    """Unknown everywhere: what a comparison with NULL is."""


Predicate: TypeAlias = And | Or | Not | Comparison | In | IsNull | StartsWith | Unknown
ALWAYS: Final = And(())
NEVER: Final = Or(())
COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _check_column(column: str) -> None:
    if column not in VALUE_TYPES:
        raise OptionError(
            f"Expected one of {', '.join(VALUE_TYPES)} in a condition, found column {column!r}."
        )


def _check_value(column: str, value: object) -> None:
    _check_column(column)
    expected = VALUE_TYPES[column]
    # A bool is an int to Python, but comparing an offset with one is a mistake.
    if not isinstance(value, expected) or isinstance(value, bool):
        raise OptionError(
            f"Expected a value of type {expected.__name__} for column {column!r} in a condition, "
            f"found {value!r} of type {type(value).__name__}."
        )
    if is_beyond_int64(value):
        raise OptionError(f"Expected a 64-bit integer for column {column!r} in a condition, found {value}.")


def is_beyond_int64(value: object) -> bool:
    """Return True if a value is an integer that no column can hold."""
    return isinstance(value, int) and not -INT64_LIMIT <= value < INT64_LIMIT


def checked_predicate(value: object) -> Predicate:
    """Check a predicate that a caller built.

    Raises:
        OptionError: It is no predicate, contains something else, or is deeper than `MAX_DEPTH`.
    """
    pending: list[tuple[object, int]] = [(value, 1)]
    while pending:
        node, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise OptionError(f"Expected a condition of at most {MAX_DEPTH} levels, found a deeper one.")
        match node:
            case And(children) | Or(children):
                pending += [(child, depth + 1) for child in children]
            case Not(child):
                pending.append((child, depth + 1))
            case Comparison() | In() | IsNull() | StartsWith() | Unknown():
                pass
            case _:
                raise OptionError(
                    f"Expected the text of a condition or a Predicate, found {node!r} of type {type(node).__name__}."
                )
    return cast("Predicate", value)


def depth_of(predicate: Predicate) -> int:
    """Count the levels of a checked predicate: 1 without children."""
    match predicate:
        case And(children) | Or(children):
            return 1 + max(map(depth_of, children), default=0)
        case Not(child):
            return 1 + depth_of(child)
        case _:
            return 1


def columns_of(predicate: Predicate) -> frozenset[str]:
    """Return the columns that must be decoded to evaluate a predicate."""
    match predicate:
        case And(children) | Or(children):
            return frozenset().union(*map(columns_of, children))
        case Not(child):
            return columns_of(child)
        case Unknown():
            return frozenset()
        case _:
            return frozenset((predicate.column,))
