"""Rows that are to be written, by column: their timestamps and lengths. Their bytes are fetched when they are encoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from storage_core.errors import InvalidRecordError
from storage_core.record.byte_column import byte_lengths
from storage_core.record.record_input import MILLISECONDS, Records, fail_header_key, fail_timestamp, is_list
from storage_core.record.varint_encode import varint_lengths

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["HeaderRows", "RecordRows", "chunks_of", "header_rows_of", "look_at_rows"]

# The length of a batch has 32 bits; its header and the head of the record take some of it.
LARGEST_RECORD_BYTES: Final = (1 << 31) - 1 - 128
_BLOCK_ROWS: Final = 1 << 16
_NULL: Final = np.full(1, -1, np.int64)
# Keys, values, and those of headers.
_BYTE_COLUMNS: Final = 4

_Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HeaderRows:
    """The headers of some rows, one after the other.

    Attributes:
        counts: Per row, how many it has.
        keys: Their keys, in arrays one behind the other.
        values: Their values, likewise.
        key_lengths: Per header, the length of its key.
        value_lengths: Per header, the length of its value; -1 for null.
    """

    counts: _Int64Array
    keys: Sequence[pa.Array]
    values: Sequence[pa.Array]
    key_lengths: _Int64Array
    value_lengths: _Int64Array

    def sizes_bytes(self) -> _Int64Array:
        """Per row, how many bytes its headers take, without their count."""
        ends = np.cumsum(sized_bytes(self.key_lengths) + sized_bytes(self.value_lengths))
        borders = np.concatenate([np.zeros(1, np.int64), ends])
        last = np.cumsum(self.counts)
        sizes: _Int64Array = borders[last] - borders[last - self.counts]
        return sizes


@dataclass(frozen=True, slots=True)
class RecordRows:
    """What of some rows decides how many bytes they take. A column of one row stands for equal ones.

    Attributes:
        count: How many rows there are.
        timestamps_ms: Their timestamps.
        key_lengths: The lengths of their keys; -1 for null.
        value_lengths: The lengths of their values; -1 for null.
        tails_bytes: What each takes behind its offset delta: key, value and headers with their lengths.
    """

    count: int
    timestamps_ms: _Int64Array
    key_lengths: _Int64Array
    value_lengths: _Int64Array
    tails_bytes: _Int64Array

    def slice(self, start: int, count: int) -> RecordRows:
        """Some of the rows."""
        columns = (self.timestamps_ms, self.key_lengths, self.value_lengths, self.tails_bytes)
        return RecordRows(
            count, *(column[start : start + count] if len(column) > 1 else column for column in columns)
        )


def chunks_of(records: Records, name: str) -> Sequence[pa.Array]:
    """The arrays of a column, one behind the other; none if there is no such column."""
    if name not in records.schema.names:
        return ()
    column = records.column(name)
    return column.chunks if isinstance(column, pa.ChunkedArray) else (column,)


def look_at_rows(records: Records, default_timestamp_ms: int, first_row: int) -> RecordRows:
    """Timestamps and sizes of some rows.

    Args:
        records: The rows, their columns checked.
        default_timestamp_ms: For a record without a timestamp.
        first_row: Number of the first row; for messages.

    Raises:
        InvalidRecordError: A header without a key, or a timestamp beyond 64 bits of milliseconds.
    """
    values, keys = (_constant(byte_lengths(chunks_of(records, name))) for name in ("value", "key"))
    if not len(keys):
        keys = _NULL
    headers = header_rows_of(chunks_of(records, "headers"), first_row)
    tails = sized_bytes(keys) + sized_bytes(values)
    tails = tails + (1 if headers is None else varint_lengths(headers.counts) + headers.sizes_bytes())
    timestamps_ms = _timestamps_ms(chunks_of(records, "timestamp"), default_timestamp_ms, first_row)
    return RecordRows(records.num_rows, _constant(timestamps_ms), keys, values, tails)


def check_rows(records: Records, *, sizes_only: bool = False) -> None:
    """Look at all rows for what cannot be written, unless types and sizes say that there is nothing.

    Args:
        records: The rows, their columns checked.
        sizes_only: Whether somebody else looks at headers and timestamps.

    Raises:
        InvalidRecordError: A header without a key, a timestamp beyond 64 bits of milliseconds, or a record that is
            too large for any batch.
    """
    types = records.schema.types
    # A buffer is counted once, however many columns it serves.
    size_bytes = records.get_total_buffer_size() * _BYTE_COLUMNS
    is_small = size_bytes < LARGEST_RECORD_BYTES and not any(map(_shares_bytes, types))
    if is_small and (sizes_only or not any(map(_may_be_refused, types))):
        return
    for start in range(0, records.num_rows, _BLOCK_ROWS):
        rows = look_at_rows(records.slice(start, _BLOCK_ROWS), 0, start)
        too_large = np.flatnonzero(rows.tails_bytes > LARGEST_RECORD_BYTES)
        if len(too_large):
            row = int(too_large[0])
            raise InvalidRecordError(
                f"Expected a record to take at most {LARGEST_RECORD_BYTES} bytes, found "
                f"{int(rows.tails_bytes[row])} in row {start + row}. A batch's length has 32 bits: split the value."
            )


def _shares_bytes(kind: pa.DataType) -> bool:
    """Whether the values of a column may take more bytes together than the column."""
    if is_list(kind):
        return any(_shares_bytes(field.type) for field in kind.value_type)
    return bool(kinds.is_dictionary(kind) or kinds.is_binary_view(kind) or kinds.is_string_view(kind))


def _may_be_refused(kind: pa.DataType) -> bool:
    """Whether a column may hold a header without a key, or seconds without end."""
    return is_list(kind) or bool(kinds.is_timestamp(kind) and kind.unit == "s")


def sized_bytes(lengths: _Int64Array) -> _Int64Array:
    """What byte strings take with their lengths before them; a length of -1 is null."""
    return varint_lengths(lengths) + np.maximum(lengths, 0)


def _constant(column: _Int64Array) -> _Int64Array:
    return column[:1] if len(column) and column.min() == column.max() else column


def _timestamps_ms(chunks: Sequence[pa.Array], default_timestamp_ms: int, first_row: int) -> _Int64Array:
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
    factor = MILLISECONDS[unit]
    if unit == "s":
        # What stands in the place of a null means nothing.
        seconds = values if is_null is None else np.where(is_null, 0, values)
        values = seconds * factor
        wrong = np.flatnonzero(values // factor != seconds)
        if len(wrong):
            fail_timestamp(first_row + int(wrong[0]))
    elif factor > 1:
        values = values // factor
    return values if is_null is None else np.where(is_null, default_timestamp_ms, values)


def header_rows_of(chunks: Sequence[pa.Array], first_row: int) -> HeaderRows | None:
    """The headers of some rows; None if they have none.

    Raises:
        InvalidRecordError: A header without a key.
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
            place = chunk_keys.is_null().to_numpy(zero_copy_only=False).argmax()
            fail_header_key(row + int(np.cumsum(row_counts).searchsorted(place, "right")))
        counts.append(row_counts)
        keys.append(chunk_keys)
        values.append(chunk_values)
        row += len(chunk)
    if not any(map(len, keys)):
        return None
    return HeaderRows(np.concatenate(counts), keys, values, byte_lengths(keys), byte_lengths(values))
