"""Rows with their topic and partition, and sorting them by partition.

Rows are buffered without copying their bytes. Keys and values are kept as Arrow views of 16 bytes each, as
`storage_core.record.column_encode` lays them out, and sorting rows moves only the views.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from storage_core.directory import check_topic_partition
from storage_core.errors import InvalidRecordError
from storage_core.record.arrow_columns import ByteStrings, put_byte_strings

OFFSET_COLUMN: Final = "offset"
_VIEWED_COLUMNS: Final = frozenset({"key", "value"})
_INLINE_BYTES: Final = 12
_VIEW_BYTES: Final = 16
# Per row: the partition's number, the position in the order, and temporary arrays.
_ORDER_BYTES: Final = 32
_Int64Array = npt.NDArray[np.int64]
_PARTITION_BITS: Final = 32
_PARTITION_MASK: Final = (1 << _PARTITION_BITS) - 1
_SHORT_NUMBERS: Final = 1 << 16
_UNKNOWN: Final = _SHORT_NUMBERS - 1
# Higher partitions are found by a binary search.
_TABLE_PARTITIONS: Final = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class RoutedRows:
    """Rows with their topic and partition.

    Args:
        records: The columns: ``value``, and optionally ``key``, ``timestamp``, ``headers`` and ``offset``.
        topic_indexes: Per row, an index into ``topics``; None: all rows belong to the first topic.
        partitions: Per row, its partition.

    Raises:
        InvalidRecordError: The columns do not fit together.
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
    """Numbers the partitions that occur: 0, 1, 2 and so on."""

    def __init__(self) -> None:
        self._topics: dict[str, int] = {}
        self._names: list[str] = []
        self._partitions: list[tuple[str, int]] = []
        # Topic and partition as one integer, ascending, and the number of each partition.
        self._codes: _Int64Array = np.zeros(0, np.int64)
        self._numbers: _Int64Array = np.zeros(0, np.int64)
        # By topic, the numbers of its low partitions.
        self._tables: dict[str, npt.NDArray[np.uint16]] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def topic_partition(self, number: int) -> tuple[str, int]:
        """Return the partition with a number."""
        return self._partitions[number]

    def of_rows(self, rows: RoutedRows) -> npt.NDArray[np.integer[Any]]:
        """Return the partition number of each row.

        Raises:
            OptionError: A topic or partition is not valid.
        """
        if rows.topic_indexes is None:
            found = self._of_one_topic(rows.topics[0], rows.partitions)
            if found is not None:
                return found
        topics = np.fromiter(map(self._topic, rows.topics), np.int64, len(rows.topics))
        codes = rows.partitions.astype(np.int64)
        codes += topics[0 if rows.topic_indexes is None else rows.topic_indexes] << _PARTITION_BITS
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
        """Look up the partition numbers of one topic's rows in a table.

        Returns:
            None if it lacks some.
        """
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


def held_bytes(records: pa.RecordBatch) -> int:
    """Return the memory that rows take until they are written."""
    views = sum(name in _VIEWED_COLUMNS for name in records.schema.names)
    return int(records.nbytes + records.num_rows * (_VIEW_BYTES * views + _ORDER_BYTES))


@dataclass(frozen=True, slots=True, eq=False)
class _Views:
    """A column of byte strings.

    Attributes:
        views: Per row, its view as four integers: length, prefix, buffer number, position in the buffer.
        is_valid: Per row, whether it is not null; None: no row is null.
        buffers: The buffers that the views point into.
    """

    views: npt.NDArray[np.int32]
    is_valid: npt.NDArray[np.bool_] | None
    buffers: list[pa.Buffer]

    @classmethod
    def of(cls, arrays: Sequence[pa.Array]) -> _Views:
        buffers: list[pa.Buffer] = []
        parts = []
        has_nulls = any(array.null_count for array in arrays)
        if not has_nulls and all(kinds.is_binary(array.type) for array in arrays):
            return cls._of_plain(arrays)
        for array in arrays:
            viewed = _as_views(array)
            _, view_buffer, *data = viewed.buffers()
            views = np.frombuffer(view_buffer, np.int32).reshape(-1, 4)[
                viewed.offset : viewed.offset + len(viewed)
            ]
            if buffers and data:
                views = views.copy()
                views[:, 2] += np.where(views[:, 0] > _INLINE_BYTES, np.int32(len(buffers)), np.int32(0))
            buffers.extend(data)
            parts.append(views)
        is_valid = None
        if has_nulls:
            is_valid = np.concatenate([array.is_valid().to_numpy(zero_copy_only=False) for array in arrays])
        return cls(np.concatenate(parts), is_valid, buffers)

    @classmethod
    def _of_plain(cls, arrays: Sequence[pa.Array]) -> _Views:
        """Lay out the views here, which saves copying the results of many casts."""
        buffers: list[pa.Buffer] = []
        views = np.empty((sum(map(len, arrays)), 2), np.uint64)
        start = 0
        for array in arrays:
            _, border_buffer, data = array.buffers()
            places = views[start : start + len(array)]
            start += len(array)
            if not len(array):
                continue
            borders = np.frombuffer(border_buffer, np.int32)[
                array.offset : array.offset + len(array) + 1
            ].astype(np.int64)
            column = ByteStrings(
                np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8),
                borders[:-1],
                np.diff(borders),
            )
            put_byte_strings(places, column, len(buffers))
            if data is not None:
                buffers.append(data)
        return cls(views.view(np.int32), None, buffers)

    def take(self, rows: _Int64Array | slice) -> pa.Array:
        if isinstance(rows, slice):
            views = np.ascontiguousarray(self.views[rows])
        else:
            # As items of 16 bytes, numpy takes a row at once.
            views = self.views.view(np.complex128).ravel().take(rows).view(np.int32).reshape(-1, 4)
        validity = None
        if self.is_valid is not None:
            validity = pa.py_buffer(np.packbits(self.is_valid[rows], bitorder="little"))
        data = self.buffers or [pa.py_buffer(b"")]
        return pa.Array.from_buffers(pa.binary_view(), len(views), [validity, pa.py_buffer(views), *data])


class RowBlock:
    """Rows of some record batches with equal columns, sorted by partition; those of a partition keep their order.

    Args:
        batches: At least one batch with at least one row in all.
        numbers: Per row, the number of its partition.

    Attributes:
        partitions: The numbers of the partitions that have rows, ascending.
        ends: For each of them, the end of its rows.
        offsets: Per row, the offset that it keeps; None if the batches have no such column.
    """

    def __init__(self, batches: Sequence[pa.RecordBatch], numbers: npt.NDArray[np.integer[Any]]) -> None:
        # The original positions of the rows; None if they were sorted.
        self._order: _Int64Array | None = None
        if not np.all(numbers[1:] >= numbers[:-1]):
            # A stable sort of 16-bit integers is a radix sort.
            is_short = int(numbers.max()) < _SHORT_NUMBERS
            self._order = np.argsort(
                numbers.astype(np.uint16, copy=False) if is_short else numbers, kind="stable"
            )
            numbers = numbers[self._order]
        self.ends = np.append(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1, len(numbers))
        self.partitions: _Int64Array = numbers[self.ends - 1].astype(np.int64)
        self.offsets: _Int64Array | None = None
        self._columns: dict[str, _Views | pa.Array] = {}
        for number, name in enumerate(batches[0].schema.names):
            arrays = [batch.column(number) for batch in batches]
            if name == OFFSET_COLUMN:
                offsets = np.concatenate([array.to_numpy(zero_copy_only=False) for array in arrays])
                self.offsets = offsets if self._order is None else offsets[self._order]
            elif name in _VIEWED_COLUMNS:
                self._columns[name] = _Views.of(arrays)
            else:
                self._columns[name] = pa.concat_arrays(arrays)

    def rows(self, start: int, stop: int) -> pa.RecordBatch:
        """Return the rows from ``start`` to before ``stop``."""
        places = slice(start, stop) if self._order is None else self._order[start:stop]
        arrays = []
        for column in self._columns.values():
            if isinstance(column, _Views):
                arrays.append(column.take(places))
            elif isinstance(places, slice):
                arrays.append(column.slice(start, stop - start))
            else:
                arrays.append(column.take(pa.array(places)))
        return pa.RecordBatch.from_arrays(arrays, list(self._columns))


def _as_views(array: pa.Array) -> pa.Array:
    kind = array.type
    if kinds.is_dictionary(kind):
        return _as_views(array.dictionary_decode())
    if kinds.is_null(kind) or kinds.is_fixed_size_binary(kind):
        array = array.cast(pa.binary())
    elif kinds.is_string(kind) or kinds.is_large_string(kind):
        array = array.cast(pa.large_binary() if kinds.is_large_string(kind) else pa.binary())
    elif kinds.is_string_view(kind):
        array = array.cast(pa.string()).cast(pa.binary())
    return array.cast(pa.binary_view())
