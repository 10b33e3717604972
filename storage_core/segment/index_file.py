"""What offset and time indexes share: reading a whole file, and appending to one (Kafka's ``AbstractIndex``).

A broker preallocates both files for its active segment, 10 MiB by default, and cuts them to their
entries when the segment is closed. After a crash, or while the broker runs, zeros follow the entries.
Only the first entry can be all zeros, since entries ascend.

Two views of the same layout: `read_index_file` reads a file that others may have written, once and as a
whole; `IndexFile` is the writer's own file. As with Kafka's ``LazyIndex``, an `IndexFile` opens nothing
before it is needed, and look-ups open the file by themselves, so that they never use a descriptor that the
writer closes meanwhile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from storage_core.errors import AppendError, CorruptIndexError, OffsetOverflowError
from storage_core.segment.file_names import log_paths_beside

if TYPE_CHECKING:
    from collections.abc import Callable

    from storage_core.filesystem import FileSystem, PooledFile, ReadableFile, ReadableFileSystem


MISSING: Final = "the file is missing"
"""The problem of an index file that is not there."""
LARGEST_RELATIVE_OFFSET: Final = 2**31 - 1
"""The largest distance from a segment's base offset that an index entry can hold."""
MAX_INDEX_SIZE_BYTES: Final = 64 * 1024 * 1024
"""Six times the default of ``segment.index.bytes``. Larger files are not read."""
_FIRST_BLOCK_ENTRIES: Final = 4096
_LAST_BLOCK_ENTRIES: Final = 256 * 1024
# This many zero bytes in a row are preallocated space: no entries follow them.
_ZERO_RUN_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class IndexContent:
    """The bytes of an index's whole entries without the zeros after them, and why the file cannot be used if so."""

    data: bytes
    file_size_bytes: int
    problem: str | None


def read_index_file(filesystem: ReadableFileSystem, path: str, entry_size_bytes: int) -> IndexContent:
    """Read an index file. A file that is missing or malformed is reported in ``problem``, not raised.

    Raises:
        UnreadableError: This user may not read it.
        LogDirectoryError: It is not a regular file.
    """
    try:
        opened = filesystem.open(path)
    except FileNotFoundError:
        return IndexContent(b"", 0, MISSING)
    with opened:
        size_bytes = opened.status.size_bytes
        problem: str | None = None
        if size_bytes > MAX_INDEX_SIZE_BYTES:
            problem = f"the file has {size_bytes} bytes, more than the {MAX_INDEX_SIZE_BYTES} that are read"
            return IndexContent(b"", size_bytes, problem)
        whole_bytes = size_bytes - size_bytes % entry_size_bytes
        if whole_bytes < size_bytes:
            problem = f"the file has {size_bytes} bytes, which is no multiple of {entry_size_bytes}"
        pieces = []
        position_bytes = 0
        block_entries = _FIRST_BLOCK_ENTRIES
        while position_bytes < whole_bytes:
            block_bytes = min(block_entries * entry_size_bytes, whole_bytes - position_bytes)
            try:
                block = opened.read_at(block_bytes, position_bytes)
            except CorruptIndexError as error:
                # It was encrypted, and was changed.
                return IndexContent(b"", size_bytes, str(error))
            pieces.append(block)
            position_bytes += len(block)
            # A short block: a broker has just cut the file to its entries.
            if len(block) < block_bytes or len(block) - len(block.rstrip(b"\0")) >= _ZERO_RUN_BYTES:
                break
            block_entries = min(block_entries * 4, _LAST_BLOCK_ENTRIES)
    data = b"".join(pieces)
    # The last entry may itself end in zero bytes: round up to a whole one.
    entries = -(-len(data.rstrip(b"\0")) // entry_size_bytes)
    return IndexContent(data[: entries * entry_size_bytes], size_bytes, problem)


def rename_if_exists(filesystem: FileSystem, source: str, target: str) -> bool:
    """Rename a file if it exists: an index that was never written does not appear.

    Returns:
        False if there is no such file, which is not noticed if both names are equal.
    """
    if source != target:
        try:
            filesystem.rename(source, target)
        except FileNotFoundError:
            return False
    return True


class WriterFile:
    """A file of a segment for its writer, which opens it at its first use, and again when it was closed."""

    __slots__ = ("_file", "_filesystem", "path")

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self.path = path
        self._filesystem = filesystem
        self._file: PooledFile | None = None

    @property
    def is_open(self) -> bool:
        """Return True if the file is open for writing."""
        return self._file is not None

    def close(self) -> None:
        """Close the file as it is."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def rename(self, path: str) -> None:
        """Rename the file if it exists: one that was never written does not appear."""
        rename_if_exists(self._filesystem, self.path, path)
        self.path = path
        if self._file is not None:
            self._file.path = path

    def delete(self) -> bool:
        """Delete the file. Return True if it existed."""
        self.close()
        return self._filesystem.delete(self.path)


Entry = TypeVar("Entry")


class IndexFile(WriterFile, ABC, Generic[Entry]):
    """An index that is written beside a log file. One writer, any number of readers.

    The file is created when it is first written to. While it grows, its whole size is ``segment.index.bytes``, rounded
    down to whole entries.
    """

    __slots__ = (
        "_capacity",
        "_count",
        "_last_entry",
        "_max_size_bytes",
        "_resizes_on_write",
        "base_offset",
    )

    entry_size_bytes: int
    is_zero_an_entry: bool = False
    """Whether a file of just one entry of zeros holds an entry. In a longer file it is preallocated space."""
    reserved_entries: int = 0
    """How many entries are kept free for closing the segment."""

    def __init__(self, filesystem: FileSystem, path: str, base_offset: int, max_size_bytes: int) -> None:
        super().__init__(filesystem, path)
        self.base_offset = base_offset
        self._max_size_bytes = max_size_bytes // self.entry_size_bytes * self.entry_size_bytes
        self._resizes_on_write = False
        self._last_entry: Entry | None = None
        # Both are set when the file is first read.
        self._count = -1
        self._capacity = 0

    @abstractmethod
    def parse(self, entry: bytes) -> Entry:
        """Parse an entry of the file."""

    @property
    @abstractmethod
    def first_possible_entry(self) -> Entry:
        """What look-ups answer where no entry applies."""

    def __len__(self) -> int:
        if self._count < 0:
            self._load()
        return self._count

    @property
    def capacity(self) -> int:
        """How many entries there is room for, at the size that the file has when it is written to."""
        count = len(self)
        if self._resizes_on_write:
            return max(self._max_size_bytes // self.entry_size_bytes, count)
        return self._capacity

    @property
    def room(self) -> int:
        """How many more entries there is room for, not counting those that are reserved."""
        return max(0, self.capacity - self.reserved_entries - len(self))

    @property
    def is_full(self) -> bool:
        """Return True if there is no room for another entry."""
        return not self.room

    @property
    def last_entry(self) -> Entry:
        """Return the last entry, or `first_possible_entry` if there is none, or if the file was removed."""
        if self._last_entry is None:
            entry = self._read_last()
            self._last_entry = self.parse(entry) if entry else self.first_possible_entry
        return self._last_entry

    def entry(self, number: int) -> Entry:
        """Read the entry with a number.

        Raises:
            IndexError: There are fewer entries.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"Expected an entry number below {len(self)}, found {number}. [{self.path}]")
        return self.parse(self._read(number))

    def search(self, goes_before: Callable[[bytes], bool]) -> tuple[int, bytes]:
        """Find the last entry of those at the beginning that satisfy a condition.

        Returns:
            Its number and its bytes; -1 and none if no entry does, or if the file was removed.
        """
        count = len(self)
        if count == 0:
            return -1, b""
        try:
            opened = self._filesystem.open(self.path)
        except FileNotFoundError:
            return -1, b""
        with opened as file:
            # False sorts before True. An entry that was cut off meanwhile comes after everything.
            def is_after(number: int) -> bool:
                entry = self._read_from(file, number)
                return len(entry) < self.entry_size_bytes or not goes_before(entry)

            number = bisect_left(range(count), True, key=is_after) - 1
            return number, self._read_from(file, number) if number >= 0 else b""

    def open(self) -> None:
        """Open the file for writing. Create it at its full size if it does not exist."""
        self._open()
        if self._resizes_on_write:
            self.resize()

    def write(self, entries: bytes, last_entry: Entry) -> None:
        """Write whole entries after the last one. There must be room for them."""
        if self._resizes_on_write:
            self.resize()
        self._open().write_at([entries], self._count * self.entry_size_bytes)
        self._count += len(entries) // self.entry_size_bytes
        self._last_entry = last_entry

    def forget_after(self, count: int) -> None:
        """Take back entries that were added last, because the append that they belong to has failed.

        Their bytes are written over by what comes next.
        """
        self._count = min(self._count, count)
        self._last_entry = None

    def keep_while(self, goes_before: Callable[[bytes], bool]) -> None:
        """Keep the entries at the beginning that satisfy a condition, and drop the others."""
        number, _ = self.search(goes_before)
        self.truncate(number + 1)

    def truncate(self, count: int) -> None:
        """Drop the entries from a number on. The file's size stays, with zeros in their place.

        Unlike a broker's, the dropped bytes do not stay in the file: another process that reads it
        could not tell them from entries.
        """
        if count < len(self):
            self._last_entry = None
            file = self._open()
            file.truncate(count * self.entry_size_bytes)
            self._count = count
            file.truncate(self._capacity * self.entry_size_bytes)

    def reset(self) -> None:
        """Drop all entries and the preallocated space. The file then grows with its entries."""
        self._last_entry = None
        file = self._open()
        if file.size_bytes():
            file.truncate(0)
        self._begin_empty()

    def resize(self) -> bool:
        """Make room up to the full size. Return True if that changed the file's size."""
        self._resizes_on_write = False
        # Entries are never cut off.
        return self._set_size(max(self._max_size_bytes, len(self) * self.entry_size_bytes))

    def resize_on_write(self) -> None:
        """Make room up to the full size when the file is next written to, not before."""
        self._resizes_on_write = True

    def trim(self) -> bool:
        """Cut the file to its entries. Return True if that changed its size."""
        return self._set_size(len(self) * self.entry_size_bytes)

    def flush(self) -> None:
        """Flush the file to disk, and create it if it does not exist."""
        self._open().flush()

    def delete(self) -> bool:
        """Delete the file. Return True if it existed."""
        self._count, self._last_entry = -1, None
        return super().delete()

    def require_room(self, offset: int) -> None:
        """Check that there is room for another entry.

        Raises:
            AppendError: The index is full.
        """
        if self.is_full:
            raise AppendError(
                f"Expected room for another entry, found a full index of {len(self)} entries. Roll the segment, "
                "or raise segment.index.bytes.",
                path=self.path,
                offset=offset,
            )

    def require_offset(self, offset: int) -> None:
        """Check that an offset can be written relative to the base offset.

        Raises:
            OffsetOverflowError: It cannot.
        """
        if not 0 <= offset - self.base_offset <= LARGEST_RELATIVE_OFFSET:
            raise offset_overflow(self.path, self.base_offset, offset)

    def _open(self) -> PooledFile:
        file = self._file
        if file is None:
            if self._filesystem.status(self.path) is None:
                file = self._create()
            else:
                file = self._filesystem.open_pooled(self.path)
            self._file = file
            if self._count < 0:
                self._load()
        return file

    def _create(self) -> PooledFile:
        file = self._filesystem.open_pooled(self.path, create=True, like=log_paths_beside(self.path))
        try:
            file.truncate(self._max_size_bytes)
        except BaseException:
            file.close()
            raise
        self._begin_empty()
        return file

    def _begin_empty(self) -> None:
        self._count = 0
        self._capacity = self._max_size_bytes // self.entry_size_bytes

    def _set_size(self, size_bytes: int) -> bool:
        file = self._open()
        self._capacity = size_bytes // self.entry_size_bytes
        if file.size_bytes() == size_bytes:
            return False
        file.truncate(size_bytes)
        return True

    def _load(self) -> bytes:
        """Count the entries. Return the last one if it was read, so that the file is opened only once."""
        try:
            opened = self._filesystem.open(self.path)
        except FileNotFoundError:
            self._begin_empty()
            return b""
        with opened as file:
            self._capacity = file.status.size_bytes // self.entry_size_bytes
            last = self._read_from(file, self._capacity - 1) if self._capacity else b""
            if any(last):
                self._count = self._capacity
                return last
            self._count = self._count_before_zeros(file) if self._capacity else 0
        return b""

    def _count_before_zeros(self, file: ReadableFile) -> int:
        """Find where the zeros of a preallocated file begin. Entries ascend: only the first may be all zeros."""

        def is_blank(number: int) -> bool:
            return not any(self._read_from(file, number))

        count = bisect_left(range(self._capacity), True, lo=1, key=is_blank)
        if count > 1 or not is_blank(0):
            return count
        return 1 if self._capacity == 1 and self.is_zero_an_entry else 0

    def _read(self, number: int) -> bytes:
        """Read an entry, or less of it if the file was cut meanwhile."""
        with self._filesystem.open(self.path) as file:
            return self._read_from(file, number)

    def _read_last(self) -> bytes:
        if self._count < 0:
            last = self._load()
            if last:
                return last
        try:
            return self._read(self._count - 1) if self._count else b""
        except FileNotFoundError:
            return b""

    def _read_from(self, file: ReadableFile, number: int) -> bytes:
        return file.read_at(self.entry_size_bytes, number * self.entry_size_bytes)


def offset_overflow(path: str, base_offset: int, offset: int) -> OffsetOverflowError:
    """Return the error about an offset that cannot be written relative to a segment's base offset."""
    return OffsetOverflowError(
        f"Expected an offset from {base_offset} to {base_offset + LARGEST_RELATIVE_OFFSET}, which this segment's "
        f"indexes can hold, found {offset}. Roll the segment first.",
        path=path,
        offset=offset,
    )
