"""What reads need of a file, local or not: nothing above this package knows which one it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from types import TracebackType

    from storage_core.filesystem.values import FileStatus


class ReadableFile(Protocol):
    """A file opened for reading. Use as a context manager.

    A class that derives from it inherits what follows from `read_into` for a file that does not change.

    Attributes:
        path: Of the file, for messages.
        status: What the file was when it was opened.
    """

    path: str
    status: FileStatus

    def size_bytes(self) -> int:
        """Return the current size, which may differ from ``status.size_bytes`` under a live broker."""
        return self.status.size_bytes

    def read_at(self, size_bytes: int, position_bytes: int) -> bytes:
        """Read up to ``size_bytes`` from ``position_bytes``; fewer only at the end of the file."""
        buffer = bytearray(max(0, min(size_bytes, self.status.size_bytes - position_bytes)))
        return bytes(buffer[: self.read_into(memoryview(buffer), position_bytes)])

    def read_into(self, buffer: memoryview, position_bytes: int) -> int:
        """Fill ``buffer`` from ``position_bytes``; return the number of bytes read, fewer only at the end of the file."""

    def next_data(self, position_bytes: int) -> int | None:
        """Return the next position with data, at or after the given one; None if only zeros follow."""
        return position_bytes if position_bytes < self.status.size_bytes else None

    def expect_reads(self, start_bytes: int, end_bytes: int) -> None:
        """Announce reads of these bytes, in order, so that several requests can be under way where one takes long."""

    def close(self) -> None:
        """Close the file; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
