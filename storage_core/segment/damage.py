"""Damage in a log file: which bytes, which offsets may be lost, and the error that explains it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_core.errors import BatchTooLargeError, CorruptRecordError, SegmentLogError
from storage_core.record.batch_header import (
    HEADER_SIZE_BYTES,
    LENGTH_AND_MAGIC,
    LENGTH_POSITION,
    MAGIC_POSITION,
    MAGIC_V2,
    MIN_LENGTH_BY_MAGIC,
    BatchHeader,
    header_error,
)

if TYPE_CHECKING:
    from storage_core.segment.batch_probe import BatchProbe


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """The bytes between two batches of the log, or between one and the end of the file.

    Attributes:
        path: The log file.
        start_bytes: Position of the first byte: where a batch was expected.
        end_bytes: Position after the last byte: where the next batch of the log begins.
        start_offset: First offset that may be lost.
        end_offset: The offset after the last one that may be lost. Where nothing is lost, as with stray
            bytes between two batches, it equals ``start_offset``.
        reason: What was expected at the first byte, and what was found.
        kind: The class of the error that reports it.
        may_hold_markers: Whether a transaction marker may be lost.
    """

    path: str
    start_bytes: int
    end_bytes: int
    start_offset: int
    end_offset: int
    reason: str
    kind: type[SegmentLogError] = CorruptRecordError
    may_hold_markers: bool = True

    def error(self) -> SegmentLogError:
        """The error for a reader that stops at damage."""
        is_empty = self.start_offset == self.end_offset
        return self.kind(
            self.reason,
            path=self.path,
            position_bytes=self.start_bytes,
            end_position_bytes=self.end_bytes,
            offset=self.start_offset,
            last_offset=None if is_empty else self.end_offset - 1,
        )


def reason_at(
    probe: BatchProbe,
    limits: OffsetLimits,
    position_bytes: int,
    lowest_offset: int,
    max_batch_bytes: int,
) -> SegmentLogError | None:
    """Why there is no valid batch at a boundary; None if nothing is wrong with the batch by itself."""

    def corrupt(message: str) -> CorruptRecordError:
        return CorruptRecordError(message, path=probe.path, position_bytes=position_bytes)

    cut_off = (
        f"Expected a whole record batch, found only its first {probe.end_bytes - position_bytes} bytes before "
        "the segment's end: the file was cut off, or the batch's length is damaged."
    )
    head = probe.read_at(HEADER_SIZE_BYTES, position_bytes)
    if len(head) <= MAGIC_POSITION:
        return corrupt(cut_off)
    if not head.strip(b"\0"):
        return corrupt("Expected record batches, found zeros: data was lost here.")
    length, magic = LENGTH_AND_MAGIC.unpack_from(head, LENGTH_POSITION)
    if not 0 <= magic <= MAGIC_V2 or length < MIN_LENGTH_BY_MAGIC[magic]:
        return header_error(probe.path, position_bytes, length, magic)
    header = probe.header(position_bytes)
    if header is None:
        return corrupt(
            "Expected the offsets of a record batch, found impossible ones: the file is damaged here."
        )
    if header.end_position_bytes > probe.end_bytes:
        return corrupt(cut_off)
    if header.size_bytes > max_batch_bytes:
        return BatchTooLargeError(
            f"Expected a record batch of at most {max_batch_bytes} bytes, found one that declares "
            f"{header.size_bytes}. If it is genuine, raise maxDecompressedBatchBytes.",
            path=probe.path,
            position_bytes=position_bytes,
        )
    if not probe.is_crc_right(header):
        return corrupt(
            f"Expected a record batch with CRC {header.crc:#010x}, found {probe.batch_crc(header):#010x}: "
            "the batch was damaged after it was written."
        )
    return limits.problem(header, lowest_offset, probe.path)


def known_offset(header: BatchHeader) -> int:
    """The lowest offset that a header is certain of: for a wrapper, its last one."""
    return header.last_offset if header.is_wrapper else header.base_offset


@dataclass(frozen=True, slots=True)
class OffsetLimits:
    """The offsets of one segment: from its base offset to below its end offset, if that is known."""

    base_offset: int
    end_offset: int | None

    def follows(self, header: BatchHeader, lowest_offset: int) -> bool:
        """Whether a batch's offsets may follow those of batches that end before ``lowest_offset``."""
        if self.end_offset is not None and header.last_offset >= self.end_offset:
            return False
        return known_offset(header) >= max(lowest_offset, self.base_offset)

    def problem(self, header: BatchHeader, lowest_offset: int, path: str) -> CorruptRecordError | None:
        """Why a batch's offsets do not fit here; None if they do."""
        if self.follows(header, lowest_offset):
            return None
        if header.last_offset < self.base_offset or header.base_offset < self.base_offset:
            found = f"offsets from {self.base_offset} on, as the file's name says"
        elif self.end_offset is not None and header.last_offset >= self.end_offset:
            found = f"offsets below {self.end_offset}, where this segment ends"
        else:
            found = f"a record batch with offsets from {lowest_offset} on"
        return _disorder(found, header, path)

    def disorder(
        self, header: BatchHeader | None, following: BatchHeader | None, path: str
    ) -> CorruptRecordError:
        """The error about a batch whose offsets the following batch proves wrong."""
        if header is None or following is None:
            return CorruptRecordError("Expected a record batch, found other bytes.", path=path)
        return _disorder(f"offsets below {following.base_offset}, where the next batch begins", header, path)


def _disorder(expected: str, header: BatchHeader, path: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"Expected {expected}, found a batch from {header.base_offset} to {header.last_offset}: "
        "batches are out of order.",
        path=path,
        position_bytes=header.position_bytes,
        offset=header.base_offset,
    )
