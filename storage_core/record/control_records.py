"""Batches without data: control batches (Kafka's ``ControlRecordType``), and batches that compaction emptied."""

from __future__ import annotations

import enum
import struct
from typing import Final, NamedTuple

from storage_core.errors import BatchTooLargeError, CorruptRecordError, UnsupportedFormatError
from storage_core.record.arrow_columns import Slices
from storage_core.record.batch_header import (
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER_SIZE_BYTES,
    NO_TIMESTAMP_MS,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from storage_core.record.decode import decode_one_by_one
from storage_core.record.record_batches import ProducerSequence, RecordBatches, batch_of
from storage_core.record.section import RecordSection, WantedFields, batch_section

# Version int16, type int16.
CONTROL_KEY: Final = struct.Struct(">hh")
# The value of a marker that ends a transaction (KIP-98, ``EndTransactionMarker``): version int16, coordinator epoch int32.
END_MARKER_VALUE: Final = struct.Struct(">hi")
# Control batches take some dozen bytes, those of KRaft some hundred.
MAX_CONTROL_BYTES: Final = 1 << 20


class ControlType(enum.IntEnum):
    """The type of a control record. Types that later versions of Kafka add are UNKNOWN."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    UNKNOWN = -1


def control_type(batch: bytes | memoryview, header: BatchHeader, *, path: str) -> ControlType | None:
    """Return the type of the first record of a control batch, whose CRC was checked.

    Returns:
        None if compaction emptied the batch.

    Raises:
        CorruptRecordError: The record has no key of at least four bytes, or a negative version.
    """
    if header.record_count == 0:
        return None
    section = batch_section(batch, header, path=path, limit_bytes=MAX_CONTROL_BYTES)
    keys = decode_one_by_one(section, WantedFields(timestamp=False, value=False)).keys
    length, version, number = _first_of(keys, section, CONTROL_KEY)
    if version is None or version < 0:
        raise CorruptRecordError(
            "Expected a control record's key to hold a version and a type in four bytes, "
            f"found a key of {length} bytes{'' if version is None else f' with version {version}'}.",
            **header.error_location(path),
        )
    return ControlType(number) if number in tuple(ControlType) else ControlType.UNKNOWN


def _first_of(
    column: Slices | None, section: RecordSection, layout: struct.Struct
) -> tuple[int, int | None, int]:
    """Read the first byte string of a column, which holds a version and a number.

    Returns:
        Its length in bytes, the version (None if it is too short), and the number.
    """
    assert column is not None  # noqa: S101  (it was asked for)
    length, start = int(column.lengths[0]), int(column.starts[0])
    if length < layout.size:
        return length, None, 0
    version, number = layout.unpack_from(section.buffer.data, start)
    return length, version, number


# The record of a marker as brokers write it: the varints of its length (16), attributes, timestamp delta, offset delta
# and key length (4); the key; the value length (6) and the value; the header count.
_USUAL: Final = struct.Struct(">5shhbhib")
_USUAL_SIZE_BYTES: Final = HEADER_SIZE_BYTES + _USUAL.size
_USUAL_START: Final = b"\x20\x00\x00\x00\x08"
_USUAL_VALUE_LENGTH: Final = 12


class EndTransactionMarker(NamedTuple):
    """End of a transaction, and the epoch of the coordinator that ended it."""

    is_abort: bool
    coordinator_epoch: int


def read_marker(batch: bytes | memoryview, header: BatchHeader, *, path: str) -> EndTransactionMarker | None:
    """Return the marker in a control batch, whose CRC was checked.

    Returns:
        None if compaction emptied the batch, or if it does not end a transaction.

    Raises:
        CorruptRecordError: The record is malformed.
    """
    if header.size_bytes == _USUAL_SIZE_BYTES and not header.attributes & CODEC_MASK:
        start, key_version, kind, value_length, value_version, coordinator_epoch, header_count = (
            _USUAL.unpack_from(batch, HEADER_SIZE_BYTES)
        )
        if (
            start == _USUAL_START
            and value_length == _USUAL_VALUE_LENGTH
            and header_count == 0
            and header.record_count == 1
            and key_version >= 0
            and value_version >= 0
            and kind in (ControlType.ABORT, ControlType.COMMIT)
        ):
            return EndTransactionMarker(kind == ControlType.ABORT, coordinator_epoch)
    try:
        return _read_unusual(batch, header, path)
    except (BatchTooLargeError, UnsupportedFormatError) as error:
        # No coordinator writes such a batch: support for another codec, or a higher limit, would not help.
        raise CorruptRecordError(
            f"Expected a control record of a few bytes, found one that cannot be read: {error.args[0]}",
            **header.error_location(path),
        ) from error


def _read_unusual(batch: bytes | memoryview, header: BatchHeader, path: str) -> EndTransactionMarker | None:
    kind = control_type(batch, header, path=path)
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    section = batch_section(batch, header, path=path, limit_bytes=MAX_CONTROL_BYTES)
    values = decode_one_by_one(section, WantedFields(timestamp=False, key=False)).values
    length, version, coordinator_epoch = _first_of(values, section, END_MARKER_VALUE)
    if version is None or version < 0:
        raise CorruptRecordError(
            "Expected a marker's value to hold a version and a coordinator epoch in six bytes, "
            f"found a value of {length} bytes{'' if version is None else f' with version {version}'}.",
            **header.error_location(path),
        )
    return EndTransactionMarker(kind is ControlType.ABORT, coordinator_epoch)


_VERSION: Final = 0
_NO_SEQUENCE: Final = -1
_END_TYPES: Final = (ControlType.ABORT, ControlType.COMMIT)


def end_transaction_marker(
    control_type: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> RecordBatches:
    """Return the batch that commits or aborts a producer's transaction in one partition.

    Raises:
        ValueError: The type is not COMMIT or ABORT, or there is no producer.
    """
    if control_type not in _END_TYPES or producer_id < 0 or producer_epoch < 0:
        raise ValueError(
            "Expected COMMIT or ABORT with a producer id and an epoch, "
            f"found {control_type.name}, {producer_id} and {producer_epoch}."
        )
    from storage_core.record.column_encode import encode_one_by_one  # noqa: PLC0415  (readers do not encode)

    key, value = CONTROL_KEY.pack(_VERSION, control_type), END_MARKER_VALUE.pack(_VERSION, coordinator_epoch)
    (batch,) = encode_one_by_one([(timestamp_ms, key, value, ())], 0)
    return batch_of(
        batch.records,
        count=1,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG,
        producer=ProducerSequence(producer_id, producer_epoch, _NO_SEQUENCE),
    )


def empty_batch(
    base_offset: int,
    last_offset: int,
    *,
    leader_epoch: int,
    max_timestamp_ms: int,
) -> RecordBatches:
    """Return a batch without records, as compaction leaves one where it removed all."""
    return batch_of(
        b"",
        count=0,
        base_timestamp_ms=NO_TIMESTAMP_MS,
        max_timestamp_ms=max_timestamp_ms,
        base_offset=base_offset,
        last_offset_delta=last_offset - base_offset,
        leader_epoch=leader_epoch,
    )
