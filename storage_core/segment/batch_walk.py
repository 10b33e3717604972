"""Walking the batch headers of a log file, without reading what lies between them.

Each header says how long its batch is, so a walk hops from header to header. Small batches are
read in blocks that hold many headers; of batches larger than a page only the header is read.

A walk ends, without an error, where a broker would say that the file ends: at fewer bytes than
a header, at a batch that reaches beyond the end (a torn append), at zeros (a preallocated
tail). Everything else that is no batch raises: a walk never hops past damage.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, TypeAlias

from storage_core.errors import BatchTooLargeError, CorruptRecordError, DataLossError
from storage_core.record.batch_header import (
    HEADER_SIZE_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    batch_crc_matches,
    parse_batch_header,
)
from storage_core.segment.file_names import MAX_OFFSET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.filesystem import OpenFile
    from storage_core.record.batch_header import BatchHeader

__all__ = ["PAGE_SIZE_BYTES", "BatchWalk", "SkimmedBatch", "corrupt_batch", "read_batch"]

SkimmedBatch: TypeAlias = tuple[int, int, int, int, int]
"""What most walks need of a batch: position, end position, base offset, last offset, max timestamp."""

PAGE_SIZE_BYTES: Final = 4096
_LARGEST_BLOCK_BYTES: Final = 64 * 1024

# Base offset, batch length, magic, last offset delta and max timestamp of a v2 header.
_SKIMMED: Final = struct.Struct(">qi4xb4x2xi8xq")
_MINIMUM_BATCH_LENGTH: Final = HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES
# The least that any format has behind its length field. A batch that declares less is damage,
# even if it were the last one.
_MINIMUM_LENGTH: Final = 14


class BatchWalk:
    """Reads the batch headers of one open log file.

    Args:
        log_file: The file.
        base_offset: The segment's base offset: no batch may begin below it.
        end_position_bytes: Where the file ends, as far as this walk is concerned.
    """

    __slots__ = (
        "_base_offset",
        "_block",
        "_block_start",
        "_log_file",
        "_next_block_bytes",
        "_typical_batch_bytes",
        "end_position_bytes",
    )

    def __init__(self, log_file: OpenFile, base_offset: int, end_position_bytes: int) -> None:
        self.end_position_bytes = end_position_bytes
        self._log_file = log_file
        self._base_offset = base_offset
        self._block = b""
        self._block_start = 0
        self._next_block_bytes = PAGE_SIZE_BYTES
        self._typical_batch_bytes = 0

    def skim(self, position_bytes: int = 0) -> Iterator[SkimmedBatch]:
        """Walk from a batch boundary and yield only the fields that look-ups compare.

        Raises:
            UnsupportedFormatError: A message of format v0 or v1.
            CorruptRecordError: Bytes that are no batch, or offsets that do not ascend.
        """
        unpack = _SKIMMED.unpack_from
        last_start = self.end_position_bytes - HEADER_SIZE_BYTES
        next_offset = self._base_offset
        while position_bytes <= last_start:
            start = position_bytes - self._block_start
            if (start < 0 or start + HEADER_SIZE_BYTES > len(self._block)) and not self._fill(position_bytes):
                return
            base_offset, length, magic, offset_delta, max_timestamp_ms = unpack(
                self._block, position_bytes - self._block_start
            )
            batch_end = position_bytes + LOG_OVERHEAD_BYTES + length
            if batch_end > self.end_position_bytes and length >= _MINIMUM_LENGTH:
                return
            last_offset = base_offset + offset_delta
            if (
                magic != MAGIC_V2
                or length < _MINIMUM_BATCH_LENGTH
                or offset_delta < 0
                or base_offset < next_offset
                or last_offset > MAX_OFFSET
            ):
                if length == 0 and self._is_zero_tail(position_bytes):
                    return
                raise self._error(position_bytes, base_offset, offset_delta, next_offset)
            yield position_bytes, batch_end, base_offset, last_offset, max_timestamp_ms
            self._typical_batch_bytes += (batch_end - position_bytes - self._typical_batch_bytes) // 4
            next_offset = last_offset + 1
            position_bytes = batch_end

    def batches(self, position_bytes: int = 0) -> Iterator[BatchHeader]:
        """Walk from a batch boundary and yield whole headers; raises as `skim` does."""
        for position, *_ in self.skim(position_bytes):
            yield self._header(position)

    def batch_at(self, position_bytes: int) -> BatchHeader | None:
        """The header at a batch boundary; None if a walk would end there. Raises as `skim` does."""
        return next(self.batches(position_bytes), None)

    def first_reaching(self, offset: int, position_bytes: int) -> BatchHeader | None:
        """The first batch from a boundary on whose last offset is at least ``offset``."""
        for position, _, _, last_offset, _ in self.skim(position_bytes):
            if last_offset >= offset:
                return self._header(position)
        return None

    def _header(self, position_bytes: int) -> BatchHeader:
        """Parse the header that was just skimmed, and so stands in the block."""
        start = position_bytes - self._block_start
        return parse_batch_header(self._block, start, position_bytes, path=self._log_file.path)

    def _fill(self, position_bytes: int) -> bool:
        """Read a block from ``position_bytes``; False if the file holds no header there any more."""
        if self._typical_batch_bytes >= PAGE_SIZE_BYTES:
            block_bytes = HEADER_SIZE_BYTES
        else:
            # Most walks are short: they come from an index entry, a page away.
            block_bytes = self._next_block_bytes
            self._next_block_bytes = min(block_bytes * 4, _LARGEST_BLOCK_BYTES)
        block_bytes = min(block_bytes, self.end_position_bytes - position_bytes)
        self._block = self._log_file.read_at(block_bytes, position_bytes)
        self._block_start = position_bytes
        return len(self._block) >= HEADER_SIZE_BYTES

    def _is_zero_tail(self, position_bytes: int) -> bool:
        """Whether the file goes on with zeros, for a page at least or up to its end."""
        block_bytes = min(PAGE_SIZE_BYTES, self.end_position_bytes - position_bytes)
        return not self._log_file.read_at(block_bytes, position_bytes).strip(b"\0")

    def _error(
        self, position_bytes: int, base_offset: int, offset_delta: int, next_offset: int
    ) -> CorruptRecordError:
        # Raises by itself if the magic or the length is wrong.
        self._header(position_bytes)
        if base_offset < self._base_offset:
            found = (
                f"Expected offsets from {self._base_offset} on, as the file's name says, found a batch at "
                f"offset {base_offset}."
            )
        elif offset_delta < 0 or base_offset + offset_delta > MAX_OFFSET:
            found = f"Expected a last offset delta that leads to an offset, found {offset_delta}."
        else:
            found = f"Expected offsets from {next_offset} on, found a batch at offset {base_offset}."
        return CorruptRecordError(
            f"{found} The file is damaged here.",
            path=self._log_file.path,
            position_bytes=position_bytes,
            offset=base_offset,
        )


def read_batch(log_file: OpenFile, header: BatchHeader, limit_bytes: int) -> bytes:
    """Read one whole batch, header included, and check its CRC.

    Raises:
        BatchTooLargeError: It has more than ``limit_bytes``.
        DataLossError: The file has been cut short since the header was read.
        CorruptRecordError: The CRC does not match.
    """
    if header.size_bytes > limit_bytes:
        raise BatchTooLargeError(
            f"Found a record batch of {header.size_bytes} bytes, expected at most {limit_bytes}. If it is no "
            "damage, raise maxDecompressedBatchBytes.",
            path=log_file.path,
            position_bytes=header.position_bytes,
            offset=header.base_offset,
            last_offset=header.last_offset,
        )
    batch = log_file.read_at(header.size_bytes, header.position_bytes)
    if len(batch) < header.size_bytes:
        raise DataLossError(
            f"Expected a record batch of {header.size_bytes} bytes, found {len(batch)}: the file was cut "
            "short while it was read. Read again.",
            path=log_file.path,
            position_bytes=header.position_bytes,
            offset=header.base_offset,
            last_offset=header.last_offset,
        )
    if not batch_crc_matches(batch):
        raise corrupt_batch(log_file.path, header)
    return batch


def corrupt_batch(path: str, header: BatchHeader) -> CorruptRecordError:
    """The error for a batch whose CRC does not match."""
    return CorruptRecordError(
        f"Expected the CRC {header.crc:08x} that the batch's header states, found another one: the batch is "
        "damaged. Restore the file from a replica or a backup.",
        path=path,
        position_bytes=header.position_bytes,
        end_position_bytes=header.end_position_bytes,
        offset=header.base_offset,
        last_offset=header.last_offset,
    )
