"""Finding where the log goes on after a damaged batch.

A candidate found after damage may be a batch of the log, or the content of a record: a copy of some
log. What tells the two apart, the strongest evidence first:

1. The lengths of the damaged batch's records lead to its end: to the end that its header declares, to
   a batch of the log, or to the end of the file. Everything before that end is content.
2. The CRC covers neither the length nor, in format v2, the magic. Where the CRC matches, the batch ends.
3. The headers leave no room: the damaged one follows the previous batch without a gap, and the batch at
   its declared end follows it without a gap.
4. A batch of the log begins at the declared end, or headers lead from there to one, or the file ends
   there. Then a candidate before the declared end is accepted only if a chain of headers leads from it
   exactly to that end.
5. The declared end says nothing. Then the first candidate wins whose CRC matches and whose offsets fit,
   unless it is inside a whole record; unless a length before it, or the bytes after it, lead to the next
   batch of the log as the rest of a record would; or unless a longer run of batches follows that its
   offsets leave no room for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from storage_core.record.batch_header import (
    CRC_LAYOUTS,
    CRC_START,
    HEADER_SIZE_BYTES,
    KEY_LENGTH_POSITIONS,
    LEGACY_CODEC_COUNT,
    LENGTH_BYTES,
    LENGTH_POSITION,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_V2,
    MAX_OFFSET_DELTA,
    BatchHeader,
)
from storage_core.segment.batch_candidates import (
    BatchContents,
    RecordCandidates,
    RecordLengths,
    batch_candidates,
)
from storage_core.segment.batch_walk import USUAL_MAX_BATCH_BYTES
from storage_core.segment.damage import BatchProbe, OffsetLimits, known_offset

if TYPE_CHECKING:
    from collections.abc import Iterator


_FIRST_BLOCK_BYTES: Final = 4096
_LARGEST_BLOCK_BYTES: Final = 1024 * 1024
# How far to look for the end of a damaged batch, and for a better candidate after the first one.
_LOOK_AHEAD_BYTES: Final = USUAL_MAX_BATCH_BYTES
_NULL_LENGTH: Final = -1
_CRC_BYTES: Final = 4
# At most this many offsets may be missing between two batches that count as neighbours.
_LARGEST_OFFSET_GAP: Final = 1 << 16
# At most this many damaged batches in a row may have undamaged headers.
_LONGEST_DAMAGED_RUN: Final = 64
# The cost of looking at one header, in bytes of CRC.
_HEADER_COST_BYTES: Final = 1024
_LARGEST_CACHE: Final = 65_536


class _HeaderChain(NamedTuple):
    """Headers back to back: where the last one's batch ends, and its last offset."""

    end_bytes: int
    last_offset: int


class _BatchRun(NamedTuple):
    """Batches back to back, each with a matching CRC.

    Attributes:
        end_bytes: Where the last one ends.
        last_offset: Its last offset.
        positions: Position of each batch, by its last offset and its CRC.
    """

    end_bytes: int
    last_offset: int
    positions: dict[tuple[int, int], int]


class BatchSearch:
    """Searches one log file. A `BatchProbe` limits what that may cost."""

    def __init__(self, probe: BatchProbe, limits: OffsetLimits, max_batch_bytes: int) -> None:
        self._probe = probe
        self._limits = limits
        self._max_batch_bytes = max_batch_bytes
        # A batch that is found by searching must have offsets that a segment can hold.
        highest_offset = limits.base_offset + MAX_OFFSET_DELTA
        end_offset = highest_offset + 1 if limits.end_offset is None else limits.end_offset
        self._search_limits = OffsetLimits(limits.base_offset, min(end_offset, highest_offset + 1))
        self._record_lengths = RecordLengths(probe)
        self._chains: dict[int, _HeaderChain] = {}
        self._runs: dict[int, _BatchRun] = {}
        self._zeros = range(0)

    def intact_batch_at(self, position_bytes: int) -> BatchHeader | None:
        """Return the whole batch with a matching CRC at a position, whatever its offsets and size, or None."""
        header = self._probe.header(position_bytes)
        return header if header is not None and self._probe.is_crc_right(header) else None

    def valid_batch_at(
        self, position_bytes: int, lowest_offset: int, limits: OffsetLimits | None = None
    ) -> BatchHeader | None:
        """Return the batch at a position if its CRC matches, its size is within the limit, and its offsets fit, or None."""
        header = self._probe.header(position_bytes)
        if header is None or header.size_bytes > self._max_batch_bytes:
            return None
        if not (limits or self._limits).follows(header, lowest_offset):
            return None
        return header.with_base_offset(lowest_offset) if self._probe.is_crc_right(header) else None

    def position_after_damage(self, position_bytes: int, lowest_offset: int) -> int | None:
        """Find where to continue after a position without a valid batch.

        Returns:
            A position at which either a batch begins that may be valid, or the damage continues; None if nothing follows.
        """
        intact = self.intact_batch_at(position_bytes)
        if intact is not None:
            # Only its offsets or its size are wrong: its end is certain.
            return self._unless_at_end(intact.end_position_bytes)
        headers = self._possible_headers(position_bytes)
        end_bytes = self._proven_end(position_bytes, headers, lowest_offset)
        if end_bytes is not None:
            return self._unless_at_end(end_bytes)
        if not headers:
            return self._first_candidate(position_bytes, lowest_offset)
        bad, end_bytes = headers[0], headers[0].end_position_bytes
        if end_bytes == self._probe.end_bytes:
            return self._batch_within(bad, lowest_offset, end_bytes, self._search_limits)
        next_batch = self._batch_led_to(end_bytes, lowest_offset)
        if next_batch is None:
            return self._first_candidate(position_bytes, lowest_offset)
        limits_within = OffsetLimits(self._limits.base_offset, known_offset(next_batch))
        return self._batch_within(bad, lowest_offset, end_bytes, limits_within) or end_bytes

    def skip_zeros(self, position_bytes: int) -> int | None:
        """Find the first byte from a position on that is not zero.

        Returns:
            Its position; None if all the rest is zeros.
        """
        block_bytes = HEADER_SIZE_BYTES
        while position_bytes < self._probe.end_bytes:
            block = self._probe.read_at(block_bytes, position_bytes)
            if not block:
                return None
            zeros = len(block) - len(block.lstrip(b"\0"))
            if zeros < len(block):
                return position_bytes + zeros
            data_bytes = self._probe.next_data(position_bytes + len(block))
            if data_bytes is None:
                return None
            position_bytes = data_bytes
            block_bytes = min(16 * block_bytes, _LARGEST_BLOCK_BYTES)
        return None

    def _unless_at_end(self, position_bytes: int) -> int | None:
        return position_bytes if position_bytes < self._probe.end_bytes else None

    def _possible_headers(self, position_bytes: int) -> list[BatchHeader]:
        """Return what a damaged header may have been: what it says, or what it would say with another magic."""
        header = self._probe.header(position_bytes)
        return [*self._probe.headers_but_for_magic(position_bytes)] if header is None else [header]

    def _batch_led_to(self, position_bytes: int, lowest_offset: int) -> BatchHeader | None:
        """Return the header at a position if its batch is valid, or headers lead from it, back to back, to a valid batch.

        Several batches in a row may be damaged although their headers are not.
        """
        first: BatchHeader | None = None
        for _ in range(_LONGEST_DAMAGED_RUN):
            header = self._probe.header(position_bytes)
            if header is None or not self._limits.follows(header, lowest_offset):
                return None
            first = first or header
            if header.size_bytes <= self._max_batch_bytes and self._probe.is_crc_right(header):
                return first.with_base_offset(lowest_offset) if first is header else first
            position_bytes, lowest_offset = header.end_position_bytes, header.next_offset
        return None

    # Evidence 1 to 3: where the damaged batch ends.

    def _proven_end(self, position_bytes: int, headers: list[BatchHeader], lowest_offset: int) -> int | None:
        """Find where the damaged batch ends, if its records (1), its CRC (2) or its neighbours (3) prove it."""
        declared_end_bytes = self._declared_end(position_bytes)
        by_magic = [
            self._record_lengths.contents(position_bytes, magic, declared_end_bytes)
            for magic in range(len(CRC_LAYOUTS))
        ]
        end_bytes = self._end_with_right_crc(position_bytes, by_magic, declared_end_bytes)
        if end_bytes is None:
            magic = self._probe.read_at(1, position_bytes + MAGIC_POSITION)
            stated = [contents for contents in by_magic if magic == bytes([contents.magic])]
            end_bytes = self._first_end_of_records(position_bytes, stated, lowest_offset)
        if end_bytes is not None:
            return end_bytes
        adjacent = (header for header in reversed(headers) if self._has_no_gaps(header, lowest_offset))
        end_bytes_by_neighbours = next((header.end_position_bytes for header in adjacent), None)
        if end_bytes_by_neighbours is not None and self._leads_far(end_bytes_by_neighbours):
            return end_bytes_by_neighbours
        end_bytes = self._end_by_crc(position_bytes, lowest_offset)
        if end_bytes is None:
            end_bytes = end_bytes_by_neighbours
        if end_bytes is None:
            end_bytes = self._first_end_of_records(position_bytes, by_magic, lowest_offset)
        return end_bytes

    def _end_with_right_crc(
        self, position_bytes: int, by_magic: list[BatchContents], declared_end_bytes: int
    ) -> int | None:
        """Choose the end of the records, or the declared end, whichever makes the CRC match first."""
        for contents in by_magic:
            for end_bytes in (contents.end_bytes, declared_end_bytes):
                if self._is_crc_right(position_bytes, contents.magic, end_bytes):
                    return end_bytes
        return None

    def _first_end_of_records(
        self, position_bytes: int, by_magic: list[BatchContents], lowest_offset: int
    ) -> int | None:
        ends = (self._end_of_records(position_bytes, contents, lowest_offset) for contents in by_magic)
        return next((end_bytes for end_bytes in ends if end_bytes is not None), None)

    def _end_of_records(self, position_bytes: int, contents: BatchContents, lowest_offset: int) -> int | None:
        """Find where a batch ends by the lengths of its records, if anything confirms them (1)."""
        in_key = self._valid_batches(position_bytes + 1, contents.head_end_bytes, lowest_offset)
        if not contents.records or next(in_key, None) is not None:
            # No key holds batches: if one seems to, its length is damaged.
            return None
        end_bytes, declared_end_bytes = contents.end_bytes, self._declared_end(position_bytes)
        if self._is_boundary(end_bytes, lowest_offset):
            # A damaged length may lead past batches of the log.
            is_past = declared_end_bytes < end_bytes and self._is_boundary(declared_end_bytes, lowest_offset)
            if is_past and self._leads_to(declared_end_bytes, end_bytes, set()):
                return declared_end_bytes
            return end_bytes
        if contents.magic == MAGIC_V2 and end_bytes == declared_end_bytes <= self._probe.end_bytes:
            return self._batch_across(position_bytes, end_bytes, lowest_offset) or end_bytes
        is_torn = self._probe.end_bytes < end_bytes <= declared_end_bytes
        if not is_torn or (contents.magic < MAGIC_V2 and end_bytes != declared_end_bytes):
            return None
        header = self._torn_append(position_bytes, contents.magic, lowest_offset)
        if header is None:
            return None
        end_bytes = self._probe.end_bytes
        return self._batch_within(header, lowest_offset, end_bytes, self._search_limits) or end_bytes

    def _torn_append(self, position_bytes: int, magic: int, lowest_offset: int) -> BatchHeader | None:
        """Return the header of an append whose rest never reached the file, or None."""
        header = self._probe.header(position_bytes)
        if header is None or header.magic != magic or header.size_bytes > self._max_batch_bytes:
            return None
        if header.is_wrapper:
            is_next = lowest_offset <= header.last_offset < lowest_offset + _LARGEST_OFFSET_GAP
        else:
            is_next = header.base_offset == lowest_offset
        return header if is_next else None

    def _declared_end(self, position_bytes: int) -> int:
        length = self._probe.read_at(LENGTH_BYTES, position_bytes + LENGTH_POSITION)
        return position_bytes + LOG_OVERHEAD_BYTES + int.from_bytes(length, "big", signed=True)

    def _batch_across(self, position_bytes: int, end_bytes: int, lowest_offset: int) -> int | None:
        """Find a batch before a damaged one's end that leads across that end: bytes of the damaged one are missing."""
        content = self._content_after(position_bytes)
        for header in self._valid_batches(position_bytes + 1, end_bytes, lowest_offset):
            candidate_bytes = header.position_bytes
            if self._crosses(candidate_bytes, end_bytes) and self._is_of_log(header, lowest_offset, content):
                return candidate_bytes
        return None

    def _is_crc_right(self, position_bytes: int, magic: int, end_bytes: int) -> bool:
        """Return True if the CRC matches a batch of a format that extends to a position."""
        layout = CRC_LAYOUTS[magic]
        start_bytes = position_bytes + layout.start
        is_whole = start_bytes + HEADER_SIZE_BYTES - CRC_START <= end_bytes <= self._probe.end_bytes
        crc = 0
        if magic < MAGIC_V2:
            crc, start_bytes = layout.compute(bytes([magic])), start_bytes + 1
        if not is_whole or not self._probe.charge_proof(end_bytes - start_bytes):
            return False
        stated = self._probe.read_at(_CRC_BYTES, position_bytes + layout.position)
        return self._probe.crc(magic, start_bytes, end_bytes, crc) == int.from_bytes(stated, "big")

    def _end_by_crc(self, position_bytes: int, lowest_offset: int) -> int | None:
        """Find where the CRC of a v2 batch matches, if only its length is damaged (2).

        Messages of format v0 and v1 need no such search: under a matching CRC, their lengths lead to their end.
        """
        stated = self._probe.read_at(_CRC_BYTES, position_bytes + CRC_LAYOUTS[MAGIC_V2].position)
        if not any(stated):
            return None
        from_bytes, crc = position_bytes + CRC_START, 0
        last_bytes = min(position_bytes + _LOOK_AHEAD_BYTES, self._probe.end_bytes)
        for candidate_bytes in self._candidates(position_bytes + HEADER_SIZE_BYTES, last_bytes, 0):
            if not self._probe.charge_proof(candidate_bytes - from_bytes + _HEADER_COST_BYTES):
                return None
            crc = self._probe.crc(MAGIC_V2, from_bytes, candidate_bytes, crc)
            from_bytes = candidate_bytes
            if crc == int.from_bytes(stated, "big"):
                return candidate_bytes
            is_valid = self.valid_batch_at(candidate_bytes, lowest_offset, self._search_limits)
            if is_valid and self._leads_far(candidate_bytes):
                # No content of a batch leads out of it.
                return None
        crc = self._probe.crc(MAGIC_V2, from_bytes, last_bytes, crc)
        return last_bytes if crc == int.from_bytes(stated, "big") else None

    def _has_no_gaps(self, bad: BatchHeader, lowest_offset: int) -> bool:
        """Return True if a damaged header follows the previous batch without a gap, and the next batch follows it so (3)."""
        header = bad
        for _ in range(_LONGEST_DAMAGED_RUN):
            if header.is_wrapper or header.base_offset != lowest_offset:
                return False
            lowest_offset = header.next_offset
            if header.end_position_bytes == self._probe.end_bytes:
                return lowest_offset == self._limits.end_offset
            following = self._probe.header(header.end_position_bytes)
            if following is None or following.end_position_bytes > self._probe.end_bytes:
                return False
            if self._probe.is_crc_right(following):
                return not following.is_wrapper and following.base_offset == lowest_offset
            header = following
        return False

    # Evidence 4 and 5: candidates after the damage.

    def _batch_within(
        self, bad: BatchHeader, lowest_offset: int, goal_bytes: int, limits: OffsetLimits
    ) -> int | None:
        """Find a batch of the log that begins before a damaged one's declared end (4)."""
        first_offset = lowest_offset
        if self._limits.follows(bad, lowest_offset):
            # No other batch has the damaged one's own offsets.
            first_offset = bad.next_offset
        dead_ends: set[int] = set()
        content = self._content_after(bad.position_bytes)
        for header in self._valid_batches(bad.position_bytes + 1, goal_bytes, first_offset, limits):
            if self._leads_to(header.position_bytes, goal_bytes, dead_ends) and self._is_of_log(
                header, lowest_offset, content
            ):
                is_value = self._may_be_in_message(bad, header.position_bytes, goal_bytes)
                return None if is_value else header.position_bytes
        return None

    def _may_be_in_message(self, bad: BatchHeader, position_bytes: int, goal_bytes: int) -> bool:
        """Return True if a candidate may be in a message's value, whose batches may also lead to the message's end."""
        if bad.magic == MAGIC_V2 or position_bytes - bad.position_bytes >= _LOOK_AHEAD_BYTES:
            return False
        start_bytes = bad.position_bytes + min(KEY_LENGTH_POSITIONS)
        return self._record_lengths.has_length_leading_to(start_bytes, position_bytes, goal_bytes)

    def _first_candidate(self, position_bytes: int, lowest_offset: int) -> int | None:
        """Find the next batch if the declared end says nothing (5), unless offsets name a later one."""
        bad = self._probe.header(position_bytes)
        next_offset = None
        if bad is not None and not bad.is_wrapper and bad.base_offset == lowest_offset:
            next_offset = bad.next_offset
        first: BatchHeader | None = None
        rewritten: BatchHeader | None = None
        wrapper = self._believable_wrapper(bad, lowest_offset)
        content = self._content_after(position_bytes)
        for header in self._valid_batches(position_bytes + 1, self._probe.end_bytes, lowest_offset):
            if wrapper is not None and _is_in_wrapper(header, wrapper):
                continue
            if first is not None and self._ends_look_ahead(first, header):
                break
            if not self._is_of_log(header, lowest_offset, content):
                continue
            first = first or header
            if next_offset is None:
                break
            if header.is_wrapper:
                continue
            if header.base_offset == next_offset:
                # A broker that did not cut off a torn batch has assigned its offsets again.
                return self._first_of_neighbours(header, first, rewritten).position_bytes
            if rewritten is None and header.base_offset == lowest_offset:
                rewritten = header
        return None if first is None else first.position_bytes

    def _ends_look_ahead(self, first: BatchHeader, header: BatchHeader) -> bool:
        """Return True if it is not worth looking further for a better candidate than the first one."""
        is_far = header.position_bytes > first.position_bytes + _LOOK_AHEAD_BYTES
        return is_far or not self._probe.charge_read(_HEADER_COST_BYTES)

    def _first_of_neighbours(self, header: BatchHeader, *earlier: BatchHeader | None) -> BatchHeader:
        """Choose the first earlier batch from which headers lead to a batch without a gap, or that batch itself."""
        for candidate in earlier:
            if candidate is not None and self._is_neighbour(candidate, header.position_bytes):
                return candidate
        return header

    def _believable_wrapper(self, bad: BatchHeader | None, lowest_offset: int) -> BatchHeader | None:
        """Return the wrapper in which the damage begins, if its header can be trusted."""
        if bad is None or not bad.is_wrapper:
            return None
        key_length = self._probe.read_at(LENGTH_BYTES, bad.position_bytes + KEY_LENGTH_POSITIONS[bad.magic])
        is_believable = (
            lowest_offset <= bad.last_offset < lowest_offset + _LARGEST_OFFSET_GAP
            and bad.end_position_bytes <= self._probe.end_bytes
            and bad.codec < LEGACY_CODEC_COUNT
            and int.from_bytes(key_length, "big", signed=True) == _NULL_LENGTH
        )
        return bad if is_believable else None

    # A batch of the log, or the content of a record?

    def _is_of_log(self, header: BatchHeader, lowest_offset: int, content: _RecordContent) -> bool:
        """Return True if nothing shows that a valid batch is the content of a record."""
        position_bytes = header.position_bytes
        if content.is_superseded.get(position_bytes):
            return False
        if position_bytes < content.end_bytes and not self._crosses(position_bytes, content.end_bytes):
            return False
        end_bytes = self._end_of_content(header, lowest_offset, content)
        if end_bytes > position_bytes and not self._crosses(position_bytes, end_bytes):
            content.end_bytes = end_bytes
            return False
        return not self._is_superseded(header, lowest_offset, content)

    def _is_superseded(self, header: BatchHeader, lowest_offset: int, content: _RecordContent) -> bool:
        """Return True if a longer run of batches follows that the run beginning here leaves no offsets for."""
        position_bytes = header.position_bytes
        if position_bytes not in content.is_superseded:
            if self._leads_far(position_bytes):
                return False
            run = self._run(header)
            is_superseded = self._is_run_superseded(header, run, lowest_offset)
            # What is true of a run is true of each of its batches.
            content.is_superseded.update(dict.fromkeys(run.positions.values(), is_superseded))
        return content.is_superseded[position_bytes]

    def _is_run_superseded(self, header: BatchHeader, run: _BatchRun, lowest_offset: int) -> bool:
        run_bytes = run.end_bytes - header.position_bytes
        last_bytes = min(run.end_bytes + _LOOK_AHEAD_BYTES, self._probe.end_bytes)
        # A batch that follows at once, out of order, is a matter between neighbours and is decided there.
        for other in self._valid_batches(run.end_bytes + 1, last_bytes, lowest_offset):
            if not self._probe.charge_proof(_HEADER_COST_BYTES):
                break
            other_bytes = other.position_bytes
            if self._leads_far(other_bytes) or self._run(other).end_bytes - other_bytes > run_bytes:
                is_copy = (other.last_offset, other.crc) in run.positions
                return known_offset(other) <= run.last_offset and not is_copy
        return False

    def _end_of_content(self, header: BatchHeader, lowest_offset: int, content: _RecordContent) -> int:
        """Return the end of the batch or message whose record contains the candidate, or 0."""
        if content.is_compressed:
            return 0
        return (
            content.end_of_record_around(header)
            or self._end_of_message_around(header, lowest_offset, content.start_bytes)
            or self._end_of_batch_around(header, lowest_offset, content.start_bytes)
        )

    def _end_of_message_around(self, header: BatchHeader, lowest_offset: int, start_bytes: int) -> int:
        """Return the end of the v0 or v1 message that has the candidate as its value, or 0."""
        end_bytes = self._record_lengths.message_end_by_length_before(header.position_bytes, start_bytes)
        is_around = (
            end_bytes >= header.end_position_bytes
            and self._is_boundary(end_bytes, lowest_offset)
            and not self._is_neighbour(header, end_bytes)
        )
        return end_bytes if is_around else 0

    def _end_of_batch_around(self, header: BatchHeader, lowest_offset: int, start_bytes: int) -> int:
        """Return the end of the v2 batch that contains the candidate's run as a record's value, or 0."""
        position_bytes = header.position_bytes
        if self._leads_far(position_bytes) or position_bytes - start_bytes < HEADER_SIZE_BYTES:
            return 0
        run = self._run(header)
        value_ends = self._record_lengths.value_ends_by_length_before(position_bytes)
        for value_end_bytes in [*(end for end in value_ends if end >= run.end_bytes), run.end_bytes]:
            end_bytes = self._record_lengths.end_of_batch_after_value(value_end_bytes)
            if end_bytes > value_end_bytes and self._is_boundary(end_bytes, lowest_offset):
                following = self._probe.header(end_bytes)
                # Neighbours may be a byte or two apart.
                is_next = following is not None and known_offset(following) == run.last_offset + 1
                return 0 if is_next else end_bytes
        return 0

    def _content_after(self, start_bytes: int) -> _RecordContent:
        bad = self._probe.header(start_bytes)
        last_bytes = min(start_bytes + _LOOK_AHEAD_BYTES, self._probe.end_bytes)
        is_compressed = bad is not None and bad.codec != 0
        return _RecordContent(self._record_lengths, start_bytes, last_bytes, is_compressed=is_compressed)

    # Following batches and headers from any position.

    def _is_boundary(self, position_bytes: int, lowest_offset: int) -> bool:
        """Return True if a valid batch begins at a position, or the file ends there."""
        if position_bytes == self._probe.end_bytes:
            return True
        return self.valid_batch_at(position_bytes, lowest_offset, self._search_limits) is not None

    def _is_neighbour(self, header: BatchHeader, position_bytes: int) -> bool:
        """Return True if headers lead from a batch to a position without a gap in bytes and, at that position, in offsets.

        What is copied into a value hardly ever has the very offsets that are missing there. The header of a
        wrapper does not tell where its offsets begin.
        """
        while header.end_position_bytes < position_bytes and self._probe.charge_proof(_HEADER_COST_BYTES):
            following = self._probe.header(header.end_position_bytes)
            if following is None or known_offset(following) <= header.last_offset:
                return False
            header = following
        if header.end_position_bytes != position_bytes:
            return False
        following = self._probe.header(position_bytes)
        if following is None:
            return header.next_offset == self._limits.end_offset
        return following.is_wrapper or header.next_offset == following.base_offset

    def _crosses(self, position_bytes: int, boundary_bytes: int) -> bool:
        """Return True if headers lead from a batch across a boundary, and none of them begins there."""
        is_beyond = self._chain(position_bytes).end_bytes > boundary_bytes
        return is_beyond and not self._leads_to(position_bytes, boundary_bytes, set())

    def _leads_far(self, position_bytes: int) -> bool:
        """Return True if headers lead from a position to the end of the file, or further than the content of a batch would."""
        end_bytes = self._chain(position_bytes).end_bytes
        is_long = end_bytes - position_bytes >= _LOOK_AHEAD_BYTES
        return is_long or end_bytes == self._probe.end_bytes or self._is_preallocated_tail(end_bytes)

    def _leads_to(self, position_bytes: int, goal_bytes: int, dead_ends: set[int]) -> bool:
        """Return True if headers, back to back, lead from a batch exactly to a goal. Add what does not to ``dead_ends``."""
        passed = []
        lowest_offset = 0
        while position_bytes < goal_bytes:
            passed.append(position_bytes)
            if position_bytes in dead_ends or not self._probe.charge_read(_HEADER_COST_BYTES):
                break
            header = self._probe.header(position_bytes)
            if header is None or not self._limits.follows(header, lowest_offset):
                if goal_bytes == self._probe.end_bytes and self._is_preallocated_tail(position_bytes):
                    return True
                break
            lowest_offset = header.next_offset
            position_bytes = header.end_position_bytes
        if position_bytes == goal_bytes:
            return True
        dead_ends.update(passed)
        return False

    def _chain(self, position_bytes: int) -> _HeaderChain:
        """Follow headers, back to back, from a position for as long as their offsets ascend."""
        start_bytes, last_offset, passed = position_bytes, -1, []
        while position_bytes - start_bytes < _LOOK_AHEAD_BYTES:
            header = self._probe.header(position_bytes)
            if (
                header is None
                or known_offset(header) <= last_offset
                or header.end_position_bytes > self._probe.end_bytes
            ):
                break
            # A chain that was followed before is known, and costs nothing.
            chain = self._chains.get(position_bytes)
            if chain is None:
                if not self._probe.charge_proof(_HEADER_COST_BYTES):
                    break
                chain = _HeaderChain(header.end_position_bytes, header.last_offset)
            passed.append(position_bytes)
            position_bytes, last_offset = chain
        if len(self._chains) >= _LARGEST_CACHE:
            self._chains.clear()
        chain = _HeaderChain(position_bytes, last_offset)
        self._chains.update(dict.fromkeys(passed, chain))
        return chain

    def _run(self, header: BatchHeader) -> _BatchRun:
        """Follow batches with matching CRCs, back to back, from one on."""
        known = self._runs.get(header.position_bytes)
        if known is not None:
            return known
        positions = {(header.last_offset, header.crc): header.position_bytes}
        end_bytes, last_offset = header.end_position_bytes, header.last_offset
        while end_bytes - header.position_bytes < _LOOK_AHEAD_BYTES:
            following = self.intact_batch_at(end_bytes)
            if following is None or known_offset(following) <= last_offset:
                break
            positions[following.last_offset, following.crc] = end_bytes
            end_bytes, last_offset = following.end_position_bytes, following.last_offset
        run = _BatchRun(end_bytes, last_offset, positions)
        if len(self._runs) >= _LARGEST_CACHE:
            self._runs.clear()
        # So that the run is not followed again from its next batch.
        self._runs.update(dict.fromkeys(positions.values(), run))
        return run

    def _is_preallocated_tail(self, position_bytes: int) -> bool:
        """Return True if only zeros follow, as in a preallocated file. A few zeros may as well belong to an offset."""
        if self._probe.end_bytes - position_bytes < HEADER_SIZE_BYTES:
            return False
        if position_bytes not in self._zeros:
            # Many chains of headers lead to the same zeros.
            data_bytes = self.skip_zeros(position_bytes)
            self._zeros = range(position_bytes, self._probe.end_bytes if data_bytes is None else data_bytes)
        return self._zeros.stop == self._probe.end_bytes

    def _valid_batches(
        self, start_bytes: int, end_bytes: int, lowest_offset: int, limits: OffsetLimits | None = None
    ) -> Iterator[BatchHeader]:
        """Yield the valid batches that begin at any byte of a range."""
        for candidate_bytes in self._candidates(start_bytes, end_bytes, lowest_offset):
            header = self.valid_batch_at(candidate_bytes, lowest_offset, limits or self._search_limits)
            if header is not None:
                yield header
            if self._probe.is_exhausted:
                return

    def _candidates(self, start_bytes: int, end_bytes: int, lowest_offset: int) -> Iterator[int]:
        """Yield the positions in a range at which the bytes look like a batch header."""
        position_bytes: int | None = start_bytes
        block_bytes = _FIRST_BLOCK_BYTES
        while position_bytes is not None and position_bytes < end_bytes:
            block = np.frombuffer(self._probe.read_at(block_bytes, position_bytes), np.uint8)
            remaining_bytes = self._probe.end_bytes - position_bytes
            is_blank = not block.any()
            if not is_blank:
                for start, _ in batch_candidates(
                    block, remaining_bytes, lowest_offset, largest_bytes=self._max_batch_bytes
                ):
                    if position_bytes + start >= end_bytes:
                        return
                    yield position_bytes + start
            if len(block) < min(block_bytes, remaining_bytes) or len(block) == remaining_bytes:
                return
            # Blocks overlap by what may be the beginning of a header.
            position_bytes += len(block) - HEADER_SIZE_BYTES + 1
            if is_blank:
                position_bytes = self._skip_hole(position_bytes)
            block_bytes = min(4 * block_bytes, _LARGEST_BLOCK_BYTES)

    def _skip_hole(self, position_bytes: int) -> int | None:
        """Return where a header may begin that is not all zeros."""
        data_bytes = self._probe.next_data(position_bytes)
        return None if data_bytes is None else max(position_bytes, data_bytes - HEADER_SIZE_BYTES)


def _is_in_wrapper(header: BatchHeader, wrapper: BatchHeader) -> bool:
    """Return True if a message is one of those in a wrapper: a codec may have left them as they were."""
    return (
        not header.is_wrapper
        and header.position_bytes < wrapper.end_position_bytes
        and header.base_offset < wrapper.next_offset
    )


class _RecordContent:
    """What is known of the content of records after the beginning of a damaged batch.

    Attributes:
        start_bytes: Where the damaged batch begins.
        is_compressed: Whether its header says that it is compressed. Then the lengths of its records do not
            match what is in the file.
        end_bytes: Every batch before this position is content, unless it leads across it.
        is_superseded: By position of a batch, whether later ones leave it no room; only of batches examined so far.
    """

    def __init__(
        self, record_lengths: RecordLengths, start_bytes: int, last_bytes: int, *, is_compressed: bool
    ) -> None:
        self.start_bytes = start_bytes
        self.is_compressed = is_compressed
        self.end_bytes = start_bytes
        self.is_superseded: dict[int, bool] = {}
        self._record_lengths = record_lengths
        self._last_bytes = last_bytes
        self._candidates: RecordCandidates | None = None

    def end_of_record_around(self, header: BatchHeader) -> int:
        """Return the end of the record that has a batch in its value, or 0."""
        if header.position_bytes >= self._last_bytes:
            return 0
        if self._candidates is None:
            self._candidates = self._record_lengths.candidates(self.start_bytes, self._last_bytes)
        return self._record_lengths.end_of_record_around(
            header.position_bytes, header.end_position_bytes, self._candidates
        )
