"""The state of one producer (Kafka's ``ProducerStateEntry``), and the batches that change it.

Reading a marker can fail, updating the state cannot. So an append reads the markers, then writes, then updates the state.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from storage_core.checkpoint import ProducerStateEntry
from storage_core.config import INT_MAX
from storage_core.record.batch_header import CONTROL_FLAG, TRANSACTIONAL_FLAG, parse_batch_header
from storage_core.record.control_records import EndTransactionMarker, read_marker
from storage_core.record.record_batches import SEQUENCES, RecordBatches

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from storage_core.record.batch_window import BatchWindow


KEPT_BATCHES: Final = 5
"""A producer has at most this many requests in flight, so it can repeat no older batch."""
_NONE: Final = -1
# With fewer rows, filtering costs more than it saves.
_MANY_ROWS: Final = 100
_NO_ROWS: Final = np.zeros(0, np.intp)


class BatchMetadata(NamedTuple):
    """A remembered data batch. A tuple for speed: a replay makes one for each batch."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        """The sequence number of the first record. Numbers wrap from the largest integer to 0."""
        return (self.last_sequence - self.offset_delta) % SEQUENCES

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return self.last_offset - self.offset_delta


@dataclass(slots=True)
class ProducerState:
    """The state of one producer. -1 means none.

    Attributes:
        producer_epoch: The epoch of its last batch or marker.
        coordinator_epoch: The epoch of the coordinator that wrote its last marker.
        timestamp_ms: The timestamp of its last batch or marker.
        current_transaction_first_offset: The start of its open transaction.
        batches: Its last data batches of this epoch, at most `KEPT_BATCHES`, oldest first.
    """

    producer_id: int
    producer_epoch: int = _NONE
    coordinator_epoch: int = _NONE
    timestamp_ms: int = _NONE
    current_transaction_first_offset: int | None = None
    batches: deque[BatchMetadata] = field(default_factory=lambda: deque(maxlen=KEPT_BATCHES))

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record."""
        return self.batches[-1].last_sequence if self.batches else _NONE

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return self.batches[-1].last_offset if self.batches else _NONE

    def apply(self, batch: ProducerBatch) -> None:
        """Apply a batch of data, or a marker, which ends the open transaction."""
        if batch.producer_epoch != self.producer_epoch:
            self.batches.clear()
            self.producer_epoch = batch.producer_epoch
        self.timestamp_ms = batch.timestamp_ms
        if batch.marker is not None:
            self.coordinator_epoch = batch.marker.coordinator_epoch
            self.current_transaction_first_offset = None
            return
        self.batches.append(
            BatchMetadata(batch.last_sequence, batch.last_offset, batch.offset_delta, batch.timestamp_ms)
        )
        if batch.is_transactional and self.current_transaction_first_offset is None:
            self.current_transaction_first_offset = batch.base_offset

    def has_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Return True if its last batch is older than the expiration, and it has no open transaction."""
        return self.current_transaction_first_offset is None and now_ms - self.timestamp_ms >= expiration_ms

    def snapshot_entry(self) -> ProducerStateEntry:
        """Return this state as in a producer snapshot, which holds only the last batch."""
        return ProducerStateEntry(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            last_sequence=self.last_sequence,
            last_offset=self.last_offset,
            offset_delta=self.batches[-1].offset_delta if self.batches else 0,
            timestamp_ms=self.timestamp_ms,
            coordinator_epoch=self.coordinator_epoch,
            current_transaction_first_offset=self.current_transaction_first_offset,
        )

    @classmethod
    def of_snapshot_entry(cls, entry: ProducerStateEntry) -> ProducerState:
        """Make the state of an entry of a producer snapshot."""
        state = cls(
            entry.producer_id,
            entry.producer_epoch,
            entry.coordinator_epoch,
            entry.timestamp_ms,
            entry.current_transaction_first_offset,
        )
        # A producer with only a marker has no batch.
        if entry.last_offset >= 0:
            state.batches.append(
                BatchMetadata(entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp_ms)
            )
        return state


class ProducerBatch(NamedTuple):
    """One batch of a producer, or all batches of an append. A tuple for speed: a replay makes one for each batch.

    ``marker`` is None for data, and ``last_sequence`` is -1 for a marker and for a coordinator's records.
    """

    producer_id: int
    producer_epoch: int
    base_offset: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    is_transactional: bool
    marker: EndTransactionMarker | None

    @property
    def first_sequence(self) -> int:
        """The sequence number of the first record, or -1. Numbers wrap from the largest integer to 0."""
        return _NONE if self.last_sequence < 0 else (self.last_sequence - self.offset_delta) % SEQUENCES


@dataclass(frozen=True, slots=True)
class ProducerBatches:
    """The batches of producers among some batches, in order.

    Attributes:
        batches: The batches with a producer id, except control batches that compaction has emptied.
        next_offset: The offset after all of the batches; None if there were none.
    """

    batches: tuple[ProducerBatch, ...]
    next_offset: int | None

    @classmethod
    def of_record_batches(cls, batches: RecordBatches, *, path: str = "") -> ProducerBatches:
        """Extract them from batches that are about to be appended.

        A malformed marker raises `CorruptRecordError`.
        """
        headers = batches.headers
        if not len(headers):
            return NO_PRODUCER_BATCHES
        next_offset = batches.next_offset
        rows = _producer_rows(headers)
        if not len(rows):
            return cls((), next_offset)
        if len(headers) == 1 and not headers["attributes"][0] & CONTROL_FLAG:
            return cls((_of_one(headers[0].item()),), next_offset)
        starts = batches.sizes_bytes.cumsum() - batches.sizes_bytes

        def batch_at(index: int) -> tuple[memoryview, int]:
            return memoryview(b"".join(batches.pieces[2 * index : 2 * index + 2])), int(starts[index])

        return cls(_of_rows(headers, rows, batch_at, path), next_offset)

    @classmethod
    def of_window(cls, window: BatchWindow) -> ProducerBatches:
        """Extract the batches of producers from a window of a segment file, except those that do not affect the final state.

        A malformed marker raises `CorruptRecordError`.
        """

        def batch_at(index: int) -> tuple[memoryview, int]:
            start = int(window.starts[index])
            end = int(window.starts[index + 1]) if index + 1 < len(window.starts) else window.end
            return window.buffer.data[start:end], window.position_bytes + start

        return cls.of_headers(window.headers, batch_at, path=window.path)

    @classmethod
    def of_headers(
        cls, headers: npt.NDArray[Any], batch_at: Callable[[int], tuple[memoryview, int]], *, path: str
    ) -> ProducerBatches:
        """Extract the batches of producers by their headers, except those that do not affect the final state.

        Of control batches, ``batch_at`` gives the bytes and the position. A malformed marker raises
        `CorruptRecordError`.
        """
        if not len(headers):
            return NO_PRODUCER_BATCHES
        next_offset = int(headers["base_offset"][-1]) + int(headers["last_offset_delta"][-1]) + 1
        rows = _producer_rows(headers)
        if not len(rows):
            return cls((), next_offset)
        return cls(_of_rows(headers, _rows_that_matter(headers, rows), batch_at, path), next_offset)


NO_PRODUCER_BATCHES: Final = ProducerBatches((), None)


def _producer_rows(headers: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    producer_ids = headers["producer_id"]
    # Most logs have no producers.
    if producer_ids[0] < 0 and (len(producer_ids) == 1 or producer_ids.max() < 0):
        return _NO_ROWS
    has_producer = producer_ids >= 0
    # Compaction empties the marker of a transaction that it removed entirely.
    has_producer &= (headers["record_count"] > 0) | ((headers["attributes"] & CONTROL_FLAG) == 0)
    return has_producer.nonzero()[0]


def _rows_that_matter(headers: npt.NDArray[Any], rows: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Omit most data batches if there are many.

    Between two markers of any producer, a producer's state follows from the batch that begins its transaction and from
    its last batches.
    """
    count = len(rows)
    if count < _MANY_ROWS:
        return rows
    attributes = headers["attributes"][rows]
    is_control = (attributes & CONTROL_FLAG) != 0
    runs = is_control.cumsum()
    producer_ids = headers["producer_id"][rows].astype(np.int64)
    # Grouped by run and producer, in the original order within a group.
    order = np.lexsort((producer_ids, runs))
    is_border = np.ones(count + 1, np.bool_)
    is_border[1:-1] = (np.diff(runs[order]) != 0) | (np.diff(producer_ids[order]) != 0)
    groups = is_border[:-1].cumsum()
    ends = is_border.nonzero()[0][groups]
    is_kept = ends - np.arange(count) <= KEPT_BATCHES
    is_kept |= is_control[order]
    in_transaction = (((attributes & TRANSACTIONAL_FLAG) != 0) & ~is_control)[order].nonzero()[0]
    _, firsts = np.unique(groups[in_transaction], return_index=True)
    is_kept[in_transaction[firsts]] = True
    kept: npt.NDArray[np.intp] = rows[np.sort(order[is_kept])]
    return kept


def _of_one(header: tuple[int, ...]) -> ProducerBatch:
    """Do the same as `_of_rows` for a single data batch, for which numpy is slow."""
    base_offset, _, _, _, _, attributes, delta, _, timestamp_ms, producer_id, epoch, sequence, _ = header
    return ProducerBatch(
        producer_id,
        epoch,
        base_offset,
        -1 if sequence < 0 else (sequence + delta) & INT_MAX,
        base_offset + delta,
        delta,
        timestamp_ms,
        is_transactional=attributes & TRANSACTIONAL_FLAG != 0,
        marker=None,
    )


def _of_rows(
    headers: npt.NDArray[Any],
    rows: npt.NDArray[np.intp],
    batch_at: Callable[[int], tuple[memoryview, int]],
    path: str,
) -> tuple[ProducerBatch, ...]:
    chosen = headers if len(rows) == len(headers) else headers[rows]
    base_offsets = chosen["base_offset"].astype(np.int64)
    deltas = chosen["last_offset_delta"].astype(np.int64)
    sequences = chosen["base_sequence"].astype(np.int64)
    is_control = (chosen["attributes"] & CONTROL_FLAG) != 0
    columns = (
        chosen["producer_id"],
        chosen["producer_epoch"],
        base_offsets,
        np.where(sequences < 0, -1, (sequences + deltas) & INT_MAX),
        base_offsets + deltas,
        deltas,
        chosen["max_timestamp_ms"],
        (chosen["attributes"] & TRANSACTIONAL_FLAG) != 0,
    )
    markers: list[EndTransactionMarker | None] = [None] * len(rows)
    left_out: set[int] = set()
    for number in is_control.nonzero()[0].tolist():
        batch, position_bytes = batch_at(int(rows[number]))
        header = parse_batch_header(batch, 0, position_bytes, path=path)
        markers[number] = read_marker(batch, header, path=path)
        if markers[number] is None:
            left_out.add(number)
    made = map(ProducerBatch, *(column.tolist() for column in columns), markers)
    if not left_out:
        return tuple(made)
    return tuple(batch for number, batch in enumerate(made) if number not in left_out)
