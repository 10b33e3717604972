"""Rows that meet a condition: it is applied to the columns that it needs, and the others are built for matching rows only.

Plain reads do not import this module, because `pyarrow.compute` takes 20 ms of each worker.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.options.predicate import (
    ALWAYS,
    NEVER,
    VALUE_TYPES,
    And,
    Comparison,
    In,
    IsNull,
    Not,
    Or,
    Predicate,
    StartsWith,
    Unknown,
    columns_of,
)
from storage_core.record.batch_header import LOG_APPEND_TIME_FLAG, MAGIC_V2, MAX_OFFSET
from storage_core.scan.pruning import Bounds, KnownFields, prune, residual
from storage_core.scan.rows import RecordBatchBuilder
from storage_core.scan.spans import LogSpan, ReadSettings, record_schema
from storage_core.values.column_format import HEADER_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from storage_core.record import RecordColumns, RecordSection
    from storage_core.scan.read_notes import ReadNotes


_COMPARE: Final[dict[str, Callable[[pa.Array, pa.Scalar], pa.BooleanArray]]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
# These columns are built for a whole section, then filtered; others are built for the matching rows only.
_NOT_BY_ROW: Final = frozenset({"headers", "_metadata", *HEADER_NAMES.values()})


class PredicateFilter:
    """Builds record batches, as `RecordBatchBuilder` does, of the rows for which a predicate is true."""

    def __init__(
        self,
        schema: pa.Schema,
        predicate: Predicate,
        settings: ReadSettings | None = None,
        notes: ReadNotes | None = None,
    ) -> None:
        self._rows = RecordBatchBuilder(schema, settings, notes)
        self._settings = settings
        self._predicate = predicate
        self._is_by_row = _NOT_BY_ROW.isdisjoint(schema.names)
        self._span: LogSpan | None = None
        self._residual: Predicate = NEVER
        self._bounds = Bounds()
        self._tested = self._rows

    def takes_all(self, span: LogSpan) -> bool:
        """Return True if the predicate is true for all records within a span's offsets."""
        self._enter(span)
        return self._residual == ALWAYS

    def may_match(
        self, headers: npt.NDArray[Any], indexes: npt.NDArray[np.int64], span: LogSpan
    ) -> npt.NDArray[np.int64]:
        """Choose the batches of a window whose headers do not rule out that a record matches. Their CRCs are right."""
        self._enter(span)
        bounds = self._bounds
        if bounds == Bounds() or not len(indexes):
            return indexes
        own = headers[indexes]
        base_offsets = own["base_offset"].astype(np.int64)
        # A wrapper's header has no base offset, and its timestamp is not verified.
        is_ruled_out = np.zeros(len(own), np.bool_)
        if bounds.offset_start is not None:
            is_ruled_out |= base_offsets + own["last_offset_delta"] < min(bounds.offset_start, MAX_OFFSET)
        if bounds.offset_end is not None:
            is_ruled_out |= base_offsets >= max(bounds.offset_end, 0)
        if bounds.timestamp_start_ms is not None:
            # With CreateTime, the header claims what only the records tell.
            is_append_time = (own["attributes"] & LOG_APPEND_TIME_FLAG) != 0
            is_ruled_out |= is_append_time & (own["max_timestamp_ms"] < bounds.timestamp_start_ms)
        is_ruled_out &= own["magic"] == MAGIC_V2
        return indexes[~is_ruled_out]

    def batches(
        self, section: RecordSection, columns: RecordColumns, span: LogSpan
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a section that are within a span's offsets, and match.

        Raises:
            TimestampRangeError: A timestamp does not fit microseconds since 1970.
        """
        self._enter(span)
        if self._residual == ALWAYS:
            yield from self._rows.batches(section, columns, span)
            return
        matches = [
            pc.fill_null(evaluate(self._residual, tested), fill_value=False).to_numpy(zero_copy_only=False)
            for tested in self._tested.batches(section, columns, span)
        ]
        chosen = np.concatenate(matches) if matches else np.zeros(0, np.bool_)
        count = np.count_nonzero(chosen)
        if count == 0:
            return
        if count == len(chosen):
            yield from self._rows.batches(section, columns, span)
        elif self._is_by_row:
            first = int(np.searchsorted(columns.offsets, span.start_offset))
            yield from self._rows.batches(section, _chosen(columns, first + np.flatnonzero(chosen)), span)
        else:
            start = 0
            for made in self._rows.batches(section, columns, span):
                filtered = made.filter(pa.array(chosen[start : start + made.num_rows]))
                start += made.num_rows
                if filtered.num_rows:
                    yield filtered

    def _enter(self, span: LogSpan) -> None:
        """Simplify the predicate for a span's partition and offsets."""
        if span is self._span:
            return
        self._span = span
        known = KnownFields(span.topic, span.partition, span.start_offset, span.end_offset)
        self._residual = residual(self._predicate, known)
        self._bounds = prune(self._residual)
        # A record batch without columns has no row count.
        names = columns_of(self._residual) or {"offset"}
        records = record_schema()
        self._tested = RecordBatchBuilder(
            pa.schema([records.field(name) for name in sorted(names)]), self._settings
        )


def _chosen(columns: RecordColumns, rows: npt.NDArray[np.int64]) -> RecordColumns:
    # How many chosen rows come before each batch's end.
    up_to_batch = np.searchsorted(rows, np.cumsum(columns.row_counts))
    return dataclasses.replace(
        columns,
        row_counts=np.diff(up_to_batch, prepend=0),
        offsets=columns.offsets[rows],
        timestamps_ms=None if columns.timestamps_ms is None else columns.timestamps_ms[rows],
        keys=None if columns.keys is None else columns.keys.take(rows),
        values=None if columns.values is None else columns.values.take(rows),
        headers=None,
    )


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
    return {str: pa.string(), bytes: pa.binary(), int: pa.int64()}[VALUE_TYPES[column]]
