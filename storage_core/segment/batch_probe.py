"""Single headers and CRCs at any position of a log file, within an allowance for damaged and forged files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from storage_core.errors import CorruptRecordError
from storage_core.record.batch_header import (
    CRC_LAYOUTS,
    HEADER_SIZE_BYTES,
    MAGIC_POSITION,
    MAX_OFFSET,
    BatchHeader,
    parse_batch_header,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.filesystem import OpenFile


_HEADER_BLOCK_BYTES: Final = 16 * 1024
_CRC_BLOCK_BYTES: Final = 1024 * 1024
# How many bytes of CRC may be computed in vain: random bytes hardly ever look like a header, forged
# ones may. The allowance is renewed as the reader advances.
_ALLOWANCE_BYTES: Final = 256 * 1024 * 1024
_ALLOWANCE_FACTOR: Final = 4
# How many bytes of CRC may be spent on proving where a damaged batch ends. After that, weaker evidence decides.
_PROOF_ALLOWANCE_BYTES: Final = 64 * 1024 * 1024
_LARGEST_CACHE: Final = 65_536


class BatchProbe:
    """Reads headers and checks CRCs at any position of one open log file.

    A header is only reported, not trusted: the position may be in the middle of a record's value.

    Attributes:
        end_bytes: Where the file ends for its reader.
        is_exhausted: Whether the allowance was used up since the last `advance_to`: the file is made to
            keep a reader busy. Batches whose CRC was not computed count as damaged.
    """

    def __init__(self, log_file: OpenFile, end_bytes: int) -> None:
        self.end_bytes = end_bytes
        self.is_exhausted = False
        self._log_file = log_file
        self._block = b""
        self._block_start = 0
        self._checked: dict[int, bool] = {}
        self._allowance_bytes = _ALLOWANCE_BYTES
        self._proof_allowance_bytes = _PROOF_ALLOWANCE_BYTES
        self._furthest_bytes = 0

    @property
    def path(self) -> str:
        """The file."""
        return self._log_file.path

    def header(self, position_bytes: int) -> BatchHeader | None:
        """The header at a position, if its magic, length and offsets are plausible.

        The batch may reach beyond the end.
        """
        if not 0 <= position_bytes < self.end_bytes:
            return None
        start = self._load(position_bytes)
        return self._parsed(self._block, start, position_bytes)

    def headers_but_for_magic(self, position_bytes: int) -> Iterator[BatchHeader]:
        """The headers that may be at a position if only the magic is damaged, the likeliest first."""
        if not 0 <= position_bytes < self.end_bytes:
            return
        start = self._load(position_bytes)
        head = bytearray(self._block[start : start + HEADER_SIZE_BYTES])
        for magic in reversed(range(len(CRC_LAYOUTS))):
            head[MAGIC_POSITION] = magic
            header = self._parsed(head, 0, position_bytes)
            if header is not None:
                yield header

    def _load(self, position_bytes: int) -> int:
        """Read a header's bytes into the block if they are not in it; return where they begin there."""
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
        return start

    def _parsed(self, data: bytes | bytearray, start: int, position_bytes: int) -> BatchHeader | None:
        try:
            header = parse_batch_header(data, start, position_bytes, path=self.path)
        except CorruptRecordError:
            return None
        if header.base_offset < 0 or header.last_offset_delta < 0 or header.last_offset > MAX_OFFSET:
            return None
        return header

    def is_crc_right(self, header: BatchHeader) -> bool:
        """Whether the batch's CRC matches. False if the batch reaches beyond the end of the file."""
        position_bytes = header.position_bytes
        if header.end_position_bytes > self.end_bytes:
            return False
        known = self._checked.get(position_bytes)
        if known is None:
            if not self.spend(header.size_bytes):
                return False
            if len(self._checked) >= _LARGEST_CACHE:
                self._checked.clear()
            known = self._checked[position_bytes] = self.batch_crc(header) == header.crc
        return known

    def batch_crc(self, header: BatchHeader) -> int:
        """The CRC of a batch's bytes, however many they are; -1 if the file ends before it."""
        crc_start = header.position_bytes + CRC_LAYOUTS[header.magic].start
        return self.crc(header.magic, crc_start, header.end_position_bytes)

    def crc(self, magic: int, start_bytes: int, end_bytes: int, crc: int = 0) -> int:
        """The CRC of a range of bytes, of the kind that a magic uses, continued from another one; -1 at the file's end."""
        compute = CRC_LAYOUTS[magic].compute
        while start_bytes < end_bytes:
            # In blocks: the size that a header declares must not decide how much memory is taken.
            block = self._log_file.read_at(min(_CRC_BLOCK_BYTES, end_bytes - start_bytes), start_bytes)
            if not block:
                return -1
            crc = compute(block, crc)
            start_bytes += len(block)
        return crc

    def spend(self, size_bytes: int) -> bool:
        """Take from the allowance; False if not enough is left."""
        if size_bytes > self._allowance_bytes:
            self.is_exhausted = True
            return False
        self._allowance_bytes -= size_bytes
        return True

    def spend_on_proof(self, size_bytes: int) -> bool:
        """Take from the allowance for proofs; False if not enough is left: then nothing more is proven here."""
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
        """A position at or after this one with only zeros in between; None if all the rest is zeros.

        The byte at that position may itself be zero.
        """
        found = self._log_file.next_data(position_bytes)
        return None if found is None or found >= self.end_bytes else found
