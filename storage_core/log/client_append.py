"""What becomes of batches that a producer made, before the log takes them (Kafka's ``LogValidator``).

Every record is looked at. A batch stays as it is, but for what the log has to decide: its codec, if
``compression.type`` names another, and its largest timestamp, which a producer's word is not taken for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from storage_core.errors import CorruptError, InvalidRecordError, RecordError, UnsupportedFormatError
from storage_core.log.append_validation import (
    require_fits_segment,
    validate_client_batches,
    validate_leader_append,
)
from storage_core.log.record_validation import RecordErrors
from storage_core.record.batch_header import (
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER_SIZE_BYTES,
    KNOWN_ATTRIBUTES,
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

    from storage_core.log.append_validation import AppendOrigin
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
_NO_ROWS: Final = np.zeros(0, np.int64)


def accept_client_batches(
    batches: RecordBatches,
    config: LogConfig,
    now_ms: int,
    *,
    origin: AppendOrigin = "client",
    path: str | None = None,
) -> RecordBatches:
    """Check batches whose offsets the log is to assign, and make of them what it is to hold.

    Raises:
        InvalidRecordError: A header or a record is not what its origin may write, or keys are missing.
        InvalidTimestampError: Timestamps are too far from the present, or a producer has marked a batch with log append
            time.
        RecordTooLargeError: A batch is larger than ``max.message.bytes``.
        RecordBatchTooLargeError: Together they are larger than ``segment.bytes``.
    """
    validate_client_batches(batches, origin=origin, path=path)
    validate_leader_append(batches, config, path=path)
    require_fits_segment(batches.size_bytes, config, path)
    headers = batches.headers.copy()
    bodies: list[BytesLike] = []
    size_bytes = 0
    limits = _RecordLimits(config, now_ms)
    for number in range(batches.count):
        section, columns = _decoded(batches, number, path)
        attributes = int(headers["attributes"][number])
        limits.check(columns, attributes, number)
        assert columns.timestamps_ms is not None  # noqa: S101  (they were asked for)
        headers["max_timestamp_ms"][number] = max(int(columns.timestamps_ms.max()), NO_TIMESTAMP_MS)
        codec = _target_codec(attributes, config)
        headers["attributes"][number] = (attributes & ~CODEC_MASK) | codec
        bodies.append(_body(batches, number, section, config, codec))
        # Before more of what inflates a thousandfold is held.
        size_bytes += HEADER_SIZE_BYTES + len(bodies[-1])
        require_fits_segment(size_bytes, config, path)
    limits.errors.raise_if_any(path)
    headers["batch_length"] = [HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES + len(body) for body in bodies]
    if config.has_log_append_time:
        headers["attributes"] |= LOG_APPEND_TIME_FLAG
        headers["max_timestamp_ms"] = now_ms
    if headers.tobytes() == batches.headers.tobytes():
        return batches
    headers["attributes"] &= KNOWN_ATTRIBUTES
    put_crcs(headers, bodies)
    accepted = RecordBatches.of_many(headers, bodies)
    validate_leader_append(accepted, config, path=path)
    return accepted


class _RecordLimits:
    """What a log wants of each record, and the records that are not so."""

    def __init__(self, config: LogConfig, now_ms: int) -> None:
        self._needs_keys = config.is_compacted
        self._keeps_times = not config.has_log_append_time
        self._earliest_ms = max(now_ms - config.message_timestamp_before_max_ms, int(_INT64.min))
        self._latest_ms = min(now_ms + config.message_timestamp_after_max_ms, int(_INT64.max))
        self.errors = RecordErrors(self._earliest_ms, self._latest_ms, now_ms, of_batches=True)

    def check(self, columns: RecordColumns, attributes: int, number: int) -> None:
        """Look at the records of one batch."""
        assert columns.keys is not None and columns.timestamps_ms is not None  # noqa: S101, PT018  (they were asked for)
        if attributes & LOG_APPEND_TIME_FLAG:
            self.errors.add_marked_batch(len(columns.offsets), number)
            return
        without_key = (columns.keys.lengths < 0).nonzero()[0] if self._needs_keys else _NO_ROWS
        timestamps_ms = columns.timestamps_ms
        untimely = self._untimely(timestamps_ms) if self._keeps_times else _NO_ROWS
        if len(without_key) or len(untimely):
            untimely = untimely[~np.isin(untimely, without_key)]
            self.errors.add(without_key, untimely, timestamps_ms[untimely].tolist(), batch_number=number)

    def _untimely(self, timestamps_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if timestamps_ms.min() >= self._earliest_ms and timestamps_ms.max() <= self._latest_ms:
            return _NO_ROWS
        is_wrong = (timestamps_ms < self._earliest_ms) | (timestamps_ms > self._latest_ms)
        is_wrong &= timestamps_ms != NO_TIMESTAMP_MS
        return is_wrong.nonzero()[0]


def _decoded(batches: RecordBatches, number: int, path: str | None) -> tuple[RecordSection, RecordColumns]:
    """The records of one batch, decompressed."""
    batch = b"".join(batches.pieces[2 * number : 2 * number + 2])
    try:
        header = parse_batch_header(batch, 0, 0, path="")
        section = batch_section(batch, header, path="", limit_bytes=DEFAULT_MAX_BATCH_BYTES)
        decode = decode_one_by_one if header.record_count <= _FEW_RECORDS else decode_records
        return section, decode(section, _WHOLE_RECORDS)
    except (CorruptError, UnsupportedFormatError) as error:
        index = getattr(error, "record_index", None)
        raise InvalidRecordError(
            f"Expected records that can be read, found batch {number}: {error.args[0]}",
            record_errors=() if index is None else (RecordError(index, error.args[0], number),),
            path=path,
        ) from error


def _target_codec(attributes: int, config: LogConfig) -> int:
    """The codec that the log wants for a batch. Markers stay as they are: they are too small to gain from one."""
    if config.compression_type == _KEEP_CODEC or attributes & CONTROL_FLAG:
        return attributes & CODEC_MASK
    return config.compression_codec


def _body(
    batches: RecordBatches, number: int, section: RecordSection, config: LogConfig, codec: int
) -> BytesLike:
    """The records of one batch, compressed with a codec; as they came, if they are so already."""
    if codec == int(batches.headers["attributes"][number]) & CODEC_MASK:
        return batches.pieces[2 * number + 1]
    records = section.buffer.data[: len(section.buffer) - PADDING_BYTES]
    compress = compressor(codec, config.compression_level)
    return records if compress is None else compress(records)
