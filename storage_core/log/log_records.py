"""From records to batches that a log takes, all of them or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.log.log_validator import validate_leader_append, validate_records
from storage_core.record.encode import BatchEncoding, encode_records
from storage_core.scan.option_values import (
    DEFAULT_MAX_DECOMPRESSED_BATCH_BYTES,
    LARGEST_MAX_DECOMPRESSED_BATCH_BYTES,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from storage_core.log_config import LogConfig
    from storage_core.record.record_batches import ProducerSequence, RecordBatches

__all__ = ["batches_of_records", "encoding_of", "readable_batch_bytes"]


# Up to here, everything is encoded before the first byte is written.
_LARGEST_HELD_BYTES: Final = 64 << 20
# More than the varints, a header's names and what a codec adds to what it cannot compress.
_RECORD_OVERHEAD_BYTES: Final = 1024
_SLACK: Final = 1.02


def encoding_of(config: LogConfig) -> BatchEncoding:
    """How a log's configuration wants batches to be made."""
    return BatchEncoding(
        config.compression_codec,
        config.compression_level,
        config.batch_size,
        readable_batch_bytes(config),
    )


def readable_batch_bytes(config: LogConfig) -> int:
    """The largest batch, before it is compressed, that a log with a configuration makes of records, and reads."""
    return min(
        max(DEFAULT_MAX_DECOMPRESSED_BATCH_BYTES, config.max_message_bytes),
        LARGEST_MAX_DECOMPRESSED_BATCH_BYTES,
    )


def batches_of_records(
    records: pa.Table | pa.RecordBatch,
    config: LogConfig,
    encoding: BatchEncoding,
    now_ms: int,
    path: str,
    *,
    producer: ProducerSequence | None = None,
    is_transactional: bool = False,
) -> Iterable[RecordBatches]:
    """Encode records. What the log does not take is refused before this returns.

    Raises:
        InvalidRecordError: Columns, or a missing key, that the log does not take.
        InvalidTimestampError: A timestamp too far from the present.
        RecordTooLargeError: A record makes a batch larger than ``max.message.bytes``, or than is read.
        RecordBatchTooLargeError: A batch is larger than ``segment.bytes``.
    """

    def encoded() -> Iterator[RecordBatches]:
        return encode_records(
            records,
            encoding,
            default_timestamp_ms=now_ms,
            producer=producer,
            is_transactional=is_transactional,
        )

    chunks = encoded()
    validate_records(records, config, now_ms, path=path)
    # A slice counts as what it shows.
    if records.num_rows == 1 or records.get_total_buffer_size() <= _LARGEST_HELD_BYTES:
        return list(_checked(chunks, config, now_ms, path))
    if not _is_surely_small(records, config):
        # Twice the work is better than half an append, or than all of it in memory.
        for _ in _checked(chunks, config, now_ms, path):
            pass
        chunks = encoded()
    return _checked(chunks, config, now_ms, path)


def _checked(
    chunks: Iterable[RecordBatches], config: LogConfig, now_ms: int, path: str
) -> Iterator[RecordBatches]:
    for chunk in chunks:
        validate_leader_append(chunk, config, path=path)
        yield chunk.with_log_append_time(now_ms) if config.has_log_append_time else chunk


def _is_surely_small(records: pa.Table | pa.RecordBatch, config: LogConfig) -> bool:
    """Whether no record can make a batch too large, by the lengths of its parts alone."""
    if "headers" in records.schema.names:
        return False
    length_bytes = sum(
        pc.max(pc.binary_length(records.column(name))).as_py() or 0
        for name in ("key", "value")
        if name in records.schema.names and not pa.types.is_null(records.schema.field(name).type)
    )
    largest_bytes = max(length_bytes + _RECORD_OVERHEAD_BYTES, config.batch_size) * _SLACK
    return bool(largest_bytes <= min(config.max_message_bytes, config.max_segment_bytes))
