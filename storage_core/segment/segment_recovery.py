"""Scanning a log file for its valid batches and the index entries that they get (for Kafka's ``LogSegment.recover``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from storage_core.errors import CorruptError, CorruptRecordError, OffsetOverflowError
from storage_core.record.batch_header import NO_TIMESTAMP_MS
from storage_core.segment.batch_windows import part_of, read_windows
from storage_core.segment.file_names import AbortedTransaction, TimestampOffset
from storage_core.segment.index_file import LARGEST_RELATIVE_OFFSET
from storage_core.segment.segment_indexes import IndexEntries, index_entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    from storage_core.filesystem import ReadableFile
    from storage_core.record.batch_window import BatchWindow


WindowObserver: TypeAlias = "Callable[[BatchWindow], Iterable[AbortedTransaction] | None]"
"""Receives the valid batches of a segment, window by window, and may return the transactions aborted in them."""


@dataclass(frozen=True, slots=True)
class RecoveredSegment:
    """Result of a recovery: what it has found, and what it truncates.

    Args:
        truncated_bytes: How many bytes follow the last valid batch.
        next_offset: The offset after the last valid batch; the base offset if there is none.
        end_position_bytes: Where the last valid batch ends.
        problem: What is wrong with the bytes after it. None if there are none, if they are zeros, or if they
            are the beginning of a batch that reaches beyond the end of the file.
    """

    truncated_bytes: int
    next_offset: int
    end_position_bytes: int
    problem: CorruptError | None


def scan_segment(
    log_file: ReadableFile,
    base_offset: int,
    end_position_bytes: int,
    index_interval_bytes: int,
    *,
    max_batch_bytes: int,
    observe: WindowObserver | None = None,
    start_position_bytes: int = 0,
) -> SegmentScan:
    """Read a log file from a batch boundary on, check every CRC, and stop before the first invalid batch.

    Raises:
        OffsetOverflowError: A valid batch has an offset that the segment's indexes cannot hold.
        BatchTooLargeError: A valid batch is larger than ``max_batch_bytes``.
    """
    scan = SegmentScan(base_offset, start_position_bytes, index_interval_bytes, observe)
    for window in read_windows(
        log_file, start_position_bytes, end_position_bytes, base_offset, max_batch_bytes=max_batch_bytes
    ):
        if not scan.take(window):
            break
    return scan


class SegmentScan:
    """Result of a scan of the valid batches at the beginning of a log file.

    Attributes:
        entries: The entries of the indexes, one part for each window.
    """

    def __init__(
        self,
        base_offset: int,
        start_position_bytes: int,
        index_interval_bytes: int,
        observe: WindowObserver | None,
    ) -> None:
        self.end_position_bytes = start_position_bytes
        self.next_offset = base_offset
        self.largest_timestamp = TimestampOffset(NO_TIMESTAMP_MS, base_offset)
        self.entries: list[IndexEntries] = []
        self.aborted_transactions: list[AbortedTransaction] = []
        self.problem: CorruptError | None = None
        self._base_offset = base_offset
        self._index_interval_bytes = index_interval_bytes
        self._observe = observe
        self._bytes_since_last_entry = 0

    def take(self, window: BatchWindow) -> bool:
        """Add the valid batches of a window. Return False if the scan ends with them."""
        last_offsets = window.last_offsets
        count = self._count_valid(window, window.base_offsets, last_offsets)
        if count:
            self._check_range(window, last_offsets[:count])
            count = self._show(window, count)
        if count:
            self._take(window, count, last_offsets[:count])
        if count < len(window.starts):
            return False
        self.problem = window.error
        return True

    def _count_valid(
        self, window: BatchWindow, base_offsets: npt.NDArray[np.int64], last_offsets: npt.NDArray[np.int64]
    ) -> int:
        count = len(window.starts)
        # A base offset and a delta that exceed the largest offset have a negative sum.
        is_disordered = last_offsets < base_offsets
        is_disordered[:1] |= bool(count) and int(base_offsets[0]) < self.next_offset
        is_disordered[1:] |= base_offsets[1:] <= last_offsets[:-1]
        in_order = int(is_disordered.argmax()) if is_disordered.any() else count
        damaged = window.crc_mismatches(np.arange(in_order))
        if len(damaged):
            header = window.header(int(damaged[0]))
            self.problem = CorruptRecordError(
                f"Expected a record batch with CRC {header.crc:#010x}, found another one: the batch was torn, or "
                "damaged after it was written.",
                **header.error_location(window.path),
            )
            return int(damaged[0])
        if in_order < count:
            lowest_offset = int(last_offsets[in_order - 1]) + 1 if in_order else self.next_offset
            self.problem = _disorder(window, in_order, lowest_offset)
        return in_order

    def _check_range(self, window: BatchWindow, last_offsets: npt.NDArray[np.int64]) -> None:
        # Ascending: the last one is the largest.
        if last_offsets[-1] - self._base_offset > LARGEST_RELATIVE_OFFSET:
            number = int(np.searchsorted(last_offsets, self._base_offset + LARGEST_RELATIVE_OFFSET, "right"))
            raise OffsetOverflowError(
                f"Expected offsets up to {self._base_offset + LARGEST_RELATIVE_OFFSET}, which a segment's indexes "
                f"can hold, found {int(last_offsets[number])}. The batch's base offset is damaged, or the segment "
                "has to be split.",
                path=window.path,
                position_bytes=window.position_bytes + int(window.starts[number]),
                offset=int(last_offsets[number]),
            )

    def _take(self, window: BatchWindow, count: int, last_offsets: npt.NDArray[np.int64]) -> None:
        end = window.end if count == len(window.starts) else int(window.starts[count])
        headers = window.headers[:count]
        entries = index_entries(
            last_offsets,
            headers["max_timestamp_ms"],
            np.diff(window.starts[:count], append=end),
            self.end_position_bytes,
            self._index_interval_bytes,
            largest_timestamp=self.largest_timestamp,
            bytes_since_last_entry=self._bytes_since_last_entry,
        )
        self.entries.append(entries)
        self.largest_timestamp = entries.largest_timestamp
        self._bytes_since_last_entry = entries.bytes_since_last_entry
        self.end_position_bytes += end
        self.next_offset = int(last_offsets[-1]) + 1

    def _show(self, window: BatchWindow, count: int) -> int:
        """Pass the first batches of a window to the observer, and return how many of them it accepts.

        A meaningless marker under a matching CRC ends the scan as a wrong CRC does: its batch is refused.
        """
        if self._observe is None:
            return count
        while count:
            try:
                self.aborted_transactions.extend(self._observe(part_of(window, 0, count)) or ())
            except CorruptRecordError as error:
                if error.position_bytes is None or error.position_bytes < window.position_bytes:
                    raise
                self.problem = error
                # The count falls with each round, so this ends.
                refused = error.position_bytes - window.position_bytes
                count = min(count - 1, int(np.searchsorted(window.starts, refused)))
            else:
                break
        return count


def _disorder(window: BatchWindow, number: int, lowest_offset: int) -> CorruptRecordError:
    header = window.header(number)
    return CorruptRecordError(
        f"Expected a batch with offsets from {lowest_offset} on, found one from {header.base_offset} to "
        f"{header.last_offset}: batches are out of order.",
        path=window.path,
        position_bytes=header.position_bytes,
        offset=header.base_offset,
    )
