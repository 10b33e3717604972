"""One segment of a log, for writing (Kafka's ``LogSegment``).

The log file is written first, its indexes after it: whoever reads meanwhile, in this process or in
another one, never meets an index entry before the batch that it names. An append that fails leaves
the object as it was, but not necessarily the files: whoever owns the log is to close it then, and
to recover the segment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from storage_core.segment.file_names import DELETED_SUFFIX
from storage_core.segment.segment_contents import SegmentContents
from storage_core.segment.segment_recovery import RecoveredSegment, scan_segment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    import numpy.typing as npt

    from storage_core.filesystem import FileSystem, PreparedFlush
    from storage_core.log_config import LogConfig
    from storage_core.record.batch_header import BytesLike
    from storage_core.record.record_batches import RecordBatches
    from storage_core.segment.segment_recovery import WindowObserver
    from storage_core.segment.values import AbortedTransaction

__all__ = ["LogSegment"]

_COPY_BYTES: Final = 1 << 20


class LogSegment(SegmentContents):
    """A log file and its indexes, and how they change. Make one by `create` or `open`.

    One writer; readers get a `reader`, or ask for what a `LogFileView` answers.
    """

    __slots__ = ()

    @classmethod
    def create(
        cls,
        filesystem: FileSystem,
        directory: str,
        base_offset: int,
        config: LogConfig,
        *,
        now_ms: int,
        suffix: str = "",
    ) -> Self:
        """Make a segment with an empty log file, of its full size with ``preallocate``. Its indexes follow later."""
        segment = cls(filesystem, directory, base_offset, config, now_ms=now_ms, suffix=suffix)
        segment._log.create(config.max_segment_bytes if config.preallocate else 0)
        return segment

    @classmethod
    def open(
        cls,
        filesystem: FileSystem,
        directory: str,
        base_offset: int,
        config: LogConfig,
        *,
        now_ms: int,
        suffix: str = "",
    ) -> Self:
        """A segment whose log file exists, and ends where its batches end. Nothing is looked at yet."""
        return cls(filesystem, directory, base_offset, config, now_ms=now_ms, suffix=suffix)

    def append(self, batches: RecordBatches) -> None:
        """Write batches at the end, and index them. They are not flushed.

        Raises:
            OffsetOverflowError: An offset does not fit the segment; nothing was written.
            RecordBatchTooLargeError: The log file would become too large; nothing was written.
            StorageError: Not everything could be written.
        """
        self._is_sealed = False
        self._writer.append(batches)

    def append_pieces(self, headers: npt.NDArray[Any], pieces: Sequence[BytesLike]) -> None:
        """Do the same with batches, at least one: their headers, and all their bytes in pieces of any size."""
        self._is_sealed = False
        self._writer.append_pieces(headers, pieces)

    def append_from_file(self, source: LogSegment, start_position_bytes: int = 0) -> int:
        """Copy batches of another segment as they are, up to the first whose last offset does not fit.

        Args:
            source: The other segment.
            start_position_bytes: Where to begin, a batch boundary.

        Returns:
            How many bytes were copied.
        """
        self._is_sealed = False
        return self._writer.append_windows(source.windows(start_position_bytes, window_bytes=_COPY_BYTES))

    def append_aborted_transaction(self, transaction: AbortedTransaction) -> None:
        """Note a transaction whose abort marker was appended."""
        self.transaction_index.append(transaction)

    def recover(
        self,
        observe: WindowObserver | None = None,
        *,
        confirm: Callable[[RecoveredSegment], None] | None = None,
    ) -> RecoveredSegment:
        """Build the indexes anew from the valid batches at the log's beginning, and cut off what stands behind them.

        All bytes are read, and every CRC checked; then the files are changed.

        Args:
            observe: Is shown the valid batches. It returns the transactions that were aborted among them.
            confirm: Is told what was found before any file is changed, and raises an error if that is not wanted.

        Raises:
            OffsetOverflowError: A valid batch has an offset that does not fit the segment. Nothing was changed.
            BatchTooLargeError: A valid batch is too large to be read. Nothing was changed.
        """
        with self._filesystem.open(self.path) as log_file:
            # A preallocated rest counts, like everything that stands behind the batches.
            size_bytes = log_file.size_bytes()
            scan = scan_segment(
                log_file,
                self.base_offset,
                size_bytes,
                self._config.index_interval_bytes,
                max_batch_bytes=self._max_batch_bytes,
                observe=observe,
            )
        recovered = RecoveredSegment(
            size_bytes - scan.end_position_bytes, scan.next_offset, scan.end_position_bytes, scan.problem
        )
        if confirm is not None:
            confirm(recovered)
        self._indexes.rebuild(scan.entries, scan.aborted_transactions)
        self._log.cut_at(scan.end_position_bytes)
        self._writer.restart(scan.largest_timestamp)
        self._first_batch_timestamp_ms = None
        self._indexes.trim(scan.largest_timestamp)
        # Many segments may be recovered, one after the other.
        self.close_handlers()
        return recovered

    def truncate_to(self, offset: int, *, now_ms: int) -> int:
        """Drop the batch that holds an offset, and all behind it.

        Args:
            offset: The offset. If it lies in a gap, all behind the gap is dropped.
            now_ms: The time, from which an empty segment's age counts.

        Returns:
            How many bytes were cut off.
        """
        first_dropped = self.translate_offset(offset)
        self._is_sealed = False
        known = self.largest_timestamp
        self._indexes.truncate_to(offset)
        cut_bytes = 0 if first_dropped is None else self._log.truncate_to(first_dropped.position_bytes)
        if self.size_bytes == 0:
            self._created_ms = now_ms
            self._first_batch_timestamp_ms = None
        self._writer.restart(
            self._view().largest_timestamp_from(self.time_index.last_entry)
            if known.timestamp_ms >= 0
            else known
        )
        return cut_bytes

    def resize_indexes(self, *, on_write: bool = False) -> None:
        """Make offset and time index their full size, so that they can be appended to.

        Args:
            on_write: Whether the files are left alone until there is something to write. The segment does not
                roll for want of room in them meanwhile.
        """
        self._is_sealed = False
        self._indexes.resize(on_write=on_write)

    def set_modified_ms(self, modified_ms: int) -> None:
        """Say when the log file was changed: it holds what another one held. For good with the next flush."""
        self._filesystem.set_modified_ms(self.path, modified_ms)

    def flush_log(self) -> None:
        """Have the operating system write the log file alone to the disk."""
        self._log.flush()

    def prepare_log_flush(self) -> PreparedFlush:
        """The same, but for the wait, see `PooledFile.prepare_flush`."""
        return self._log.prepare_flush()

    def flush(self) -> None:
        """Have the operating system write all files to the disk. Offset and time index are made if they do not exist."""
        is_written = self._is_open and not self._is_sealed
        if not self._is_open:
            self._indexes.trim(None)
        self._log.flush()
        self._indexes.flush()
        if not is_written:
            # A log may have more segments than a process may have open files.
            self.close_handlers()

    def seal(self) -> None:
        """Close what only the last segment of a log has: complete the time index, and cut the files to what they hold."""
        self._indexes.trim(self.largest_timestamp)
        self._log.trim()
        self._is_sealed = True

    def close(self) -> None:
        """Close the files, cut to what they hold, and flush what that changed. One that was only read is left alone."""
        try:
            if self._is_open:
                if self._log.trim():
                    self._log.flush()
                if self._indexes.trim(self._writer.known_largest_timestamp):
                    self._indexes.flush()
        finally:
            self.close_handlers()

    def close_handlers(self) -> None:
        """Close the files as they are."""
        self._log.close()
        self._indexes.close()

    def delete(self) -> None:
        """Delete the files. It does not matter which of them exist."""
        # First, so that nothing stays open if the file system refuses to delete.
        self.close_handlers()
        self._log.delete()
        self._indexes.delete()

    def change_suffix(self, old_suffix: str, new_suffix: str) -> None:
        """Rename the files, such as exist. With the suffix of deleted files they are closed first: nobody writes to them."""
        if new_suffix == DELETED_SUFFIX:
            self.close_handlers()
        suffix = self._suffix.removesuffix(old_suffix) + new_suffix
        self._log.rename(self._log_path(self._directory, suffix))
        self._indexes.rename(self._directory, suffix)
        self._suffix = suffix
