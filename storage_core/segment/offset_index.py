"""The offset index of a segment, ``<base>.index`` (Kafka's ``OffsetIndex``).

    position  bytes  field
    0         4      offset, relative to the segment's base offset
    4         4      position of a batch in the log file

An entry every ``index.interval.bytes`` (4 KiB), no file header; the first batch has none.
Offsets and positions strictly ascend. An entry's offset is the last one of its batch; brokers
before 4.0 name the last one of the whole append that begins there, the oldest its first one.

A file that breaks these rules yields an index without entries whose ``problem`` says why: the
log is then walked, with the same answers.

The offset index that is written beside a log file (Kafka's ``OffsetIndex``).

`storage_core.segment.offset_index` has the layout, and reads what others have written.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from storage_core.errors import AppendError, CorruptIndexError, OffsetOverflowError, OffsetsOutOfOrderError
from storage_core.record.batch_header import MAX_OFFSET
from storage_core.segment.file_names import OffsetPosition
from storage_core.segment.index_file import EntryFile, read_index_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from storage_core.filesystem import FileSystem

    Int64Array: TypeAlias = NDArray[np.int64]

__all__ = [
    "ENTRY_SIZE_BYTES",
    "LARGEST_RELATIVE_OFFSET",
    "OffsetIndex",
    "OffsetIndexFile",
    "offset_entries",
    "offset_overflow",
]


ENTRY_SIZE_BYTES: Final = 8
_NO_VALUES: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class OffsetIndex:
    """The entries of one offset index, or none.

    Args:
        base_offset: The segment's base offset.
        offsets: Absolute offset of each entry, strictly ascending.
        positions: Position of each entry in the log file, strictly ascending.
        problem: Why the file cannot be used; None if it can, or if it is just empty.
    """

    base_offset: int
    offsets: Int64Array
    positions: Int64Array
    problem: str | None = None

    @classmethod
    def without_entries(cls, base_offset: int, problem: str | None) -> OffsetIndex:
        """An index that answers like an empty one."""
        return cls(base_offset, _NO_VALUES, _NO_VALUES, problem)

    @classmethod
    def read(cls, filesystem: FileSystem, path: str, base_offset: int, log_size_bytes: int) -> OffsetIndex:
        """Read the index of a log file of which ``log_size_bytes`` are of interest."""
        content = read_index_file(filesystem, path, ENTRY_SIZE_BYTES)
        if content.problem is not None:
            return cls.without_entries(base_offset, content.problem)
        entries = np.frombuffer(content.data, ">i4").astype(np.int64).reshape(-1, 2)
        # A broker never indexes the first batch: an entry of zeros says nothing.
        if len(entries) and not entries[0].any():
            entries = entries[1:]
        if not len(entries):
            return cls.without_entries(base_offset, None)
        if entries[0, 0] < 0 or entries[0, 1] < 0:
            return cls.without_entries(base_offset, "its first entry is negative")
        if not (entries[1:] > entries[:-1]).all():
            return cls.without_entries(base_offset, "its entries do not ascend")
        if base_offset + int(entries[-1, 0]) > MAX_OFFSET:
            return cls.without_entries(base_offset, "its last offset is beyond the largest that Kafka has")
        # A running broker may have appended since the log's size was taken. Entries that a log
        # had before it was cut short look the same, and say nothing about what is left.
        count = int(np.searchsorted(entries[:, 1], log_size_bytes))
        return cls(base_offset, entries[:count, 0] + base_offset, np.ascontiguousarray(entries[:count, 1]))

    def __len__(self) -> int:
        return len(self.offsets)

    def entry(self, number: int) -> OffsetPosition:
        """The entry with this number."""
        return OffsetPosition(int(self.offsets[number]), int(self.positions[number]))

    def without_last_entry(self) -> OffsetIndex:
        """The same index, one entry shorter."""
        return OffsetIndex(self.base_offset, self.offsets[:-1], self.positions[:-1], self.problem)

    @property
    def last_entry(self) -> OffsetPosition | None:
        """The entry with the highest offset."""
        return self.entry(-1) if len(self.offsets) else None

    def number_at_or_below(self, offset: int) -> int:
        """Number of the entry with the highest offset up to ``offset``; -1 if none."""
        return int(self.offsets.searchsorted(offset, side="right")) - 1

    def lookup(self, offset: int) -> OffsetPosition:
        """The entry with the highest offset up to ``offset``; the segment's beginning if none."""
        number = self.number_at_or_below(offset)
        return self.entry(number) if number >= 0 else OffsetPosition(self.base_offset, 0)

    def position_at_or_after(self, position_bytes: int) -> OffsetPosition | None:
        """The first entry whose position is at least ``position_bytes``."""
        number = int(self.positions.searchsorted(position_bytes))
        return self.entry(number) if number < len(self.positions) else None


def offset_entries(offsets: Int64Array, positions_bytes: Int64Array, base_offset: int) -> bytes:
    """Entries as the file has them."""
    entries = np.empty((len(offsets), 2), ">i4")
    entries[:, 0] = offsets - base_offset
    entries[:, 1] = positions_bytes
    return entries.tobytes()


LARGEST_RELATIVE_OFFSET: Final = 2**31 - 1
# Relative offset, position.
_ENTRY: Final = struct.Struct(">ii")


class OffsetIndexFile:
    """Offsets and positions, strictly ascending. One writer, any number of readers.

    Args:
        filesystem: Through which the file is read and written.
        path: The file. It is made when it is first written to.
        base_offset: The segment's base offset.
        max_size_bytes: ``segment.index.bytes``.
    """

    __slots__ = ("_last_offset", "base_offset", "file")

    def __init__(self, filesystem: FileSystem, path: str, base_offset: int, max_size_bytes: int) -> None:
        self.base_offset = base_offset
        self.file = EntryFile(filesystem, path, ENTRY_SIZE_BYTES, max_size_bytes, is_zero_an_entry=False)
        self._last_offset: int | None = None

    def __len__(self) -> int:
        return self.file.count

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another entry."""
        return self.room == 0

    @property
    def room(self) -> int:
        """How many more entries there is room for."""
        return max(0, self.file.capacity - self.file.count)

    @property
    def last_offset(self) -> int:
        """Offset of the last entry; the base offset if there is none."""
        if self._last_offset is None:
            entry = self.file.read_last()
            self._last_offset = self._parse(entry).offset if entry else self.base_offset
        return self._last_offset

    def can_append(self, offset: int) -> bool:
        """Whether an offset can be written relative to the base offset."""
        return 0 <= offset - self.base_offset <= LARGEST_RELATIVE_OFFSET

    def append(self, offset: int, position_bytes: int) -> None:
        """Add an entry.

        Raises:
            OffsetOverflowError: The offset does not fit the segment.
            OffsetsOutOfOrderError: The offset is not above the last one.
            AppendError: The index is full.
        """
        if not self.can_append(offset):
            raise offset_overflow(self.file.path, self.base_offset, offset)
        if self.is_full:
            raise AppendError(
                f"Expected room for another entry, found a full index of {len(self)} entries. Roll the segment, "
                "or raise segment.index.bytes.",
                path=self.file.path,
                offset=offset,
            )
        if len(self) and offset <= self.last_offset:
            raise OffsetsOutOfOrderError(
                f"Expected an offset above {self.last_offset}, the last one in this index, found {offset}.",
                path=self.file.path,
                offset=offset,
            )
        self.file.write(_ENTRY.pack(offset - self.base_offset, position_bytes))
        self._last_offset = offset

    def extend(self, offsets: NDArray[np.int64], positions_bytes: NDArray[np.int64]) -> None:
        """Add entries that ascend and can be written, as many as there is room for.

        With an error, none of them counts. An index with fewer entries than batches is as right as any.
        """
        count = min(len(offsets), self.room)
        if count == 0:
            return
        self.file.write(offset_entries(offsets[:count], positions_bytes[:count], self.base_offset))
        self._last_offset = int(offsets[count - 1])

    def entry(self, number: int) -> OffsetPosition:
        """The entry with this number.

        Raises:
            IndexError: There are not so many.
        """
        if not 0 <= number < len(self):
            raise IndexError(
                f"Expected an entry number below {len(self)}, found {number}. [{self.file.path}]"
            )
        return self._parse(self.file.read(number))

    def lookup(self, offset: int) -> OffsetPosition:
        """The entry with the highest offset up to ``offset``; the segment's beginning if none."""
        relative = offset - self.base_offset
        _, entry = self.file.search(lambda entry: _ENTRY.unpack(entry)[0] <= relative)
        return self._parse(entry) if entry else OffsetPosition(self.base_offset, 0)

    def position_at_or_after(self, position_bytes: int) -> OffsetPosition | None:
        """The first entry whose position is at least ``position_bytes``."""
        number, _ = self.file.search(lambda entry: _ENTRY.unpack(entry)[1] < position_bytes)
        return self.entry(number + 1) if number + 1 < len(self) else None

    def truncate_to(self, offset: int) -> None:
        """Keep the entries below an offset."""
        relative = offset - self.base_offset
        number, _ = self.file.search(lambda entry: _ENTRY.unpack(entry)[0] < relative)
        self._keep(number + 1)

    def truncate(self) -> None:
        """Drop all entries."""
        self._keep(0)

    def reset(self) -> None:
        """Drop all entries and what was preallocated; the file then grows as they are added."""
        self._last_offset = None
        self.file.reset()

    def check(self) -> None:
        """Check the little that a broker checks.

        Raises:
            CorruptIndexError: The last offset lies below the base offset, or the size is no whole number of
                entries.
        """
        self.file.check_size()
        if len(self) and self.last_offset < self.base_offset:
            raise CorruptIndexError(
                f"Expected offsets from {self.base_offset} on, found a last entry with {self.last_offset}. Delete "
                "the index: it is built again from the log.",
                path=self.file.path,
                offset=self.last_offset,
            )

    def forget_after(self, count: int) -> None:
        """Take back entries that were added last, because the append that they belong to has failed."""
        self.file.forget_after(count)
        self._last_offset = None

    def _keep(self, count: int) -> None:
        if count < len(self):
            self._last_offset = None
            self.file.truncate(count)

    def _parse(self, entry: bytes) -> OffsetPosition:
        relative, position_bytes = _ENTRY.unpack(entry)
        return OffsetPosition(self.base_offset + relative, position_bytes)


def offset_overflow(path: str, base_offset: int, offset: int) -> OffsetOverflowError:
    """The error about an offset that cannot be written relative to a segment's base offset."""
    return OffsetOverflowError(
        f"Expected an offset from {base_offset} to {base_offset + LARGEST_RELATIVE_OFFSET}, which this segment's "
        f"indexes can hold, found {offset}. Roll the segment first.",
        path=path,
        offset=offset,
    )
