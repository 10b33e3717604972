"""Saying what is wrong where a batch was expected."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from storage_core.errors import BatchTooLargeError, CorruptRecordError
from storage_core.record.batch_header import (
    CRC_LAYOUTS,
    HEADER_SIZE_BYTES,
    MAGIC_V2,
    MINIMUM_LENGTHS,
    header_error,
)

if TYPE_CHECKING:
    from storage_core.errors import SegmentLogError
    from storage_core.record.batch_header import BatchHeader
    from storage_core.segment.batch_probe import BatchProbe
    from storage_core.segment.offset_order import OffsetLimits

__all__ = ["reason_at"]

_LENGTH_AND_MAGIC: Final = struct.Struct(">8xi4xb")


def reason_at(
    probe: BatchProbe,
    limits: OffsetLimits,
    position_bytes: int,
    lowest_offset: int,
    max_batch_bytes: int,
) -> SegmentLogError | None:
    """Why there is no batch at a boundary that counts; None if nothing is wrong with it by itself."""
    head = probe.read_at(HEADER_SIZE_BYTES, position_bytes)
    if len(head) < _LENGTH_AND_MAGIC.size:
        return _cut_off(probe, position_bytes)
    if not head.strip(b"\0"):
        return CorruptRecordError(
            "Expected record batches, found zeros: data was lost here.",
            path=probe.path,
            position_bytes=position_bytes,
        )
    length, magic = _LENGTH_AND_MAGIC.unpack_from(head)
    if not 0 <= magic <= MAGIC_V2 or length < MINIMUM_LENGTHS[magic]:
        return header_error(probe.path, position_bytes, length, magic)
    header = probe.header(position_bytes)
    if header is None:
        return CorruptRecordError(
            "Expected the offsets of a record batch, found numbers that are none: the file is damaged here.",
            path=probe.path,
            position_bytes=position_bytes,
        )
    if header.end_position_bytes > probe.end_bytes:
        return _cut_off(probe, position_bytes)
    if header.size_bytes > max_batch_bytes:
        return BatchTooLargeError(
            f"Expected a record batch of at most {max_batch_bytes} bytes, found one that declares "
            f"{header.size_bytes}. If it is genuine, raise maxDecompressedBatchBytes.",
            path=probe.path,
            position_bytes=position_bytes,
        )
    if not probe.is_crc_right(header):
        return _wrong_crc(probe, header)
    return limits.problem(header, lowest_offset, probe.path)


def _cut_off(probe: BatchProbe, position_bytes: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"Expected a whole record batch, found only its first {probe.end_bytes - position_bytes} bytes in front "
        "of the segment's end: the file was cut off, or the batch's length is damaged.",
        path=probe.path,
        position_bytes=position_bytes,
    )


def _wrong_crc(probe: BatchProbe, header: BatchHeader) -> CorruptRecordError:
    start_bytes = header.position_bytes + CRC_LAYOUTS[header.magic].start
    found = probe.crc(header.magic, start_bytes, header.end_position_bytes)
    return CorruptRecordError(
        f"Expected a record batch with CRC {header.crc:#010x}, found {found:#010x}: "
        "the batch was damaged after it was written.",
        path=probe.path,
        position_bytes=header.position_bytes,
    )
