"""Validating appends before the log accepts them (Kafka's ``LogValidator``, ``UnifiedLog.analyzeAndValidateRecords``).

Validation changes nothing: a rejected append leaves the log unchanged. Client batches are decoded entirely. They keep their
bytes, except for the codec, if ``compression.type`` requires another, and the largest timestamp, which is recomputed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import (
    CorruptError,
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    OffsetOverflowError,
    OffsetsOutOfOrderError,
    OptionError,
    RecordBatchTooLargeError,
    RecordError,
    RecordTooLargeError,
    UnsupportedFormatError,
)
from storage_core.log.producer_append_info import check_leader_epoch
from storage_core.record.batch_header import (
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER_SIZE_BYTES,
    KNOWN_ATTRIBUTES,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    MAX_OFFSET,
    NO_TIMESTAMP_MS,
    TRANSACTIONAL_FLAG,
    parse_batch_header,
)
from storage_core.record.compression import compressor
from storage_core.record.control_records import read_marker
from storage_core.record.decode import decode_one_by_one, decode_records
from storage_core.record.record_batches import RecordBatches, put_crcs
from storage_core.record.section import (
    PADDING_BYTES,
    RecordColumns,
    RecordSection,
    WantedFields,
    batch_section,
)
from storage_core.segment.segment_reader import DEFAULT_MAX_BATCH_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from storage_core.log_config import LogConfig
    from storage_core.record.batch_header import BytesLike
    from storage_core.record.record_input import Records


# The log end offset after it must be a valid offset too.
_MAX_LAST_OFFSET: Final = MAX_OFFSET - 1
_UNITS_PER_MS: Final = {"ms": 1, "us": 1_000, "ns": 1_000_000}
_INT64: Final = np.iinfo(np.int64)
# An append of millions of records may be rejected for each of them.
_MAX_RECORD_ERRORS: Final = 10_000
_MAX_IN_MESSAGE: Final = 3
_NO_ROWS: Final = np.zeros(0, np.int64)
_KEEP_CODEC: Final = "producer"
# Up to this number, decoding records one by one is faster than numpy.
_FEW_RECORDS: Final = 16
# All fields, so that every record is decoded to its end.
_ALL_FIELDS: Final = WantedFields(headers=True)
_Int64Array = npt.NDArray[np.int64]
AppendOrigin: TypeAlias = Literal["client", "coordinator"]
"""The kind of writer when the log assigns offsets (Kafka's ``AppendOrigin``). A coordinator checks its own records."""
_ORIGINS: Final = ("client", "coordinator")


def check_origin(origin: object) -> None:
    """Check that an origin is known."""
    if origin not in _ORIGINS:
        raise OptionError(f"Expected an origin of client or coordinator, found {origin!r}.")


def validate_leader_append(batches: RecordBatches, config: LogConfig, *, path: str | None = None) -> None:
    """Check the sizes of batches that this log encoded.

    An append of many batches may be spread over several segments, so each single batch must fit one.

    Raises:
        RecordTooLargeError: A batch is larger than ``max.message.bytes``.
        RecordBatchTooLargeError: A batch is larger than ``segment.bytes``.
    """
    sizes_bytes = batches.sizes_bytes
    if len(sizes_bytes) == 0:
        return
    largest_bytes = int(sizes_bytes[0] if len(sizes_bytes) == 1 else sizes_bytes.max())
    if largest_bytes > config.max_message_bytes:
        record_count = int(batches.headers["record_count"][int(sizes_bytes.argmax())])
        raise RecordTooLargeError(
            f"Expected a batch of at most {config.max_message_bytes} bytes, the limit max.message.bytes, found "
            f"{record_count} record(s) that make one of {largest_bytes}. Make the records smaller, or raise "
            "max.message.bytes; batch.size limits batches of several records.",
            path=path,
        )
    require_fits_segment(largest_bytes, config, path)


def validate_follower_append(
    batches: RecordBatches, config: LogConfig, log_end_offset: int, *, path: str | None = None
) -> None:
    """Check batches that keep their offsets and leader epochs. Gaps between them are allowed.

    Raises:
        OffsetsOutOfOrderError: They begin below the log end, or do not ascend.
        OffsetOverflowError: An offset is beyond the largest.
        InvalidRecordError: A batch of format v2 has no leader epoch, or a marker is malformed.
        RecordBatchTooLargeError: Together they are larger than ``segment.bytes``.
    """
    headers = batches.headers
    if len(headers) == 0:
        return
    first_offset = batches.base_offset
    if headers["magic"][0] < MAGIC_V2:
        # A compressed message of an older format stores only its last offset.
        first_offset += int(headers["last_offset_delta"][0])
    if first_offset < log_end_offset:
        raise OffsetsOutOfOrderError(
            f"Expected batches from offset {log_end_offset} on, the log end offset, found the first one at "
            f"{first_offset}, up to {batches.last_offset}. Omit the batches that the log has, or truncate it first.",
            path=path,
            offset=first_offset,
            last_offset=batches.last_offset,
        )
    _require_ascending(batches, path)
    _require_epochs(batches, path)
    require_markers(batches, path)
    require_fits_segment(batches.size_bytes, config, path)


def batches_up_to_epoch(batches: RecordBatches, leader_epoch: int) -> RecordBatches:
    """Return the batches before the first one of a later leader epoch."""
    check_leader_epoch(leader_epoch)
    is_later = batches.headers["leader_epoch"] > leader_epoch
    return batches.select(0, int(is_later.argmax())) if is_later.any() else batches


def validate_client_batches(
    batches: RecordBatches, *, origin: AppendOrigin = "client", path: str | None = None
) -> None:
    """Check the headers of batches whose offsets the log assigns.

    Raises:
        InvalidRecordError: A batch has an older format, a wrong record count, a producer id without an epoch, or a
            transaction without a producer id. From a client also: its base offset is not 0, it is a control batch, or
            it has a producer id without a sequence.
    """
    for number, header in enumerate(batches.headers.tolist()):
        expected = _header_problem(header, is_from_client=origin == "client")
        if expected is not None:
            base_offset, _, _, magic, _, attributes, last_delta, _, _, producer_id, _, sequence, count = (
                header
            )
            raise InvalidRecordError(
                f"Expected a {'producer' if origin == 'client' else origin}'s batch to {expected}, found that batch "
                f"{number} does not: magic {magic}, {count} record(s) for {last_delta + 1} offset(s) from "
                f"{base_offset} on, attributes {attributes:#x}, producer {producer_id}, sequence {sequence}.",
                path=path,
            )


def _header_problem(header: tuple[int, ...], *, is_from_client: bool) -> str | None:
    base_offset, _, _, magic, _, attributes, last_delta, _, _, producer_id, epoch, sequence, count = header
    is_control, is_transactional = attributes & CONTROL_FLAG, attributes & TRANSACTIONAL_FLAG
    has_producer = producer_id >= 0
    problems = (
        (magic != MAGIC_V2, "be of format v2"),
        (is_from_client and base_offset != 0, "begin at offset 0, which the log then replaces,"),
        (last_delta < 0, "hold at least one offset"),
        (count <= 0, "hold at least one record"),
        (count != last_delta + 1, "hold as many records as offsets"),
        (is_from_client and is_control, "be a data batch"),
        (is_from_client and has_producer and sequence < 0, "have a sequence with its producer id"),
        (has_producer and epoch < 0, "have an epoch with its producer id"),
        (is_transactional and not has_producer, "have a producer id with its transaction"),
    )
    return next((expected for is_wrong, expected in problems if is_wrong), None)


def require_markers(batches: RecordBatches, path: str | None) -> None:
    """Check that every control batch of a producer ends a transaction, unless compaction has emptied it.

    Raises:
        InvalidRecordError: A control batch of a producer does not end a transaction, or is malformed.
    """
    if not batches.count_with(CONTROL_FLAG):
        return
    headers = batches.headers
    is_marker = (headers["attributes"] & CONTROL_FLAG) != 0
    is_marker &= (headers["producer_id"] >= 0) & (headers["record_count"] > 0)
    for number in is_marker.nonzero()[0].tolist():
        batch = b"".join(batches.pieces[2 * number : 2 * number + 2])
        header = parse_batch_header(batch, 0, 0, path="")
        try:
            marker = read_marker(batch, header, path="")
        except CorruptRecordError as error:
            raise InvalidRecordError(error.args[0], path=path, offset=header.base_offset) from error
        if marker is None:
            raise InvalidRecordError(
                f"Expected a control batch of a producer to end a transaction, found that batch {number} does not. "
                "No broker loads a log with such a batch.",
                path=path,
                offset=header.base_offset,
            )


def _require_ascending(batches: RecordBatches, path: str | None) -> None:
    headers = batches.headers
    number = None
    if len(headers) > 1:
        base_offsets = headers["base_offset"].astype(np.int64)
        # An offset beyond 64 bits is negative here.
        last_offsets = batches.last_offsets
        is_wrong = last_offsets < base_offsets
        is_wrong[1:] |= base_offsets[1:] <= last_offsets[:-1]
        if is_wrong.any():
            number = int(is_wrong.argmax())
    if number is None:
        base_offset, last_offset = batches.base_offset, batches.last_offset
        if base_offset <= last_offset <= _MAX_LAST_OFFSET:
            return
        number = len(headers) - 1
    base_offset = int(headers["base_offset"][number])
    last_offset = base_offset + int(headers["last_offset_delta"][number])
    if last_offset > _MAX_LAST_OFFSET:
        raise OffsetOverflowError(
            f"Expected offsets up to {_MAX_LAST_OFFSET}, the largest of a log, found a batch from {base_offset} to "
            f"{last_offset}. Use another partition.",
            path=path,
            offset=base_offset,
        )
    lowest_offset = int(last_offsets[number - 1]) + 1 if number else base_offset
    raise OffsetsOutOfOrderError(
        f"Expected the offsets of batch {number} to ascend from {lowest_offset} on, found {base_offset} to "
        f"{last_offset}. Append each batch once, in the order of offsets.",
        path=path,
        offset=base_offset,
    )


def _require_epochs(batches: RecordBatches, path: str | None) -> None:
    epochs = batches.headers["leader_epoch"]
    # Older formats have no epochs. Most appends are one batch, for which numpy is slow.
    if epochs[0] >= 0 and (len(epochs) == 1 or epochs.min() >= 0):
        return
    is_wrong = (epochs < 0) & (batches.headers["magic"] >= MAGIC_V2)
    if is_wrong.any():
        number = int(is_wrong.argmax())
        raise InvalidRecordError(
            f"Expected a leader epoch in every batch, found {int(epochs[number])} in batch {number}. "
            "The log assigns epochs only together with offsets.",
            path=path,
            offset=int(batches.headers["base_offset"][number]),
        )


def require_fits_segment(size_bytes: int, config: LogConfig, path: str | None) -> None:
    """Check that batches fit ``segment.bytes``."""
    if size_bytes > config.max_segment_bytes:
        raise RecordBatchTooLargeError(
            f"Expected at most {config.max_segment_bytes} bytes, the limit segment.bytes, found {size_bytes} for one "
            "segment. Append less at once, or raise segment.bytes.",
            path=path,
        )


class RecordErrors:
    """Collects the invalid records of an append: in a producer's batches, or in a table."""

    def __init__(self, earliest_ms: int, latest_ms: int, now_ms: int, *, of_batches: bool) -> None:
        self._bounds = (
            f"a timestamp from {earliest_ms} to {latest_ms} ms, as message.timestamp.before.max.ms and "
            f"message.timestamp.after.max.ms allow at {now_ms}"
        )
        self._of_batches = of_batches
        self._count = 0
        self._errors: list[RecordError] = []
        self._without_key = _Places()
        self._untimely = _Places()
        self._marked_batches: list[int] = []

    def add(
        self,
        without_key: _Int64Array,
        untimely: _Int64Array = _NO_ROWS,
        timestamps_ms: Iterable[int] = (),
        *,
        batch_number: int = 0,
    ) -> None:
        """Add records of one batch, or of a table, by their ascending indexes.

        Some have no key; others are untimely, and have these invalid timestamps.
        """
        room = _MAX_RECORD_ERRORS - len(self._errors)
        self._count += len(without_key) + len(untimely)
        key_rows, time_rows = without_key[:room].tolist(), untimely[:room].tolist()
        times = list(zip(time_rows, timestamps_ms, strict=False))
        self._without_key.add(
            len(without_key), [self._place(row, batch_number) for row in key_rows[:_MAX_IN_MESSAGE]]
        )
        self._untimely.add(
            len(untimely),
            [
                f"{timestamp_ms} in {self._place(row, batch_number)}"
                for row, timestamp_ms in times[:_MAX_IN_MESSAGE]
            ],
        )
        key_message = "Expected a key, because cleanup.policy is compact, found none."
        errors = [RecordError(row, key_message, batch_number) for row in key_rows]
        errors += [
            RecordError(row, f"Expected {self._bounds}, found {timestamp_ms}.", batch_number)
            for row, timestamp_ms in times
        ]
        errors.sort()
        self._errors += errors[:room]

    def add_marked_batch(self, record_count: int, batch_number: int) -> None:
        """Add all records of a batch that its producer marked with log append time."""
        message = (
            "Expected create time, because only a log assigns log append time, found a batch marked with it."
        )
        self._count += record_count
        room = _MAX_RECORD_ERRORS - len(self._errors)
        self._errors += [RecordError(row, message, batch_number) for row in range(min(record_count, room))]
        self._marked_batches.append(batch_number)

    def raise_if_any(self, path: str | None) -> None:
        """Reject the append if there are invalid records.

        Raises:
            InvalidTimestampError: Some have an invalid timestamp.
            InvalidRecordError: Some have no key, and all timestamps are valid.
        """
        if not self._count:
            return
        found = []
        if self._without_key.count:
            found.append(
                "Expected a key in every record, because cleanup.policy is compact, found none in "
                f"{self._without_key}. Compaction keeps the last record of each key: give each record one."
            )
        if self._untimely.count:
            wrong = "the producer's clock" if self._of_batches else "the clock or the unit of the column"
            found.append(
                f"Expected {self._bounds}, found {self._untimely}. Correct {wrong}, or widen the bounds."
            )
        if self._marked_batches:
            found.append(
                f"Expected create time in a producer's records, found batch {self._marked_batches[0]} marked "
                "with log append time. Only a log assigns that."
            )
        is_of_time = self._untimely.count or self._marked_batches
        raise (InvalidTimestampError if is_of_time else InvalidRecordError)(
            " ".join(found), record_errors=tuple(self._errors), record_error_count=self._count, path=path
        )

    def _place(self, row: int, batch_number: int) -> str:
        return f"record {row} of batch {batch_number}" if self._of_batches else f"record {row}"


class _Places:
    """The number of invalid records, and the positions of the first few."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[str] = []

    def add(self, count: int, first: list[str]) -> None:
        self.count += count
        self._first += first[: _MAX_IN_MESSAGE - len(self._first)]

    def __str__(self) -> str:
        more = self.count - len(self._first)
        return ", ".join(self._first) + (f" and {more} more" if more else "")


def validate_records(records: Records, config: LogConfig, now_ms: int, *, path: str | None = None) -> None:
    """Check keys and timestamps against the log's configuration. Types are not checked.

    Raises:
        InvalidRecordError: The log is compacted, and records have no key.
        InvalidTimestampError: Timestamps are too far from the present, or below -1.
    """
    without_key = _rows_without_key(records) if config.is_compacted else _NO_ROWS
    untimely = _NO_ROWS
    if not config.has_log_append_time and "timestamp" in records.schema.names:
        untimely = _untimely_rows(records.column("timestamp"), *_bounds_ms(config, now_ms))
    if without_key is _NO_ROWS is untimely:
        return
    untimely = untimely[~np.isin(untimely, without_key)]
    timestamps_ms = _timestamps_ms(records.column("timestamp"), untimely) if len(untimely) else ()
    errors = RecordErrors(*_bounds_ms(config, now_ms), now_ms, of_batches=False)
    errors.add(without_key, untimely, timestamps_ms)
    errors.raise_if_any(path)


def _bounds_ms(config: LogConfig, now_ms: int) -> tuple[int, int]:
    earliest_ms = max(now_ms - config.message_timestamp_before_max_ms, NO_TIMESTAMP_MS)
    return earliest_ms, now_ms + config.message_timestamp_after_max_ms


def _rows_without_key(records: Records) -> _Int64Array:
    if "key" not in records.schema.names:
        return np.arange(records.num_rows)
    keys = records.column("key")
    if pa.types.is_dictionary(keys.type):
        # The dictionary itself may contain a null.
        keys = keys.cast(keys.type.value_type)
    if not keys.null_count:
        return _NO_ROWS
    return np.asarray(pc.is_null(keys)).nonzero()[0]


def _untimely_rows(column: pa.Array | pa.ChunkedArray, earliest_ms: int, latest_ms: int) -> _Int64Array:
    if not (pa.types.is_int64(column.type) or pa.types.is_timestamp(column.type)):
        return _NO_ROWS
    found = []
    first_row = 0
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else (column,):
        rows = _rows_outside(chunk, earliest_ms, latest_ms)
        if len(rows):
            found.append(rows + first_row)
        first_row += len(chunk)
    return np.concatenate(found) if found else _NO_ROWS


def _rows_outside(chunk: pa.Array, earliest_ms: int, latest_ms: int) -> _Int64Array:
    """Return the rows whose timestamps are neither absent nor within the bounds."""
    if not len(chunk):
        return _NO_ROWS
    # The bounds in the column's unit. Finer units are floored to milliseconds; seconds are exact.
    if _is_in_seconds(chunk.type):
        lowest, highest = -(-earliest_ms // 1000), latest_ms // 1000
        absent_lowest, absent_highest = 0, -1
    else:
        factor = _units_per_ms(chunk.type)
        lowest, highest = earliest_ms * factor, latest_ms * factor + factor - 1
        absent_lowest, absent_highest = NO_TIMESTAMP_MS * factor, NO_TIMESTAMP_MS * factor + factor - 1
    lowest, highest = max(lowest, int(_INT64.min)), min(highest, int(_INT64.max))
    integers = chunk if pa.types.is_int64(chunk.type) else chunk.view(pa.int64())
    if integers.null_count:
        integers = integers.fill_null(lowest)
    values: _Int64Array = integers.to_numpy()
    if values.min() >= lowest and values.max() <= highest:
        return _NO_ROWS
    is_wrong = (values < lowest) | (values > highest)
    is_wrong &= (values < absent_lowest) | (values > absent_highest)
    return is_wrong.nonzero()[0]


def _timestamps_ms(column: pa.Array | pa.ChunkedArray, rows: _Int64Array) -> list[int]:
    """Return the timestamps of rows without nulls. Seconds may exceed 64 bits in milliseconds."""
    values: list[int] = column.take(pa.array(rows[:_MAX_RECORD_ERRORS])).cast(pa.int64()).to_pylist()
    if _is_in_seconds(column.type):
        return [value * 1000 for value in values]
    factor = _units_per_ms(column.type)
    return [value // factor for value in values]


def _units_per_ms(kind: pa.DataType) -> int:
    return 1 if pa.types.is_int64(kind) else _UNITS_PER_MS[kind.unit]


def _is_in_seconds(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.unit == "s"


def accept_client_batches(
    batches: RecordBatches,
    config: LogConfig,
    now_ms: int,
    *,
    origin: AppendOrigin = "client",
    path: str | None = None,
) -> RecordBatches:
    """Validate batches whose offsets the log assigns, and convert them to the log's codec and timestamp type.

    Raises:
        InvalidRecordError: The origin may not write such a header or record, or keys are missing.
        InvalidTimestampError: Timestamps are too far from the present, or a batch of a producer is marked with log
            append time.
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
        assert columns.timestamps_ms is not None  # noqa: S101  (requested above)
        headers["max_timestamp_ms"][number] = max(int(columns.timestamps_ms.max()), NO_TIMESTAMP_MS)
        codec = _target_codec(attributes, config)
        headers["attributes"][number] = (attributes & ~CODEC_MASK) | codec
        bodies.append(_body(batches, number, section, config, codec))
        # Checked for each batch, because decompression may multiply its size.
        size_bytes += HEADER_SIZE_BYTES + len(bodies[-1])
        require_fits_segment(size_bytes, config, path)
    limits.errors.raise_if_any(path)
    require_markers(batches, path)
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
    """Checks keys and timestamps of client batches, and collects the invalid records."""

    def __init__(self, config: LogConfig, now_ms: int) -> None:
        self._needs_keys = config.is_compacted
        self._keeps_times = not config.has_log_append_time
        self._earliest_ms = max(now_ms - config.message_timestamp_before_max_ms, int(_INT64.min))
        self._latest_ms = min(now_ms + config.message_timestamp_after_max_ms, int(_INT64.max))
        self.errors = RecordErrors(self._earliest_ms, self._latest_ms, now_ms, of_batches=True)

    def check(self, columns: RecordColumns, attributes: int, number: int) -> None:
        """Check the records of one batch."""
        assert columns.keys is not None and columns.timestamps_ms is not None  # noqa: S101, PT018  (requested above)
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
    """Decompress and decode the records of one batch."""
    batch = b"".join(batches.pieces[2 * number : 2 * number + 2])
    try:
        header = parse_batch_header(batch, 0, 0, path="")
        section = batch_section(batch, header, path="", limit_bytes=DEFAULT_MAX_BATCH_BYTES)
        decode = decode_one_by_one if header.record_count <= _FEW_RECORDS else decode_records
        return section, decode(section, _ALL_FIELDS)
    except (CorruptError, UnsupportedFormatError) as error:
        index = getattr(error, "record_index", None)
        raise InvalidRecordError(
            f"Expected readable records, found batch {number}: {error.args[0]}",
            record_errors=() if index is None else (RecordError(index, error.args[0], number),),
            path=path,
        ) from error


def _target_codec(attributes: int, config: LogConfig) -> int:
    """Return the codec of a batch in the log. Markers are too small to gain from compression, and keep theirs."""
    if config.compression_type == _KEEP_CODEC or attributes & CONTROL_FLAG:
        return attributes & CODEC_MASK
    return config.compression_codec


def _body(
    batches: RecordBatches, number: int, section: RecordSection, config: LogConfig, codec: int
) -> BytesLike:
    """Return the records of one batch, compressed with a codec, or unchanged if they already are."""
    if codec == int(batches.headers["attributes"][number]) & CODEC_MASK:
        return batches.pieces[2 * number + 1]
    records = section.buffer.data[: len(section.buffer) - PADDING_BYTES]
    compress = compressor(codec, config.compression_level)
    return records if compress is None else compress(records)
