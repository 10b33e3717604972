"""Control records: the markers in a log that consumers never see (Kafka's ``ControlRecordType``).

key:   version int16, type int16
value: of a marker that ends a transaction, version int16, coordinator epoch int32; else it depends on the type
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING, Final

from storage_core.errors import CorruptRecordError
from storage_core.record.decode import batch_section
from storage_core.record.plain_decode import decode_one_by_one
from storage_core.record.section import WantedFields

if TYPE_CHECKING:
    from storage_core.record.batch_header import BatchHeader

__all__ = ["CONTROL_KEY", "END_MARKER_VALUE", "MOST_CONTROL_BYTES", "ControlType", "control_type"]

CONTROL_KEY: Final = struct.Struct(">hh")
END_MARKER_VALUE: Final = struct.Struct(">hi")
# Brokers write control batches of some dozen bytes, those of KRaft of some hundred.
MOST_CONTROL_BYTES: Final = 1 << 20


class ControlType(enum.IntEnum):
    """What a control record says. Types that later versions of Kafka add are UNKNOWN."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    UNKNOWN = -1


def control_type(batch: bytes | memoryview, header: BatchHeader, *, path: str) -> ControlType | None:
    """The type of a control batch's first record; None for a batch that compaction emptied.

    Args:
        batch: The whole batch, its CRC already checked.
        header: The batch's parsed header.
        path: The file, for messages.

    Raises:
        CorruptRecordError: The record has no key of at least four bytes, or a negative version.
    """
    if header.record_count == 0:
        return None
    section = batch_section(batch, header, path=path, limit_bytes=MOST_CONTROL_BYTES)
    keys = decode_one_by_one(section, WantedFields(timestamp=False, value=False)).keys
    assert keys is not None  # noqa: S101  (they were asked for)
    length, start = int(keys.lengths[0]), int(keys.starts[0])
    if length >= CONTROL_KEY.size:
        version, number = CONTROL_KEY.unpack_from(section.buffer.data, start)
        if version >= 0:
            return ControlType(number) if number in iter(ControlType) else ControlType.UNKNOWN
    raise CorruptRecordError(
        "Expected a control record's key to hold a version and a type in four bytes, "
        f"found a key of {length} bytes"
        + (f" with version {version}." if length >= CONTROL_KEY.size else "."),
        path=path,
        position_bytes=header.position_bytes,
        end_position_bytes=header.end_position_bytes,
        offset=header.base_offset,
        last_offset=header.last_offset,
    )
