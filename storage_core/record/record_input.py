"""The Arrow columns of records that are to be written: which there may be, of which types, and their rows.

value      binary or text of any Arrow type; null is a tombstone
key        likewise; optional
timestamp  timestamp of any unit, floored to milliseconds, or int64 milliseconds; null is the default; optional
headers    list<struct<key: text, value: binary or text>>; null is none; a key is never null; optional
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.types as kinds

from storage_core.errors import InvalidRecordError, RecordError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.record.plain_encode import PlainHeaders, PlainRecord

__all__ = ["COLUMNS", "Records", "check_columns", "plain_rows"]

Records: TypeAlias = pa.Table | pa.RecordBatch

COLUMNS: Final = ("value", "key", "timestamp", "headers")
# What a unit has to be divided by, or (seconds) multiplied, to give milliseconds.
MILLISECONDS: Final = {"s": 1000, "ms": 1, "us": 1000, "ns": 1_000_000}
_HEADER_FIELDS: Final = ("key", "value")


def check_columns(records: Records) -> None:
    """Check names and types of all columns.

    Raises:
        InvalidRecordError: No table or record batch; no column ``value`` in it; a column of an unknown name, two of one name, or one of
            a wrong type.
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
            "Give a record that is to have none a null value."
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
        raise InvalidRecordError(
            f"Expected each column once, found {', '.join(names)}. Drop what is there twice."
        )


def _fail_unknown(name: str) -> NoReturn:
    near = get_close_matches(name.lower(), COLUMNS, 1)
    hint = f"Did you mean {near[0]}?" if near else "Drop it, or put it into value or headers."
    raise InvalidRecordError(f"Expected no columns but {', '.join(COLUMNS)}, found {name}. {hint}")


def is_bytes(kind: pa.DataType) -> bool:
    """Whether a column of this type holds byte strings, or texts, or nothing but nulls."""
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
    """Whether a column of this type holds lists."""
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
    return _is_text(pair[0].type) and is_bytes(pair[1].type)


_CHECKS: Final = {"value": is_bytes, "key": is_bytes, "timestamp": _is_timestamp, "headers": _is_headers}
_EXPECTED: Final = {
    "value": "of a binary or string type",
    "key": "of a binary or string type",
    "timestamp": "a timestamp, or int64 milliseconds",
    "headers": "list<struct<key: string, value: binary>>",
}


def plain_rows(records: Records, default_timestamp_ms: int, first_row: int = 0) -> Sequence[PlainRecord]:
    """The rows as Python objects.

    Args:
        records: The columns, checked.
        default_timestamp_ms: For a record without one.
        first_row: Number of the first row; for messages.

    Raises:
        InvalidRecordError: A header without a key, or a timestamp beyond 64 bits of milliseconds.
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
            timestamps = _timestamps_ms(column, default_timestamp_ms, first_row)
        else:
            headers = _headers(column, first_row)
    return list(zip(timestamps, keys, values, headers, strict=True))


def _byte_strings(column: pa.Array | pa.ChunkedArray) -> list[bytes | None]:
    return [_as_bytes(content) for content in column.to_pylist()]


def _as_bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def _timestamps_ms(
    column: pa.Array | pa.ChunkedArray, default_timestamp_ms: int, first_row: int
) -> list[int]:
    kind = column.type
    if kinds.is_null(kind):
        return [default_timestamp_ms] * len(column)
    if kinds.is_int64(kind):
        raw = column.to_pylist()
    else:
        raw = [item.value for item in column]
        factor = MILLISECONDS[kind.unit]
        if kind.unit == "s":
            raw = [None if item is None else item * factor for item in raw]
            for row, item in enumerate(raw, first_row):
                if item is not None and not -(1 << 63) <= item < 1 << 63:
                    fail_timestamp(row)
        elif factor > 1:
            raw = [None if item is None else item // factor for item in raw]
    return [default_timestamp_ms if item is None else item for item in raw]


def fail_timestamp(row: int) -> NoReturn:
    """Raise the error for seconds that are too many milliseconds."""
    message = (
        f"Expected the column timestamp to fit 64 bits of milliseconds, found more seconds in row {row}."
    )
    raise InvalidRecordError(message, record_errors=(RecordError(row, message),))


def _headers(column: pa.Array | pa.ChunkedArray, first_row: int) -> list[PlainHeaders]:
    rows: list[PlainHeaders] = []
    for row, pairs in enumerate(column.to_pylist(), first_row):
        headers = []
        for pair in pairs or ():
            if pair is None or pair["key"] is None:
                fail_header_key(row)
            headers.append((pair["key"].encode(), _as_bytes(pair["value"])))
        rows.append(headers)
    return rows


def fail_header_key(row: int) -> NoReturn:
    """Raise the error for a header without a key."""
    message = (
        f"Expected every header to have a key, found null in the column headers of row {row}. "
        "Kafka allows an empty key, but none that is null."
    )
    raise InvalidRecordError(message, record_errors=(RecordError(row, message),))
