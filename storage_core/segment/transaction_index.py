"""The index of a segment's aborted transactions, ``<base>.txnindex`` (Kafka's ``TransactionIndex``).

    position  bytes  field
    0         2      version, 0
    2         8      producer id
    10        8      first data offset of the transaction in this partition
    18        8      offset of its abort marker
    26        8      last stable offset when the marker was appended

An entry is in the segment that holds the abort marker; entries are in the order of the markers.
The first abort creates the file: a segment without one usually has no file, so a missing file is no
problem by itself. A file that was cut inside an entry, or whose entries contradict each other, is not
used at all.

`TransactionIndex` holds the entries of a file that any broker may have written; `TransactionIndexFile`
is the writer's own file.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from storage_core.checkpoint.checkpoint_file import replace_file
from storage_core.errors import CorruptIndexError, OffsetsOutOfOrderError
from storage_core.segment.file_names import AbortedTransaction, log_paths_beside
from storage_core.segment.index_file import WriterFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from storage_core.filesystem import FileSystem, ReadableFile, ReadableFileSystem


MAX_TRANSACTION_INDEX_SIZE_BYTES: Final = 16 * 1024 * 1024
"""Half a million aborted transactions in one segment. Of a larger file, the batches are read instead."""
_ENTRY_DTYPE: Final = np.dtype(
    [
        ("version", ">i2"),
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),
        ("last_offset", ">i8"),
        ("last_stable_offset", ">i8"),
    ]
)
# The same layout, for single entries.
_ENTRY: Final = struct.Struct(">hqqqq")
_VERSION: Final = 0
_FIELDS: Final = ("producer_id", "first_offset", "last_offset", "last_stable_offset")
ENTRY_SIZE_BYTES: Final = _ENTRY_DTYPE.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class TransactionIndex:
    """The aborted transactions whose markers are in one segment, as a file that any broker may have written.

    Args:
        table: The entries, in the order of their markers.
        exists: Whether the file exists.
        problem: Why the file cannot be used; None if it can, is empty, or does not exist.
    """

    table: npt.NDArray[Any]
    exists: bool
    problem: str | None = None

    @classmethod
    def without_entries(cls, problem: str | None = None, *, exists: bool) -> TransactionIndex:
        """Return an index that answers like an empty one."""
        return cls(np.zeros(0, _ENTRY_DTYPE), exists, problem)

    @property
    def entries(self) -> tuple[AbortedTransaction, ...]:
        """All entries."""
        return tuple(_transactions(self.table))

    @property
    def last_marker_offset(self) -> int | None:
        """Return the offset of the last abort marker, or None."""
        return int(self.table["last_offset"][-1]) if len(self.table) else None

    @classmethod
    def read(cls, filesystem: ReadableFileSystem, path: str, base_offset: int) -> TransactionIndex:
        """Read the index.

        Raises:
            UnreadableError: This user may not read it.
            LogDirectoryError: It is not a regular file.
        """
        try:
            opened = filesystem.open(path)
        except FileNotFoundError:
            return cls.without_entries(exists=False)
        with opened:
            size_bytes = opened.status.size_bytes
            if size_bytes > MAX_TRANSACTION_INDEX_SIZE_BYTES:
                limit = MAX_TRANSACTION_INDEX_SIZE_BYTES
                problem = f"the file has {size_bytes} bytes, more than the {limit} that are read"
                return cls.without_entries(problem, exists=True)
            try:
                data = opened.read_at(size_bytes, 0) if size_bytes else b""
            except CorruptIndexError as error:
                # It was encrypted, and was changed.
                return cls.without_entries(str(error), exists=True)
        if len(data) % ENTRY_SIZE_BYTES:
            # Kafka ignores such an end. But readers would then see the records of an aborted transaction.
            problem = f"the file has {len(data)} bytes, which is no multiple of {ENTRY_SIZE_BYTES}"
            return cls.without_entries(problem, exists=True)
        entries = np.frombuffer(data, _ENTRY_DTYPE)
        problem_found = _problem(entries, base_offset)
        if problem_found is not None:
            return cls.without_entries(problem_found, exists=True)
        return cls(entries, exists=True)

    def collect_aborted_transactions(
        self, fetch_offset: int, upper_bound_offset: int
    ) -> tuple[list[AbortedTransaction], bool]:
        """Find the aborted transactions that overlap the offsets from ``fetch_offset`` to below the bound.

        Returns:
            The transactions, and whether these are all: if not, the next segments may hold markers of
            further ones.
        """
        table = self.table
        # As in a broker, the first entry beyond the bound ends the search.
        beyond = np.flatnonzero(table["last_stable_offset"] >= upper_bound_offset)
        if len(beyond):
            table = table[: beyond[0] + 1]
        overlaps = (table["last_offset"] >= fetch_offset) & (table["first_offset"] < upper_bound_offset)
        return list(_transactions(table[overlaps])), bool(len(beyond))


def decode_transaction_entries(data: bytes) -> npt.NDArray[Any]:
    """Decode whole entries, whatever they say, into a table as of `TransactionIndex`, which also has their versions."""
    return np.frombuffer(data, _ENTRY_DTYPE)


def _transactions(table: npt.NDArray[Any]) -> Iterator[AbortedTransaction]:
    return map(AbortedTransaction, *(table[name].tolist() for name in _FIELDS))


def _problem(entries: np.ndarray, base_offset: int) -> str | None:
    if not len(entries):
        return None
    if (entries["version"] != _VERSION).any():
        return f"expected entries of version {_VERSION}, found version {int(entries['version'].max())}"
    last_offsets = entries["last_offset"].astype(np.int64)
    if last_offsets[0] < base_offset:
        return f"it names the marker offset {int(last_offsets[0])}, below the segment's base offset {base_offset}"
    if (last_offsets[1:] <= last_offsets[:-1]).any():
        return "its marker offsets do not ascend"
    if (entries["first_offset"] >= entries["last_offset"]).any():
        return "a transaction does not begin before its marker"
    return None


class TransactionIndexFile(WriterFile):
    """The writer's own transaction index. One writer, any number of readers.

    Unlike the other indexes, it is created with the first entry, is not preallocated, and rarely has many entries.
    """

    __slots__ = ("_is_absent", "_last_offset", "_size_bytes", "base_offset")

    def __init__(self, filesystem: FileSystem, path: str, base_offset: int) -> None:
        super().__init__(filesystem, path)
        self.base_offset = base_offset
        self._is_absent = False
        # Both are set when the file is first read. A part of an entry at the end does not count.
        self._size_bytes = -1
        self._last_offset: int | None = None

    def __len__(self) -> int:
        return self._load() // ENTRY_SIZE_BYTES

    @property
    def last_offset(self) -> int | None:
        """Return the offset of the last abort marker, or None."""
        self._load()
        return self._last_offset

    def note_absence(self) -> None:
        """Record that the file does not exist, as for most segments, so that it is not looked for before it is created."""
        self._is_absent = True

    def append(self, transaction: AbortedTransaction) -> None:
        """Add a transaction.

        Raises:
            OffsetsOutOfOrderError: Its marker is not after the last one.
        """
        self.extend([transaction])

    def extend(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Add transactions, all of them or, on an error, none. This raises what `append` raises."""
        entries, last_offset = self._entries(transactions, self.last_offset)
        if entries:
            if self._file is None:
                self._is_absent = False
                self._file = self._filesystem.open_pooled(
                    self.path, create=True, like=log_paths_beside(self.path)
                )
            self._file.write_at(entries, self._size_bytes)
            self._size_bytes += len(entries) * ENTRY_SIZE_BYTES
            self._last_offset = last_offset

    def replace(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Replace all transactions, durably when this returns.

        A reader finds the old ones or the new ones, never a mixture. Raises what `append` raises.
        """
        entries, last_offset = self._entries(transactions, None)
        if not entries:
            if self._load() or not (self._is_absent or self._filesystem.status(self.path) is None):
                self._cut(0)
                self.flush()
            return
        self.close()
        replace_file(self._filesystem, self.path, b"".join(entries), like=log_paths_beside(self.path))
        self._is_absent = False
        self._size_bytes, self._last_offset = len(entries) * ENTRY_SIZE_BYTES, last_offset

    def _entries(
        self, transactions: Iterable[AbortedTransaction], last_offset: int | None
    ) -> tuple[list[bytes], int | None]:
        """Encode entries that follow the marker at an offset.

        Returns:
            Their bytes, and the offset of the last marker.
        """
        entries = []
        for transaction in transactions:
            if last_offset is not None and transaction.last_offset <= last_offset:
                raise OffsetsOutOfOrderError(
                    f"Expected an abort marker after offset {last_offset}, the last one in this index, found "
                    f"{transaction.last_offset}.",
                    path=self.path,
                    offset=transaction.last_offset,
                )
            last_offset = transaction.last_offset
            entries.append(
                _ENTRY.pack(
                    _VERSION,
                    transaction.producer_id,
                    transaction.first_offset,
                    transaction.last_offset,
                    transaction.last_stable_offset,
                )
            )
        return entries, last_offset

    def read(self) -> TransactionIndex:
        """Read the entries as they are in the file now."""
        return TransactionIndex.read(self._filesystem, self.path, self.base_offset)

    def truncate_to(self, offset: int) -> None:
        """Keep the transactions whose markers are below an offset."""
        count = len(self)
        if count == 0:
            return
        try:
            opened = self._filesystem.open(self.path)
        except FileNotFoundError:
            # The file was removed, and its entries with it.
            self.close()
            self._size_bytes, self._last_offset = 0, None
            return
        with opened as file:
            kept = bisect_left(range(count), offset, key=lambda number: _last_offset_of(file, number))
        if kept < count:
            self._cut(kept)

    def check(self) -> None:
        """Check the entries.

        Raises:
            CorruptIndexError: They contradict each other, are below the base offset, or the last one is torn.
        """
        problem = self.read().problem
        if problem is not None:
            raise CorruptIndexError(
                f"Expected the aborted transactions of a segment, but {problem}. Delete the index and recover "
                "the segment: it is built again from the log.",
                path=self.path,
            )

    def flush(self) -> None:
        """Flush the file to disk if it exists."""
        if self._file is None:
            if self._is_absent or self._filesystem.status(self.path) is None:
                return
            self._file = self._filesystem.open_pooled(self.path)
        self._file.flush()

    def rename(self, path: str) -> None:
        """Rename the file if it exists."""
        if self._is_absent:
            self.path = path
        else:
            super().rename(path)

    def delete(self) -> bool:
        """Delete the file. Return True if it existed."""
        self._size_bytes, self._last_offset = -1, None
        return not self._is_absent and super().delete()

    def _load(self) -> int:
        if self._size_bytes < 0:
            status = None if self._is_absent else self._filesystem.status(self.path)
            count = 0 if status is None else status.size_bytes // ENTRY_SIZE_BYTES
            if count:
                with self._filesystem.open(self.path) as file:
                    self._last_offset = _last_offset_of(file, count - 1)
            self._size_bytes = count * ENTRY_SIZE_BYTES
        return self._size_bytes

    def _cut(self, count: int) -> None:
        if self._file is None:
            self._file = self._filesystem.open_pooled(self.path)
        self._size_bytes, self._last_offset = -1, None
        self._file.truncate(count * ENTRY_SIZE_BYTES)


def _last_offset_of(file: ReadableFile, number: int) -> int:
    _, _, _, last_offset, _ = _ENTRY.unpack(file.read_at(ENTRY_SIZE_BYTES, number * ENTRY_SIZE_BYTES))
    return int(last_offset)
