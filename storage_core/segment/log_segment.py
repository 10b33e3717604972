"""One segment of a log, for writing (Kafka's ``LogSegment``), and the rule for when it rolls.

The log file is written before its indexes: a concurrent reader, in this process or in another one,
never finds an index entry before its batch. An append that fails leaves the object as it was, but not
necessarily the files: the owner of the log must then close it and recover the segment.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, TypeVar

import numpy as np

from storage_core.record.batch_header import LOG_OVERHEAD_BYTES, BatchHeader, batch_sizes_bytes, last_offsets
from storage_core.segment.batch_windows import WINDOW_BYTES, read_windows
from storage_core.segment.file_names import DELETED_SUFFIX, AbortedTransaction, TimestampOffset, log_file_name
from storage_core.segment.file_records import LogFile, LogFileView
from storage_core.segment.index_file import LARGEST_RELATIVE_OFFSET, offset_overflow
from storage_core.segment.offset_index import OffsetIndexFile
from storage_core.segment.segment_indexes import SegmentIndexes, index_entries
from storage_core.segment.segment_reader import DEFAULT_MAX_BATCH_BYTES, SegmentReader
from storage_core.segment.segment_recovery import RecoveredSegment, WindowObserver, scan_segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    import numpy.typing as npt

    from storage_core.filesystem import FileSystem
    from storage_core.log_config import LogConfig
    from storage_core.record.batch_header import BytesLike
    from storage_core.record.batch_window import BatchWindow
    from storage_core.record.record_batches import RecordBatches
    from storage_core.segment.time_index import TimeIndexFile
    from storage_core.segment.transaction_index import TransactionIndexFile

_IntOrArray = TypeVar("_IntOrArray", int, "npt.NDArray[np.int64]")


@dataclass(frozen=True, slots=True)
class RollParameters:
    """The properties of an append that decide whether the segment rolls, and the current time."""

    messages_size_bytes: int
    max_timestamp_ms: int
    max_offset: int
    now_ms: int


def draw_roll_jitter_ms(config: LogConfig) -> int:
    """Draw how much earlier than ``segment.ms`` a segment rolls, so that segments do not all roll at once."""
    if config.segment_jitter_ms == 0:
        return 0
    return random.randrange(min(config.segment_jitter_ms, config.segment_ms) or 1)  # noqa: S311  (only spreads load)


_LARGEST_TIMESTAMP_MS: Final = 2**63 - 1
_COPY_BYTES: Final = 1 << 20


def exceeds_segment(
    config: LogConfig,
    size_bytes: _IntOrArray,
    waited_ms: _IntOrArray | None,
    relative_offset: _IntOrArray,
    roll_jitter_ms: int = 0,
) -> bool | npt.NDArray[np.bool_]:
    """Return True if an append would exceed a segment's limits, so that it rolls (``LogSegment.shouldRoll``).

    A full index is one more reason, which the owner of the indexes checks.

    ``size_bytes`` is that of the log file with the append; ``waited_ms`` the distance of its largest timestamp from
    the first batch's, None without a first one; ``relative_offset`` the distance of its last offset from the base
    offset. Each is a number, or one for each of several appends.
    """
    is_beyond = (
        (size_bytes > config.max_segment_bytes)
        | (relative_offset < 0)
        | (relative_offset > LARGEST_RELATIVE_OFFSET)
    )
    if waited_ms is not None:
        is_beyond |= waited_ms > config.max_segment_ms - roll_jitter_ms
    return is_beyond


class LogSegment:
    """A log file, which exists and ends with its last batch, and its indexes. No file is opened before it is needed.

    One writer; readers get a `reader`, or ask for what a `LogFileView` answers.

    Attributes:
        base_offset: Lower bound of the offsets inside.
        roll_jitter_ms: How much earlier than ``segment.ms`` this segment rolls.
        bytes_since_last_entry: How much was appended since the last index entry, or since the segment was
            opened: as with a broker, earlier batches do not count.
    """

    __slots__ = (
        "_config",
        "_created_ms",
        "_directory",
        "_filesystem",
        "_first_batch_timestamp_ms",
        "_index_interval_bytes",
        "_indexes",
        "_is_sealed",
        "_largest_timestamp",
        "_log",
        "_max_batch_bytes",
        "_suffix",
        "base_offset",
        "bytes_since_last_entry",
        "roll_jitter_ms",
    )

    def __init__(
        self,
        filesystem: FileSystem,
        directory: str,
        base_offset: int,
        config: LogConfig,
        *,
        now_ms: int,
        suffix: str = "",
    ) -> None:
        self.base_offset = base_offset
        self.roll_jitter_ms = draw_roll_jitter_ms(config)
        self._filesystem = filesystem
        self._directory = directory
        self._suffix = suffix
        self._config = config
        self._log = LogFile(filesystem, self._log_path(directory, suffix))
        self._indexes = SegmentIndexes(filesystem, directory, base_offset, suffix, config.segment_index_bytes)
        self._largest_timestamp: TimestampOffset | None = None
        self._index_interval_bytes = config.index_interval_bytes
        self.bytes_since_last_entry = 0
        self._created_ms = now_ms
        self._is_sealed = False
        self._max_batch_bytes = _max_batch_bytes(config)
        # None if it is not known, or if there is no batch.
        self._first_batch_timestamp_ms: int | None = None

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
        like: Sequence[str] = (),
    ) -> Self:
        """Create a segment with an empty log file, of full size with ``preallocate``. The first append creates its indexes.

        They are as private as the files ``like``, from which the segment is made.
        """
        segment = cls(filesystem, directory, base_offset, config, now_ms=now_ms, suffix=suffix)
        segment._log.create(config.max_segment_bytes if config.preallocate else 0, like)
        return segment

    @property
    def path(self) -> str:
        """The log file."""
        return self._log.path

    @property
    def size_bytes(self) -> int:
        """Where the batches end in the log file, which may be longer."""
        return self._log.size_bytes

    @property
    def modified_ms(self) -> int:
        """Return the modification time of the log file, or 0 if the file does not exist."""
        status = self._filesystem.status(self.path)
        return 0 if status is None else status.modified_ms

    @property
    def offset_index(self) -> OffsetIndexFile:
        """The offset index."""
        return self._indexes.offsets

    @property
    def time_index(self) -> TimeIndexFile:
        """The time index."""
        return self._indexes.times

    @property
    def transaction_index(self) -> TransactionIndexFile:
        """The index of aborted transactions."""
        return self._indexes.transactions

    @property
    def free_index_entries(self) -> int:
        """How many more entries both indexes have room for."""
        return min(self.offset_index.room, self.time_index.room)

    @property
    def largest_timestamp(self) -> TimestampOffset:
        """Return the largest timestamp and the last offset of the first batch that holds it, or (-1, base offset)."""
        if self._largest_timestamp is None:
            self._largest_timestamp = self._indexes.times.last_entry
        return self._largest_timestamp

    @property
    def first_batch_timestamp_ms(self) -> int:
        """Return the first batch's largest timestamp, or the largest possible number without a batch or a timestamp."""
        timestamp_ms = self._load_first_batch_timestamp()
        return _LARGEST_TIMESTAMP_MS if timestamp_ms is None or timestamp_ms < 0 else timestamp_ms

    def reader(self) -> SegmentReader:
        """Return a reader of the segment as it is now: batches that are appended later are not visible."""
        status = self._filesystem.status(self.path)
        return SegmentReader(
            self._filesystem,
            self._directory,
            self.base_offset,
            suffix=self._suffix,
            max_batch_bytes=self._max_batch_bytes,
            known_status=status and dataclasses.replace(status, size_bytes=self.size_bytes),
        )

    def windows(
        self,
        start_position_bytes: int = 0,
        end_position_bytes: int | None = None,
        *,
        window_bytes: int = WINDOW_BYTES,
    ) -> Iterator[BatchWindow]:
        """Yield the whole batches from a boundary on in windows, each valid until the next one. No CRC is checked.

        The windows end without an error where there is no whole batch.
        """
        if end_position_bytes is None:
            end_position_bytes = self.size_bytes
        if start_position_bytes >= end_position_bytes:
            return
        with self._filesystem.open(self.path) as log_file:
            yield from read_windows(
                log_file,
                start_position_bytes,
                end_position_bytes,
                self.base_offset,
                max_batch_bytes=self._max_batch_bytes,
                window_bytes=window_bytes,
            )

    def translate_offset(self, offset: int) -> BatchHeader | None:
        """Return the first batch whose last offset is at least ``offset``: the one after a gap if it is in a gap."""
        return self._view().translate_offset(offset)

    def read_next_offset(self) -> int:
        """Read the offset after the last batch from the file, or return the base offset without a batch."""
        return self._view().next_offset()

    def walked_next_offset(self) -> int:
        """Return the offset after the last batch by a walk over all headers, ignoring the offset index."""
        return self._view().walked_next_offset()

    def alter_config(self, config: LogConfig) -> None:
        """Use another configuration for rolling and for the size of batches. The index files keep their settings."""
        self._config = config
        # Batches that were written under a larger limit are still read.
        self._max_batch_bytes = max(self._max_batch_bytes, _max_batch_bytes(config))

    def should_roll(self, parameters: RollParameters) -> bool:
        """Return True if an append goes to a new segment, as `exceeds_segment` decides."""
        size_bytes = self.size_bytes + parameters.messages_size_bytes
        relative_offset = parameters.max_offset - self.base_offset
        if self._indexes.offsets.is_full or self._indexes.times.is_full:
            return True
        if exceeds_segment(self._config, size_bytes, None, relative_offset):
            return True
        if not self.size_bytes:
            return False
        # The first batch is read only for a segment that would not roll without its time.
        waited_ms = self.time_waited_for_roll_ms(parameters.now_ms, parameters.max_timestamp_ms)
        return bool(
            exceeds_segment(self._config, size_bytes, waited_ms, relative_offset, self.roll_jitter_ms)
        )

    def time_waited_for_roll_ms(self, now_ms: int, max_timestamp_ms: int) -> int:
        """Measure how far a timestamp is from the first batch's, or the segment's age if the first batch has none."""
        first_ms = self._load_first_batch_timestamp()
        return now_ms - self._created_ms if first_ms is None or first_ms < 0 else max_timestamp_ms - first_ms

    def append(self, batches: RecordBatches) -> None:
        """Write batches at the end, and index them. They are not flushed.

        Raises:
            OffsetOverflowError: An offset does not fit the segment; nothing was written.
            RecordBatchTooLargeError: The log file would become too large; nothing was written.
            StorageError: Not everything could be written.
        """
        self._is_sealed = False
        if batches.count == 1:
            self._append_one(batches)
        elif batches.count:
            timestamps_ms = batches.headers["max_timestamp_ms"]
            self._append_many(batches.pieces, batches.last_offsets, timestamps_ms, batches.sizes_bytes)

    def append_pieces(self, headers: npt.NDArray[Any], pieces: Sequence[BytesLike]) -> None:
        """Write at least one batch as `append` does, given the headers, and all bytes in pieces of any size."""
        self._is_sealed = False
        timestamps_ms = headers["max_timestamp_ms"]
        self._append_many(pieces, last_offsets(headers), timestamps_ms, batch_sizes_bytes(headers))

    def append_from_file(self, source: LogSegment, start_position_bytes: int = 0) -> int:
        """Copy batches of another segment from a boundary on, up to the first whose last offset does not fit.

        Returns:
            How many bytes were copied.
        """
        self._is_sealed = False
        copied_bytes = 0
        for window in source.windows(start_position_bytes, window_bytes=_COPY_BYTES):
            last_offsets = window.last_offsets
            relative_offsets = last_offsets - self.base_offset
            fits = (relative_offsets >= 0) & (relative_offsets <= LARGEST_RELATIVE_OFFSET)
            count = len(fits) if fits.all() else int(fits.argmin())
            borders = np.append(window.starts, window.end)[: count + 1]
            if count:
                size_bytes = int(borders[-1])
                pieces = [window.buffer.data[:size_bytes]]
                timestamps_ms = window.headers["max_timestamp_ms"][:count]
                self._append_many(pieces, last_offsets[:count], timestamps_ms, np.diff(borders))
                copied_bytes += size_bytes
            if count < len(fits):
                break
        return copied_bytes

    def append_aborted_transaction(self, transaction: AbortedTransaction) -> None:
        """Index a transaction whose abort marker was appended."""
        self.transaction_index.append(transaction)

    def recover(
        self,
        observe: WindowObserver | None = None,
        *,
        confirm: Callable[[RecoveredSegment], None] | None = None,
    ) -> RecoveredSegment:
        """Rebuild the indexes from the valid batches at the log's beginning, and cut off what follows them.

        All bytes are read, and every CRC is checked, before any file is changed. ``confirm`` receives the result
        before that, and may raise an error to prevent the change.

        Raises:
            OffsetOverflowError: A valid batch has an offset that does not fit the segment. Nothing was changed.
            BatchTooLargeError: A valid batch is too large to be read. Nothing was changed.
        """
        with self._filesystem.open(self.path) as log_file:
            # Preallocated space counts, like everything else after the batches.
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
        self._restart(scan.largest_timestamp)
        self._first_batch_timestamp_ms = None
        self._indexes.trim(scan.largest_timestamp)
        # Many segments may be recovered in a row.
        self.close_handlers()
        return recovered

    def truncate_to(self, offset: int, *, now_ms: int) -> int:
        """Drop the batch that holds an offset, or follows the gap that it is in, and all later ones.

        The age of a segment that is empty then counts from ``now_ms``.

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
        self._restart(
            self._view().largest_timestamp_from(self.time_index.last_entry)
            if known.timestamp_ms >= 0
            else known
        )
        return cut_bytes

    def resize_indexes(self, *, on_write: bool = False) -> None:
        """Give offset and time index their full size: at once, or when there is something to write."""
        self._is_sealed = False
        self._indexes.resize(on_write=on_write)

    def set_modified_ms(self, modified_ms: int) -> None:
        """Set the modification time of the log file, which replaces another one. The next flush makes it durable."""
        self._filesystem.set_modified_ms(self.path, modified_ms)

    def flush_log(self) -> None:
        """Flush the log file alone to disk."""
        self._log.flush()

    def prepare_log_flush(self) -> Callable[[], None]:
        """Prepare a flush of the log file, as `PooledFile.prepare_flush` does."""
        return self._log.prepare_flush()

    def flush(self) -> None:
        """Flush all files to disk. Offset and time index are created if they do not exist."""
        is_written = self._is_open and not self._is_sealed
        if not self._is_open:
            self._indexes.trim(None)
        self._log.flush()
        self._indexes.flush()
        if not is_written:
            # A log may have more segments than a process may have open files.
            self.close_handlers()

    def seal(self) -> None:
        """End the time as a log's last segment: complete the time index, and cut the files to their contents."""
        self._indexes.trim(self.largest_timestamp)
        self._log.trim()
        self._is_sealed = True

    def close(self) -> None:
        """Cut the files to their contents, flush that, and close them. Files that were only read stay as they are."""
        try:
            if self._is_open:
                if self._log.trim():
                    self._log.flush()
                if self._indexes.trim(self._largest_timestamp):
                    self._indexes.flush()
        finally:
            self.close_handlers()

    def close_handlers(self) -> None:
        """Close the files as they are."""
        self._log.close()
        self._indexes.close()

    def delete(self) -> None:
        """Delete the files that exist."""
        # Before deleting, so that nothing stays open if the file system refuses.
        self.close_handlers()
        self._log.delete()
        self._indexes.delete()

    def change_suffix(self, old_suffix: str, new_suffix: str) -> None:
        """Rename the files that exist. Deleted files are closed first, since nothing writes to them anymore."""
        if new_suffix == DELETED_SUFFIX:
            self.close_handlers()
        suffix = self._suffix.removesuffix(old_suffix) + new_suffix
        self._log.rename(self._log_path(self._directory, suffix))
        self._indexes.rename(self._directory, suffix)
        self._suffix = suffix

    def _append_one(self, batches: RecordBatches) -> None:
        # Plain numbers: for one batch, numpy would take longer than the write.
        base_offset, batch_length, _, _, _, _, offset_delta, _, max_timestamp_ms, *_ = batches.headers[
            0
        ].item()
        size_bytes = batch_length + LOG_OVERHEAD_BYTES
        last_offset = base_offset + offset_delta
        if not 0 <= last_offset - self.base_offset <= LARGEST_RELATIVE_OFFSET:
            raise offset_overflow(self._log.path, self.base_offset, last_offset)
        largest = self.largest_timestamp
        if max_timestamp_ms > largest.timestamp_ms:
            largest = TimestampOffset(max_timestamp_ms, last_offset)
        indexes = self._indexes
        if not indexes.is_open:
            indexes.open()
        log = self._log
        log.write(batches.pieces, size_bytes)
        counted_bytes = self.bytes_since_last_entry
        if counted_bytes > self._index_interval_bytes:
            indexes.add_one(last_offset, log.size_bytes, largest)
            counted_bytes = 0
        log.advance(size_bytes)
        self._largest_timestamp = largest
        self.bytes_since_last_entry = counted_bytes + size_bytes

    def _append_many(
        self,
        pieces: Sequence[BytesLike],
        last_offsets: npt.NDArray[np.int64],
        max_timestamps_ms: npt.NDArray[Any],
        sizes_bytes: npt.NDArray[np.int64],
    ) -> None:
        for last_offset in (int(last_offsets[0]), int(last_offsets[-1])):
            if not 0 <= last_offset - self.base_offset <= LARGEST_RELATIVE_OFFSET:
                raise offset_overflow(self._log.path, self.base_offset, last_offset)
        indexes = self._indexes
        entries = index_entries(
            last_offsets,
            max_timestamps_ms,
            sizes_bytes,
            self._log.size_bytes,
            self._index_interval_bytes,
            largest_timestamp=self.largest_timestamp,
            bytes_since_last_entry=self.bytes_since_last_entry,
        )
        size_bytes = int(sizes_bytes.sum())
        if not indexes.is_open:
            indexes.open()
        self._log.write(pieces, size_bytes)
        indexes.add(entries)
        self._log.advance(size_bytes)
        self._largest_timestamp = entries.largest_timestamp
        self.bytes_since_last_entry = entries.bytes_since_last_entry

    @property
    def _is_open(self) -> bool:
        return self._log.is_open or self._indexes.is_open

    def _restart(self, largest_timestamp: TimestampOffset | None) -> None:
        """Continue after another end: the segment was cut, or recovered."""
        self._largest_timestamp = largest_timestamp
        self.bytes_since_last_entry = 0

    def _view(self) -> LogFileView:
        return LogFileView(self._filesystem, self.path, self.base_offset, self.size_bytes, self.offset_index)

    def _load_first_batch_timestamp(self) -> int | None:
        if self._first_batch_timestamp_ms is None:
            first = self._view().first_batch()
            if first is not None:
                self._first_batch_timestamp_ms = first.max_timestamp_ms
        return self._first_batch_timestamp_ms

    def _log_path(self, directory: str, suffix: str) -> str:
        return f"{directory}/{log_file_name(self.base_offset)}{suffix}"


def _max_batch_bytes(config: LogConfig) -> int:
    return max(DEFAULT_MAX_BATCH_BYTES, config.max_message_bytes + LOG_OVERHEAD_BYTES)
