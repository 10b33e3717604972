"""The view ``transactions``: every transaction of a partition, from its batches and markers (KIP-98).

A transaction begins in a partition with a producer's first transactional batch there, and ends with the producer's
marker. What is open where the walk begins is known from the producer snapshot there. No ``.txnindex`` is read: it lists
only aborted transactions, and may be missing or stale.

The walk begins where the oldest transaction of the range began, and goes on after the range until all of them have ended.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from storage_core.checkpoint import ProducerStateEntry
from storage_core.filesystem import ReadableFileSystem
from storage_core.record.batch_header import (
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    NO_TIMESTAMP_MS,
    TRANSACTIONAL_FLAG,
    batch_sizes_bytes,
    last_offsets,
)
from storage_core.record.control_records import EndTransactionMarker
from storage_core.scan import ReadOptions
from storage_core.scan.offset_ranges import PartitionRange
from storage_core.scan.rows import LARGEST_TIMESTAMP_MS
from storage_core.segment import DamagedRange
from storage_core.views.producers import first_segment_offset, newest_snapshot
from storage_core.views.span_headers import HeaderChunk, PartitionSpans
from storage_core.views.view import PARTITION_COLUMNS, TIMESTAMP, Column, View, resolved_ranges, rows_read

_log = logging.getLogger(__name__)
OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"
BOOTSTRAP_SERVER: Final = "localhost:9092"
"""Where the printed commands find a broker, unless the caller says."""
# fmt: off
_COLUMNS: Final = (
    *PARTITION_COLUMNS,
    Column("producerId", pa.int64(), "The producer."),
    Column("producerEpoch", pa.int32(), "Its epoch when it began the transaction; the marker's if there is no data."),
    Column("state", pa.string(), "committed, aborted, or open: without a marker up to the log end."),
    Column("firstOffset", pa.int64(), "Offset of its first record; null if the log has only the marker."),
    Column("lastOffset", pa.int64(), "Offset of its last record; null if the log has none of them."),
    Column("markerOffset", pa.int64(), "Offset of the marker; null if it is open."),
    Column("startTimestamp", TIMESTAMP, "Timestamp of its first record; null if that is not in the log."),
    Column("lastTimestamp", TIMESTAMP, "Timestamp of its last batch of records."),
    Column("endTimestamp", TIMESTAMP, "Timestamp of the marker, by the coordinator's clock; null if it is open."),
    Column("durationMs", pa.int64(), "Milliseconds from its first record to the marker."),
    Column("ageMs", pa.int64(), "If it is open, milliseconds from its first record (or its last one, if the first is "
           "not in the log) to the time of the look: the clock of the reading host."),
    Column("coordinatorEpoch", pa.int32(), "Epoch of the coordinator that wrote the marker; null if it is open."),
    Column("recordCount", pa.int64(), "How many records the log has of it; null if some are before the log's start."),
    Column("sizeBytes", pa.int64(), "Size of the batches that the log has of it."),
    Column("abortCommand", pa.string(), "If it is open, the command that aborts it, for a broker of version 3.0 or "
           "later."),
)
# fmt: on


@dataclass(slots=True)
class ObservedTransaction:
    """A transaction as far as the log up to some point tells. -1 stands for unknown numbers."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    first_offset: int | None
    last_offset: int | None = None
    start_timestamp_ms: int = NO_TIMESTAMP_MS
    last_timestamp_ms: int = NO_TIMESTAMP_MS
    record_count: int = 0
    size_bytes: int = 0
    is_whole: bool = True
    marker_offset: int | None = None
    end_timestamp_ms: int = NO_TIMESTAMP_MS
    marker: EndTransactionMarker | None = None

    @property
    def state(self) -> str:
        """Open, committed or aborted."""
        if self.marker is None:
            return OPEN
        return ABORTED if self.marker.is_abort else COMMITTED

    @property
    def duration_ms(self) -> int | None:
        """Milliseconds from its first record to the marker; None if that is not known."""
        return _difference(self.end_timestamp_ms, self.start_timestamp_ms)

    def age_ms(self, now_ms: int) -> int | None:
        """Return for how long it has been open, or None: from its last batch on if the first is not known."""
        began_ms = self.start_timestamp_ms
        known_since_ms = self.last_timestamp_ms if began_ms == NO_TIMESTAMP_MS else began_ms
        return _difference(now_ms, known_since_ms) if self.marker is None else None

    def abort_command(self, bootstrap_server: str = BOOTSTRAP_SERVER) -> str | None:
        """Return the shell command that aborts it if it is open (KIP-664), for brokers from version 3.0 on."""
        if self.marker is not None or self.first_offset is None:
            return None
        topic = self.topic
        return shlex.join(
            [
                *("kafka-transactions.sh", "--bootstrap-server", bootstrap_server, "abort"),
                # A topic may begin with a dash, as flags do.
                *((f"--topic={topic}",) if topic.startswith("-") else ("--topic", topic)),
                *("--partition", str(self.partition), "--start-offset", str(self.first_offset)),
            ]
        )


@dataclass(frozen=True, slots=True)
class TransactionsTask:
    """One partition to find transactions in.

    Attributes:
        part: From the oldest transaction of the range to the log end.
        start_offset: Only transactions with this offset or a later one count.
        end_offset: And only those that began below this one, or have only a marker below it.
        known: The transactions open where the walk begins, or that began before the log's start.
    """

    part: PartitionSpans
    start_offset: int
    end_offset: int
    known: tuple[ProducerStateEntry, ...]
    now_ms: int
    bootstrap_server: str = BOOTSTRAP_SERVER


def plan_transactions(
    filesystem: ReadableFileSystem,
    options: ReadOptions,
    *,
    only_open: bool = False,
    now_ms: int | None = None,
    bootstrap_server: str = BOOTSTRAP_SERVER,
) -> list[TransactionsTask]:
    """Plan a task for each partition, from the oldest transaction on that is in the bounds, or may be open at the end.

    Internal topics count, too, unless some are named. A transaction counts if one of its offsets is within the bounds.

    Raises:
        SegmentLogError: These directories cannot give what the options ask for.
    """
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    return [
        _plan_partition(filesystem, wanted, options, now_ms, bootstrap_server, only_open=only_open)
        for wanted in resolved_ranges(filesystem, options, with_internal_topics=True)
        if not wanted.is_empty
    ]


def _plan_partition(
    filesystem: ReadableFileSystem,
    wanted: PartitionRange,
    options: ReadOptions,
    now_ms: int,
    bootstrap_server: str,
    *,
    only_open: bool,
) -> TransactionsTask:
    log = wanted.log
    snapshot = newest_snapshot(filesystem, log, wanted.end_offset if only_open else wanted.start_offset)
    known = tuple(each for each in snapshot.producers if each.current_transaction_first_offset is not None)
    first_offsets = [each.current_transaction_first_offset or 0 for each in known]
    # The log's segments may begin later.
    start_offset = max(first_segment_offset(log), min([snapshot.offset, *first_offsets]))
    walked = PartitionRange(log, start_offset, log.log_end_offset)
    return TransactionsTask(
        PartitionSpans.of(walked, options),
        wanted.start_offset,
        wanted.end_offset,
        known,
        now_ms,
        bootstrap_server,
    )


def read_transactions(
    filesystem: ReadableFileSystem, task: TransactionsTask
) -> Iterator[ObservedTransaction]:
    """Yield the transactions of a partition in the order of their markers; open ones last, oldest first.

    Raises:
        DataLossError: A segment was deleted or replaced since the task was planned.
    """
    replay = _OpenTransactions(task)
    for chunk in task.part.chunks(filesystem, replay.note_damage):
        yield from replay.ended_in(chunk)
        if replay.is_complete:
            return
    yield from replay.still_open()


@dataclass(slots=True)
class _OpenTransactions:
    """Transactions that are open at some point of a walk."""

    task: TransactionsTask
    open: dict[int, ObservedTransaction] = field(default_factory=dict)
    next_offset: int = 0

    def __post_init__(self) -> None:
        self.next_offset = walk_start = self.task.part.start_offset
        for each in self.task.known:
            first_offset = each.current_transaction_first_offset
            assert first_offset is not None  # noqa: S101  (only such entries are known)
            # The walk finds the others itself.
            if first_offset < walk_start:
                # Its first records are no longer in the log.
                self.open[each.producer_id] = ObservedTransaction(
                    *(self.task.part.topic, self.task.part.partition, each.producer_id, each.producer_epoch),
                    first_offset,
                    each.last_offset if each.last_offset >= first_offset else None,
                    last_timestamp_ms=each.timestamp_ms,
                    is_whole=False,
                )

    @property
    def is_complete(self) -> bool:
        """Whether every transaction that counts has ended."""
        end_offset = self.task.end_offset
        return self.next_offset >= end_offset and not any(
            (each.first_offset or 0) < end_offset for each in self.open.values()
        )

    def ended_in(self, chunk: HeaderChunk) -> Iterator[ObservedTransaction]:
        """Yield the transactions that count and end in a chunk of batches."""
        for step in _steps(chunk):
            if not step.is_control:
                self._add(step)
                continue
            ended = self._end(chunk, step.row)
            if ended is not None and self._counts(ended):
                yield ended
        self.next_offset = int(chunk.window.last_offsets[-1]) + 1

    def note_damage(self, damage: DamagedRange) -> None:
        """Warn that markers may be lost: what is open there may have ended."""
        if damage.may_hold_markers and self.open:
            _log.warning(
                "%d transactions of %s-%d were open at damage that may have held their markers; those that are shown as open "
                "may have ended there, and others may be joined with the next one of their producer: %s",
                len(self.open),
                self.task.part.topic,
                self.task.part.partition,
                damage.error(),
            )

    def still_open(self) -> list[ObservedTransaction]:
        """Return the transactions that count and have not ended, oldest first."""
        left = [each for each in self.open.values() if self._counts(each)]
        return sorted(left, key=lambda each: each.first_offset or 0)

    def _counts(self, transaction: ObservedTransaction) -> bool:
        last_offset = (
            transaction.last_offset if transaction.marker_offset is None else transaction.marker_offset
        )
        first_offset = (
            transaction.marker_offset if transaction.first_offset is None else transaction.first_offset
        )
        is_early = first_offset is not None and first_offset < self.task.end_offset
        # An open transaction reaches to the end.
        is_late = transaction.marker is None or last_offset is None or last_offset >= self.task.start_offset
        return is_early and is_late

    def _add(self, step: _Step) -> None:
        """Account for the data of one producer between two markers."""
        transaction = self.open.get(step.producer_id)
        if transaction is None:
            transaction = self.open[step.producer_id] = ObservedTransaction(
                *(self.task.part.topic, self.task.part.partition, step.producer_id, step.producer_epoch),
                step.first_offset,
                start_timestamp_ms=step.start_timestamp_ms,
            )
        transaction.last_offset = step.last_offset
        transaction.last_timestamp_ms = step.last_timestamp_ms
        transaction.record_count += step.record_count
        transaction.size_bytes += step.size_bytes

    def _end(self, chunk: HeaderChunk, row: int) -> ObservedTransaction | None:
        """End the transaction of a control batch.

        Returns:
            The transaction, without data if the log has none; None if the batch is no marker.
        """
        header = chunk.window.header(row)
        marker = chunk.marker(row)
        if marker is None:
            return None
        transaction = self.open.pop(header.producer_id, None)
        if transaction is None:
            place = (self.task.part.topic, self.task.part.partition)
            transaction = ObservedTransaction(*place, header.producer_id, header.producer_epoch, None)
        transaction.marker, transaction.marker_offset = marker, header.last_offset
        transaction.end_timestamp_ms = header.max_timestamp_ms
        return transaction


class _Step(NamedTuple):
    """The transactional batches of a producer between two control batches; or one of these.

    A tuple for speed: a walk over small transactions makes two for each. ``row`` is that of the first batch.
    """

    is_control: bool
    row: int
    producer_id: int
    producer_epoch: int
    first_offset: int
    last_offset: int
    start_timestamp_ms: int
    last_timestamp_ms: int
    record_count: int
    size_bytes: int


def _steps(chunk: HeaderChunk) -> Iterator[_Step]:
    """Yield what changes transactions in a chunk of batches, in order."""
    attributes = chunk.window.headers["attributes"]
    rows = np.flatnonzero(
        ((attributes & TRANSACTIONAL_FLAG) != 0) & (chunk.window.headers["producer_id"] >= 0)
    )
    if not len(rows):
        return
    producer_ids = chunk.window.headers["producer_id"][rows].astype(np.int64)
    is_control = (attributes[rows] & CONTROL_FLAG) != 0
    # Data before the first control batch is stretch 0, that batch is stretch 1, data after it is stretch 2.
    stretches = 2 * np.cumsum(is_control) - is_control
    order = np.lexsort((producer_ids, stretches))
    is_border = (np.diff(stretches[order]) != 0) | (np.diff(producer_ids[order]) != 0)
    firsts = np.concatenate([[0], np.flatnonzero(is_border) + 1])
    lasts = np.append(firsts[1:], len(order)) - 1
    rows = rows[order]
    headers = chunk.window.headers[rows]
    first, last = headers[firsts], headers[lasts]
    has_horizon = (first["attributes"] & DELETE_HORIZON_FLAG) != 0
    columns = (
        is_control[order][firsts],
        rows[firsts],
        first["producer_id"],
        first["producer_epoch"],
        first["base_offset"],
        last_offsets(last),
        # The header tells no more than this.
        np.where(has_horizon, first["max_timestamp_ms"], first["base_timestamp_ms"]),
        last["max_timestamp_ms"],
        np.add.reduceat(headers["record_count"].astype(np.int64), firsts),
        np.add.reduceat(batch_sizes_bytes(headers), firsts),
    )
    yield from map(_Step, *(column.tolist() for column in columns))


def _row(transaction: ObservedTransaction, task: TransactionsTask) -> tuple[object, ...]:
    marker = transaction.marker
    return (
        transaction.topic,
        transaction.partition,
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.state,
        transaction.first_offset,
        transaction.last_offset,
        transaction.marker_offset,
        transaction.start_timestamp_ms,
        transaction.last_timestamp_ms,
        transaction.end_timestamp_ms,
        transaction.duration_ms,
        transaction.age_ms(task.now_ms),
        None if marker is None else marker.coordinator_epoch,
        transaction.record_count if transaction.is_whole else None,
        transaction.size_bytes,
        transaction.abort_command(task.bootstrap_server),
    )


def _difference(later_ms: int, earlier_ms: int) -> int | None:
    if NO_TIMESTAMP_MS in (later_ms, earlier_ms) or abs(later_ms - earlier_ms) > LARGEST_TIMESTAMP_MS:
        return None
    return later_ms - earlier_ms


TRANSACTIONS_VIEW: Final = View(
    name="transactions",
    doc="A transaction in one partition, even if the log has only its marker, which commits or aborts it. Internal topics "
    "need not be named: one of them has the offsets that transactions commit.",
    columns=_COLUMNS,
    plan=plan_transactions,
    read=rows_read(
        _COLUMNS,
        lambda filesystem, task, _: (_row(each, task) for each in read_transactions(filesystem, task)),
    ),
)
