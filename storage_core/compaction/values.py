"""The batches of a segment that is to be cleaned, window by window, and nothing that is not whole and right.

What the cleaner leaves out is gone for good, and what it writes anew gets a new CRC. So, other than a broker, it checks
the CRC of every batch before it believes a word of it, and wants the batches to reach up to the segment's end.

Which transactions the batches belong to that the cleaner meets (Kafka's ``CleanedTransactionMetadata``).

Data of an aborted transaction may go at once. A marker may go once no data of its transaction is met in front of it: one
pass drops the data, a later one the marker. So that nobody takes data for aborted that is not, an abort marker that
stays takes its entry of the transaction index with it.

What a pass of the cleaner is told, and what it tells.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from storage_core.errors import CorruptRecordError
from storage_core.record.batch_header import HEADER_SIZE_BYTES
from storage_core.record.control_records import ControlType
from storage_core.segment.batch_windows import WINDOW_BYTES
from storage_core.segment.segment_reader import DEFAULT_MAX_BATCH_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from storage_core.record.batch_window import BatchWindow
    from storage_core.segment.file_names import AbortedTransaction
    from storage_core.segment.log_segment import LogSegment

__all__ = [
    "CleanRules",
    "CleanStatistics",
    "CleanedTransactions",
    "LastRecord",
    "MapStatistics",
    "Throttle",
    "TransactionalBatches",
    "last_offsets_of",
    "source_windows",
]


_Int64Array = npt.NDArray[np.int64]


def source_windows(
    segment: LogSegment, start_position_bytes: int = 0, *, window_bytes: int = WINDOW_BYTES
) -> Iterator[BatchWindow]:
    """The batches of a segment from a boundary on. A window's bytes are valid until the next one is asked for.

    Raises:
        CorruptRecordError: Bytes are no batch, a CRC is wrong, or batches are out of order.
        BatchTooLargeError: A batch is larger than the segment's configuration allows to read.
    """
    # With less than a header, nobody could tell how much is missing.
    window_bytes = max(window_bytes, HEADER_SIZE_BYTES)
    position_bytes = start_position_bytes
    lowest_offset = segment.base_offset
    for window in segment.windows(start_position_bytes, window_bytes=window_bytes):
        position_bytes = window.position_bytes + window.end
        if len(window.starts):
            lowest_offset = _checked(window, lowest_offset)
            yield window
        if window.error is not None:
            raise window.error
    if position_bytes != segment.size_bytes:
        raise CorruptRecordError(
            f"Expected whole record batches up to the segment's end at {segment.size_bytes}, found bytes that are none. "
            "Nothing of this log is cleaned before it is recovered.",
            path=segment.path,
            position_bytes=position_bytes,
        )


def last_offsets_of(window: BatchWindow) -> _Int64Array:
    """Per batch, its last offset."""
    last_offsets: _Int64Array = window.headers["base_offset"].astype(np.int64)
    last_offsets += window.headers["last_offset_delta"]
    return last_offsets


def _checked(window: BatchWindow, lowest_offset: int) -> int:
    """Check the batches of a window; return the offset behind the last one."""
    wrong = window.crc_mismatches(np.arange(len(window.starts)))
    if len(wrong):
        _fail(window, int(wrong[0]), "the CRC that its header states", "another one")
    base_offsets = window.headers["base_offset"].astype(np.int64)
    last_offsets = last_offsets_of(window)
    lowest = np.append(lowest_offset, last_offsets[:-1] + 1)
    misfits = np.flatnonzero((base_offsets < lowest) | (last_offsets < base_offsets))
    if len(misfits):
        index = int(misfits[0])
        found = f"offsets {base_offsets[index]} to {last_offsets[index]}"
        _fail(window, index, f"offsets from {lowest[index]} on", found)
    return int(last_offsets[-1]) + 1


def _fail(window: BatchWindow, index: int, expected: str, found: str) -> NoReturn:
    header = window.header(index)
    raise CorruptRecordError(
        f"Expected a record batch with {expected}, found one with {found}. The file is damaged here: its log is not "
        "cleaned.",
        path=window.path,
        position_bytes=header.position_bytes,
        end_position_bytes=header.end_position_bytes,
        offset=header.base_offset,
        last_offset=header.last_offset,
    )


# So few batches are quicker looked at one by one.
_FEW: Final = 32
_BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TransactionalBatches:
    """The batches of some neighbouring ones that are transactional or markers, by column, in order.

    Attributes:
        indexes: Which of the neighbours they are.
        producer_ids: Per batch, its producer.
        last_offsets: Per batch, its last offset.
        is_control: Per batch, whether it is a control batch.
        control_types: By index, the type of the first record of a control batch; None if it has no record.
    """

    indexes: _Int64Array
    producer_ids: _Int64Array
    last_offsets: _Int64Array
    is_control: _BoolArray
    control_types: Mapping[int, ControlType | None]


class CleanedTransactions:
    """The transactions around the batches that are being read, in order of their offsets."""

    def __init__(self) -> None:
        # By first offset. Equal entries may be there twice.
        self._waiting: list[tuple[int, int, AbortedTransaction]] = []
        self._number = 0
        # By producer id.
        self._aborted: dict[int, AbortedTransaction] = {}
        # Those of the aborted ones of which data was met.
        self._met: set[int] = set()
        self._committed: set[int] = set()

    def add_aborted(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Get to know aborted transactions that reach into the batches to come, in any order; some may be known."""
        for transaction in transactions:
            self._number += 1
            heapq.heappush(self._waiting, (transaction.first_offset, self._number, transaction))

    def discardable(
        self, batches: TransactionalBatches, count: int
    ) -> tuple[_BoolArray, list[AbortedTransaction]]:
        """Go on over batches, and say which of them are no longer needed.

        Args:
            batches: Those of the batches that matter here.
            count: How many batches there are.

        Returns:
            Per batch of all: whether it is aborted data, or a marker without data; and the aborted transactions whose
            markers stay.
        """
        may_go = np.zeros(count, np.bool_)
        kept: list[AbortedTransaction] = []
        indexes, producer_ids = batches.indexes.tolist(), batches.producer_ids.tolist()
        last_offsets = batches.last_offsets.tolist()
        first = 0
        for place in [*np.flatnonzero(batches.is_control).tolist(), len(indexes)]:
            if place - first > _FEW:
                self._read_data(batches, slice(first, place), may_go)
            else:
                for number in range(first, place):
                    self._open_up_to(last_offsets[number])
                    may_go[indexes[number]] = self._is_aborted(producer_ids[number])
            first = place + 1
            if place < len(indexes):
                self._open_up_to(last_offsets[place])
                index = indexes[place]
                may_go[index] = self._read_marker(producer_ids[place], batches.control_types[index], kept)
        return may_go, kept

    def _open_up_to(self, offset: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= offset:
            transaction = heapq.heappop(waiting)[2]
            self._aborted.setdefault(transaction.producer_id, transaction)

    def _read_data(self, batches: TransactionalBatches, rows: slice, may_go: _BoolArray) -> None:
        """Read batches of data, up to the next marker."""
        last_offsets, producer_ids = batches.last_offsets[rows], batches.producer_ids[rows]
        indexes = batches.indexes[rows]
        first = 0
        while first < len(indexes):
            self._open_up_to(int(last_offsets[first]))
            # Up to where the next transaction begins, one look a producer is enough.
            last = len(indexes)
            if self._waiting:
                last = int(last_offsets.searchsorted(self._waiting[0][0]))
            known, places = np.unique(producer_ids[first:last], return_inverse=True)
            is_aborted = np.array([self._is_aborted(producer_id) for producer_id in known.tolist()], np.bool_)
            may_go[indexes[first:last]] = is_aborted[places]
            first = last

    def _is_aborted(self, producer_id: int) -> bool:
        """Whether a producer's transactional data is aborted here; its transaction was met now."""
        if producer_id in self._aborted:
            self._met.add(producer_id)
            return True
        self._committed.add(producer_id)
        return False

    def _read_marker(
        self, producer_id: int, control_type: ControlType | None, kept: list[AbortedTransaction]
    ) -> bool:
        if control_type is None:
            # A batch that was emptied before.
            return True
        if control_type is ControlType.ABORT:
            transaction = self._aborted.pop(producer_id, None)
            if transaction is None or producer_id not in self._met:
                return True
            self._met.remove(producer_id)
            kept.append(transaction)
        elif control_type is ControlType.COMMIT:
            if producer_id not in self._committed:
                return True
            self._committed.remove(producer_id)
        return False


Throttle: TypeAlias = Callable[[int], None]
"""Is told how many bytes were read or written since it was last called. It may wait, or raise an error to give up."""


class LastRecord(NamedTuple):
    """What a log knows of an active producer.

    Attributes:
        last_data_offset: The last offset of its last data batch; None if there is only a marker of it.
        producer_epoch: Its epoch.
    """

    last_data_offset: int | None
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class CleanRules:
    """What decides what of a log survives, besides the offset map and the transactions.

    Attributes:
        now_ms: The time of the pass.
        delete_retention_ms: ``delete.retention.ms``: how long a tombstone or a marker stays from now on.
        legacy_delete_horizon_ms: Tombstones of formats v0 and v1 stay in segments that were changed after this.
        upper_bound_offset: The first offset that this pass leaves alone.
        last_records: What is known of the active producers, by producer id.
        window_bytes: How much of a segment is read at once, unless a batch is larger.
        max_batch_bytes: The most that a batch may inflate to.
    """

    now_ms: int
    delete_retention_ms: int
    legacy_delete_horizon_ms: int
    upper_bound_offset: int
    last_records: Mapping[int, LastRecord] = field(default_factory=dict)
    window_bytes: int = WINDOW_BYTES
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES


@dataclass(frozen=True, slots=True)
class MapStatistics:
    """What building an offset map took.

    Attributes:
        records_read: How many records were looked at.
        bytes_read: Size of their batches.
        is_full: Whether the map was full before the last record.
    """

    records_read: int
    bytes_read: int
    is_full: bool


@dataclass(frozen=True, slots=True)
class CleanStatistics:
    """What cleaning took and left. Add those of some groups of segments for those of a pass.

    Attributes:
        records_read: How many records were looked at; those of batches that were dropped unseen do not count.
        bytes_read: Size of all batches.
        records_retained: How many records are left.
        bytes_retained: Size of the batches that are left.
        invalid_records: How many records without a key were dropped.
    """

    records_read: int = 0
    bytes_read: int = 0
    records_retained: int = 0
    bytes_retained: int = 0
    invalid_records: int = 0

    def __add__(self, other: CleanStatistics) -> CleanStatistics:
        return CleanStatistics(
            self.records_read + other.records_read,
            self.bytes_read + other.bytes_read,
            self.records_retained + other.records_retained,
            self.bytes_retained + other.bytes_retained,
            self.invalid_records + other.invalid_records,
        )
