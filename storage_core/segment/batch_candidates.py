"""Finding what looks like a batch of any format, or like a record, anywhere in a block of bytes.

Following the lengths of records in a damaged file, without a header or a CRC to vouch for them.

A record of format v2 says how long it is, and so do its key, its value and each of its headers: all of
that has to add up. A message of format v0 or v1 ends with its value. So where a record is whole, what
lies in its value is its content, even if it looks like a batch; and where a batch's records end, the
batch does, whatever its header says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from storage_core.record.batch_header import (
    CODEC_COUNT,
    CODEC_MASK,
    HEADER_DTYPE,
    HEADER_SIZE_BYTES,
    KEY_LENGTH_POSITIONS,
    LENGTH_BYTES,
    LENGTH_DTYPE,
    LENGTH_POSITION,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_V2,
    MESSAGE_DTYPE,
    MESSAGE_SIZE_BYTES,
    MINIMUM_LENGTHS,
    gather,
)
from storage_core.record.varint import (
    VARINT_LIMIT_BYTES,
    VARLONG_LIMIT_BYTES,
    MalformedVarintError,
    read_varint,
)

if TYPE_CHECKING:
    from storage_core.segment.batch_walk import BatchProbe

__all__ = [
    "MAX_ENCODABLE_BATCH_BYTES",
    "BatchContents",
    "RecordCandidates",
    "RecordLengths",
    "batch_candidates",
    "record_candidates",
]


# What the length field can say at most.
MAX_ENCODABLE_BATCH_BYTES: Final = (1 << 31) - 1 + LOG_OVERHEAD_BYTES
# The attribute bits that Kafka has assigned in format v2; the others are zero. In older formats a broker
# takes any others.
_KNOWN_ATTRIBUTES: Final = 0x7F
# The smallest record: attributes, two deltas, and no key, value or header.
_SMALLEST_RECORD_LENGTH: Final = 6
# Set in every byte of a varint but its last.
_CONTINUES: Final = 0x80
_Bytes = npt.NDArray[np.uint8]
_Int64Array = npt.NDArray[np.int64]


def batch_candidates(
    block: _Bytes, remaining_bytes: int, lowest_offset: int, *, largest_bytes: int = MAX_ENCODABLE_BATCH_BYTES
) -> list[tuple[int, int]]:
    """Places in a block that look like a batch of any format, each with its size, ascending.

    The CRC is not checked. Of the last 60 bytes of a block that is not the file's end none is told: they
    may be the beginning of a header, and have to be looked at again at the beginning of the next block.

    Args:
        block: Some bytes of a file.
        remaining_bytes: How many bytes the file has from the block's first one on.
        lowest_offset: No batch is looked for that begins below it.
        largest_bytes: No batch is looked for that is larger. Among random bytes, a limit rules most out.
    """
    is_end = len(block) >= remaining_bytes
    count = len(block) - (MESSAGE_SIZE_BYTES if is_end else HEADER_SIZE_BYTES) + 1
    if count <= 0:
        return []
    magics = block[MAGIC_POSITION : MAGIC_POSITION + count]
    starts = np.flatnonzero(magics <= MAGIC_V2)
    # Most places are ruled out by their length: zeros above all.
    lengths = gather(block, starts + LENGTH_POSITION, LENGTH_DTYPE).astype(np.int64)
    is_long_enough = lengths >= np.array(MINIMUM_LENGTHS)[magics[starts]]
    sizes = lengths + LOG_OVERHEAD_BYTES
    fits = is_long_enough & (sizes <= np.minimum(remaining_bytes - starts, largest_bytes))
    starts, sizes = starts[fits], sizes[fits]
    if is_end:
        block = np.concatenate([block, np.zeros(HEADER_SIZE_BYTES, np.uint8)])
    is_current = magics[starts] == MAGIC_V2
    plausible = np.zeros(len(starts), np.bool_)
    plausible[is_current] = _are_batches(block, starts[is_current], lowest_offset)
    plausible[~is_current] = _are_messages(block, starts[~is_current], sizes[~is_current], lowest_offset)
    return list(zip(starts[plausible].tolist(), sizes[plausible].tolist(), strict=True))


def _are_batches(block: _Bytes, starts: _Int64Array, lowest_offset: int) -> npt.NDArray[np.bool_]:
    headers = gather(block, starts, HEADER_DTYPE)
    plausible: npt.NDArray[np.bool_] = headers["base_offset"] >= lowest_offset
    plausible &= headers["last_offset_delta"] >= 0
    plausible &= headers["record_count"] >= 0
    plausible &= (headers["attributes"] & ~_KNOWN_ATTRIBUTES) == 0
    return plausible


def _are_messages(
    block: _Bytes, starts: _Int64Array, sizes: _Int64Array, lowest_offset: int
) -> npt.NDArray[np.bool_]:
    """Key and value have to fit the message, as far as they lie in the block."""
    messages = gather(block, starts, MESSAGE_DTYPE)
    plausible: npt.NDArray[np.bool_] = messages["offset"] >= lowest_offset
    plausible &= (messages["attributes"] & CODEC_MASK) < CODEC_COUNT
    key_positions = np.array(KEY_LENGTH_POSITIONS)[messages["magic"]]
    ends = starts + sizes
    key_ends, fits = _field_ends(block, starts + key_positions, ends - LENGTH_BYTES)
    plausible &= fits
    _, fits = _field_ends(block, key_ends, ends)
    return plausible & fits


def _field_ends(
    block: _Bytes, positions: _Int64Array, limits: _Int64Array
) -> tuple[_Int64Array, npt.NDArray[np.bool_]]:
    """Where the fields end whose lengths stand at some positions, and whether that is within the limits.

    A length behind the block's end fits.
    """
    last = len(block) - LENGTH_BYTES
    lengths = gather(block, np.minimum(positions, last), LENGTH_DTYPE).astype(np.int64)
    ends = positions + LENGTH_BYTES + np.maximum(lengths, 0)
    fits: npt.NDArray[np.bool_] = (positions > last) | ((lengths >= -1) & (ends <= limits))
    return ends, fits


def record_candidates(block: _Bytes) -> tuple[_Int64Array, _Int64Array]:
    """Where records of format v2 may begin in a block, and where they would end, in no order.

    All that is looked at is their length, which attributes of zero follow.
    """
    attributes = np.flatnonzero(block == 0)
    starts, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    bodies = attributes[attributes > 0]
    # The last byte of a length does not say that more follow; those before it do.
    bodies = bodies[block[bodies - 1] < _CONTINUES]
    raw = np.zeros(len(bodies), np.int64)
    for width in range(1, VARINT_LIMIT_BYTES + 1):
        raw = raw << 7 | (block[bodies - width] & (_CONTINUES - 1))
        # An even number is not negative.
        is_length = (raw & 1 == 0) & (raw >> 1 >= _SMALLEST_RECORD_LENGTH)
        starts.append(bodies[is_length] - width)
        ends.append(bodies[is_length] + (raw[is_length] >> 1))
        goes_on = (bodies > width) & (block[bodies - width - 1] >= _CONTINUES)
        bodies, raw = bodies[goes_on], raw[goes_on]
    return np.concatenate(starts), np.concatenate(ends)


_BLOCK_BYTES: Final = 256
# What looking at one record costs, in bytes of CRC.
_RECORD_COST_BYTES: Final = 1024
_ATTRIBUTES_BYTES: Final = 1
# No attribute of a record has a meaning yet.
_NO_ATTRIBUTES: Final = b"\0"
_NULL_LENGTH: Final = -1


class RecordCandidates(NamedTuple):
    """Where records may begin, and where they would end."""

    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]


class BatchContents(NamedTuple):
    """Where what no value belongs to ends, where the last whole record does, and how many there are of these.

    A message of format v0 or v1 is one record.
    """

    magic: int
    head_end_bytes: int
    end_bytes: int
    records: int


class _Record(NamedTuple):
    value_start: int
    value_end: int
    end: int
    offset_delta: int


class RecordLengths:
    """Reads the lengths of records anywhere in one log file."""

    def __init__(self, probe: BatchProbe) -> None:
        self._probe = probe
        self._block = b""
        self._block_start = 0

    def contents(self, position_bytes: int, magic: int, declared_bytes: int) -> BatchContents:
        """What the batch that begins at a place holds, if it is of a format.

        Args:
            position_bytes: The place.
            magic: The format.
            declared_bytes: Where its header says that it ends.
        """
        if magic == MAGIC_V2:
            start_bytes = position_bytes + HEADER_SIZE_BYTES
            return BatchContents(magic, start_bytes, *self._end_of_records(start_bytes, declared_bytes))
        start_bytes = position_bytes + KEY_LENGTH_POSITIONS[magic]
        key_end = self._end_of_field(start_bytes)
        end = None if key_end is None else self._end_of_field(key_end)
        if key_end is None or end is None:
            return BatchContents(magic, start_bytes, position_bytes, 0)
        return BatchContents(magic, key_end, end, 1)

    def end_of_batch_after_value(self, value_end_bytes: int) -> int:
        """Where a batch ends by what comes after a value: the record's headers, then other records; 0 if nowhere."""
        try:
            end = self._end_of_headers(value_end_bytes, self._probe.end_bytes)
        except MalformedVarintError:
            return 0
        return 0 if end is None else self._end_of_records(end)[0]

    def has_length_leading_to(self, start_bytes: int, end_bytes: int, goal_bytes: int) -> bool:
        """Whether a length of formats v0 and v1 that stands between two places leads exactly to a third one."""
        block = np.frombuffer(self._probe.read_at(end_bytes - start_bytes, start_bytes), np.uint8)
        places = np.arange(len(block) - LENGTH_BYTES + 1)
        lengths = gather(block, places, LENGTH_DTYPE).astype(np.int64)
        return bool((places + LENGTH_BYTES + lengths == goal_bytes - start_bytes).any())

    def value_ends_by_length_before(self, position_bytes: int) -> list[int]:
        """Where a value of format v2 would end that begins at a place, by what may be its length in front of it."""
        front_bytes = max(0, position_bytes - VARINT_LIMIT_BYTES)
        front = self._probe.read_at(position_bytes - front_bytes, front_bytes)
        ends = []
        for start in range(len(front)):
            try:
                length, end = read_varint(front, start, VARINT_LIMIT_BYTES)
            except MalformedVarintError:
                continue
            if end == len(front) and length > 0:
                ends.append(position_bytes + length)
        return ends

    def message_ends_by_length_before(self, position_bytes: int, start_bytes: int) -> list[int]:
        """Where a message that does not begin before a place would end, of which a value begins at another one."""
        length_bytes = position_bytes - LENGTH_BYTES
        if length_bytes < start_bytes + min(KEY_LENGTH_POSITIONS) + LENGTH_BYTES:
            return []
        end = self._end_of_field(length_bytes)
        return [] if end is None or end <= position_bytes else [end]

    def candidates(self, start_bytes: int, end_bytes: int) -> RecordCandidates:
        """Where records may begin between two places."""
        block = np.frombuffer(self._probe.read_at(end_bytes - start_bytes, start_bytes), np.uint8)
        starts, ends = record_candidates(block)
        return RecordCandidates(starts + start_bytes, ends + start_bytes)

    def end_of_record_around(self, start_bytes: int, end_bytes: int, candidates: RecordCandidates) -> int:
        """Where a whole record ends that has all bytes between two places within its value; 0 if there is none."""
        starts, ends = candidates
        for start in starts[(starts < start_bytes) & (ends > end_bytes)].tolist():
            found = self._record(start)
            if found is not None and found.value_start <= start_bytes and end_bytes <= found.value_end:
                return found.end
        return 0

    def _end_of_records(self, position_bytes: int, declared_bytes: int = 0) -> tuple[int, int]:
        count, last_delta = 0, -1
        while (found := self._record(position_bytes, declared_bytes)) is not None:
            # Records without an order of offsets are none.
            if found.offset_delta <= last_delta:
                break
            position_bytes, last_delta, count = found.end, found.offset_delta, count + 1
        return position_bytes, count

    def _record(self, position_bytes: int, declared_bytes: int = 0) -> _Record | None:
        """The record at a place, if its lengths add up."""
        if not self._probe.spend_on_proof(_RECORD_COST_BYTES):
            return None
        try:
            return self._parse_record(position_bytes, declared_bytes)
        except MalformedVarintError:
            return None

    def _parse_record(self, position_bytes: int, declared_bytes: int) -> _Record | None:
        length, body = self._varint(position_bytes)
        end = body + length
        if self._read(_ATTRIBUTES_BYTES, body) != _NO_ATTRIBUTES:
            return None
        _, position = self._varint(body + _ATTRIBUTES_BYTES, VARLONG_LIMIT_BYTES)
        offset_delta, position = self._varint(position)
        key_length, key_start = self._varint(position)
        if offset_delta < 0 or key_length < _NULL_LENGTH:
            return None
        value_length, value_start = self._varint(key_start + max(key_length, 0))
        value_end = value_start + max(value_length, 0)
        if value_length < _NULL_LENGTH or value_end >= end:
            return None
        is_torn = self._probe.end_bytes < end <= declared_bytes
        if not is_torn and self._end_of_headers(value_end, end) != end:
            return None
        return _Record(value_start, value_end, end, offset_delta)

    def _end_of_headers(self, position_bytes: int, limit_bytes: int) -> int | None:
        count, position = self._varint(position_bytes)
        for _ in range(count):
            if position > limit_bytes or not self._probe.spend_on_proof(_RECORD_COST_BYTES):
                return None
            key_length, key_start = self._varint(position)
            if key_length < 0:
                return None
            value_length, value_start = self._varint(key_start + key_length)
            if value_length < _NULL_LENGTH:
                return None
            position = value_start + max(value_length, 0)
        return position if count >= 0 and position <= limit_bytes else None

    def _end_of_field(self, position_bytes: int) -> int | None:
        data = self._read(LENGTH_BYTES, position_bytes)
        if len(data) < LENGTH_BYTES:
            return None
        length = int.from_bytes(data, "big", signed=True)
        return None if length < _NULL_LENGTH else position_bytes + LENGTH_BYTES + max(length, 0)

    def _varint(self, position_bytes: int, limit_bytes: int = VARINT_LIMIT_BYTES) -> tuple[int, int]:
        value, width = read_varint(self._read(limit_bytes, position_bytes), 0, limit_bytes)
        return value, position_bytes + width

    def _read(self, size_bytes: int, position_bytes: int) -> bytes:
        start = position_bytes - self._block_start
        if start < 0 or start + size_bytes > len(self._block):
            self._block = self._probe.read_at(_BLOCK_BYTES, position_bytes)
            self._block_start, start = position_bytes, 0
        return self._block[start : start + size_bytes]
