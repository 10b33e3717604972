"""Build record batches of a read's schema from decoded columns, and report damage as its mode asks.

With ``mode=DROPMALFORMED``, rows whose timestamp does not fit its column are left out.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from storage_core.errors import TimestampRangeError, visible
from storage_core.options.predicate import Predicate, columns_of
from storage_core.record import (
    HEADERS_TYPE,
    RecordColumns,
    RecordSection,
    WantedFields,
    binary_array,
    headers_array,
)
from storage_core.record.arrow_columns import RecordHeaders, Slices, constant_array, number_array
from storage_core.record.batch_header import (
    CODEC_MASK,
    CODEC_NAMES,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    TRANSACTIONAL_FLAG,
    wrapper_rows,
)
from storage_core.record.section import MAX_ROWS
from storage_core.scan.read_notes import ReadNotes
from storage_core.scan.spans import METADATA_TYPE, LogSpan, ReadSettings, record_schema
from storage_core.segment import DamagedRange
from storage_core.values.column_format import HEADER_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    # Makes record batches of the decoded records of a section that are within a span's offsets.
    RowMaker: TypeAlias = Callable[[RecordSection, RecordColumns, LogSpan], Iterator[pa.RecordBatch]]


_log = logging.getLogger(__name__)


def damage_json(damage: DamagedRange, span: LogSpan) -> str:
    """Describe a damaged range as JSON. Its ends are exclusive, and its offsets bound what may be lost."""
    return json.dumps(
        {
            "file": damage.path,
            "topic": span.topic,
            "partition": span.partition,
            "startByte": damage.start_bytes,
            "endByte": damage.end_bytes,
            "startOffset": damage.start_offset,
            "endOffset": damage.end_offset,
            "error": damage.error_type.__name__,
            "reason": damage.reason,
        }
    )


class DamageReporter:
    """Handles damage by the mode of a read: an error, a log line, or also a row that describes it.

    Damage gets a row only if the schema has the column that describes damage.
    """

    def __init__(self, schema: pa.Schema, settings: ReadSettings) -> None:
        self._schema = schema
        self._settings = settings
        self._has_rows = settings.mode == "PERMISSIVE" and settings.corrupt_record_column in schema.names

    @property
    def is_fatal(self) -> bool:
        """True if damage ends the read."""
        return self._settings.mode == "FAILFAST"

    def report(self, damage: DamagedRange, span: LogSpan) -> Iterator[pa.RecordBatch]:
        """Report damage found in a span, unless it belongs to another span.

        Yields:
            A row that describes it, if the read has such rows.

        Raises:
            SegmentLogError: Damage fails the read.
        """
        if self.is_fatal:
            raise damage.error()
        if damage.start_offset < span.start_offset and not span.is_first:
            return
        _log.warning("Left out damaged bytes of %s-%d: %s", span.topic, span.partition, damage.error())
        if self._has_rows:
            yield self._row(damage, span)

    def _row(self, damage: DamagedRange, span: LogSpan) -> pa.RecordBatch:
        known = {
            "topic": span.topic,
            "partition": span.partition,
            self._settings.corrupt_record_column: damage_json(damage, span),
        }
        arrays = [pa.array([known.get(field.name)], field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


_US_PER_MS: Final = 1000
LARGEST_TIMESTAMP_MS: Final = (2**63 - 1) // _US_PER_MS
"""Timestamps further from 1970, in either direction, do not fit the column of microseconds."""
_TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")
# As Kafka's TimestampType: messages of format v0 have no timestamp.
_NO_TIMESTAMP_TYPE: Final = -1
# An Arrow batch larger than this makes Spark slower.
MAX_BATCH_BYTES: Final = 8 << 20
# A task may read thousands of partitions, so the cache of constants is bounded.
_CONSTANTS_LIMIT: Final = 16


def wanted_fields(schema: pa.Schema) -> WantedFields:
    """Return the fields of a record that a schema needs."""
    names = set(schema.names)
    return WantedFields(
        timestamp=bool(names & {"timestamp", "_metadata"}),
        key="key" in names,
        value="value" in names,
        headers=bool(names & {"headers", *HEADER_NAMES.values()}),
    )


def schema_with_condition(schema: pa.Schema, predicate: Predicate | None) -> pa.Schema:
    """Return the columns of a schema, followed by those that only a predicate needs."""
    if predicate is None:
        return schema
    records = record_schema()
    for name in sorted(columns_of(predicate) - set(schema.names)):
        schema = schema.append(records.field(name))
    return schema


class RecordBatchBuilder:
    """Builds record batches of one schema. Constant columns are cached and sliced."""

    def __init__(
        self,
        schema: pa.Schema,
        settings: ReadSettings | None = None,
        notes: ReadNotes | None = None,
    ) -> None:
        self._schema = schema
        self._notes = notes or ReadNotes()
        self._columns = dict(_COLUMNS)
        self._is_permissive = settings is not None and settings.mode == "PERMISSIVE"
        if settings is not None and self._is_permissive:
            self._columns[settings.corrupt_record_column] = _SectionSlice.corrupt_record
        self._constants: dict[tuple[pa.DataType, object], pa.Array] = {}

    def batches(
        self, section: RecordSection, columns: RecordColumns, span: LogSpan
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a section that are within a span's offsets.

        Raises:
            TimestampRangeError: A timestamp does not fit microseconds since 1970. With ``mode=PERMISSIVE``
                it is null instead, and the column for damage says why.
        """
        # Offsets ascend, so the rows within the span are neighbours.
        first = int(np.searchsorted(columns.offsets, span.start_offset))
        # The end may be 2^63, which does not fit numpy's integers.
        last = int(np.searchsorted(columns.offsets, span.end_offset - 1, side="right"))
        # In parts, because a batch may claim more rows than a string column of its topic can hold.
        for start in range(first, last, MAX_ROWS):
            rows = _SectionSlice(
                section,
                columns,
                span,
                slice(start, min(start + MAX_ROWS, last)),
                self._constant,
                self._notes,
            )
            if "timestamp" in self._schema.names:
                rows.check_timestamps(is_permissive=self._is_permissive)
            arrays = [self._columns[name](rows) for name in self._schema.names]
            yield from cut_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def _constant(self, value: object, kind: pa.DataType, count: int) -> pa.Array:
        known = self._constants.get((kind, value))
        if known is None or len(known) < count:
            if len(self._constants) >= _CONSTANTS_LIMIT:
                self._constants.clear()
            # Twice the size needed: growing sections rarely rebuild it, and small ones do not pay for MAX_ROWS.
            known = constant_array(value, kind, max(count, min(2 * count, MAX_ROWS)))
            self._constants[kind, value] = known
        return known.slice(0, count)


def cut_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch into pieces of about 8 MiB, and of as many rows as a batch may have."""
    count = batch.num_rows
    step = max(1, min(MAX_ROWS, count * MAX_BATCH_BYTES // max(batch.nbytes, 1)))
    for start in range(0, count, step):
        yield batch if step >= count else batch.slice(start, step)


class _SectionSlice:
    """Neighbouring rows of a section; each method builds one column."""

    def __init__(
        self,
        section: RecordSection,
        columns: RecordColumns,
        span: LogSpan,
        rows: slice,
        constant: Callable[[object, pa.DataType, int], pa.Array],
        notes: ReadNotes,
    ) -> None:
        self._notes = notes
        self._section = section
        self._columns = columns
        self._span = span
        self._rows = rows
        self._count = rows.stop - rows.start
        self._constant = constant
        self._unfit: npt.NDArray[np.bool_] | None = None

    def check_timestamps(self, *, is_permissive: bool) -> None:
        """Find the timestamps that do not fit: an error, or nulls in a permissive read."""
        unfit = unfit_timestamps(self._timestamps_ms())
        if unfit is None:
            return
        if not is_permissive:
            damage = self._unfit_record(int(unfit.argmax()))
            raise TimestampRangeError(
                damage.reason, path=damage.path, position_bytes=damage.start_bytes, offset=damage.start_offset
            )
        self._unfit = unfit
        _log.warning(
            "%d timestamps are null: %s", unfit.sum(), self._unfit_record(int(unfit.argmax())).error()
        )

    def key(self) -> pa.BinaryArray:
        return self._binary(self._columns.keys)

    def value(self) -> pa.BinaryArray:
        return self._binary(self._columns.values)

    def topic(self) -> pa.StringArray:
        return self._constant(self._span.topic, pa.string(), self._count)

    def partition(self) -> pa.Int32Array:
        return self._constant(self._span.partition, pa.int32(), self._count)

    def offset(self) -> pa.Int64Array:
        return number_array(self._columns.offsets[self._rows], pa.int64())

    def timestamp(self) -> pa.TimestampArray:
        timestamps_ms = self._timestamps_ms()
        if self._unfit is None:
            return number_array(timestamps_ms * _US_PER_MS, _TIMESTAMP_TYPE)
        fitting_ms = np.where(self._unfit, 0, timestamps_ms)
        return pa.array(fitting_ms * _US_PER_MS, mask=self._unfit).view(_TIMESTAMP_TYPE)

    def corrupt_record(self) -> pa.StringArray:
        """Describe what is wrong with the timestamp of a record that has a row."""
        if self._unfit is None:
            return self._constant(None, pa.string(), self._count)
        texts = [
            damage_json(self._unfit_record(row), self._span) if is_unfit else None
            for row, is_unfit in enumerate(self._unfit.tolist())
        ]
        return pa.array(texts, pa.string())

    def timestamp_type(self) -> pa.Int32Array:
        types = ((self._section.headers["attributes"] & LOG_APPEND_TIME_FLAG) != 0).astype(np.int32)
        types[self._section.headers["magic"] == 0] = _NO_TIMESTAMP_TYPE
        if types.min() == types.max():
            return self._constant(int(types[0]), pa.int32(), self._count)
        return number_array(self._per_batch(types), pa.int32())

    def headers(self) -> pa.ListArray:
        headers = self._columns.headers
        assert headers is not None  # noqa: S101  (they were asked for)
        first = headers.first[self._rows.start : self._rows.stop + 1]
        own = slice(int(first[0]), int(first[-1]))

        def replaced(numbers: list[int]) -> None:
            row = int(np.searchsorted(first, own.start + numbers[0], side="right")) - 1
            place = (self._span.topic, self._span.partition, int(self._columns.offsets[self._rows][row]))
            self._notes.add_replaced_keys(place, len(numbers))

        return headers_array(
            self._section.buffer,
            RecordHeaders(first - own.start, headers.keys.take(own), headers.values.take(own)),
            replaced,
        )

    def schema_headers(self, column: str) -> pa.ListArray:
        """Return only those headers that may name the schema of a column: Confluent's, and Apicurio Registry's."""
        headers = self._columns.headers
        assert headers is not None  # noqa: S101  (they were asked for)
        first = headers.first[self._rows.start : self._rows.stop + 1]
        if first[0] == first[-1]:
            return self._constant(None, HEADERS_TYPE, self._count)
        own = slice(int(first[0]), int(first[-1]))
        import pyarrow.compute as pc  # noqa: PLC0415  (takes 20 ms, and plain reads do not need it)

        keys = binary_array(self._section.buffer, headers.keys.take(own))
        is_named = pc.or_(
            pc.equal(keys, HEADER_NAMES[column].encode()), pc.starts_with(keys, f"apicurio.{column}.")
        )
        chosen = np.flatnonzero(is_named.to_numpy(zero_copy_only=False))
        first = np.searchsorted(chosen, first - own.start)
        chosen += own.start
        return headers_array(
            self._section.buffer,
            RecordHeaders(first, headers.keys.take(chosen), headers.values.take(chosen)),
        )

    def metadata(self) -> pa.StructArray:
        headers = self._section.headers
        attributes = headers["attributes"]
        base_offsets = self._per_batch(self._base_offsets())
        codecs = self._per_batch((attributes & CODEC_MASK).astype(np.int8))
        children = [
            self._constant(self._span.file_name, pa.string(), self._count),
            pa.array(self._per_batch(self._section.positions)),
            pa.array(base_offsets),
            pa.array(self._per_batch(headers["leader_epoch"].astype(np.int32))),
            pa.array(self._per_batch(headers["producer_id"].astype(np.int64))),
            pa.array(self._per_batch(headers["producer_epoch"].astype(np.int32))),
            pa.array(self._sequences(base_offsets)),
            pa.array(self._per_batch((attributes & TRANSACTIONAL_FLAG) != 0)),
            pa.array(CODEC_NAMES).take(pa.array(codecs)),
            pa.array(self._per_batch(headers["magic"].astype(np.int32))),
            pa.array(self._timestamps_ms()),
        ]
        return pa.StructArray.from_arrays(children, fields=list(METADATA_TYPE))

    def _base_offsets(self) -> npt.NDArray[np.int64]:
        """Return the base offset of each batch, which for a wrapper only its first record tells."""
        headers = self._section.headers
        base_offsets: npt.NDArray[np.int64] = headers["base_offset"].astype(np.int64)
        wrappers = np.flatnonzero(wrapper_rows(headers))
        first_rows = np.cumsum(self._columns.row_counts) - self._columns.row_counts
        base_offsets[wrappers] = self._columns.offsets[first_rows[wrappers]]
        return base_offsets

    def _per_batch(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Repeat each batch's value for its rows."""
        ends = np.cumsum(self._columns.row_counts)
        starts = ends - self._columns.row_counts
        counts = np.minimum(ends, self._rows.stop) - np.maximum(starts, self._rows.start)
        return np.repeat(column, np.maximum(counts, 0))

    def _binary(self, column: Slices | None) -> pa.BinaryArray:
        assert column is not None  # noqa: S101  (it was asked for)
        return binary_array(self._section.buffer, column.take(self._rows))

    def _timestamps_ms(self) -> npt.NDArray[np.int64]:
        assert self._columns.timestamps_ms is not None  # noqa: S101  (it was asked for)
        return self._columns.timestamps_ms[self._rows]

    def _sequences(self, base_offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        first = self._per_batch(self._section.headers["base_sequence"].astype(np.int64))
        # Sequences wrap from 2^31 - 1 to 0; -1 is none.
        wrapped = (first + self._columns.offsets[self._rows] - base_offsets) & 0x7FFFFFFF
        return np.where(first < 0, -1, wrapped).astype(np.int32)

    def _unfit_record(self, row: int) -> DamagedRange:
        """Describe the record of a row whose timestamp does not fit."""
        position_bytes = int(self._per_batch(self._section.positions)[row])
        offset = int(self._columns.offsets[self._rows][row])
        return DamagedRange(
            self._section.path,
            position_bytes,
            position_bytes
            + LOG_OVERHEAD_BYTES
            + int(self._per_batch(self._section.headers["batch_length"])[row]),
            offset,
            offset + 1,
            f"Expected a timestamp in milliseconds that also fits microseconds, found {self._timestamps_ms()[row]}: "
            "perhaps its producer sent nanoseconds. Leave out the column `timestamp`, and read "
            "`_metadata.timestampMs` (includeMetadata) instead.",
            TimestampRangeError,
        )


def unfit_timestamps(timestamps_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
    """Find the records whose timestamps do not fit the column.

    Returns:
        A flag for each record; None if all timestamps fit.
    """
    largest_ms = LARGEST_TIMESTAMP_MS
    if not len(timestamps_ms) or (timestamps_ms.max() <= largest_ms and timestamps_ms.min() >= -largest_ms):
        return None
    unfit: npt.NDArray[np.bool_] = (timestamps_ms > largest_ms) | (timestamps_ms < -largest_ms)
    return unfit


_COLUMNS: Final[dict[str, Callable[[_SectionSlice], pa.Array]]] = {
    "key": _SectionSlice.key,
    "value": _SectionSlice.value,
    "topic": _SectionSlice.topic,
    "partition": _SectionSlice.partition,
    "offset": _SectionSlice.offset,
    "timestamp": _SectionSlice.timestamp,
    "timestampType": _SectionSlice.timestamp_type,
    "headers": _SectionSlice.headers,
    "_metadata": _SectionSlice.metadata,
    **{
        name: functools.partial(_SectionSlice.schema_headers, column=column)
        for column, name in HEADER_NAMES.items()
    },
}


def fitting_rows(
    rows_of: RowMaker, section: RecordSection, columns: RecordColumns, span: LogSpan
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that a function makes, without those whose timestamp does not fit the column."""
    timestamps_ms = columns.timestamps_ms
    unfit = None if timestamps_ms is None else unfit_timestamps(timestamps_ms)
    if unfit is None or timestamps_ms is None:
        yield from rows_of(section, columns, span)
        return
    unfit_rows = np.flatnonzero(unfit)
    offsets = columns.offsets[unfit_rows]
    within = (offsets >= span.start_offset) & (offsets <= span.end_offset - 1)
    if within.any():
        _log.warning(
            "Left out %d records of %s-%d whose timestamps do not fit microseconds, the first of them at "
            "offset %d of %s with %d ms.",
            within.sum(),
            span.topic,
            span.partition,
            offsets[within][0],
            visible(section.path),
            timestamps_ms[unfit_rows[within][0]],
        )
    start_offset = span.start_offset
    # The rows between two that do not fit, and those after the last one.
    for offset in [*offsets[within].tolist(), span.end_offset]:
        if start_offset < offset:
            part = dataclasses.replace(span, start_offset=start_offset, end_offset=offset)
            yield from rows_of(section, columns, part)
        start_offset = offset + 1
