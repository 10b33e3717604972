"""Which transactions the batches belong to that the cleaner meets (Kafka's ``CleanedTransactionMetadata``).

Data of an aborted transaction may go at once. A marker may go once no data of its transaction is met in front of it: one
pass drops the data, a later one the marker. So that nobody takes data for aborted that is not, an abort marker that
stays takes its entry of the transaction index with it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from storage_core.record.control_record import ControlType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from storage_core.segment.values import AbortedTransaction

__all__ = ["CleanedTransactions", "TransactionalBatches"]

# So few batches are quicker looked at one by one.
_FEW: Final = 32

_Int64Array = npt.NDArray[np.int64]
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
