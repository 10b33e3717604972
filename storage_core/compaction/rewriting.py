"""Writing surviving records anew, by column.

A record keeps its offset and its batch the base offset, so that all behind a record's timestamp delta stays as it is and
is copied. In front of it stand its length and the new delta:

    length varint, attributes 0, timestamp delta varlong | offset delta, key, value, headers

The batches that hold what survives (Kafka's ``MemoryRecords.filterTo``).

A batch of which nothing was dropped stays as it is, byte by byte. Another keeps its base offset, its last offset, its
producer's fields and its leader epoch, so that what is known of producers, transactions and epochs does not change with
it. Its base timestamp becomes that of the first survivor or, while a tombstone or an idle marker awaits its removal,
the delete horizon. A batch without survivors that has to stay is a header alone.

Messages of formats v0 and v1 become batches of format v2, whether something was dropped or not.

What becomes of the batches of a window, put together in their order, ready to be written.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from storage_core.record.batch_header import (
    CODEC_MASK,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_DTYPE,
    HEADER_SIZE_BYTES,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    TRANSACTIONAL_FLAG,
)
from storage_core.record.column_encode import ByteStrings, ShortBytes, ViewJoiner
from storage_core.record.compression import compressor
from storage_core.record.record_batches import put_crcs
from storage_core.record.section import Slices
from storage_core.record.varint import WORD_RANGE, varint_bytes, varint_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.record.batch_header import BytesLike
    from storage_core.record.batch_window import BatchWindow
    from storage_core.record.compression import Compressor
    from storage_core.record.section import RecordColumns, RecordSection

__all__ = [
    "OutputBatches",
    "RewrittenBatches",
    "SectionRewriter",
    "SurvivorEncoder",
    "Survivors",
    "WindowOutput",
    "emptied_headers",
]


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


_NO_TIMESTAMP_MS: Final = -1
_NONE: Final = -1
_KEPT_FLAGS: Final = LOG_APPEND_TIME_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG
_WRAP: Final = 1 << 64
_LENGTH_WITHOUT_RECORDS: Final = HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES
_BoolArray = npt.NDArray[np.bool_]
_Rows = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class RewrittenBatches:
    """What becomes of the batches of a section.

    Attributes:
        stays: Per batch, whether it stays as it is.
        rewritten: The numbers of the batches that are written anew, ascending.
        headers: Their new headers.
        bodies: Their new records.
        emptied: The numbers of the batches of which no record survives, ascending.
        emptied_headers: What their headers are, should they stay empty.
    """

    stays: _BoolArray
    rewritten: _Int64Array
    headers: _Rows
    bodies: list[BytesLike]
    emptied: _Int64Array
    emptied_headers: _Rows


class SectionRewriter:
    """Writes batches anew, section by section.

    Args:
        new_horizon_ms: The delete horizon of a batch that has none, and now needs one. Beyond 64 bits it wraps, and
            below 0 it is none.
    """

    def __init__(self, new_horizon_ms: int) -> None:
        self._new_horizon_ms = (new_horizon_ms + _WRAP // 2) % _WRAP - _WRAP // 2
        self._encoder = SurvivorEncoder()
        self._compressors: dict[int, Compressor | None] = {}

    def rewrite(
        self,
        section: RecordSection,
        columns: RecordColumns,
        survives: _BoolArray,
        is_idle_marker: _BoolArray,
    ) -> RewrittenBatches:
        """Write what survives of a section.

        Args:
            section: The batches.
            columns: All fields of their records but the headers, and the tails.
            survives: Per record, whether it survives.
            is_idle_marker: Per batch, whether it is a marker that goes once a delete horizon has passed.
        """
        headers = section.headers
        values = columns.values
        assert values is not None  # noqa: S101  (they were asked for)
        first_rows = np.cumsum(columns.row_counts) - columns.row_counts
        counts = np.add.reduceat(survives, first_rows, dtype=np.int64)
        has_tombstone = np.logical_or.reduceat(survives & (values.lengths < 0), first_rows)
        has_horizon = (headers["attributes"] & DELETE_HORIZON_FLAG) != 0
        needs_horizon = (has_tombstone | is_idle_marker) & ~has_horizon
        is_current = headers["magic"] == MAGIC_V2
        stays = (counts == columns.row_counts) & ~needs_horizon & is_current
        rewritten = np.flatnonzero(~stays & (counts > 0))
        horizons_ms = np.where(has_horizon, headers["base_timestamp_ms"].astype(np.int64), _NO_TIMESTAMP_MS)
        horizons_ms[needs_horizon] = self._new_horizon_ms
        emptied = np.flatnonzero(counts == 0)
        empty_headers = headers.take(emptied)
        is_legacy = ~is_current[emptied]
        if is_legacy.any():
            # Where a wrapper begins is known only now.
            base_offsets = columns.offsets[first_rows[emptied]][is_legacy]
            _move_bases(empty_headers, is_legacy, base_offsets)
        new_headers, bodies = self._rewritten(
            section, columns, survives, rewritten, counts[rewritten], horizons_ms[rewritten]
        )
        return RewrittenBatches(
            stays, rewritten, new_headers, bodies, emptied, emptied_headers(empty_headers)
        )

    def _rewritten(
        self,
        section: RecordSection,
        columns: RecordColumns,
        survives: _BoolArray,
        rewritten: _Int64Array,
        counts: _Int64Array,
        horizons_ms: _Int64Array,
    ) -> tuple[_Rows, list[BytesLike]]:
        headers = section.headers.take(rewritten)
        if not len(rewritten):
            return headers, []
        is_rewritten = np.zeros(len(section.headers), np.bool_)
        is_rewritten[rewritten] = True
        rows = np.flatnonzero(survives & np.repeat(is_rewritten, columns.row_counts))
        survivors = self._survivors(section, columns, rows, counts)
        first_rows = survivors.first_rows
        has_horizon = horizons_ms >= 0
        base_timestamps_ms = np.where(has_horizon, horizons_ms, survivors.timestamps_ms[first_rows])
        records = self._encoder.encode(survivors, base_timestamps_ms)

        attributes = headers["attributes"] & (_KEPT_FLAGS | CODEC_MASK)
        bodies = self._compressed(records, (attributes & CODEC_MASK).tolist())
        largest_ms = np.maximum(np.maximum.reduceat(survivors.timestamps_ms, first_rows), _NO_TIMESTAMP_MS)
        is_legacy = headers["magic"] < MAGIC_V2
        if is_legacy.any():
            lasts = first_rows + counts - 1
            _move_bases(headers, is_legacy, survivors.offsets[first_rows][is_legacy])
            _move_ends(headers, is_legacy, survivors.offsets[lasts][is_legacy])
        headers["magic"] = MAGIC_V2
        headers["batch_length"] = (
            np.fromiter(map(len, bodies), np.int64, len(bodies)) + _LENGTH_WITHOUT_RECORDS
        )
        headers["attributes"] = attributes | np.where(has_horizon, DELETE_HORIZON_FLAG, 0)
        headers["base_timestamp_ms"] = base_timestamps_ms
        is_append_time = (attributes & LOG_APPEND_TIME_FLAG) != 0
        headers["max_timestamp_ms"] = np.where(is_append_time, headers["max_timestamp_ms"], largest_ms)
        headers["record_count"] = counts
        put_crcs(headers, bodies)
        return headers, bodies

    def _survivors(
        self, section: RecordSection, columns: RecordColumns, rows: _Int64Array, counts: _Int64Array
    ) -> Survivors:
        offsets = columns.offsets[rows]
        timestamps_ms = columns.timestamps_ms
        assert timestamps_ms is not None  # noqa: S101  (they were asked for)
        if columns.tails is not None:
            buffer, tails = section.buffer, Slices(columns.tails.starts[rows], columns.tails.lengths[rows])
        else:
            deltas = offsets - np.repeat(offsets[np.cumsum(counts) - counts], counts)
            buffer, tails = self._encoder.message_tails(section.buffer, columns, rows, deltas)
        return Survivors(counts, offsets, timestamps_ms[rows], tails, buffer)

    def _compressed(self, records: list[memoryview], codecs: list[int]) -> list[BytesLike]:
        if not any(codecs):
            return list(records)
        for codec in set(codecs) - self._compressors.keys():
            self._compressors[codec] = compressor(codec)
        bodies: list[BytesLike] = []
        for body, codec in zip(records, codecs, strict=True):
            compress = self._compressors[codec]
            bodies.append(body if compress is None else compress(body))
        return bodies


def emptied_headers(headers: _Rows) -> _Rows:
    """What the headers of batches become whose records are all gone."""
    empty = headers.copy()
    empty["magic"] = MAGIC_V2
    empty["batch_length"] = _LENGTH_WITHOUT_RECORDS
    empty["attributes"] &= _KEPT_FLAGS
    empty["base_timestamp_ms"] = _NO_TIMESTAMP_MS
    empty["record_count"] = 0
    put_crcs(empty, [b""] * len(empty))
    return empty


def _move_bases(headers: _Rows, rows: _BoolArray, base_offsets: _Int64Array) -> None:
    """Let some batches begin elsewhere, and end where they did. Formats v0 and v1 know of no leader epoch."""
    last_offsets = headers["base_offset"][rows].astype(np.int64) + headers["last_offset_delta"][rows]
    headers["base_offset"][rows] = base_offsets
    headers["last_offset_delta"][rows] = last_offsets - base_offsets
    headers["leader_epoch"][rows] = _NONE


def _move_ends(headers: _Rows, rows: _BoolArray, last_offsets: _Int64Array) -> None:
    base_offsets = headers["base_offset"][rows].astype(np.int64)
    headers["last_offset_delta"][rows] = last_offsets - base_offsets


@dataclass(frozen=True, slots=True, eq=False)
class OutputBatches:
    """Batches to be written, at least one.

    Attributes:
        headers: Per batch, its header.
        pieces: The bytes of all of them. Neighbours that stay as they are come in one piece.
    """

    headers: _Rows
    pieces: list[BytesLike]

    @property
    def size_bytes(self) -> int:
        """How many bytes they take together."""
        return int(self.headers["batch_length"].sum(dtype=np.int64)) + LOG_OVERHEAD_BYTES * len(self.headers)


class WindowOutput:
    """Collects what becomes of the batches of a window.

    Args:
        window: The window. Batches that stay are not copied out of it.
        empty: Those of which nothing but a header stays, whatever their records; ascending.
    """

    def __init__(self, window: BatchWindow, empty: _Int64Array) -> None:
        self._window = window
        # Nobody has taken these yet.
        self._empty = empty
        self._empty_headers = emptied_headers(window.headers.take(empty))
        self._begin()

    def _begin(self) -> None:
        self._unchanged: list[_Int64Array] = []
        self._indexes: list[_Int64Array] = []
        self._headers: list[_Rows] = []
        self._bodies: list[BytesLike] = []

    def add_unchanged(self, indexes: _Int64Array) -> None:
        """Batches of format v2 that stay as they are, ascending."""
        self._unchanged.append(indexes)

    def add(self, indexes: _Int64Array, headers: _Rows, bodies: Sequence[BytesLike]) -> None:
        """Batches that were written anew."""
        self._indexes.append(indexes)
        self._headers.append(headers)
        self._bodies.extend(bodies)

    def add_empty(self, indexes: _Int64Array, headers: _Rows) -> None:
        """Batches without records."""
        self.add(indexes, headers, [b""] * len(indexes))

    def take(self, end_index: int) -> OutputBatches | None:
        """All batches up to before one of the window that were not taken before; None if there are none."""
        count = int(self._empty.searchsorted(end_index))
        self.add_empty(self._empty[:count], self._empty_headers[:count])
        self._empty, self._empty_headers = self._empty[count:], self._empty_headers[count:]
        unchanged, indexes = (
            np.concatenate([*self._unchanged, self._empty[:0]]),
            np.concatenate(self._indexes),
        )
        headers, bodies = np.concatenate(self._headers, dtype=HEADER_DTYPE), self._bodies
        self._begin()
        if not len(unchanged) and not len(indexes):
            return None
        firsts, pieces = self._unchanged_pieces(unchanged)
        heads = headers.tobytes()
        starts = range(0, len(heads), HEADER_SIZE_BYTES)
        pieces += [
            (heads[start : start + HEADER_SIZE_BYTES], body)
            for start, body in zip(starts, bodies, strict=True)
        ]
        ordered: list[BytesLike] = []
        for number in np.argsort(np.concatenate([firsts, indexes])).tolist():
            ordered += pieces[number]
        all_headers = np.concatenate([self._window.headers.take(unchanged), headers], dtype=HEADER_DTYPE)
        return OutputBatches(all_headers.take(np.argsort(np.concatenate([unchanged, indexes]))), ordered)

    def _unchanged_pieces(self, indexes: _Int64Array) -> tuple[_Int64Array, list[tuple[BytesLike, ...]]]:
        """The runs of neighbours among some batches: the first batch of each, and the bytes of all."""
        is_first = np.diff(indexes, prepend=-2) != 1
        firsts, lasts = indexes[is_first], indexes[np.append(is_first[1:], True)[: len(indexes)]]
        window = self._window
        ends = window.starts[lasts] + LOG_OVERHEAD_BYTES + window.headers["batch_length"][lasts]
        view = window.buffer.data
        borders = zip(window.starts[firsts].tolist(), ends.tolist(), strict=True)
        return firsts, [(view[start:end],) for start, end in borders]
