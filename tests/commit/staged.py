"""Rows that are staged, and the content of the staged files, read by hand, piece by piece."""

from __future__ import annotations

import struct
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from storage_core.commit.manifest import read_manifest
from storage_core.commit.routing import RoutedRows
from storage_core.commit.staging import StageWriter
from storage_core.commit_files.stage_names import StageId
from storage_core.filesystem import FileSystem
from storage_core.log_config import LogConfig
from storage_core.record.encode import BatchEncoding

JOB = "00112233445566778899aabbccddeeff"
STAGE = StageId(JOB, 3, 17)
PACK = f".segmentlog-stage-{JOB}-3-17"
NOW_MS = 1_772_500_000_000


def routed(rows, topics=("t",), **columns):
    """Rows of (topic's place, partition, value), and other columns."""
    values = pa.array([value for _, _, value in rows], pa.binary())
    return RoutedRows(
        pa.RecordBatch.from_pydict({"value": values, **columns}),
        topics,
        np.array([topic for topic, _, _ in rows], np.int32),
        np.array([partition for _, partition, _ in rows], np.int32),
    )


def writer_in(root, *, filesystem=None, encoding=None, config=None, **options):
    return StageWriter(
        filesystem or FileSystem(),
        str(root),
        STAGE,
        encoding or BatchEncoding(batch_size_bytes=300),
        config or LogConfig(),
        default_timestamp_ms=NOW_MS,
        **options,
    )


def stage(root, *batches, flush=True, **options):
    """Stage batches of rows; return the pieces of the manifest."""
    with writer_in(root, flush=flush, **options) as writer:
        for rows in batches:
            writer.append(rows)
        reported = writer.finish()
    return read_manifest(options.get("filesystem") or FileSystem(), str(root), reported).pieces


def piece_bytes(root, piece):
    data = Path(root, piece.file + piece.suffix).read_bytes()
    return data[piece.position_bytes : piece.position_bytes + piece.size_bytes]


def batches_of(data):
    """Per batch, its fields and its bytes; every CRC is checked."""
    position = 0
    while position < len(data):
        base_offset, length, epoch, magic, crc = struct.unpack_from(">qiibI", data, position)
        end = position + 12 + length
        assert end <= len(data)
        assert magic == 2
        assert crc == crc32c(data[position + 21 : end])
        last_delta, _, max_timestamp_ms = struct.unpack_from(">iqq", data, position + 23)
        yield base_offset, base_offset + last_delta, epoch, max_timestamp_ms, data[position:end]
        position = end


def values_in(batch):
    """Offset and value of each record of an uncompressed batch without keys and headers."""
    position, found = 61, []
    (base_offset,) = struct.unpack_from(">q", batch)
    for _ in range(struct.unpack_from(">i", batch, 57)[0]):
        length, position = _varint(batch, position)
        end = position + length
        _, position = _varint(batch, position + 1)
        delta, position = _varint(batch, position)
        _, position = _varint(batch, position)
        size, position = _varint(batch, position)
        found.append((base_offset + delta, batch[position : position + size] if size >= 0 else None))
        position = end
    assert position == len(batch)
    return found


def _varint(data, position):
    value = shift = 0
    while True:
        value |= (data[position] & 0x7F) << shift
        shift += 7
        position += 1
        if data[position - 1] < 0x80:
            return (value >> 1) ^ -(value & 1), position


def staged_values(root, pieces):
    """Per partition, the values of its pieces in their order. What the manifest says of each piece is checked."""
    found = defaultdict(list)
    for piece in pieces:
        batches = list(batches_of(piece_bytes(root, piece)))
        records = [record for *_, batch in batches for record in values_in(batch)]
        fingerprinted = b"".join(batch[8:12] + batch[16:61] for *_, batch in batches)
        assert piece.batch_count == len(batches)
        assert piece.record_count == len(records)
        assert piece.first_timestamp_ms == batches[0][3]
        assert piece.max_timestamp_ms == max(batch[3] for batch in batches)
        assert piece.fingerprint == crc32c(fingerprinted)
        assert {batch[2] for batch in batches} == {-1}
        if piece.min_offset is None:
            assert [offset for offset, _ in records] == list(range(piece.offset_count))
        else:
            assert (piece.min_offset, piece.max_offset) == (batches[0][0], batches[-1][1])
        found[piece.topic, piece.partition].extend(records)
    return dict(found)


def expected_values(batches):
    """Per partition, the values of rows in their order."""
    expected = defaultdict(list)
    for rows in batches:
        values = rows.records.column("value").to_pylist()
        topics = np.zeros(len(values), int) if rows.topic_indexes is None else rows.topic_indexes
        for topic, partition, value in zip(topics.tolist(), rows.partitions.tolist(), values, strict=True):
            expected[rows.topics[topic], partition].append(value)
    return dict(expected)


def staged_names(root):
    return sorted(path.name for path in Path(root).iterdir() if path.name.startswith(".segmentlog-stage-"))
