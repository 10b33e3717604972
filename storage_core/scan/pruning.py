"""What a predicate makes unnecessary to read: the one pruner.

`prune` derives bounds from a predicate. They may keep too much, and the predicate is
applied to what was read anyway; they never leave out a row that could match.
"""

from __future__ import annotations

import functools
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
    Value,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Bounds", "prune"]

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
        topics: Only these topics can match.
        partitions: Only these partition numbers can match, in whichever topic.
        offset_start: No offset below this one can match.
        offset_end: No offset at or above this one can match.
        timestamp_start_ms: No record with an older timestamp can match.
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_start: int | None = None
    offset_end: int | None = None
    timestamp_start_ms: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no record at all can match."""
        if self.topics == frozenset() or self.partitions == frozenset():
            return True
        if self.offset_start is None or self.offset_end is None:
            return False
        return self.offset_start >= self.offset_end

    def includes(self, topic: str, partition: int) -> bool:
        """Whether a record of this topic-partition can match."""
        if self.is_empty:
            return False
        return (self.topics is None or topic in self.topics) and (
            self.partitions is None or partition in self.partitions
        )

    def intersection(self, other: Bounds) -> Bounds:
        """What both leave."""
        return Bounds(
            _both(frozenset.intersection, self.topics, other.topics),
            _both(frozenset.intersection, self.partitions, other.partitions),
            _both(max, self.offset_start, other.offset_start),
            _both(min, self.offset_end, other.offset_end),
            _both(max, self.timestamp_start_ms, other.timestamp_start_ms),
        )

    def union(self, other: Bounds) -> Bounds:
        """The narrowest bounds around what either leaves."""
        if self.is_empty:
            return other
        if other.is_empty:
            return self
        return Bounds(
            _either(frozenset.union, self.topics, other.topics),
            _either(frozenset.union, self.partitions, other.partitions),
            _either(min, self.offset_start, other.offset_start),
            _either(max, self.offset_end, other.offset_end),
            _either(min, self.timestamp_start_ms, other.timestamp_start_ms),
        )


_EVERYTHING: Final = Bounds()
_NOTHING: Final = Bounds(topics=frozenset(), partitions=frozenset())


def _both(narrower: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    if left is None:
        return right
    return left if right is None else narrower(left, right)


def _either(wider: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    return None if left is None or right is None else wider(left, right)


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
        case IsNull() | StartsWith():
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
        case _:
            return None


def _comparison_bounds(column: str, operator: Operator, value: Value) -> Bounds:
    if operator == "!=":
        return _EVERYTHING
    if isinstance(value, str):
        return Bounds(topics=frozenset((value,))) if operator == "=" else _EVERYTHING
    if isinstance(value, bytes):
        return _EVERYTHING
    if column == "partition":
        return Bounds(partitions=frozenset((value,))) if operator == "=" else _EVERYTHING
    if column == "offset":
        return _offset_bounds(operator, value)
    return _timestamp_bounds(operator, value)


def _offset_bounds(operator: Operator, offset: int) -> Bounds:
    start = {"=": offset, ">": offset + 1, ">=": offset}.get(operator)
    end = {"=": offset + 1, "<": offset, "<=": offset + 1}.get(operator)
    return Bounds(offset_start=start, offset_end=end)


def _timestamp_bounds(operator: Operator, timestamp_us: int) -> Bounds:
    # Records carry whole milliseconds: the first one that can match is found by rounding up.
    if operator in ("=", ">="):
        return Bounds(timestamp_start_ms=-(-timestamp_us // 1000))
    if operator == ">":
        return Bounds(timestamp_start_ms=timestamp_us // 1000 + 1)
    # No batch header holds a minimum, so nothing can be skipped by an upper bound.
    return _EVERYTHING
