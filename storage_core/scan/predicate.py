"""Conditions on records: frozen nodes and the one evaluator.

A predicate is a small tree over the columns ``topic``, ``partition``, ``offset``,
``timestamp``, ``key`` and ``value``. Filters that Spark pushes down and conditions in text are
translated into these nodes.

`evaluate` applies a predicate exactly, with SQL's three-valued logic: a comparison with a
null is unknown, and a row is kept only where the whole predicate is true.
`storage_core.scan.pruning` derives what need not be read.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable


Operator: TypeAlias = Literal["=", "!=", "<", "<=", ">", ">="]
Value: TypeAlias = str | int | bytes
# Bounds the recursion over a predicate.
MAX_DEPTH: Final = 64
# The type of values by column. Timestamps are microseconds since 1970, the unit of the column: no
# precision is lost, and no time zone is left to guess.
_VALUE_TYPES: Final[dict[str, type]] = {
    "topic": str,
    "partition": int,
    "offset": int,
    "timestamp": int,
    "key": bytes,
    "value": bytes,
}
INT64_LIMIT: Final = 1 << 63
_COMPARE: Final[dict[str, Callable[[pa.Array, pa.Scalar], pa.BooleanArray]]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


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
    """A column compared with a value; unknown where the column is null."""

    column: str
    operator: Operator
    value: Value

    def __post_init__(self) -> None:
        _check_value(self.column, self.value)
        if self.operator not in _COMPARE:
            raise OptionError(f"Expected one of {', '.join(_COMPARE)}, found operator {self.operator!r}.")


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
        if _VALUE_TYPES[self.column] is int:
            raise OptionError(f"Expected a text or binary column for a prefix, found {self.column!r}.")


@dataclass(frozen=True, slots=True)
class Unknown:
    """Unknown everywhere: what a comparison with NULL is."""


Predicate: TypeAlias = And | Or | Not | Comparison | In | IsNull | StartsWith | Unknown


def _check_column(column: str) -> None:
    if column not in _VALUE_TYPES:
        raise OptionError(
            f"Expected one of {', '.join(_VALUE_TYPES)} in a condition, found column {column!r}."
        )


def _check_value(column: str, value: object) -> None:
    _check_column(column)
    expected = _VALUE_TYPES[column]
    # A bool is an int to Python, but comparing an offset with one is a mistake.
    if not isinstance(value, expected) or isinstance(value, bool):
        raise OptionError(
            f"Expected a value of type {expected.__name__} for column {column!r} in a condition, "
            f"found {value!r} of type {type(value).__name__}."
        )
    if is_beyond_int64(value):
        raise OptionError(f"Expected a 64-bit integer for column {column!r} in a condition, found {value}.")


def is_beyond_int64(value: object) -> bool:
    """Whether a value is an integer that no column can hold."""
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
    """How many levels a checked predicate has: 1 without children."""
    match predicate:
        case And(children) | Or(children):
            return 1 + max(map(depth_of, children), default=0)
        case Not(child):
            return 1 + depth_of(child)
        case _:
            return 1


def columns_of(predicate: Predicate) -> frozenset[str]:
    """The columns that must be decoded to evaluate ``predicate``."""
    match predicate:
        case And(children) | Or(children):
            return frozenset().union(*map(columns_of, children))
        case Not(child):
            return columns_of(child)
        case Unknown():
            return frozenset()
        case _:
            return frozenset((predicate.column,))


def evaluate(predicate: Predicate, batch: pa.RecordBatch) -> pa.BooleanArray:
    """Apply ``predicate`` to each row: true, false, or null for unknown."""
    match predicate:
        case And(children):
            return _combine(pc.and_kleene, children, batch, if_none=True)
        case Or(children):
            return _combine(pc.or_kleene, children, batch, if_none=False)
        case Not(child):
            return pc.invert(evaluate(child, batch))
        case IsNull(column):
            return batch.column(column).is_null()
        case Unknown():
            return pa.nulls(batch.num_rows, pa.bool_())
        case _:
            return _test_values(predicate, _comparable(batch.column(predicate.column)))


def _test_values(predicate: Comparison | In | StartsWith, array: pa.Array) -> pa.BooleanArray:
    match predicate:
        case Comparison(column, operator, value):
            return _COMPARE[operator](array, pa.scalar(value, type=_arrow_type(column)))
        case In(column, values):
            found = pc.is_in(array, value_set=pa.array(values, type=_arrow_type(column)))
            # is_in answers false for a null; SQL's answer is unknown.
            return pc.if_else(array.is_valid(), found, pa.scalar(None, pa.bool_()))
        case StartsWith(_, prefix):
            return pc.starts_with(array, pattern=prefix)


def _combine(
    operation: Callable[[pa.BooleanArray, pa.BooleanArray], pa.BooleanArray],
    children: tuple[Predicate, ...],
    batch: pa.RecordBatch,
    *,
    if_none: bool,
) -> pa.BooleanArray:
    if not children:
        return pa.repeat(pa.scalar(if_none), batch.num_rows)
    return functools.reduce(operation, (evaluate(child, batch) for child in children))


def _comparable(array: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(array.type):
        return array.view(pa.int64())
    # A partition is 32 bits wide, but may be compared with any integer.
    return array.cast(pa.int64()) if pa.types.is_integer(array.type) else array


def _arrow_type(column: str) -> pa.DataType:
    return {str: pa.string(), bytes: pa.binary(), int: pa.int64()}[_VALUE_TYPES[column]]
