"""Decodes many values at once; where that fails, in ever smaller parts, so that a bad value costs its neighbours little."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from storage_core.values.decoding import Decoded, RowError

if TYPE_CHECKING:
    from collections.abc import Callable

    DecodeAll: TypeAlias = Callable[[pa.Array], pa.Array | None]
    DecodeRow: TypeAlias = Callable[[bytes], object]

# Larger parts would be decoded in vain too often where few values are bad, smaller ones where many are.
_LARGEST_PART_ROWS, _SMALLEST_PART_ROWS = 1024, 64


def decode_by_halves(
    values: pa.Array, arrow_type: pa.DataType, decode_all: DecodeAll, decode_row: DecodeRow
) -> Decoded:
    """Decode values at once as far as possible, and the others one by one.

    Args:
        values: Encoded values, none of them null.
        arrow_type: Type of the column.
        decode_all: Returns a column, or None if it cannot decode all values. What it decodes, it must decode as `decode_row` does.
        decode_row: Returns the Python value of an encoded one, or raises ValueError with a sentence that says what is wrong.
    """
    arrays: list[pa.Array] = []
    errors: list[RowError] = []
    starts = range(0, max(len(values), 1), _LARGEST_PART_ROWS)
    parts = [(start, min(start + _LARGEST_PART_ROWS, len(values))) for start in reversed(starts)]
    while parts:
        start, stop = parts.pop()
        array = decode_all(values.slice(start, stop - start)) if start < stop else None
        if array is None and stop - start > _SMALLEST_PART_ROWS:
            middle = (start + stop) // 2
            parts += [(middle, stop), (start, middle)]
        elif array is None:
            arrays.append(_decode_rows(values, range(start, stop), arrow_type, decode_row, errors))
        else:
            arrays.append(array)
    return Decoded(pa.concat_arrays(arrays), errors)


def _decode_rows(
    values: pa.Array, rows: range, arrow_type: pa.DataType, decode_row: DecodeRow, errors: list[RowError]
) -> pa.Array:
    decoded: list[object] = []
    for row in rows:
        try:
            decoded.append(decode_row(values[row].as_py()))
        except ValueError as error:
            decoded.append(None)
            errors.append(RowError(row, "malformed", str(error)))
    return pa.array(decoded, arrow_type)
