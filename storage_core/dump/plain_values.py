"""Decoded values as JSON can hold them.

Bytes within a value are base64, decimals text with all digits of their scale, times and dates ISO-8601, maps objects. Numbers
that JSON lacks are the texts NaN, Infinity and -Infinity. Times of any year are written, also those that no `datetime` has.
"""

from __future__ import annotations

import base64
import json
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

if TYPE_CHECKING:
    from collections.abc import Callable


def is_typed(kind: pa.DataType) -> bool:
    """Return True for the type of a column that is neither bytes nor text."""
    return not (kinds.is_binary(kind) or kinds.is_string(kind))


def json_texts(array: pa.Array) -> list[str | None]:
    """Write each value as JSON on one line; None for null."""
    return [
        None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        for value in plain_values(array)
    ]


def plain_values(array: pa.Array) -> list[Any]:
    """Convert an array to values that JSON can hold; None for null."""
    values = _values(array)
    if not array.null_count:
        return values
    is_valid = array.is_valid().to_pylist()
    return [value if valid else None for value, valid in zip(values, is_valid, strict=True)]


def _values(array: pa.Array) -> list[Any]:
    """Convert an array; where it is null, the values mean nothing."""
    kind = array.type
    if kinds.is_struct(kind):
        columns = [plain_values(array.field(index)) for index in range(kind.num_fields)]
        names = [field.name for field in kind]
        return (
            [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
            if names
            else [{}] * len(array)
        )
    if kinds.is_map(kind):
        pairs = zip(map(_key, plain_values(array.keys)), plain_values(array.items), strict=True)
        return _lists(array, list(pairs), dict)
    if kinds.is_list(kind):
        return _lists(array, plain_values(array.values), list)
    if kinds.is_timestamp(kind):
        suffix = "" if kind.tz is None else "Z"
        return [
            f"{text}{suffix}" for text in _times(array.cast(pa.timestamp("us", kind.tz)), pa.int64(), "us")
        ]
    if kinds.is_date32(kind):
        return _times(array, pa.int32(), "D")
    return list(map(_simple, array.to_pylist()))


def _lists(array: pa.Array, items: list[Any], make: Callable[[list[Any]], Any]) -> list[Any]:
    return [make(items[start:end]) for start, end in pairwise(array.offsets.to_pylist())]


def _key(value: object) -> str:
    """Write the key of a map as the name of a field."""
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _times(array: pa.Array, stored: pa.DataType, unit: str) -> list[str]:
    numbers = array.cast(stored).fill_null(0).to_numpy()
    texts: list[str] = np.datetime_as_string(numbers.astype(f"datetime64[{unit}]")).tolist()
    return texts


def _simple(value: Any) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    return value if value is None or isinstance(value, (str, int, float)) else format(value, "f")
