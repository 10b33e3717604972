"""Log directories made here because no broker makes them in reasonable time: huge, or of very many files.

Batches come from a real log. The v2 CRC covers neither base offset nor leader epoch, so a batch moves to
another offset by its first eight bytes; index entries follow Kafka's rule (one for each 4 KiB appended).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import crc32c

from benchmarks.log_files import BatchPlace, batch_places
from benchmarks.records import FIRST_TIMESTAMP_MS

_INDEX_INTERVAL_BYTES = 4096
_BASE_OFFSET = struct.Struct(">q")
_OFFSET_INDEX_ENTRY = struct.Struct(">ii")
_TIME_INDEX_ENTRY = struct.Struct(">qi")
# Everything of a batch header that the CRC covers, from attributes to recordCount.
_CRC_COVERED_HEADER = struct.Struct(">hiqqqhii")
_TO_CRC = struct.Struct(">qiibI")


@dataclass(frozen=True, slots=True)
class SourceBatches:
    """Batches of a real log, in memory: `data` holds them one after another."""

    data: bytes
    places: tuple[BatchPlace, ...]

    @staticmethod
    def read(path: Path, limit_bytes: int = 64 << 20) -> SourceBatches:
        """Return the first ``limit_bytes`` of a .log file, in whole batches."""
        places = tuple(
            place for place in batch_places(path) if place.position_bytes + place.size_bytes <= limit_bytes
        )
        end = places[-1].position_bytes + places[-1].size_bytes
        with open(path, "rb") as log:
            return SourceBatches(log.read(end), places)

    def batch(self, place: BatchPlace) -> memoryview:
        """Return the bytes of one batch."""
        return memoryview(self.data)[place.position_bytes : place.position_bytes + place.size_bytes]


def write_partition(directory: Path, source: SourceBatches, *, segment_sizes_bytes: Sequence[int]) -> int:
    """Fill a partition directory with segments of about these sizes; return the number of records."""
    directory.mkdir(parents=True)
    batches = cycle(source.places)
    next_offset = 0
    for size_bytes in segment_sizes_bytes:
        next_offset = _write_segment(directory, source, batches, next_offset, size_bytes)
    return next_offset


def write_tiny_segments(
    directory: Path,
    segments: int,
    *,
    batches_per_segment: int = 3,
    milliseconds_apart: int = 0,
    exist_ok: bool = False,
) -> int:
    """Fill a partition directory with segments of a few one-record batches; return the number of records.

    Records of one segment have one timestamp; those of the first, `FIRST_TIMESTAMP_MS`.
    """
    directory.mkdir(parents=True, exist_ok=exist_ok)
    body = _one_record_batch(FIRST_TIMESTAMP_MS)
    offsets = struct.Struct(f">{'ii' * (batches_per_segment - 1)}")
    for segment in range(segments):
        base_offset = segment * batches_per_segment
        timestamp_ms = FIRST_TIMESTAMP_MS + segment * milliseconds_apart
        if milliseconds_apart:
            body = _one_record_batch(timestamp_ms)
        name = f"{base_offset:020d}"
        log = b"".join(_BASE_OFFSET.pack(base_offset + index) + body for index in range(batches_per_segment))
        # An entry for every batch but the first, as a broker with a tiny index.interval.bytes writes them.
        entries = [
            number for index in range(1, batches_per_segment) for number in (index, index * (len(body) + 8))
        ]
        (directory / f"{name}.log").write_bytes(log)
        (directory / f"{name}.index").write_bytes(offsets.pack(*entries))
        (directory / f"{name}.timeindex").write_bytes(_TIME_INDEX_ENTRY.pack(timestamp_ms, 0))
    return segments * batches_per_segment


def _write_segment(
    directory: Path, source: SourceBatches, batches: Iterator[BatchPlace], base_offset: int, size_bytes: int
) -> int:
    """Append batches until the segment is about to outgrow ``size_bytes``; return the next offset."""
    name = f"{base_offset:020d}"
    next_offset, position, since_entry = base_offset, 0, 0
    largest_timestamp_ms = -1
    offset_entries, time_entries = bytearray(), bytearray()
    with open(directory / f"{name}.log", "wb", buffering=1 << 20) as log:
        for place in batches:
            last_offset = next_offset + place.last_offset_delta
            if since_entry > _INDEX_INTERVAL_BYTES:
                offset_entries += _OFFSET_INDEX_ENTRY.pack(last_offset - base_offset, position)
                if place.max_timestamp_ms > largest_timestamp_ms:
                    time_entries += _TIME_INDEX_ENTRY.pack(place.max_timestamp_ms, last_offset - base_offset)
                since_entry = 0
            largest_timestamp_ms = max(largest_timestamp_ms, place.max_timestamp_ms)
            log.write(_BASE_OFFSET.pack(next_offset))
            log.write(source.batch(place)[_BASE_OFFSET.size :])
            position += place.size_bytes
            since_entry += place.size_bytes
            next_offset = last_offset + 1
            if position + place.size_bytes > size_bytes:
                break
    (directory / f"{name}.index").write_bytes(offset_entries)
    (directory / f"{name}.timeindex").write_bytes(time_entries)
    return next_offset


def _one_record_batch(timestamp_ms: int) -> bytes:
    """Return a batch of one record after its base offset: key null, value ``value``."""
    # length, attributes, timestamp delta, offset delta, key length -1, value length 5, value, headers: zigzag varints
    record = bytes([0, 0, 0, 1, 10]) + b"value" + b"\x00"
    record = bytes([len(record) << 1]) + record
    covered = _CRC_COVERED_HEADER.pack(0, 0, timestamp_ms, timestamp_ms, -1, -1, -1, 1) + record
    batch_length = _TO_CRC.size - 12 + len(covered)
    return _TO_CRC.pack(0, batch_length, 0, 2, crc32c.crc32c(covered))[_BASE_OFFSET.size :] + covered
