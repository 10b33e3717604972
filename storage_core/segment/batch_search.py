"""Searching for the next batch behind bytes that are none, or that are a batch with a wrong CRC.

A damaged batch's length may be right, and then what looks like batches inside it is the content of
a record: a copy of some log. Or the length is what was damaged, and these are the next batches.
What tells the two apart, the strongest evidence first:

1. The CRC does not cover the length. If the CRC is right once the damaged batch is taken to end
   where another begins, only its length was wrong.
2. The headers at hand leave no room: the damaged one follows the batch before without a gap, and a
   batch follows it, at the end that it declares, without a gap.
3. A batch that counts begins at the declared end, or the file ends there: then a batch in front of
   there is believed only if a chain of headers leads from it exactly to that end.
4. Nothing is to be made of the declared end: the first batch whose CRC is right and whose offsets
   fit is the next one, unless a length in front of it says that it is the value of a record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from storage_core.record.batch_header import CRC_LAYOUTS, HEADER_SIZE_BYTES, MAGIC_V2, MAX_OFFSET_DELTA
from storage_core.record.batch_search import batch_candidates
from storage_core.record.legacy_message import CODEC_COUNT, KEY_LENGTH_POSITIONS, LENGTH_BYTES
from storage_core.segment.offset_order import OffsetLimits, known_offset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.record.batch_header import BatchHeader
    from storage_core.segment.batch_probe import BatchProbe

__all__ = ["BatchSearch"]

_FIRST_BLOCK_BYTES: Final = 4096
_LARGEST_BLOCK_BYTES: Final = 1024 * 1024
# How far behind a first find a better one is looked for: brokers' batches are hardly ever larger.
_LOOK_AHEAD_BYTES: Final = 1024 * 1024
# What is looked at in front of what may be a value: its length, and in formats v0 and v1 the key.
_FRONT_BYTES: Final = 264
_LONGEST_VARINT_BYTES: Final = 5
_NULL_LENGTH: Final = -1
_OFFSET_BYTES: Final = 8
# Set in every byte of a varint but its last.
_CONTINUES: Final = 0x80
# So many offsets may be missing between two batches that are taken for neighbours.
_LARGEST_GAP: Final = 1 << 16
# Damaged batches in a row whose headers are undamaged.
_LONGEST_RUN: Final = 64
# What looking at one header costs, in bytes of CRC.
_HEADER_COST_BYTES: Final = 1024


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
        bad = None
        for bad in reversed([*self._headers(position_bytes)]):
            if self._is_followed(bad, lowest_offset):
                return self._or_none(bad.end_position_bytes)
        if bad is None:
            return self._first(position_bytes, lowest_offset)
        end_bytes = bad.end_position_bytes
        if end_bytes < self._probe.end_bytes:
            anchor = self.sound(end_bytes, lowest_offset)
            if anchor is None:
                return self._first(position_bytes, lowest_offset)
            inside = OffsetLimits(self._limits.base_offset, known_offset(anchor))
            return self._inside(bad, lowest_offset, end_bytes, inside) or end_bytes
        if end_bytes == self._probe.end_bytes:
            return self._inside(bad, lowest_offset, end_bytes, self._search_limits)
        return self._first(position_bytes, lowest_offset)

    def _headers(self, position_bytes: int) -> Iterator[BatchHeader]:
        """What a damaged header may have said: what it says, or what it would with another magic."""
        header = self._probe.header(position_bytes)
        if header is None:
            yield from self._probe.headers_but_for_magic(position_bytes)
        else:
            yield header

    def _or_none(self, position_bytes: int) -> int | None:
        return position_bytes if position_bytes < self._probe.end_bytes else None

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

    def _first(self, position_bytes: int, lowest_offset: int) -> int | None:
        """The next batch if the declared end says nothing (4), but for what its CRC (1) or offsets say."""
        bad = self._probe.header(position_bytes)
        first = self._first_outside_of_values(position_bytes, lowest_offset, bad)
        if first is None or bad is None:
            return first
        last_bytes = min(first + _LOOK_AHEAD_BYTES, position_bytes + self._max_batch_bytes)
        last_bytes = min(last_bytes, self._probe.end_bytes)
        proof = _LengthProof(self._probe, bad)
        follows_offset = None if bad.is_wrapper or bad.base_offset != lowest_offset else bad.next_offset
        again: int | None = None
        for place in self._sound_places(first, last_bytes, lowest_offset):
            header = self._probe.header(place)
            if header is not None and not header.is_wrapper and follows_offset is not None:
                if header.base_offset == follows_offset:
                    # A broker that did not cut off a torn batch has given its offsets again.
                    is_again = again is not None and self._leads_to(again, place, set())
                    return again if is_again else place
                if again is None and header.base_offset == lowest_offset:
                    again = place
            if proof.is_end(place):
                return place
            if not self._probe.spend(_LOOK_AHEAD_BYTES // _HEADER_COST_BYTES):
                break
        return first

    def _inside(
        self, bad: BatchHeader, lowest_offset: int, goal_bytes: int, limits: OffsetLimits
    ) -> int | None:
        """A batch in front of a damaged one's end that is no content of it: (1) or (3)."""
        proof = _LengthProof(self._probe, bad)
        dead_ends: set[int] = set()
        if self._limits.follows(bad, lowest_offset):
            # The offsets that it has itself are no others'.
            lowest_offset = bad.next_offset
        for place in self._sound_places(bad.position_bytes + 1, goal_bytes, lowest_offset, limits):
            if proof.is_end(place) or self._leads_to(place, goal_bytes, dead_ends):
                return place
        return None

    def _first_outside_of_values(
        self, position_bytes: int, lowest_offset: int, bad: BatchHeader | None
    ) -> int | None:
        """The first sound batch behind a place, but for those that seem to be what a record holds."""
        old = self._old_message(position_bytes, lowest_offset)
        value_end_bytes = 0
        for place in self._sound_places(position_bytes + 1, self._probe.end_bytes, lowest_offset):
            if place < value_end_bytes:
                continue
            header = self._probe.header(place)
            if header is None:
                continue
            if old is not None:
                # What a codec has left as it was in a wrapper are messages, too.
                is_inside = place < old.end_position_bytes and known_offset(header) < old.next_offset
                if is_inside and old.is_wrapper and not header.is_wrapper:
                    continue
                # Lengths of four bytes are easily found where there are none.
                if not header.is_wrapper and header.base_offset == old.next_offset:
                    return place
            if bad is None or bad.codec == 0:
                value_end_bytes = place + self._value_bytes(place, position_bytes, bad)
            if value_end_bytes <= place:
                return place
        return None

    def _old_message(self, position_bytes: int, lowest_offset: int) -> BatchHeader | None:
        """The message of format v0 or v1 that begins with damage, if its header may be believed."""
        header = self._probe.header(position_bytes)
        if header is None or header.magic == MAGIC_V2:
            return None
        if not header.is_wrapper:
            return header if header.base_offset == lowest_offset else None
        key_bytes = self._probe.read_at(LENGTH_BYTES, position_bytes + KEY_LENGTH_POSITIONS[header.magic])
        is_likely = (
            lowest_offset <= header.last_offset < lowest_offset + _LARGEST_GAP
            and header.end_position_bytes <= self._probe.end_bytes
            and header.codec < CODEC_COUNT
            and int.from_bytes(key_bytes, "big", signed=True) == _NULL_LENGTH
        )
        return header if is_likely else None

    def _value_bytes(self, place: int, start_bytes: int, bad: BatchHeader | None) -> int:
        """The length of the value that begins with a batch, if it seems to be a value; otherwise 0.

        The length stands in front of it. It is what some batches take up together, or more than that,
        and then they lead nowhere.
        """
        front_bytes = max(start_bytes, place - _FRONT_BYTES)
        front = self._probe.read_at(place - front_bytes, front_bytes)
        exact_bytes = _legacy_length_at_end(front)
        lengths = [
            length
            for length, is_last_field in ((exact_bytes, True), (_varint_at_end(front), False))
            if 0 < length <= self._max_batch_bytes
            and self._may_end_value(place + length, bad, is_last_field=is_last_field)
        ]
        position_bytes, lowest_offset = place, 0
        while fitting := [length for length in lengths if length >= position_bytes - place]:
            if position_bytes - place == exact_bytes > 0:
                return exact_bytes
            whole = self.whole(position_bytes)
            if whole is None:
                is_next = self._is_next_offset(position_bytes, lowest_offset, place + max(fitting))
                return 0 if is_next or position_bytes == self._probe.end_bytes else min(fitting)
            if whole.last_offset < lowest_offset:
                # Batches out of order are no content either.
                return 0
            position_bytes, lowest_offset = whole.end_position_bytes, whole.next_offset
        return 0

    def _is_next_offset(self, position_bytes: int, lowest_offset: int, value_end_bytes: int) -> bool:
        """Whether one of the next offsets stands at a place: then the next batch did, and is damaged.

        A batch that ends within the value is none of these.
        """
        header = self._probe.header(position_bytes)
        if header is not None and header.end_position_bytes <= value_end_bytes:
            return False
        offset = int.from_bytes(self._probe.read_at(_OFFSET_BYTES, position_bytes), "big")
        return lowest_offset <= offset < lowest_offset + _LARGEST_GAP

    def _may_end_value(self, position_bytes: int, bad: BatchHeader | None, *, is_last_field: bool) -> bool:
        """Whether what stands at a place may stand behind a value.

        In formats v0 and v1 that is the next message, in format v2 the number of headers: mostly none.
        The value of a torn batch would go on behind the end of the file, to where the batch would end.
        """
        if position_bytes > self._probe.end_bytes:
            if bad is None:
                return False
            if is_last_field:
                return position_bytes == bad.end_position_bytes
            return bad.magic == MAGIC_V2 and position_bytes < bad.end_position_bytes
        if is_last_field:
            return position_bytes == self._probe.end_bytes or self.whole(position_bytes) is not None
        return self._probe.read_at(1, position_bytes) == b"\0"

    def _is_followed(self, bad: BatchHeader, lowest_offset: int) -> bool:
        """Whether there is no room for batches in front of the end that a damaged one declares (2)."""
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

    def _is_blank_tail(self, position_bytes: int) -> bool:
        """Whether a preallocated rest begins at a place. A few zeros may as well be those of an offset."""
        if self._probe.end_bytes - position_bytes < HEADER_SIZE_BYTES:
            return False
        return self.skip_zeros(position_bytes) is None

    def _sound_places(
        self, start_bytes: int, end_bytes: int, lowest_offset: int, limits: OffsetLimits | None = None
    ) -> Iterator[int]:
        """Where sound batches begin, at any byte from one place to below another."""
        for place in self._candidates(start_bytes, end_bytes, lowest_offset):
            if self.sound(place, lowest_offset, limits or self._search_limits) is not None:
                yield place
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


def _varint_at_end(data: bytes) -> int:
    """The largest length that the last bytes may be as a varint; 0 if none."""
    largest = value = 0
    for index, byte in enumerate(reversed(data[-_LONGEST_VARINT_BYTES:])):
        if (byte < _CONTINUES) != (index == 0):
            break
        value = value << 7 | byte & 0x7F
        # An even number is not negative.
        largest = max(largest, 0 if value & 1 else value >> 1)
    return largest


def _legacy_length_at_end(data: bytes) -> int:
    """The length of a value that the last bytes may be in formats v0 and v1, behind a key; 0 if none."""
    ints = [
        int.from_bytes(data[start : start + LENGTH_BYTES], "big", signed=True)
        for start in range(len(data) - LENGTH_BYTES, -1, -1)
    ]
    # Of a key, a null key's aside, the length is the distance to where it ends.
    keys = ints[LENGTH_BYTES:]
    has_key = keys[:1] == [_NULL_LENGTH] or any(length == index for index, length in enumerate(keys))
    return ints[0] if has_key else 0


class _LengthProof:
    """Whether a damaged batch's CRC is right if it ends somewhere else than it says (1)."""

    def __init__(self, probe: BatchProbe, bad: BatchHeader) -> None:
        self._probe = probe
        self._bad = bad
        self._crc = 0
        self._end_bytes = bad.position_bytes + CRC_LAYOUTS[bad.magic].start

    def is_end(self, position_bytes: int) -> bool:
        """Whether the batch ends at a place. Places are asked for in ascending order."""
        if position_bytes < self._end_bytes:
            return False
        self._crc = self._probe.crc(self._bad.magic, self._end_bytes, position_bytes, self._crc)
        self._end_bytes = position_bytes
        return self._crc == self._bad.crc
