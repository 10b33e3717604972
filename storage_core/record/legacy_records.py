"""Decode messages of formats v0 and v1 by column (Kafka's ``LegacyRecord``, ``DeepRecordsIterator``).

A plain message is a set of one. A wrapper's set, once decompressed, is walked message by message, as the position of
each follows from the length of the one before. All other fields are decoded by column.

As in Kafka, a partial message at the end of a set is ignored, any negative length is null, bytes after a value
mean nothing, and a message may have another format than its wrapper (KAFKA-4298). Unlike Kafka, offsets have to
ascend, and be below those of the next batch.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from storage_core.record.arrow_columns import RecordHeaders, Slices
from storage_core.record.batch_header import (
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
    MIN_LENGTH,
    MIN_LENGTH_BY_MAGIC,
    NO_TIMESTAMP_MS,
    gather,
    wrapper_rows,
)
from storage_core.record.batch_window import inner_crc_mismatches, walk_messages
from storage_core.record.section import RECORD_COST_BYTES, RecordColumns, RecordSection, WantedFields

if TYPE_CHECKING:
    from collections.abc import Callable

_LENGTH: Final = struct.Struct(">i")
_CRC_START: Final = CRC_LAYOUTS[0].start
_KEY_LENGTH_POSITIONS: Final = np.array(KEY_LENGTH_POSITIONS)
_MIN_LENGTH_BY_MAGIC: Final = np.array(MIN_LENGTH_BY_MAGIC)
_Int64Array = npt.NDArray[np.int64]
_BoolArray = npt.NDArray[np.bool_]


def decode_message_sets(section: RecordSection, wanted: WantedFields) -> RecordColumns:
    """Decode the wanted fields of all messages of a section of format v0 and v1.

    Raises:
        CorruptRecordError: A message or a message set is malformed.
    """
    is_wrapper = wrapper_rows(section.headers)
    if is_wrapper.any():
        starts, counts = _walk_sets(section, is_wrapper)
        section.check_cost(counts, 2 * RECORD_COST_BYTES, "messages")
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
        RecordHeaders.none(len(offsets)) if wanted.headers else None,
    )


def _walk_sets(section: RecordSection, is_wrapper: _BoolArray) -> tuple[_Int64Array, _Int64Array]:
    """Return the position of each message, and the number of messages of each batch."""
    # Usually the sets are back to back and end with a message: one walk covers them.
    positions: list[int] = []
    start, end = int(section.starts[0]), int(section.ends[-1])
    are_adjacent = np.array_equal(section.starts[1:], section.ends[:-1])
    if are_adjacent and start < end == walk_messages(section.buffer, start, end, positions):
        starts = np.array(positions, np.int64)
        rows = np.searchsorted(starts, section.starts)
        counts = np.diff(rows, append=len(starts))
        if counts.all() and np.array_equal(starts[rows], section.starts):
            return starts, counts
    return _walk_each_set(section, is_wrapper)


def _walk_each_set(section: RecordSection, is_wrapper: _BoolArray) -> tuple[_Int64Array, _Int64Array]:
    """Walk the sets one by one, as Kafka does."""
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
            if length < MIN_LENGTH:
                message = f"Expected a message of a set to be long enough, found a length of {length}."
                raise section.error(index, message)
            next_position = position + LOG_OVERHEAD_BYTES + length
            if next_position > end:
                break
            starts.append(position)
            position = next_position
        if len(starts) == borders[-1]:
            raise section.error(index, "Expected a wrapper to hold messages, found none.")
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
        """Check the inner messages beyond what the CRC and header of their wrapper cover. Plain messages pass."""
        magics = self._magics
        self._require(
            (magics >= 0) & (magics < MAGIC_V2),
            "a message of a set to be of format v0 or v1",
            lambda row: f"magic {magics[row]}",
        )
        self._require(
            self._lengths >= _MIN_LENGTH_BY_MAGIC[magics],
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
        is_right[inner_crc_mismatches(self._section.buffer, checked, stated)] = False
        self._require(
            is_right,
            "a message of a set to match its CRC",
            lambda row: f"one that does not match {stated[row]:#010x}",
        )

    def offsets_in_sets(self, is_wrapper: _BoolArray) -> _Int64Array:
        """Return the offset of each message of batches with wrappers."""
        headers = self._section.headers
        base_offsets = headers["base_offset"].astype(np.int64)
        last_offsets = base_offsets + headers["last_offset_delta"]
        offsets: _Int64Array = self._fields["offset"].astype(np.int64)
        last_inner = offsets[self._border_rows - 1]
        is_relative = is_wrapper & (headers["magic"] == 1)
        # Old versions of librdkafka left a wrapper's offset for the broker to set.
        is_unset = is_relative & (last_offsets == 0)
        for index in np.flatnonzero(is_relative & ~is_unset & (last_inner > last_offsets))[:1].tolist():
            raise self._section.error(
                index,
                "Expected the offset of a wrapper to be no smaller than the last one in its set, found "
                f"{last_offsets[index]} around {last_inner[index]}.",
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
        """Return the timestamp of each message."""
        headers = self._section.headers
        timestamps_ms: _Int64Array = self._fields["timestamp_ms"].astype(np.int64)
        is_append_time = (headers["attributes"] & LOG_APPEND_TIME_FLAG) != 0
        if is_append_time.any():
            append_times_ms = self._spread(headers["max_timestamp_ms"].astype(np.int64))
            timestamps_ms = np.where(self._spread(is_append_time), append_times_ms, timestamps_ms)
        timestamps_ms[self._magics == 0] = NO_TIMESTAMP_MS
        return timestamps_ms

    def slices(self) -> tuple[Slices, Slices]:
        """Return the key and the value of each message."""
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
        """Repeat the value of each batch for each of its messages."""
        return np.repeat(column, self._counts)

    def _require(self, is_right: _BoolArray, expected: str, found: Callable[[int], str]) -> None:
        """Raise for the first message that is wrong."""
        if is_right.all():
            return
        row = int(is_right.argmin())
        index = int(np.searchsorted(self._border_rows, row, side="right"))
        raise self._section.error(index, f"Expected {expected}, found {found(row)}.")
