"""Rows that meet a condition: what it needs is made into columns first, the rest only of rows that match."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.record.batch_header import MAGIC_V2, MAX_OFFSET
from storage_core.record.section import Slices
from storage_core.scan.predicate import columns_of, evaluate
from storage_core.scan.pruning import Bounds, prune
from storage_core.scan.residual import ALWAYS, NEVER, KnownFields, residual
from storage_core.scan.rows import RowMaker
from storage_core.scan.schema import record_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from storage_core.record import RecordColumns, RecordSection
    from storage_core.scan.predicate import Predicate
    from storage_core.scan.spans import LogSpan, ReadSettings

__all__ = ["FilteredRows", "schema_with_condition"]

# Made of a record and those around it, or of several arrays: filtered after they are made.
_NOT_BY_ROW: Final = frozenset({"headers", "_metadata"})


def schema_with_condition(schema: pa.Schema, predicate: Predicate | None) -> pa.Schema:
    """The columns of a schema, and behind them those that only a predicate needs."""
    if predicate is None:
        return schema
    records = record_schema()
    for name in sorted(columns_of(predicate) - set(schema.names)):
        schema = schema.append(records.field(name))
    return schema


class FilteredRows:
    """Makes record batches of one schema, as `RowMaker` does, of the rows for which a predicate is true."""

    def __init__(self, schema: pa.Schema, predicate: Predicate, settings: ReadSettings | None = None) -> None:
        self._rows = RowMaker(schema, settings)
        self._settings = settings
        self._predicate = predicate
        self._is_by_row = _NOT_BY_ROW.isdisjoint(schema.names)
        self._span: LogSpan | None = None
        self._residual: Predicate = NEVER
        self._bounds = Bounds()
        self._tested = self._rows

    def worth_decoding(
        self, headers: npt.NDArray[Any], indexes: npt.NDArray[np.int64], span: LogSpan
    ) -> npt.NDArray[np.int64]:
        """Those of some batches whose headers do not rule out that a record matches.

        Args:
            headers: The headers of a window, whose CRC is right.
            indexes: The batches.
            span: What they are read for.
        """
        if span is not self._span:
            self._enter(span)
        bounds = self._bounds
        if bounds == Bounds() or not len(indexes):
            return indexes
        own = headers[indexes]
        base_offsets = own["base_offset"].astype(np.int64)
        # Of a wrapper, the header does not say where it begins, and nobody has checked its timestamp.
        is_ruled_out = np.zeros(len(own), np.bool_)
        if bounds.offset_start is not None:
            is_ruled_out |= base_offsets + own["last_offset_delta"] < min(bounds.offset_start, MAX_OFFSET)
        if bounds.offset_end is not None:
            is_ruled_out |= base_offsets >= max(bounds.offset_end, 0)
        if bounds.timestamp_start_ms is not None:
            is_ruled_out |= own["max_timestamp_ms"] < bounds.timestamp_start_ms
        is_ruled_out &= own["magic"] == MAGIC_V2
        return indexes[~is_ruled_out]

    def batches(
        self, section: RecordSection, columns: RecordColumns, span: LogSpan
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a section that lie within a span's offsets, and match.

        Raises:
            TimestampRangeError: A timestamp does not fit microseconds since 1970.
        """
        if span is not self._span:
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
        """Find out what is left to be tested of a span's records."""
        self._span = span
        known = KnownFields(span.topic, span.partition, span.start_offset, span.end_offset)
        self._residual = residual(self._predicate, known)
        self._bounds = prune(self._residual)
        # A batch without columns does not know how many rows it has.
        names = columns_of(self._residual) or {"offset"}
        records = record_schema()
        self._tested = RowMaker(pa.schema([records.field(name) for name in sorted(names)]), self._settings)


def _chosen(columns: RecordColumns, rows: npt.NDArray[np.int64]) -> RecordColumns:
    """Some rows of a section's columns, in order."""
    # How many of them stand in front of each batch's end.
    up_to_batch = np.searchsorted(rows, np.cumsum(columns.row_counts))
    return dataclasses.replace(
        columns,
        row_counts=np.diff(up_to_batch, prepend=0),
        offsets=columns.offsets[rows],
        timestamps_ms=None if columns.timestamps_ms is None else columns.timestamps_ms[rows],
        keys=_chosen_slices(columns.keys, rows),
        values=_chosen_slices(columns.values, rows),
        headers=None,
    )


def _chosen_slices(column: Slices | None, rows: npt.NDArray[np.int64]) -> Slices | None:
    return None if column is None else Slices(column.starts[rows], column.lengths[rows])
