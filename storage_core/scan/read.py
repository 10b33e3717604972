"""The read itself: a task's spans become Arrow record batches.

window of a file → batches chosen by their headers → CRC → decompressed → columns → rows
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Final

from storage_core.directory import PartitionLog, find_partitions
from storage_core.errors import DataLossError
from storage_core.record import decode_records
from storage_core.scan.locate import locate_spans
from storage_core.scan.rows import RowMaker, wanted_fields
from storage_core.scan.sections import SectionMaker
from storage_core.scan.selection import AbortedRanges, select_batches
from storage_core.scan.window_reader import (
    WINDOW_BYTES,
    FileReplacedError,
    WindowBuffer,
    open_span,
    read_windows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from storage_core.filesystem import FileSystem, OpenFile
    from storage_core.scan.spans import LogSpan, ScanTask

__all__ = ["read_task"]

_log = logging.getLogger(__name__)

# How often a range is found again without any progress: a cleaner replaces a segment rarely.
_ATTEMPTS: Final = 5


def read_task(filesystem: FileSystem, task: ScanTask, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read a task's rows, in the order of its spans and offsets.

    Args:
        filesystem: Where to read.
        task: As planned by `plan_scan`.
        schema: The columns wanted, of `record_schema`.

    Yields:
        Record batches of exactly that schema, none empty, 65,536 rows at the most.

    Raises:
        CorruptRecordError: A batch is damaged.
        BatchTooLargeError: A batch is, or inflates to, more than the limit.
        UnsupportedFormatError: A message of format v0 or v1.
        TimestampRangeError: A timestamp does not fit the column.
        DataLossError: Offsets vanished since the read was planned.
    """
    reader = _TaskReader(filesystem, task, schema)
    for span in task.spans:
        yield from reader.read(span)


class _TaskReader:
    """Reads span after span with the same buffers."""

    def __init__(self, filesystem: FileSystem, task: ScanTask, schema: pa.Schema) -> None:
        self._filesystem = filesystem
        self._settings = task.settings
        self._wanted = wanted_fields(schema)
        self._rows = RowMaker(schema)
        self._sections = SectionMaker(task.settings.max_batch_bytes, self._wanted)
        largest_bytes = max((span.size_bytes for span in task.spans), default=0)
        self._buffer = WindowBuffer(min(WINDOW_BYTES, largest_bytes))

    def read(self, span: LogSpan) -> Iterator[pa.RecordBatch]:
        pending = [span]
        attempts = _ATTEMPTS
        while pending:
            progress = _Progress(pending[0])
            try:
                with open_span(self._filesystem, pending[0]) as opened:
                    yield from self._read_file(opened, progress)
                del pending[0]
            except FileReplacedError:
                attempts = _ATTEMPTS if progress.has_moved else attempts - 1
                pending = self._find_again(span, progress.next_offset, attempts)

    def _read_file(self, opened: OpenFile, progress: _Progress) -> Iterator[pa.RecordBatch]:
        span = progress.span
        aborted = AbortedRanges(span.aborted_transactions)
        lowest_offset = span.base_offset
        for window in read_windows(opened, span, self._buffer, self._settings.max_batch_bytes):
            chosen = select_batches(window, span, aborted, lowest_offset)
            window.check_crc(chosen.checked)
            for section in self._sections.sections(window, chosen.decoded):
                columns = decode_records(section, self._wanted)
                yield from self._rows.batches(section, columns, span)
            lowest_offset = chosen.next_offset
            progress.next_offset = max(progress.next_offset, chosen.next_offset)
            if chosen.is_past_end:
                return

    def _find_again(self, span: LogSpan, next_offset: int, attempts: int) -> list[LogSpan]:
        """The rest of a span, where it lies now."""
        if next_offset >= span.end_offset:
            return []
        if not attempts:
            self._report_loss(
                span, next_offset, "their segment replaced again and again while they were read"
            )
            return []
        spans: list[LogSpan] = []
        try:
            log = self._present_log(span)
            if log is not None:
                start_offset = max(next_offset, log.log_start_offset)
                is_complete = start_offset == next_offset and log.log_end_offset >= span.end_offset
                spans = locate_spans(log, start_offset, span.end_offset, span.aborted_transactions)
        except (DataLossError, FileNotFoundError):
            # Replaced once more while it was looked for: the next attempt begins with what was planned.
            return [dataclasses.replace(span, start_offset=next_offset)]
        if log is None:
            self._report_loss(span, next_offset, "the partition's directory gone since the read was planned")
        elif not is_complete:
            present = f"the log to go from offset {log.log_start_offset} to {log.log_end_offset} by now"
            self._report_loss(span, next_offset, f"{present}: data was deleted or truncated")
        return spans

    def _present_log(self, span: LogSpan) -> PartitionLog | None:
        if self._filesystem.status(span.directory, follow_symlinks=True) is None:
            return None
        found = find_partitions(self._filesystem, [span.directory], follow_symlinks=True)
        if not found:
            return None
        settings = self._settings
        return PartitionLog.load(
            self._filesystem,
            found[0],
            use_indexes=settings.use_indexes,
            max_batch_bytes=settings.max_batch_bytes,
        )

    def _report_loss(self, span: LogSpan, next_offset: int, found: str) -> None:
        message = (
            f"Expected to read offsets {next_offset} to {span.end_offset - 1} of {span.topic}-{span.partition}, "
            f"found {found}."
        )
        if self._settings.fail_on_data_loss:
            raise DataLossError(
                f"{message} To read what is left, set failOnDataLoss to false.",
                path=span.directory,
                offset=next_offset,
                last_offset=span.end_offset - 1,
            )
        _log.warning("%s Reading goes on with what is left, because failOnDataLoss is false.", message)


class _Progress:
    """How far the reading of one span has come."""

    __slots__ = ("next_offset", "span")

    def __init__(self, span: LogSpan) -> None:
        self.span = span
        self.next_offset = span.start_offset

    @property
    def has_moved(self) -> bool:
        return self.next_offset > self.span.start_offset
