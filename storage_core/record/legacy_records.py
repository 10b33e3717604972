"""Decode messages of formats v0 and v1 by column (Kafka's ``LegacyRecord``, ``DeepRecordsIterator``).

A plain message is a set of one. A wrapper's set, once decompressed, is walked message by message, as
each is found only from the length of the one before; everything else goes by column.

As Kafka does: half a message at the end of a set is no message; any negative length is null; bytes
after a value mean nothing; a message may be of the other format than its wrapper (KAFKA-4298). Stricter
than Kafka: offsets ascend, and lie in front of the next batch.

The compressed set of messages in a wrapper, a message of format v0 or v1 that holds others.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from storage_core.errors import CorruptRecordError
from storage_core.record.batch_header import (
    CODEC_COUNT,
    CODEC_MASK,
    CRC_LAYOUTS,
    KEY_LENGTH_POSITIONS,
    LENGTH_BYTES,
    LENGTH_DTYPE,
    LENGTH_POSITION,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    MESSAGE_DTYPE,
    MINIMUM_LEGACY_LENGTH,
    MINIMUM_LENGTHS,
    NO_TIMESTAMP_MS,
    gather,
    wrapper_rows,
)
from storage_core.record.batch_window import walk_messages, wrong_inner_checksums
from storage_core.record.compression import LZ4, LZ4_FLAG_CONTENT_SIZE, UndecodableError
from storage_core.record.section import RecordColumns, RecordHeaders, RecordSection, Slices, WantedFields

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["decode_message_sets", "wrapper_payload"]


_LENGTH: Final = struct.Struct(">i")
_CRC_START: Final = CRC_LAYOUTS[0].start
_KEY_LENGTH_POSITIONS: Final = np.array(KEY_LENGTH_POSITIONS)
_MINIMUM_LENGTHS: Final = np.array(MINIMUM_LENGTHS)
_Bytes = npt.NDArray[np.uint8]
_Int64Array = npt.NDArray[np.int64]
_BoolArray = npt.NDArray[np.bool_]


def decode_message_sets(section: RecordSection, wanted: WantedFields) -> RecordColumns:
    """Decode the wanted fields of all messages of a section, whose batches are of format v0 or v1.

    Raises:
        CorruptRecordError: A wrapper does not hold what it should.
    """
    is_wrapper = wrapper_rows(section.headers)
    if is_wrapper.any():
        starts, counts = _walk_sets(section, is_wrapper)
        messages = _Messages(section, starts, counts)
        messages.check_sets()
        offsets = messages.offsets_in_sets(is_wrapper)
    else:
        counts = np.ones(len(section.starts), np.int64)
        messages = _Messages(section, section.starts, counts)
        offsets = section.headers["base_offset"].astype(np.int64)
    keys, values = messages.slices() if wanted.key or wanted.value else (None, None)
    return RecordColumns(
        counts,
        offsets,
        messages.timestamps_ms() if wanted.timestamp else None,
        keys if wanted.key else None,
        values if wanted.value else None,
        _no_headers(len(offsets)) if wanted.headers else None,
    )


def _walk_sets(section: RecordSection, is_wrapper: _BoolArray) -> tuple[_Int64Array, _Int64Array]:
    """Where each message begins, and how many there are of each batch."""
    # Sets mostly lie back to back, and end with a message. Then they are one walk.
    places: list[int] = []
    start, end = int(section.starts[0]), int(section.ends[-1])
    are_adjacent = np.array_equal(section.starts[1:], section.ends[:-1])
    if are_adjacent and start < end == walk_messages(section.buffer, start, end, places):
        starts = np.array(places, np.int64)
        rows = np.searchsorted(starts, section.starts)
        counts = np.diff(rows, append=len(starts))
        if counts.all() and np.array_equal(starts[rows], section.starts):
            return starts, counts
    return _walk_each_set(section, is_wrapper)


def _walk_each_set(section: RecordSection, is_wrapper: _BoolArray) -> tuple[_Int64Array, _Int64Array]:
    """One set after the other, as Kafka does."""
    view = section.buffer.data
    unpack = _LENGTH.unpack_from
    starts: list[int] = []
    borders = [0]
    batches = zip(section.starts.tolist(), section.ends.tolist(), is_wrapper.tolist(), strict=True)
    for index, (start, end, has_set) in enumerate(batches):
        if not has_set:
            starts.append(start)
            borders.append(len(starts))
            continue
        position = start
        last = end - LOG_OVERHEAD_BYTES
        while position <= last:
            (length,) = unpack(view, position + LENGTH_POSITION)
            if length < MINIMUM_LEGACY_LENGTH:
                _fail(section, index, "a message of a set to be long enough", f"a length of {length}")
            next_position = position + LOG_OVERHEAD_BYTES + length
            if next_position > end:
                break
            starts.append(position)
            position = next_position
        if len(starts) == borders[-1]:
            _fail(section, index, "a wrapper to hold messages", "none")
        borders.append(len(starts))
    rows = np.array(borders, np.int64)
    return np.array(starts, np.int64), rows[1:] - rows[:-1]


class _Messages:
    """The messages of a section, by column."""

    def __init__(self, section: RecordSection, starts: _Int64Array, counts: _Int64Array) -> None:
        self._section = section
        self._starts = starts
        self._counts = counts
        self._border_rows = np.cumsum(counts)
        # The shortest message is as long as this.
        self._fields = gather(section.buffer, starts, MESSAGE_DTYPE)
        self._magics = self._fields["magic"]
        self._lengths = self._fields["length"].astype(np.int64)

    def check_sets(self) -> None:
        """Check what a wrapper's own CRC and header do not tell of the messages in it.

        A plain message is its own wrapper here, and passes.
        """
        magics = self._magics
        self._require(
            (magics >= 0) & (magics < MAGIC_V2),
            "a message of a set to be of format v0 or v1",
            lambda row: f"magic {magics[row]}",
        )
        self._require(
            self._lengths >= _MINIMUM_LENGTHS[magics],
            "a message of a set to be long enough for its format",
            lambda row: f"a length of {self._lengths[row]}",
        )
        self._require(
            (self._fields["attributes"] & CODEC_MASK) == 0,
            "a message of a set not to be compressed itself",
            lambda row: f"codec number {self._fields['attributes'][row] & CODEC_MASK}",
        )
        stated = self._fields["crc"].astype(np.uint32)
        checked = Slices(self._starts + _CRC_START, self._lengths + (LOG_OVERHEAD_BYTES - _CRC_START))
        is_right = np.ones(len(stated), np.bool_)
        is_right[wrong_inner_checksums(self._section.buffer, checked, stated)] = False
        self._require(
            is_right,
            "a message of a set to have the CRC that it states",
            lambda row: f"another one than {stated[row]:#010x}",
        )

    def offsets_in_sets(self, is_wrapper: _BoolArray) -> _Int64Array:
        """The offset of each message, where some batches are wrappers."""
        headers = self._section.headers
        base_offsets = headers["base_offset"].astype(np.int64)
        last_offsets = base_offsets + headers["last_offset_delta"]
        offsets: _Int64Array = self._fields["offset"].astype(np.int64)
        last_inner = offsets[self._border_rows - 1]
        is_relative = is_wrapper & (headers["magic"] == 1)
        # Old versions of librdkafka left it to the broker to set a wrapper's offset.
        is_unset = is_relative & (last_offsets == 0)
        for index in np.flatnonzero(is_relative & ~is_unset & (last_inner > last_offsets))[:1].tolist():
            _fail(
                self._section,
                index,
                "the offset of a wrapper to be no smaller than the last one in its set",
                f"{last_offsets[index]} around {last_inner[index]}",
            )
        offsets += self._spread(np.where(is_relative & ~is_unset, last_offsets - last_inner, 0))
        lowest = self._spread(base_offsets)
        highest = np.where(self._spread(is_unset), offsets, self._spread(last_offsets))
        lowest[1:] = np.maximum(lowest[1:], offsets[:-1] + 1)
        self._require(
            (offsets >= lowest) & (offsets <= highest),
            "offsets to ascend from batch to batch and within a set",
            lambda row: f"{offsets[row]}, which does not lie from {lowest[row]} to {highest[row]}",
        )
        return offsets

    def timestamps_ms(self) -> _Int64Array:
        """The timestamp of each message."""
        headers = self._section.headers
        timestamps_ms: _Int64Array = self._fields["timestamp_ms"].astype(np.int64)
        is_append_time = (headers["attributes"] & LOG_APPEND_TIME_FLAG) != 0
        if is_append_time.any():
            append_times_ms = self._spread(headers["max_timestamp_ms"].astype(np.int64))
            timestamps_ms = np.where(self._spread(is_append_time), append_times_ms, timestamps_ms)
        timestamps_ms[self._magics == 0] = NO_TIMESTAMP_MS
        return timestamps_ms

    def slices(self) -> tuple[Slices, Slices]:
        """The key and the value of each message."""
        ends = self._starts + self._lengths + LOG_OVERHEAD_BYTES
        positions = self._starts + _KEY_LENGTH_POSITIONS[self._magics]
        keys = self._slices_at(positions, ends - LENGTH_BYTES, "key")
        values = self._slices_at(keys.starts + np.maximum(keys.lengths, 0), ends, "value")
        return keys, values

    def _slices_at(self, positions: _Int64Array, limits: _Int64Array, field: str) -> Slices:
        lengths = gather(self._section.buffer, positions, LENGTH_DTYPE).astype(np.int64)
        starts = positions + LENGTH_BYTES
        self._require(
            starts + lengths <= limits,
            f"a message's {field} to lie within it",
            lambda row: f"a length of {lengths[row]} with {limits[row] - starts[row]} bytes left",
        )
        return Slices(starts, lengths)

    def _spread(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A value a batch, for each of its messages."""
        return np.repeat(column, self._counts)

    def _require(self, is_right: _BoolArray, expected: str, found: Callable[[int], str]) -> None:
        """Fail with the first message that is not right."""
        if is_right.all():
            return
        row = int(is_right.argmin())
        index = int(np.searchsorted(self._border_rows, row, side="right"))
        _fail(self._section, index, expected, found(row))


def _no_headers(count: int) -> RecordHeaders:
    nothing = np.zeros(0, np.int64)
    return RecordHeaders(np.zeros(count + 1, np.int64), Slices(nothing, nothing), Slices(nothing, nothing))


def _fail(section: RecordSection, index: int, expected: str, found: str) -> NoReturn:
    header = section.headers[index]
    position_bytes = int(section.positions[index])
    base_offset = int(header["base_offset"])
    raise CorruptRecordError(
        f"Expected {expected}, found {found}. The batch's CRC is right: its writer made it so.",
        path=section.path,
        position_bytes=position_bytes,
        end_position_bytes=position_bytes + LOG_OVERHEAD_BYTES + int(header["batch_length"]),
        offset=base_offset,
        last_offset=base_offset + int(header["last_offset_delta"]),
    )


# In an LZ4 frame, behind its magic: flags and block size; the content size, if the flags say so; a byte that
# is a checksum of all these. Kafka knows no dictionaries.
_LZ4_DESCRIPTOR_START: Final = 4
_LZ4_DESCRIPTOR_BYTES: Final = 2
_XXH32_PRIMES: Final = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)
_UINT32: Final = struct.Struct("<I")
_MASK: Final = (1 << 32) - 1


def wrapper_payload(message: memoryview, magic: int, codec: int) -> memoryview:
    """The value of a wrapper, as its codec takes it.

    Args:
        message: The whole wrapper, as long as its format requires at least.
        magic: 0 or 1.
        codec: The codec's number, not 0.

    Raises:
        UndecodableError: The wrapper has no value, or one that does not fit, or a codec that came later.
    """
    if codec >= CODEC_COUNT:
        problem = f"messages of format v{magic} cannot be"
        raise UndecodableError(problem)
    position = KEY_LENGTH_POSITIONS[magic]
    (key_length,) = _LENGTH.unpack_from(message, position)
    position += LENGTH_BYTES + max(key_length, 0)
    if position + LENGTH_BYTES > len(message):
        problem = f"the wrapper's key of {key_length} bytes does not fit it"
        raise UndecodableError(problem)
    (value_length,) = _LENGTH.unpack_from(message, position)
    position += LENGTH_BYTES
    if not 0 <= value_length <= len(message) - position:
        problem = (
            "the wrapper's value is null"
            if value_length < 0
            else f"the wrapper's value of {value_length} bytes does not fit it"
        )
        raise UndecodableError(problem)
    payload = message[position : position + value_length]
    return _with_right_lz4_checksum(payload) if codec == LZ4 and magic == 0 else payload


def _with_right_lz4_checksum(payload: memoryview) -> memoryview:
    """A copy of an LZ4 frame with the descriptor's checksum put right.

    Early clients computed it over the magic too, and all clients since ignore it in format v0.
    """
    frame = bytearray(payload)
    start = _LZ4_DESCRIPTOR_START
    if len(frame) > start:
        flags = frame[start]
        end = start + _LZ4_DESCRIPTOR_BYTES
        end += 8 * bool(flags & LZ4_FLAG_CONTENT_SIZE)
        if len(frame) > end:
            frame[end] = _xxh32_of_few_bytes(frame[start:end]) >> 8 & 0xFF
    return memoryview(frame)


def _xxh32_of_few_bytes(data: bytes | bytearray) -> int:
    """XXH32 with seed 0 of less than 16 bytes."""
    first, second, third, fourth, fifth = _XXH32_PRIMES
    value = fifth + len(data)
    words_end = len(data) // _UINT32.size * _UINT32.size
    for (word,) in _UINT32.iter_unpack(data[:words_end]):
        value = _rotated(value + word * third, 17) * fourth
    for byte in data[words_end:]:
        value = _rotated(value + byte * fifth, 11) * first
    value &= _MASK
    value = (value ^ value >> 15) * second & _MASK
    value = (value ^ value >> 13) * third & _MASK
    return value ^ value >> 16


def _rotated(value: int, bits: int) -> int:
    value &= _MASK
    return value << bits | value >> 32 - bits
