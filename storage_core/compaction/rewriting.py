"""The batches that hold the retained records (Kafka's ``MemoryRecords.filterTo``).

A batch without discarded records is unchanged, byte by byte. Another one is rewritten with the same base offset, last
offset, producer fields and leader epoch, so that producers, transactions and epochs are not affected. Its base
timestamp becomes that of the first retained record or, while a tombstone or an idle marker awaits its removal, the
delete horizon. A batch that must be retained without records is a header alone. Messages of formats v0 and v1 become
batches of format v2 in any case.

Records keep their offset and batches their base offset, so the bytes of a record after its timestamp delta are copied
as they are. Before them are the length and the new delta:

    length varint, attributes 0, timestamp delta varlong | offset delta, key, value, headers
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from storage_core.record.arrow_columns import ByteStrings, Slices
from storage_core.record.batch_header import (
    CODEC_MASK,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_DTYPE,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    MIN_LENGTH_BY_MAGIC,
    NO_TIMESTAMP_MS,
    TRANSACTIONAL_FLAG,
)
from storage_core.record.column_encode import ShortBytes, ViewJoiner
from storage_core.record.compression import Compressor, compressor
from storage_core.record.record_batches import RecordBatches, put_crcs
from storage_core.record.section import RecordColumns, RecordSection
from storage_core.record.varint import WORD_RANGE, varint_bytes, varint_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.record.batch_header import BytesLike
    from storage_core.record.batch_window import BatchWindow


_NO_EPOCH: Final = -1
_KEPT_FLAGS: Final = LOG_APPEND_TIME_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG
_WRAP: Final = 1 << 64
_LENGTH_WITHOUT_RECORDS: Final = MIN_LENGTH_BY_MAGIC[MAGIC_V2]
_ZERO: Final = np.zeros(1, np.uint64)
_ONE: Final = np.ones(1, np.int64)
_WORD_BYTES: Final = 8
_BYTE_BITS: Final = np.uint64(8)
_Bytes = npt.NDArray[np.uint8]
_Int64Array = npt.NDArray[np.int64]
_BoolArray = npt.NDArray[np.bool_]
_Rows = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class RetainedRecords:
    """The retained records of batches that are rewritten, by column.

    Attributes:
        counts: Per batch, the number of its records: at least one.
        offsets: Per record, its offset.
        timestamps_ms: Per record, its timestamp.
        tails: Per record, the bytes after its timestamp delta.
        buffer: The buffer that holds the tails.
    """

    counts: _Int64Array
    offsets: _Int64Array
    timestamps_ms: _Int64Array
    tails: Slices
    buffer: _Bytes

    @property
    def first_rows(self) -> _Int64Array:
        """The number of the first record of each batch."""
        rows: _Int64Array = np.cumsum(self.counts) - self.counts
        return rows


class RetainedRecordEncoder:
    """Encodes records, and reuses its memory."""

    def __init__(self) -> None:
        self._joiner = ViewJoiner()

    def message_tails(
        self, buffer: _Bytes, columns: RecordColumns, rows: _Int64Array, offset_deltas: _Int64Array
    ) -> tuple[_Bytes, Slices]:
        """Return the bytes after the timestamp delta of messages of formats v0 and v1 that become records."""
        keys, values = columns.keys, columns.values
        assert keys is not None and values is not None  # noqa: S101, PT018  (requested above)
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

    def encode(self, retained: RetainedRecords, base_timestamps_ms: _Int64Array) -> list[memoryview]:
        """Encode the records of each batch.

        Args:
            retained: The records.
            base_timestamps_ms: Per batch, its base timestamp. A delta wraps at 64 bits, as in Java.
        """
        deltas = retained.timestamps_ms - np.repeat(base_timestamps_ms, retained.counts)
        if not len(deltas):
            return []
        if int(deltas.min()) in WORD_RANGE and int(deltas.max()) in WORD_RANGE:
            data, lengths = self._by_column(retained, deltas)
        else:
            data, lengths = _one_by_one(retained, deltas)
        ends = np.cumsum(lengths)[np.cumsum(retained.counts) - 1]
        return [data[start:end] for start, end in pairwise([0, *ends.tolist()])]

    def _by_column(self, retained: RetainedRecords, deltas: _Int64Array) -> tuple[memoryview, _Int64Array]:
        times, time_sizes = varint_words(deltas)
        bodies = 1 + time_sizes + retained.tails.lengths
        words, sizes = varint_words(bodies)
        # The byte of attributes after the length is 0.
        sizes = sizes + 1
        heads = [ShortBytes(words, _ZERO, sizes), ShortBytes(times, _ZERO, time_sizes)]
        if int(sizes.max()) + int(time_sizes.max()) <= _WORD_BYTES:
            together = words | (times << (sizes.view(np.uint64) * _BYTE_BITS))
            heads = [ShortBytes(together, _ZERO, sizes + time_sizes)]
        tails = ByteStrings(retained.buffer, retained.tails.starts, retained.tails.lengths)
        data = self._joiner.join(len(deltas), [*heads, tails])
        return data, bodies + sizes - 1


def _one_by_one(retained: RetainedRecords, deltas: _Int64Array) -> tuple[memoryview, _Int64Array]:
    """Encode as `_by_column` does, with timestamp deltas too large for `varint_words`."""
    view = retained.buffer.data
    starts, lengths = retained.tails.starts.tolist(), retained.tails.lengths.tolist()
    records = []
    for delta, start, length in zip(deltas.tolist(), starts, lengths, strict=True):
        body = b"\0" + varint_bytes(delta) + bytes(view[start : start + length])
        records.append(varint_bytes(len(body)) + body)
    return memoryview(b"".join(records)), np.array([len(record) for record in records], np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class FilterResult:
    """The filtered batches of a section (``MemoryRecords.FilterResult``).

    Attributes:
        is_unchanged: Per batch, whether it is unchanged.
        rewritten: The numbers of the rewritten batches, ascending.
        headers: Their new headers.
        bodies: Their new records.
        emptied: The numbers of the batches without retained records, ascending.
        emptied_headers: Their headers, if they are retained.
    """

    is_unchanged: _BoolArray
    rewritten: _Int64Array
    headers: _Rows
    bodies: list[BytesLike]
    emptied: _Int64Array
    emptied_headers: _Rows


class SectionRewriter:
    """Rewrites batches, section by section.

    Args:
        new_horizon_ms: The delete horizon for batches that need one and have none. It wraps at 64 bits; a negative
            one counts as none.
    """

    def __init__(self, new_horizon_ms: int) -> None:
        self._new_horizon_ms = (new_horizon_ms + _WRAP // 2) % _WRAP - _WRAP // 2
        self._encoder = RetainedRecordEncoder()
        self._compressors: dict[int, Compressor | None] = {}

    def rewrite(
        self,
        section: RecordSection,
        columns: RecordColumns,
        is_retained: _BoolArray,
        is_idle_marker: _BoolArray,
    ) -> FilterResult:
        """Filter the batches of a section.

        Args:
            section: The batches.
            columns: All fields of their records except headers, and the tails.
            is_retained: Per record, whether it is retained.
            is_idle_marker: Per batch, whether it is a marker that is discarded once its delete horizon has passed.
        """
        headers = section.headers
        values = columns.values
        assert values is not None  # noqa: S101  (requested above)
        first_rows = np.cumsum(columns.row_counts) - columns.row_counts
        counts = np.add.reduceat(is_retained, first_rows, dtype=np.int64)
        has_tombstone = np.logical_or.reduceat(is_retained & (values.lengths < 0), first_rows)
        has_horizon = (headers["attributes"] & DELETE_HORIZON_FLAG) != 0
        needs_horizon = (has_tombstone | is_idle_marker) & ~has_horizon
        is_current = headers["magic"] == MAGIC_V2
        is_unchanged = (counts == columns.row_counts) & ~needs_horizon & is_current
        rewritten = np.flatnonzero(~is_unchanged & (counts > 0))
        horizons_ms = np.where(has_horizon, headers["base_timestamp_ms"].astype(np.int64), NO_TIMESTAMP_MS)
        horizons_ms[needs_horizon] = self._new_horizon_ms
        emptied = np.flatnonzero(counts == 0)
        empty_headers = headers.take(emptied)
        is_legacy = ~is_current[emptied]
        if is_legacy.any():
            # The first offset of a wrapper is only known from its messages.
            base_offsets = columns.offsets[first_rows[emptied]][is_legacy]
            _move_bases(empty_headers, is_legacy, base_offsets)
        new_headers, bodies = self._rewritten(
            section, columns, is_retained, rewritten, counts[rewritten], horizons_ms[rewritten]
        )
        return FilterResult(
            is_unchanged, rewritten, new_headers, bodies, emptied, emptied_headers(empty_headers)
        )

    def _rewritten(
        self,
        section: RecordSection,
        columns: RecordColumns,
        is_retained: _BoolArray,
        rewritten: _Int64Array,
        counts: _Int64Array,
        horizons_ms: _Int64Array,
    ) -> tuple[_Rows, list[BytesLike]]:
        headers = section.headers.take(rewritten)
        if not len(rewritten):
            return headers, []
        is_rewritten = np.zeros(len(section.headers), np.bool_)
        is_rewritten[rewritten] = True
        rows = np.flatnonzero(is_retained & np.repeat(is_rewritten, columns.row_counts))
        retained = self._retained(section, columns, rows, counts)
        first_rows = retained.first_rows
        has_horizon = horizons_ms >= 0
        base_timestamps_ms = np.where(has_horizon, horizons_ms, retained.timestamps_ms[first_rows])
        records = self._encoder.encode(retained, base_timestamps_ms)

        attributes = headers["attributes"] & (_KEPT_FLAGS | CODEC_MASK)
        bodies = self._compressed(records, (attributes & CODEC_MASK).tolist())
        largest_ms = np.maximum(np.maximum.reduceat(retained.timestamps_ms, first_rows), NO_TIMESTAMP_MS)
        is_legacy = headers["magic"] < MAGIC_V2
        if is_legacy.any():
            first_offsets = retained.offsets[first_rows][is_legacy]
            _move_bases(headers, is_legacy, first_offsets)
            last_offsets = retained.offsets[first_rows + counts - 1][is_legacy]
            headers["last_offset_delta"][is_legacy] = last_offsets - first_offsets
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

    def _retained(
        self, section: RecordSection, columns: RecordColumns, rows: _Int64Array, counts: _Int64Array
    ) -> RetainedRecords:
        offsets = columns.offsets[rows]
        timestamps_ms = columns.timestamps_ms
        assert timestamps_ms is not None  # noqa: S101  (requested above)
        if columns.tails is not None:
            buffer, tails = section.buffer, columns.tails.take(rows)
        else:
            deltas = offsets - np.repeat(offsets[np.cumsum(counts) - counts], counts)
            buffer, tails = self._encoder.message_tails(section.buffer, columns, rows, deltas)
        return RetainedRecords(counts, offsets, timestamps_ms[rows], tails, buffer)

    def _compressed(self, records: list[memoryview], codecs: list[int]) -> list[BytesLike]:
        for codec in set(codecs) - self._compressors.keys():
            self._compressors[codec] = compressor(codec)
        bodies: list[BytesLike] = []
        for body, codec in zip(records, codecs, strict=True):
            compress = self._compressors[codec]
            bodies.append(body if compress is None else compress(body))
        return bodies


def emptied_headers(headers: _Rows) -> _Rows:
    """Return the headers of batches that are retained without records."""
    empty = headers.copy()
    empty["magic"] = MAGIC_V2
    empty["batch_length"] = _LENGTH_WITHOUT_RECORDS
    empty["attributes"] &= _KEPT_FLAGS
    empty["base_timestamp_ms"] = NO_TIMESTAMP_MS
    empty["record_count"] = 0
    put_crcs(empty, [b""] * len(empty))
    return empty


def _move_bases(headers: _Rows, rows: _BoolArray, base_offsets: _Int64Array) -> None:
    """Change the base offsets of some batches of formats v0 and v1, but not their last offsets."""
    last_offsets = headers["base_offset"][rows].astype(np.int64) + headers["last_offset_delta"][rows]
    headers["base_offset"][rows] = base_offsets
    headers["last_offset_delta"][rows] = last_offsets - base_offsets
    headers["leader_epoch"][rows] = _NO_EPOCH


@dataclass(frozen=True, slots=True, eq=False)
class OutputBatches:
    """Batches to append, at least one.

    Attributes:
        headers: Per batch, its header.
        pieces: The bytes of all batches. Adjacent unchanged batches are one piece.
    """

    headers: _Rows
    pieces: list[BytesLike]

    @property
    def size_bytes(self) -> int:
        """The size of all batches."""
        return int(self.headers["batch_length"].sum(dtype=np.int64)) + LOG_OVERHEAD_BYTES * len(self.headers)


class WindowOutput:
    """Collects the retained batches of a window and returns them in order, part by part.

    Args:
        window: The window. Unchanged batches are not copied out of it.
        empty: The batches that are retained as a header alone, whatever their records; ascending.
    """

    def __init__(self, window: BatchWindow, empty: _Int64Array) -> None:
        self._window = window
        self._empty = empty
        self._empty_headers = emptied_headers(window.headers.take(empty))
        self._clear()

    def _clear(self) -> None:
        self._unchanged: list[_Int64Array] = [np.zeros(0, np.int64)]
        self._rewritten: list[_Int64Array] = [np.zeros(0, np.int64)]
        self._headers: list[_Rows] = [np.zeros(0, HEADER_DTYPE)]
        self._bodies: list[BytesLike] = []

    def add_unchanged(self, indexes: _Int64Array) -> None:
        """Add unchanged batches of format v2, ascending."""
        self._unchanged.append(indexes)

    def add_rewritten(self, indexes: _Int64Array, headers: _Rows, bodies: Sequence[BytesLike]) -> None:
        """Add rewritten batches with their headers and records."""
        self._rewritten.append(indexes)
        self._headers.append(headers)
        self._bodies.extend(bodies)

    def add_empty(self, indexes: _Int64Array, headers: _Rows) -> None:
        """Add batches without records."""
        self.add_rewritten(indexes, headers, [b""] * len(indexes))

    def take(self, end_index: int) -> OutputBatches | None:
        """Remove the collected batches, all of which are before ``end_index``.

        Returns:
            The batches, or None without any.
        """
        empty_count = int(self._empty.searchsorted(end_index))
        self.add_empty(self._empty[:empty_count], self._empty_headers[:empty_count])
        self._empty, self._empty_headers = self._empty[empty_count:], self._empty_headers[empty_count:]
        unchanged, rewritten = np.concatenate(self._unchanged), np.concatenate(self._rewritten)
        new_headers, bodies = np.concatenate(self._headers, dtype=HEADER_DTYPE), self._bodies
        self._clear()
        if not len(unchanged) and not len(rewritten):
            return None
        order = np.argsort(np.concatenate([unchanged, rewritten]))
        headers = np.concatenate([self._window.headers.take(unchanged), new_headers], dtype=HEADER_DTYPE)
        # By the number of its first batch, the bytes of each run of unchanged batches and of each rewritten batch.
        pieces = self._unchanged_runs(unchanged)
        heads = RecordBatches.of_many(new_headers, bodies).pieces[0::2]
        pieces.update(zip(rewritten.tolist(), zip(heads, bodies, strict=True), strict=True))
        ordered = [piece for number in sorted(pieces) for piece in pieces[number]]
        return OutputBatches(headers.take(order), ordered)

    def _unchanged_runs(self, indexes: _Int64Array) -> dict[int, tuple[BytesLike, ...]]:
        """Return the bytes of each run of adjacent batches, by the number of its first batch."""
        if not len(indexes):
            return {}
        window = self._window
        is_first = np.diff(indexes, prepend=-2) != 1
        firsts, lasts = indexes[is_first], indexes[np.append(is_first[1:], True)]
        ends = window.starts[lasts] + LOG_OVERHEAD_BYTES + window.headers["batch_length"][lasts]
        view = window.buffer.data
        runs = zip(firsts.tolist(), window.starts[firsts].tolist(), ends.tolist(), strict=True)
        return {first: (view[start:end],) for first, start, end in runs}
