"""Decode columns of the rows that a read gives, and report the records that do not decode as its mode asks.

Rows are collected first, because a decoder takes many at a time for little more than a few.
"""

from __future__ import annotations

import base64
import json
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from storage_core.errors import SegmentLogError, ValueDecodeError
from storage_core.record import HEADERS_TYPE
from storage_core.scan.rows import MAX_BATCH_BYTES, cut_batch
from storage_core.scan.spans import record_schema
from storage_core.values.column_format import HEADER_NAMES, ColumnDecoder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from storage_core.scan.read_notes import ReadNotes
    from storage_core.scan.spans import ReadSettings
    from storage_core.values.decoding import RowError


_COLLECTED_ROWS: Final = 4_096
RAW_LIMIT_BYTES: Final = 64 << 10
"""Most bytes of a key or value that does not decode that ``_corrupt_record`` holds."""
_PLACE: Final = ("topic", "partition", "offset")
# What does not decode of a record: errors by column, the value's first.
_Errors: TypeAlias = "dict[str, RowError]"


class TypedRows:
    """Decoder of rows whose keys and values are bytes into rows of a schema.

    Args:
        schema: The schema of the rows that are wanted.
        settings: How its columns are decoded.
        notes: Counts the records that do not decode.

    Attributes:
        stored_schema: The schema of the rows that are decoded.
    """

    def __init__(self, schema: pa.Schema, settings: ReadSettings, notes: ReadNotes) -> None:
        formats = [each for each in settings.formats if each.column in schema.names]
        self._schema = schema
        self._settings = settings
        self._notes = notes
        self._decoders = {each.column: ColumnDecoder(each) for each in formats}
        self._most_rows = min((each.most_rows for each in self._decoders.values()), default=0)
        self.stored_schema = schema
        for each in formats:
            index = schema.get_field_index(each.column)
            self.stored_schema = self.stored_schema.set(index, pa.field(each.column, pa.binary()))
            if each.is_framed:
                self._append(pa.field(HEADER_NAMES[each.column], HEADERS_TYPE))
        for name in _PLACE if formats else ():
            self._append(record_schema().field(name))

    def _append(self, added: pa.Field) -> None:
        if added.name not in self.stored_schema.names:
            self.stored_schema = self.stored_schema.append(added)

    def decoded(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode the rows of a task.

        Raises:
            ValueDecodeError: A record does not decode, and that fails the read.
        """
        if not self._decoders:
            yield from batches
            return
        collected: list[pa.RecordBatch] = []
        rows = size_bytes = 0
        try:
            for batch in batches:
                # Enough rows, or too many bytes for another batch; a large one is quicker by itself than copied.
                if (
                    max(rows, batch.num_rows) >= _COLLECTED_ROWS
                    or size_bytes + batch.nbytes > 2 * MAX_BATCH_BYTES
                ):
                    ready, collected, rows, size_bytes = collected, [], 0, 0
                    yield from self._decoded(ready)
                collected.append(batch)
                rows += batch.num_rows
                size_bytes += batch.nbytes
        except SegmentLogError:
            # Rows before the error are still returned, up to one that does not decode.
            yield from self._decoded(collected)
            raise
        yield from self._decoded(collected)

    def _decoded(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if not batches:
            return
        collected = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        for start in range(0, collected.num_rows, self._most_rows):
            yield from self._decoded_at_once(collected.slice(start, self._most_rows))

    def _decoded_at_once(self, stored: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        columns = {name: stored.column(name) for name in self._schema.names}
        found: dict[int, _Errors] = {}
        for column, decoder in self._decoders.items():
            columns[column], errors = decoder.decode(stored.column(column), _headers(stored, column))
            for error in errors:
                found.setdefault(error.row, {})[column] = error
        failures = sorted(found.items(), key=itemgetter(0))
        mode = self._settings.mode
        if failures and mode != "FAILFAST":
            effect = "They are null." if mode == "PERMISSIVE" else "They are left out."
            for row, errors_of_row in failures:
                self._notes.add_undecoded(_place(stored, row), errors_of_row, effect)
        if failures and mode == "PERMISSIVE":
            self._describe(failures, stored, columns)
        rows = pa.RecordBatch.from_arrays(list(columns.values()), schema=self._schema)
        if failures and mode == "DROPMALFORMED":
            rows = rows.filter(pa.array(~_is_failed(failures, rows.num_rows)))
        if failures and mode == "FAILFAST":
            first, errors_of_first = failures[0]
            yield from _pieces(rows.slice(0, first))
            raise self._error(_place(stored, first), errors_of_first)
        yield from _pieces(rows)

    def _describe(
        self, failures: list[tuple[int, _Errors]], stored: pa.RecordBatch, columns: dict[str, pa.Array]
    ) -> None:
        """Write why records do not decode into the column of corrupt records, beside any damage described there."""
        name = self._settings.corrupt_record_column
        if name in columns:
            import pyarrow.compute as pc  # noqa: PLC0415  (takes 20 ms, and few reads need it)

            damage = columns[name]
            texts = [_failure_json(row, errors, stored, damage[row].as_py()) for row, errors in failures]
            mask = pa.array(_is_failed(failures, stored.num_rows))
            columns[name] = pc.replace_with_mask(damage, mask, pa.array(texts, pa.string()))

    def _error(self, place: tuple[str, int, int], errors: _Errors) -> ValueDecodeError:
        topic, partition, offset = place
        column, error = next(iter(errors.items()))
        schema = "" if error.schema_id is None else f" (schema id {error.schema_id})"
        return ValueDecodeError(
            f"The {column} of {topic}-{partition} at offset {offset} does not decode: {error.reason}{schema}: "
            f"{error.message.rstrip('.')}. Set mode to PERMISSIVE to read it as null, with its bytes in "
            f"{self._settings.corrupt_record_column}, or to DROPMALFORMED to leave it out; {column}Format=bytes reads all "
            "records.",
            topic=topic,
            partition=partition,
            reason=error.reason,
            schema_id=error.schema_id,
            offset=offset,
        )


def _is_failed(failures: list[tuple[int, _Errors]], count: int) -> npt.NDArray[np.bool_]:
    """Return a flag for each row: True if it does not decode."""
    is_failed: npt.NDArray[np.bool_] = np.zeros(count, np.bool_)
    is_failed[[row for row, _ in failures]] = True
    return is_failed


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    return cut_batch(batch) if batch.num_rows else iter(())


def _headers(stored: pa.RecordBatch, column: str) -> pa.ListArray | None:
    name = HEADER_NAMES[column]
    if name not in stored.schema.names or stored.column(name).null_count == stored.num_rows:
        return None
    return stored.column(name)


def _place(stored: pa.RecordBatch, row: int) -> tuple[str, int, int]:
    topic, partition, offset = (stored.column(name)[row].as_py() for name in _PLACE)
    return topic, partition, offset


def _failure_json(row: int, errors: _Errors, stored: pa.RecordBatch, damage: str | None) -> str:
    """Describe as JSON why a record does not decode: its value, or else its key; if neither does, the key is nested."""
    (column, error), *others = errors.items()
    place = dict(zip(_PLACE, _place(stored, row), strict=True))
    described = {"column": column, **_error_fields(error, stored.column(column)), **place}
    for other, its_error in others:
        described[other] = _error_fields(its_error, stored.column(other))
    if damage is not None:
        described["damage"] = json.loads(damage)
    return json.dumps(described)


def _error_fields(error: RowError, values: pa.BinaryArray) -> dict[str, Any]:
    data: bytes = values[error.row].as_py()
    found: dict[str, Any] = {
        "reason": error.reason,
        "schemaId": error.schema_id,
        "message": error.message,
        "raw": base64.b64encode(data[:RAW_LIMIT_BYTES]).decode(),
        "sizeBytes": len(data),
    }
    return found if len(data) <= RAW_LIMIT_BYTES else {**found, "rawLimitBytes": RAW_LIMIT_BYTES}
