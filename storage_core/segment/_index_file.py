"""How offset and time indexes are read: whole, in blocks, up to where their entries end.

A broker preallocates both files for its active segment, 10 MiB by default, and cuts them to
their entries when the segment is closed. After a crash, or under a running broker, the entries
are followed by zeros. No entry but the first can be all zeros, since entries ascend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from storage_core.filesystem import FileSystem

__all__ = ["MAX_INDEX_SIZE_BYTES", "IndexContent", "read_index_file"]

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
