"""Telling the batches of a log from damage, and finding where the log goes on after it.

A batch belongs to the log if it is whole, its CRC is right, and its offsets follow those of the batch before it. After
anything else the log goes on:

1. at the end of the bad batch, if that is certain: its CRC is right, and only its offsets or its size are wrong;
2. at the end that its header declares, if a batch of the log begins there, or headers lead from there to one, and far
   from it if they pass a whole batch that does not fit. Batches before that end count only if headers lead from them
   exactly to it: otherwise they are the value of a record;
3. elsewhere at the next bytes that are a whole batch with a right CRC and offsets that fit.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import numpy.typing as npt

from storage_core.errors import SegmentLogError
from storage_core.record.batch_header import (
    CODEC_MASK,
    CRC_LAYOUTS,
    HEADER_DTYPE,
    HEADER_SIZE_BYTES,
    KEY_LENGTH_POSITIONS,
    KNOWN_ATTRIBUTES,
    LEGACY_CODEC_COUNT,
    LENGTH_BYTES,
    LENGTH_DTYPE,
    LENGTH_POSITION,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_V2,
    MAX_OFFSET_DELTA,
    MESSAGE_DTYPE,
    MESSAGE_SIZE_BYTES,
    MIN_LENGTH_BY_MAGIC,
    gather,
)
from storage_core.record.varint import varint_bytes
from storage_core.segment.batch_walk import USUAL_MAX_BATCH_BYTES, record_timestamps
from storage_core.segment.damage import (
    MAX_ENCODABLE_BATCH_BYTES,
    BatchProbe,
    DamagedRange,
    OffsetLimits,
    known_offset,
    reason_at,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.filesystem import ReadableFile
    from storage_core.record.batch_header import BatchHeader


TailKind = Literal["none", "blank", "cut", "bad"]
"""What follows the last valid batch of a file: nothing, only zeros, the beginning of a batch, or other bytes.

A crash leaves the first three; the last one is mostly damage.
"""
LARGEST_DAMAGED_TAIL: Final = 65_536
"""How many batches at the end of a file may be damaged although their headers are not."""
# A transaction marker is a batch of its own; current brokers write 78 bytes.
_LARGEST_MARKER_BYTES: Final = 256
_FIRST_BLOCK_BYTES: Final = 4096
_LARGEST_BLOCK_BYTES: Final = 1024 * 1024
# At most this many damaged batches in a row may have undamaged headers.
_LONGEST_DAMAGED_RUN: Final = 64
# At most this many offsets may be missing between two batches that count as neighbours.
_LARGEST_OFFSET_GAP: Final = 1 << 16
# The cost of looking at one header, in bytes of CRC.
_HEADER_COST_BYTES: Final = 1024
_NULL_LENGTH: Final = -1
_CRC_BYTES: Final = 4
# At how many places the end of a batch is looked for by its CRC.
_MOST_ENDS: Final = 64
_Bytes = npt.NDArray[np.uint8]
_Int64Array = npt.NDArray[np.int64]


class DamageScanner:
    """Divides one open log file into batches of the log and damaged ranges.

    The division is the same wherever a reader begins. No CRC covers a batch's base offset, so of two batches out of
    order, one is an outlier and counts as damage.

    No batch reaches the end offset: the next segment's base offset, or the log end offset. It is None if the
    segment's end is not known yet.
    """

    def __init__(
        self,
        log_file: ReadableFile,
        base_offset: int,
        end_bytes: int,
        end_offset: int | None,
        max_batch_bytes: int,
    ) -> None:
        self.end_bytes = end_bytes
        self.probe = BatchProbe(log_file, end_bytes)
        self.limits = OffsetLimits(base_offset, end_offset)
        self._log_file = log_file
        self._max_batch_bytes = max_batch_bytes
        # A batch that is found by searching must have offsets that a segment can hold.
        search_end_offset = base_offset + MAX_OFFSET_DELTA + 1
        if end_offset is not None:
            search_end_offset = min(end_offset, search_end_offset)
        self._search_limits = OffsetLimits(base_offset, search_end_offset)
        # A whole batch with other offsets than these is taken for random bytes, and does not hide what is in it.
        self._content_limits = OffsetLimits(0, base_offset + MAX_OFFSET_DELTA + 1)

    def log_batch_at(self, position_bytes: int, lowest_offset: int) -> BatchHeader | None:
        """Return the batch at a boundary if it is one of the log's, or None.

        ``lowest_offset`` is the offset after the batch before.
        """
        header = self._valid_batch_at(position_bytes, lowest_offset, self.limits)
        if header is None or self._is_outlier(header, lowest_offset):
            return None
        return header

    def next_log_batch(self, position_bytes: int, lowest_offset: int) -> BatchHeader | None:
        """Find the first batch of the log at or after a boundary, or None."""
        found = self.log_batch_at(position_bytes, lowest_offset)
        while found is None and position_bytes < self.end_bytes:
            self.probe.advance_to(position_bytes)
            next_position = self._position_after_damage(position_bytes, lowest_offset)
            if next_position is None:
                return None
            position_bytes = next_position
            found = self.log_batch_at(position_bytes, lowest_offset)
        return found

    def damage_at(self, position_bytes: int, lowest_offset: int) -> DamagedRange:
        """Return the damaged range that begins at a boundary without a batch of the log."""
        error = self._reason(position_bytes, lowest_offset)
        found = self.next_log_batch(position_bytes, lowest_offset)
        if found is not None:
            end_bytes, end_offset = found.position_bytes, self._first_offset(found)
        else:
            end_bytes = self.end_bytes
            end_offset = lowest_offset if self.limits.end_offset is None else self.limits.end_offset
        end_offset = max(lowest_offset, end_offset)
        return DamagedRange(
            self._log_file.path,
            position_bytes,
            end_bytes,
            lowest_offset,
            end_offset,
            str(error.args[0]),
            type(error),
            # A marker takes an offset.
            end_offset > lowest_offset
            and self._may_hold_markers(position_bytes, end_bytes, lowest_offset, end_offset),
        )

    def items(self, position_bytes: int, lowest_offset: int) -> Iterator[BatchHeader | DamagedRange]:
        """Yield the batches of the log from a boundary on, and the damaged ranges between them.

        Zeros up to the end are preallocated space, unless offsets are missing there. In a segment whose end is
        not known yet, anything else after the last batch is a torn append, which is no damage either.
        """
        while position_bytes < self.end_bytes:
            header = self.log_batch_at(position_bytes, lowest_offset)
            if header is None:
                end_offset = self.limits.end_offset
                if (end_offset is None or lowest_offset >= end_offset) and self.is_blank(position_bytes):
                    return
                damage = self.damage_at(position_bytes, lowest_offset)
                if damage.end_bytes == self.end_bytes and end_offset is None:
                    return
                yield damage
                position_bytes = damage.end_bytes
            else:
                yield header
                position_bytes, lowest_offset = header.end_position_bytes, header.next_offset

    def is_blank(self, position_bytes: int) -> bool:
        """Return True if only zeros follow up to the end."""
        return self._skip_zeros(position_bytes) is None

    def tail_kind(self, position_bytes: int) -> TailKind:
        """Return what follows the last valid batch, which ends here."""
        if position_bytes >= self.end_bytes:
            return "none"
        if self.is_blank(position_bytes):
            return "blank"
        header = self.probe.header(position_bytes)
        if header is None:
            return "cut" if self.end_bytes - position_bytes < LOG_OVERHEAD_BYTES else "bad"
        return "cut" if header.end_position_bytes > self.end_bytes else "bad"

    def declared_end(self, position_bytes: int, next_offset: int) -> int:
        """Return the offset after the batches that are declared from here on, one directly after the other."""
        for _ in range(LARGEST_DAMAGED_TAIL):
            header = self.probe.header(position_bytes)
            if (
                header is None
                or header.base_offset != next_offset
                or header.record_count != header.last_offset_delta + 1
            ):
                break
            position_bytes, next_offset = header.end_position_bytes, header.next_offset
        return next_offset

    def lost_after(self, position_bytes: int, next_offset: int) -> str | None:
        """Say from where on whole batches follow the last valid one, in words for an error message.

        A whole batch is not torn: neither one directly after the last valid batch, even if its offsets do not fit, nor one
        after the farthest end of the torn batches. If too many bytes look like batches to check them all, one may be whole.

        Returns:
            Such as "from a complete batch at byte 207 on"; None if the end of the file is a torn append.
        """
        found = self.next_log_batch(position_bytes, next_offset) or self._intact_batch_at(position_bytes)
        if found is None and not self.probe.is_exhausted:
            after_bytes = self.farthest_end(position_bytes)
            found = self.next_log_batch(after_bytes, self.limits.base_offset) or self._intact_batch_at(
                after_bytes
            )
        if found is not None:
            return f"from a complete batch at byte {found.position_bytes} on"
        if self.probe.is_exhausted:
            return "possibly complete batches: too many bytes look like one to be sure"
        return None

    def is_intact(self, position_bytes: int) -> bool:
        """Return True if there is a whole batch with a matching CRC here, whatever its offsets."""
        return self._intact_batch_at(position_bytes) is not None

    def farthest_end(self, position_bytes: int) -> int:
        """Return how far the bad batches may reach that begin at a position, one directly after the other.

        The end of each is that by its CRC, or else by its length.
        """
        position_bytes = self._end_by_crc(position_bytes) or self._end_by_length(position_bytes)
        for _ in range(_LONGEST_DAMAGED_RUN):
            header = self.probe.header(position_bytes)
            if header is None or self.probe.is_crc_right(header):
                break
            position_bytes = self._end_by_crc(position_bytes) or header.end_position_bytes
        return position_bytes

    def _intact_batch_at(self, position_bytes: int) -> BatchHeader | None:
        header = self.probe.header(position_bytes)
        return header if header is not None and self.probe.is_crc_right(header) else None

    def _valid_batch_at(
        self, position_bytes: int, lowest_offset: int, limits: OffsetLimits
    ) -> BatchHeader | None:
        """Return the batch at a position if its CRC is right, its size within the limit, and its offsets fit, or None."""
        header = self.probe.header(position_bytes)
        if header is None or header.size_bytes > self._max_batch_bytes:
            return None
        if not limits.follows(header, lowest_offset):
            return None
        return header.with_base_offset(lowest_offset) if self.probe.is_crc_right(header) else None

    def _reason(self, position_bytes: int, lowest_offset: int) -> SegmentLogError:
        error = reason_at(self.probe, self.limits, position_bytes, lowest_offset, self._max_batch_bytes)
        if error is not None:
            return error
        # Nothing is wrong with the batch itself: the next one proves its offsets wrong.
        header = self.probe.header(position_bytes)
        following = header and self.probe.header(header.end_position_bytes)
        return self.limits.disorder(header, following, self.probe.path)

    def _is_outlier(self, header: BatchHeader, lowest_offset: int) -> bool:
        """Return True if the next batch proves a batch's offsets wrong, instead of the other way round."""
        following = self.probe.header(header.end_position_bytes)
        if following is None or self.limits.follows(following, header.next_offset):
            return False
        if not self.limits.follows(following, lowest_offset) or not self.probe.is_crc_right(following):
            return False
        if (following.last_offset, following.crc) == (header.last_offset, header.crc):
            # The same batch twice.
            return False
        if not header.is_wrapper:
            if header.base_offset == lowest_offset:
                return False
            if (
                not following.is_wrapper
                and lowest_offset + header.last_offset_delta + 1 == following.base_offset
            ):
                return True
        third = self._intact_batch_at(following.end_position_bytes)
        if third is None:
            return not header.is_wrapper
        if not (following.is_wrapper or third.is_wrapper):
            filled_offset = header.next_offset + following.last_offset_delta + 1
            if filled_offset == third.base_offset:
                return False
        return self.limits.follows(third, following.next_offset)

    def _first_offset(self, header: BatchHeader) -> int:
        """Return the offset of a batch's first record. A wrapper is decoded for it."""
        if not header.is_wrapper:
            return header.base_offset
        try:
            offsets, _ = record_timestamps(self._log_file, header, self._max_batch_bytes)
        except SegmentLogError:
            return header.last_offset
        return int(offsets[0])

    def _may_hold_markers(
        self, position_bytes: int, end_bytes: int, lowest_offset: int, end_offset: int
    ) -> bool:
        """Return True if a damaged range can hold a batch as small as a marker.

        It cannot if the headers in it, back to back, account for every byte and every offset: then the lengths
        are right, whatever else is wrong.
        """
        while position_bytes < end_bytes:
            header = self.probe.header(position_bytes)
            if header is None or header.is_wrapper or header.base_offset != lowest_offset:
                return True
            if header.size_bytes <= _LARGEST_MARKER_BYTES and header.last_offset_delta == 0:
                return True
            position_bytes, lowest_offset = header.end_position_bytes, header.next_offset
        return (position_bytes, lowest_offset) != (end_bytes, end_offset)

    # Where the log goes on.

    def _position_after_damage(self, position_bytes: int, lowest_offset: int) -> int | None:
        """Return where to continue after a position without a batch of the log.

        Returns:
            A position where a valid batch begins or the damage continues; None if nothing follows.
        """
        bad = self.probe.header(position_bytes)
        if bad is not None and self.probe.is_crc_right(bad):
            # Only its offsets or its size are wrong: its end is certain.
            return bad.end_position_bytes if bad.end_position_bytes < self.end_bytes else None
        end_bytes = self._end_by_length(position_bytes)
        next_batch = self._batch_led_to(end_bytes, lowest_offset)
        if not self._leads_far(end_bytes):
            end_by_crc = self._end_by_crc(position_bytes)
            if end_by_crc is not None:
                return end_by_crc if end_by_crc < self.end_bytes else None
        if next_batch is None and self._chain(end_bytes)[0] != self.end_bytes:
            return self._first_valid_batch(position_bytes, lowest_offset)
        if end_bytes in (self._end_by_fields(position_bytes, magic) for magic in range(MAGIC_V2)):
            within = None
        else:
            within = self._batch_within(position_bytes, end_bytes, lowest_offset, next_batch)
        if within is None and end_bytes < self.end_bytes:
            return end_bytes
        return within

    def _leads_far(self, position_bytes: int) -> bool:
        """Return True if headers lead to the end of the file, or through more batches than a value may hold."""
        end_bytes, count = self._chain(position_bytes)
        return count == _LONGEST_DAMAGED_RUN or end_bytes == self.end_bytes

    def _chain(self, position_bytes: int) -> tuple[int, int]:
        """Follow the headers of whole batches, back to back, while their offsets ascend.

        Returns:
            Where the last batch ends, in bytes; and how many batches there are.
        """
        lowest_offset = 0
        for count in range(_LONGEST_DAMAGED_RUN):
            header = self.probe.header(position_bytes)
            if header is None or not self.limits.follows(header, lowest_offset):
                return position_bytes, count
            if header.end_position_bytes > self.end_bytes:
                return position_bytes, count
            position_bytes, lowest_offset = header.end_position_bytes, header.next_offset
        return position_bytes, _LONGEST_DAMAGED_RUN

    def _end_by_length(self, position_bytes: int) -> int:
        """Return the end of a batch that its length states, whatever else is damaged."""
        length = self.probe.read_at(LENGTH_BYTES, position_bytes + LENGTH_POSITION)
        return position_bytes + LOG_OVERHEAD_BYTES + max(0, int.from_bytes(length, "big", signed=True))

    def _end_by_fields(self, position_bytes: int, magic: int) -> int | None:
        """Return the end of a message of format v0 or v1 by the lengths of its key and its value, or None.

        The value ends the message, so batches in it may lead to its end, too.
        """
        end_bytes = position_bytes + KEY_LENGTH_POSITIONS[magic]
        for _ in range(2):
            length = int.from_bytes(self.probe.read_at(LENGTH_BYTES, end_bytes), "big", signed=True)
            end_bytes += LENGTH_BYTES + max(length, 0)
            if length < _NULL_LENGTH or end_bytes > self.end_bytes:
                return None
        return end_bytes

    def _end_by_crc(self, position_bytes: int) -> int | None:
        """Return the end for which the CRC of a bad batch is right: no CRC covers a length, or a magic.

        Returns:
            Where the batch ends and another one may begin; None if more than its length and its magic is damaged.
        """
        header = self.probe.read_at(HEADER_SIZE_BYTES, position_bytes)
        if len(header) < HEADER_SIZE_BYTES or not any(header):
            # A header of zeros is no batch: to look for its end would use up the allowance for proofs.
            return None
        magic = header[MAGIC_POSITION]
        ends = (
            self._end_by_crc_of(position_bytes, header, each)
            for each in ((magic, MAGIC_V2) if magic < MAGIC_V2 else (MAGIC_V2,))
        )
        return next((end_bytes for end_bytes in ends if end_bytes is not None), None)

    def _end_by_crc_of(self, position_bytes: int, header: bytes, magic: int) -> int | None:
        """Return the end for which the CRC is right if the batch has a given format, or None."""
        layout = CRC_LAYOUTS[magic]
        stated = int.from_bytes(header[layout.position : layout.position + _CRC_BYTES], "big")
        if magic < MAGIC_V2:
            end_by_fields = self._end_by_fields(position_bytes, magic)
            ends = iter(() if end_by_fields is None else (end_by_fields,))
        else:
            last_bytes = min(position_bytes + USUAL_MAX_BATCH_BYTES, self.end_bytes)
            starts = self._candidates(position_bytes + HEADER_SIZE_BYTES, last_bytes)
            ends = itertools.chain(itertools.islice(starts, _MOST_ENDS), [last_bytes])
        start_bytes, crc = position_bytes + layout.start, 0
        for end_bytes in ends:
            if not self.probe.charge_proof(end_bytes - start_bytes):
                break
            crc = self.probe.crc(magic, start_bytes, end_bytes, crc)
            if crc == stated:
                return end_bytes
            start_bytes = end_bytes
        return None

    def _batch_led_to(self, position_bytes: int, lowest_offset: int) -> BatchHeader | None:
        """Return the first valid batch that headers lead to from a position on, or None.

        Several batches in a row may be damaged although the lengths in their headers are not. After a whole batch that does
        not fit, headers must also lead far from the batch found: they may have led into a stray copy.
        """
        is_stray = False
        for _ in range(_LONGEST_DAMAGED_RUN):
            found = self._valid_batch_at(position_bytes, lowest_offset, self.limits)
            header = self.probe.header(position_bytes)
            if found is not None or header is None:
                return None if is_stray and not self._leads_far(position_bytes) else found
            # A whole batch here does not fit.
            is_stray |= self.probe.is_crc_right(header)
            position_bytes = header.end_position_bytes
        return None

    def _batch_within(
        self, position_bytes: int, end_bytes: int, lowest_offset: int, next_batch: BatchHeader | None
    ) -> int | None:
        """Find where a batch of the log begins before the end that a bad one states, or None."""
        limits = self._search_limits
        if next_batch is not None:
            following = self.probe.header(end_bytes)
            # The next one may be damaged, but its offsets most likely are not.
            if following is None or not self.limits.follows(following, lowest_offset):
                following = next_batch
            end_offset = min(known_offset(following), known_offset(next_batch))
            limits = OffsetLimits(self.limits.base_offset, end_offset)
        bad = self.probe.header(position_bytes)
        if bad is not None and self.limits.follows(bad, lowest_offset):
            # No other batch has the bad one's own offsets.
            lowest_offset = bad.next_offset
        if limits.end_offset is not None and lowest_offset >= limits.end_offset:
            return None
        dead_ends: set[int] = set()
        for header in self._valid_batches(position_bytes + 1, end_bytes, lowest_offset, self._search_limits):
            # A batch that ends after the bad one is none of its values.
            if header.end_position_bytes > end_bytes or (
                limits.follows(header, lowest_offset)
                and self._leads_to(header.position_bytes, end_bytes, dead_ends)
            ):
                return header.position_bytes
        return None

    def _first_valid_batch(self, position_bytes: int, lowest_offset: int) -> int | None:
        """Return where the next valid batch after a position begins, unless a later one is preferred.

        A later one is preferred if more batches follow it, and the earlier one leaves no offsets for it. And batches
        within the extent that a bad header states may be the value of a record: another one is preferred if it follows
        the bad one without a gap in offsets.
        """
        bad = self.probe.header(position_bytes)
        bad_end_bytes, bad_offset, next_offset = 0, lowest_offset, 0
        if bad is not None and lowest_offset <= bad.last_offset < lowest_offset + _LARGEST_OFFSET_GAP:
            bad_end_bytes, bad_offset, next_offset = bad.end_position_bytes, bad.base_offset, bad.next_offset
        first: BatchHeader | None = None
        for header in self._valid_batches(
            position_bytes + 1, self.end_bytes, lowest_offset, self._search_limits
        ):
            if first is None or self._is_superseded(first, header):
                first = header
            is_inside = first.position_bytes < bad_end_bytes
            is_far = header.position_bytes > first.position_bytes + USUAL_MAX_BATCH_BYTES
            if is_far or (not is_inside and self._leads_far(first.position_bytes)):
                break
            if is_inside and header.base_offset == next_offset and not header.is_wrapper:
                # A broker that did not cut off a torn batch has written its offsets again.
                is_rewritten = first.base_offset in (lowest_offset, bad_offset) and self._leads_to(
                    first.position_bytes, header.position_bytes, set()
                )
                return first.position_bytes if is_rewritten else header.position_bytes
        return None if first is None else first.position_bytes

    def _is_superseded(self, first: BatchHeader, header: BatchHeader) -> bool:
        """Return True if a later batch with lower offsets leads further than the first one, which left none for it."""
        if known_offset(header) >= known_offset(first) or not self.probe.charge_proof(_HEADER_COST_BYTES):
            return False
        first_end_bytes, _ = self._chain(first.position_bytes)
        if first_end_bytes == header.position_bytes and self._is_lowered(first, header):
            return False
        end_bytes, _ = self._chain(header.position_bytes)
        return self._leads_far(header.position_bytes) or (
            end_bytes - header.position_bytes > first_end_bytes - first.position_bytes
        )

    def _is_lowered(self, first: BatchHeader, header: BatchHeader) -> bool:
        """Return True if only the base offset of a batch is wrong, which headers lead to from the first one.

        The batch after it goes on where the one before it would have it, and not where its own offsets end.
        """
        before: BatchHeader | None = first
        while before is not None and before.end_position_bytes < header.position_bytes:
            before = self.probe.header(before.end_position_bytes)
        after = self.probe.header(header.end_position_bytes)
        if before is None or after is None or after.base_offset == header.next_offset:
            return False
        return known_offset(after) >= before.next_offset + header.last_offset_delta + 1

    def _end_of_value(self, position_bytes: int) -> int | None:
        """Return where a value ends that consists of batches and whose length stands before them, or None."""
        before = self.probe.read_at(LENGTH_BYTES, max(0, position_bytes - LENGTH_BYTES))
        end_bytes = position_bytes
        for _ in range(_LONGEST_DAMAGED_RUN):
            header = self.probe.header(end_bytes)
            if header is None or not self.probe.charge_proof(_HEADER_COST_BYTES):
                return None
            end_bytes = header.end_position_bytes
            size_bytes = end_bytes - position_bytes
            if before == size_bytes.to_bytes(LENGTH_BYTES + 4, "big")[4:]:
                return end_bytes
            length = varint_bytes(size_bytes)
            if before.endswith(length):
                # One byte may be the length by chance. But headers follow a value in a record, so neither a batch begins
                # nor the file ends where it does, unless an append was cut right there.
                is_chance = len(length) == 1 and (end_bytes == self.end_bytes or self.is_intact(end_bytes))
                if not is_chance:
                    return end_bytes
        return None

    def _leads_to(self, position_bytes: int, goal_bytes: int, dead_ends: set[int]) -> bool:
        """Return True if headers, back to back, lead from a batch to a goal.

        Positions that do not lead there are added to ``dead_ends``.
        """
        passed = []
        lowest_offset = 0
        while position_bytes < goal_bytes:
            passed.append(position_bytes)
            if position_bytes in dead_ends or not self.probe.charge_proof(_HEADER_COST_BYTES):
                break
            header = self.probe.header(position_bytes)
            if header is None or not self.limits.follows(header, lowest_offset):
                break
            lowest_offset = header.next_offset
            position_bytes = header.end_position_bytes
        if position_bytes == goal_bytes:
            return True
        dead_ends.update(passed)
        return False

    def _skip_zeros(self, position_bytes: int) -> int | None:
        """Find the first position from here on that is not zero.

        Returns:
            The position; None if all the rest is zeros.
        """
        block_bytes = HEADER_SIZE_BYTES
        while position_bytes < self.end_bytes:
            block = self.probe.read_at(block_bytes, position_bytes)
            if not block:
                return None
            zeros = len(block) - len(block.lstrip(b"\0"))
            if zeros < len(block):
                return position_bytes + zeros
            data_bytes = self.probe.next_data(position_bytes + len(block))
            if data_bytes is None:
                return None
            position_bytes = data_bytes
            block_bytes = min(16 * block_bytes, _LARGEST_BLOCK_BYTES)
        return None

    def _valid_batches(
        self, start_bytes: int, end_bytes: int, lowest_offset: int, limits: OffsetLimits
    ) -> Iterator[BatchHeader]:
        """Yield the valid batches that begin at any byte of a range and are not the value of a record."""
        value_end_bytes = whole_end_bytes = 0
        for candidate_bytes in self._candidates(start_bytes, end_bytes):
            header = None
            if candidate_bytes >= start_bytes:
                header = self._valid_batch_at(candidate_bytes, 0, self._content_limits)
            if header is not None:
                # What begins in a valid batch is its content; what ends after a value is no part of it.
                start_bytes = header.end_position_bytes
                if start_bytes > value_end_bytes:
                    value_end_bytes = 0
                    # Directly after a whole batch there is no length of a value.
                    if candidate_bytes != whole_end_bytes:
                        value_end_bytes = self._end_of_value(candidate_bytes) or 0
                    if value_end_bytes == 0 and limits.follows(header, lowest_offset):
                        yield header.with_base_offset(lowest_offset)
                whole_end_bytes = start_bytes
            if self.probe.is_exhausted:
                return

    def _candidates(self, start_bytes: int, end_bytes: int) -> Iterator[int]:
        """Yield the positions in a range at which the bytes look like a batch header."""
        position_bytes = start_bytes
        block_bytes = _FIRST_BLOCK_BYTES
        while position_bytes < end_bytes:
            block = np.frombuffer(self.probe.read_at(block_bytes, position_bytes), np.uint8)
            remaining_bytes = self.end_bytes - position_bytes
            is_blank = not block.any()
            if not is_blank:
                for start, _ in batch_candidates(block, remaining_bytes, largest_bytes=self._max_batch_bytes):
                    if position_bytes + start >= end_bytes:
                        return
                    yield position_bytes + start
            if len(block) < min(block_bytes, remaining_bytes) or len(block) == remaining_bytes:
                return
            # Blocks overlap by what may be the beginning of a header.
            position_bytes += len(block) - HEADER_SIZE_BYTES + 1
            if is_blank:
                data_bytes = self.probe.next_data(position_bytes)
                if data_bytes is None:
                    return
                position_bytes = max(position_bytes, data_bytes - HEADER_SIZE_BYTES)
            block_bytes = min(4 * block_bytes, _LARGEST_BLOCK_BYTES)


def batch_candidates(
    block: _Bytes, remaining_bytes: int, *, largest_bytes: int = MAX_ENCODABLE_BATCH_BYTES
) -> list[tuple[int, int]]:
    """Find positions in a block that look like a batch of any format.

    The CRC is not checked. Unless the block ends the file, of which ``remaining_bytes`` are left, its last 60 bytes
    yield nothing: they may be the beginning of a header, and have to be examined again at the beginning of the next
    block. Batches of more than ``largest_bytes`` are ignored: among random bytes, that rules most candidates out.

    Returns:
        Each position with the batch's size in bytes, ascending.
    """
    is_end = len(block) >= remaining_bytes
    count = len(block) - (MESSAGE_SIZE_BYTES if is_end else HEADER_SIZE_BYTES) + 1
    if count <= 0:
        return []
    magics = block[MAGIC_POSITION : MAGIC_POSITION + count]
    starts = np.flatnonzero(magics <= MAGIC_V2)
    # The length rules most positions out, zeros above all.
    lengths = gather(block, starts + LENGTH_POSITION, LENGTH_DTYPE).astype(np.int64)
    is_long_enough = lengths >= np.array(MIN_LENGTH_BY_MAGIC)[magics[starts]]
    sizes = lengths + LOG_OVERHEAD_BYTES
    fits = is_long_enough & (sizes <= np.minimum(remaining_bytes - starts, largest_bytes))
    starts, sizes = starts[fits], sizes[fits]
    if is_end:
        block = np.concatenate([block, np.zeros(HEADER_SIZE_BYTES, np.uint8)])
    is_current = magics[starts] == MAGIC_V2
    plausible = np.zeros(len(starts), np.bool_)
    plausible[is_current] = _are_batches(block, starts[is_current])
    plausible[~is_current] = _are_messages(block, starts[~is_current], sizes[~is_current])
    return list(zip(starts[plausible].tolist(), sizes[plausible].tolist(), strict=True))


def _are_batches(block: _Bytes, starts: _Int64Array) -> npt.NDArray[np.bool_]:
    headers = gather(block, starts, HEADER_DTYPE)
    plausible: npt.NDArray[np.bool_] = headers["base_offset"] >= 0
    plausible &= headers["last_offset_delta"] >= 0
    plausible &= headers["record_count"] >= 0
    plausible &= (headers["attributes"] & ~KNOWN_ATTRIBUTES) == 0
    return plausible


def _are_messages(block: _Bytes, starts: _Int64Array, sizes: _Int64Array) -> npt.NDArray[np.bool_]:
    """Return for each message whether key and value fit it, as far as they are in the block."""
    messages = gather(block, starts, MESSAGE_DTYPE)
    plausible: npt.NDArray[np.bool_] = messages["offset"] >= 0
    plausible &= (messages["attributes"] & CODEC_MASK) < LEGACY_CODEC_COUNT
    key_positions = np.array(KEY_LENGTH_POSITIONS)[messages["magic"]]
    ends = starts + sizes
    key_ends, fits = _field_ends(block, starts + key_positions, ends - LENGTH_BYTES)
    plausible &= fits
    _, fits = _field_ends(block, key_ends, ends)
    return plausible & fits


def _field_ends(
    block: _Bytes, positions: _Int64Array, limits: _Int64Array
) -> tuple[_Int64Array, npt.NDArray[np.bool_]]:
    """Find where fields end, given the positions of their lengths, and whether that is within the limits.

    A length that lies beyond the block counts as within.
    """
    last = len(block) - LENGTH_BYTES
    lengths = gather(block, np.minimum(positions, last), LENGTH_DTYPE).astype(np.int64)
    ends = positions + LENGTH_BYTES + np.maximum(lengths, 0)
    fits: npt.NDArray[np.bool_] = (positions > last) | ((lengths >= -1) & (ends <= limits))
    return ends, fits
