"""Filters of ``df.filter(...)`` that reach the reader, with ``filterPushdown=true``.

Opt-in, because Spark 4.1 to 4.3 keep the plan that a filtered scan made and use it for other
scans of the same ``load()``, which then lack rows. Filters become predicates as the option
``where`` does, join with it, and decide what is read and which rows are made. Every filter is
handed back to Spark all the same, which applies it again.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from spark_segmentlog.batch_reader import SegmentLogReader
from storage_core.errors import OptionError
from storage_core.scan.predicate import (
    And,
    Comparison,
    In,
    IsNull,
    Not,
    Operator,
    Predicate,
    StartsWith,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql.datasource import Filter

__all__ = ["PushdownReader", "is_offered", "to_predicate"]

_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"
_COLUMNS: Final = frozenset({"topic", "partition", "offset", "timestamp", "key"})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# By the names of Spark's classes, which do not exist before PySpark 4.1.
_COMPARISONS: Final[dict[str, Operator]] = {
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}


def is_offered() -> bool:
    """Whether this process is the one in which Spark hands filters to a reader.

    With pushdown switched off in Spark's configuration, Spark fails every read whose reader
    takes filters, whether or not there are any. The configuration is not visible here, but
    Spark plans filtered scans in a worker program of its own, only with pushdown switched on.
    Should that program be renamed one day, filters are no longer pushed and stay with Spark.
    """
    if _PUSHDOWN_WORKER in sys.modules:
        return True
    # Without Spark's worker daemon, the program is what this process was started with.
    specification = getattr(sys.modules.get("__main__"), "__spec__", None)
    return specification is not None and specification.name == _PUSHDOWN_WORKER


class PushdownReader(SegmentLogReader):
    """A reader that takes filters. Its existence is what tells Spark to offer them."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Keep what can be translated; hand everything back to Spark."""
        predicates = [predicate for predicate in map(to_predicate, filters) if predicate is not None]
        if predicates:
            self._predicate = And(tuple(predicates))
        return filters


def to_predicate(pushed: Any) -> Predicate | None:
    """Translate one of Spark's filters exactly; None if there is no such predicate."""
    if type(pushed).__name__ == "Not":
        child = to_predicate(pushed.child)
        return None if child is None else Not(child)
    path: Sequence[str] = pushed.attribute
    if len(path) != 1 or path[0] not in _COLUMNS:
        return None
    try:
        return _column_predicate(path[0], pushed)
    except OptionError:
        # A value of another type than the column's: Spark compares it, we do not.
        return None


def _column_predicate(column: str, pushed: Any) -> Predicate | None:
    kind = type(pushed).__name__
    if kind in _COMPARISONS:
        return Comparison(column, _COMPARISONS[kind], _value(pushed.value))
    is_null = IsNull(column)
    predicate: Predicate | None = None
    match kind:
        case "IsNull":
            predicate = is_null
        case "IsNotNull":
            predicate = Not(is_null)
        case "EqualNullSafe" if pushed.value is None:
            predicate = is_null
        case "EqualNullSafe":
            predicate = And((Not(is_null), Comparison(column, "=", _value(pushed.value))))
        case "In":
            predicate = In(column, tuple(map(_value, pushed.value)))
        case "StringStartsWith":
            predicate = StartsWith(column, pushed.value)
    return predicate


def _value(value: Any) -> Any:
    """Spark's value in the unit of the column; the predicate checks its type."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise OptionError(f"Expected a timestamp with a time zone, found {value!r}.")
        return (value - _EPOCH) // timedelta(microseconds=1)
    return bytes(value) if isinstance(value, bytearray) else value
