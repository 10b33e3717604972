"""The offset index of a segment, ``<base>.index`` (Kafka's ``OffsetIndex``).

    position  bytes  field
    0         4      offset, relative to the segment's base offset
    4         4      position of a batch in the log file

An entry every ``index.interval.bytes`` (4 KiB), no file header; the first batch has none.
Offsets and positions strictly ascend. An entry's offset is the last one of its batch; brokers
before 4.0 name the last one of the whole append that begins there, the oldest its first one.

A file that breaks these rules yields an index without entries whose ``problem`` says why: the
log is then walked, with the same answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from storage_core.record.batch_header import MAX_OFFSET
from storage_core.segment._index_file import read_index_file
from storage_core.segment.values import OffsetPosition

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from storage_core.filesystem import FileSystem

    Int64Array: TypeAlias = NDArray[np.int64]

__all__ = ["ENTRY_SIZE_BYTES", "OffsetIndex", "offset_entries"]

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
