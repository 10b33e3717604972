"""The batches that hold what survives (Kafka's ``MemoryRecords.filterTo``).

A batch of which nothing was dropped stays as it is, byte by byte. Another keeps its base offset, its last offset, its
producer's fields and its leader epoch, so that what is known of producers, transactions and epochs does not change with
it. Its base timestamp becomes that of the first survivor or, while a tombstone or an idle marker awaits its removal,
the delete horizon. A batch without survivors that has to stay is a header alone.

Messages of formats v0 and v1 become batches of format v2, whether something was dropped or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from storage_core.compaction.survivor_records import SurvivorEncoder, Survivors
from storage_core.record.batch_header import (
    CODEC_MASK,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_SIZE_BYTES,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    TRANSACTIONAL_FLAG,
)
from storage_core.record.compression_encode import compressor
from storage_core.record.record_batches import put_crcs
from storage_core.record.section import Slices

if TYPE_CHECKING:
    from storage_core.record.batch_header import BytesLike
    from storage_core.record.compression_encode import Compressor
    from storage_core.record.section import RecordColumns, RecordSection

__all__ = ["RewrittenBatches", "SectionRewriter", "emptied_headers"]

_NO_TIMESTAMP_MS: Final = -1
_NONE: Final = -1
_KEPT_FLAGS: Final = LOG_APPEND_TIME_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG
_WRAP: Final = 1 << 64
_LENGTH_WITHOUT_RECORDS: Final = HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES

_Int64Array = npt.NDArray[np.int64]
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
