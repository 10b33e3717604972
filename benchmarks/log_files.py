"""Where the batches of a .log file lie, read with nothing but `struct`.

On purpose not the code under test: the peers get their input through this, and data sets are checked with it.
"""

from __future__ import annotations

import os
import statistics
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# baseOffset int64, batchLength int32 (bytes after this field), leaderEpoch int32, magic int8, crc int32,
# attributes int16, lastOffsetDelta int32, baseTimestamp int64, maxTimestamp int64, producerId int64,
# producerEpoch int16, baseSequence int32, recordCount int32
_HEADER = struct.Struct(">qiibIhiqqqhii")
_LOG_OVERHEAD_BYTES = 12


@dataclass(frozen=True, slots=True)
class BatchPlace:
    """One batch of a file: where it is and what its header says."""

    position_bytes: int
    size_bytes: int
    base_offset: int
    last_offset_delta: int
    max_timestamp_ms: int
    record_count: int


@dataclass(frozen=True, slots=True)
class Window:
    """A run of whole batches."""

    position_bytes: int
    size_bytes: int


def batch_places(path: Path) -> Iterator[BatchPlace]:
    """Yield every whole batch of the file; end at a torn or preallocated tail."""
    with open(path, "rb") as log:
        size_bytes = os.fstat(log.fileno()).st_size
        position = 0
        while position + _HEADER.size <= size_bytes:
            fields = _HEADER.unpack(os.pread(log.fileno(), _HEADER.size, position))
            batch_size = fields[1] + _LOG_OVERHEAD_BYTES
            if batch_size < _HEADER.size or position + batch_size > size_bytes:
                return
            yield BatchPlace(position, batch_size, fields[0], fields[6], fields[8], fields[12])
            position += batch_size


def windows(places: Sequence[BatchPlace], size_bytes: int) -> list[Window]:
    """Neighbouring batches taken together until a window holds ``size_bytes``."""
    found: list[Window] = []
    start = 0
    for place in places:
        end = place.position_bytes + place.size_bytes
        if end - start >= size_bytes:
            found.append(Window(start, end - start))
            start = end
    if places and (end := places[-1].position_bytes + places[-1].size_bytes) > start:
        found.append(Window(start, end - start))
    return found


def describe_log_files(paths: Sequence[Path]) -> dict[str, float]:
    """Return what is really on disk: bytes, batches, records, median batch."""
    places = [place for path in paths for place in batch_places(path)]
    return {
        "files": len(paths),
        "size_bytes": sum(place.size_bytes for place in places),
        "batches": len(places),
        "records": sum(place.record_count for place in places),
        "median_batch_bytes": statistics.median(place.size_bytes for place in places),
        "median_batch_records": statistics.median(place.record_count for place in places),
    }
