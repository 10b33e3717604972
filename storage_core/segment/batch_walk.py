"""A walk over the batch headers of a log file, and reading one of its batches.

Each header says how long its batch is, so a walk hops from header to header without reading what is
between them. Small batches are read in blocks that hold many headers; of a batch larger than a page,
only the header is read.

A walk ends without an error where a broker would say that the file ends: at too few bytes to
tell the format, at a batch that reaches beyond the end (a torn append), at zeros (a preallocated
tail). At anything else that is no batch it raises: a walk never hops over damage.

A message of format v0 or v1 counts as a batch of its own. A wrapper, which holds other messages, states
only its last offset: its offsets are taken to begin after the previous batch, or at the segment's base
offset where the walk begins.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from storage_core.errors import BatchTooLargeError, CorruptRecordError, DataLossError
from storage_core.record import batch_timestamps
from storage_core.record.batch_header import (
    CODEC_MASK,
    HEADER_SIZE_BYTES,
    LENGTH_AND_MAGIC,
    LENGTH_POSITION,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_V2,
    MAX_OFFSET,
    MAX_OFFSET_DELTA,
    MIN_LENGTH,
    MIN_LENGTH_BY_MAGIC,
    MIN_V2_LENGTH,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    batch_crc_matches,
    header_rows,
    parse_batch_header,
    unpack_message,
)
from storage_core.record.batch_window import walk_messages
from storage_core.segment.batch_windows import WINDOW_BYTES, read_windows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from storage_core.filesystem import ReadableFile


def read_batch(log_file: ReadableFile, header: BatchHeader, limit_bytes: int) -> bytes:
    """Read one whole batch, header included, and check its CRC.

    Raises:
        BatchTooLargeError: It has more than ``limit_bytes``.
        DataLossError: The file has been cut short since the header was read.
        CorruptRecordError: The CRC does not match.
    """
    if header.size_bytes > limit_bytes:
        raise BatchTooLargeError(
            f"Found a record batch of {header.size_bytes} bytes, expected at most {limit_bytes}. If it is "
            "genuine, raise maxDecompressedBatchBytes.",
            **header.error_location(log_file.path),
        )
    batch = log_file.read_at(header.size_bytes, header.position_bytes)
    if len(batch) < header.size_bytes:
        raise DataLossError(
            f"Expected a record batch of {header.size_bytes} bytes, found {len(batch)}: the file was cut "
            "short while it was read. Read again.",
            **header.error_location(log_file.path),
        )
    if not batch_crc_matches(batch):
        raise CorruptRecordError(
            f"Expected the CRC {header.crc:08x} that the batch's header states, found another one: the batch is "
            "damaged. Restore the file from a replica or a backup.",
            **header.error_location(log_file.path),
        )
    return batch


def record_timestamps(
    log_file: ReadableFile, header: BatchHeader, limit_bytes: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Read the offsets and the timestamps of a batch's records. This raises what `read_batch` raises."""
    batch = read_batch(log_file, header, limit_bytes)
    return batch_timestamps(batch, header, path=log_file.path, limit_bytes=limit_bytes)


class BatchSummary(NamedTuple):
    """The fields of a batch that look-ups compare. A wrapper's base offset is a lower bound."""

    position_bytes: int
    end_bytes: int
    base_offset: int
    last_offset: int
    max_timestamp_ms: int


# Calling the class would take three times as long.
_new_tuple: Final = tuple.__new__
PAGE_SIZE_BYTES: Final = 4096
USUAL_MAX_BATCH_BYTES: Final = 2 * 1024 * 1024
"""Batches are hardly ever larger: brokers accept 1 MiB by default. How far searches and proofs look; not a limit."""
_LARGEST_BLOCK_BYTES: Final = 64 * 1024
# Base offset, batch length, magic, last offset delta and max timestamp of a v2 header.
_SUMMARY: Final = struct.Struct(">qi4xb4x2xi8xq")
# The lower byte of a v2 header's attributes.
_ATTRIBUTES_POSITION: Final = 22
# The first 17 bytes tell the format. A broker ignores a shorter rest.
_FORMAT_BYTES: Final = 17


class BatchWalk:
    """Reads the batch headers of one open log file up to an end. No batch may begin below the base offset."""

    def __init__(self, log_file: ReadableFile, base_offset: int, end_position_bytes: int) -> None:
        self.end_position_bytes = end_position_bytes
        self._log_file = log_file
        self._base_offset = base_offset
        self._block = b""
        self._block_start = 0
        self._next_block_bytes = PAGE_SIZE_BYTES
        self._typical_batch_bytes = 0
        # Positions of batches at which blocks began, back to one that is at least a usual batch away.
        self._block_places: deque[int] = deque()

    def iter_summaries(self, position_bytes: int = 0) -> Iterator[BatchSummary]:
        """Walk from a batch boundary and yield only the fields that look-ups compare.

        Raises:
            CorruptRecordError: The bytes are no batch, or offsets do not ascend.
        """
        unpack, new_tuple = _SUMMARY.unpack_from, _new_tuple
        next_offset = self._base_offset
        last_start = self.end_position_bytes - _FORMAT_BYTES - 1
        while position_bytes <= last_start:
            start = position_bytes - self._block_start
            if start < 0 or start + HEADER_SIZE_BYTES > len(self._block):
                self._fill(position_bytes)
                last_start = self.end_position_bytes - _FORMAT_BYTES - 1
                if position_bytes > last_start:
                    return
                start = 0
            base_offset, length, magic, offset_delta, max_timestamp_ms = unpack(self._block, start)
            batch_end = position_bytes + LOG_OVERHEAD_BYTES + length
            if batch_end > self.end_position_bytes and length >= MIN_LENGTH:
                return
            last_offset = base_offset + offset_delta
            if (
                magic != MAGIC_V2
                or length < MIN_V2_LENGTH
                or offset_delta < 0
                or base_offset < next_offset
                or last_offset > MAX_OFFSET
            ):
                if (
                    not 0 <= magic < MAGIC_V2
                    or length < MIN_LENGTH_BY_MAGIC[magic]
                    or base_offset < next_offset
                ):
                    if length == 0 and self._is_zero_tail(position_bytes):
                        return
                    raise self._error(position_bytes, base_offset, offset_delta, next_offset)
                messages = self._messages(position_bytes, next_offset)
                if messages:
                    yield from messages
                    last = messages[-1]
                    self._typical_batch_bytes = (last.end_bytes - position_bytes) // len(messages)
                    next_offset, position_bytes = last.last_offset + 1, last.end_bytes
                    continue
                # The block does not hold all of it.
                last_offset, _, _, _, attributes, max_timestamp_ms = unpack_message(
                    self._block, position_bytes - self._block_start
                )
                if attributes & CODEC_MASK:
                    base_offset = max(next_offset, last_offset - MAX_OFFSET_DELTA)
            yield new_tuple(
                BatchSummary, (position_bytes, batch_end, base_offset, last_offset, max_timestamp_ms)
            )
            batch_bytes, typical_bytes = batch_end - position_bytes, self._typical_batch_bytes
            # The first batch counts fully: a proof of an index entry reads only one or two.
            self._typical_batch_bytes += (batch_bytes - typical_bytes) // (4 if typical_bytes else 1)
            next_offset = last_offset + 1
            position_bytes = batch_end

    def batches(self, position_bytes: int = 0) -> Iterator[BatchHeader]:
        """Walk from a batch boundary and yield whole headers. This raises what `iter_summaries` raises."""
        for batch in self.iter_summaries(position_bytes):
            yield self.header(batch.position_bytes, batch.base_offset)

    def batch_at(self, position_bytes: int) -> BatchHeader | None:
        """Return the header at a batch boundary.

        Returns:
            The header; None if a walk would end there.

        Raises:
            CorruptRecordError: The bytes are no batch.
        """
        return next(self.batches(position_bytes), None)

    def first_reaching(self, offset: int, position_bytes: int) -> BatchHeader | None:
        """Return the first batch from a boundary on whose last offset is at least ``offset``, or None."""
        for batch in self.iter_summaries(position_bytes):
            if batch.last_offset >= offset:
                return self.header(batch.position_bytes, batch.base_offset)
        return None

    def is_proven(self, position_bytes: int, start_position_bytes: int) -> bool:
        """Return True if CRCs confirm the last walk from one boundary to another, so that the second is not inside a value.

        A walk trusts the lengths that it hops over, and a damaged length may lead into a record's value.
        Only batches within `USUAL_MAX_BATCH_BYTES` are checked.
        """
        far_bytes = position_bytes - USUAL_MAX_BATCH_BYTES
        for place in self._block_places:
            if start_position_bytes < place <= far_bytes:
                start_position_bytes = place
        return self.are_crcs_right(start_position_bytes, position_bytes)

    def are_crcs_right(self, position_bytes: int, end_position_bytes: int) -> bool:
        """Return True if every batch from one boundary to another has a matching CRC."""
        size_bytes = end_position_bytes - position_bytes
        start = position_bytes - self._block_start
        if start >= 0 and start + size_bytes <= len(self._block):
            data = memoryview(self._block)[start : start + size_bytes]
        elif size_bytes <= _LARGEST_BLOCK_BYTES:
            data = memoryview(self._log_file.read_at(size_bytes, position_bytes))
        else:
            return self._are_crcs_of_many_right(position_bytes, end_position_bytes)
        start = 0
        while start + LENGTH_POSITION + LENGTH_AND_MAGIC.size <= len(data):
            length, _ = LENGTH_AND_MAGIC.unpack_from(data, start + LENGTH_POSITION)
            end = start + LOG_OVERHEAD_BYTES + length
            if length < MIN_LENGTH or end > len(data) or not batch_crc_matches(data[start:end]):
                return False
            start = end
        return start == size_bytes

    def _are_crcs_of_many_right(self, position_bytes: int, end_position_bytes: int) -> bool:
        while position_bytes < end_position_bytes:
            windows = read_windows(
                self._log_file,
                position_bytes,
                end_position_bytes,
                self._base_offset,
                max_batch_bytes=USUAL_MAX_BATCH_BYTES,
                window_bytes=min(WINDOW_BYTES, end_position_bytes - position_bytes),
            )
            try:
                for window in windows:
                    if len(window.crc_mismatches(np.arange(len(window.starts)))):
                        return False
                    position_bytes = window.position_bytes + window.end
            except BatchTooLargeError:
                # Its CRC matches, as `read_windows` has found without holding all of it.
                data = self._log_file.read_at(LENGTH_AND_MAGIC.size, position_bytes + LENGTH_POSITION)
                position_bytes += LOG_OVERHEAD_BYTES + LENGTH_AND_MAGIC.unpack(data)[0]
            else:
                break
        return position_bytes == end_position_bytes

    def transactional_header(self, batch: BatchSummary) -> BatchHeader | None:
        """Parse the header of a batch that the walk has just yielded.

        Returns:
            The header; None if the batch is not transactional.
        """
        start = self._start_in_block(batch.position_bytes)
        if (
            self._block[start + MAGIC_POSITION] != MAGIC_V2
            or not self._block[start + _ATTRIBUTES_POSITION] & TRANSACTIONAL_FLAG
        ):
            return None
        return self.header(batch.position_bytes, batch.base_offset)

    def first_offset(self, header: BatchHeader, limit_bytes: int) -> int:
        """Return the offset of a batch's first record. A wrapper is read and decoded for it.

        Raises:
            BatchTooLargeError: It is, or inflates to, more than ``limit_bytes``.
            CorruptRecordError: It is damaged.
        """
        if not header.is_wrapper:
            return header.base_offset
        offsets, _ = record_timestamps(self._log_file, header, limit_bytes)
        return int(offsets[0])

    def header(self, position_bytes: int, base_offset: int) -> BatchHeader:
        """Parse the header of a batch that the walk has yielded."""
        start = self._start_in_block(position_bytes)
        header = parse_batch_header(self._block, start, position_bytes, path=self._log_file.path)
        return header if header.base_offset == base_offset else header.with_base_offset(base_offset)

    def _messages(self, position_bytes: int, next_offset: int) -> list[BatchSummary]:
        """Parse the whole messages of format v0 and v1 in the block, from a position on, while their offsets ascend.

        The first one's offset is at least ``next_offset``.
        """
        block = np.frombuffer(self._block, np.uint8)
        end = min(len(block), self.end_position_bytes - self._block_start)
        places: list[int] = []
        end = walk_messages(block, position_bytes - self._block_start, end, places)
        if not places:
            return []
        starts = np.array(places, np.int64)
        headers = header_rows(block, starts, next_offset)
        base_offsets = headers["base_offset"].astype(np.int64)
        last_offsets = base_offsets + headers["last_offset_delta"]
        is_disordered = base_offsets[1:] <= last_offsets[:-1]
        count = int(is_disordered.argmax()) + 1 if is_disordered.any() else len(starts)
        borders = np.append(starts, end) + self._block_start
        columns = (borders[:-1], borders[1:], base_offsets, last_offsets, headers["max_timestamp_ms"])
        rows = (column[:count].tolist() for column in columns)
        return [_new_tuple(BatchSummary, each) for each in zip(*rows, strict=True)]

    def _start_in_block(self, position_bytes: int) -> int:
        """Return where a batch begins in the block, and read the block again if the batch is not in it."""
        start = position_bytes - self._block_start
        if start < 0 or start + HEADER_SIZE_BYTES > len(self._block):
            self._fill(position_bytes)
            start = 0
        return start

    def _fill(self, position_bytes: int) -> None:
        """Read a block from ``position_bytes``. It holds a whole header unless the file ends first."""
        if self._typical_batch_bytes >= PAGE_SIZE_BYTES:
            block_bytes = HEADER_SIZE_BYTES
        else:
            # Most walks are short: they begin at an index entry, a page or two away.
            block_bytes = self._next_block_bytes
            self._next_block_bytes = min(block_bytes * 2, _LARGEST_BLOCK_BYTES)
        block = self._log_file.read_at(
            min(block_bytes, self.end_position_bytes - position_bytes), position_bytes
        )
        if len(block) < block_bytes:
            # The file was truncated meanwhile.
            self.end_position_bytes = position_bytes + len(block)
            # The last message may be shorter than a v2 header.
            block += bytes(HEADER_SIZE_BYTES)
        self._block = block
        self._block_start = position_bytes
        places = self._block_places
        while places and places[-1] >= position_bytes:
            places.pop()
        places.append(position_bytes)
        while len(places) > 1 and places[1] <= position_bytes - USUAL_MAX_BATCH_BYTES:
            places.popleft()

    def _is_zero_tail(self, position_bytes: int) -> bool:
        """Return True if the file continues with zeros, for at least a page or up to its end."""
        block_bytes = min(PAGE_SIZE_BYTES, self.end_position_bytes - position_bytes)
        return not self._log_file.read_at(block_bytes, position_bytes).strip(b"\0")

    def _error(
        self, position_bytes: int, base_offset: int, offset_delta: int, next_offset: int
    ) -> CorruptRecordError:
        # This raises if the magic or the length is wrong.
        header = self.header(position_bytes, base_offset)
        if base_offset < self._base_offset:
            found = (
                f"Expected offsets from {self._base_offset} on, as the file's name says, found a batch at "
                f"offset {base_offset}."
            )
        elif header.magic == MAGIC_V2 and (offset_delta < 0 or base_offset + offset_delta > MAX_OFFSET):
            found = f"Expected a last offset delta from 0 up to the largest offset, found {offset_delta}."
        else:
            found = f"Expected offsets from {next_offset} on, found a batch at offset {base_offset}."
        return CorruptRecordError(
            f"{found} The file is damaged here.",
            path=self._log_file.path,
            position_bytes=position_bytes,
            offset=base_offset,
        )
