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

The time index that is written beside a log file (Kafka's ``TimeIndex``).

`storage_core.segment.time_index` has the layout, and reads what others have written.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from storage_core.errors import AppendError, CorruptIndexError, InvalidTimestampError, OffsetsOutOfOrderError
from storage_core.record.batch_header import MAX_OFFSET, NO_TIMESTAMP_MS
from storage_core.segment.file_names import TimestampOffset
from storage_core.segment.index_file import EntryFile, read_index_file
from storage_core.segment.offset_index import LARGEST_RELATIVE_OFFSET, offset_overflow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from storage_core.filesystem import FileSystem

    Int64Array: TypeAlias = NDArray[np.int64]

__all__ = [
    "ENTRY_SIZE_BYTES",
    "NO_TIMESTAMP_MS",
    "TimeIndex",
    "TimeIndexFile",
    "parse_time_entry",
    "time_entries",
]


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


_ENTRY: Final = struct.Struct(">qi")


class TimeIndexFile:
    """Timestamps, strictly ascending, and offsets. One writer, any number of readers.

    Args:
        filesystem: Through which the file is read and written.
        path: The file. It is made when it is first written to.
        base_offset: The segment's base offset.
        max_size_bytes: ``segment.index.bytes``.
    """

    __slots__ = ("_last_entry", "base_offset", "file")

    def __init__(self, filesystem: FileSystem, path: str, base_offset: int, max_size_bytes: int) -> None:
        self.base_offset = base_offset
        self.file = EntryFile(filesystem, path, ENTRY_SIZE_BYTES, max_size_bytes, is_zero_an_entry=True)
        self._last_entry: TimestampOffset | None = None

    def __len__(self) -> int:
        return self.file.count

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another entry but the last one, which is added on closing."""
        return self.room == 0

    @property
    def room(self) -> int:
        """How many more entries there is room for, the one aside that is added on closing."""
        return max(0, self.file.capacity - 1 - self.file.count)

    @property
    def last_entry(self) -> TimestampOffset:
        """The entry with the largest timestamp; (-1, base offset) if there is none."""
        if self._last_entry is None:
            entry = self.file.read_last()
            self._last_entry = self._parse(entry) if entry else self._nothing
        return self._last_entry

    def maybe_append(self, timestamp_ms: int, offset: int, *, skip_full_check: bool = False) -> None:
        """Add an entry, unless its timestamp is the last one already.

        Args:
            timestamp_ms: The largest timestamp so far.
            offset: Last offset of the first batch that holds it.
            skip_full_check: Whether the slot may be taken that is kept for the last entry.

        Raises:
            OffsetsOutOfOrderError: The offset is below the last one.
            InvalidTimestampError: The timestamp is below the last one.
            OffsetOverflowError: The offset does not fit the segment.
            AppendError: The index is full.
        """
        if not skip_full_check and self.is_full:
            raise AppendError(
                f"Expected room for another entry, found a full index of {len(self)} entries. Roll the segment, "
                "or raise segment.index.bytes.",
                path=self.file.path,
                offset=offset,
            )
        last = self.last_entry
        if len(self):
            if offset < last.offset:
                raise OffsetsOutOfOrderError(
                    f"Expected an offset from {last.offset} on, the last one in this index, found {offset}.",
                    path=self.file.path,
                    offset=offset,
                )
            if timestamp_ms < last.timestamp_ms:
                raise InvalidTimestampError(
                    f"Expected a timestamp from {last.timestamp_ms} on, the last one in this index, found "
                    f"{timestamp_ms}.",
                    path=self.file.path,
                    offset=offset,
                )
        if timestamp_ms <= last.timestamp_ms:
            return
        if not 0 <= offset - self.base_offset <= LARGEST_RELATIVE_OFFSET:
            raise offset_overflow(self.file.path, self.base_offset, offset)
        self.file.write(_ENTRY.pack(timestamp_ms, offset - self.base_offset))
        self._last_entry = TimestampOffset(timestamp_ms, offset)

    def extend(self, timestamps_ms: NDArray[np.int64], offsets: NDArray[np.int64]) -> None:
        """Add entries that do not descend and can be written: those with a new timestamp, as many as there is room for.

        With an error, none of them counts.
        """
        is_new = np.diff(timestamps_ms, prepend=self.last_entry.timestamp_ms) > 0
        timestamps_ms, offsets = timestamps_ms[is_new][: self.room], offsets[is_new][: self.room]
        if not len(offsets):
            return
        self.file.write(time_entries(timestamps_ms, offsets, self.base_offset))
        self._last_entry = TimestampOffset(int(timestamps_ms[-1]), int(offsets[-1]))

    def entry(self, number: int) -> TimestampOffset:
        """The entry with this number.

        Raises:
            IndexError: There are not so many.
        """
        if not 0 <= number < len(self):
            raise IndexError(
                f"Expected an entry number below {len(self)}, found {number}. [{self.file.path}]"
            )
        return self._parse(self.file.read(number))

    def lookup(self, timestamp_ms: int) -> TimestampOffset:
        """The entry with the largest timestamp up to ``timestamp_ms``; (-1, base offset) if none."""
        _, entry = self.file.search(lambda entry: _ENTRY.unpack(entry)[0] <= timestamp_ms)
        return self._parse(entry) if entry else self._nothing

    def truncate_to(self, offset: int) -> None:
        """Keep the entries whose offset is below another one."""
        relative = offset - self.base_offset
        number, _ = self.file.search(lambda entry: _ENTRY.unpack(entry)[1] < relative)
        self._keep(number + 1)

    def truncate(self) -> None:
        """Drop all entries."""
        self._keep(0)

    def reset(self) -> None:
        """Drop all entries and what was preallocated; the file then grows as they are added."""
        self._last_entry = None
        self.file.reset()

    def check(self) -> None:
        """Check the little that a broker checks.

        Raises:
            CorruptIndexError: The last timestamp lies below the first one, the last offset below the base
                offset, or the size is no whole number of entries.
        """
        self.file.check_size()
        if not len(self):
            return
        first, last = self.entry(0), self.last_entry
        if last.timestamp_ms < first.timestamp_ms or last.offset < self.base_offset:
            raise CorruptIndexError(
                f"Expected timestamps from {first.timestamp_ms} and offsets from {self.base_offset} on, found a "
                f"last entry with timestamp {last.timestamp_ms} and offset {last.offset}. Delete the index: it "
                "is built again from the log.",
                path=self.file.path,
                offset=last.offset,
            )

    def forget_after(self, count: int) -> None:
        """Take back entries that were added last, because the append that they belong to has failed."""
        self.file.forget_after(count)
        self._last_entry = None

    @property
    def _nothing(self) -> TimestampOffset:
        return TimestampOffset(NO_TIMESTAMP_MS, self.base_offset)

    def _keep(self, count: int) -> None:
        if count < len(self):
            self._last_entry = None
            self.file.truncate(count)

    def _parse(self, entry: bytes) -> TimestampOffset:
        return parse_time_entry(entry, self.base_offset)
