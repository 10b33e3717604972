"""The view ``producers``: what a broker would know of each producer of a partition (KIP-98, KIP-664).

That is the newest valid ``.snapshot`` file at or below the end of the range, brought up to date with the batches after it.
Producers do not expire here, as they do in a running broker: their last traces stay visible.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from storage_core.checkpoint import read_producer_snapshot
from storage_core.directory import PartitionLog, ProducerSnapshot
from storage_core.errors import CorruptSnapshotError
from storage_core.filesystem import ReadableFileSystem
from storage_core.log.producer_batches import ProducerBatch, ProducerBatches, ProducerState
from storage_core.record.batch_header import CONTROL_FLAG
from storage_core.scan import ReadOptions
from storage_core.scan.offset_ranges import PartitionRange
from storage_core.segment.file_names import snapshot_file_name
from storage_core.views.span_headers import HeaderChunk, PartitionSpans
from storage_core.views.view import PARTITION_COLUMNS, TIMESTAMP, Column, View, resolved_ranges, rows_read

_log = logging.getLogger(__name__)
# fmt: off
_COLUMNS: Final = (
    *PARTITION_COLUMNS,
    Column("producerId", pa.int64(), "The producer."),
    Column("producerEpoch", pa.int32(), "The epoch of its last batch or marker."),
    Column("lastSequence", pa.int32(), "Sequence number of its last record in this epoch; -1 without one."),
    Column("lastOffset", pa.int64(), "Offset of its last record in this epoch; null without one."),
    Column("lastTimestamp", TIMESTAMP, "Timestamp of its last batch or marker."),
    Column("coordinatorEpoch", pa.int32(), "Epoch of the coordinator that wrote its last marker; -1 without one."),
    Column("currentTransactionFirstOffset", pa.int64(), "Where its open transaction begins; null without one."),
    Column("source", pa.string(), "snapshot, or log if a batch after the snapshot changed it."),
    Column("snapshotOffset", pa.int64(), "Offset of the snapshot that was used; null without one."),
)
# fmt: on


@dataclass(frozen=True, slots=True)
class _ProducersTask:
    """The snapshot of a partition, and the batches after it."""

    part: PartitionSpans
    snapshot: ProducerSnapshot


def first_segment_offset(log: PartitionLog) -> int:
    """Return the base offset of a log's first segment, which may be below the log start."""
    return log.segments.base_offsets[0] if log.segments else log.log_start_offset


def newest_snapshot(filesystem: ReadableFileSystem, log: PartitionLog, up_to_offset: int) -> ProducerSnapshot:
    """Return the newest valid snapshot at or below an offset, or an empty one at the log's first segment.

    The snapshot at the log's very beginning counts, although a starting broker deletes it: it tells of producers whose
    batches are gone.
    """
    found = log.newest_producer_snapshot(up_to_offset)
    if found is not None:
        return found
    offset = first_segment_offset(log)
    try:
        producers = read_producer_snapshot(filesystem, f"{log.path}/{snapshot_file_name(offset)}")
    except CorruptSnapshotError as error:
        _log.warning("Ignored a producer snapshot, and used the log: %s", error)
        producers = None
    return ProducerSnapshot(offset, producers or ())


def _plan(filesystem: ReadableFileSystem, options: ReadOptions) -> list[_ProducersTask]:
    tasks = []
    for wanted in resolved_ranges(filesystem, options):
        snapshot = newest_snapshot(filesystem, wanted.log, wanted.end_offset)
        later = PartitionRange(wanted.log, snapshot.offset, wanted.end_offset)
        tasks.append(_ProducersTask(PartitionSpans.of(later, options), snapshot))
    return tasks


def _rows(
    filesystem: ReadableFileSystem, task: _ProducersTask, _wanted: object
) -> Iterator[tuple[object, ...]]:
    producers = {
        entry.producer_id: ProducerState.of_snapshot_entry(entry) for entry in task.snapshot.producers
    }
    changed: set[int] = set()
    for chunk in task.part.chunks(filesystem):
        for batch in _producer_batches(chunk):
            producers.setdefault(batch.producer_id, ProducerState(batch.producer_id)).apply(batch)
            changed.add(batch.producer_id)
    for each in sorted(producers):
        yield _row(task, producers[each], is_from_log=each in changed)


def _producer_batches(chunk: HeaderChunk) -> tuple[ProducerBatch, ...]:
    """Return the batches that change the state of producers, without damaged markers."""
    is_control = (chunk.window.headers["attributes"] & CONTROL_FLAG) != 0
    is_kept = ~is_control
    for index in np.flatnonzero(is_control & (chunk.window.headers["producer_id"] >= 0)).tolist():
        is_kept[index] = chunk.marker(index) is not None
    chosen = np.flatnonzero(is_kept)

    def batch_at(number: int) -> tuple[memoryview, int]:
        index = int(chosen[number])
        batch = chunk.batch(index, int(chunk.sizes_bytes[index]))
        assert batch is not None  # noqa: S101  (its marker was read)
        return batch, int(chunk.positions[index])

    return ProducerBatches.of_headers(chunk.window.headers[chosen], batch_at, path=chunk.opened.path).batches


def _row(task: _ProducersTask, state: ProducerState, *, is_from_log: bool) -> tuple[object, ...]:
    return (
        task.part.topic,
        task.part.partition,
        state.producer_id,
        state.producer_epoch,
        state.last_sequence,
        None if state.last_offset < 0 else state.last_offset,
        state.timestamp_ms,
        state.coordinator_epoch,
        state.current_transaction_first_offset,
        "log" if is_from_log else "snapshot",
        task.snapshot.offset if task.snapshot.producers else None,
    )


PRODUCERS_VIEW: Final = View(
    name="producers",
    doc="A producer that numbers its records (idempotent or transactional), as known at the end of the range.",
    columns=_COLUMNS,
    plan=_plan,
    read=rows_read(_COLUMNS, _rows),
)
