"""What is in a segment that is written, and what can be asked of it (the half of ``LogSegment`` that changes nothing)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from storage_core.record.batch_header import LOG_OVERHEAD_BYTES
from storage_core.segment.file_names import log_file_name
from storage_core.segment.log_file import LogFile
from storage_core.segment.log_view import LogFileView
from storage_core.segment.roll import draw_roll_jitter_ms
from storage_core.segment.segment_files import DEFAULT_MAX_BATCH_BYTES
from storage_core.segment.segment_indexes import SegmentIndexes
from storage_core.segment.segment_reader import SegmentReader
from storage_core.segment.segment_windows import WINDOW_BYTES, read_windows
from storage_core.segment.segment_writer import SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.filesystem import FileSystem
    from storage_core.log_config import LogConfig
    from storage_core.record.batch_header import BatchHeader
    from storage_core.record.batch_window import BatchWindow
    from storage_core.segment.log_view import FetchedData
    from storage_core.segment.offset_index_file import OffsetIndexFile
    from storage_core.segment.roll import RollParameters
    from storage_core.segment.time_index_file import TimeIndexFile
    from storage_core.segment.transaction_index_file import TransactionIndexFile
    from storage_core.segment.values import TimestampOffset

__all__ = ["SegmentContents"]

_LARGEST_TIMESTAMP_MS: Final = 2**63 - 1


class SegmentContents:
    """A log file and its indexes, and what they hold. No file is opened before it is needed.

    Args:
        filesystem: Through which the files are read and written.
        directory: The partition's directory.
        base_offset: Lower bound of the offsets inside.
        config: The log's configuration.
        now_ms: The time, from which the segment's age counts.
        suffix: What follows the file names.

    Attributes:
        base_offset: Lower bound of the offsets inside.
        roll_jitter_ms: How much earlier than ``segment.ms`` says this segment rolls.
    """

    __slots__ = (
        "_config",
        "_created_ms",
        "_directory",
        "_filesystem",
        "_first_batch_timestamp_ms",
        "_indexes",
        "_is_sealed",
        "_log",
        "_max_batch_bytes",
        "_suffix",
        "_writer",
        "base_offset",
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
        suffix: str,
    ) -> None:
        self.base_offset = base_offset
        self.roll_jitter_ms = draw_roll_jitter_ms(config)
        self._filesystem = filesystem
        self._directory = directory
        self._suffix = suffix
        self._config = config
        self._log = LogFile(filesystem, self._log_path(directory, suffix))
        self._indexes = SegmentIndexes(filesystem, directory, base_offset, suffix, config.segment_index_bytes)
        self._writer = SegmentWriter(self._log, self._indexes, base_offset, config.index_interval_bytes)
        self._created_ms = now_ms
        self._is_sealed = False
        self._max_batch_bytes = _max_batch_bytes(config)
        # None if it is not known, or if there is no batch.
        self._first_batch_timestamp_ms: int | None = None

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
        """When the log file was changed; 0 if it is not there."""
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
        """The largest timestamp, and the last offset of the first batch that holds it; (-1, base offset) if none.

        Of a segment that was opened, it is what its time index ends with.
        """
        return self._writer.largest_timestamp

    @property
    def first_batch_timestamp_ms(self) -> int:
        """The first batch's largest timestamp; the largest number there is without a batch or a timestamp."""
        timestamp_ms = self._load_first_batch_timestamp()
        return _LARGEST_TIMESTAMP_MS if timestamp_ms is None or timestamp_ms < 0 else timestamp_ms

    def reader(self) -> SegmentReader:
        """Read what is in the segment now; what is appended later does not show."""
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
        """The whole batches from a boundary on, in windows that are valid until the next one. No CRC is checked.

        They end quietly where there is no whole batch.
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

    def translate_offset(self, offset: int, start_position_bytes: int = 0) -> BatchHeader | None:
        """The first batch whose last offset is at least ``offset``, if there is one; behind a gap if it lies in one."""
        return self._view().translate_offset(offset, start_position_bytes)

    def read(
        self,
        start_offset: int,
        max_size_bytes: int,
        max_position_bytes: int | None = None,
        *,
        min_one_message: bool = False,
    ) -> FetchedData | None:
        """Read bytes from the batch on that holds an offset, or from the one behind the gap that it lies in.

        Args:
            start_offset: The offset. The batch may begin below it.
            max_size_bytes: How much to read. The last batch is cut there.
            max_position_bytes: Where in the file to stop; None for where the batches end.
            min_one_message: Whether the first batch is read whole even if it is larger.

        Returns:
            None if the offset lies behind the last batch.
        """
        return self._view().read(
            start_offset, max_size_bytes, max_position_bytes, min_one_message=min_one_message
        )

    def read_next_offset(self) -> int:
        """The offset behind the last batch, read from the file; the base offset without a batch."""
        return self._view().next_offset()

    def walked_next_offset(self) -> int:
        """The same, whatever the offset index says: found by a walk over all headers."""
        return self._view().walked_next_offset()

    def offset_for_timestamp(self, timestamp_ms: int, start_offset: int = 0) -> TimestampOffset | None:
        """The first record at least so young whose offset is not below another one."""
        return self.reader().offset_for_timestamp(timestamp_ms, max(start_offset, self.base_offset))

    def alter_config(self, config: LogConfig) -> None:
        """Roll, and take batches, as another configuration says. Its index files stay as they were begun."""
        self._config = config
        # What was written when larger ones were taken is still read.
        self._max_batch_bytes = max(self._max_batch_bytes, _max_batch_bytes(config))

    def should_roll(self, parameters: RollParameters) -> bool:
        """Whether what is to be appended goes to a new segment."""
        config = self._config
        size_bytes = self.size_bytes
        return (
            size_bytes > config.max_segment_bytes - parameters.messages_size_bytes
            or (
                size_bytes > 0
                and self.time_waited_for_roll_ms(parameters.now_ms, parameters.max_timestamp_ms)
                > config.max_segment_ms - self.roll_jitter_ms
            )
            or self.offset_index.is_full
            or self.time_index.is_full
            or not self.offset_index.can_append(parameters.max_offset)
        )

    def time_waited_for_roll_ms(self, now_ms: int, max_timestamp_ms: int) -> int:
        """How far a timestamp lies behind the first batch's; the segment's age if that has none."""
        first_ms = self._load_first_batch_timestamp()
        return now_ms - self._created_ms if first_ms is None or first_ms < 0 else max_timestamp_ms - first_ms

    @property
    def _is_open(self) -> bool:
        """Whether one of the files is open for writing."""
        return self._log.is_open or self._indexes.is_open

    def _view(self) -> LogFileView:
        return LogFileView(self._filesystem, self.path, self.base_offset, self.size_bytes, self.offset_index)

    def _load_first_batch_timestamp(self) -> int | None:
        if self._first_batch_timestamp_ms is None:
            first = self._view().first_batch()
            if first is not None:
                self._first_batch_timestamp_ms = first[4]
        return self._first_batch_timestamp_ms

    def _log_path(self, directory: str, suffix: str) -> str:
        return f"{directory}/{log_file_name(self.base_offset)}{suffix}"


def _max_batch_bytes(config: LogConfig) -> int:
    return max(DEFAULT_MAX_BATCH_BYTES, config.max_message_bytes + LOG_OVERHEAD_BYTES)
