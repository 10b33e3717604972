"""Rows of a view as Arrow columns, for views whose rows are made one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from storage_core.inspect.json_values import escaped_surrogates
from storage_core.inspect.views import TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from storage_core.inspect.views import Column


_TEXTS: Final = pa.list_(pa.string())
_ROWS_PER_BATCH: Final = 16_384
# Beyond these, milliseconds do not fit a column of microseconds.
_MAX_TIMESTAMP_MS: Final = (2**63 - 1) // 1000


def batches_of_rows(columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> Iterator[pa.RecordBatch]:
    """Batches of rows, each a value for each column.

    Timestamps are in milliseconds, null for -1 and where they do not fit. Bytes of a file name that are not UTF-8
    become escapes.
    """
    values: list[list[Any]] = [[] for _ in columns]
    for row in rows:
        for column, value in zip(values, row, strict=True):
            column.append(value)
        if len(values[0]) == _ROWS_PER_BATCH:
            yield _batch(columns, values)
            values = [[] for _ in columns]
    if values[0]:
        yield _batch(columns, values)


def _batch(columns: Sequence[Column], values: Sequence[list[Any]]) -> pa.RecordBatch:
    arrays = [_array(column.type, of_column) for column, of_column in zip(columns, values, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


def _array(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if kind == TIMESTAMP:
        return pa.array(map(_microseconds, values), pa.int64()).cast(TIMESTAMP)
    if kind == pa.string():
        return pa.array([value if value is None else escaped_surrogates(value) for value in values], kind)
    if kind == _TEXTS:
        return pa.array(
            [value if value is None else [escaped_surrogates(each) for each in value] for value in values],
            kind,
        )
    return pa.array(values, kind)


def _microseconds(timestamp_ms: int | None) -> int | None:
    if timestamp_ms is None or timestamp_ms == -1 or abs(timestamp_ms) > _MAX_TIMESTAMP_MS:
        return None
    return timestamp_ms * 1000
