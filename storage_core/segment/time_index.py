"""The time index of a segment, ``<base>.timeindex`` (Kafka's ``TimeIndex``).

    position  bytes  field
    0         8      timestamp (ms)
    8         4      offset, relative to the segment's base offset

An entry says: up to and including the batch that holds this offset, the segment's largest
timestamp is this one. Timestamps strictly ascend, offsets do not descend. The entry with the
segment's largest timestamp is written only when the segment is closed. Data without timestamps
has no entries.

The offset is the last one of the batch that holds the timestamp; brokers before 3.0 may name
the very record inside the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from storage_core.record.batch_header import MAX_OFFSET
from storage_core.record.legacy_message import NO_TIMESTAMP_MS
from storage_core.segment._index_file import read_index_file
from storage_core.segment.values import TimestampOffset

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from storage_core.filesystem import FileSystem

    Int64Array: TypeAlias = NDArray[np.int64]

__all__ = ["ENTRY_SIZE_BYTES", "NO_TIMESTAMP_MS", "TimeIndex", "parse_time_entry", "time_entries"]

ENTRY_SIZE_BYTES: Final = 12

_ENTRY_DTYPE: Final = np.dtype([("timestamp_ms", ">i8"), ("relative_offset", ">i4")])
_NO_VALUES: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class TimeIndex:
    """The entries of one time index, or none.

    Args:
        base_offset: The segment's base offset.
        timestamps_ms: Timestamp of each entry, strictly ascending.
        offsets: Absolute offset of each entry, not descending.
        problem: Why the file cannot be used; None if it can, or if it is just empty.
    """

    base_offset: int
    timestamps_ms: Int64Array
    offsets: Int64Array
    problem: str | None = None

    @classmethod
    def without_entries(cls, base_offset: int, problem: str | None) -> TimeIndex:
        """An index that answers like an empty one."""
        return cls(base_offset, _NO_VALUES, _NO_VALUES, problem)

    @classmethod
    def read(cls, filesystem: FileSystem, path: str, base_offset: int) -> TimeIndex:
        """Read the index. A file that is not usable gives one without entries, and says why in ``problem``."""
        content = read_index_file(filesystem, path, ENTRY_SIZE_BYTES)
        if content.problem is not None:
            return cls.without_entries(base_offset, content.problem)
        data = content.data
        if not data and content.file_size_bytes == ENTRY_SIZE_BYTES:
            # Twelve zero bytes and no more: timestamp 0 at the base offset. In a longer file the
            # same bytes are the preallocated rest.
            data = bytes(ENTRY_SIZE_BYTES)
        entries = np.frombuffer(data, _ENTRY_DTYPE)
        timestamps_ms = entries["timestamp_ms"].astype(np.int64)
        relative_offsets = entries["relative_offset"].astype(np.int64)
        if len(entries) and (timestamps_ms[0] < 0 or relative_offsets[0] < 0):
            return cls.without_entries(base_offset, "its first entry is negative")
        # Compared, not subtracted: the difference of two garbled timestamps may overflow.
        if not (
            (timestamps_ms[1:] > timestamps_ms[:-1]).all()
            and (relative_offsets[1:] >= relative_offsets[:-1]).all()
        ):
            return cls.without_entries(base_offset, "its entries do not ascend")
        if len(entries) and base_offset + int(relative_offsets[-1]) > MAX_OFFSET:
            return cls.without_entries(base_offset, "its last offset is beyond the largest that Kafka has")
        return cls(base_offset, timestamps_ms, relative_offsets + base_offset)

    def __len__(self) -> int:
        return len(self.offsets)

    def entry(self, number: int) -> TimestampOffset:
        """The entry with this number."""
        return TimestampOffset(int(self.timestamps_ms[number]), int(self.offsets[number]))

    @property
    def last_entry(self) -> TimestampOffset | None:
        """The entry with the largest timestamp."""
        return self.entry(-1) if len(self.offsets) else None

    def number_at_or_below(self, timestamp_ms: int) -> int:
        """Number of the entry with the largest timestamp up to ``timestamp_ms``; -1 if none."""
        return int(self.timestamps_ms.searchsorted(timestamp_ms, side="right")) - 1

    def lookup(self, timestamp_ms: int) -> TimestampOffset:
        """The entry with the largest timestamp up to ``timestamp_ms``; (-1, base offset) if none."""
        number = self.number_at_or_below(timestamp_ms)
        return self.entry(number) if number >= 0 else TimestampOffset(NO_TIMESTAMP_MS, self.base_offset)


def time_entries(timestamps_ms: Int64Array, offsets: Int64Array, base_offset: int) -> bytes:
    """Entries as the file has them."""
    entries = np.empty(len(offsets), _ENTRY_DTYPE)
    entries["timestamp_ms"] = timestamps_ms
    entries["relative_offset"] = offsets - base_offset
    return entries.tobytes()


def parse_time_entry(entry: bytes, base_offset: int) -> TimestampOffset:
    """One entry of the file."""
    timestamp_ms, relative_offset = np.frombuffer(entry, _ENTRY_DTYPE)[0].item()
    return TimestampOffset(timestamp_ms, base_offset + relative_offset)
