"""Reading a log file: single headers (`BatchProbe`), whole windows (`read_windows`), or a walk over headers (`BatchWalk`).

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
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from storage_core.errors import BatchTooLargeError, CorruptRecordError, DataLossError
from storage_core.record import batch_timestamps
from storage_core.record.batch_header import (
    CODEC_MASK,
    CRC_LAYOUTS,
    HEADER_SIZE_BYTES,
    LENGTH_AND_MAGIC,
    LENGTH_POSITION,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_V2,
    MAX_OFFSET,
    MAX_OFFSET_DELTA,
    MINIMUM_LEGACY_LENGTH,
    MINIMUM_LENGTHS,
    TRANSACTIONAL_FLAG,
    batch_crc_matches,
    header_rows,
    parse_batch_header,
    unpack_message,
)
from storage_core.record.batch_window import walk_messages, walk_window
from storage_core.record.section import PADDING_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.filesystem import OpenFile
    from storage_core.record.batch_header import BatchHeader
    from storage_core.record.batch_window import BatchWindow

__all__ = [
    "PAGE_SIZE_BYTES",
    "USUAL_MAX_BATCH_BYTES",
    "WINDOW_BYTES",
    "BatchProbe",
    "BatchWalk",
    "SkimmedBatch",
    "read_batch",
    "read_windows",
]


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

    __slots__ = (
        "_allowance_bytes",
        "_block",
        "_block_start",
        "_checked",
        "_furthest_bytes",
        "_log_file",
        "_proof_allowance_bytes",
        "end_bytes",
        "is_exhausted",
    )

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
            crc_start = position_bytes + CRC_LAYOUTS[header.magic].start
            known = self.crc(header.magic, crc_start, header.end_position_bytes) == header.crc
            self._checked[position_bytes] = known
        return known

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


def read_batch(log_file: OpenFile, header: BatchHeader, limit_bytes: int) -> bytes:
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
        raise CorruptRecordError(
            f"Expected the CRC {header.crc:08x} that the batch's header states, found another one: the batch is "
            "damaged. Restore the file from a replica or a backup.",
            path=log_file.path,
            position_bytes=header.position_bytes,
            end_position_bytes=header.end_position_bytes,
            offset=header.base_offset,
            last_offset=header.last_offset,
        )
    return batch


WINDOW_BYTES: Final = 4 << 20


def read_windows(
    log_file: OpenFile,
    position_bytes: int,
    end_position_bytes: int,
    lowest_offset: int,
    *,
    max_batch_bytes: int,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[BatchWindow]:
    """Read a log file from a batch boundary on as windows of whole batches, in bounded memory.

    A window's bytes are valid until the next window is read. No whole batch begins after the last window,
    which may be empty.

    Args:
        log_file: The file.
        position_bytes: The boundary.
        end_position_bytes: Where the file ends.
        lowest_offset: The offset after the previous batch.
        max_batch_bytes: The largest batch for which memory is taken.
        window_bytes: How much to read at once, unless a batch is larger.

    Raises:
        BatchTooLargeError: An undamaged batch is larger than ``max_batch_bytes``.
    """
    buffer = np.empty(window_bytes + PADDING_BYTES, np.uint8)
    needed_bytes = 0
    while True:
        size_bytes = min(max(window_bytes, needed_bytes), end_position_bytes - position_bytes)
        if size_bytes + PADDING_BYTES > len(buffer):
            buffer = np.empty(size_bytes + PADDING_BYTES, np.uint8)
        filled_bytes = log_file.read_into(buffer.data[:size_bytes], position_bytes)
        if filled_bytes < size_bytes:
            # The file was truncated meanwhile.
            size_bytes, end_position_bytes = filled_bytes, position_bytes + filled_bytes
        window = walk_window(log_file.path, position_bytes, buffer, size_bytes, lowest_offset)
        yield window
        if len(window.starts):
            last = window.headers[-1]
            lowest_offset = int(last["base_offset"]) + int(last["last_offset_delta"]) + 1
        position_bytes += window.end
        needed_bytes = size_bytes - window.end + window.missing_bytes if window.missing_bytes else 0
        is_at_end = position_bytes + size_bytes - window.end >= end_position_bytes
        if window.error is not None or window.is_blank_behind or is_at_end:
            return
        if needed_bytes > max_batch_bytes and needed_bytes <= end_position_bytes - position_bytes:
            if _is_damaged(log_file, window, end_position_bytes):
                return
            raise BatchTooLargeError(
                f"Expected a record batch of at most {max_batch_bytes} bytes, found one of {needed_bytes}. Raise "
                "max.message.bytes to read it.",
                path=log_file.path,
                position_bytes=position_bytes,
            )
        if needed_bytes > end_position_bytes - position_bytes:
            # The last batch is torn, or its length is damaged.
            return


def _is_damaged(log_file: OpenFile, window: BatchWindow, end_position_bytes: int) -> bool:
    """Whether the batch after a window has a wrong CRC. The batch is not held in memory."""
    probe = BatchProbe(log_file, end_position_bytes)
    header = probe.header(window.position_bytes + window.end)
    if header is None:
        return True
    crc_start = header.position_bytes + CRC_LAYOUTS[header.magic].start
    return probe.crc(header.magic, crc_start, header.end_position_bytes) != header.crc


SkimmedBatch: TypeAlias = tuple[int, int, int, int, int]
"""The fields of a batch that look-ups compare: position, end position, base offset, last offset, max timestamp.

A plain tuple, because one is made for each batch of a walk. Unpack it to give its fields names.

A wrapper's base offset is a lower bound.
"""
PAGE_SIZE_BYTES: Final = 4096
USUAL_MAX_BATCH_BYTES: Final = 2 * 1024 * 1024
"""Batches are hardly ever larger: brokers accept 1 MiB by default. How far searches and proofs look; not a limit."""
_LARGEST_BLOCK_BYTES: Final = 64 * 1024
# Base offset, batch length, magic, last offset delta and max timestamp of a v2 header.
_SKIMMED: Final = struct.Struct(">qi4xb4x2xi8xq")
_SMALLEST_V2_LENGTH: Final = MINIMUM_LENGTHS[MAGIC_V2]
# The lower byte of a v2 header's attributes.
_ATTRIBUTES_POSITION: Final = 22
# The first 17 bytes tell the format. A broker ignores a shorter rest.
_FORMAT_BYTES: Final = 17


class BatchWalk:
    """Reads the batch headers of one open log file.

    Args:
        log_file: The file.
        base_offset: The segment's base offset: no batch may begin below it.
        end_position_bytes: Where the file ends for this walk.
    """

    __slots__ = (
        "_base_offset",
        "_block",
        "_block_places",
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
        # Positions of batches at which blocks began, back to one that is at least a usual batch away.
        self._block_places: deque[int] = deque()

    def skim(self, position_bytes: int = 0) -> Iterator[SkimmedBatch]:
        """Walk from a batch boundary and yield only the fields that look-ups compare.

        Raises:
            CorruptRecordError: The bytes are no batch, or offsets do not ascend.
        """
        unpack = _SKIMMED.unpack_from
        next_offset = self._base_offset
        last_start = self.end_position_bytes - _FORMAT_BYTES - 1
        while position_bytes <= last_start:
            start = position_bytes - self._block_start
            if start < 0 or start + HEADER_SIZE_BYTES > len(self._block):
                self._fill(position_bytes)
                last_start = self.end_position_bytes - _FORMAT_BYTES - 1
                if position_bytes > last_start:
                    return
            base_offset, length, magic, offset_delta, max_timestamp_ms = unpack(
                self._block, position_bytes - self._block_start
            )
            batch_end = position_bytes + LOG_OVERHEAD_BYTES + length
            if batch_end > self.end_position_bytes and length >= MINIMUM_LEGACY_LENGTH:
                return
            last_offset = base_offset + offset_delta
            if (
                magic != MAGIC_V2
                or length < _SMALLEST_V2_LENGTH
                or offset_delta < 0
                or base_offset < next_offset
                or last_offset > MAX_OFFSET
            ):
                if not 0 <= magic < MAGIC_V2 or length < MINIMUM_LENGTHS[magic] or base_offset < next_offset:
                    if length == 0 and self._is_zero_tail(position_bytes):
                        return
                    raise self._error(position_bytes, base_offset, offset_delta, next_offset)
                messages = self._messages(position_bytes, next_offset)
                if messages:
                    yield from messages
                    self._typical_batch_bytes = (messages[-1][1] - position_bytes) // len(messages)
                    next_offset, position_bytes = messages[-1][3] + 1, messages[-1][1]
                    continue
                # The block does not hold all of it.
                last_offset, _, _, _, attributes, max_timestamp_ms = unpack_message(
                    self._block, position_bytes - self._block_start
                )
                if attributes & CODEC_MASK:
                    base_offset = max(next_offset, last_offset - MAX_OFFSET_DELTA)
            yield position_bytes, batch_end, base_offset, last_offset, max_timestamp_ms
            batch_bytes = batch_end - position_bytes
            # The first batch counts fully: a proof of an index entry reads only one or two.
            self._typical_batch_bytes += (batch_bytes - self._typical_batch_bytes) // (
                4 if self._typical_batch_bytes else 1
            )
            next_offset = last_offset + 1
            position_bytes = batch_end

    def batches(self, position_bytes: int = 0) -> Iterator[BatchHeader]:
        """Walk from a batch boundary and yield whole headers; raises what `skim` raises."""
        for position, _, base_offset, _, _ in self.skim(position_bytes):
            yield self._header(position, base_offset)

    def batch_at(self, position_bytes: int) -> BatchHeader | None:
        """The header at a batch boundary; None if a walk would end there. Raises what `skim` raises."""
        return next(self.batches(position_bytes), None)

    def first_reaching(self, offset: int, position_bytes: int) -> BatchHeader | None:
        """The first batch from a boundary on whose last offset is at least ``offset``."""
        for position, _, base_offset, last_offset, _ in self.skim(position_bytes):
            if last_offset >= offset:
                return self._header(position, base_offset)
        return None

    def is_proven(self, position_bytes: int, start_position_bytes: int) -> bool:
        """Whether CRCs confirm the last walk between two boundaries: then the second one is not inside a value.

        A walk trusts the lengths that it hops over, and a damaged length may lead into a record's value.
        Only batches within `USUAL_MAX_BATCH_BYTES` are checked.
        """
        far_bytes = position_bytes - USUAL_MAX_BATCH_BYTES
        for place in self._block_places:
            if start_position_bytes < place <= far_bytes:
                start_position_bytes = place
        return self.are_crcs_right(start_position_bytes, position_bytes)

    def are_crcs_right(self, position_bytes: int, end_position_bytes: int) -> bool:
        """Whether all batches from one boundary to another have a matching CRC."""
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
            if length < MINIMUM_LEGACY_LENGTH or end > len(data) or not batch_crc_matches(data[start:end]):
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

    def transactional_header(self, batch: SkimmedBatch) -> BatchHeader | None:
        """The whole header of a skimmed batch; None if the batch is not transactional."""
        position_bytes, _, base_offset, _, _ = batch
        start = self._start_in_block(position_bytes)
        if (
            self._block[start + MAGIC_POSITION] != MAGIC_V2
            or not self._block[start + _ATTRIBUTES_POSITION] & TRANSACTIONAL_FLAG
        ):
            return None
        return self._header(position_bytes, base_offset)

    def first_offset(self, header: BatchHeader, limit_bytes: int) -> int:
        """The offset of a batch's first record. A wrapper is read and decoded for it.

        Raises:
            BatchTooLargeError: It is, or inflates to, more than ``limit_bytes``.
            CorruptRecordError: It is damaged.
        """
        if not header.is_wrapper:
            return header.base_offset
        batch = read_batch(self._log_file, header, limit_bytes)
        offsets, _ = batch_timestamps(batch, header, path=self._log_file.path, limit_bytes=limit_bytes)
        return int(offsets[0])

    def _header(self, position_bytes: int, base_offset: int) -> BatchHeader:
        start = self._start_in_block(position_bytes)
        header = parse_batch_header(self._block, start, position_bytes, path=self._log_file.path)
        return header if header.base_offset == base_offset else header.with_lower_base(base_offset)

    def _messages(self, position_bytes: int, next_offset: int) -> list[SkimmedBatch]:
        """The whole messages of format v0 and v1 in the block, from a position on, while their offsets ascend.

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
        return list(zip(*(column[:count].tolist() for column in columns), strict=True))

    def _start_in_block(self, position_bytes: int) -> int:
        """Where a skimmed batch begins in the block, which may have to be read again."""
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
        """Whether the file continues with zeros, for at least a page or up to its end."""
        block_bytes = min(PAGE_SIZE_BYTES, self.end_position_bytes - position_bytes)
        return not self._log_file.read_at(block_bytes, position_bytes).strip(b"\0")

    def _error(
        self, position_bytes: int, base_offset: int, offset_delta: int, next_offset: int
    ) -> CorruptRecordError:
        # This raises if the magic or the length is wrong.
        header = self._header(position_bytes, base_offset)
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
