"""Encode Arrow columns as record batches (Kafka's ``MemoryRecordsBuilder``): by column, or one by one if few."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from storage_core.errors import OptionError
from storage_core.record.batch_cuts import batch_runs, cut_batches
from storage_core.record.batch_encode import (
    NO_PRODUCER,
    ProducerSequence,
    advance_sequence,
    batch_of,
    batches_of,
    compressed_bodies,
)
from storage_core.record.batch_header import HEADER_SIZE_BYTES, TRANSACTIONAL_FLAG
from storage_core.record.column_encode import encode_by_column, is_for_columns
from storage_core.record.compression_encode import compressor
from storage_core.record.plain_encode import encode_one_by_one
from storage_core.record.record_input import Records, check_columns, plain_rows
from storage_core.record.record_rows import check_rows, look_at_rows
from storage_core.record.view_join import ViewJoiner

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from storage_core.record.batch_header import BytesLike
    from storage_core.record.plain_encode import PlainBatch, PlainRecord
    from storage_core.record.record_batches import RecordBatches
    from storage_core.record.record_rows import RecordRows

__all__ = ["BatchEncoding", "ProducerSequence", "encode_records"]

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
