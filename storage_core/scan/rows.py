"""Columns to rows: the decoded columns of a section become Arrow record batches of a read's schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from storage_core.errors import TimestampRangeError
from storage_core.record import WantedFields, binary_arrays, headers_array
from storage_core.record.batch_header import CODEC_MASK, LOG_APPEND_TIME_FLAG, TRANSACTIONAL_FLAG
from storage_core.record.compression import CODEC_NAMES
from storage_core.scan.schema import METADATA_TYPE
from storage_core.scan.sections import MAX_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from storage_core.record import RecordColumns, RecordSection
    from storage_core.record.section import Slices
    from storage_core.scan.spans import LogSpan

__all__ = ["RowMaker", "wanted_fields"]

_US_PER_MS: Final = 1000
_LARGEST_MS: Final = (2**63 - 1) // _US_PER_MS
# An Arrow batch larger than this makes Spark slower.
_MAX_BATCH_BYTES: Final = 8 << 20


def wanted_fields(schema: pa.Schema) -> WantedFields:
    """Which fields of a record a schema needs."""
    names = set(schema.names)
    return WantedFields(
        timestamp=bool(names & {"timestamp", "_metadata"}),
        key="key" in names,
        value="value" in names,
        headers="headers" in names,
    )


class RowMaker:
    """Makes record batches of one schema. Constant columns are made once and sliced."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._constants: dict[str, tuple[object, pa.Array]] = {}

    def batches(
        self, section: RecordSection, columns: RecordColumns, span: LogSpan
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a section that lie within a span's offsets.

        Raises:
            TimestampRangeError: A timestamp does not fit microseconds since 1970.
        """
        rows = _rows_within(columns.offsets, span)
        count = len(columns.offsets) if rows is None else len(rows)
        if count == 0:
            return
        batch = pa.RecordBatch.from_arrays(
            self._arrays(_Rows(section, columns, span, rows, count)), schema=self._schema
        )
        step = min(MAX_ROWS, max(1, count * _MAX_BATCH_BYTES // max(batch.nbytes, 1)))
        for start in range(0, count, step):
            yield batch if step >= count else batch.slice(start, step)

    def _arrays(self, rows: _Rows) -> list[pa.Array]:
        arrays: dict[str, pa.Array] = {}
        wanted = [name for name in ("key", "value") if name in self._schema.names]
        if wanted:
            slices = [rows.slices(rows.columns.keys if name == "key" else rows.columns.values) for name in wanted]
            arrays.update(zip(wanted, binary_arrays(rows.section.buffer, slices), strict=True))
        return [
            arrays[name] if name in arrays else self._array(name, rows) for name in self._schema.names
        ]

    def _array(self, name: str, rows: _Rows) -> pa.Array:
        if name == "offset":
            return pa.array(rows.pick(rows.columns.offsets))
        if name == "timestamp":
            return rows.timestamps()
        if name == "topic":
            return self._constant(name, rows.span.topic, pa.string(), rows.count)
        if name == "partition":
            return self._constant(name, rows.span.partition, pa.int32(), rows.count)
        if name == "timestampType":
            kinds = ((rows.section.headers["attributes"] & LOG_APPEND_TIME_FLAG) != 0).astype(np.int32)
            if kinds.min() == kinds.max():
                return self._constant(name, int(kinds[0]), pa.int32(), rows.count)
            return pa.array(rows.per_batch(kinds))
        if name == "headers":
            return rows.headers()
        return _metadata(rows)

    def _constant(self, name: str, value: object, kind: pa.DataType, count: int) -> pa.Array:
        known = self._constants.get(name)
        if known is None or known[0] != value or len(known[1]) < count:
            known = (value, pa.repeat(pa.scalar(value, kind), max(count, MAX_ROWS)))
            self._constants[name] = known
        return known[1].slice(0, count)


def _rows_within(offsets: npt.NDArray[np.int64], span: LogSpan) -> npt.NDArray[np.int64] | None:
    """Indexes of the rows within the span; None if all are."""
    # Offsets ascend.
    first, last = np.searchsorted(offsets, (span.start_offset, span.end_offset)).tolist()
    if first == 0 and last == len(offsets):
        return None
    return np.arange(first, last)


class _Rows:
    """The chosen rows of a section."""

    def __init__(
        self,
        section: RecordSection,
        columns: RecordColumns,
        span: LogSpan,
        rows: npt.NDArray[np.int64] | None,
        count: int,
    ) -> None:
        self.section = section
        self.columns = columns
        self.span = span
        self.rows = rows
        self.count = count

    def pick(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return column if self.rows is None else column[self.rows]

    def per_batch(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Spread a value a batch over the batches' rows."""
        return self.pick(np.repeat(column, self.columns.row_counts))

    def slices(self, column: Slices | None) -> Slices:
        assert column is not None  # noqa: S101  (it was asked for)
        if self.rows is None:
            return column
        return type(column)(column.starts[self.rows], column.lengths[self.rows])

    def timestamps_ms(self) -> npt.NDArray[np.int64]:
        assert self.columns.timestamps_ms is not None  # noqa: S101  (it was asked for)
        return self.pick(self.columns.timestamps_ms)

    def timestamps(self) -> pa.Array:
        timestamps_ms = self.timestamps_ms()
        if timestamps_ms.max() > _LARGEST_MS or timestamps_ms.min() < -_LARGEST_MS:
            self._fail_timestamp(timestamps_ms)
        return pa.array(timestamps_ms * _US_PER_MS).view(pa.timestamp("us", tz="UTC"))

    def headers(self) -> pa.ListArray:
        assert self.columns.headers is not None  # noqa: S101  (they were asked for)
        array = headers_array(self.section.buffer, self.columns.headers)
        return array if self.rows is None else array.slice(int(self.rows[0]), self.count)

    def _fail_timestamp(self, timestamps_ms: npt.NDArray[np.int64]) -> None:
        row = int(np.flatnonzero(np.abs(timestamps_ms) > _LARGEST_MS)[0])
        offset = int(self.pick(self.columns.offsets)[row])
        batch = int(self.per_batch(np.arange(len(self.section.starts)))[row])
        raise TimestampRangeError(
            f"Expected a timestamp in milliseconds that also fits microseconds, found {timestamps_ms[row]}: "
            "perhaps its producer sent nanoseconds. Leave out the column `timestamp`, or read "
            "`_metadata.timestampMs` (includeMetadata) without it.",
            path=self.section.path,
            position_bytes=int(self.section.positions[batch]),
            offset=offset,
        )


def _metadata(rows: _Rows) -> pa.StructArray:
    headers = rows.section.headers
    sequences = headers["base_sequence"].astype(np.int64)
    base_offsets = rows.per_batch(headers["base_offset"].astype(np.int64))
    first_sequences = rows.per_batch(sequences)
    deltas = rows.pick(rows.columns.offsets) - base_offsets
    # Sequences wrap from 2^31 - 1 to 0.
    sequence = np.where(first_sequences < 0, -1, (first_sequences + deltas) & 0x7FFFFFFF)
    attributes = headers["attributes"]
    codec_names = pa.array(CODEC_NAMES).take(pa.array(rows.per_batch(attributes & CODEC_MASK).astype(np.int8)))
    count = rows.count
    children = [
        pa.repeat(pa.scalar(rows.span.file_name, pa.string()), count),
        pa.array(rows.per_batch(rows.section.positions)),
        pa.array(base_offsets),
        pa.array(rows.per_batch(headers["leader_epoch"].astype(np.int32))),
        pa.array(rows.per_batch(headers["producer_id"].astype(np.int64))),
        pa.array(rows.per_batch(headers["producer_epoch"].astype(np.int32))),
        pa.array(sequence.astype(np.int32)),
        pa.array(rows.per_batch((attributes & TRANSACTIONAL_FLAG) != 0)),
        codec_names,
        pa.array(rows.per_batch(headers["magic"].astype(np.int32))),
        pa.array(rows.timestamps_ms()),
    ]
    return pa.StructArray.from_arrays(children, fields=list(METADATA_TYPE))
