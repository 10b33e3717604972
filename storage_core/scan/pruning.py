"""Prune by a predicate: what is left of it for one partition, and the bounds that it sets to offsets and timestamps.

All records of a partition share its topic and number, so conditions on these are decided exactly,
without reading a record. `residual` is the rest: `ALWAYS` needs no evaluation, `NEVER` no reading.

`prune` derives bounds that never exclude a row that could match. They may include rows that do not,
because the predicate is applied to every row that is read.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from storage_core.options.predicate import (
    ALWAYS,
    COMPARE,
    NEVER,
    And,
    Comparison,
    In,
    IsNull,
    Not,
    Operator,
    Or,
    Predicate,
    StartsWith,
    Unknown,
    Value,
)

if TYPE_CHECKING:
    from collections.abc import Callable


NEVER_NULL: Final = frozenset({"topic", "partition", "offset"})


@dataclass(frozen=True, slots=True)
class KnownFields:
    """Fields that are known of some records before they are read. Their offsets are below the end, if it is known."""

    topic: str
    partition: int
    start_offset: int | None = None
    end_offset: int | None = None


def residual(predicate: Predicate, known: KnownFields) -> Predicate:
    """Simplify a predicate: the result is true, false and unknown for the same of these records."""
    match predicate:
        case And(children):
            return _joined(And, children, known)
        case Or(children):
            return _joined(Or, children, known)
        case Not(child):
            return _inverted(residual(child, known))
        case IsNull(column):
            return NEVER if column in NEVER_NULL else predicate
        case Comparison(column, comparison, value):
            answer = _comparison_answer(column, comparison, value, known)
        case In(column, values):
            return _membership(predicate, column, values, known)
        case StartsWith("topic", str(prefix)):
            answer = known.topic.startswith(prefix)
        case StartsWith() | Unknown():
            return predicate
    return predicate if answer is None else _constant(answer)


def conjunction(*predicates: Predicate | None) -> Predicate | None:
    """Join predicates by AND.

    Returns:
        The conjunction; None if it is true for all rows.
    """
    given = [predicate for predicate in predicates if predicate is not None and predicate != ALWAYS]
    if len(given) <= 1:
        return given[0] if given else None
    return And(tuple(given))


def _constant(answer: bool) -> Predicate:
    return ALWAYS if answer else NEVER


def _joined(kind: type[And | Or], children: tuple[Predicate, ...], known: KnownFields) -> Predicate:
    neutral, decisive = (ALWAYS, NEVER) if kind is And else (NEVER, ALWAYS)
    left = []
    for child in children:
        rest = residual(child, known)
        if rest == decisive:
            return decisive
        if rest != neutral:
            left.append(rest)
    if not left:
        return neutral
    return left[0] if len(left) == 1 else kind(tuple(left))


def _inverted(predicate: Predicate) -> Predicate:
    if predicate == ALWAYS:
        return NEVER
    if predicate == NEVER:
        return ALWAYS
    match predicate:
        case Not(child):
            return child
        case Unknown():
            return predicate
        case _:
            return Not(predicate)


def _comparison_answer(column: str, comparison: str, value: object, known: KnownFields) -> bool | None:
    """Evaluate a comparison for all records at once.

    Returns:
        The result; None if it is not the same for all of them.
    """
    compare = COMPARE[comparison]
    if column == "topic":
        return compare(known.topic, value)
    if column == "partition":
        return compare(known.partition, value)
    if column != "offset" or known.start_offset is None or known.end_offset is None:
        return None
    answer = compare(known.start_offset, value)
    if compare(known.end_offset - 1, value) != answer:
        return None
    # A value that equals neither end may equal an offset between them.
    is_between = known.start_offset < value < known.end_offset - 1  # type: ignore[operator]  # an offset's
    return None if comparison in ("=", "!=") and is_between else answer


def _membership(predicate: In, column: str, values: tuple[Any, ...], known: KnownFields) -> Predicate:
    if column == "topic":
        return _constant(known.topic in values)
    if column == "partition":
        return _constant(known.partition in values)
    if column == "offset":
        equalities = [(value, _comparison_answer(column, "=", value, known)) for value in values]
        if any(answer for _, answer in equalities):
            return ALWAYS
        values = tuple(value for value, answer in equalities if answer is None)
        return In(column, values) if values else NEVER
    return predicate


_US_PER_MS: Final = 1000
_NEGATED: Final[dict[Operator, Operator]] = {"=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


class Bounds(NamedTuple):
    """Bounds of the records that can match a predicate, the ends exclusive. None is no bound."""

    offset_start: int | None = None
    offset_end: int | None = None
    timestamp_start_ms: int | None = None
    timestamp_end_ms: int | None = None

    @property
    def is_empty(self) -> bool:
        """True if no record can match."""
        return _is_empty(self.offset_start, self.offset_end) or _is_empty(
            self.timestamp_start_ms, self.timestamp_end_ms
        )

    def intersection(self, other: Bounds) -> Bounds:
        """Return the bounds of what both include."""
        return Bounds(*map(_both, (max, min, max, min), self, other))

    def union(self, other: Bounds) -> Bounds:
        """Return the narrowest bounds of what either includes."""
        if self.is_empty:
            return other
        if other.is_empty:
            return self
        return Bounds(*map(_either, (min, max, min, max), self, other))


_EVERYTHING: Final = Bounds()
_NOTHING: Final = Bounds(0, 0, 0, 0)


def _is_empty(start: int | None, end: int | None) -> bool:
    return start is not None and end is not None and start >= end


def _both(narrower: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    if left is None:
        return right
    return left if right is None else narrower(left, right)


def _either(wider: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    return None if left is None or right is None else wider(left, right)


def prune_partition(predicate: Predicate, topic: str, partition: int) -> Bounds:
    """Derive bounds of the records of one partition that can match."""
    return prune(residual(predicate, KnownFields(topic, partition)))


def prune(predicate: Predicate) -> Bounds:
    """Derive bounds of the records that can match."""
    match predicate:
        case And(children):
            return functools.reduce(Bounds.intersection, map(prune, children), _EVERYTHING)
        case Or(children):
            return functools.reduce(Bounds.union, map(prune, children), _NOTHING)
        case Not(child):
            negated = _negate(child)
            return _EVERYTHING if negated is None else prune(negated)
        case Comparison(column, operator, value):
            return _comparison_bounds(column, operator, value)
        case In(column, values):
            equalities = (_comparison_bounds(column, "=", value) for value in values)
            return functools.reduce(Bounds.union, equalities, _NOTHING)
        case IsNull(column):
            return _NOTHING if column in NEVER_NULL else _EVERYTHING
        case Unknown():
            return _NOTHING
        case StartsWith():
            return _EVERYTHING


def _negate(predicate: Predicate) -> Predicate | None:
    """Negate a predicate.

    Returns:
        A predicate that is true exactly where the given one is false, and unknown in the same places, so that pruning by
        it is safe; None if no node expresses it.
    """
    match predicate:
        case And(children):
            return Or(tuple(Not(child) for child in children))
        case Or(children):
            return And(tuple(Not(child) for child in children))
        case Not(child):
            return child
        case Comparison(column, operator, value):
            return Comparison(column, _NEGATED[operator], value)
        case Unknown():
            return predicate
        case _:
            return None


def _comparison_bounds(column: str, operator: Operator, value: Value) -> Bounds:
    if isinstance(value, int) and column == "offset":
        return Bounds(*_range(operator, value, value))
    if isinstance(value, int) and column == "timestamp":
        # Records carry whole milliseconds: rounded up, the first one at or after the value; down, the last one before.
        first_ms, last_ms = -(-value // _US_PER_MS), value // _US_PER_MS
        return Bounds(None, None, *_range(operator, first_ms, last_ms))
    return _EVERYTHING


def _range(operator: Operator, first: int, last: int) -> tuple[int | None, int | None]:
    """Return the range of whole numbers that match, its end exclusive.

    ``first`` is the lowest one at or above the value compared with, ``last`` the highest one at or below it.
    """
    start = {"=": first, ">": last + 1, ">=": first}.get(operator)
    end = {"=": last + 1, "<": first, "<=": last + 1}.get(operator)
    return start, end
