"""Searching for the next batch behind bytes that are none, or that are a batch with a wrong CRC.

What looks like a batch behind such bytes may be one of the log, or the content of a record: a copy of
some log. What tells the two apart, the strongest evidence first:

1. The lengths of the damaged batch's records lead to its end: to the end that it declares, to a batch
   that counts, or to the file's end. What lies in front of there is content.
2. The CRC covers neither the length nor, in format v2, the magic. Where the CRC is right, there the batch ends.
3. The headers at hand leave no room: the damaged one follows the batch before without a gap, and a
   batch follows it, at the end that it declares, without a gap.
4. A batch that counts begins at the declared end, or where headers lead from there, or the file ends
   there: then a batch in front of the declared end is believed only if a chain of headers leads from it
   exactly to that end.
5. Nothing is to be made of the declared end: the first batch counts whose CRC is right and whose offsets
   fit, unless a whole record lies around it; unless a length in front of it, or what follows it, leads as
   the rest of a record and a batch to the next one that counts; or unless batches follow, in a longer chain
   than its own, that it leaves no offsets for.
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
)
from storage_core.segment.batch_candidates import RecordLengths, batch_candidates
from storage_core.segment.batch_walk import LARGEST_BATCH_BYTES
from storage_core.segment.damage import OffsetLimits, known_offset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.record.batch_header import BatchHeader
    from storage_core.segment.batch_candidates import BatchContents, RecordCandidates
    from storage_core.segment.batch_walk import BatchProbe

__all__ = ["BatchSearch"]


_FIRST_BLOCK_BYTES: Final = 4096
_LARGEST_BLOCK_BYTES: Final = 1024 * 1024
# How far the end of a damaged batch is looked for, and behind a first find a better one.
_LOOK_AHEAD_BYTES: Final = LARGEST_BATCH_BYTES
_NULL_LENGTH: Final = -1
_CRC_BYTES: Final = 4
# So many offsets may be missing between two batches that are taken for neighbours.
_LARGEST_GAP: Final = 1 << 16
# Damaged batches in a row whose headers are undamaged.
_LONGEST_RUN: Final = 64
# What looking at one header costs, in bytes of CRC.
_HEADER_COST_BYTES: Final = 1024
_LARGEST_MEMORY: Final = 65_536


class _Chain(NamedTuple):
    """Headers one behind the other: where the last one's batch ends, and with which offset."""

    end_bytes: int
    last_offset: int


class _Run(NamedTuple):
    """Batches one after the other: where they end, with which offset, and where each begins, by what tells it from others."""

    end_bytes: int
    last_offset: int
    places: dict[tuple[int, int], int]


class BatchSearch:
    """Searches one log file. A `BatchProbe` limits what that may cost."""

    def __init__(self, probe: BatchProbe, limits: OffsetLimits, max_batch_bytes: int) -> None:
        self._probe = probe
        self._limits = limits
        self._max_batch_bytes = max_batch_bytes
        # A batch that is searched for, not met in its turn, is believed no offset that no segment has.
        highest_offset = limits.base_offset + MAX_OFFSET_DELTA
        end_offset = highest_offset + 1 if limits.end_offset is None else limits.end_offset
        self._search_limits = OffsetLimits(limits.base_offset, min(end_offset, highest_offset + 1))
        self._records = RecordLengths(probe)
        self._chains: dict[int, _Chain] = {}
        self._runs: dict[int, _Run] = {}
        self._zeros = range(0)

    def whole(self, position_bytes: int) -> BatchHeader | None:
        """The batch that stands whole and with a right CRC at a place, whatever its offsets and size."""
        header = self._probe.header(position_bytes)
        return header if header is not None and self._probe.is_crc_right(header) else None

    def sound(
        self, position_bytes: int, lowest_offset: int, limits: OffsetLimits | None = None
    ) -> BatchHeader | None:
        """The batch at a place, if its CRC is right, its size within the limit, and its offsets fit."""
        header = self._probe.header(position_bytes)
        if header is None or header.size_bytes > self._max_batch_bytes:
            return None
        if not (limits or self._limits).follows(header, lowest_offset):
            return None
        return header.with_lower_base(lowest_offset) if self._probe.is_crc_right(header) else None

    def behind(self, position_bytes: int, lowest_offset: int) -> int | None:
        """Where to look next, behind a place where no batch counts; None if nothing is left.

        Either a batch stands there that may count, or damage goes on there.
        """
        whole = self.whole(position_bytes)
        if whole is not None:
            # Its offsets or its size are what is wrong: where it ends is certain.
            return self._or_none(whole.end_position_bytes)
        heads = [*self._heads(position_bytes)]
        end_bytes = self._proven_end(position_bytes, heads, lowest_offset)
        if end_bytes is not None:
            return self._or_none(end_bytes)
        if heads:
            end_bytes = heads[0].end_position_bytes
            if end_bytes == self._probe.end_bytes:
                return self._inside(heads[0], lowest_offset, end_bytes, self._search_limits)
            anchor = self._led_to(end_bytes, lowest_offset)
            if anchor is not None:
                inside = OffsetLimits(self._limits.base_offset, known_offset(anchor))
                return self._inside(heads[0], lowest_offset, end_bytes, inside) or end_bytes
        return self._first(position_bytes, lowest_offset)

    def _led_to(self, position_bytes: int, lowest_offset: int) -> BatchHeader | None:
        """The batch at a place, if it counts, or if headers lead from it, one after the other, to one that does.

        Batches in a row may be damaged, and their headers not.
        """
        first: BatchHeader | None = None
        for _ in range(_LONGEST_RUN):
            header = self._probe.header(position_bytes)
            if header is None or not self._limits.follows(header, lowest_offset):
                return None
            first = first or header
            if header.size_bytes <= self._max_batch_bytes and self._probe.is_crc_right(header):
                return first.with_lower_base(lowest_offset) if first is header else first
            position_bytes, lowest_offset = header.end_position_bytes, header.next_offset
        return None

    def _or_none(self, position_bytes: int) -> int | None:
        return position_bytes if position_bytes < self._probe.end_bytes else None

    def _heads(self, position_bytes: int) -> Iterator[BatchHeader]:
        """What a damaged header may have said: what it says, or what it would with another magic."""
        header = self._probe.header(position_bytes)
        if header is None:
            yield from self._probe.headers_but_for_magic(position_bytes)
        else:
            yield header

    def skip_zeros(self, position_bytes: int) -> int | None:
        """The first block from a place on that does not hold zeros alone; None if all the rest does."""
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

    # Where the damaged batch ends.

    def _proven_end(self, position_bytes: int, heads: list[BatchHeader], lowest_offset: int) -> int | None:
        """Where the damaged batch ends, if its records (1), its CRC (2) or its neighbours (3) tell."""
        declared_bytes = self._declared_end(position_bytes)
        stated = [
            self._records.contents(position_bytes, magic, declared_bytes) for magic in range(len(CRC_LAYOUTS))
        ]
        for contents in stated:
            for end_bytes in (contents.end_bytes, declared_bytes):
                if self._is_crc_right(position_bytes, contents.magic, end_bytes):
                    return end_bytes
        magic = self._probe.read_at(1, position_bytes + MAGIC_POSITION)
        likely = [contents for contents in stated if magic == bytes([contents.magic])]
        proven_bytes = self._first_end_of_records(position_bytes, likely, lowest_offset)
        if proven_bytes is not None:
            return proven_bytes
        followed = next((head for head in reversed(heads) if self._is_followed(head, lowest_offset)), None)
        if followed is not None and self._is_endless(followed.end_position_bytes):
            return followed.end_position_bytes
        proven_bytes = self._end_by_crc(position_bytes, lowest_offset)
        if proven_bytes is None and followed is not None:
            proven_bytes = followed.end_position_bytes
        if proven_bytes is None:
            proven_bytes = self._first_end_of_records(position_bytes, stated, lowest_offset)
        return proven_bytes

    def _first_end_of_records(
        self, position_bytes: int, stated: list[BatchContents], lowest_offset: int
    ) -> int | None:
        ends = (self._end_of_records(position_bytes, contents, lowest_offset) for contents in stated)
        return next((end_bytes for end_bytes in ends if end_bytes is not None), None)

    def _end_of_records(self, position_bytes: int, contents: BatchContents, lowest_offset: int) -> int | None:
        """Where a batch ends by the lengths of its records, if anything bears them out (1)."""
        magic, head_end_bytes, end_bytes, records = contents
        declared_bytes = self._declared_end(position_bytes)
        if not records:
            return None
        if next(self._sound_batches(position_bytes + 1, head_end_bytes, lowest_offset), None) is not None:
            # No key holds batches: its length is damaged.
            return None
        if self._is_border(end_bytes, lowest_offset):
            # A length that was damaged may lead past batches of the log.
            is_past = declared_bytes < end_bytes and self._is_border(declared_bytes, lowest_offset)
            return (
                declared_bytes if is_past and self._leads_to(declared_bytes, end_bytes, set()) else end_bytes
            )
        if magic == MAGIC_V2 and end_bytes == declared_bytes <= self._probe.end_bytes:
            return self._across(position_bytes, end_bytes, lowest_offset) or end_bytes
        head = self._torn(position_bytes, magic, lowest_offset)
        is_torn = self._probe.end_bytes < end_bytes <= declared_bytes
        if head is None or not is_torn or (magic < MAGIC_V2 and end_bytes != declared_bytes):
            return None
        end_bytes = self._probe.end_bytes
        return self._inside(head, lowest_offset, end_bytes, self._search_limits) or end_bytes

    def _is_neighbour(self, header: BatchHeader, position_bytes: int) -> bool:
        """Whether headers lead from a batch to another one, or to the end, without a gap in bytes and in offsets.

        What is copied into a value hardly ever has the very offsets that are missing there. Where a wrapper begins,
        its header does not tell.
        """
        while header.end_position_bytes < position_bytes and self._probe.spend_on_proof(_HEADER_COST_BYTES):
            following = self._probe.header(header.end_position_bytes)
            if following is None or known_offset(following) <= header.last_offset:
                return False
            header = following
        if header.end_position_bytes != position_bytes:
            return False
        behind = self._probe.header(position_bytes)
        if behind is None:
            return header.next_offset == self._limits.end_offset
        return behind.is_wrapper or header.next_offset == behind.base_offset

    def _torn(self, position_bytes: int, magic: int, lowest_offset: int) -> BatchHeader | None:
        """The header of an append of which the rest never came to be in the file; None if none begins at a place."""
        header = self._probe.header(position_bytes)
        if header is None or header.magic != magic or header.size_bytes > self._max_batch_bytes:
            return None
        if header.is_wrapper:
            is_next = lowest_offset <= header.last_offset < lowest_offset + _LARGEST_GAP
        else:
            is_next = header.base_offset == lowest_offset
        return header if is_next else None

    def _declared_end(self, position_bytes: int) -> int:
        length = self._probe.read_at(LENGTH_BYTES, position_bytes + LENGTH_POSITION)
        return position_bytes + LOG_OVERHEAD_BYTES + int.from_bytes(length, "big", signed=True)

    def _across(self, position_bytes: int, end_bytes: int, lowest_offset: int) -> int | None:
        """A batch in front of a damaged one's end that leads across it: bytes of the damaged one are gone."""
        values = self._values(position_bytes)
        for header in self._sound_batches(position_bytes + 1, end_bytes, lowest_offset):
            place = header.position_bytes
            if self._crosses(place, end_bytes) and self._is_of_log(header, lowest_offset, values):
                return place
        return None

    def _crosses(self, position_bytes: int, border_bytes: int) -> bool:
        """Whether headers lead from a batch across a place, and none of them begins there."""
        is_beyond = self._chain(position_bytes).end_bytes > border_bytes
        return is_beyond and not self._leads_to(position_bytes, border_bytes, set())

    def _is_border(self, position_bytes: int, lowest_offset: int) -> bool:
        """Whether a batch that may count begins at a place, or the file ends there."""
        if position_bytes == self._probe.end_bytes:
            return True
        return self.sound(position_bytes, lowest_offset, self._search_limits) is not None

    def _is_crc_right(self, position_bytes: int, magic: int, end_bytes: int) -> bool:
        """Whether a batch's CRC is right if it ends at a place, and is of a format."""
        layout = CRC_LAYOUTS[magic]
        start_bytes = position_bytes + layout.start
        is_whole = start_bytes + HEADER_SIZE_BYTES - CRC_START <= end_bytes <= self._probe.end_bytes
        crc = 0
        if magic < MAGIC_V2:
            crc, start_bytes = layout.compute(bytes([magic])), start_bytes + 1
        if not is_whole or not self._probe.spend_on_proof(end_bytes - start_bytes):
            return False
        stated = self._probe.read_at(_CRC_BYTES, position_bytes + layout.position)
        return self._probe.crc(magic, start_bytes, end_bytes, crc) == int.from_bytes(stated, "big")

    def _end_by_crc(self, position_bytes: int, lowest_offset: int) -> int | None:
        """Where the CRC of a batch of format v2 is right, if its length is damaged and nothing that the CRC covers.

        A message whose CRC is right has lengths that lead to its end.
        """
        stated = self._probe.read_at(_CRC_BYTES, position_bytes + CRC_LAYOUTS[MAGIC_V2].position)
        if not any(stated):
            return None
        from_bytes, crc = position_bytes + CRC_START, 0
        last_bytes = min(position_bytes + _LOOK_AHEAD_BYTES, self._probe.end_bytes)
        for place in self._candidates(position_bytes + HEADER_SIZE_BYTES, last_bytes, 0):
            if not self._probe.spend_on_proof(place - from_bytes + _HEADER_COST_BYTES):
                return None
            crc, from_bytes = self._probe.crc(MAGIC_V2, from_bytes, place, crc), place
            if crc == int.from_bytes(stated, "big"):
                return place
            if self.sound(place, lowest_offset, self._search_limits) and self._is_endless(place):
                # No content of a batch leads out of it.
                return None
        crc = self._probe.crc(MAGIC_V2, from_bytes, last_bytes, crc)
        return last_bytes if crc == int.from_bytes(stated, "big") else None

    def _is_followed(self, bad: BatchHeader, lowest_offset: int) -> bool:
        """Whether there is no room for batches in front of the end that a damaged one declares (3)."""
        header = bad
        for _ in range(_LONGEST_RUN):
            if header.is_wrapper or header.base_offset != lowest_offset:
                return False
            lowest_offset = header.next_offset
            if header.end_position_bytes == self._probe.end_bytes:
                return lowest_offset == self._limits.end_offset
            behind = self._probe.header(header.end_position_bytes)
            if behind is None or behind.end_position_bytes > self._probe.end_bytes:
                return False
            if self._probe.is_crc_right(behind):
                return not behind.is_wrapper and behind.base_offset == lowest_offset
            header = behind
        return False

    # Batches behind it.

    def _inside(
        self, bad: BatchHeader, lowest_offset: int, goal_bytes: int, limits: OffsetLimits
    ) -> int | None:
        """A batch in front of a damaged one's end that is no content of it (4)."""
        first_offset = lowest_offset
        if self._limits.follows(bad, lowest_offset):
            # The offsets that it has itself are no others'.
            first_offset = bad.next_offset
        dead_ends: set[int] = set()
        values = self._values(bad.position_bytes)
        for header in self._sound_batches(bad.position_bytes + 1, goal_bytes, first_offset, limits):
            place = header.position_bytes
            if not self._leads_to(place, goal_bytes, dead_ends) or not self._is_of_log(
                header, lowest_offset, values
            ):
                continue
            # A message's value may end with what leads to the message's end, too.
            if bad.magic < MAGIC_V2 and place - bad.position_bytes < _LOOK_AHEAD_BYTES:
                start_bytes = bad.position_bytes + min(KEY_LENGTH_POSITIONS)
                if self._records.is_told_by_length(start_bytes, place, goal_bytes):
                    return None
            return place
        return None

    def _first(self, position_bytes: int, lowest_offset: int) -> int | None:
        """The next batch if the declared end says nothing (5), but for what offsets say."""
        bad = self._probe.header(position_bytes)
        follows_offset = None
        if bad is not None and not bad.is_wrapper and bad.base_offset == lowest_offset:
            follows_offset = bad.next_offset
        first: BatchHeader | None = None
        again: BatchHeader | None = None
        wrapper = self._wrapper(bad, lowest_offset)
        values = self._values(position_bytes)
        for header in self._sound_batches(position_bytes + 1, self._probe.end_bytes, lowest_offset):
            if wrapper is not None and self._is_in_wrapper(header, wrapper):
                continue
            place = header.position_bytes
            is_far = first is not None and place > first.position_bytes + _LOOK_AHEAD_BYTES
            if is_far or (first is not None and not self._probe.spend(_HEADER_COST_BYTES)):
                break
            if not self._is_of_log(header, lowest_offset, values):
                continue
            first = first or header
            if follows_offset is None:
                break
            if header.base_offset == follows_offset and not header.is_wrapper:
                # A broker that did not cut off a torn batch has given its offsets again.
                before = (
                    each for each in (first, again) if each is not None and self._is_neighbour(each, place)
                )
                return next(before, header).position_bytes
            if again is None and header.base_offset == lowest_offset and not header.is_wrapper:
                again = header
        return None if first is None else first.position_bytes

    # What tells a batch from the content of a record.

    def _is_of_log(self, header: BatchHeader, lowest_offset: int, values: _Values) -> bool:
        """Whether nothing says that a sound batch is the content of a record."""
        place = header.position_bytes
        if values.overtaken.get(place):
            return False
        if place < values.content_end_bytes and not self._crosses(place, values.content_end_bytes):
            return False
        end_bytes = self._end_of_content(header, lowest_offset, values)
        if end_bytes > place and not self._crosses(place, end_bytes):
            values.content_end_bytes = end_bytes
            return False
        return not self._is_overtaken(header, lowest_offset, values)

    def _is_overtaken(self, header: BatchHeader, lowest_offset: int, values: _Values) -> bool:
        """Whether batches follow, more of them, that those which begin here leave no offsets for."""
        place = header.position_bytes
        if place not in values.overtaken:
            if self._is_endless(place):
                return False
            run = self._run(header)
            is_overtaken = self._is_run_overtaken(header, run, lowest_offset)
            # What is true of a run is true of every batch in it.
            values.overtaken.update(dict.fromkeys(run.places.values(), is_overtaken))
        return values.overtaken[place]

    def _is_run_overtaken(self, header: BatchHeader, run: _Run, lowest_offset: int) -> bool:
        size_bytes = run.end_bytes - header.position_bytes
        last_bytes = min(run.end_bytes + _LOOK_AHEAD_BYTES, self._probe.end_bytes)
        # A batch of another order that follows at once is left to what decides between neighbours.
        for other in self._sound_batches(run.end_bytes + 1, last_bytes, lowest_offset):
            if not self._probe.spend_on_proof(_HEADER_COST_BYTES):
                break
            place = other.position_bytes
            if self._is_endless(place) or self._run(other).end_bytes - place > size_bytes:
                is_copy = (other.last_offset, other.crc) in run.places
                return known_offset(other) <= run.last_offset and not is_copy
        return False

    def _end_of_content(self, header: BatchHeader, lowest_offset: int, values: _Values) -> int:
        """Where what a batch belongs to ends, if it is the content of a record; otherwise 0."""
        if values.is_compressed:
            return 0
        place = header.position_bytes
        end_bytes = values.end_around(header)
        if end_bytes:
            return end_bytes
        for end_bytes in self._records.ends_of_messages_before(place, values.start_bytes):
            is_room = end_bytes >= header.end_position_bytes
            if (
                is_room
                and self._is_border(end_bytes, lowest_offset)
                and not self._is_neighbour(header, end_bytes)
            ):
                return end_bytes
        if self._is_endless(place) or place - values.start_bytes < HEADER_SIZE_BYTES:
            return 0
        run = self._run(header)
        value_ends = [end for end in self._records.ends_of_values_before(place) if end >= run.end_bytes]
        for value_end_bytes in [*value_ends, run.end_bytes]:
            end_bytes = self._records.end_of_rest(value_end_bytes)
            if end_bytes > value_end_bytes and self._is_border(end_bytes, lowest_offset):
                behind = self._probe.header(end_bytes)
                # A byte or two may have come between neighbours.
                is_next = behind is not None and known_offset(behind) == run.last_offset + 1
                return 0 if is_next else end_bytes
        return 0

    def _run(self, header: BatchHeader) -> _Run:
        """Follow batches whose CRCs are right, one behind the other, from one on."""
        known = self._runs.get(header.position_bytes)
        if known is not None:
            return known
        places = {(header.last_offset, header.crc): header.position_bytes}
        end_bytes, last_offset = header.end_position_bytes, header.last_offset
        while end_bytes - header.position_bytes < _LOOK_AHEAD_BYTES:
            following = self.whole(end_bytes)
            if following is None or known_offset(following) <= last_offset:
                break
            places[following.last_offset, following.crc] = end_bytes
            end_bytes, last_offset = following.end_position_bytes, following.last_offset
        run = _Run(end_bytes, last_offset, places)
        if len(self._runs) >= _LARGEST_MEMORY:
            self._runs.clear()
        # Whoever looks at a batch of it next need not follow it again.
        self._runs.update(dict.fromkeys(places.values(), run))
        return run

    @staticmethod
    def _is_in_wrapper(header: BatchHeader, wrapper: BatchHeader) -> bool:
        """Whether a message is of those in a wrapper: a codec may have left them as they were."""
        return (
            not header.is_wrapper
            and header.position_bytes < wrapper.end_position_bytes
            and header.base_offset < wrapper.next_offset
        )

    def _wrapper(self, bad: BatchHeader | None, lowest_offset: int) -> BatchHeader | None:
        """The wrapper that begins with damage, if its header may be believed."""
        if bad is None or not bad.is_wrapper:
            return None
        key_bytes = self._probe.read_at(LENGTH_BYTES, bad.position_bytes + KEY_LENGTH_POSITIONS[bad.magic])
        is_likely = (
            lowest_offset <= bad.last_offset < lowest_offset + _LARGEST_GAP
            and bad.end_position_bytes <= self._probe.end_bytes
            and bad.codec < LEGACY_CODEC_COUNT
            and int.from_bytes(key_bytes, "big", signed=True) == _NULL_LENGTH
        )
        return bad if is_likely else None

    # What stands anywhere.

    def _leads_to(self, position_bytes: int, goal_bytes: int, dead_ends: set[int]) -> bool:
        """Whether headers, one behind the other, lead from a batch exactly to a place."""
        seen = []
        lowest_offset = 0
        while position_bytes < goal_bytes:
            seen.append(position_bytes)
            if position_bytes in dead_ends or not self._probe.spend(_HEADER_COST_BYTES):
                break
            header = self._probe.header(position_bytes)
            if header is None or not self._limits.follows(header, lowest_offset):
                is_end = goal_bytes == self._probe.end_bytes and self._is_blank_tail(position_bytes)
                if is_end:
                    return True
                break
            lowest_offset = header.next_offset
            position_bytes = header.end_position_bytes
        else:
            if position_bytes == goal_bytes:
                return True
        dead_ends.update(seen)
        return False

    def _chain(self, position_bytes: int) -> _Chain:
        """Follow headers, one behind the other, from a place on, for as long as their offsets ascend."""
        start_bytes, last_offset, passed = position_bytes, -1, []
        while position_bytes - start_bytes < _LOOK_AHEAD_BYTES:
            header = self._probe.header(position_bytes)
            if (
                header is None
                or known_offset(header) <= last_offset
                or header.end_position_bytes > self._probe.end_bytes
            ):
                break
            # Where this chain was followed before, it need not be again, and costs nothing.
            chain = self._chains.get(position_bytes)
            if chain is None:
                if not self._probe.spend_on_proof(_HEADER_COST_BYTES):
                    break
                chain = _Chain(header.end_position_bytes, header.last_offset)
            passed.append(position_bytes)
            position_bytes, last_offset = chain
        if len(self._chains) >= _LARGEST_MEMORY:
            self._chains.clear()
        chain = _Chain(position_bytes, last_offset)
        self._chains.update(dict.fromkeys(passed, chain))
        return chain

    def _is_endless(self, position_bytes: int) -> bool:
        """Whether headers lead on from a place to the end of the file, or farther than the content of a batch would."""
        end_bytes = self._chain(position_bytes).end_bytes
        is_long = end_bytes - position_bytes >= _LOOK_AHEAD_BYTES
        return is_long or end_bytes == self._probe.end_bytes or self._is_blank_tail(end_bytes)

    def _values(self, start_bytes: int) -> _Values:
        bad = self._probe.header(start_bytes)
        last_bytes = min(start_bytes + _LOOK_AHEAD_BYTES, self._probe.end_bytes)
        return _Values(
            self._records, start_bytes, last_bytes, is_compressed=bad is not None and bad.codec != 0
        )

    def _is_blank_tail(self, position_bytes: int) -> bool:
        """Whether a preallocated rest begins at a place. A few zeros may as well be those of an offset."""
        if self._probe.end_bytes - position_bytes < HEADER_SIZE_BYTES:
            return False
        if position_bytes not in self._zeros:
            # Many chains of headers lead to the same zeros.
            behind = self.skip_zeros(position_bytes)
            self._zeros = range(position_bytes, self._probe.end_bytes if behind is None else behind)
        return self._zeros.stop == self._probe.end_bytes

    def _sound_batches(
        self, start_bytes: int, end_bytes: int, lowest_offset: int, limits: OffsetLimits | None = None
    ) -> Iterator[BatchHeader]:
        """The sound batches that begin at any byte from one place to below another."""
        for place in self._candidates(start_bytes, end_bytes, lowest_offset):
            header = self.sound(place, lowest_offset, limits or self._search_limits)
            if header is not None:
                yield header
            if self._probe.is_exhausted:
                return

    def _candidates(self, start_bytes: int, end_bytes: int, lowest_offset: int) -> Iterator[int]:
        """Where something begins that looks like a batch."""
        position_bytes: int | None = start_bytes
        block_bytes = _FIRST_BLOCK_BYTES
        while position_bytes is not None and position_bytes < end_bytes:
            block = np.frombuffer(self._probe.read_at(block_bytes, position_bytes), np.uint8)
            remaining_bytes = self._probe.end_bytes - position_bytes
            if block.any():
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
            if not block.any():
                position_bytes = self._before_data(position_bytes)
            block_bytes = min(4 * block_bytes, _LARGEST_BLOCK_BYTES)

    def _before_data(self, position_bytes: int) -> int | None:
        """Where a header may begin that is not of zeros alone."""
        data_bytes = self._probe.next_data(position_bytes)
        return None if data_bytes is None else max(position_bytes, data_bytes - HEADER_SIZE_BYTES)


class _Values:
    """What the values of whole records hold, from a place on.

    Attributes:
        start_bytes: The place.
        is_compressed: Whether the batch there is compressed, as its header says: what a codec has left of its
            records is not as long as they say.
        content_end_bytes: Up to where all is content that does not lead across.
        overtaken: By where a batch begins, whether those that follow leave it no room; of those that were looked at.
    """

    def __init__(
        self, records: RecordLengths, start_bytes: int, end_bytes: int, *, is_compressed: bool
    ) -> None:
        self.is_compressed = is_compressed
        self.content_end_bytes = start_bytes
        self.overtaken: dict[int, bool] = {}
        self._records = records
        self.start_bytes = start_bytes
        self._end_bytes = end_bytes
        self._candidates: RecordCandidates | None = None

    def end_around(self, header: BatchHeader) -> int:
        """Where the record ends that has a batch in its value; 0 if there is none."""
        if header.position_bytes >= self._end_bytes:
            return 0
        if self._candidates is None:
            self._candidates = self._records.candidates(self.start_bytes, self._end_bytes)
        return self._records.end_around(header.position_bytes, header.end_position_bytes, self._candidates)
