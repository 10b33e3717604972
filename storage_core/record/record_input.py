"""The Arrow columns of records to write: their names, their types, and the timestamps and lengths of their rows.

value      binary or string of any Arrow type; null is a tombstone
key        likewise; optional
timestamp  timestamp of any unit, floored to milliseconds, or int64 milliseconds; null is the default; optional
headers    list<struct<key: string, value: binary or string>>; null is none; a key is never null; optional

The bytes of the rows are read only when they are encoded, and copied only where Arrow requires it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from storage_core.errors import InvalidRecordError, RecordError
from storage_core.record.arrow_columns import byte_lengths, chunks_of
from storage_core.record.varint import varint_lengths

_Int64Array = npt.NDArray[np.int64]
PlainHeaders: TypeAlias = Sequence[tuple[bytes, bytes | None]]
# Timestamp (ms), key, value, headers.
PlainRecord: TypeAlias = tuple[int, bytes | None, bytes | None, PlainHeaders]
Records: TypeAlias = pa.Table | pa.RecordBatch
COLUMNS: Final = ("value", "key", "timestamp", "headers")
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
# By unit: the divisor that gives milliseconds; for seconds the factor.
_MILLISECONDS: Final = {"s": 1000, "ms": 1, "us": 1000, "ns": 1_000_000}
_HEADER_FIELDS: Final = ("key", "value")


def check_columns(records: Records) -> None:
    """Check names and types of all columns.

    Raises:
        InvalidRecordError: Not a table or record batch; no column ``value``; a column of an unknown name or a wrong
            type; two columns of one name.
    """
    if not isinstance(records, pa.Table | pa.RecordBatch):
        raise InvalidRecordError(
            f"Expected records as a pyarrow Table or RecordBatch, found {type(records).__name__}. "
            'Make one of them, as in pa.table({"value": [b"..."]}).'
        )
    schema = records.schema
    names = schema.names
    if "value" not in names:
        raise InvalidRecordError(
            f"Expected records to have a column value, found {', '.join(names) or 'no columns'}. "
            "A record without a value has a null in it."
        )
    for name, kind in zip(names, schema.types, strict=True):
        check = _CHECKS.get(name)
        if check is None:
            _fail_unknown(name)
        if not check(kind):
            raise InvalidRecordError(
                f"Expected the column {name} to be {_EXPECTED[name]}, found {kind}. Cast it."
            )
    if len(set(names)) < len(names):
        raise InvalidRecordError(f"Expected each column once, found {', '.join(names)}. Drop the duplicates.")


def _fail_unknown(name: str) -> NoReturn:
    near = get_close_matches(name.lower(), COLUMNS, 1)
    hint = f"Did you mean {near[0]}?" if near else "Drop it, or put it into value or headers."
    raise InvalidRecordError(f"Expected no columns but {', '.join(COLUMNS)}, found {name}. {hint}")


def _is_bytes(kind: pa.DataType) -> bool:
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        kinds.is_binary(kind)
        or kinds.is_string(kind)
        or kinds.is_large_binary(kind)
        or kinds.is_large_string(kind)
        or kinds.is_fixed_size_binary(kind)
        or kinds.is_binary_view(kind)
        or kinds.is_string_view(kind)
        or kinds.is_null(kind)
    )


def is_list(kind: pa.DataType) -> bool:
    """Return True if a column of this type holds lists."""
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def _is_timestamp(kind: pa.DataType) -> bool:
    return bool(kinds.is_timestamp(kind) or kinds.is_int64(kind) or kinds.is_null(kind))


def _is_headers(kind: pa.DataType) -> bool:
    if kinds.is_null(kind):
        return True
    if not is_list(kind):
        return False
    pair = kind.value_type
    if not kinds.is_struct(pair) or tuple(field.name for field in pair) != _HEADER_FIELDS:
        return False
    return _is_text(pair[0].type) and _is_bytes(pair[1].type)


_CHECKS: Final = {"value": _is_bytes, "key": _is_bytes, "timestamp": _is_timestamp, "headers": _is_headers}
_EXPECTED: Final = {
    "value": "of a binary or string type",
    "key": "of a binary or string type",
    "timestamp": "a timestamp, or int64 milliseconds",
    "headers": "list<struct<key: string, value: binary>>",
}


def plain_rows(records: Records, default_timestamp_ms: int) -> Sequence[PlainRecord]:
    """Return the rows as Python objects.

    Raises what `check_rows` raises.
    """
    count = records.num_rows
    timestamps: Sequence[int] = [default_timestamp_ms] * count
    keys: Sequence[bytes | None] = [None] * count
    headers: Sequence[PlainHeaders] = [()] * count
    values: Sequence[bytes | None] = keys
    for name, column in zip(records.schema.names, records.columns, strict=True):
        if name == "value":
            values = _byte_strings(column)
        elif name == "key":
            keys = _byte_strings(column)
        elif name == "timestamp":
            timestamps = _timestamps_ms(column, default_timestamp_ms)
        else:
            headers = _headers(column)
    return list(zip(timestamps, keys, values, headers, strict=True))


def _byte_strings(column: pa.Array | pa.ChunkedArray) -> list[bytes | None]:
    return [_as_bytes(content) for content in column.to_pylist()]


def _as_bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def _timestamps_ms(column: pa.Array | pa.ChunkedArray, default_timestamp_ms: int) -> list[int]:
    kind = column.type
    if kinds.is_null(kind):
        return [default_timestamp_ms] * len(column)
    if kinds.is_int64(kind):
        raw = column.to_pylist()
    else:
        raw = [item.value for item in column]
        factor = _MILLISECONDS[kind.unit]
        if kind.unit == "s":
            raw = [None if item is None else item * factor for item in raw]
            for row, item in enumerate(raw):
                if item is not None and not -(1 << 63) <= item < 1 << 63:
                    _fail_timestamp(row)
        elif factor > 1:
            raw = [None if item is None else item // factor for item in raw]
    return [default_timestamp_ms if item is None else item for item in raw]


def _fail_timestamp(row: int) -> NoReturn:
    message = (
        f"Expected the column timestamp to fit 64 bits of milliseconds, found more seconds in row {row}."
    )
    raise InvalidRecordError(message, record_errors=(RecordError(row, message),))


def _headers(column: pa.Array | pa.ChunkedArray) -> list[PlainHeaders]:
    rows: list[PlainHeaders] = []
    for row, pairs in enumerate(column.to_pylist()):
        headers = []
        for pair in pairs or ():
            if pair is None or pair["key"] is None:
                _fail_header_key(row)
            headers.append((pair["key"].encode(), _as_bytes(pair["value"])))
        rows.append(headers)
    return rows


def check_header_keys(records: Records, offsets: pa.Array | None = None) -> None:
    """Refuse header keys with U+FFFD, which a read puts in place of bytes that are not UTF-8: they would be lost.

    Args:
        records: Their columns are checked already.
        offsets: Per row, the offset that it keeps, for the message; None if it gets another one.

    Raises:
        InvalidRecordError: There is such a key.
    """
    row = 0
    for chunk in chunks_of(records, "headers"):
        if not kinds.is_null(chunk.type):
            keys = chunk.flatten().flatten()[0]
            if kinds.is_string_view(keys.type):
                keys = keys.cast(pa.large_string())
            header = pc.index(pc.match_substring(keys, _REPLACEMENT), value=True).as_py()
            if header >= 0:
                counts = pc.fill_null(pc.list_value_length(chunk), 0).to_numpy()
                row += int(np.cumsum(counts).searchsorted(header, "right"))
                what = f"row {row}" if offsets is None else f"the row of offset {offsets[row]}"
                message = (
                    f"Expected the bytes of each header key, found U+FFFD in a key of {what}: a read puts it in place of bytes "
                    "that are no UTF-8. Leave this header out, or copy whole batches: append_batches and a copy of the "
                    "segment files keep all bytes."
                )
                raise InvalidRecordError(message, record_errors=(RecordError(row, message),))
        row += len(chunk)


def _fail_header_key(row: int) -> NoReturn:
    message = (
        f"Expected every header to have a key, found null in the column headers of row {row}. "
        "Kafka allows an empty key, but not a null one."
    )
    raise InvalidRecordError(message, record_errors=(RecordError(row, message),))


# The length of a batch has 32 bits, and includes most of its header and the head of the record.
_MAX_RECORD_BYTES: Final = (1 << 31) - 1 - 128
_BLOCK_ROWS: Final = 1 << 16
_NULL: Final = np.full(1, -1, np.int64)
# Keys and values of records and of headers.
_BYTE_COLUMNS: Final = 4


@dataclass(frozen=True, slots=True)
class HeaderRows:
    """The headers of some rows, one after the other: how many each row has, and the length of each key and value."""

    counts: _Int64Array
    keys: Sequence[pa.Array]
    values: Sequence[pa.Array]
    key_lengths: _Int64Array
    value_lengths: _Int64Array

    def sizes_bytes(self) -> _Int64Array:
        """Return the encoded size of each row's headers, without their count."""
        ends = np.cumsum(_encoded_bytes(self.key_lengths) + _encoded_bytes(self.value_lengths))
        borders = np.concatenate([np.zeros(1, np.int64), ends])
        last = np.cumsum(self.counts)
        sizes: _Int64Array = borders[last] - borders[last - self.counts]
        return sizes


@dataclass(frozen=True, slots=True)
class RecordRows:
    """The timestamps of some rows, and the lengths of their fields. A column of one row applies to all rows.

    ``tails_bytes`` is the encoded size of what follows the offset delta: key, value and headers with their lengths.
    """

    count: int
    timestamps_ms: _Int64Array
    key_lengths: _Int64Array
    value_lengths: _Int64Array
    tails_bytes: _Int64Array

    def slice(self, start: int, count: int) -> RecordRows:
        """Return ``count`` rows from ``start``."""
        columns = (self.timestamps_ms, self.key_lengths, self.value_lengths, self.tails_bytes)
        return RecordRows(
            count, *(column[start : start + count] if len(column) > 1 else column for column in columns)
        )


def measure_rows(records: Records, default_timestamp_ms: int, first_row: int) -> RecordRows:
    """Return the timestamps of some rows, and the lengths of their fields. Errors number them from ``first_row``.

    Raises what `check_rows` raises.
    """
    values, keys = (_constant(byte_lengths(chunks_of(records, name))) for name in ("value", "key"))
    if not len(keys):
        keys = _NULL
    headers = header_rows_of(chunks_of(records, "headers"), first_row)
    tails = _encoded_bytes(keys) + _encoded_bytes(values)
    tails = tails + (1 if headers is None else varint_lengths(headers.counts) + headers.sizes_bytes())
    timestamps_ms = _timestamps_of_chunks_ms(chunks_of(records, "timestamp"), default_timestamp_ms, first_row)
    return RecordRows(records.num_rows, _constant(timestamps_ms), keys, values, tails)


def check_rows(records: Records, *, sizes_only: bool = False) -> None:
    """Check that all rows can be encoded. They are not read if types and buffer sizes prove it.

    With ``sizes_only``, the caller checks headers and timestamps.

    Raises:
        InvalidRecordError: A header without a key, a timestamp beyond 64 bits of milliseconds, or a record that is
            too large for any batch.
    """
    types = records.schema.types
    # A buffer is counted once, even if several columns share it.
    size_bytes = records.get_total_buffer_size() * _BYTE_COLUMNS
    is_small = size_bytes < _MAX_RECORD_BYTES and not any(map(_shares_bytes, types))
    if is_small and (sizes_only or not any(map(_may_be_invalid, types))):
        return
    for start in range(0, records.num_rows, _BLOCK_ROWS):
        rows = measure_rows(records.slice(start, _BLOCK_ROWS), 0, start)
        too_large = np.flatnonzero(rows.tails_bytes > _MAX_RECORD_BYTES)
        if len(too_large):
            row = int(too_large[0])
            raise InvalidRecordError(
                f"Expected a record to take at most {_MAX_RECORD_BYTES} bytes, found "
                f"{int(rows.tails_bytes[row])} in row {start + row}. A batch's length has 32 bits: split the value."
            )


def _shares_bytes(kind: pa.DataType) -> bool:
    """Return True if rows of a column may share bytes, and so be larger than its buffers."""
    if is_list(kind):
        return any(_shares_bytes(field.type) for field in kind.value_type)
    return bool(kinds.is_dictionary(kind) or kinds.is_binary_view(kind) or kinds.is_string_view(kind))


def _may_be_invalid(kind: pa.DataType) -> bool:
    """Return True if a column may hold a header without a key, or seconds that overflow as milliseconds."""
    return is_list(kind) or bool(kinds.is_timestamp(kind) and kind.unit == "s")


def _encoded_bytes(lengths: _Int64Array) -> _Int64Array:
    """Return the size of byte strings with their encoded lengths; -1 is null."""
    return varint_lengths(lengths) + np.maximum(lengths, 0)


def _constant(column: _Int64Array) -> _Int64Array:
    return column[:1] if len(column) and column.min() == column.max() else column


def _timestamps_of_chunks_ms(
    chunks: Sequence[pa.Array], default_timestamp_ms: int, first_row: int
) -> _Int64Array:
    columns = []
    for chunk in chunks:
        if not kinds.is_null(chunk.type) and len(chunk):
            columns.append(_milliseconds(chunk, default_timestamp_ms, first_row))
            first_row += len(chunk)
    if len(columns) == 1:
        return columns[0]
    return np.concatenate(columns) if columns else np.array([default_timestamp_ms], np.int64)


def _milliseconds(array: pa.Array, default_timestamp_ms: int, first_row: int) -> _Int64Array:
    values = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array)]
    is_null = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    unit = array.type.unit if kinds.is_timestamp(array.type) else "ms"
    factor = _MILLISECONDS[unit]
    if unit == "s":
        # The value of a null is undefined.
        seconds = values if is_null is None else np.where(is_null, 0, values)
        values = seconds * factor
        wrong = np.flatnonzero(values // factor != seconds)
        if len(wrong):
            _fail_timestamp(first_row + int(wrong[0]))
    elif factor > 1:
        values = values // factor
    return values if is_null is None else np.where(is_null, default_timestamp_ms, values)


def header_rows_of(chunks: Sequence[pa.Array], first_row: int) -> HeaderRows | None:
    """Return the headers of some rows.

    Returns:
        None if they have none. Raises what `check_rows` raises.
    """
    counts, keys, values = [], [], []
    row = first_row
    for chunk in chunks:
        if kinds.is_null(chunk.type):
            continue
        row_counts = np.diff(chunk.offsets.to_numpy()).astype(np.int64)
        if chunk.null_count:
            row_counts[chunk.is_null().to_numpy(zero_copy_only=False)] = 0
        pairs = chunk.flatten()
        chunk_keys, chunk_values = pairs.flatten()
        if chunk_keys.null_count:
            header = chunk_keys.is_null().to_numpy(zero_copy_only=False).argmax()
            _fail_header_key(row + int(np.cumsum(row_counts).searchsorted(header, "right")))
        counts.append(row_counts)
        keys.append(chunk_keys)
        values.append(chunk_values)
        row += len(chunk)
    if not any(map(len, keys)):
        return None
    return HeaderRows(np.concatenate(counts), keys, values, byte_lengths(keys), byte_lengths(values))
