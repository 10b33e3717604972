"""What planning hands to a task, as plain data that travels to another process, and the schema of its rows.

The columns are those of Spark's Kafka source, ``headers``, ``_metadata``, and one that describes damage.
Spark compares schemas exactly, so names, order, types and nullability are fixed here.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import eq
from typing import TYPE_CHECKING, Final, overload

import numpy as np
import pyarrow as pa

from storage_core.errors import OptionError
from storage_core.options.read_options import CORRUPT_RECORD_COLUMN, DamageMode
from storage_core.record import HEADERS_TYPE
from storage_core.segment.file_names import log_file_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from storage_core.options.predicate import Predicate
    from storage_core.segment import AbortedTransaction


METADATA_TYPE: Final = pa.struct(
    [
        ("segment", pa.string()),
        ("position", pa.int64()),
        ("batchOffset", pa.int64()),
        ("leaderEpoch", pa.int32()),
        ("producerId", pa.int64()),
        ("producerEpoch", pa.int32()),
        ("sequence", pa.int32()),
        ("isTransactional", pa.bool_()),
        ("compression", pa.string()),
        ("magic", pa.int32()),
        ("timestampMs", pa.int64()),
    ]
)
_FIELDS: Final = (
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", tz="UTC")),
    ("timestampType", pa.int32()),
)


def record_schema(
    *,
    include_headers: bool = False,
    include_metadata: bool = False,
    corrupt_record_column: str | None = None,
) -> pa.Schema:
    """Return the schema of a read. The column that describes damage comes last."""
    fields = list(_FIELDS)
    if include_headers:
        fields.append(("headers", HEADERS_TYPE))
    if include_metadata:
        fields.append(("_metadata", METADATA_TYPE))
    if corrupt_record_column is not None:
        fields.append((corrupt_record_column, pa.string()))
    return pa.schema(fields)


def project(schema: pa.Schema, columns: tuple[str, ...] | None) -> pa.Schema:
    """Select columns of a schema, in the order given, or all if that is None.

    Raises:
        OptionError: The schema has no such column, or it is named twice.
    """
    if columns is None:
        return schema
    for name in columns:
        if name not in schema.names:
            available = ", ".join(schema.names)
            raise OptionError(f"columns: no column is named {name!r}. Choose from {available}.")
        if columns.count(name) > 1:
            raise OptionError(f"columns: {name!r} is named twice.")
    return pa.schema([schema.field(name) for name in columns])


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """The options that a task needs.

    Attributes:
        max_batch_bytes: The largest batch that is read, compressed or not.
        ignore_checkpoints: Whether a range that has to be located again may be below the log start.
        use_indexes: Whether a range that has to be located again may use indexes.
        predicate: Only rows for which it is true are read; None for all.
        corrupt_record_column: Where a damaged range is described, if the schema has a column of that name.
        truncations_bytes: By log directory, the size of its list of truncations at planning. Entries added since
            tell whether a partition's records are still those that were planned.
    """

    max_batch_bytes: int
    fail_on_data_loss: bool = True
    ignore_checkpoints: bool = False
    use_indexes: bool = True
    predicate: Predicate | None = None
    mode: DamageMode = "FAILFAST"
    corrupt_record_column: str = CORRUPT_RECORD_COLUMN
    truncations_bytes: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class LogSpan:
    """A range of offsets in one segment.

    The offsets decide. Position and inode are hints: if the file was replaced when the task reads,
    the range is located again by its offsets.

    Attributes:
        directory: Path of the partition's directory.
        base_offset: The segment's base offset.
        file_name: The segment's log file.
        end_offset: The first offset after the span.
        position_bytes: Where the first batch that may hold one of them begins.
        end_position_bytes: Where the last such batch ends.
        inode: Inode of the log file at planning.
        file_size_bytes: Size of a closed segment's file at planning; None if it may have grown. It tells
            a file from its replacement, which may reuse the inode.
        aborted_transactions: Under read_committed, those with data in this range.
        segment_end_bytes: Where the segment ended at planning; None for the end of the span.
        segment_end_offset: No batch of the segment reaches this offset; None if that is not known.
        is_first: Whether the read of the partition begins here. If so, damage that begins before the first
            offset, and may reach it, is reported here and nowhere else.
    """

    topic: str
    partition: int
    directory: str
    base_offset: int
    file_name: str
    start_offset: int
    end_offset: int
    position_bytes: int
    end_position_bytes: int
    inode: int
    file_size_bytes: int | None = None
    aborted_transactions: tuple[AbortedTransaction, ...] = ()
    segment_end_bytes: int | None = None
    segment_end_offset: int | None = None
    is_first: bool = True

    @property
    def size_bytes(self) -> int:
        """Number of bytes of the log file that the span covers."""
        return self.end_position_bytes - self.position_bytes


class SpanList(Sequence[LogSpan]):
    """A sequence of spans, each built when it is taken: a million of them take 100 MB. Pickled as a tuple.

    Attributes:
        rows: The table that holds their fields.
    """

    __slots__ = ("_chosen", "rows")

    def __init__(
        self, spans: Iterable[LogSpan] = (), *, rows: _SpanRows | None = None, chosen: range | None = None
    ) -> None:
        self.rows = rows or _SpanRows()
        for span in spans:
            self.rows.append(span)
        self._chosen = range(len(self.rows)) if chosen is None else chosen

    @classmethod
    def joined(cls, parts: Iterable[SpanList]) -> SpanList:
        """Join several lists, which must not be slices, nor be used afterwards."""
        rows: _SpanRows | None = None
        for part in parts:
            if rows is None:
                rows = part.rows
            else:
                rows.extend(part.rows)
        return cls(rows=rows)

    @property
    def sizes_bytes(self) -> npt.NDArray[np.int64]:
        """Number of bytes of its log file that each span covers."""
        table = self._table()
        sizes: npt.NDArray[np.int64] = table[:, _END_POSITION_BYTES] - table[:, _POSITION_BYTES]
        return sizes

    @property
    def offset_counts(self) -> npt.NDArray[np.uint64]:
        """Number of offsets that each span covers."""
        table = self._table()
        return (table[:, _LAST_OFFSET] - table[:, _START_OFFSET]).astype(np.uint64) + np.uint64(1)

    def _table(self) -> npt.NDArray[np.int64]:
        numbers = np.asarray(self.rows.numbers, np.int64).reshape(-1, _NUMBERS_PER_SPAN)
        return numbers[self._chosen.start : self._chosen.stop]

    def __len__(self) -> int:
        return len(self._chosen)

    @overload
    def __getitem__(self, index: int) -> LogSpan: ...

    @overload
    def __getitem__(self, index: slice) -> SpanList: ...

    def __getitem__(self, index: int | slice) -> LogSpan | SpanList:
        chosen = self._chosen[index]
        if isinstance(chosen, int):
            return self.rows.span(chosen)
        if chosen.step != 1:
            return SpanList(map(self.rows.span, chosen))
        return SpanList(rows=self.rows, chosen=chosen)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (SpanList, list, tuple)):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __reduce__(self) -> tuple[type[tuple[LogSpan, ...]], tuple[tuple[LogSpan, ...]]]:
        return tuple, (tuple(self),)

    def __repr__(self) -> str:
        return f"SpanList({list(self)!r})"


# The numbers of a span, in the order in which `_SpanRows.append` writes them.
_NUMBERS_PER_SPAN: Final = 10
_START_OFFSET, _LAST_OFFSET, _POSITION_BYTES, _END_POSITION_BYTES = 1, 2, 3, 4
_NONE: Final = -1 << 63
# An inode is an unsigned 64-bit number.
_INODES: Final = 1 << 64


class _SpanRows:
    """The fields of spans: ten numbers each, and sparse tables of the others.

    Ends of offset ranges are kept as last offsets, because an end may be 2^63.
    """

    __slots__ = ("_aborted", "_file_names", "_partition_rows", "_partitions", "numbers")

    def __init__(self) -> None:
        self.numbers = array("q")
        # The first row of each partition; and its topic, number and directory.
        self._partition_rows: list[int] = []
        self._partitions: list[tuple[str, int, str]] = []
        # By row, file names and transactions of the few spans that do not have the default.
        self._file_names: dict[int, str] = {}
        self._aborted: dict[int, tuple[AbortedTransaction, ...]] = {}

    def __len__(self) -> int:
        return len(self.numbers) // _NUMBERS_PER_SPAN

    def append(self, span: LogSpan) -> None:
        row = len(self)
        self._begin_partition(row, (span.topic, span.partition, span.directory))
        if span.file_name != log_file_name(span.base_offset):
            self._file_names[row] = span.file_name
        if span.aborted_transactions:
            self._aborted[row] = span.aborted_transactions
        self.numbers.extend(
            (
                span.base_offset,
                span.start_offset,
                span.end_offset - 1,
                span.position_bytes,
                span.end_position_bytes,
                span.inode if span.inode < _INODES >> 1 else span.inode - _INODES,
                _NONE if span.file_size_bytes is None else span.file_size_bytes,
                _NONE if span.segment_end_bytes is None else span.segment_end_bytes,
                _NONE if span.segment_end_offset is None else span.segment_end_offset - 1,
                span.is_first,
            )
        )

    def extend(self, other: _SpanRows) -> None:
        """Append the rows of another table."""
        first = len(self)
        for row, partition in zip(other._partition_rows, other._partitions, strict=True):
            self._begin_partition(first + row, partition)
        self._file_names.update((first + row, name) for row, name in other._file_names.items())
        self._aborted.update((first + row, aborted) for row, aborted in other._aborted.items())
        self.numbers.extend(other.numbers)

    def span(self, row: int) -> LogSpan:
        """Build the span of a row."""
        first = row * _NUMBERS_PER_SPAN
        (
            base_offset,
            start_offset,
            last_offset,
            position_bytes,
            end_position_bytes,
            inode,
            file_size_bytes,
            segment_end_bytes,
            segment_last_offset,
            is_first,
        ) = self.numbers[first : first + _NUMBERS_PER_SPAN]
        return LogSpan(
            *self._partitions[bisect_right(self._partition_rows, row) - 1],
            base_offset,
            self._file_names.get(row) or log_file_name(base_offset),
            start_offset,
            last_offset + 1,
            position_bytes,
            end_position_bytes,
            inode % _INODES,
            None if file_size_bytes == _NONE else file_size_bytes,
            self._aborted.get(row, ()),
            None if segment_end_bytes == _NONE else segment_end_bytes,
            None if segment_last_offset == _NONE else segment_last_offset + 1,
            bool(is_first),
        )

    def _begin_partition(self, row: int, partition: tuple[str, int, str]) -> None:
        if not self._partitions or self._partitions[-1] != partition:
            self._partition_rows.append(row)
            self._partitions.append(partition)


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Spans that one task reads, in order."""

    spans: Sequence[LogSpan]
    settings: ReadSettings

    @property
    def size_bytes(self) -> int:
        """Number of bytes of log files that the task covers."""
        return sum(span.size_bytes for span in self.spans)
