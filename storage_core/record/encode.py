"""Where batches end: each takes as many records as its size allows (Kafka's ``hasRoomFor``).

What a record takes depends on how far its batch goes back: on the lengths of its two deltas. So one end has to be
found after the other, some ten thousand times a second.

Encode Arrow columns as record batches (Kafka's ``MemoryRecordsBuilder``): by column, or one by one if few.

Encode rows that stand group after group, such as the rows of many partitions, in one go.

No batch holds rows of two groups; for the rest, batches are made as `storage_core.record.encode` makes them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from storage_core.errors import OptionError
from storage_core.record.batch_header import HEADER_SIZE_BYTES, MAX_OFFSET_DELTA, TRANSACTIONAL_FLAG
from storage_core.record.column_encode import (
    ViewJoiner,
    encode_by_column,
    encode_one_batch,
    encode_one_by_one,
    is_for_columns,
)
from storage_core.record.compression import compressor
from storage_core.record.record_batches import (
    NO_PRODUCER,
    ProducerSequence,
    RecordBatches,
    advance_sequence,
    batch_of,
    batches_of,
    compressed_bodies,
)
from storage_core.record.record_input import (
    RecordRows,
    Records,
    check_columns,
    check_rows,
    look_at_rows,
    plain_rows,
)
from storage_core.record.varint import VARINT_LIMIT_BYTES, VARLONG_LIMIT_BYTES, varint_lengths

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from storage_core.record.batch_header import BytesLike
    from storage_core.record.column_encode import PlainBatch, PlainRecord

__all__ = [
    "BatchEncoding",
    "GroupBatches",
    "GroupEncoder",
    "ProducerSequence",
    "RowSource",
    "batch_runs",
    "cut_batches",
    "cut_groups",
    "encode_records",
]


# Length, attributes, timestamp delta and offset delta, a byte each.
_LEAST_HEAD_BYTES: Final = 4
_MOST_DELTA_BYTES: Final = VARLONG_LIMIT_BYTES + VARINT_LIMIT_BYTES
# The first value, and the factor to the next one, that a byte more is needed for.
_TWO_BYTES: Final = 64
_NEXT_BYTE: Final = 128
_WRAPS: Final = 1 << 63
_Int64Array = npt.NDArray[np.int64]


def cut_batches(rows: RecordRows, records_limit_bytes: int, *, is_end: bool) -> _Int64Array:
    """Behind which rows batches end.

    Args:
        rows: The first of them begins a batch.
        records_limit_bytes: The most that the records of one batch may take; a single one may take more.
        is_end: Whether there are no more rows: then the last batch ends with the last row. Otherwise it is left
            open, as rows to come may belong to it.
    """
    count = rows.count
    is_sorted = _is_sorted(rows.timestamps_ms)
    finder = _SortedRows(rows, records_limit_bytes) if is_sorted else _AnyRows(rows, records_limit_bytes)
    if len(rows.timestamps_ms) == len(rows.tails_bytes) == 1:
        ends = _equal_batches(finder.end_of, count)
    else:
        ends = _uneven_batches(finder.end_of, count)
    if is_end and count and (not len(ends) or ends[-1] < count):
        ends = np.append(ends, count)
    return ends


def batch_runs(rows: RecordRows, ends: _Int64Array, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Runs of batches of about a size, by number; the size of a record is its tail's, or nearly so."""
    row_ends = np.cumsum(np.broadcast_to(rows.tails_bytes, rows.count))
    batch_ends = row_ends[ends - 1]
    first, before = 0, 0
    while first < len(ends):
        last = max(int(batch_ends.searchsorted(before + size_bytes, "right")), first + 1)
        yield first, last
        first, before = last, int(batch_ends[last - 1])


def _is_sorted(timestamps_ms: _Int64Array) -> bool:
    """Whether timestamps ascend, and no delta between two of them wraps."""
    if not np.all(timestamps_ms[1:] >= timestamps_ms[:-1]):
        return False
    return not len(timestamps_ms) or int(timestamps_ms[-1]) - int(timestamps_ms[0]) < _WRAPS


def _equal_batches(end_of: Callable[[int], int], count: int) -> _Int64Array:
    step = end_of(0)
    return np.arange(step, count + (step < count), step)


def _uneven_batches(end_of: Callable[[int], int], count: int) -> _Int64Array:
    ends = []
    start = 0
    while (end := end_of(start)) < count:
        ends.append(end)
        start = end
    return np.array(ends, np.int64)


class _SortedRows:
    """Rows whose timestamps ascend: the deltas grow within a batch, and there are few lengths of theirs."""

    def __init__(self, rows: RecordRows, limit_bytes: int) -> None:
        self._count = rows.count
        self._limit_bytes = limit_bytes
        self._times = rows.timestamps_ms.data if len(rows.timestamps_ms) > 1 else None
        # With the attributes.
        self._bodies = rows.tails_bytes + 1
        self._sums_by_deltas: dict[int, memoryview] = {}

    def end_of(self, start: int) -> int:
        """Behind which row a batch ends that begins with a row."""
        row, left_bytes = start, self._limit_bytes
        offset_bytes = time_bytes = 1
        longer_offset = start + _TWO_BYTES
        longer_delta_ms = _TWO_BYTES
        times, count, all_sums = self._times, self._count, self._sums_by_deltas
        first_ms = times[start] if times is not None else 0
        while True:
            # Up to this row, the lengths of both deltas stay as they are.
            same_until = min(count, longer_offset)
            if times is not None and times[same_until - 1] - first_ms >= longer_delta_ms:
                same_until = bisect_right(times, first_ms + longer_delta_ms - 1, row, same_until)
            deltas_bytes = offset_bytes + time_bytes
            sums = all_sums.get(deltas_bytes) or self._sums(deltas_bytes)
            fits_until = sums[row] + left_bytes
            if sums[same_until] > fits_until or same_until == count:
                return max(bisect_right(sums, fits_until, row, same_until + 1) - 1, start + 1)
            left_bytes = fits_until - sums[same_until]
            row = same_until
            if row == longer_offset:
                offset_bytes += 1
                longer_offset = start + (row - start) * _NEXT_BYTE
            else:
                time_bytes += 1
                longer_delta_ms *= _NEXT_BYTE

    def _sums(self, deltas_bytes: int) -> memoryview:
        """Before each row, and behind the last: what all before it take, if their deltas take so many bytes."""
        bodies = self._bodies + deltas_bytes
        sizes = np.zeros(self._count + 1, np.int64)
        np.cumsum(np.broadcast_to(bodies + varint_lengths(bodies), self._count), out=sizes[1:])
        sums = self._sums_by_deltas[deltas_bytes] = sizes.data
        return sums


class _AnyRows:
    """Rows in no order: all that might fit a batch are looked at."""

    def __init__(self, rows: RecordRows, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._timestamps_ms = rows.timestamps_ms
        tails = np.broadcast_to(rows.tails_bytes, rows.count)
        self._least_ends = np.cumsum(tails + _LEAST_HEAD_BYTES)
        # With the attributes.
        self._bodies = tails + 1
        self._delta_lengths = varint_lengths(np.arange(rows.count))
        shortest, longest = int(self._bodies.min()) + 2, int(self._bodies.max()) + _MOST_DELTA_BYTES
        least, most = varint_lengths(np.array([shortest, longest])).tolist()
        # Of all bodies, where it is the same whatever the deltas take.
        self._length_bytes = least if least == most else None

    def end_of(self, start: int) -> int:
        """Behind which row a batch ends that begins with a row."""
        before = int(self._least_ends[start - 1]) if start else 0
        # What does not fit at its least is not looked at.
        reach = int(self._least_ends.searchsorted(before + self._limit_bytes, "right"))
        if reach <= start + 1:
            return start + 1
        bodies = self._bodies[start:reach] + self._delta_lengths[: reach - start]
        bodies += varint_lengths(self._timestamps_ms[start:reach] - self._timestamps_ms[start])
        sizes = bodies + (self._length_bytes or varint_lengths(bodies))
        return start + max(1, int(sizes.cumsum().searchsorted(self._limit_bytes, "right")))


_DEFAULT_BATCH_SIZE_BYTES: Final = 16384
# Up to so many rows are quicker encoded one by one.
_FEW_ROWS: Final = 128
_BLOCK_ROWS: Final = 1 << 16
_CHUNK_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class BatchEncoding:
    """How batches are made.

    Attributes:
        codec: Number of the codec, 0 for none.
        level: Its level; None for Kafka's default.
        batch_size_bytes: The most that a batch takes before it is compressed; a single record may take more.
        largest_batch_bytes: The most that it may take before it is compressed: more is not read. None: any size is.
    """

    codec: int = 0
    level: int | None = None
    batch_size_bytes: int = _DEFAULT_BATCH_SIZE_BYTES
    largest_batch_bytes: int | None = None

    def __post_init__(self) -> None:
        compressor(self.codec, self.level)
        if self.batch_size_bytes < 0:
            raise OptionError(f"Expected a batch size of at least 0 bytes, found {self.batch_size_bytes}.")

    @property
    def records_limit_bytes(self) -> int:
        """The most that the records of a batch take; those of a single record may take more."""
        size_bytes = self.batch_size_bytes
        if self.largest_batch_bytes is not None:
            size_bytes = min(size_bytes, self.largest_batch_bytes)
        return size_bytes - HEADER_SIZE_BYTES


def encode_records(
    records: Records,
    encoding: BatchEncoding,
    *,
    default_timestamp_ms: int,
    producer: ProducerSequence | None = None,
    is_transactional: bool = False,
) -> Iterator[RecordBatches]:
    """Encode records as batches of format v2, at offsets from 0 on.

    Everything is checked before this returns. What it returns encodes about 8 MiB at a time.

    Args:
        records: The columns that ``record_input`` describes.
        encoding: How batches are made.
        default_timestamp_ms: For records without a timestamp.
        producer: Who writes them, and the sequence number of the first record; -1 if they have none.
        is_transactional: Whether they belong to a transaction of the producer's.

    Raises:
        InvalidRecordError: A column has a wrong name or type; a header has no key; a record is too large to be
            encoded.
        RecordTooLargeError: A record makes a batch that is larger than any that is read.
        ValueError: A transaction without a producer, or a producer without an epoch.
    """
    if is_transactional and producer is None:
        message = "Expected a producer for records of a transaction, found none."
        raise ValueError(message)
    if producer is not None and (
        min(producer.producer_id, producer.producer_epoch) < 0
        or producer.base_sequence < NO_PRODUCER.base_sequence
    ):
        message = (
            f"Expected a producer's id and epoch from 0 on, and a sequence number or -1, found {producer}."
        )
        raise ValueError(message)
    check_columns(records)
    attributes = encoding.codec | (TRANSACTIONAL_FLAG if is_transactional else 0)
    writer = _BatchWriter(encoding, attributes, producer or NO_PRODUCER)
    is_few = records.num_rows <= _FEW_ROWS
    check_rows(records, sizes_only=is_few)
    if not is_few:
        return writer.encode_blocks(records, default_timestamp_ms)
    rows = plain_rows(records, default_timestamp_ms)
    return iter([writer.encode_plainly(rows)] if rows else [])


class _BatchWriter:
    """Encodes rows after rows: knows the offset and the sequence number that come next."""

    def __init__(self, encoding: BatchEncoding, attributes: int, producer: ProducerSequence) -> None:
        self._compress = compressor(encoding.codec, encoding.level)
        self._records_limit_bytes = encoding.records_limit_bytes
        self._largest_batch_bytes = encoding.largest_batch_bytes
        self._attributes = attributes
        self._producer = producer
        self._offset = 0
        self._joiner = ViewJoiner()

    def encode_blocks(self, records: Records, default_timestamp_ms: int) -> Iterator[RecordBatches]:
        """Look at some ten thousand rows at a time, and encode the batches that begin and end among them."""
        start, block_rows = 0, _BLOCK_ROWS
        while start < records.num_rows:
            block = records.slice(start, block_rows)
            rows = look_at_rows(block, default_timestamp_ms, start)
            is_end = start + rows.count == records.num_rows
            ends = cut_batches(rows, self._records_limit_bytes, is_end=is_end)
            if not len(ends):
                # One batch takes more than all of them.
                block_rows *= 2
                continue
            for first, last in batch_runs(rows, ends, _CHUNK_BYTES):
                first_row = int(ends[first - 1]) if first else 0
                chunk = block.slice(first_row, int(ends[last - 1]) - first_row)
                chunk_rows = rows.slice(first_row, chunk.num_rows)
                if is_for_columns(chunk_rows):
                    yield self._encode_chunk(chunk, chunk_rows, ends[first:last] - first_row)
                else:
                    yield self.encode_plainly(plain_rows(chunk, default_timestamp_ms))
            start += int(ends[-1])
            block_rows = _BLOCK_ROWS

    def _encode_chunk(self, records: Records, rows: RecordRows, ends: npt.NDArray[np.int64]) -> RecordBatches:
        counts = np.diff(ends, prepend=0)
        starts = ends - counts
        timestamps_ms = np.broadcast_to(rows.timestamps_ms, rows.count)
        return self._batches(
            encode_by_column(records, rows, ends, self._joiner).bodies(),
            counts,
            timestamps_ms[starts],
            np.maximum.reduceat(timestamps_ms, starts),
        )

    def encode_plainly(self, rows: Sequence[PlainRecord]) -> RecordBatches:
        """Encode rows, of which there are some, one by one."""
        plain = list(encode_one_by_one(rows, self._records_limit_bytes))
        if len(plain) == 1:
            return self._batch(plain[0])
        return self._batches(
            [batch.records for batch in plain],
            np.array([batch.count for batch in plain], np.int64),
            np.array([batch.base_timestamp_ms for batch in plain], np.int64),
            np.array([batch.max_timestamp_ms for batch in plain], np.int64),
        )

    def _batch(self, batch: PlainBatch) -> RecordBatches:
        (body,) = self._compressed([batch.records])
        base_offset = self._offset
        self._offset += batch.count
        return batch_of(
            body,
            count=batch.count,
            base_timestamp_ms=batch.base_timestamp_ms,
            max_timestamp_ms=batch.max_timestamp_ms,
            base_offset=base_offset,
            attributes=self._attributes,
            producer=self._producer_at(base_offset),
        )

    def _batches(
        self,
        bodies: Sequence[BytesLike],
        counts: npt.NDArray[np.int64],
        base_timestamps_ms: npt.NDArray[np.int64],
        max_timestamps_ms: npt.NDArray[np.int64],
    ) -> RecordBatches:
        bodies = self._compressed(bodies)
        base_offset = self._offset
        self._offset += int(counts.sum())
        return batches_of(
            bodies,
            counts=counts,
            base_timestamps_ms=base_timestamps_ms,
            max_timestamps_ms=max_timestamps_ms,
            base_offset=base_offset,
            attributes=self._attributes,
            producer=self._producer_at(base_offset),
        )

    def _compressed(self, bodies: Sequence[BytesLike]) -> Sequence[BytesLike]:
        return compressed_bodies(bodies, self._compress, self._largest_batch_bytes)

    def _producer_at(self, offset: int) -> ProducerSequence:
        producer = self._producer
        if producer is NO_PRODUCER:
            return producer
        sequence = advance_sequence(producer.base_sequence, offset)
        return ProducerSequence(producer.producer_id, producer.producer_epoch, sequence)


RowSource = Callable[[int, int], "pa.RecordBatch"]
"""Gives the rows from a number to before another one, with the columns that ``record_input`` describes."""
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
