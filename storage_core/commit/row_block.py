"""Rows that are held until they are brought into another order; of their bytes nothing is copied before that.

Keys and values are kept as Arrow's views, 16 bytes each, which are laid out in `storage_core.record.view_join`: to
bring rows into another order is to bring their views into it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from storage_core.record.view_join import ByteStrings, put_byte_strings

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["OFFSET_COLUMN", "RowBlock", "held_bytes"]

OFFSET_COLUMN: Final = "offset"
_VIEWED_COLUMNS: Final = frozenset({"key", "value"})
_INLINE_BYTES: Final = 12
_VIEW_BYTES: Final = 16
# The number of a row's partition, its place in the order, and what finding these takes.
_ORDER_BYTES: Final = 32

_Int64Array = npt.NDArray[np.int64]


def held_bytes(records: pa.RecordBatch) -> int:
    """How much memory rows take until they are written."""
    views = sum(name in _VIEWED_COLUMNS for name in records.schema.names)
    return int(records.nbytes + records.num_rows * (_VIEW_BYTES * views + _ORDER_BYTES))


@dataclass(frozen=True, slots=True, eq=False)
class _Views:
    """A column of byte strings.

    Attributes:
        views: Per row, its view, as four integers: length, prefix, number of the buffer, position in it.
        is_valid: Per row, whether it is not null; None: no row is.
        buffers: What the views point into.
    """

    views: npt.NDArray[np.int32]
    is_valid: npt.NDArray[np.bool_] | None
    buffers: list[pa.Buffer]

    @classmethod
    def of(cls, arrays: Sequence[pa.Array]) -> _Views:
        buffers: list[pa.Buffer] = []
        parts = []
        has_nulls = any(array.null_count for array in arrays)
        if not has_nulls and all(kinds.is_binary(array.type) for array in arrays):
            return cls._of_plain(arrays)
        for array in arrays:
            viewed = _as_views(array)
            _, view_buffer, *data = viewed.buffers()
            views = np.frombuffer(view_buffer, np.int32).reshape(-1, 4)[
                viewed.offset : viewed.offset + len(viewed)
            ]
            if buffers and data:
                views = views.copy()
                views[:, 2] += np.where(views[:, 0] > _INLINE_BYTES, np.int32(len(buffers)), np.int32(0))
            buffers.extend(data)
            parts.append(views)
        is_valid = None
        if has_nulls:
            is_valid = np.concatenate([array.is_valid().to_numpy(zero_copy_only=False) for array in arrays])
        return cls(np.concatenate(parts), is_valid, buffers)

    @classmethod
    def _of_plain(cls, arrays: Sequence[pa.Array]) -> _Views:
        """The same, the views being laid out here: they need not be copied again, as those of many casts."""
        buffers: list[pa.Buffer] = []
        views = np.empty((sum(map(len, arrays)), 2), np.uint64)
        start = 0
        for array in arrays:
            _, border_buffer, data = array.buffers()
            places = views[start : start + len(array)]
            start += len(array)
            if not len(array):
                continue
            borders = np.frombuffer(border_buffer, np.int32)[
                array.offset : array.offset + len(array) + 1
            ].astype(np.int64)
            column = ByteStrings(
                np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8),
                borders[:-1],
                np.diff(borders),
            )
            put_byte_strings(places, column, len(buffers))
            if data is not None:
                buffers.append(data)
        return cls(views.view(np.int32), None, buffers)

    def take(self, rows: _Int64Array | slice) -> pa.Array:
        if isinstance(rows, slice):
            views = np.ascontiguousarray(self.views[rows])
        else:
            # Items of 16 bytes: one place is looked up a row, not four.
            views = self.views.view(np.complex128).ravel().take(rows).view(np.int32).reshape(-1, 4)
        validity = None
        if self.is_valid is not None:
            validity = pa.py_buffer(np.packbits(self.is_valid[rows], bitorder="little"))
        data = self.buffers or [pa.py_buffer(b"")]
        return pa.Array.from_buffers(pa.binary_view(), len(views), [validity, pa.py_buffer(views), *data])


class RowBlock:
    """Rows of some record batches with equal columns, which can be had in any order.

    Args:
        batches: At least one, and at least one row.
    """

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._columns: dict[str, _Views | pa.Array] = {}
        self.offsets: _Int64Array | None = None
        self.count = sum(batch.num_rows for batch in batches)
        for number, name in enumerate(batches[0].schema.names):
            arrays = [batch.column(number) for batch in batches]
            if name == OFFSET_COLUMN:
                self.offsets = np.concatenate([array.to_numpy(zero_copy_only=False) for array in arrays])
            elif name in _VIEWED_COLUMNS:
                self._columns[name] = _Views.of(arrays)
            else:
                self._columns[name] = pa.concat_arrays(arrays)

    def rows(self, order: _Int64Array | None, start: int, stop: int) -> pa.RecordBatch:
        """The rows from a place to before another one, in an order, or in the one that they came in."""
        places = slice(start, stop) if order is None else order[start:stop]
        arrays = []
        for column in self._columns.values():
            if isinstance(column, _Views):
                arrays.append(column.take(places))
            elif isinstance(places, slice):
                arrays.append(column.slice(start, stop - start))
            else:
                arrays.append(column.take(pa.array(places)))
        return pa.RecordBatch.from_arrays(arrays, list(self._columns))


def _as_views(array: pa.Array) -> pa.Array:
    kind = array.type
    if kinds.is_dictionary(kind):
        return _as_views(array.dictionary_decode())
    if kinds.is_null(kind) or kinds.is_fixed_size_binary(kind):
        array = array.cast(pa.binary())
    elif kinds.is_string(kind) or kinds.is_large_string(kind):
        array = array.cast(pa.large_binary() if kinds.is_large_string(kind) else pa.binary())
    elif kinds.is_string_view(kind):
        array = array.cast(pa.string()).cast(pa.binary())
    return array.cast(pa.binary_view())
