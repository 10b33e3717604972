"""The transactions that the cleaned batches belong to (Kafka's ``CleanedTransactionMetadata``).

Data of an aborted transaction may be discarded at once. A marker may be discarded once its transaction has no data
before it: one pass removes the data, a later one the marker. An abort marker that is retained keeps its entry in the
transaction index, so that readers do not take other data for aborted.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from storage_core.record.batch_header import CONTROL_FLAG, TRANSACTIONAL_FLAG, gather
from storage_core.record.control_records import CONTROL_KEY, MAX_CONTROL_BYTES, ControlType, control_type
from storage_core.record.decode import decode_records
from storage_core.record.section import SectionMaker, WantedFields

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from storage_core.record.batch_window import BatchWindow
    from storage_core.segment.file_names import AbortedTransaction


# Up to this many batches are faster to process one by one.
_FEW: Final = 32
_CONTROL_KEY: Final = np.dtype([("version", ">i2"), ("type", ">i2")])
_KEYS_WANTED: Final = WantedFields(timestamp=False, value=False)
_Int64Array = npt.NDArray[np.int64]
_BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TransactionalBatches:
    """The transactional batches and markers among the batches of a window, by column, in order.

    Attributes:
        indexes: Their numbers in the window.
        control_types: By index, the type of the first record of a control batch; None if it has no record.
    """

    indexes: _Int64Array
    producer_ids: _Int64Array
    last_offsets: _Int64Array
    is_control: _BoolArray
    control_types: Mapping[int, ControlType | None]


class CleanedTransactions:
    """The transactions at the current position of a pass, which reads batches in offset order."""

    def __init__(self) -> None:
        # A heap by first offset, which may hold equal entries.
        self._waiting: list[tuple[int, int, AbortedTransaction]] = []
        self._number = 0
        # By producer id.
        self._aborted: dict[int, AbortedTransaction] = {}
        # The producers of aborted transactions with data.
        self._aborted_with_data: set[int] = set()
        self._committed_with_data: set[int] = set()

    def add_aborted(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Add aborted transactions that reach into the next batches, in any order and possibly again."""
        for transaction in transactions:
            self._number += 1
            heapq.heappush(self._waiting, (transaction.first_offset, self._number, transaction))

    def discardable(
        self, batches: TransactionalBatches, count: int
    ) -> tuple[_BoolArray, list[AbortedTransaction]]:
        """Advance over the batches of a window, and find those that can be discarded.

        Args:
            batches: The transactional batches and markers of the window.
            count: The number of all batches of the window.

        Returns:
            Per batch of the window, whether it is aborted data or a marker without data; and the aborted transactions
            whose markers are retained.
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
        """Advance over data batches up to the next marker."""
        last_offsets, producer_ids = batches.last_offsets[rows], batches.producer_ids[rows]
        indexes = batches.indexes[rows]
        first = 0
        while first < len(indexes):
            self._open_up_to(int(last_offsets[first]))
            # Before the next transaction begins, one check per producer is enough.
            last = len(indexes)
            if self._waiting:
                last = int(last_offsets.searchsorted(self._waiting[0][0]))
            known, places = np.unique(producer_ids[first:last], return_inverse=True)
            is_aborted = np.array([self._is_aborted(producer_id) for producer_id in known.tolist()], np.bool_)
            may_go[indexes[first:last]] = is_aborted[places]
            first = last

    def _is_aborted(self, producer_id: int) -> bool:
        """Return True if a producer's data is aborted here, and note that its transaction has data."""
        if producer_id in self._aborted:
            self._aborted_with_data.add(producer_id)
            return True
        self._committed_with_data.add(producer_id)
        return False

    def _read_marker(
        self, producer_id: int, control_type: ControlType | None, kept: list[AbortedTransaction]
    ) -> bool:
        if control_type is None:
            # An earlier pass has discarded its record.
            return True
        if control_type is ControlType.ABORT:
            transaction = self._aborted.pop(producer_id, None)
            if transaction is None or producer_id not in self._aborted_with_data:
                return True
            self._aborted_with_data.remove(producer_id)
            kept.append(transaction)
        elif control_type is ControlType.COMMIT:
            if producer_id not in self._committed_with_data:
                return True
            self._committed_with_data.remove(producer_id)
        return False


def read_transactions(
    window: BatchWindow, transactions: CleanedTransactions
) -> tuple[_BoolArray, list[AbortedTransaction]]:
    """Advance over a window.

    Returns:
        The same as `CleanedTransactions.discardable`.
    """
    attributes = window.headers["attributes"]
    indexes = np.flatnonzero(attributes & (TRANSACTIONAL_FLAG | CONTROL_FLAG))
    headers = window.headers.take(indexes)
    is_control = (headers["attributes"] & CONTROL_FLAG) != 0
    batches = TransactionalBatches(
        indexes,
        headers["producer_id"].astype(np.int64),
        window.last_offsets[indexes],
        is_control,
        _control_types(window, indexes[is_control]),
    )
    return transactions.discardable(batches, len(attributes))


def _control_types(window: BatchWindow, indexes: _Int64Array) -> dict[int, ControlType | None]:
    """Read the type of the first record of each control batch.

    Returns:
        The types by index; None for a batch without records.
    """
    types: dict[int, ControlType | None] = dict.fromkeys(indexes.tolist())
    indexes = indexes[window.headers["record_count"][indexes] > 0]
    if not len(indexes):
        return types
    known = {int(kind): kind for kind in ControlType}
    for section in SectionMaker(MAX_CONTROL_BYTES, _KEYS_WANTED).sections(window, indexes):
        columns = decode_records(section, _KEYS_WANTED)
        assert columns.keys is not None  # noqa: S101  (requested above)
        firsts = np.cumsum(columns.row_counts) - columns.row_counts
        starts, lengths = columns.keys.starts[firsts], columns.keys.lengths[firsts]
        numbers = np.searchsorted(window.starts, section.positions - window.position_bytes)
        for index in numbers[lengths < CONTROL_KEY.size].tolist():
            _fail_control(window, index)
        keys = gather(section.buffer, starts, _CONTROL_KEY)
        for index in numbers[keys["version"] < 0].tolist():
            _fail_control(window, index)
        for index, number in zip(numbers.tolist(), keys["type"].tolist(), strict=True):
            types[index] = known.get(number, ControlType.UNKNOWN)
    return types


def _fail_control(window: BatchWindow, index: int) -> None:
    """Raise the error for a control record with a malformed key."""
    header = window.header(index)
    start = int(window.starts[index])
    control_type(window.buffer.data[start : start + header.size_bytes], header, path=window.path)
