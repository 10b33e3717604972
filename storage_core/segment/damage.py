"""Damage in a log file: probing for headers and CRCs at any position, and which bytes and offsets may be lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from storage_core.errors import BatchTooLargeError, CorruptRecordError, SegmentLogError
from storage_core.record.batch_header import (
    CRC_LAYOUTS,
    HEADER_SIZE_BYTES,
    LENGTH_AND_MAGIC,
    LENGTH_POSITION,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_V2,
    MAX_OFFSET,
    MIN_LENGTH_BY_MAGIC,
    BatchHeader,
    header_error,
    parse_batch_header,
)

if TYPE_CHECKING:
    from storage_core.filesystem import ReadableFile


MAX_ENCODABLE_BATCH_BYTES: Final = (1 << 31) - 1 + LOG_OVERHEAD_BYTES
"""The size of the largest batch whose length fits the length field. A limit that excludes no batch."""
_HEADER_BLOCK_BYTES: Final = 16 * 1024
_CRC_BLOCK_BYTES: Final = 1024 * 1024
# How many bytes of CRC may be computed in vain: random bytes hardly ever look like a header, forged
# ones may. The allowance is renewed as the reader advances.
_ALLOWANCE_BYTES: Final = 256 * 1024 * 1024
_ALLOWANCE_FACTOR: Final = 4
# What may be read to prove where damage ends is counted apart, so that proofs never keep a batch from being checked.
_PROOF_ALLOWANCE_BYTES: Final = 64 * 1024 * 1024
_LARGEST_CACHE: Final = 65_536
_MOST_HEADERS: Final = 4096


class BatchProbe:
    """Reads headers and checks CRCs at any position of one open log file, within an allowance for forged files.

    A header is only reported, not trusted: the position may be in the middle of a record's value.

    Attributes:
        end_bytes: Where the file ends for its reader.
        is_exhausted: Whether the allowance was used up since the last `advance_to`: the file is made to
            keep a reader busy. Batches whose CRC was not computed count as damaged.
    """

    def __init__(self, log_file: ReadableFile, end_bytes: int) -> None:
        self.end_bytes = end_bytes
        self.is_exhausted = False
        self._log_file = log_file
        self._block = b""
        self._block_start = 0
        self._headers: dict[int, BatchHeader | None] = {}
        self._checked: dict[int, bool] = {}
        self._allowance_bytes = _ALLOWANCE_BYTES
        self._furthest_bytes = 0
        self._proof_allowance_bytes = _PROOF_ALLOWANCE_BYTES

    @property
    def path(self) -> str:
        """The file."""
        return self._log_file.path

    def header(self, position_bytes: int) -> BatchHeader | None:
        """Return the header at a position if its magic, length and offsets are plausible, or None.

        The batch may reach beyond the end.
        """
        if not 0 <= position_bytes < self.end_bytes:
            return None
        if position_bytes not in self._headers:
            if len(self._headers) >= _MOST_HEADERS:
                self._headers.clear()
            # Chains of headers lead over the same positions again and again.
            self._headers[position_bytes] = self._parsed(position_bytes)
        return self._headers[position_bytes]

    def _parsed(self, position_bytes: int) -> BatchHeader | None:
        start = position_bytes - self._block_start
        if start < 0 or start + HEADER_SIZE_BYTES > len(self._block):
            # After looking at the next batch, callers come back to this one.
            self._block_start = max(0, position_bytes - _HEADER_BLOCK_BYTES // 4)
            self._block = self.read_at(_HEADER_BLOCK_BYTES, self._block_start)
            start = position_bytes - self._block_start
            if len(self._block) < _HEADER_BLOCK_BYTES:
                # The last message of a file may be shorter than a v2 header, and the file may have been cut off
                # meanwhile.
                self._block = (self._block + bytes(HEADER_SIZE_BYTES)).ljust(start + HEADER_SIZE_BYTES, b"\0")
        try:
            header = parse_batch_header(self._block, start, position_bytes, path=self.path)
        except CorruptRecordError:
            return None
        if header.base_offset < 0 or header.last_offset_delta < 0 or header.last_offset > MAX_OFFSET:
            return None
        return header

    def is_crc_right(self, header: BatchHeader) -> bool:
        """Return True if the batch is whole and its CRC matches."""
        position_bytes = header.position_bytes
        if header.end_position_bytes > self.end_bytes:
            return False
        known = self._checked.get(position_bytes)
        if known is None:
            if not self.charge_read(header.size_bytes):
                return False
            if len(self._checked) >= _LARGEST_CACHE:
                self._checked.clear()
            known = self._checked[position_bytes] = self.batch_crc(header) == header.crc
            if known:
                # It was not computed in vain.
                self._allowance_bytes += header.size_bytes
        return known

    def batch_crc(self, header: BatchHeader) -> int:
        """Compute the CRC of a batch's bytes, however many they are.

        Returns:
            The CRC; -1 if the file ends before it.
        """
        crc_start = header.position_bytes + CRC_LAYOUTS[header.magic].start
        return self.crc(header.magic, crc_start, header.end_position_bytes)

    def crc(self, magic: int, start_bytes: int, end_bytes: int, crc: int = 0) -> int:
        """Compute the CRC of a range of bytes as a format does, continued from another CRC.

        Returns:
            The CRC; -1 if the file ends before the range does.
        """
        compute = CRC_LAYOUTS[magic].compute
        while start_bytes < end_bytes:
            # In blocks: the size that a header declares must not decide how much memory is taken.
            block = self._log_file.read_at(min(_CRC_BLOCK_BYTES, end_bytes - start_bytes), start_bytes)
            if not block:
                return -1
            crc = compute(block, crc)
            start_bytes += len(block)
        return crc

    def charge_read(self, size_bytes: int) -> bool:
        """Take from the allowance of bytes to read. Return False if not enough is left."""
        if size_bytes > self._allowance_bytes:
            self.is_exhausted = True
            return False
        self._allowance_bytes -= size_bytes
        return True

    def charge_proof(self, size_bytes: int) -> bool:
        """Take from the allowance for proofs. Return False if not enough is left: nothing more is proven here."""
        if size_bytes > self._proof_allowance_bytes:
            return False
        self._proof_allowance_bytes -= size_bytes
        return True

    def advance_to(self, position_bytes: int) -> None:
        """Note how far the reader has got, which renews the allowances."""
        self.is_exhausted = False
        gained_bytes = position_bytes - self._furthest_bytes
        if gained_bytes > 0:
            self._furthest_bytes = position_bytes
            renewed_bytes = _ALLOWANCE_FACTOR * gained_bytes
            self._allowance_bytes = min(_ALLOWANCE_BYTES, self._allowance_bytes + renewed_bytes)
            self._proof_allowance_bytes = min(
                _PROOF_ALLOWANCE_BYTES, self._proof_allowance_bytes + renewed_bytes
            )

    def read_at(self, size_bytes: int, position_bytes: int) -> bytes:
        """Read bytes, none from beyond the end."""
        size_bytes = max(0, min(size_bytes, self.end_bytes - position_bytes))
        return self._log_file.read_at(size_bytes, position_bytes)

    def next_data(self, position_bytes: int) -> int | None:
        """Skip a hole of the file.

        Returns:
            A position at or after this one, with only zeros in between; None if all the rest is zeros. The byte there may
            itself be zero.
        """
        found = self._log_file.next_data(position_bytes)
        return None if found is None or found >= self.end_bytes else found


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """The bytes between two batches of the log, or between one and the end of the file.

    Attributes:
        start_bytes: Position of the first byte: where a batch was expected.
        end_bytes: Position after the last byte: where the next batch of the log begins.
        start_offset: First offset that may be lost.
        end_offset: The offset after the last one that may be lost. Where nothing is lost, as with stray
            bytes between two batches, it equals ``start_offset``.
        reason: What was expected at the first byte, and what was found.
        error_type: The class of the error that reports it.
        may_hold_markers: Whether a transaction marker may be lost.
    """

    path: str
    start_bytes: int
    end_bytes: int
    start_offset: int
    end_offset: int
    reason: str
    error_type: type[SegmentLogError] = CorruptRecordError
    may_hold_markers: bool = True

    def error(self) -> SegmentLogError:
        """Return the error for a reader that stops at damage."""
        is_empty = self.start_offset == self.end_offset
        return self.error_type(
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
    """Say why there is no valid batch at a boundary.

    Returns:
        The error; None if nothing is wrong with the batch by itself.
    """

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
    """Return the lowest offset that a header is certain of: for a wrapper, its last one."""
    return header.last_offset if header.is_wrapper else header.base_offset


@dataclass(frozen=True, slots=True)
class OffsetLimits:
    """The offsets of one segment: from its base offset to below its end offset, if that is known."""

    base_offset: int
    end_offset: int | None

    def follows(self, header: BatchHeader, lowest_offset: int) -> bool:
        """Return True if a batch's offsets may follow those of batches that end before ``lowest_offset``."""
        if self.end_offset is not None and header.last_offset >= self.end_offset:
            return False
        return known_offset(header) >= max(lowest_offset, self.base_offset)

    def problem(self, header: BatchHeader, lowest_offset: int, path: str) -> CorruptRecordError | None:
        """Say why a batch's offsets do not fit here.

        Returns:
            The error; None if they fit.
        """
        if self.follows(header, lowest_offset):
            return None
        if header.last_offset < self.base_offset or header.base_offset < self.base_offset:
            found = f"offsets from {self.base_offset} on, as the file's name says"
        elif self.end_offset is not None and header.last_offset >= self.end_offset:
            found = f"offsets below {self.end_offset}, where this segment ends and another may begin"
        else:
            found = f"a record batch with offsets from {lowest_offset} on"
        return _disorder(found, header, path)

    def disorder(
        self, header: BatchHeader | None, following: BatchHeader | None, path: str
    ) -> CorruptRecordError:
        """Return the error about a batch whose offsets the next batch proves wrong."""
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
