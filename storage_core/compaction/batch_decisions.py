"""What is to become of batches, as far as their headers and their transactions tell (``checkBatchRetention``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from storage_core.compaction.source_windows import last_offsets_of
from storage_core.compaction.transactions import TransactionalBatches
from storage_core.record.batch_header import CONTROL_FLAG, DELETE_HORIZON_FLAG, TRANSACTIONAL_FLAG
from storage_core.record.control_record import CONTROL_KEY, MOST_CONTROL_BYTES, ControlType, control_type
from storage_core.record.decode import decode_records
from storage_core.record.gather import gather
from storage_core.record.section import WantedFields
from storage_core.scan.sections import SectionMaker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from storage_core.compaction.transactions import CleanedTransactions
    from storage_core.compaction.values import CleanRules, LastRecord
    from storage_core.record.batch_window import BatchWindow
    from storage_core.segment.values import AbortedTransaction

__all__ = ["ActiveProducers", "BatchDecisions", "decide_batches", "read_transactions"]

_CONTROL_KEY = np.dtype([("version", ">i2"), ("type", ">i2")])
_WANTED = WantedFields(timestamp=False, value=False)
_NO_OFFSET = -1

_Int64Array = npt.NDArray[np.int64]
_BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BatchDecisions:
    """What is decided of the batches of a window, by column.

    Attributes:
        discards_records: Whether no record survives, whatever it is.
        stays_empty: Whether the batch stays if no record survives: it is the last one of its producer, or of the pass.
        is_idle_marker: Whether it is a marker whose transaction has left no data: it goes once its delete horizon has
            passed.
        kept_transactions: The aborted transactions whose markers stay.
    """

    discards_records: _BoolArray
    stays_empty: _BoolArray
    is_idle_marker: _BoolArray
    kept_transactions: list[AbortedTransaction]


class ActiveProducers:
    """What is known of the active producers, by column."""

    def __init__(self, last_records: Mapping[int, LastRecord]) -> None:
        producer_ids = sorted(last_records)
        known = [last_records[producer_id] for producer_id in producer_ids]
        self._producer_ids = np.array(producer_ids, np.int64)
        self._has_data = np.array([last.last_data_offset is not None for last in known], np.bool_)
        self._last_offsets = np.array(
            [_NO_OFFSET if last.last_data_offset is None else last.last_data_offset for last in known],
            np.int64,
        )
        self._epochs = np.array([last.producer_epoch for last in known], np.int64)

    def last_batches(self, headers: npt.NDArray[Any], last_offsets: _Int64Array) -> _BoolArray:
        """Per batch, whether it holds the last that is known of its producer: its last data, or else its last marker."""
        is_last = np.zeros(len(headers), np.bool_)
        producer_ids = headers["producer_id"].astype(np.int64)
        rows = np.flatnonzero(producer_ids >= 0)
        if not len(rows) or not len(self._producer_ids):
            return is_last
        places = self._producer_ids.searchsorted(producer_ids[rows])
        places[places == len(self._producer_ids)] = 0
        is_active = self._producer_ids[places] == producer_ids[rows]
        is_control = (headers["attributes"][rows] & CONTROL_FLAG) != 0
        is_of_epoch = headers["producer_epoch"][rows] == self._epochs[places]
        is_last[rows] = is_active & np.where(
            self._has_data[places],
            last_offsets[rows] == self._last_offsets[places],
            is_control & is_of_epoch,
        )
        return is_last


def decide_batches(
    window: BatchWindow, transactions: CleanedTransactions, producers: ActiveProducers, rules: CleanRules
) -> BatchDecisions:
    """Decide about the batches of a window, which stands behind those decided before."""
    headers = window.headers
    last_offsets = last_offsets_of(window)
    may_go, kept_transactions = read_transactions(window, transactions)
    attributes = headers["attributes"]
    is_idle_marker = may_go & ((attributes & CONTROL_FLAG) != 0)
    has_passed = (attributes & DELETE_HORIZON_FLAG) != 0
    has_passed &= headers["base_timestamp_ms"] <= rules.now_ms
    stays_empty = producers.last_batches(headers, last_offsets)
    # Without the last batch of the pass, the next one would not know where this one ended.
    stays_empty |= last_offsets == rules.upper_bound_offset - 1
    return BatchDecisions(
        may_go & (~is_idle_marker | has_passed), stays_empty, is_idle_marker, kept_transactions
    )


def read_transactions(
    window: BatchWindow, transactions: CleanedTransactions
) -> tuple[_BoolArray, list[AbortedTransaction]]:
    """Per batch of a window, whether it is no longer needed, and the transactions that stay; see `CleanedTransactions`."""
    attributes = window.headers["attributes"]
    indexes = np.flatnonzero(attributes & (TRANSACTIONAL_FLAG | CONTROL_FLAG))
    headers = window.headers.take(indexes)
    is_control = (headers["attributes"] & CONTROL_FLAG) != 0
    batches = TransactionalBatches(
        indexes,
        headers["producer_id"].astype(np.int64),
        last_offsets_of(window)[indexes],
        is_control,
        _control_types(window, indexes[is_control]),
    )
    return transactions.discardable(batches, len(attributes))


def _control_types(window: BatchWindow, indexes: _Int64Array) -> dict[int, ControlType | None]:
    """By index, the type of the first record of a control batch; None if it has no record."""
    types: dict[int, ControlType | None] = dict.fromkeys(indexes.tolist())
    indexes = indexes[window.headers["record_count"][indexes] > 0]
    if not len(indexes):
        return types
    known = {int(kind): kind for kind in ControlType}
    for section in SectionMaker(MOST_CONTROL_BYTES, _WANTED).sections(window, indexes):
        columns = decode_records(section, _WANTED)
        assert columns.keys is not None  # noqa: S101  (they were asked for)
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
    """Raise the error for a control record without a proper key."""
    header = window.header(index)
    start = int(window.starts[index])
    control_type(window.buffer.data[start : start + header.size_bytes], header, path=window.path)
