"""How offset and time indexes are read: whole, in blocks, up to where their entries end.

A broker preallocates both files for its active segment, 10 MiB by default, and cuts them to
their entries when the segment is closed. After a crash, or under a running broker, the entries
are followed by zeros. No entry but the first can be all zeros, since entries ascend.

Renaming files of a segment that may not be there.

A file of entries of one size, preallocated while it grows (Kafka's ``AbstractIndex`` and ``LazyIndex``).

A new file has its full size at once, all zeros, and is cut to its entries when its segment is
closed. An existing one has room for what its size says until it is resized. Nothing is opened
before it is needed, and look-ups open the file by themselves: a reader's descriptor is never one
that the writer closes meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from storage_core.errors import CorruptIndexError

if TYPE_CHECKING:
    from collections.abc import Callable

    from storage_core.filesystem import FileSystem, OpenFile, PooledFile

__all__ = ["MAX_INDEX_SIZE_BYTES", "EntryFile", "IndexContent", "read_index_file", "rename_if_exists"]


MAX_INDEX_SIZE_BYTES: Final = 64 * 1024 * 1024
"""Six times the default of ``segment.index.bytes``: what is larger is not read."""
_FIRST_BLOCK_ENTRIES: Final = 4096
_LAST_BLOCK_ENTRIES: Final = 256 * 1024
# So many zero bytes in a row are the preallocated rest: no entries follow them.
_ZERO_RUN_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class IndexContent:
    """The entries' bytes without the zeros behind them, or why there are none.

    Args:
        data: Whole entries.
        file_size_bytes: Size of the file, zeros included.
        problem: Why the file cannot be used; None if it can.
    """

    data: bytes
    file_size_bytes: int
    problem: str | None


def read_index_file(filesystem: FileSystem, path: str, entry_size_bytes: int) -> IndexContent:
    """Read an index file. A file that is missing or cannot be an index is a problem, no error.

    Raises:
        UnreadableError: This user may not read it.
        LogDirectoryError: It is not a regular file.
    """
    try:
        opened = filesystem.open(path)
    except FileNotFoundError:
        return IndexContent(b"", 0, "the file is missing")
    with opened:
        size_bytes = opened.status.size_bytes
        if size_bytes > MAX_INDEX_SIZE_BYTES:
            problem = f"the file has {size_bytes} bytes, more than the {MAX_INDEX_SIZE_BYTES} that are read"
            return IndexContent(b"", size_bytes, problem)
        if size_bytes % entry_size_bytes:
            problem = f"the file has {size_bytes} bytes, which is no multiple of {entry_size_bytes}"
            return IndexContent(b"", size_bytes, problem)
        pieces = []
        position_bytes = 0
        block_entries = _FIRST_BLOCK_ENTRIES
        while position_bytes < size_bytes:
            block_bytes = min(block_entries * entry_size_bytes, size_bytes - position_bytes)
            block = opened.read_at(block_bytes, position_bytes)
            pieces.append(block)
            position_bytes += len(block)
            # A short block: a broker has just cut the file to its entries.
            if len(block) < block_bytes or len(block) - len(block.rstrip(b"\0")) >= _ZERO_RUN_BYTES:
                break
            block_entries = min(block_entries * 4, _LAST_BLOCK_ENTRIES)
    data = b"".join(pieces)
    # The last entry may itself end in zero bytes: round up to a whole one.
    entries = -(-len(data.rstrip(b"\0")) // entry_size_bytes)
    return IndexContent(data[: entries * entry_size_bytes], size_bytes, None)


def rename_if_exists(filesystem: FileSystem, source: str, target: str) -> None:
    """Rename a file; without one, do nothing: an index that nobody has written does not appear."""
    if source == target:
        return
    try:
        filesystem.rename(source, target)
    except FileNotFoundError:
        return


class EntryFile:
    """The entries' bytes, how many there are, and how many there is room for.

    Args:
        filesystem: Through which the file is read and written.
        path: The file. It need not exist.
        entry_size_bytes: Size of an entry.
        max_size_bytes: ``segment.index.bytes``: the size of the whole file while it grows, rounded down to
            whole entries.
        is_zero_an_entry: Whether a file of just one entry of zeros holds an entry. In a longer file
            such an entry, with nothing but zeros behind it, is preallocated space.
    """

    __slots__ = (
        "_capacity",
        "_count",
        "_entry_size_bytes",
        "_file",
        "_filesystem",
        "_is_zero_an_entry",
        "_max_size_bytes",
        "_resizes_on_write",
        "path",
    )

    def __init__(
        self,
        filesystem: FileSystem,
        path: str,
        entry_size_bytes: int,
        max_size_bytes: int,
        *,
        is_zero_an_entry: bool,
    ) -> None:
        self.path = path
        self._filesystem = filesystem
        self._entry_size_bytes = entry_size_bytes
        self._max_size_bytes = max_size_bytes // entry_size_bytes * entry_size_bytes
        self._is_zero_an_entry = is_zero_an_entry
        self._file: PooledFile | None = None
        self._resizes_on_write = False
        # Both are known once the file was looked at.
        self._count = -1
        self._capacity = 0

    @property
    def count(self) -> int:
        """How many entries there are."""
        if self._count < 0:
            self._load()
        return self._count

    @property
    def capacity(self) -> int:
        """How many entries there is room for, once the file has the size that it is to have when it is written to."""
        count = self.count
        if self._resizes_on_write:
            return max(self._max_size_bytes // self._entry_size_bytes, count)
        return self._capacity

    @property
    def is_open(self) -> bool:
        """Whether the file is open for writing."""
        return self._file is not None

    def open(self) -> None:
        """Open the file for writing; it is made at its full size if it does not exist."""
        self._open()
        if self._resizes_on_write:
            self.resize()

    def write(self, entries: bytes) -> None:
        """Write whole entries behind the last one. There must be room for them."""
        if self._resizes_on_write:
            self.resize()
        self._open().write_at([entries], self._count * self._entry_size_bytes)
        self._count += len(entries) // self._entry_size_bytes

    def forget_after(self, count: int) -> None:
        """Take back what was written last; the bytes are written over by what comes next."""
        self._count = min(self._count, count)

    def read(self, number: int) -> bytes:
        """One entry; shorter if the file was cut meanwhile."""
        with self._filesystem.open(self.path) as file:
            return self._read_from(file, number)

    def read_last(self) -> bytes:
        """The last entry; nothing if there is none, or if the file was removed."""
        if self._count < 0:
            last = self._load()
            if last:
                return last
        try:
            return self.read(self._count - 1) if self._count else b""
        except FileNotFoundError:
            return b""

    def search(self, goes_before: Callable[[bytes], bool]) -> tuple[int, bytes]:
        """Find the last entry of those that go before what is looked for.

        Returns:
            Its number and its bytes; -1 and none if no entry goes before, or if the file was removed.
        """
        count = self.count
        if count == 0:
            return -1, b""
        try:
            opened = self._filesystem.open(self.path)
        except FileNotFoundError:
            return -1, b""
        with opened as file:
            # False sorts before True. An entry that is gone stands behind everything.
            def is_behind(number: int) -> bool:
                entry = self._read_from(file, number)
                return len(entry) < self._entry_size_bytes or not goes_before(entry)

            number = bisect_left(range(count), True, key=is_behind) - 1
            return number, self._read_from(file, number) if number >= 0 else b""

    def truncate(self, count: int) -> None:
        """Drop the entries from a number on; the file's size stays, with zeros in their place.

        Unlike a broker's, the dropped bytes do not stay in the file: another process that reads it
        could not tell them from entries.
        """
        if count < self.count:
            file = self._open()
            file.truncate(count * self._entry_size_bytes)
            self._count = count
            file.truncate(self._capacity * self._entry_size_bytes)

    def reset(self) -> None:
        """Empty the file, and have room for as many entries as its full size holds. It grows with them."""
        file = self._open()
        if file.size_bytes():
            file.truncate(0)
        self._count = 0
        self._capacity = self._max_size_bytes // self._entry_size_bytes

    def resize(self, max_size_bytes: int | None = None) -> bool:
        """Make room up to the full size, or to another one; False if the file has that size already."""
        if max_size_bytes is not None:
            self._max_size_bytes = max_size_bytes // self._entry_size_bytes * self._entry_size_bytes
        self._resizes_on_write = False
        # Entries are never cut off.
        return self._set_size(max(self._max_size_bytes, self.count * self._entry_size_bytes))

    def resize_on_write(self) -> None:
        """Make room up to the full size as soon as the file is written to, not before."""
        self._resizes_on_write = True

    def trim(self) -> bool:
        """Cut the file to its entries; False if it has that size already."""
        return self._set_size(self.count * self._entry_size_bytes)

    def flush(self) -> None:
        """Have the operating system write the file to the disk, and make it if it does not exist."""
        self._open().flush()

    def check_size(self) -> None:
        """Check that the file is made of whole entries.

        Raises:
            CorruptIndexError: It is not.
        """
        status = self._filesystem.status(self.path)
        if status is not None and status.size_bytes % self._entry_size_bytes:
            raise CorruptIndexError(
                f"Expected a multiple of {self._entry_size_bytes} bytes, found {status.size_bytes}. Delete the "
                "index: it is built again from the log.",
                path=self.path,
            )

    def close(self) -> None:
        """Close the file without changing it. It is opened again when it is needed."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def rename(self, path: str) -> None:
        """Give the file another name, if there is a file."""
        rename_if_exists(self._filesystem, self.path, path)
        self.path = path
        if self._file is not None:
            self._file.path = path

    def delete(self) -> bool:
        """Delete the file; False if there is none."""
        self.close()
        self._count = -1
        return self._filesystem.delete(self.path)

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
        file = self._filesystem.open_pooled(self.path, create=True)
        try:
            file.truncate(self._max_size_bytes)
        except BaseException:
            file.close()
            raise
        self._count = 0
        self._capacity = self._max_size_bytes // self._entry_size_bytes
        return file

    def _set_size(self, size_bytes: int) -> bool:
        file = self._open()
        self._capacity = size_bytes // self._entry_size_bytes
        if file.size_bytes() == size_bytes:
            return False
        file.truncate(size_bytes)
        return True

    def _load(self) -> bytes:
        """Count the entries. Returns the last one, if that was seen; of many files, each is opened once only."""
        try:
            opened = self._filesystem.open(self.path)
        except FileNotFoundError:
            self._capacity = self._max_size_bytes // self._entry_size_bytes
            self._count = 0
            return b""
        with opened as file:
            self._capacity = file.status.size_bytes // self._entry_size_bytes
            last = self._read_from(file, self._capacity - 1) if self._capacity else b""
            if any(last):
                self._count = self._capacity
                return last
            self._count = self._count_before_zeros(file) if self._capacity else 0
        return b""

    def _count_before_zeros(self, file: OpenFile) -> int:
        """Where the zeros begin that fill a preallocated file. Entries ascend: only the first may be zeros."""
        count = bisect_left(
            range(self._capacity), True, lo=1, key=lambda number: not self._is_entry(file, number)
        )
        if count > 1 or self._is_entry(file, 0):
            return count
        return 1 if self._capacity == 1 and self._is_zero_an_entry else 0

    def _is_entry(self, file: OpenFile, number: int) -> bool:
        return any(self._read_from(file, number))

    def _read_from(self, file: OpenFile, number: int) -> bytes:
        return file.read_at(self._entry_size_bytes, number * self._entry_size_bytes)
