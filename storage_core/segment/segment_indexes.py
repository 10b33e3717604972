"""The three indexes that are written beside one log file, as one thing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_core.segment.file_names import (
    offset_index_file_name,
    time_index_file_name,
    transaction_index_file_name,
)
from storage_core.segment.offset_index_file import OffsetIndexFile
from storage_core.segment.time_index_file import TimeIndexFile
from storage_core.segment.transaction_index_file import TransactionIndexFile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from storage_core.filesystem import FileSystem
    from storage_core.segment.index_entries import IndexEntries
    from storage_core.segment.values import AbortedTransaction, TimestampOffset

__all__ = ["SegmentIndexes"]


class SegmentIndexes:
    """The offset index, the time index and the index of aborted transactions of a segment.

    The first two appear with the first append, the third with the first abort.
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
        """Whether one of the first two is open for writing."""
        return self.offsets.file.is_open or self.times.file.is_open

    def open(self) -> None:
        """Open the first two for writing; make them, at their full size, if they do not exist."""
        self.times.file.open()
        self.offsets.file.open()

    def add_one(self, offset: int, position_bytes: int, largest_timestamp: TimestampOffset) -> None:
        """Add the entries for one batch where there is room for them; raises as `add` does."""
        count = len(self.offsets)
        if self.offsets.room:
            self.offsets.append(offset, position_bytes)
        try:
            if self.times.room:
                self.times.maybe_append(largest_timestamp.timestamp_ms, largest_timestamp.offset)
        except BaseException:
            self.offsets.forget_behind(count)
            raise

    def add(self, entries: IndexEntries) -> None:
        """Add entries where there is room for them.

        Raises:
            StorageError: They could not be written; then none of them counts.
        """
        count = len(self.offsets)
        self.offsets.extend(entries.offsets, entries.positions_bytes)
        try:
            self.times.extend(entries.timestamps_ms, entries.timestamp_offsets)
        except BaseException:
            self.offsets.forget_behind(count)
            raise

    def rebuild(self, parts: Iterable[IndexEntries], aborted: Iterable[AbortedTransaction]) -> None:
        """Put other entries in the place of all that there are, as many as a file of full size holds."""
        # First, and for good: beside an offset index it is believed, and where there is none its segment is recovered.
        self.transactions.replace(aborted)
        self.offsets.reset()
        self.times.reset()
        for entries in parts:
            self.add(entries)

    def truncate_to(self, offset: int) -> None:
        """Keep what names offsets below another one, and make the first two their full size again."""
        self.offsets.truncate_to(offset)
        self.times.truncate_to(offset)
        self.transactions.truncate_to(offset)
        self.resize()

    def resize(self, *, on_write: bool = False) -> None:
        """Make the first two their full size, at once or when they are next written to."""
        for file in (self.offsets.file, self.times.file):
            if on_write:
                file.resize_on_write()
            else:
                file.resize()

    def trim(self, largest_timestamp: TimestampOffset | None) -> bool:
        """Add the last entry of the time index, and cut the first two to their entries; whether that changed a file.

        Args:
            largest_timestamp: The segment's largest timestamp; None if it is not known, and so is none of its
                batches new.
        """
        count = len(self.times)
        if largest_timestamp is not None:
            self.times.maybe_append(
                largest_timestamp.timestamp_ms, largest_timestamp.offset, skip_full_check=True
            )
        is_changed = len(self.times) > count
        is_changed |= self.offsets.file.trim()
        is_changed |= self.times.file.trim()
        return is_changed

    def flush(self) -> None:
        """Have the operating system write the files to the disk. The first two are made if they do not exist."""
        self.offsets.file.flush()
        self.times.file.flush()
        self.transactions.flush()

    def close(self) -> None:
        """Close the files without changing them."""
        self.offsets.file.close()
        self.times.file.close()
        self.transactions.close()

    def rename(self, directory: str, suffix: str) -> None:
        """Give the files other names; those that do not exist do not appear."""
        offset_path, time_path, transaction_path = self._paths(directory, suffix)
        if not suffix:
            # Beside an offset index, a reader would believe that there is no transaction index.
            self.transactions.rename(transaction_path)
        self.offsets.file.rename(offset_path)
        self.times.file.rename(time_path)
        if suffix:
            self.transactions.rename(transaction_path)

    def delete(self) -> None:
        """Delete the files that exist."""
        self.offsets.file.delete()
        self.times.file.delete()
        self.transactions.delete()

    def _paths(self, directory: str, suffix: str) -> tuple[str, str, str]:
        return (
            f"{directory}/{offset_index_file_name(self._base_offset)}{suffix}",
            f"{directory}/{time_index_file_name(self._base_offset)}{suffix}",
            f"{directory}/{transaction_index_file_name(self._base_offset)}{suffix}",
        )
