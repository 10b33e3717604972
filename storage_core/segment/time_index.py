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

`TimeIndex` holds the entries of a file that any broker may have written; `TimeIndexFile` is the
writer's own file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from storage_core.errors import InvalidTimestampError, OffsetsOutOfOrderError
from storage_core.record.batch_header import MAX_OFFSET, NO_TIMESTAMP_MS
from storage_core.segment.file_names import TimestampOffset
from storage_core.segment.index_file import IndexFile, read_index_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from storage_core.filesystem import ReadableFileSystem

    Int64Array: TypeAlias = NDArray[np.int64]


# One layout, for single entries and for arrays.
_ENTRY: Final = struct.Struct(">qi")
_ENTRY_DTYPE: Final = np.dtype([("timestamp_ms", ">i8"), ("relative_offset", ">i4")])
ENTRY_SIZE_BYTES: Final = _ENTRY.size
_NO_VALUES: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class TimeIndex:
    """The entries of one time index, or none.

    Args:
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
        """Return an index that answers like an empty one."""
        return cls(base_offset, _NO_VALUES, _NO_VALUES, problem)

    @classmethod
    def read(cls, filesystem: ReadableFileSystem, path: str, base_offset: int) -> TimeIndex:
        """Read the index. If the file cannot be used, the index has no entries, and ``problem`` says why."""
        content = read_index_file(filesystem, path, ENTRY_SIZE_BYTES)
        if content.problem is not None:
            return cls.without_entries(base_offset, content.problem)
        data = content.data
        if not data and content.file_size_bytes == ENTRY_SIZE_BYTES:
            # Twelve zero bytes and no more: timestamp 0 at the base offset. In a longer file the
            # same bytes are preallocated space.
            data = bytes(ENTRY_SIZE_BYTES)
        timestamps_ms, relative_offsets = decode_time_entries(data)
        if len(timestamps_ms) and (timestamps_ms[0] < 0 or relative_offsets[0] < 0):
            return cls.without_entries(base_offset, "its first entry is negative")
        # Compared, not subtracted: the difference of two garbled timestamps may overflow.
        if not (
            (timestamps_ms[1:] > timestamps_ms[:-1]).all()
            and (relative_offsets[1:] >= relative_offsets[:-1]).all()
        ):
            return cls.without_entries(base_offset, "its entries do not ascend")
        if len(timestamps_ms) and base_offset + int(relative_offsets[-1]) > MAX_OFFSET:
            return cls.without_entries(base_offset, "its last offset is beyond the largest that Kafka has")
        return cls(base_offset, timestamps_ms, relative_offsets + base_offset)

    def __len__(self) -> int:
        return len(self.offsets)

    def entry(self, number: int) -> TimestampOffset:
        """Return the entry with a number."""
        return TimestampOffset(int(self.timestamps_ms[number]), int(self.offsets[number]))

    @property
    def last_entry(self) -> TimestampOffset | None:
        """The entry with the largest timestamp."""
        return self.entry(-1) if len(self.offsets) else None

    def lookup(self, timestamp_ms: int) -> TimestampOffset:
        """Return the entry with the largest timestamp up to ``timestamp_ms``, or (-1, base offset)."""
        number = int(self.timestamps_ms.searchsorted(timestamp_ms, side="right")) - 1
        return self.entry(number) if number >= 0 else TimestampOffset(NO_TIMESTAMP_MS, self.base_offset)


def decode_time_entries(data: bytes) -> tuple[Int64Array, Int64Array]:
    """Decode whole entries, whatever they say: timestamps and relative offsets."""
    entries = np.frombuffer(data, _ENTRY_DTYPE)
    return entries["timestamp_ms"].astype(np.int64), entries["relative_offset"].astype(np.int64)


def time_entries(timestamps_ms: Int64Array, offsets: Int64Array, base_offset: int) -> bytes:
    """Encode entries."""
    entries = np.empty(len(offsets), _ENTRY_DTYPE)
    entries["timestamp_ms"] = timestamps_ms
    entries["relative_offset"] = offsets - base_offset
    return entries.tobytes()


def parse_time_entry(entry: bytes, base_offset: int) -> TimestampOffset:
    """Decode one entry."""
    timestamp_ms, relative_offset = _ENTRY.unpack(entry)
    return TimestampOffset(timestamp_ms, base_offset + relative_offset)


class TimeIndexFile(IndexFile[TimestampOffset]):
    """Timestamps, strictly ascending, and offsets; see `IndexFile`. One entry is reserved for closing the segment."""

    __slots__ = ()

    entry_size_bytes = ENTRY_SIZE_BYTES
    is_zero_an_entry = True
    reserved_entries = 1

    def parse(self, entry: bytes) -> TimestampOffset:
        """Parse an entry of the file."""
        return parse_time_entry(entry, self.base_offset)

    @property
    def first_possible_entry(self) -> TimestampOffset:
        """No timestamp, at the base offset."""
        return TimestampOffset(NO_TIMESTAMP_MS, self.base_offset)

    def maybe_append(self, timestamp_ms: int, offset: int, *, skip_full_check: bool = False) -> None:
        """Add the largest timestamp so far, unless it is the last one already, in the reserved entry if need be.

        The offset is the last one of the first batch that holds the timestamp.

        Raises:
            OffsetsOutOfOrderError: The offset is below the last one.
            InvalidTimestampError: The timestamp is below the last one.
            OffsetOverflowError: The offset does not fit the segment.
            AppendError: The index is full.
        """
        if not skip_full_check:
            self.require_room(offset)
        last = self.last_entry
        if len(self):
            self._require_order(timestamp_ms, offset, last)
        if timestamp_ms <= last.timestamp_ms:
            return
        self.require_offset(offset)
        self.write(
            _ENTRY.pack(timestamp_ms, offset - self.base_offset), TimestampOffset(timestamp_ms, offset)
        )

    def _require_order(self, timestamp_ms: int, offset: int, last: TimestampOffset) -> None:
        if offset < last.offset:
            raise OffsetsOutOfOrderError(
                f"Expected an offset from {last.offset} on, the last one in this index, found {offset}.",
                path=self.path,
                offset=offset,
            )
        if timestamp_ms < last.timestamp_ms:
            raise InvalidTimestampError(
                f"Expected a timestamp from {last.timestamp_ms} on, the last one in this index, found "
                f"{timestamp_ms}.",
                path=self.path,
                offset=offset,
            )

    def extend(self, timestamps_ms: NDArray[np.int64], offsets: NDArray[np.int64]) -> None:
        """Add the entries with a new timestamp, as many as there is room for. Neither column may descend.

        On an error, none of them counts.
        """
        is_new = np.diff(timestamps_ms, prepend=self.last_entry.timestamp_ms) > 0
        timestamps_ms, offsets = timestamps_ms[is_new][: self.room], offsets[is_new][: self.room]
        if not len(offsets):
            return
        last_entry = TimestampOffset(int(timestamps_ms[-1]), int(offsets[-1]))
        self.write(time_entries(timestamps_ms, offsets, self.base_offset), last_entry)

    def truncate_to(self, offset: int) -> None:
        """Keep the entries whose offset is below another one."""
        relative_offset = offset - self.base_offset
        self.keep_while(lambda entry: _ENTRY.unpack(entry)[1] < relative_offset)
