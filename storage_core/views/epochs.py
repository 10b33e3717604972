"""The view ``epochs``: leader epochs by ``leader-epoch-checkpoint``, beside what the batches in the log say (KIP-101).

A follower truncates to the offsets of this checkpoint, so where it disagrees with the log, records may be lost or differ
between replicas. An epoch may begin below its first batch: it begins at the election, and cleaning removes batches.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from storage_core.checkpoint import EpochEntry
from storage_core.directory import PartitionLog
from storage_core.errors import CorruptCheckpointError
from storage_core.filesystem import ReadableFileSystem
from storage_core.record.batch_window import BatchWindow
from storage_core.scan import ReadOptions
from storage_core.views.span_headers import PartitionSpans
from storage_core.views.view import PARTITION_COLUMNS, Column, View, resolved_ranges, rows_read

_log = logging.getLogger(__name__)
# fmt: off
_COLUMNS: Final = (
    *PARTITION_COLUMNS,
    Column("leaderEpoch", pa.int32(), "The epoch of a leader."),
    Column("startOffset", pa.int64(), "Where it begins, by the checkpoint, or by the log if the checkpoint lacks it."),
    Column("endOffset", pa.int64(), "Where the next epoch begins, or the log ends."),
    Column("firstBatchOffset", pa.int64(), "Base offset of its first batch in the log; null without one."),
    Column("lastBatchOffset", pa.int64(), "Last offset of its last batch in the log; null without one."),
    Column("batchCount", pa.int64(), "How many batches in the log have this epoch."),
    Column("source", pa.string(), "Who knows the epoch: checkpoint, log, or both."),
    Column("agrees", pa.bool_(), "Whether its batches are where the checkpoint says; null without a checkpoint."),
)
# fmt: on


@dataclass(frozen=True, slots=True)
class _EpochsTask:
    """A partition, the entries of its checkpoint if it can be read, and its log end, whatever range is asked for."""

    part: PartitionSpans
    entries: tuple[EpochEntry, ...] | None
    log_end_offset: int


class EpochRun(NamedTuple):
    """Batches of one leader epoch, of which the first begins at a position."""

    epoch: int
    first_offset: int
    last_offset: int
    position_bytes: int
    batch_count: int

    def followed_by(self, later: EpochRun) -> EpochRun:
        """Extend the run by batches further on in the log."""
        count = self.batch_count + later.batch_count
        return self._replace(last_offset=later.last_offset, batch_count=count)


def _plan(filesystem: ReadableFileSystem, options: ReadOptions) -> list[_EpochsTask]:
    return [
        _EpochsTask(PartitionSpans.of(wanted, options), _checkpointed(wanted.log), wanted.log.log_end_offset)
        for wanted in resolved_ranges(filesystem, options)
    ]


def _checkpointed(log: PartitionLog) -> tuple[EpochEntry, ...] | None:
    try:
        return log.leader_epochs or None
    except CorruptCheckpointError as error:
        _log.warning("Only the log says which leader epochs there are: %s", error)
        return None


def _epochs_in_log(filesystem: ReadableFileSystem, task: _EpochsTask) -> dict[int, EpochRun]:
    in_log: dict[int, EpochRun] = {}
    for chunk in task.part.chunks(filesystem):
        for run in epoch_runs(chunk.window):
            known = in_log.get(run.epoch)
            in_log[run.epoch] = run if known is None else known.followed_by(run)
    return in_log


def epoch_runs(window: BatchWindow) -> Iterator[EpochRun]:
    """Divide batches into runs of equal epochs. Batches of older formats have none and are left out."""
    epochs = window.headers["leader_epoch"].astype(np.int64)
    firsts = np.flatnonzero(np.diff(epochs, prepend=epochs[0] - 1))
    lasts = np.append(firsts[1:], len(epochs)) - 1
    positions = window.position_bytes + window.starts
    columns = epochs, window.base_offsets, positions
    epoch, first_offset, position_bytes = (column[firsts].tolist() for column in columns)
    last_offset, count = window.last_offsets[lasts].tolist(), (lasts - firsts + 1).tolist()
    runs = map(EpochRun, epoch, first_offset, last_offset, position_bytes, count)
    return (run for run in runs if run.epoch >= 0)


def _rows(filesystem: ReadableFileSystem, task: _EpochsTask, _wanted: object) -> Iterator[tuple[object, ...]]:
    in_log, entries = _epochs_in_log(filesystem, task), task.entries or ()
    starts = {epoch: found.first_offset for epoch, found in in_log.items()}
    starts |= {entry.epoch: entry.start_offset for entry in entries}
    known = {entry.epoch for entry in entries}
    epochs = sorted(starts)
    # An empty log, or one of an older format, has no epochs.
    ends = [*(starts[epoch] for epoch in epochs[1:]), task.log_end_offset][: len(epochs)]
    for epoch, end_offset in zip(epochs, ends, strict=True):
        found = in_log.get(epoch)
        start_offset = starts[epoch]
        if not _is_in_range(start_offset, max(start_offset, end_offset), task):
            continue
        agrees = epoch in known and start_offset <= task.log_end_offset
        if found is not None:
            agrees = agrees and start_offset <= found.first_offset and found.last_offset < end_offset
        yield (
            task.part.topic,
            task.part.partition,
            epoch,
            start_offset,
            max(start_offset, end_offset),
            None if found is None else found.first_offset,
            None if found is None else found.last_offset,
            0 if found is None else found.batch_count,
            "log" if epoch not in known else "checkpoint" if found is None else "both",
            None if task.entries is None else agrees,
        )


def _is_in_range(start_offset: int, end_offset: int, task: _EpochsTask) -> bool:
    """Return True if an epoch has an offset in the range; without offsets, if it begins there or beyond the log."""
    part = task.part
    if start_offset == end_offset:
        is_before_end = start_offset <= part.end_offset or part.end_offset == task.log_end_offset
        return part.start_offset <= start_offset and is_before_end
    return start_offset < part.end_offset and end_offset > part.start_offset


EPOCHS_VIEW: Final = View(
    name="epochs",
    doc="A leader epoch: the offsets that one leader of the partition wrote, by the checkpoint and by the batches.",
    columns=_COLUMNS,
    plan=_plan,
    read=rows_read(_COLUMNS, _rows),
)
