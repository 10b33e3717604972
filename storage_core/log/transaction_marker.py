"""The markers that end transactions (KIP-98; Kafka's ``EndTransactionMarker``)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from storage_core.errors import BatchTooLargeError, CorruptRecordError, UnsupportedFormatError
from storage_core.record.batch_header import CODEC_MASK, HEADER_SIZE_BYTES
from storage_core.record.control_record import END_MARKER_VALUE, MOST_CONTROL_BYTES, ControlType, control_type
from storage_core.record.decode import batch_section
from storage_core.record.plain_decode import decode_one_by_one
from storage_core.record.section import WantedFields

if TYPE_CHECKING:
    from storage_core.record.batch_header import BatchHeader

__all__ = ["EndTransactionMarker", "read_marker"]

# A marker as brokers write it, from the record's length on: the varints of length (16), attributes,
# timestamp delta, offset delta and key length (4); the key; the value's length (6) and the value;
# the number of headers.
_USUAL: Final = struct.Struct(">5shhbhib")
_USUAL_SIZE_BYTES: Final = HEADER_SIZE_BYTES + _USUAL.size
_USUAL_START: Final = b"\x20\x00\x00\x00\x08"
_USUAL_VALUE_LENGTH: Final = 12


class EndTransactionMarker(NamedTuple):
    """How a transaction ended, and the epoch of the coordinator that says so."""

    is_abort: bool
    coordinator_epoch: int


def read_marker(batch: bytes | memoryview, header: BatchHeader, *, path: str) -> EndTransactionMarker | None:
    """The marker in a control batch; None if compaction emptied it, or if it is none that ends a transaction.

    Args:
        batch: The whole batch, its CRC already checked.
        header: The batch's parsed header.
        path: The file, for messages.

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
        # No coordinator writes such a thing, so nobody is helped by another codec or a higher limit.
        raise CorruptRecordError(
            f"Expected a control record of a few bytes, found one that cannot be read: {error.args[0]}",
            path=path,
            position_bytes=header.position_bytes,
            end_position_bytes=header.end_position_bytes,
            offset=header.base_offset,
            last_offset=header.last_offset,
        ) from error


def _read_unusual(batch: bytes | memoryview, header: BatchHeader, path: str) -> EndTransactionMarker | None:
    kind = control_type(batch, header, path=path)
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    section = batch_section(batch, header, path=path, limit_bytes=MOST_CONTROL_BYTES)
    values = decode_one_by_one(section, WantedFields(timestamp=False, key=False)).values
    assert values is not None  # noqa: S101  (they were asked for)
    length, start = int(values.lengths[0]), int(values.starts[0])
    if length >= END_MARKER_VALUE.size:
        version, coordinator_epoch = END_MARKER_VALUE.unpack_from(section.buffer.data, start)
        if version >= 0:
            return EndTransactionMarker(kind is ControlType.ABORT, coordinator_epoch)
    raise CorruptRecordError(
        "Expected a marker's value to hold a version and a coordinator epoch in six bytes, "
        f"found a value of {length} bytes"
        + (f" with version {version}." if length >= END_MARKER_VALUE.size else "."),
        path=path,
        position_bytes=header.position_bytes,
        end_position_bytes=header.end_position_bytes,
        offset=header.base_offset,
        last_offset=header.last_offset,
    )
