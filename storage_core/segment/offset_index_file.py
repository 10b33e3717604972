"""The offset index that is written beside a log file (Kafka's ``OffsetIndex``).

`storage_core.segment.offset_index` has the layout, and reads what others have written.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from storage_core.errors import AppendError, CorruptIndexError, OffsetOverflowError, OffsetsOutOfOrderError
from storage_core.segment.entry_file import EntryFile
from storage_core.segment.offset_index import ENTRY_SIZE_BYTES, offset_entries
from storage_core.segment.values import OffsetPosition

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from storage_core.filesystem import FileSystem

__all__ = ["LARGEST_RELATIVE_OFFSET", "OffsetIndexFile", "offset_overflow"]

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

    def forget_behind(self, count: int) -> None:
        """Take back entries that were added last, because the append that they belong to has failed."""
        self.file.forget_behind(count)
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
