"""The three indexes of a segment as one: which batches get an entry, and how entries are written."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from storage_core.record.batch_header import NO_TIMESTAMP_MS
from storage_core.segment.file_names import (
    AbortedTransaction,
    TimestampOffset,
    offset_index_file_name,
    time_index_file_name,
    transaction_index_file_name,
)
from storage_core.segment.offset_index import ENTRY_SIZE_BYTES as OFFSET_ENTRY_BYTES
from storage_core.segment.offset_index import OffsetIndexFile, offset_entries
from storage_core.segment.time_index import ENTRY_SIZE_BYTES as TIME_ENTRY_BYTES
from storage_core.segment.time_index import TimeIndexFile, time_entries
from storage_core.segment.transaction_index import TransactionIndexFile

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from storage_core.filesystem import FileSystem
    from storage_core.log_config import LogConfig


_Int64Array: TypeAlias = "npt.NDArray[np.int64]"


@dataclass(frozen=True, slots=True, eq=False)
class IndexEntries:
    """The index entries for batches that are appended back to back, and the state after them.

    Args:
        offsets: Last offset of each batch that gets an entry.
        positions_bytes: Its position in the file.
        timestamps_ms: The largest timestamp up to and including it. The time index only takes new ones.
        timestamp_offsets: Last offset of the first batch that holds this timestamp.
        largest_timestamp: The largest timestamp up to and including the last batch.
        bytes_since_last_entry: Size of the batches from the last one with an entry on.
    """

    offsets: _Int64Array
    positions_bytes: _Int64Array
    timestamps_ms: _Int64Array
    timestamp_offsets: _Int64Array
    largest_timestamp: TimestampOffset
    bytes_since_last_entry: int


def index_entries(
    last_offsets: _Int64Array,
    max_timestamps_ms: npt.NDArray[Any],
    sizes_bytes: _Int64Array,
    position_bytes: int,
    interval_bytes: int,
    *,
    largest_timestamp: TimestampOffset,
    bytes_since_last_entry: int,
) -> IndexEntries:
    """Choose the entries for at least one batch, appended at a position (the rule of Kafka's ``LogSegment.append``).

    A batch gets an entry if more than ``index.interval.bytes`` are between its beginning and that of the
    last batch with an entry. So the first batch of a segment never gets one. The columns have an item for each
    batch; the two keywords are the state after the batches before them.
    """
    ends = np.cumsum(sizes_bytes)
    # Places are counted from the last batch with an entry.
    places = ends - sizes_bytes + bytes_since_last_entry
    numbers, reference = _chosen(places, sizes_bytes, interval_bytes)
    # The largest timestamp so far precedes those of the batches.
    timestamps_ms = np.concatenate([[largest_timestamp.timestamp_ms], max_timestamps_ms.astype(np.int64)])
    offsets = np.concatenate([[largest_timestamp.offset], last_offsets])
    running_ms = np.maximum.accumulate(timestamps_ms)
    holders = np.zeros(len(running_ms), np.int64)
    holders[1:] = np.where(running_ms[1:] > running_ms[:-1], np.arange(1, len(running_ms)), 0)
    holders = np.maximum.accumulate(holders)
    last_holder = holders[-1]
    holders = holders[1:][numbers]
    return IndexEntries(
        last_offsets[numbers],
        places[numbers] + (position_bytes - bytes_since_last_entry),
        timestamps_ms[holders],
        offsets[holders],
        TimestampOffset(int(timestamps_ms[last_holder]), int(offsets[last_holder])),
        bytes_since_last_entry + int(ends[-1]) - reference,
    )


def _chosen(places: _Int64Array, sizes_bytes: _Int64Array, interval_bytes: int) -> tuple[_Int64Array, int]:
    """Return the numbers of the batches that get an entry, and the position of the last of them."""
    if int(sizes_bytes.min()) > interval_bytes:
        # Every large batch gets one, except a first one right after the last entry.
        chosen = np.arange(0 if places[0] > interval_bytes else 1, len(places))
        return chosen, int(places[-1]) if len(chosen) else 0
    listed = places.tolist()
    numbers: list[int] = []
    number = reference = 0
    while (number := bisect_right(listed, reference + interval_bytes, lo=number)) < len(listed):
        numbers.append(number)
        reference = listed[number]
    return np.array(numbers, np.int64), reference


class IndexBuilder:
    """Encodes index entries for batches that are written while no log is open.

    The bytes are those that `LogSegment` would write after indexes of these sizes and this last time.
    """

    def __init__(
        self,
        base_offset: int,
        config: LogConfig,
        *,
        offset_index_bytes: int = 0,
        time_index_bytes: int = 0,
        last_time: TimestampOffset | None = None,
    ) -> None:
        self._base_offset = base_offset
        self._interval_bytes = config.index_interval_bytes
        self._offset_room = (config.segment_index_bytes - offset_index_bytes) // OFFSET_ENTRY_BYTES
        # One entry is reserved for closing the segment.
        self._time_room = (config.segment_index_bytes - time_index_bytes) // TIME_ENTRY_BYTES - 1
        self._last_time = self._largest = last_time or TimestampOffset(NO_TIMESTAMP_MS, base_offset)
        self._bytes_since_last_entry = 0

    @property
    def is_full(self) -> bool:
        """Return True if an index has no room for another entry, so that the segment rolls."""
        return self._offset_room <= 0 or self._time_room <= 0

    def add(
        self,
        last_offsets: npt.NDArray[np.int64],
        max_timestamps_ms: npt.NDArray[Any],
        sizes_bytes: npt.NDArray[np.int64],
        position_bytes: int,
    ) -> tuple[bytes, bytes]:
        """Return the entries of both indexes for the next batches, as `index_entries` chooses them."""
        entries = index_entries(
            last_offsets,
            max_timestamps_ms,
            sizes_bytes,
            position_bytes,
            self._interval_bytes,
            largest_timestamp=self._largest,
            bytes_since_last_entry=self._bytes_since_last_entry,
        )
        self._largest = entries.largest_timestamp
        self._bytes_since_last_entry = entries.bytes_since_last_entry
        return self._offset_entries(entries), self._time_entries(entries)

    def last_entry(self) -> bytes:
        """Return the last entry of the time index, that of the largest timestamp, or nothing if it was added before."""
        if self._largest.timestamp_ms <= self._last_time.timestamp_ms:
            return b""
        self._last_time = self._largest
        return time_entries(
            np.array([self._largest.timestamp_ms]), np.array([self._largest.offset]), self._base_offset
        )

    def _offset_entries(self, entries: IndexEntries) -> bytes:
        count = min(len(entries.offsets), max(0, self._offset_room))
        if not count:
            return b""
        self._offset_room -= count
        return offset_entries(entries.offsets[:count], entries.positions_bytes[:count], self._base_offset)

    def _time_entries(self, entries: IndexEntries) -> bytes:
        is_new = np.diff(entries.timestamps_ms, prepend=self._last_time.timestamp_ms) > 0
        count = min(int(np.count_nonzero(is_new)), max(0, self._time_room))
        if not count:
            return b""
        timestamps_ms = entries.timestamps_ms[is_new][:count]
        offsets = entries.timestamp_offsets[is_new][:count]
        self._time_room -= count
        self._last_time = TimestampOffset(int(timestamps_ms[-1]), int(offsets[-1]))
        return time_entries(timestamps_ms, offsets, self._base_offset)


class SegmentIndexes:
    """The offset index, the time index and the index of aborted transactions of a segment.

    The first two are created by the first append, the third by the first abort.
    """

    __slots__ = ("_base_offset", "offsets", "times", "transactions")

    def __init__(
        self, filesystem: FileSystem, directory: str, base_offset: int, suffix: str, max_size_bytes: int
    ) -> None:
        self._base_offset = base_offset
        offset_path, time_path, transaction_path = self._paths(directory, suffix)
        self.offsets = OffsetIndexFile(filesystem, offset_path, base_offset, max_size_bytes)
        self.times = TimeIndexFile(filesystem, time_path, base_offset, max_size_bytes)
        self.transactions = TransactionIndexFile(filesystem, transaction_path, base_offset)

    @property
    def is_open(self) -> bool:
        """Return True if the offset index or the time index is open for writing."""
        return self.offsets.is_open or self.times.is_open

    def open(self) -> None:
        """Open offset and time index for writing. Create them, at their full size, if they do not exist."""
        self.times.open()
        self.offsets.open()

    def add_one(self, offset: int, position_bytes: int, largest_timestamp: TimestampOffset) -> None:
        """Add the entries for one batch if there is room for them. This raises what `add` raises."""
        count = len(self.offsets)
        if self.offsets.room:
            self.offsets.append(offset, position_bytes)
        try:
            if self.times.room:
                self.times.maybe_append(largest_timestamp.timestamp_ms, largest_timestamp.offset)
        except BaseException:
            self.offsets.forget_after(count)
            raise

    def add(self, entries: IndexEntries) -> None:
        """Add entries while there is room for them.

        Raises:
            StorageError: They could not be written. None of them counts.
        """
        count = len(self.offsets)
        self.offsets.extend(entries.offsets, entries.positions_bytes)
        try:
            self.times.extend(entries.timestamps_ms, entries.timestamp_offsets)
        except BaseException:
            self.offsets.forget_after(count)
            raise

    def rebuild(self, parts: Iterable[IndexEntries], aborted: Iterable[AbortedTransaction]) -> None:
        """Replace all entries, with as many as a file of full size holds."""
        # The transaction index comes first, and is flushed: readers trust it if an offset index exists, and without an
        # offset index the segment is recovered.
        self.transactions.replace(aborted)
        self.offsets.reset()
        self.times.reset()
        for entries in parts:
            self.add(entries)

    def truncate_to(self, offset: int) -> None:
        """Keep the entries below an offset, and restore the full size of offset and time index."""
        self.offsets.truncate_to(offset)
        self.times.truncate_to(offset)
        self.transactions.truncate_to(offset)
        self.resize()

    def resize(self, *, on_write: bool = False) -> None:
        """Give offset and time index their full size, at once or when they are next written to."""
        for index in (self.offsets, self.times):
            if on_write:
                index.resize_on_write()
            else:
                index.resize()

    def trim(self, largest_timestamp: TimestampOffset | None) -> bool:
        """Add the last entry of the time index, and cut offset and time index to their entries.

        The segment's largest timestamp is not known if nothing was appended.

        Returns:
            Whether that changed a file.
        """
        count = len(self.times)
        if largest_timestamp is not None:
            self.times.maybe_append(
                largest_timestamp.timestamp_ms, largest_timestamp.offset, skip_full_check=True
            )
        is_changed = len(self.times) > count
        is_changed |= self.offsets.trim()
        is_changed |= self.times.trim()
        return is_changed

    def flush(self) -> None:
        """Flush the files to disk. Offset and time index are created if they do not exist."""
        self.offsets.flush()
        self.times.flush()
        self.transactions.flush()

    def close(self) -> None:
        """Close the files without changing them."""
        self.offsets.close()
        self.times.close()
        self.transactions.close()

    def rename(self, directory: str, suffix: str) -> None:
        """Rename the files that exist."""
        offset_path, time_path, transaction_path = self._paths(directory, suffix)
        if not suffix:
            # A reader that finds the offset index must also find the transaction index.
            self.transactions.rename(transaction_path)
        self.offsets.rename(offset_path)
        self.times.rename(time_path)
        if suffix:
            self.transactions.rename(transaction_path)

    def delete(self) -> None:
        """Delete the files that exist."""
        self.offsets.delete()
        self.times.delete()
        self.transactions.delete()

    def _paths(self, directory: str, suffix: str) -> tuple[str, str, str]:
        return (
            f"{directory}/{offset_index_file_name(self._base_offset)}{suffix}",
            f"{directory}/{time_index_file_name(self._base_offset)}{suffix}",
            f"{directory}/{transaction_index_file_name(self._base_offset)}{suffix}",
        )
