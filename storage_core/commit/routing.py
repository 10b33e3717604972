"""Rows and where they go; bringing the rows of each partition together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from storage_core.errors import InvalidRecordError
from storage_core.log.topic_ids import check_topic_partition

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PartitionNumbers", "RoutedRows", "SortedRows", "sort_rows"]

_Int64Array = npt.NDArray[np.int64]

_PARTITION_BITS: Final = 32
_PARTITION_MASK: Final = (1 << _PARTITION_BITS) - 1
_SHORT_NUMBERS: Final = 1 << 16
_UNKNOWN: Final = _SHORT_NUMBERS - 1
# Of those above, places are searched for.
_TABLE_PARTITIONS: Final = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class RoutedRows:
    """Rows that know their topic and partition.

    Args:
        records: Their columns: ``value``, and maybe ``key``, ``timestamp``, ``headers`` and ``offset``.
        topics: The topics that occur.
        topic_indexes: Per row, its place in ``topics``; None: all rows are of the first one.
        partitions: Per row, its partition.

    Raises:
        InvalidRecordError: Columns do not fit together.
    """

    records: pa.RecordBatch
    topics: Sequence[str]
    topic_indexes: npt.NDArray[np.integer[Any]] | None
    partitions: npt.NDArray[np.integer[Any]]

    def __post_init__(self) -> None:
        count = self.records.num_rows
        for name, column in (("topic_indexes", self.topic_indexes), ("partitions", self.partitions)):
            if column is not None and len(column) != count:
                raise InvalidRecordError(f"Expected {count} {name}, one for each row, found {len(column)}.")
        if not count:
            return
        if int(self.partitions.min()) < 0:
            row = int(self.partitions.argmin())
            raise InvalidRecordError(
                f"Invalid partition: {int(self.partitions[row])}. Partition number should always be non-negative. "
                f"Found in row {row}."
            )
        indexes = np.zeros(1, np.int64) if self.topic_indexes is None else self.topic_indexes
        if int(indexes.min()) < 0 or int(indexes.max()) >= len(self.topics):
            raise InvalidRecordError(
                f"Expected topic_indexes from 0 to {len(self.topics) - 1}, found {int(indexes.min())} to "
                f"{int(indexes.max())}."
            )


class PartitionNumbers:
    """Gives each partition that occurs a number: 0, 1, 2 and so on."""

    def __init__(self) -> None:
        self._topics: dict[str, int] = {}
        self._names: list[str] = []
        self._partitions: list[tuple[str, int]] = []
        # Topic and partition in one integer, ascending, and the number of each.
        self._codes: _Int64Array = np.zeros(0, np.int64)
        self._numbers: _Int64Array = np.zeros(0, np.int64)
        # By topic, the numbers of its first partitions.
        self._tables: dict[str, npt.NDArray[np.uint16]] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def topic_partition(self, number: int) -> tuple[str, int]:
        """The partition with a number."""
        return self._partitions[number]

    def of_rows(self, rows: RoutedRows) -> npt.NDArray[np.integer[Any]]:
        """Per row, the number of its partition.

        Raises:
            OptionError: There can be no such partition.
        """
        if rows.topic_indexes is None:
            found = self._of_one_topic(rows.topics[0], rows.partitions)
            if found is not None:
                return found
        topics = np.fromiter(map(self._topic, rows.topics), np.int64, len(rows.topics))
        codes = rows.partitions.astype(np.int64)
        if rows.topic_indexes is None:
            codes += topics[0] << _PARTITION_BITS
        else:
            codes += topics[rows.topic_indexes] << _PARTITION_BITS
        places = np.searchsorted(self._codes, codes)
        is_known = np.zeros(len(codes), np.bool_)
        if len(self._codes):
            np.minimum(places, len(self._codes) - 1, out=places)
            is_known = self._codes[places] == codes
        if not is_known.all():
            self._add(np.unique(codes[~is_known]))
            places = np.searchsorted(self._codes, codes)
        numbers: _Int64Array = self._numbers[places]
        return numbers

    def _of_one_topic(
        self, topic: str, partitions: npt.NDArray[np.integer[Any]]
    ) -> npt.NDArray[np.uint16] | None:
        """Per row of one topic, the number of its partition, looked up in a table; None if some are new, or too many."""
        table = self._tables.get(topic)
        if table is None or not len(partitions) or int(partitions.max()) >= len(table):
            return None
        numbers = table[partitions]
        return None if bool((numbers == _UNKNOWN).any()) else numbers

    def _put_into_table(self, topic: str, partition: int, number: int) -> None:
        if partition >= _TABLE_PARTITIONS or number >= _UNKNOWN:
            return
        table = self._tables.get(topic, np.zeros(0, np.uint16))
        if partition >= len(table):
            longer = np.full(min(2 * partition + 16, _TABLE_PARTITIONS), _UNKNOWN, np.uint16)
            longer[: len(table)] = table
            table = self._tables[topic] = longer
        table[partition] = number

    def _topic(self, name: str) -> int:
        number = self._topics.setdefault(name, len(self._topics))
        if number == len(self._names):
            self._names.append(name)
        return number

    def _add(self, codes: _Int64Array) -> None:
        first = len(self._partitions)
        for code in codes.tolist():
            topic, partition = self._names[code >> _PARTITION_BITS], code & _PARTITION_MASK
            check_topic_partition(topic, partition)
            self._put_into_table(topic, partition, len(self._partitions))
            self._partitions.append((topic, partition))
        all_codes = np.concatenate([self._codes, codes])
        all_numbers = np.concatenate([self._numbers, np.arange(first, first + len(codes))])
        order = np.argsort(all_codes)
        self._codes, self._numbers = all_codes[order], all_numbers[order]


@dataclass(frozen=True, slots=True, eq=False)
class SortedRows:
    """Rows by partition, those of one partition in the order that they came in.

    Attributes:
        order: The rows' places before; None if they stand in this order already.
        numbers: The numbers of the partitions that have rows, ascending.
        ends: Behind which row, in the new order, each of them ends.
    """

    order: _Int64Array | None
    numbers: _Int64Array
    ends: _Int64Array


def sort_rows(numbers: npt.NDArray[np.integer[Any]]) -> SortedRows:
    """Bring rows together by the numbers of their partitions; there is at least one row."""
    order = None
    if not np.all(numbers[1:] >= numbers[:-1]):
        # A stable sort of 16 bits takes one pass or two, whatever the order.
        is_short = int(numbers.max()) < _SHORT_NUMBERS
        order = np.argsort(numbers.astype(np.uint16, copy=False) if is_short else numbers, kind="stable")
        numbers = numbers[order]
    ends = np.append(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1, len(numbers))
    return SortedRows(order, numbers[ends - 1].astype(np.int64), ends)
