"""Encode Arrow columns as record batches (Kafka's ``MemoryRecordsBuilder``): by column, or one by one if few.

The records of one producer, or of many partitions in one go, group after group: no batch has rows of two groups.
Each batch takes as many records as its size allows (Kafka's ``hasRoomFor``). The size of a record depends on its
two deltas, and so on where its batch begins: batch ends have to be found one after the other, some ten thousand a
second.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from storage_core.errors import OptionError, RecordTooLargeError
from storage_core.record.arrow_columns import chunks_of
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
    PlainRecord,
    RecordRows,
    Records,
    check_columns,
    check_rows,
    header_rows_of,
    measure_rows,
    plain_rows,
)
from storage_core.record.section import RECORD_COST_BYTES, RECORD_HEADER_COST_BYTES
from storage_core.record.varint import VARINT_LIMIT_BYTES, VARLONG_LIMIT_BYTES, varint_lengths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.record.batch_header import BytesLike


_Int64Array = npt.NDArray[np.int64]
_DEFAULT_BATCH_SIZE_BYTES: Final = 16384
# Up to this many rows are quicker encoded one by one.
_FEW_ROWS: Final = 128
_BLOCK_ROWS: Final = 1 << 16
_CHUNK_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class BatchEncoding:
    """Settings by which records are encoded as batches.

    Attributes:
        codec: Number of the codec, 0 for none.
        level: Its level; None for Kafka's default.
        batch_size_bytes: The largest size of a batch before compression; a single record may exceed it.
        largest_batch_bytes: The largest batch that readers accept, before compression; None for any.
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
        """The largest size of the records of a batch; a single record may exceed it."""
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
    """Encode records as batches of format v2, at offsets from 0.

    All checks are made before this returns. The iterator encodes about 8 MiB at a time.

    Args:
        records: The columns that ``record_input`` describes.
        encoding: How batches are made.
        default_timestamp_ms: For records without a timestamp.
        producer: The producer, and the sequence number of the first record; -1 if they have none.
        is_transactional: Whether they belong to a transaction of the producer.

    Raises:
        InvalidRecordError: A column has a wrong name or type; a header has no key; a record is too large to be
            encoded.
        RecordTooLargeError: A record makes a batch that is larger than readers accept.
        ValueError: A transaction without a producer, or a producer without an epoch.
    """
    if is_transactional and producer is None:
        raise ValueError("Expected a producer for records of a transaction, found none.")
    if producer is not None and (
        min(producer.producer_id, producer.producer_epoch) < 0
        or producer.base_sequence < NO_PRODUCER.base_sequence
    ):
        raise ValueError(
            f"Expected a producer id and epoch of at least 0, and a sequence number or -1, found {producer}."
        )
    check_columns(records)
    count = records.num_rows
    is_few = count <= _FEW_ROWS
    check_rows(records, sizes_only=is_few)
    encoder = GroupEncoder(
        encoding,
        default_timestamp_ms,
        producer=producer or NO_PRODUCER,
        is_transactional=is_transactional,
    )
    if is_few:
        rows = plain_rows(records, default_timestamp_ms)
        return iter([encoder.encode_few(rows)] if rows else [])
    encoded = encoder.encode(lambda start, stop: records.slice(start, stop - start), np.array([count]))
    return (each.batches for each in encoded)


RowSource = Callable[[int, int], "Records"]
"""Returns the rows from a number up to another, with the columns that ``record_input`` describes."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupBatches:
    """Batches, and per batch the index of its group in ``group_ends``.

    Base offsets are those of the rows, if they have any; otherwise consecutive across all groups.
    """

    batches: RecordBatches
    groups: _Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    """The rows of some whole batches, and the row after the last one of each batch."""

    first_row: int
    records: Records
    rows: RecordRows
    ends: _Int64Array
    offsets: _Int64Array | None


class GroupEncoder:
    """Encodes rows group after group, such as the rows of many partitions, and reuses its memory.

    The producer has the sequence number of the first row.
    """

    def __init__(
        self,
        encoding: BatchEncoding,
        default_timestamp_ms: int,
        *,
        producer: ProducerSequence = NO_PRODUCER,
        is_transactional: bool = False,
    ) -> None:
        self._records_limit_bytes = encoding.records_limit_bytes
        self._compress = compressor(encoding.codec, encoding.level)
        self._largest_batch_bytes = encoding.largest_batch_bytes
        self._default_timestamp_ms = default_timestamp_ms
        self._attributes = encoding.codec | (TRANSACTIONAL_FLAG if is_transactional else 0)
        self._producer = producer
        self._joiner = ViewJoiner()

    def encode(
        self, source: RowSource, group_ends: _Int64Array, offsets: _Int64Array | None = None
    ) -> Iterator[GroupBatches]:
        """Encode rows, about 8 MiB at a time.

        Args:
            source: The rows, their columns and sizes checked.
            group_ends: Per group, the number of its last row plus 1, ascending; the last one is the number of rows.
            offsets: Per row, its offset, ascending within a group; None if offsets are assigned later.

        Raises:
            InvalidRecordError: A header without a key, or a timestamp beyond 64 bits of milliseconds.
            RecordTooLargeError: A record makes a batch that is larger than readers accept.
        """
        for chunk in self._chunks(source, group_ends, offsets):
            groups = group_ends.searchsorted(chunk.ends + chunk.first_row, "left")
            yield GroupBatches(self._encode_chunk(chunk), groups)

    def _chunks(
        self, source: RowSource, group_ends: _Int64Array, offsets: _Int64Array | None
    ) -> Iterator[_Chunk]:
        """Measure some ten thousand rows at a time, and cut them into chunks of whole batches."""
        start, block_rows, count = 0, _BLOCK_ROWS, int(group_ends[-1])
        while start < count:
            stop = min(start + block_rows, count)
            block = source(start, stop)
            rows = measure_rows(block, self._default_timestamp_ms, start)
            row_offsets = None if offsets is None else offsets[start:stop]
            first_group, last_group = group_ends.searchsorted([start, stop], "right").tolist()
            block_ends = group_ends[first_group:last_group] - start
            ends = cut_groups(rows, block_ends, self._records_limit_bytes, row_offsets)
            if not len(ends):
                # A single batch takes more than all of them.
                block_rows *= 2
                continue
            for first, last in _chunks_of_batches(rows, ends):
                first_row, end_row = int(ends[first - 1]) if first else 0, int(ends[last - 1])
                yield _Chunk(
                    start + first_row,
                    block.slice(first_row, end_row - first_row),
                    rows.slice(first_row, end_row - first_row),
                    ends[first:last] - first_row,
                    None if row_offsets is None else row_offsets[first_row:end_row],
                )
            start += int(ends[-1])
            block_rows = _BLOCK_ROWS

    def _encode_chunk(self, chunk: _Chunk) -> RecordBatches:
        """Encode the batches of a chunk: at the offsets of its rows, or else at consecutive ones."""
        rows, ends, row_offsets = chunk.rows, chunk.ends, chunk.offsets
        counts = np.diff(ends, prepend=0)
        starts = ends - counts
        self._require_decodable(int(counts.max()), RECORD_COST_BYTES, "records")
        headers = header_rows_of(chunks_of(chunk.records, "headers"), 0)
        if headers is not None:
            header_count = int(np.add.reduceat(headers.counts, starts).max())
            self._require_decodable(header_count, RECORD_HEADER_COST_BYTES, "record headers")
        bodies: Sequence[BytesLike]
        if is_for_columns(rows):
            bodies = encode_by_column(chunk.records, rows, headers, ends, self._joiner, row_offsets)
        else:
            bodies = self._encode_plainly(chunk.records, starts, ends, row_offsets)
        timestamps_ms = np.broadcast_to(rows.timestamps_ms, rows.count)
        batches = batches_of(
            self._compressed(bodies),
            counts=counts,
            base_timestamps_ms=timestamps_ms[starts],
            max_timestamps_ms=np.maximum.reduceat(timestamps_ms, starts),
            base_offset=chunk.first_row,
            attributes=self._attributes,
            producer=self._producer_at(chunk.first_row),
            last_offset_deltas=None if row_offsets is None else row_offsets[ends - 1] - row_offsets[starts],
        )
        return batches if row_offsets is None else batches.with_base_offsets(row_offsets[starts])

    def encode_few(self, rows: Sequence[PlainRecord]) -> RecordBatches:
        """Encode a few rows, at least one, at offsets from 0."""
        header_count = max(len(headers) for *_, headers in rows)
        self._require_decodable(header_count, RECORD_HEADER_COST_BYTES, "record headers")
        plain = list(encode_one_by_one(rows, self._records_limit_bytes))
        if len(plain) > 1:
            return batches_of(
                self._compressed([batch.records for batch in plain]),
                counts=np.array([batch.count for batch in plain], np.int64),
                base_timestamps_ms=np.array([batch.base_timestamp_ms for batch in plain], np.int64),
                max_timestamps_ms=np.array([batch.max_timestamp_ms for batch in plain], np.int64),
                base_offset=0,
                attributes=self._attributes,
                producer=self._producer,
            )
        (batch,) = plain
        (body,) = self._compressed([batch.records])
        return batch_of(
            body,
            count=batch.count,
            base_timestamp_ms=batch.base_timestamp_ms,
            max_timestamp_ms=batch.max_timestamp_ms,
            attributes=self._attributes,
            producer=self._producer,
        )

    def _encode_plainly(
        self, records: Records, starts: _Int64Array, ends: _Int64Array, row_offsets: _Int64Array | None
    ) -> list[bytes]:
        rows = plain_rows(records, self._default_timestamp_ms)
        offsets = range(len(rows)) if row_offsets is None else row_offsets.tolist()
        return [
            encode_one_batch(rows[start:end], [offset - offsets[start] for offset in offsets[start:end]])
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]

    def _require_decodable(self, count: int, cost_bytes: int, what: str) -> None:
        """Refuse a batch that readers refuse, because decoding it takes too much."""
        if self._largest_batch_bytes is not None and count * cost_bytes > self._largest_batch_bytes:
            raise RecordTooLargeError(
                f"Expected at most {self._largest_batch_bytes // cost_bytes} {what} in a batch, the most that readers accept "
                f"by default, found {count}. Lower batch.size, or make the record smaller."
            )

    def _compressed(self, bodies: Sequence[BytesLike]) -> Sequence[BytesLike]:
        return compressed_bodies(bodies, self._compress, self._largest_batch_bytes)

    def _producer_at(self, offset: int) -> ProducerSequence:
        producer = self._producer
        if producer is NO_PRODUCER:
            return producer
        sequence = advance_sequence(producer.base_sequence, offset)
        return ProducerSequence(producer.producer_id, producer.producer_epoch, sequence)


def _chunks_of_batches(rows: RecordRows, ends: _Int64Array) -> Iterator[tuple[int, int]]:
    """Split batches into runs of about `_CHUNK_BYTES`; yield the numbers of the first batch and of the one after the last."""
    row_ends = np.cumsum(np.broadcast_to(rows.tails_bytes, rows.count))
    batch_ends = row_ends[ends - 1]
    first, before = 0, 0
    while first < len(ends):
        last = max(int(batch_ends.searchsorted(before + _CHUNK_BYTES, "right")), first + 1)
        yield first, last
        first, before = last, int(batch_ends[last - 1])


# Length, attributes, timestamp delta and offset delta, one byte each.
_SHORTEST_HEAD_BYTES: Final = 4
_LONGEST_DELTAS_BYTES: Final = VARLONG_LIMIT_BYTES + VARINT_LIMIT_BYTES
# The smallest positive value that takes two bytes, and the factor for each further byte.
_TWO_BYTES: Final = 64
_NEXT_BYTE: Final = 128
_INT64_END: Final = 1 << 63
# Length, attributes, and both deltas, each as long as it can be.
_LONGEST_HEAD_BYTES: Final = 5 + 1 + 10 + 5
# How much longer a gap may make an offset delta, and the record's length with it.
_LONGER_OFFSET_BYTES: Final = 4 + 1


def cut_batches(rows: RecordRows, records_limit_bytes: int, *, is_end: bool) -> _Int64Array:
    """Cut rows into batches, the first of which begins with the first row.

    A single record may take more than the limit. Unless the rows end here, the last batch stays open, as the rows that
    follow may belong to it.

    Returns:
        Per whole batch, the row after its last one.
    """
    count = rows.count
    is_sorted = _is_sorted(rows.timestamps_ms)
    finder = _SortedRows(rows, records_limit_bytes) if is_sorted else _UnsortedRows(rows, records_limit_bytes)
    if len(rows.timestamps_ms) == len(rows.tails_bytes) == 1:
        ends = _equal_batches(finder.end_of, count)
    else:
        ends = _uneven_batches(finder.end_of, count)
    if is_end and count and (not len(ends) or ends[-1] < count):
        ends = np.append(ends, count)
    return ends


def cut_groups(
    rows: RecordRows,
    group_ends: _Int64Array,
    records_limit_bytes: int,
    offsets: _Int64Array | None = None,
) -> _Int64Array:
    """Cut the rows of many groups into batches, as `cut_batches` does.

    The group of the rows after ``group_ends`` continues: its last batch stays open. If the rows have offsets, a batch
    with gaps may be smaller than it has to be.

    Returns:
        Per whole batch, the row after its last one.
    """
    if offsets is not None and rows.count:
        return _cut_with_offsets(rows, group_ends, records_limit_bytes, offsets)
    parts: list[_Int64Array] = []
    starts = np.concatenate([np.zeros(1, np.int64), group_ends])[:-1]
    large: Iterable[int] = range(len(group_ends))
    if len(group_ends) > 1:
        # Of very many groups, most are so small that they are sure to fit one batch.
        row_ends = np.zeros(rows.count + 1, np.int64)
        np.cumsum(np.broadcast_to(rows.tails_bytes + _LONGEST_HEAD_BYTES, rows.count), out=row_ends[1:])
        large = np.flatnonzero(row_ends[group_ends] - row_ends[starts] > records_limit_bytes).tolist()
    done = 0
    for number in large:
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
    follows_gap = np.diff(offsets) != 1
    follows_gap[group_ends[group_ends < rows.count] - 1] = False
    if follows_gap.any():
        tails = rows.tails_bytes + _LONGER_OFFSET_BYTES
        rows = RecordRows(rows.count, rows.timestamps_ms, rows.key_lengths, rows.value_lengths, tails)
    ends = cut_groups(rows, group_ends, records_limit_bytes)
    if not len(ends) or not follows_gap.any():
        return ends
    # A delta has 31 bits: split batches that need more at their widest gap, until none does.
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


def _is_sorted(timestamps_ms: _Int64Array) -> bool:
    """Return True if timestamps ascend, and their largest difference fits 63 bits."""
    if not np.all(timestamps_ms[1:] >= timestamps_ms[:-1]):
        return False
    return not len(timestamps_ms) or int(timestamps_ms[-1]) - int(timestamps_ms[0]) < _INT64_END


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
    """Finds the ends of batches whose timestamps ascend, so that the lengths of deltas change a few times only."""

    def __init__(self, rows: RecordRows, limit_bytes: int) -> None:
        self._count = rows.count
        self._limit_bytes = limit_bytes
        self._times = rows.timestamps_ms.data if len(rows.timestamps_ms) > 1 else None
        # The attributes take a byte.
        self._bodies = rows.tails_bytes + 1
        self._sums_by_deltas: dict[int, memoryview] = {}

    def end_of(self, start: int) -> int:
        """Return the row after the batch that begins with ``start``."""
        row, left_bytes = start, self._limit_bytes
        offset_bytes = time_bytes = 1
        longer_offset = start + _TWO_BYTES
        longer_delta_ms = _TWO_BYTES
        times, count, all_sums = self._times, self._count, self._sums_by_deltas
        first_ms = times[start] if times is not None else 0
        while True:
            # Before this row, the lengths of both deltas stay the same.
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
        """Return cumulative record sizes, from 0, if the two deltas of each record take this many bytes."""
        bodies = self._bodies + deltas_bytes
        sizes = np.zeros(self._count + 1, np.int64)
        np.cumsum(np.broadcast_to(bodies + varint_lengths(bodies), self._count), out=sizes[1:])
        sums = self._sums_by_deltas[deltas_bytes] = sizes.data
        return sums


class _UnsortedRows:
    """Finds the ends of batches whose timestamps are not sorted: measures all rows that a batch might take."""

    def __init__(self, rows: RecordRows, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._timestamps_ms = rows.timestamps_ms
        tails = np.broadcast_to(rows.tails_bytes, rows.count)
        self._min_ends = np.cumsum(tails + _SHORTEST_HEAD_BYTES)
        # The attributes take a byte.
        self._bodies = tails + 1
        self._delta_lengths = varint_lengths(np.arange(rows.count))
        shortest, longest = int(self._bodies.min()) + 2, int(self._bodies.max()) + _LONGEST_DELTAS_BYTES
        least, most = varint_lengths(np.array([shortest, longest])).tolist()
        # The length of the length field, where it is the same for all rows and deltas.
        self._length_bytes = least if least == most else None

    def end_of(self, start: int) -> int:
        """Return the row after the batch that begins with ``start``."""
        before = int(self._min_ends[start - 1]) if start else 0
        # Only rows that fit with the shortest deltas.
        reach = int(self._min_ends.searchsorted(before + self._limit_bytes, "right"))
        if reach <= start + 1:
            return start + 1
        bodies = self._bodies[start:reach] + self._delta_lengths[: reach - start]
        bodies += varint_lengths(self._timestamps_ms[start:reach] - self._timestamps_ms[start])
        sizes = bodies + (self._length_bytes or varint_lengths(bodies))
        return start + max(1, int(sizes.cumsum().searchsorted(self._limit_bytes, "right")))
