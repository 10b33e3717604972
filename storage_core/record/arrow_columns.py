"""Turn decoded columns, which still lie in a section's buffer, into Arrow arrays that own their bytes."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.record.section import RecordHeaders, Slices

__all__ = ["HEADERS_TYPE", "binary_arrays", "headers_array"]

HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

_Bytes = npt.NDArray[np.uint8]


def binary_arrays(buffer: _Bytes, columns: list[Slices]) -> list[pa.BinaryArray]:
    """Copy columns of slices out of ``buffer``; a negative length becomes null.

    Args:
        buffer: The section's buffer, below 2 GiB.
        columns: Columns of equal length, each lying before the next in every record.
    """
    # Arrow copies many small slices fastest with `take` from an array that spans the buffer.
    # So all borders are laid out in file order: the wanted slices, and what is between them.
    count = len(columns[0].starts)
    width = 2 * len(columns)
    borders = np.empty(count * width + 1, np.int32)
    borders[-1] = borders.dtype.type(len(buffer))
    for index, column in enumerate(columns):
        borders[2 * index : -1 : width] = column.starts
        borders[2 * index + 1 : -1 : width] = column.starts + np.maximum(column.lengths, 0)
    spanning = pa.Array.from_buffers(
        pa.binary(), count * width, [None, pa.py_buffer(borders), pa.py_buffer(buffer)]
    )
    arrays = []
    for index, column in enumerate(columns):
        picks = np.arange(2 * index, count * width, width, dtype=np.int32)
        is_null = column.lengths < 0
        arrays.append(spanning.take(pa.array(picks, mask=is_null if is_null.any() else None)))
    return arrays


def headers_array(buffer: _Bytes, headers: RecordHeaders) -> pa.ListArray:
    """Record headers as Spark's Kafka source gives them: null, not an empty list, where there are none.

    Bytes of a key that are no UTF-8 are replaced, as Java does.
    """
    keys, values = (
        _from_slices(buffer, headers.keys),
        _from_slices(buffer, headers.values),
    )
    pairs = pa.StructArray.from_arrays([_as_text(keys), values], fields=list(HEADERS_TYPE.value_type))
    first = headers.first.astype(np.int32)
    has_none = first[1:] == first[:-1]
    return pa.ListArray.from_arrays(
        pa.array(first), pairs, type=HEADERS_TYPE, mask=pa.array(has_none) if has_none.any() else None
    )


def _from_slices(buffer: _Bytes, column: Slices) -> pa.BinaryArray:
    return binary_arrays(buffer, [column])[0]


def _as_text(keys: pa.BinaryArray) -> pa.StringArray:
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [key.decode("utf-8", errors="replace") for key in keys.to_pylist()]
        return pa.array(texts, pa.string())
