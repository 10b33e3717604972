"""The view ``batches``: a row for each record batch, made of its header alone where that is enough.

The tasks are those of a read, so bounds, topics and conditions rule out segments and parts of them as they do there.
A batch is in the view if it holds an offset of the range that is asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.errors import CorruptError, UnsupportedFormatError
from storage_core.filesystem import ReadableFileSystem
from storage_core.record import ControlType, batch_crc_matches, batch_timestamps, control_type
from storage_core.record.batch_header import (
    CODEC_MASK,
    CODEC_NAMES,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_SIZE_BYTES,
    LOG_APPEND_TIME_FLAG,
    MAGIC_V2,
    TRANSACTIONAL_FLAG,
    wrapper_rows,
)
from storage_core.record.section import batch_section
from storage_core.scan import LogSpan, ReadOptions, ScanTask, plan_scan
from storage_core.views.span_headers import HeaderChunk, iter_header_chunks
from storage_core.views.view import PARTITION_COLUMNS, TIMESTAMP, Column, View, timestamps, tolerating_damage

# fmt: off
_COLUMNS: Final = (
    *PARTITION_COLUMNS,
    Column("segment", pa.string(), "Name of the log file."),
    Column("position", pa.int64(), "Where the batch begins in the log file."),
    Column("sizeBytes", pa.int64(), "Size of the batch, header included."),
    Column("baseOffset", pa.int64(), "Offset of the first record that the batch was written with."),
    Column("lastOffset", pa.int64(), "Offset of the last record that the batch was written with."),
    Column("recordCount", pa.int32(), "How many records it holds now; cleaning removes some."),
    Column("leaderEpoch", pa.int32(), "Epoch of the leader that appended it; -1 if unknown, as before format v2."),
    Column("magic", pa.int32(), "Version of the format: 0, 1 or 2."),
    Column("crc", pa.int64(), "The CRC that the header states, without a sign."),
    Column("crcValid", pa.bool_(), "Whether it is the CRC of the batch's bytes. Reads all of them."),
    Column("attributes", pa.int32(), "All attribute bits."),
    Column("compression", pa.string(), "The codec: none, gzip, snappy, lz4, zstd; null if unknown."),
    Column("timestampType", pa.string(), "CreateTime or LogAppendTime; null in format v0, which has no timestamps."),
    Column("isTransactional", pa.bool_(), "Whether it belongs to a transaction."),
    Column("isControl", pa.bool_(), "Whether it holds a marker instead of data."),
    Column("controlType", pa.string(), "What the marker of a control batch says: commit, abort, leaderChange or "
           "another."),
    Column("hasDeleteHorizon", pa.bool_(), "Whether the cleaner has set a delete horizon."),
    Column("deleteHorizon", TIMESTAMP, "From when on the cleaner removes its tombstones and markers."),
    Column("baseTimestamp", TIMESTAMP, "The timestamp to which those of the records are relative; null with a delete "
           "horizon."),
    Column("maxTimestamp", TIMESTAMP, "The largest timestamp of its records."),
    Column("baseTimestampMs", pa.int64(), "The base timestamp field as it is: any value, or the delete horizon."),
    Column("maxTimestampMs", pa.int64(), "The max timestamp field as it is: any value, or -1."),
    Column("producerId", pa.int64(), "The producer; -1 without one."),
    Column("producerEpoch", pa.int32(), "Its epoch; -1 without one."),
    Column("baseSequence", pa.int32(), "Sequence number of the first record; -1 without one."),
    Column("lastSequence", pa.int32(), "Sequence number of the last record; -1 without one."),
    Column("uncompressedSizeBytes", pa.int64(), "Size of its records after decompression. Only if the column is chosen."),
)
# fmt: on
_SCHEMA: Final = pa.schema([(column.name, column.type) for column in _COLUMNS])
# Columns for which whole batches are read.
_NEED_RECORDS: Final = frozenset({"crcValid", "uncompressedSizeBytes"})
_UNDECODABLE: Final = (CorruptError, UnsupportedFormatError)
_TIMESTAMP_TYPES: Final = ("CreateTime", "LogAppendTime")
# Sequences wrap from 2^31 - 1 to 0.
_SEQUENCE_MASK: Final = 0x7FFFFFFF


def _plan(filesystem: ReadableFileSystem, options: ReadOptions) -> Sequence[ScanTask]:
    # Pieces of that many offsets would cut batches in two.
    whole = dataclasses.replace(
        tolerating_damage(options), min_partitions=None, max_records_per_partition=None
    )
    return plan_scan(filesystem, whole).tasks


def _read(filesystem: ReadableFileSystem, task: ScanTask, wanted: frozenset[str]) -> Iterator[pa.RecordBatch]:
    with_records = not wanted.isdisjoint(_NEED_RECORDS)
    fields = [field for field in _SCHEMA if field.name in wanted]
    for span in task.spans:
        limit_bytes = task.settings.max_batch_bytes
        for chunk in iter_header_chunks(filesystem, span, task.settings, with_records=with_records):
            rows = _Rows(_with_unwrapped(chunk, span, limit_bytes), span, limit_bytes)
            if not len(rows.chunk):
                continue
            if fields:
                arrays = [_column(rows, field) for field in fields]
                yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
            else:
                yield pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows.chunk), pa.struct([])))


class _Rows(NamedTuple):
    """A chunk of batches, of which each becomes a row."""

    chunk: HeaderChunk
    span: LogSpan
    limit_bytes: int

    @property
    def headers(self) -> npt.NDArray[Any]:
        """Their headers."""
        return self.chunk.window.headers


def _column(rows: _Rows, field: pa.Field) -> pa.Array:
    stated = _STATED.get(field.name)
    if stated is not None:
        return pa.array(rows.headers[stated].astype(field.type.to_pandas_dtype()), field.type)
    found = _DERIVED[field.name](rows)
    if isinstance(found, (str, int)):
        return pa.repeat(pa.scalar(found, field.type), len(rows.chunk))
    return found if isinstance(found, pa.Array) else pa.array(found, field.type)


def _has(rows: _Rows, flag: int) -> npt.NDArray[np.bool_]:
    has_flag: npt.NDArray[np.bool_] = (rows.headers["attributes"] & flag) != 0
    return has_flag


def _compression(rows: _Rows) -> pa.Array:
    codecs = rows.headers["attributes"].astype(np.int32) & CODEC_MASK
    return pa.array(CODEC_NAMES).take(pa.array(codecs, pa.int32(), mask=codecs >= len(CODEC_NAMES)))


def _timestamp_types(rows: _Rows) -> pa.Array:
    types = _has(rows, LOG_APPEND_TIME_FLAG).astype(np.int32)
    return pa.array(_TIMESTAMP_TYPES).take(pa.array(types, mask=rows.headers["magic"] == 0))


def _control_types(rows: _Rows) -> list[str | None]:
    types: list[str | None] = [None] * len(rows.chunk)
    for index in np.flatnonzero(_has(rows, CONTROL_FLAG)).tolist():
        kind = _control_type_of(rows.chunk, index, rows.limit_bytes)
        types[index] = None if kind is None else _CONTROL_TYPES[kind]
    return types


def _uncompressed_sizes_bytes(rows: _Rows) -> pa.Array:
    """Return the sizes of the decompressed records: what follows the header in format v2, whole messages before."""
    sizes = rows.chunk.sizes_bytes - np.where(rows.headers["magic"] == MAGIC_V2, HEADER_SIZE_BYTES, 0)
    is_unknown = np.zeros(len(rows.chunk), np.bool_)
    for index in np.flatnonzero(_has(rows, CODEC_MASK)).tolist():
        size_bytes = _uncompressed_size_bytes(rows.chunk, index, rows.limit_bytes)
        is_unknown[index] = size_bytes is None
        sizes[index] = size_bytes or 0
    return pa.array(sizes, mask=is_unknown)


# Columns that are fields of the header.
_STATED: Final = {
    "attributes": "attributes",
    "baseOffset": "base_offset",
    "recordCount": "record_count",
    "leaderEpoch": "leader_epoch",
    "magic": "magic",
    "crc": "crc",
    "baseTimestampMs": "base_timestamp_ms",
    "maxTimestampMs": "max_timestamp_ms",
    "producerId": "producer_id",
    "producerEpoch": "producer_epoch",
    "baseSequence": "base_sequence",
}
# A single value is that of all rows.
_DERIVED: Final[dict[str, Callable[[_Rows], Any]]] = {
    "topic": lambda rows: rows.span.topic,
    "partition": lambda rows: rows.span.partition,
    "segment": lambda rows: rows.span.file_name,
    "position": lambda rows: rows.chunk.positions,
    "sizeBytes": lambda rows: rows.chunk.sizes_bytes,
    "lastOffset": lambda rows: rows.chunk.window.last_offsets,
    "crcValid": lambda rows: rows.chunk.crcs_are_right(),
    "compression": _compression,
    "timestampType": _timestamp_types,
    "isTransactional": lambda rows: _has(rows, TRANSACTIONAL_FLAG),
    "isControl": lambda rows: _has(rows, CONTROL_FLAG),
    "controlType": _control_types,
    "hasDeleteHorizon": lambda rows: _has(rows, DELETE_HORIZON_FLAG),
    "deleteHorizon": lambda rows: timestamps(
        rows.headers["base_timestamp_ms"], ~_has(rows, DELETE_HORIZON_FLAG)
    ),
    "baseTimestamp": lambda rows: timestamps(
        rows.headers["base_timestamp_ms"], _has(rows, DELETE_HORIZON_FLAG)
    ),
    "maxTimestamp": lambda rows: timestamps(rows.headers["max_timestamp_ms"]),
    "lastSequence": lambda rows: _last_sequences(rows.headers),
    "uncompressedSizeBytes": _uncompressed_sizes_bytes,
}


def _last_sequences(headers: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Return the sequence number of each batch's last record, or -1."""
    first = headers["base_sequence"].astype(np.int64)
    wrapped = (first + headers["last_offset_delta"]) & _SEQUENCE_MASK
    return np.where(first < 0, -1, wrapped).astype(np.int32)


def _control_type_of(chunk: HeaderChunk, index: int, limit_bytes: int) -> ControlType | None:
    """Return the type of a control batch.

    Returns:
        None if compaction emptied it, or it is damaged.
    """
    batch = chunk.batch(index, limit_bytes)
    if batch is None or not batch_crc_matches(batch):
        return None
    try:
        return control_type(batch, chunk.window.header(index), path=chunk.opened.path)
    except _UNDECODABLE:
        return None


def _uncompressed_size_bytes(chunk: HeaderChunk, index: int, limit_bytes: int) -> int | None:
    """Return the size of a compressed batch's records.

    Returns:
        Bytes; None if they cannot be decompressed within the limit.
    """
    batch = chunk.batch(index, limit_bytes)
    if batch is None:
        return None
    try:
        section = batch_section(
            batch, chunk.window.header(index), path=chunk.opened.path, limit_bytes=limit_bytes
        )
    except _UNDECODABLE:
        return None
    return int(section.ends[0])


def _with_unwrapped(chunk: HeaderChunk, span: LogSpan, limit_bytes: int) -> HeaderChunk:
    """Replace the headers of wrappers by ones with the first offset and the number of the messages inside.

    A wrapper's header states neither, so it is decoded. One that cannot be keeps the lower bound and a count of 1; one
    that turns out to begin beyond the span is left out.
    """
    wrappers = np.flatnonzero(wrapper_rows(chunk.window.headers)).tolist()
    if not wrappers:
        return chunk
    headers = chunk.window.headers.copy()
    for index in wrappers:
        batch = chunk.batch(index, limit_bytes)
        if batch is None or not batch_crc_matches(batch):
            continue
        header = chunk.window.header(index)
        if header.position_bytes == span.position_bytes:
            # Its first messages may be below the offsets that are asked for.
            header = header.with_base_offset(span.base_offset)
        try:
            offsets, _ = batch_timestamps(batch, header, path=chunk.opened.path, limit_bytes=limit_bytes)
        except _UNDECODABLE:
            continue
        row = headers[index : index + 1]
        row["base_offset"], row["last_offset_delta"] = offsets[0], header.last_offset - int(offsets[0])
        row["record_count"] = len(offsets)
    unwrapped = HeaderChunk(chunk.opened, dataclasses.replace(chunk.window, headers=headers))
    return unwrapped.part(0, int(np.count_nonzero(unwrapped.window.base_offsets < span.end_offset)))


_CONTROL_TYPES: Final = {
    ControlType.ABORT: "abort",
    ControlType.COMMIT: "commit",
    ControlType.LEADER_CHANGE: "leaderChange",
    ControlType.SNAPSHOT_HEADER: "snapshotHeader",
    ControlType.SNAPSHOT_FOOTER: "snapshotFooter",
    ControlType.KRAFT_VERSION: "kraftVersion",
    ControlType.KRAFT_VOTERS: "kraftVoters",
    ControlType.UNKNOWN: "unknown",
}

BATCHES_VIEW: Final = View(
    name="batches",
    doc="A record batch: records that were compressed and written together. One with a wrong CRC has a row if its "
    "boundaries are right.",
    columns=_COLUMNS,
    plan=_plan,
    read=_read,
)
