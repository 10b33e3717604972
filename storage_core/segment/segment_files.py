"""The files of one segment: the log file, and its indexes, each read at first use.

As with Kafka's ``LazyIndex``, nothing is opened or examined before it is needed, so that a
partition of 100,000 segments is listed by its file names alone.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from storage_core.errors import DataLossError
from storage_core.segment.batch_walk import PAGE_SIZE_BYTES
from storage_core.segment.file_names import (
    log_file_name,
    offset_index_file_name,
    time_index_file_name,
    transaction_index_file_name,
)
from storage_core.segment.offset_index import ENTRY_SIZE_BYTES as OFFSET_ENTRY_BYTES
from storage_core.segment.offset_index import OffsetIndex
from storage_core.segment.time_index import TimeIndex
from storage_core.segment.transaction_index import TransactionIndex

if TYPE_CHECKING:
    from collections.abc import Collection

    from storage_core.filesystem import FileStatus, FileSystem, OpenFile

__all__ = ["DEFAULT_MAX_BATCH_BYTES", "SegmentFiles"]

DEFAULT_MAX_BATCH_BYTES: Final = 64 * 1024 * 1024
"""The largest batch that is read, compressed or not."""

_LOGGER: Final = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class SegmentFiles:
    """The files of one segment.

    Args:
        filesystem: Through which the files are read.
        directory: Path of the partition's directory.
        base_offset: Lower bound of the offsets inside: the number in the file names.
        file_names: All names in the directory, so that absent indexes need no look; None if
            the directory was not listed.
        use_indexes: False walks every header instead.
        suffix: What follows the file names: ``.deleted`` for a segment that awaits its removal.
        max_batch_bytes: The largest batch that is read, compressed or not.
        known_status: What ``stat`` said of the log file, if that is known. Otherwise it is asked
            at first need. The segment ends at that size ever after.
        end_offset: The segment holds only offsets below it: the next segment's base offset, or the log
            end offset; None if that is not known.
        skip_damage: Whether look-ups and walks go on behind damage; otherwise it is an error.
    """

    filesystem: FileSystem
    directory: str
    base_offset: int
    file_names: Collection[str] | None = None
    use_indexes: bool = True
    suffix: str = ""
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
    known_status: FileStatus | None = field(default=None, repr=False)
    end_offset: int | None = None
    skip_damage: bool = False
    _offset_index: OffsetIndex | None = field(default=None, init=False, repr=False)
    _time_index: TimeIndex | None = field(default=None, init=False, repr=False)
    _transaction_index: TransactionIndex | None = field(default=None, init=False, repr=False)

    @property
    def log_path(self) -> str:
        """Path of the file that holds the batches."""
        return self._path(log_file_name(self.base_offset))

    @property
    def status(self) -> FileStatus:
        """What ``stat`` said of the log file when it was first asked.

        Raises:
            FileNotFoundError: The file is gone.
        """
        if self.known_status is None:
            status = self.filesystem.status(self.log_path)
            if status is None:
                # Fails as every other access to the file does.
                with self.filesystem.open(self.log_path) as opened:
                    status = opened.status
            self.known_status = status
        return self.known_status

    @property
    def size_bytes(self) -> int:
        """Size of the log file, a preallocated tail included."""
        return self.status.size_bytes

    @property
    def inode(self) -> int:
        """Inode of the log file: a compacted file has another."""
        return self.status.inode

    @property
    def modified_ms(self) -> int:
        """Modification time of the log file."""
        return self.status.modified_ms

    @property
    def is_one_page(self) -> bool:
        """Whether one read shows the whole log file: then its indexes are not worth reading."""
        return self.size_bytes <= PAGE_SIZE_BYTES

    def open_log(self) -> OpenFile:
        """Open the log file.

        Raises:
            FileNotFoundError: The file is gone.
            DataLossError: The path names another file than before, a compacted one.
        """
        opened = self.filesystem.open(self.log_path)
        if self.known_status is None:
            self.known_status = opened.status
        elif (opened.status.inode, opened.status.device) != (
            self.known_status.inode,
            self.known_status.device,
        ):
            opened.close()
            raise DataLossError(
                "Expected the file that was listed, found another one under its name: a cleaner has replaced "
                "it. List the directory again.",
                path=self.log_path,
                offset=self.base_offset,
            )
        return opened

    @property
    def offset_index(self) -> OffsetIndex:
        """The offset index, read at first use."""
        if self._offset_index is None:
            path = self._index_path(offset_index_file_name(self.base_offset))
            if path is None:
                self._offset_index = OffsetIndex.without_entries(self.base_offset, self._why_no_index())
            else:
                self._offset_index = OffsetIndex.read(
                    self.filesystem, path, self.base_offset, self.size_bytes
                )
            self._report("offset index", self._offset_index.problem)
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        """The time index, read at first use."""
        if self._time_index is None:
            path = self._index_path(time_index_file_name(self.base_offset))
            if path is None:
                self._time_index = TimeIndex.without_entries(self.base_offset, self._why_no_index())
            else:
                self._time_index = TimeIndex.read(self.filesystem, path, self.base_offset)
            self._report("time index", self._time_index.problem)
        return self._time_index

    @property
    def transaction_index(self) -> TransactionIndex:
        """The transaction index, read at first use whether or not indexes are to be used."""
        if self._transaction_index is None:
            # Looked for by itself: it appears with the first abort, which may come after the listing.
            path = self._path(transaction_index_file_name(self.base_offset))
            self._transaction_index = TransactionIndex.read(self.filesystem, path, self.base_offset)
            self._report("transaction index", self._transaction_index.problem)
        return self._transaction_index

    def closed_offset_index(self) -> FileStatus | None:
        """What ``stat`` says of the offset index if it is cut to its entries; None if it is not, or is not there.

        While a segment is written to, or recovered, its offset index has zeros behind its entries. They are cut off
        last, after everything else in the segment's index files is complete.
        """
        try:
            opened = self.filesystem.open(self._path(offset_index_file_name(self.base_offset)))
        except FileNotFoundError:
            return None
        with opened:
            status = opened.status
            last_entry = opened.read_at(OFFSET_ENTRY_BYTES, max(0, status.size_bytes - OFFSET_ENTRY_BYTES))
        return status if any(last_entry) or not status.size_bytes else None

    def has_offset_index(self, status: FileStatus) -> bool:
        """Whether the offset index is still the one of which ``stat`` said this."""
        return self.filesystem.status(self._path(offset_index_file_name(self.base_offset))) == status

    def is_in_place(self) -> bool:
        """Whether the log file is still the one that was looked at before, if any was."""
        known = self.known_status
        if known is None:
            return True
        status = self.filesystem.status(self.log_path)
        return status is not None and (status.inode, status.device) == (known.inode, known.device)

    def forget_indexes(self) -> None:
        """Give back the memory of the indexes; they are read again when they are needed."""
        self._offset_index = self._time_index = self._transaction_index = None

    def forget_transaction_index(self) -> None:
        """Read the transaction index anew when it is asked for next: it may have been written meanwhile."""
        self._transaction_index = None

    def drop_last_index_entry(self) -> None:
        """Go on as if the offset index were one entry shorter."""
        self._offset_index = self.offset_index.without_last_entry()

    def set_offset_index_aside(self, problem: str) -> None:
        """Go on as if there were no offset index, because it was found to be wrong."""
        self._offset_index = OffsetIndex.without_entries(self.base_offset, problem)
        self._report("offset index", problem)

    def set_time_index_aside(self) -> None:
        """Go on as if there were no time index, because it was found to be wrong."""
        problem = "it disagrees with the batches that it names"
        self._time_index = TimeIndex.without_entries(self.base_offset, problem)
        self._report("time index", problem)

    def _path(self, file_name: str) -> str:
        return f"{self.directory}/{file_name}{self.suffix}"

    def _index_path(self, file_name: str) -> str | None:
        """Path of an index that may be read; None if it is known to be absent or is not to be used."""
        if not self.use_indexes:
            return None
        if self.file_names is not None and file_name + self.suffix not in self.file_names:
            return None
        return self._path(file_name)

    def _why_no_index(self) -> str:
        return "the file is missing" if self.use_indexes else "indexes are not to be used"

    def _report(self, kind: str, problem: str | None) -> None:
        if problem is not None and self.use_indexes:
            _LOGGER.info("%s: %s not used, the log is walked instead: %s", self.log_path, kind, problem)
