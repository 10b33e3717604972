"""Writing surviving records anew, by column.

A record keeps its offset and its batch the base offset, so that all behind a record's timestamp delta stays as it is and
is copied. In front of it stand its length and the new delta:

    length varint, attributes 0, timestamp delta varlong | offset delta, key, value, headers
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from storage_core.record.section import Slices
from storage_core.record.varint_encode import WORD_RANGE, varint_bytes, varint_words
from storage_core.record.view_join import ByteStrings, ShortBytes, ViewJoiner

if TYPE_CHECKING:
    from storage_core.record.section import RecordColumns

__all__ = ["SurvivorEncoder", "Survivors"]

_ZERO: Final = np.zeros(1, np.uint64)
_ONE: Final = np.ones(1, np.int64)
_WORD_BYTES: Final = 8
_BYTE_BITS: Final = np.uint64(8)

_Bytes = npt.NDArray[np.uint8]
_Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Survivors:
    """The surviving records of some batches that are written anew, by column.

    Attributes:
        counts: Per batch, how many survive: at least one.
        offsets: Per record, its offset.
        timestamps_ms: Per record, its timestamp.
        tails: Per record, what stands behind its timestamp delta.
        buffer: Where the tails lie.
    """

    counts: _Int64Array
    offsets: _Int64Array
    timestamps_ms: _Int64Array
    tails: Slices
    buffer: _Bytes

    @property
    def first_rows(self) -> _Int64Array:
        """Per batch, the number of its first record."""
        rows: _Int64Array = np.cumsum(self.counts) - self.counts
        return rows


class SurvivorEncoder:
    """Writes records; keeps the memory that it works in."""

    def __init__(self) -> None:
        self._joiner = ViewJoiner()

    def message_tails(
        self, buffer: _Bytes, columns: RecordColumns, rows: _Int64Array, offset_deltas: _Int64Array
    ) -> tuple[_Bytes, Slices]:
        """What stands behind the timestamp delta of some messages of formats v0 and v1, once they are records."""
        keys, values = columns.keys, columns.values
        assert keys is not None and values is not None  # noqa: S101, PT018  (they were asked for)
        key_lengths, value_lengths = np.maximum(keys.lengths[rows], -1), np.maximum(values.lengths[rows], -1)
        pieces = [varint_words(column) for column in (offset_deltas, key_lengths, value_lengths)]
        offset_piece, key_piece, value_piece = (ShortBytes(words, _ZERO, sizes) for words, sizes in pieces)
        data = self._joiner.join(
            len(rows),
            [
                offset_piece,
                key_piece,
                ByteStrings(buffer, keys.starts[rows], key_lengths),
                value_piece,
                ByteStrings(buffer, values.starts[rows], value_lengths),
                # No headers.
                ShortBytes(_ZERO, _ZERO, _ONE),
            ],
        )
        lengths = np.maximum(key_lengths, 0) + np.maximum(value_lengths, 0) + 1
        for _, sizes in pieces:
            lengths += sizes
        return np.frombuffer(data, np.uint8), Slices(np.cumsum(lengths) - lengths, lengths)

    def encode(self, survivors: Survivors, base_timestamps_ms: _Int64Array) -> list[memoryview]:
        """Per batch, its records.

        Args:
            survivors: The records.
            base_timestamps_ms: Per batch, what the timestamps count from. A delta wraps at 64 bits, as in Java.
        """
        deltas = survivors.timestamps_ms - np.repeat(base_timestamps_ms, survivors.counts)
        if not len(deltas):
            return []
        if int(deltas.min()) in WORD_RANGE and int(deltas.max()) in WORD_RANGE:
            data, lengths = self._by_column(survivors, deltas)
        else:
            data, lengths = _one_by_one(survivors, deltas)
        ends = np.cumsum(lengths)[np.cumsum(survivors.counts) - 1]
        return [data[start:end] for start, end in pairwise([0, *ends.tolist()])]

    def _by_column(self, survivors: Survivors, deltas: _Int64Array) -> tuple[memoryview, _Int64Array]:
        times, time_sizes = varint_words(deltas)
        bodies = 1 + time_sizes + survivors.tails.lengths
        words, sizes = varint_words(bodies)
        # The attributes behind the length are a byte of zero.
        sizes = sizes + 1
        heads = [ShortBytes(words, _ZERO, sizes), ShortBytes(times, _ZERO, time_sizes)]
        if int(sizes.max()) + int(time_sizes.max()) <= _WORD_BYTES:
            together = words | (times << (sizes.view(np.uint64) * _BYTE_BITS))
            heads = [ShortBytes(together, _ZERO, sizes + time_sizes)]
        tails = ByteStrings(survivors.buffer, survivors.tails.starts, survivors.tails.lengths)
        data = self._joiner.join(len(deltas), [*heads, tails])
        return data, bodies + sizes - 1


def _one_by_one(survivors: Survivors, deltas: _Int64Array) -> tuple[memoryview, _Int64Array]:
    """The same for timestamps of geological distance."""
    view = survivors.buffer.data
    starts, lengths = survivors.tails.starts.tolist(), survivors.tails.lengths.tolist()
    records = []
    for delta, start, length in zip(deltas.tolist(), starts, lengths, strict=True):
        body = b"\0" + varint_bytes(delta) + bytes(view[start : start + length])
        records.append(varint_bytes(len(body)) + body)
    return memoryview(b"".join(records)), np.array([len(record) for record in records], np.int64)
