"""Decodes many values at once; where that fails, in ever smaller parts, so that a bad value costs its neighbours little."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from storage_core.values.decoding import Decoded, RowError

if TYPE_CHECKING:
    from collections.abc import Callable

    DecodeAll: TypeAlias = Callable[[pa.Array], pa.Array | None]
    DecodeEach: TypeAlias = Callable[[pa.Array], Decoded]

# Below it, parts would be decoded in vain too often where many values are bad.
_SMALLEST_PART_ROWS = 64


def decode_by_halves(
    values: pa.Array, decode_all: DecodeAll, decode_each: DecodeEach, largest_part_rows: int
) -> Decoded:
    """Decode values at once as far as possible, and the others one by one.

    Args:
        values: Encoded values, none of them null.
        decode_all: Returns a column, or None if it cannot decode all values. What it decodes, it must decode as `decode_each` does.
        decode_each: Decodes each value by itself.
        largest_part_rows: How many values to decode at once. More are cheaper if none is bad, and dearer if a few are.
    """
    arrays: list[pa.Array] = []
    errors: list[RowError] = []
    starts = range(0, max(len(values), 1), largest_part_rows)
    parts = [(start, min(start + largest_part_rows, len(values))) for start in reversed(starts)]
    while parts:
        start, stop = parts.pop()
        part = values.slice(start, stop - start)
        array = decode_all(part) if start < stop else None
        if array is None and stop - start > _SMALLEST_PART_ROWS:
            middle = (start + stop) // 2
            parts += [(middle, stop), (start, middle)]
        elif array is None:
            decoded = decode_each(part)
            arrays.append(decoded.array)
            errors += [error._replace(row=start + error.row) for error in decoded.errors]
        else:
            arrays.append(array)
    return Decoded(arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays), errors)
