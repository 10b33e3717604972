"""Recognising batches and records by their bytes alone, anywhere in a damaged file.

`batch_candidates` finds what looks like a batch header. `RecordLengths` follows the lengths of records
without a header or a CRC that vouches for them: a record of format v2 says how long it is, and so do
its key, its value and each of its headers, and all of that has to add up. A message of format v0 or v1
ends with its value. So if a record is whole, the bytes of its value are its content, even if they look
like a batch; and a batch ends where its records end, whatever its header says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from storage_core.record.batch_header import (
    CODEC_MASK,
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
    MESSAGE_DTYPE,
    MESSAGE_SIZE_BYTES,
    MIN_LENGTH_BY_MAGIC,
    gather,
)
from storage_core.record.varint import (
    VARINT_LIMIT_BYTES,
    VARLONG_LIMIT_BYTES,
    MalformedVarintError,
    read_varint,
)

if TYPE_CHECKING:
    from storage_core.segment.damage import BatchProbe


MAX_ENCODABLE_BATCH_BYTES: Final = (1 << 31) - 1 + LOG_OVERHEAD_BYTES
"""The size of the largest batch whose length fits the length field. A limit that excludes no batch."""
# The smallest record: attributes, two deltas, and no key, value or header.
_SMALLEST_RECORD_LENGTH: Final = 6
# Set in every byte of a varint except the last.
_CONTINUES: Final = 0x80
_Bytes = npt.NDArray[np.uint8]
_Int64Array = npt.NDArray[np.int64]


def batch_candidates(
    block: _Bytes, remaining_bytes: int, lowest_offset: int, *, largest_bytes: int = MAX_ENCODABLE_BATCH_BYTES
) -> list[tuple[int, int]]:
    """Find positions in a block that look like a batch of any format.

    The CRC is not checked. Unless the block ends the file, of which ``remaining_bytes`` are left, its last 60 bytes
    yield nothing: they may be the beginning of a header, and have to be examined again at the beginning of the next
    block. Batches with lower offsets, or of more than ``largest_bytes``, are ignored. Among random bytes, such a
    limit rules most candidates out.

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
    plausible[is_current] = _are_batches(block, starts[is_current], lowest_offset)
    plausible[~is_current] = _are_messages(block, starts[~is_current], sizes[~is_current], lowest_offset)
    return list(zip(starts[plausible].tolist(), sizes[plausible].tolist(), strict=True))


def _are_batches(block: _Bytes, starts: _Int64Array, lowest_offset: int) -> npt.NDArray[np.bool_]:
    headers = gather(block, starts, HEADER_DTYPE)
    plausible: npt.NDArray[np.bool_] = headers["base_offset"] >= lowest_offset
    plausible &= headers["last_offset_delta"] >= 0
    plausible &= headers["record_count"] >= 0
    plausible &= (headers["attributes"] & ~KNOWN_ATTRIBUTES) == 0
    return plausible


def _are_messages(
    block: _Bytes, starts: _Int64Array, sizes: _Int64Array, lowest_offset: int
) -> npt.NDArray[np.bool_]:
    """Return for each message whether key and value fit it, as far as they are in the block."""
    messages = gather(block, starts, MESSAGE_DTYPE)
    plausible: npt.NDArray[np.bool_] = messages["offset"] >= lowest_offset
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

    A length beyond the end of the block fits.
    """
    last = len(block) - LENGTH_BYTES
    lengths = gather(block, np.minimum(positions, last), LENGTH_DTYPE).astype(np.int64)
    ends = positions + LENGTH_BYTES + np.maximum(lengths, 0)
    fits: npt.NDArray[np.bool_] = (positions > last) | ((lengths >= -1) & (ends <= limits))
    return ends, fits


def record_candidates(block: _Bytes) -> tuple[_Int64Array, _Int64Array]:
    """Find where records of format v2 may begin in a block, and where they would end, in no order.

    A candidate is a plausible length followed by attributes of zero.
    """
    attributes = np.flatnonzero(block == 0)
    starts, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    bodies = attributes[attributes > 0]
    # The last byte of a length has the continuation bit clear; the bytes before it have it set.
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
# The cost of looking at one record, in bytes of CRC.
_RECORD_COST_BYTES: Final = 1024
_ATTRIBUTES_BYTES: Final = 1
# Kafka has not assigned any attribute of a record.
_NO_ATTRIBUTES: Final = b"\0"
_NULL_LENGTH: Final = -1


class RecordCandidates(NamedTuple):
    """Where records may begin, and where they would end."""

    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]


class BatchContents(NamedTuple):
    """What the lengths of its records say about a batch. A message of format v0 or v1 is one record.

    Attributes:
        magic: The format under which the batch was read.
        head_end_bytes: Where the part ends that cannot hold a value.
        end_bytes: Where the last whole record ends.
        records: Number of whole records.
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
        """Read what the batch at a position holds if it has a certain format, and its header declares a certain end."""
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
        """Find where a batch ends if a value ends here: after the record's headers and further records. Return 0 if nowhere."""
        try:
            end = self._end_of_headers(value_end_bytes, self._probe.end_bytes)
        except MalformedVarintError:
            return 0
        return 0 if end is None else self._end_of_records(end)[0]

    def has_length_leading_to(self, start_bytes: int, end_bytes: int, goal_bytes: int) -> bool:
        """Return True if any length of formats v0 and v1 in a range of bytes leads exactly to a goal."""
        block = np.frombuffer(self._probe.read_at(end_bytes - start_bytes, start_bytes), np.uint8)
        places = np.arange(len(block) - LENGTH_BYTES + 1)
        lengths = gather(block, places, LENGTH_DTYPE).astype(np.int64)
        return bool((places + LENGTH_BYTES + lengths == goal_bytes - start_bytes).any())

    def value_ends_by_length_before(self, position_bytes: int) -> list[int]:
        """Find where a v2 value that begins at a position may end, by what may be its length just before it."""
        prefix_bytes = max(0, position_bytes - VARINT_LIMIT_BYTES)
        prefix = self._probe.read_at(position_bytes - prefix_bytes, prefix_bytes)
        ends = []
        for start in range(len(prefix)):
            try:
                length, end = read_varint(prefix, start, VARINT_LIMIT_BYTES)
            except MalformedVarintError:
                continue
            if end == len(prefix) and length > 0:
                ends.append(position_bytes + length)
        return ends

    def message_end_by_length_before(self, position_bytes: int, start_bytes: int) -> int:
        """Find where a v0 or v1 message that begins at or after ``start_bytes`` ends if its value begins at a position.

        Returns:
            The position; 0 if there is no such message.
        """
        length_bytes = position_bytes - LENGTH_BYTES
        if length_bytes < start_bytes + min(KEY_LENGTH_POSITIONS) + LENGTH_BYTES:
            return 0
        end = self._end_of_field(length_bytes)
        return 0 if end is None or end <= position_bytes else end

    def candidates(self, start_bytes: int, end_bytes: int) -> RecordCandidates:
        """Find where records may begin in a range of bytes."""
        block = np.frombuffer(self._probe.read_at(end_bytes - start_bytes, start_bytes), np.uint8)
        starts, ends = record_candidates(block)
        return RecordCandidates(starts + start_bytes, ends + start_bytes)

    def end_of_record_around(self, start_bytes: int, end_bytes: int, candidates: RecordCandidates) -> int:
        """Find the end of a whole record that has a range of bytes in its value, or return 0."""
        starts, ends = candidates
        for start in starts[(starts < start_bytes) & (ends > end_bytes)].tolist():
            found = self._record(start)
            if found is not None and found.value_start <= start_bytes and end_bytes <= found.value_end:
                return found.end
        return 0

    def _end_of_records(self, position_bytes: int, declared_bytes: int = 0) -> tuple[int, int]:
        count, last_delta = 0, -1
        while (found := self._record(position_bytes, declared_bytes)) is not None:
            # Records have ascending offsets.
            if found.offset_delta <= last_delta:
                break
            position_bytes, last_delta, count = found.end, found.offset_delta, count + 1
        return position_bytes, count

    def _record(self, position_bytes: int, declared_bytes: int = 0) -> _Record | None:
        """Read the record at a position if its lengths add up."""
        if not self._probe.charge_proof(_RECORD_COST_BYTES):
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
            if position > limit_bytes or not self._probe.charge_proof(_RECORD_COST_BYTES):
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
