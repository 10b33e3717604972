"""What is left of a predicate where topic, partition and perhaps a range of offsets are known.

All records of a partition share its topic and number, so conditions on these are decided once,
exactly, and without looking at a record. What remains is simplified: a residual `ALWAYS` needs
no evaluation, and `NEVER` no reading.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

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

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ALWAYS", "COMPARE", "NEVER", "NEVER_NULL", "KnownFields", "conjunction", "residual"]

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
