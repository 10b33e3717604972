"""What planning hands to a task, as plain data that travels to another process, and the schema of its rows.

The columns are those of Spark's Kafka source, ``headers``, ``_metadata``, and one that describes damage.
Spark compares schemas exactly, so names, order, types and nullability are fixed here.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import islice
from operator import attrgetter, eq
from typing import TYPE_CHECKING, Final, overload

import pyarrow as pa

from storage_core.errors import OptionError
from storage_core.options.read_options import CORRUPT_RECORD_COLUMN, DamageMode
from storage_core.options.storage_options import NO_STORAGE_OPTIONS, StorageOptions
from storage_core.record import HEADERS_TYPE
from storage_core.segment.file_names import log_file_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from storage_core.filesystem import FileVersion
    from storage_core.options.predicate import Predicate
    from storage_core.segment import AbortedTransaction
    from storage_core.values.column_format import ColumnFormat


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
    *, include_headers: bool = False, include_metadata: bool = False, corrupt_record_column: str | None = None
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


def typed_schema(schema: pa.Schema, formats: Iterable[ColumnFormat]) -> pa.Schema:
    """Return a schema in which columns have the types that they are decoded to."""
    for each in formats:
        if each.column in schema.names:
            field = schema.field(each.column).with_type(each.arrow_type)
            schema = schema.set(schema.get_field_index(each.column), field)
    return schema


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
    """Options that a task needs.

    Attributes:
        max_batch_bytes: The largest batch that is read, compressed or not.
        ignore_checkpoints: Whether a range that has to be located again may be below the log start.
        use_indexes: Whether a range that has to be located again may use indexes.
        predicate: Only rows for which it is true are read; None for all.
        corrupt_record_column: Where a damaged range is described, if the schema has a column of that name.
        truncations_bytes: By log directory, the size of its list of truncations at planning. Entries added since
            tell whether a partition's records are still those that were planned.
        formats: How the columns are decoded that are not read as bytes.
        storage: How to reach an object store.
        remote_storage: Where a range is located again whose segment is not in its local directory any more.
    """

    max_batch_bytes: int
    fail_on_data_loss: bool = True
    ignore_checkpoints: bool = False
    use_indexes: bool = True
    predicate: Predicate | None = None
    mode: DamageMode = "FAILFAST"
    corrupt_record_column: str = CORRUPT_RECORD_COLUMN
    truncations_bytes: tuple[tuple[str, int], ...] = ()
    formats: tuple[ColumnFormat, ...] = ()
    storage: StorageOptions = NO_STORAGE_OPTIONS
    remote_storage: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LogSpan:
    """A range of offsets in one segment.

    The offsets decide. Position and inode are hints: if the file was replaced when the task reads,
    the range is located again by its offsets.

    Attributes:
        position_bytes: Where the first batch that may hold one of them begins.
        end_position_bytes: Where the last such batch ends.
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
    version: FileVersion
    file_size_bytes: int | None = None
    aborted_transactions: tuple[AbortedTransaction, ...] = ()
    segment_end_bytes: int | None = None
    segment_end_offset: int | None = None
    is_first: bool = True

    @property
    def size_bytes(self) -> int:
        """Number of bytes of the log file that the span covers."""
        return self.end_position_bytes - self.position_bytes


_SPANS_IN_A_PACK: Final = 256
_values_of: Final = attrgetter(*(each.name for each in fields(LogSpan) if each.name != "file_name"))


class SpanList(Sequence[LogSpan]):
    """Spans that are held as bytes, because a million of them take 70 MB so, and 440 MB as objects. Pickled as a tuple.

    Attributes:
        sizes_bytes: How many bytes of its log file each span covers; also of those that a slice leaves out.
        offset_counts: How many offsets each span covers; likewise.
    """

    __slots__ = ("_chosen", "_packs", "offset_counts", "sizes_bytes")

    def __init__(self, spans: Iterable[LogSpan] = ()) -> None:
        self.sizes_bytes = array("q")
        self.offset_counts = array("Q")
        self._packs: list[bytes] = []
        left = iter(spans)
        while pack := list(islice(left, _SPANS_IN_A_PACK)):
            self.sizes_bytes.extend(span.size_bytes for span in pack)
            self.offset_counts.extend(max(span.end_offset - span.start_offset, 0) for span in pack)
            # The name of the log file only where the base offset does not tell it.
            names = [
                None if span.file_name == log_file_name(span.base_offset) else span.file_name for span in pack
            ]
            self._packs.append(pickle.dumps((names, list(map(_values_of, pack)))))
        self._chosen = range(len(self.sizes_bytes))

    def __len__(self) -> int:
        return len(self._chosen)

    @overload
    def __getitem__(self, index: int) -> LogSpan: ...

    @overload
    def __getitem__(self, index: slice) -> SpanList: ...

    def __getitem__(self, index: int | slice) -> LogSpan | SpanList:
        if isinstance(index, slice):
            part = SpanList()
            part.sizes_bytes, part.offset_counts, part._packs = (
                self.sizes_bytes,
                self.offset_counts,
                self._packs,
            )
            part._chosen = self._chosen[index]
            return part
        pack, place = divmod(self._chosen[index], _SPANS_IN_A_PACK)
        return _unpacked(self._packs[pack])[place]

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


@lru_cache(maxsize=2)
def _unpacked(pack: bytes) -> list[LogSpan]:
    names, values = pickle.loads(pack)  # noqa: S301  (made by a list of spans)
    return [
        LogSpan(topic, partition, directory, base_offset, name or log_file_name(base_offset), *others)
        for name, (topic, partition, directory, base_offset, *others) in zip(names, values, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Spans that one task reads, in order."""

    spans: Sequence[LogSpan]
    settings: ReadSettings

    @property
    def size_bytes(self) -> int:
        """Number of bytes of log files that the task covers."""
        return sum(span.size_bytes for span in self.spans)
