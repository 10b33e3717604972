"""What a segment that is written to can be asked meanwhile: a view of it as it is now (Kafka's ``LogSegment.read``).

Unlike `SegmentReader`, a view believes the offset index, as a broker does: it is the writer's own.
Only where the log contradicts it is the log walked from its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_core.errors import CorruptRecordError, OptionError
from storage_core.segment.batch_walk import BatchWalk
from storage_core.segment.values import TimestampOffset

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from storage_core.filesystem import FileSystem
    from storage_core.record.batch_header import BatchHeader
    from storage_core.segment.batch_walk import SkimmedBatch
    from storage_core.segment.offset_index_file import OffsetIndexFile
    from storage_core.segment.values import AbortedTransaction

    Found = TypeVar("Found")

__all__ = ["FetchedData", "LogFileView"]


@dataclass(frozen=True, slots=True)
class FetchedData:
    """Batches as they are in the file, from the one that holds the offset that was asked for.

    Args:
        base_offset: The first batch's base offset. Of a wrapper of format v0 or v1 it is a lower bound.
        position_bytes: Where the first batch begins in its segment.
        data: The bytes. The last batch may be cut off.
        is_first_entry_incomplete: Whether the first batch is larger than what was asked for.
        aborted_transactions: Those that are open, or end, among the whole batches, in the order of their markers, if
            only committed records are wanted; otherwise None.
    """

    base_offset: int
    position_bytes: int
    data: bytes
    is_first_entry_incomplete: bool
    aborted_transactions: tuple[AbortedTransaction, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LogFileView:
    """The first bytes of a log file, and the index over them.

    Args:
        filesystem: Through which the file is read.
        path: The log file.
        base_offset: The segment's base offset.
        size_bytes: How much of the file counts.
        offset_index: The segment's offset index. It may name what stands behind these bytes.
    """

    filesystem: FileSystem
    path: str
    base_offset: int
    size_bytes: int
    offset_index: OffsetIndexFile

    def translate_offset(self, offset: int, start_position_bytes: int = 0) -> BatchHeader | None:
        """The first batch whose last offset is at least ``offset``; None if there is none.

        Args:
            offset: The offset. If it lies in a gap, the batch behind the gap is found.
            start_position_bytes: A batch boundary in front of which nothing is looked for.
        """
        return self._walk_from(
            offset, start_position_bytes, lambda walk, start_bytes: walk.first_reaching(offset, start_bytes)
        )

    def read(
        self, start_offset: int, max_size_bytes: int, max_position_bytes: int | None, *, min_one_message: bool
    ) -> FetchedData | None:
        """The bytes from the batch on that holds an offset, see `LogSegment.read`."""
        if max_size_bytes < 0:
            raise OptionError(f"Expected a size of at least 0 bytes to read, found {max_size_bytes}.")
        first = self.translate_offset(start_offset)
        if first is None:
            return None
        wanted_bytes = max(max_size_bytes, first.size_bytes) if min_one_message else max_size_bytes
        end_bytes = (
            self.size_bytes if max_position_bytes is None else min(max_position_bytes, self.size_bytes)
        )
        size_bytes = max(0, min(wanted_bytes, end_bytes - first.position_bytes))
        data = b""
        if size_bytes:
            with self.filesystem.open(self.path) as log_file:
                data = log_file.read_at(size_bytes, first.position_bytes)
        return FetchedData(
            first.base_offset,
            first.position_bytes,
            data,
            is_first_entry_incomplete=wanted_bytes < first.size_bytes,
        )

    def next_offset(self) -> int:
        """The offset behind the last batch; the base offset without any."""
        found = self._walk_from(self.offset_index.last_offset, 0, _next_offset)
        if found is None and len(self.offset_index):
            # The batch that was indexed last is torn.
            return self.walked_next_offset()
        return self.base_offset if found is None else found

    def walked_next_offset(self) -> int:
        """The same, whatever the index says: found by a walk over all headers."""
        with self.filesystem.open(self.path) as log_file:
            found = _next_offset(BatchWalk(log_file, self.base_offset, self.size_bytes), 0)
        return self.base_offset if found is None else found

    def first_batch(self) -> SkimmedBatch | None:
        """The first batch; None if there is none."""
        if self.size_bytes == 0:
            return None
        with self.filesystem.open(self.path) as log_file:
            return next(BatchWalk(log_file, self.base_offset, self.size_bytes).skim(), None)

    def largest_timestamp_from(self, known: TimestampOffset) -> TimestampOffset:
        """The largest timestamp, if ``known`` is the largest up to the batch that it names."""

        def largest(walk: BatchWalk, start_bytes: int) -> TimestampOffset:
            found = known
            for _, _, _, last_offset, max_timestamp_ms in walk.skim(start_bytes):
                if max_timestamp_ms > found.timestamp_ms:
                    found = TimestampOffset(max_timestamp_ms, last_offset)
            return found

        return self._walk_from(known.offset, 0, largest)

    def _walk_from(
        self, offset: int, start_position_bytes: int, look: Callable[[BatchWalk, int], Found]
    ) -> Found:
        """Walk from where the index says that an offset is met, or from the beginning if nothing is there."""
        indexed_bytes = self.offset_index.lookup(offset).position_bytes
        if not 0 <= indexed_bytes < self.size_bytes:
            indexed_bytes = 0
        start_bytes = max(indexed_bytes, start_position_bytes)
        with self.filesystem.open(self.path) as log_file:
            try:
                return look(BatchWalk(log_file, self.base_offset, self.size_bytes), start_bytes)
            except CorruptRecordError:
                if start_bytes == start_position_bytes:
                    raise
            return look(BatchWalk(log_file, self.base_offset, self.size_bytes), start_position_bytes)


def _next_offset(walk: BatchWalk, start_bytes: int) -> int | None:
    found = None
    for batch in walk.skim(start_bytes):
        found = batch[3] + 1
    return found
