"""Encode rows that stand group after group, such as the rows of many partitions, in one go.

No batch holds rows of two groups; for the rest, batches are made as `storage_core.record.encode` makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from storage_core.record.batch_cuts import batch_runs, cut_batches
from storage_core.record.batch_encode import batches_of, compressed_bodies
from storage_core.record.batch_header import MAX_OFFSET_DELTA
from storage_core.record.column_encode import encode_by_column, is_for_columns
from storage_core.record.compression_encode import compressor
from storage_core.record.plain_encode import encode_one_batch
from storage_core.record.record_batches import RecordBatches
from storage_core.record.record_input import plain_rows
from storage_core.record.record_rows import RecordRows, look_at_rows
from storage_core.record.view_join import ViewJoiner

if TYPE_CHECKING:
    import pyarrow as pa

    from storage_core.record.batch_header import BytesLike
    from storage_core.record.encode import BatchEncoding

__all__ = ["GroupBatches", "GroupEncoder", "RowSource", "cut_groups"]

_Int64Array = npt.NDArray[np.int64]

RowSource = Callable[[int, int], "pa.RecordBatch"]
"""Gives the rows from a number to before another one, with the columns that ``record_input`` describes."""

_BLOCK_ROWS: Final = 1 << 16
_CHUNK_BYTES: Final = 8 << 20
# Length, attributes, and both deltas, each as long as it can be.
_LONGEST_HEAD_BYTES: Final = 5 + 1 + 10 + 5
# An offset delta that a gap has made longer, above one of a byte; and with it the length.
_LONGER_OFFSET_BYTES: Final = 4 + 1


@dataclass(frozen=True, slots=True, eq=False)
class GroupBatches:
    """Batches, and per batch the place of its group in ``group_ends``.

    Base offsets are those of the rows if these have any; otherwise consecutive, without regard to groups.
    """

    batches: RecordBatches
    groups: _Int64Array


class GroupEncoder:
    """Encodes rows group after group; keeps the memory that it works in.

    Args:
        encoding: How batches are made.
        default_timestamp_ms: For records without a timestamp.
    """

    def __init__(self, encoding: BatchEncoding, default_timestamp_ms: int) -> None:
        self._compress = compressor(encoding.codec, encoding.level)
        self._records_limit_bytes = encoding.records_limit_bytes
        self._largest_batch_bytes = encoding.largest_batch_bytes
        self._codec = encoding.codec
        self._default_timestamp_ms = default_timestamp_ms
        self._joiner = ViewJoiner()

    def encode(
        self, source: RowSource, group_ends: _Int64Array, offsets: _Int64Array | None = None
    ) -> Iterator[GroupBatches]:
        """Encode rows, about 8 MiB of them at a time.

        Args:
            source: The rows, their columns and sizes checked.
            group_ends: Behind which row each group ends, ascending, the last one behind the last row.
            offsets: Per row, its offset, ascending within a group; None: they have none yet.

        Raises:
            InvalidRecordError: A header without a key, or a timestamp beyond 64 bits of milliseconds.
            RecordTooLargeError: A record makes a batch that is larger than any that is read.
        """
        count = int(group_ends[-1])
        start, block_rows = 0, _BLOCK_ROWS
        while start < count:
            stop = min(start + block_rows, count)
            block = source(start, stop)
            rows = look_at_rows(block, self._default_timestamp_ms, start)
            block_offsets = None if offsets is None else offsets[start:stop]
            borders = _borders_within(group_ends, start, stop)
            ends = cut_groups(rows, borders, self._records_limit_bytes, block_offsets)
            if not len(ends):
                # One batch takes more than all of them.
                block_rows *= 2
                continue
            groups = group_ends.searchsorted(ends + start, "left")
            for first, last in batch_runs(rows, ends, _CHUNK_BYTES):
                first_row = int(ends[first - 1]) if first else 0
                chunk_ends = ends[first:last] - first_row
                row_count = int(chunk_ends[-1])
                chunk_offsets = None
                if block_offsets is not None:
                    chunk_offsets = block_offsets[first_row : first_row + row_count]
                batches = self._encode_chunk(
                    block.slice(first_row, row_count),
                    rows.slice(first_row, row_count),
                    chunk_ends,
                    chunk_offsets,
                )
                yield GroupBatches(batches, groups[first:last])
            start += int(ends[-1])
            block_rows = _BLOCK_ROWS

    def _encode_chunk(
        self, records: pa.RecordBatch, rows: RecordRows, ends: _Int64Array, offsets: _Int64Array | None
    ) -> RecordBatches:
        counts = np.diff(ends, prepend=0)
        starts = ends - counts
        bodies: list[BytesLike]
        if is_for_columns(rows):
            bodies = list(encode_by_column(records, rows, ends, self._joiner, offsets).bodies())
        else:
            bodies = self._encode_plainly(records, starts, ends, offsets)
        timestamps_ms = np.broadcast_to(rows.timestamps_ms, rows.count)
        batches = batches_of(
            compressed_bodies(bodies, self._compress, self._largest_batch_bytes),
            counts=counts,
            base_timestamps_ms=timestamps_ms[starts],
            max_timestamps_ms=np.maximum.reduceat(timestamps_ms, starts),
            base_offset=0,
            attributes=self._codec,
            last_offset_deltas=None if offsets is None else offsets[ends - 1] - offsets[starts],
        )
        return batches if offsets is None else batches.with_base_offsets(offsets[starts])

    def _encode_plainly(
        self, records: pa.RecordBatch, starts: _Int64Array, ends: _Int64Array, offsets: _Int64Array | None
    ) -> list[BytesLike]:
        rows = plain_rows(records, self._default_timestamp_ms)
        numbers = range(len(rows)) if offsets is None else offsets.tolist()
        return [
            encode_one_batch(rows[start:end], [number - numbers[start] for number in numbers[start:end]])
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]


def cut_groups(
    rows: RecordRows,
    group_ends: _Int64Array,
    records_limit_bytes: int,
    offsets: _Int64Array | None = None,
) -> _Int64Array:
    """Behind which rows batches end.

    Args:
        rows: The first of them begins a batch.
        group_ends: Behind which rows groups end. Rows behind the last of them are of a group of which more are to
            come: their last batch is left open.
        records_limit_bytes: The most that the records of one batch may take; a single one may take more.
        offsets: Per row, its offset. A batch with gaps may be made smaller than it has to be.
    """
    if offsets is not None and rows.count:
        return _cut_with_offsets(rows, group_ends, records_limit_bytes, offsets)
    parts: list[_Int64Array] = []
    starts = np.concatenate([np.zeros(1, np.int64), group_ends])[:-1]
    # Most groups of very many are so small that they surely fit one batch.
    row_ends = np.zeros(rows.count + 1, np.int64)
    np.cumsum(np.broadcast_to(rows.tails_bytes + _LONGEST_HEAD_BYTES, rows.count), out=row_ends[1:])
    is_large = row_ends[group_ends] - row_ends[starts] > records_limit_bytes
    done = 0
    for number in np.flatnonzero(is_large).tolist():
        start, end = int(starts[number]), int(group_ends[number])
        parts.append(group_ends[done:number])
        parts.append(cut_batches(rows.slice(start, end - start), records_limit_bytes, is_end=True) + start)
        done = number + 1
    parts.append(group_ends[done:])
    start = int(group_ends[-1]) if len(group_ends) else 0
    if start < rows.count:
        open_rows = rows.slice(start, rows.count - start)
        parts.append(cut_batches(open_rows, records_limit_bytes, is_end=False) + start)
    return np.concatenate(parts)


def _cut_with_offsets(
    rows: RecordRows, group_ends: _Int64Array, records_limit_bytes: int, offsets: _Int64Array
) -> _Int64Array:
    is_behind_gap = np.diff(offsets) != 1
    is_behind_gap[group_ends[group_ends < rows.count] - 1] = False
    if is_behind_gap.any():
        tails = rows.tails_bytes + _LONGER_OFFSET_BYTES
        rows = RecordRows(rows.count, rows.timestamps_ms, rows.key_lengths, rows.value_lengths, tails)
    ends = cut_groups(rows, group_ends, records_limit_bytes)
    if not len(ends) or not is_behind_gap.any():
        return ends
    # A delta has 31 bits: a batch that would need more ends at its widest gap, and again until it does not.
    while True:
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        wide = np.flatnonzero(offsets[ends - 1] - offsets[starts] > MAX_OFFSET_DELTA)
        if not len(wide):
            return ends
        more = [
            start + 1 + int(np.diff(offsets[start:end]).argmax())
            for start, end in zip(starts[wide].tolist(), ends[wide].tolist(), strict=True)
        ]
        ends = np.union1d(ends, np.array(more, np.int64))


def _borders_within(group_ends: _Int64Array, start: int, stop: int) -> _Int64Array:
    """The ends of groups behind a row and up to another one, counted from the first."""
    first, last = np.searchsorted(group_ends, [start, stop], "right").tolist()
    return group_ends[first:last] - start
