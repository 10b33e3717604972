"""A segment's log file for its writer: appending to it, and reading it meanwhile (Kafka's ``FileRecords``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from storage_core.errors import CorruptRecordError, LogDirectoryError, RecordBatchTooLargeError
from storage_core.segment.batch_walk import BatchSummary, BatchWalk
from storage_core.segment.file_names import TimestampOffset
from storage_core.segment.index_file import WriterFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from storage_core.filesystem import FileSystem, PooledFile, ReadableFileSystem
    from storage_core.record.batch_header import BatchHeader, BytesLike
    from storage_core.segment.offset_index import OffsetIndexFile

    Found = TypeVar("Found")


MAX_LOG_SIZE_BYTES: Final = 2**31 - 1
"""The largest size that the positions in an index can address."""


class LogFile(WriterFile):
    """A log file for appending. Bytes after its known end, preallocated or left by a failed write, do not count."""

    __slots__ = ("_size_bytes",)

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        super().__init__(filesystem, path)
        # None until it is first needed: then all of an existing file counts.
        self._size_bytes: int | None = None

    def create(self, preallocated_bytes: int = 0, like: Sequence[str] = ()) -> None:
        """Create an empty file, preallocated with zeros up to a size, and as private as the files ``like``.

        Raises:
            LogDirectoryError: The file exists and is not empty.
        """
        file = self._open(create=True, like=like)
        if file.size_bytes():
            raise LogDirectoryError(
                f"Expected no file where a new segment begins, found one of {file.size_bytes()} bytes. Delete it "
                "first if it is left over.",
                path=self.path,
            )
        if preallocated_bytes:
            file.truncate(preallocated_bytes)
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Where the batches end."""
        if self._size_bytes is None:
            status = self._filesystem.status(self.path)
            if status is None:
                # Raises what every other access to the file raises.
                with self._filesystem.open(self.path) as opened:
                    status = opened.status
            self._size_bytes = status.size_bytes
        return self._size_bytes

    def write(self, pieces: Sequence[BytesLike], size_bytes: int) -> None:
        """Write after the end. The bytes do not count until `advance` is called.

        Raises:
            RecordBatchTooLargeError: The file would be larger than a log file may be; nothing is written.
            StorageError: They could not be written, or not all of them.
        """
        end_bytes = self.size_bytes
        if end_bytes + size_bytes > MAX_LOG_SIZE_BYTES:
            raise RecordBatchTooLargeError(
                f"Expected at most {MAX_LOG_SIZE_BYTES - end_bytes} bytes, which is what this log file has room "
                f"for, found {size_bytes}. Roll the segment first.",
                path=self.path,
                position_bytes=end_bytes,
            )
        (self._file or self._open()).write_at(pieces, end_bytes)

    def advance(self, size_bytes: int) -> None:
        """Count bytes that were written."""
        self._size_bytes = self.size_bytes + size_bytes

    def cut_at(self, size_bytes: int) -> None:
        """End the file at a size, whatever follows."""
        self._size_bytes = size_bytes
        self.trim()

    def truncate_to(self, size_bytes: int) -> int:
        """Truncate the file, preallocated space included, if its batches exceed a size.

        Returns:
            How many bytes were cut off.
        """
        cut_bytes = self.size_bytes - size_bytes
        if cut_bytes <= 0:
            return 0
        self._open().truncate(size_bytes)
        self._size_bytes = size_bytes
        return cut_bytes

    def trim(self) -> bool:
        """Cut off the bytes that do not count. Return True if there are any."""
        file = self._open()
        if file.size_bytes() <= self.size_bytes:
            return False
        file.truncate(self.size_bytes)
        return True

    def flush(self) -> None:
        """Flush the file to disk."""
        self._open().flush()

    def prepare_flush(self) -> Callable[[], None]:
        """Return a function that waits for the disk, for the caller to call without a lock."""
        return self._open().prepare_flush()

    def rename(self, path: str) -> None:
        """Rename the file, which must exist."""
        if path != self.path:
            self._filesystem.rename(self.path, path)
            self.path = path
        super().rename(path)

    def _open(self, *, create: bool = False, like: Sequence[str] = ()) -> PooledFile:
        if self._file is None:
            self._file = self._filesystem.open_pooled(self.path, create=create, like=like)
        return self._file


@dataclass(frozen=True, slots=True, eq=False)
class LogFileView:
    """A view of a segment that is being written, as it is now (Kafka's ``LogSegment.read``).

    Unlike `SegmentReader`, a view trusts the offset index, as a broker does: it is the writer's own.
    Only if the log contradicts it is the log walked from its beginning.

    Attributes:
        size_bytes: How much of the file counts.
        offset_index: The segment's offset index. It may have entries for later bytes.
    """

    filesystem: ReadableFileSystem
    path: str
    base_offset: int
    size_bytes: int
    offset_index: OffsetIndexFile

    def translate_offset(self, offset: int) -> BatchHeader | None:
        """Return the first batch whose last offset is at least ``offset``, or None."""
        return self._walk_from(offset, lambda walk, start_bytes: walk.first_reaching(offset, start_bytes))

    def next_offset(self) -> int:
        """Return the offset after the last batch, or the base offset without a batch."""
        found = self._walk_from(self.offset_index.last_offset, _next_offset)
        if found is None and len(self.offset_index):
            # The last batch with an index entry is torn.
            return self.walked_next_offset()
        return self.base_offset if found is None else found

    def walked_next_offset(self) -> int:
        """Return the offset after the last batch by a walk over all headers, ignoring the offset index."""
        with self.filesystem.open(self.path) as log_file:
            found = _next_offset(BatchWalk(log_file, self.base_offset, self.size_bytes), 0)
        return self.base_offset if found is None else found

    def first_batch(self) -> BatchSummary | None:
        """Return the first batch, or None."""
        if self.size_bytes == 0:
            return None
        with self.filesystem.open(self.path) as log_file:
            return next(BatchWalk(log_file, self.base_offset, self.size_bytes).iter_summaries(), None)

    def largest_timestamp_from(self, known: TimestampOffset) -> TimestampOffset:
        """Return the largest timestamp, given the largest one up to the batch that ``known`` names."""

        def largest(walk: BatchWalk, start_bytes: int) -> TimestampOffset:
            found = known
            for batch in walk.iter_summaries(start_bytes):
                if batch.max_timestamp_ms > found.timestamp_ms:
                    found = TimestampOffset(batch.max_timestamp_ms, batch.last_offset)
            return found

        return self._walk_from(known.offset, largest)

    def _walk_from(self, offset: int, look: Callable[[BatchWalk, int], Found]) -> Found:
        """Walk from the index entry for an offset, or from the beginning if there is no batch at that entry."""
        start_bytes = self.offset_index.lookup(offset).position_bytes
        if not 0 <= start_bytes < self.size_bytes:
            start_bytes = 0
        with self.filesystem.open(self.path) as log_file:
            try:
                return look(BatchWalk(log_file, self.base_offset, self.size_bytes), start_bytes)
            except CorruptRecordError:
                if start_bytes == 0:
                    raise
            return look(BatchWalk(log_file, self.base_offset, self.size_bytes), 0)


def _next_offset(walk: BatchWalk, start_bytes: int) -> int | None:
    found = None
    for batch in walk.iter_summaries(start_bytes):
        found = batch.last_offset + 1
    return found
