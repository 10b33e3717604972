"""The offset index of a segment, ``<base>.index`` (Kafka's ``OffsetIndex``).

    position  bytes  field
    0         4      offset, relative to the segment's base offset
    4         4      position of a batch in the log file

There is an entry every ``index.interval.bytes`` (4 KiB) and no file header; the first batch has none.
Offsets and positions strictly ascend. An entry's offset is the last one of its batch; brokers
before 4.0 write the last one of the whole append that begins there, the oldest its first one.

`OffsetIndex` holds the entries of a file that any broker may have written. If the file breaks these
rules it has no entries, and ``problem`` says why: the log is then walked, with the same answers.
`OffsetIndexFile` is the writer's own file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from storage_core.errors import OffsetsOutOfOrderError
from storage_core.record.batch_header import MAX_OFFSET
from storage_core.segment.file_names import OffsetPosition
from storage_core.segment.index_file import IndexFile, read_index_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from storage_core.filesystem import ReadableFileSystem

    Int64Array: TypeAlias = NDArray[np.int64]


# One layout, for single entries and for arrays: relative offset, position.
_ENTRY: Final = struct.Struct(">ii")
_ENTRY_DTYPE: Final = np.dtype((">i4", 2))
ENTRY_SIZE_BYTES: Final = _ENTRY.size
_NO_VALUES: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class OffsetIndex:
    """The entries of one offset index, or none.

    Args:
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
        """Return an index that answers like an empty one."""
        return cls(base_offset, _NO_VALUES, _NO_VALUES, problem)

    @classmethod
    def read(
        cls, filesystem: ReadableFileSystem, path: str, base_offset: int, log_size_bytes: int
    ) -> OffsetIndex:
        """Read the index of a log file of which ``log_size_bytes`` are of interest."""
        content = read_index_file(filesystem, path, ENTRY_SIZE_BYTES)
        if content.problem is not None:
            return cls.without_entries(base_offset, content.problem)
        entries = decode_offset_entries(content.data)
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
        # A running broker may have appended since the log's size was taken. Entries left from before the
        # log was truncated look the same, and say nothing about the rest of the log.
        count = int(np.searchsorted(entries[:, 1], log_size_bytes))
        return cls(base_offset, entries[:count, 0] + base_offset, np.ascontiguousarray(entries[:count, 1]))

    def __len__(self) -> int:
        return len(self.offsets)

    def entry(self, number: int) -> OffsetPosition:
        """Return the entry with a number."""
        return OffsetPosition(int(self.offsets[number]), int(self.positions[number]))

    def without_last_entry(self) -> OffsetIndex:
        """Return the same index, one entry shorter."""
        return OffsetIndex(self.base_offset, self.offsets[:-1], self.positions[:-1], self.problem)

    @property
    def last_entry(self) -> OffsetPosition | None:
        """The entry with the highest offset."""
        return self.entry(-1) if len(self.offsets) else None

    def number_at_or_below(self, offset: int) -> int:
        """Return the number of the entry with the highest offset up to ``offset``, or -1."""
        return int(self.offsets.searchsorted(offset, side="right")) - 1

    def lookup(self, offset: int) -> OffsetPosition:
        """Return the entry with the highest offset up to ``offset``, or the segment's beginning."""
        number = self.number_at_or_below(offset)
        return self.entry(number) if number >= 0 else OffsetPosition(self.base_offset, 0)


def decode_offset_entries(data: bytes) -> Int64Array:
    """Decode whole entries, whatever they say: relative offsets and positions as two columns."""
    return np.frombuffer(data, _ENTRY_DTYPE).astype(np.int64).reshape(-1, 2)


def offset_entries(offsets: Int64Array, positions_bytes: Int64Array, base_offset: int) -> bytes:
    """Encode entries."""
    entries = np.empty(len(offsets), _ENTRY_DTYPE)
    entries[:, 0] = offsets - base_offset
    entries[:, 1] = positions_bytes
    return entries.tobytes()


class OffsetIndexFile(IndexFile[OffsetPosition]):
    """Offsets and positions, strictly ascending; see `IndexFile`."""

    __slots__ = ()

    entry_size_bytes = ENTRY_SIZE_BYTES

    def parse(self, entry: bytes) -> OffsetPosition:
        """Parse an entry of the file."""
        relative_offset, position_bytes = _ENTRY.unpack(entry)
        return OffsetPosition(self.base_offset + relative_offset, position_bytes)

    @property
    def first_possible_entry(self) -> OffsetPosition:
        """The segment's beginning."""
        return OffsetPosition(self.base_offset, 0)

    @property
    def last_offset(self) -> int:
        """Return the offset of the last entry, or the base offset."""
        return self.last_entry.offset

    def append(self, offset: int, position_bytes: int) -> None:
        """Add an entry.

        Raises:
            OffsetOverflowError: The offset does not fit the segment.
            OffsetsOutOfOrderError: The offset is not above the last one.
            AppendError: The index is full.
        """
        self.require_offset(offset)
        self.require_room(offset)
        if len(self) and offset <= self.last_offset:
            raise OffsetsOutOfOrderError(
                f"Expected an offset above {self.last_offset}, the last one in this index, found {offset}.",
                path=self.path,
                offset=offset,
            )
        entry = _ENTRY.pack(offset - self.base_offset, position_bytes)
        self.write(entry, OffsetPosition(offset, position_bytes))

    def extend(self, offsets: NDArray[np.int64], positions_bytes: NDArray[np.int64]) -> None:
        """Add ascending entries, as many as there is room for: an index may have fewer entries than batches.

        On an error, none of them counts.
        """
        count = min(len(offsets), self.room)
        if count == 0:
            return
        last_entry = OffsetPosition(int(offsets[count - 1]), int(positions_bytes[count - 1]))
        self.write(offset_entries(offsets[:count], positions_bytes[:count], self.base_offset), last_entry)

    def lookup(self, offset: int) -> OffsetPosition:
        """Return the entry with the highest offset up to ``offset``, or the segment's beginning."""
        relative_offset = offset - self.base_offset
        _, entry = self.search(lambda entry: _ENTRY.unpack(entry)[0] <= relative_offset)
        return self.parse(entry) if entry else self.first_possible_entry

    def truncate_to(self, offset: int) -> None:
        """Keep the entries below an offset."""
        relative_offset = offset - self.base_offset
        self.keep_while(lambda entry: _ENTRY.unpack(entry)[0] < relative_offset)
