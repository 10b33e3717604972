"""What becomes of batches that a producer made, before the log takes them (Kafka's ``LogValidator``).

Every record is looked at. A batch stays as it is, but for what the log has to decide: its codec, if
``compression.type`` names another, and its largest timestamp, which a producer's word is not taken for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from storage_core.errors import (
    CorruptError,
    InvalidRecordError,
    InvalidTimestampError,
    UnsupportedFormatError,
)
from storage_core.log.append_validation import (
    require_fits_segment,
    validate_client_batches,
    validate_leader_append,
)
from storage_core.record.batch_header import (
    CODEC_MASK,
    HEADER_SIZE_BYTES,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    parse_batch_header,
)
from storage_core.record.compression_encode import compressor
from storage_core.record.decode import batch_section, decode_records
from storage_core.record.legacy_message import NO_TIMESTAMP_MS
from storage_core.record.plain_decode import decode_one_by_one
from storage_core.record.record_batches import RecordBatches, put_crcs
from storage_core.record.section import PADDING_BYTES, WantedFields
from storage_core.segment.segment_files import DEFAULT_MAX_BATCH_BYTES

if TYPE_CHECKING:
    import numpy.typing as npt

    from storage_core.log_config import LogConfig
    from storage_core.record.batch_header import BytesLike
    from storage_core.record.section import RecordColumns, RecordSection

__all__ = ["accept_client_batches"]

_KEEP_CODEC: Final = "producer"
_INT64: Final = np.iinfo(np.int64)
# What numpy does for a column costs more than so many records one by one.
_FEW_RECORDS: Final = 16
# Every field, so that every record is walked to its end.
_WHOLE_RECORDS: Final = WantedFields(headers=True)


def accept_client_batches(
    batches: RecordBatches, config: LogConfig, now_ms: int, *, path: str | None = None
) -> RecordBatches:
    """Check a producer's batches, and make of them what the log is to hold.

    Raises:
        InvalidRecordError: A header or a record is not what a producer may write, or a key is missing.
        InvalidTimestampError: A record's timestamp is too far from the present, or the producer has marked it as
            the log's.
        RecordTooLargeError: A batch is larger than ``max.message.bytes``.
        RecordBatchTooLargeError: Together they are larger than ``segment.bytes``.
    """
    validate_client_batches(batches, path=path)
    validate_leader_append(batches, config, path=path)
    require_fits_segment(batches.size_bytes, config, path)
    if not batches.count:
        return batches
    headers = batches.headers.copy()
    bodies: list[BytesLike] = []
    size_bytes = 0
    for number in range(batches.count):
        section, columns = _decoded(batches, number, path)
        _check_records(columns, int(headers["attributes"][number]), number, config, now_ms, path)
        assert columns.timestamps_ms is not None  # noqa: S101  (they were asked for)
        headers["max_timestamp_ms"][number] = max(int(columns.timestamps_ms.max()), NO_TIMESTAMP_MS)
        bodies.append(_body(batches, number, section, config))
        # Before more of what inflates a thousandfold is held.
        size_bytes += HEADER_SIZE_BYTES + len(bodies[-1])
        require_fits_segment(size_bytes, config, path)
    headers["batch_length"] = [HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES + len(body) for body in bodies]
    if config.compression_type != _KEEP_CODEC:
        headers["attributes"] = (headers["attributes"] & ~CODEC_MASK) | config.compression_codec
    if config.has_log_append_time:
        headers["attributes"] |= LOG_APPEND_TIME_FLAG
        headers["max_timestamp_ms"] = now_ms
    if np.array_equal(headers, batches.headers):
        return batches
    put_crcs(headers, bodies)
    accepted = RecordBatches.of_many(headers, bodies)
    validate_leader_append(accepted, config, path=path)
    return accepted


def _decoded(batches: RecordBatches, number: int, path: str | None) -> tuple[RecordSection, RecordColumns]:
    """The records of one batch, decompressed."""
    batch = b"".join(batches.pieces[2 * number : 2 * number + 2])
    try:
        header = parse_batch_header(batch, 0, 0, path="")
        section = batch_section(batch, header, path="", limit_bytes=DEFAULT_MAX_BATCH_BYTES)
        decode = decode_one_by_one if header.record_count <= _FEW_RECORDS else decode_records
        return section, decode(section, _WHOLE_RECORDS)
    except (CorruptError, UnsupportedFormatError) as error:
        raise InvalidRecordError(
            f"Expected records that can be read, found batch {number}: {error.args[0]}", path=path
        ) from error


def _check_records(
    columns: RecordColumns, attributes: int, number: int, config: LogConfig, now_ms: int, path: str | None
) -> None:
    assert columns.keys is not None and columns.timestamps_ms is not None  # noqa: S101, PT018  (they were asked for)
    if config.is_compacted and (columns.keys.lengths < 0).any():
        row = int((columns.keys.lengths < 0).argmax())
        raise InvalidRecordError(
            f"Expected a key in every record, because cleanup.policy is compact, found none in record {row} of "
            f"batch {number}. Compaction keeps the last record of each key: give each record one.",
            path=path,
        )
    if attributes & LOG_APPEND_TIME_FLAG:
        raise InvalidTimestampError(
            f"Expected the create time in a producer's records, found batch {number} marked with log append time. "
            "Only a log gives that.",
            path=path,
        )
    if not config.has_log_append_time:
        _check_timestamps(columns.timestamps_ms, number, config, now_ms, path)


def _check_timestamps(
    timestamps_ms: npt.NDArray[np.int64], number: int, config: LogConfig, now_ms: int, path: str | None
) -> None:
    earliest_ms = max(now_ms - config.message_timestamp_before_max_ms, int(_INT64.min))
    latest_ms = min(now_ms + config.message_timestamp_after_max_ms, int(_INT64.max))
    is_wrong = (timestamps_ms < earliest_ms) | (timestamps_ms > latest_ms)
    is_wrong &= timestamps_ms != NO_TIMESTAMP_MS
    if is_wrong.any():
        row = int(is_wrong.argmax())
        raise InvalidTimestampError(
            f"Expected a timestamp from {earliest_ms} to {latest_ms} ms, as message.timestamp.before.max.ms and "
            f"message.timestamp.after.max.ms allow at {now_ms}, found {int(timestamps_ms[row])} in record {row} of "
            f"batch {number}. Correct the producer's clock, or widen the bounds.",
            path=path,
        )


def _body(batches: RecordBatches, number: int, section: RecordSection, config: LogConfig) -> BytesLike:
    """The records of one batch as the log's codec has them; as they came, if they are so already."""
    codec = int(batches.headers["attributes"][number]) & CODEC_MASK
    if config.compression_type == _KEEP_CODEC or codec == config.compression_codec:
        return batches.pieces[2 * number + 1]
    records = section.buffer.data[: len(section.buffer) - PADDING_BYTES]
    compress = compressor(config.compression_codec, config.compression_level)
    return records if compress is None else compress(records)
