"""What is left of a predicate where topic, partition and perhaps a range of offsets are known.

All records of a partition share its topic and number, so conditions on these are decided once,
exactly, and without looking at a record. What remains is simplified: a residual `ALWAYS` needs
no evaluation, and `NEVER` no reading.

What a predicate makes unnecessary to read: the one pruner.

`prune` derives bounds from a predicate. They may keep too much, and the predicate is
applied to what was read anyway; they never leave out a row that could match. Topic and
partition are decided exactly, before: `storage_core.scan.pruning` takes them out.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from storage_core.scan.predicate import (
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

__all__ = [
    "ALWAYS",
    "COMPARE",
    "NEVER",
    "NEVER_NULL",
    "Bounds",
    "KnownFields",
    "conjunction",
    "prune",
    "prune_partition",
    "residual",
]


ALWAYS: Final = And(())
NEVER: Final = Or(())
NEVER_NULL: Final = frozenset({"topic", "partition", "offset"})
COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class KnownFields:
    """What all records concerned have in common.

    Attributes:
        topic: Their topic.
        partition: Their partition.
        start_offset: None of their offsets is lower; None if not known.
        end_offset: All their offsets are lower; None if not known.
    """

    topic: str
    partition: int
    start_offset: int | None = None
    end_offset: int | None = None


def residual(predicate: Predicate, known: KnownFields) -> Predicate:
    """A predicate that is true, false and unknown for the same of these records, and asks less of them."""
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
    """What all of them together demand; None, as for an absent one, if that is nothing."""
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
    """What the comparison answers for all of the records; None if that depends on the record."""
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
    # Where both ends are unequal to a value, one of the offsets between may equal it.
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
_NEGATED: Final[dict[Operator, Operator]] = {
    "=": "!=",
    "!=": "=",
    "<": ">=",
    "<=": ">",
    ">": "<=",
    ">=": "<",
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a predicate leaves to be read; None means that nothing is known.

    Attributes:
        offset_start: No offset below this one can match.
        offset_end: No offset at or above this one can match.
        timestamp_start_ms: No record with an older timestamp can match.
        timestamp_end_ms: No record with this timestamp or a younger one can match.
    """

    offset_start: int | None = None
    offset_end: int | None = None
    timestamp_start_ms: int | None = None
    timestamp_end_ms: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no record at all can match."""
        return _is_empty(self.offset_start, self.offset_end) or _is_empty(
            self.timestamp_start_ms, self.timestamp_end_ms
        )

    def intersection(self, other: Bounds) -> Bounds:
        """What both leave."""
        return Bounds(
            _both(max, self.offset_start, other.offset_start),
            _both(min, self.offset_end, other.offset_end),
            _both(max, self.timestamp_start_ms, other.timestamp_start_ms),
            _both(min, self.timestamp_end_ms, other.timestamp_end_ms),
        )

    def union(self, other: Bounds) -> Bounds:
        """The narrowest bounds around what either leaves."""
        if self.is_empty:
            return other
        if other.is_empty:
            return self
        return Bounds(
            _either(min, self.offset_start, other.offset_start),
            _either(max, self.offset_end, other.offset_end),
            _either(min, self.timestamp_start_ms, other.timestamp_start_ms),
            _either(max, self.timestamp_end_ms, other.timestamp_end_ms),
        )


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
    """Derive what must be read of one partition so that no row is missed."""
    return prune(residual(predicate, KnownFields(topic, partition)))


def prune(predicate: Predicate) -> Bounds:
    """Derive what must be read so that no row is missed for which ``predicate`` is true."""
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
    """A predicate that is true exactly where ``predicate`` is false; None if no node says it.

    Both are unknown in the same places, so pruning by the result is safe.
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
        # Records carry whole milliseconds: rounded up, the first at or behind a moment; down, the last before.
        first_ms, last_ms = -(-value // _US_PER_MS), value // _US_PER_MS
        return Bounds(None, None, *_range(operator, first_ms, last_ms))
    return _EVERYTHING


def _range(operator: Operator, first: int, last: int) -> tuple[int | None, int | None]:
    """From where, and to below where, whole numbers match.

    ``first`` is the lowest one at or above the value compared with, ``last`` the highest at or below it.
    """
    start = {"=": first, ">": last + 1, ">=": first}.get(operator)
    end = {"=": last + 1, "<": first, "<=": last + 1}.get(operator)
    return start, end
