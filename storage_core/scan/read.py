"""Run a task: its spans become Arrow record batches.

window of a file → valid batches, and damage between them → decompressed → columns → rows

A batch whose records contradict its header, although its CRC is right, is damaged too. Unless that
fails the read, the batches of its section are then decoded one by one.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import logging
import os
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from storage_core.checkpoint.truncations_file import truncated_to
from storage_core.directory import INTERNAL_TOPICS, LogDirectoryFiles, PartitionLog, find_partitions
from storage_core.directory.remote_half import join_halves, with_present_remote_half
from storage_core.errors import (
    CorruptError,
    DataLossError,
    FileReplacedError,
    LogTruncationError,
    SegmentLogError,
    UnsupportedFormatError,
    visible,
)
from storage_core.record import WantedFields, decode_records
from storage_core.record.batch_header import MAGIC_V2
from storage_core.record.section import SectionMaker
from storage_core.scan.isolation import AbortedTransactions
from storage_core.scan.offset_ranges import PartitionRange, locate_spans, report_data_loss
from storage_core.scan.read_notes import ReadNotes
from storage_core.scan.rows import (
    DamageReporter,
    RecordBatchBuilder,
    fitting_rows,
    schema_with_condition,
    wanted_fields,
)
from storage_core.scan.span_reader import SpanReader, count_by_headers, open_span
from storage_core.scan.spans import project, record_schema, typed_schema
from storage_core.scan.typed_rows import TypedRows
from storage_core.segment import DamagedRange
from storage_core.segment.batch_windows import WINDOW_BYTES, WindowBuffer, part_of
from storage_core.segment.file_names import DELETED_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    import numpy.typing as npt

    from storage_core.filesystem import ReadableFile, ReadableFileSystem
    from storage_core.options import ReadOptions
    from storage_core.record.batch_window import BatchWindow
    from storage_core.record.section import RecordColumns, RecordSection
    from storage_core.scan.rows import RowMaker
    from storage_core.scan.span_reader import WindowPart
    from storage_core.scan.spans import LogSpan, ScanTask
    from storage_core.values.column_format import ColumnFormat


_DAMAGE: Final = (CorruptError, UnsupportedFormatError)


class RecordReader:
    """Decodes batches into rows, and reports those that cannot be decoded."""

    def __init__(self, sections: SectionMaker, wanted: WantedFields) -> None:
        self._sections = sections
        self._wanted = wanted

    def batches(
        self,
        window: BatchWindow,
        indexes: npt.NDArray[np.int64],
        rows_of: Callable[[RecordSection, RecordColumns], Iterable[pa.RecordBatch]],
        report: Callable[[DamagedRange], Iterable[pa.RecordBatch]] | None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some batches of a window.

        Args:
            window: The window.
            indexes: Which of its batches.
            rows_of: Makes rows of decoded records.
            report: Makes rows of a batch that cannot be decoded; None to raise its error.
        """
        while len(indexes):
            # How many batches are done, and how many are being decoded.
            done = pending = 0
            try:
                for section in self._sections.sections(window, indexes):
                    pending = len(section.headers)
                    columns = decode_records(section, self._wanted)
                    yield from rows_of(section, columns)
                    done, pending = done + pending, 0
            except _DAMAGE as error:
                if report is None:
                    raise
                # Decompression failed before there was a section.
                end = done + pending if pending else _count_up_to(window, indexes, error, done)
            else:
                return
            for index in indexes[done:end].tolist():
                yield from self._single(window, index, rows_of, report)
            indexes = indexes[end:]

    def _single(
        self,
        window: BatchWindow,
        index: int,
        rows_of: Callable[[RecordSection, RecordColumns], Iterable[pa.RecordBatch]],
        report: Callable[[DamagedRange], Iterable[pa.RecordBatch]],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one batch, or the report of its damage."""
        made: list[pa.RecordBatch] = []
        try:
            for section in self._sections.sections(window, np.array([index], np.int64)):
                columns = decode_records(section, self._wanted)
                made += rows_of(section, columns)
        except _DAMAGE as error:
            end_offset = self._offset_after(window, index)
            yield from report(_damaged_batch(window, index, end_offset, error))
            return
        yield from made

    def _offset_after(self, window: BatchWindow, index: int) -> int:
        """Return the offset after all records that a damaged batch may have held.

        A wrapper's own offset may be damaged. The first offset of the next batch is then the bound.
        """
        header = window.header(index)
        if not header.is_wrapper or index + 1 == len(window.starts):
            return header.next_offset
        next_header = window.header(index + 1)
        if not next_header.is_wrapper:
            return max(header.next_offset, next_header.base_offset)
        try:
            (section,) = self._sections.sections(window, np.array([index + 1], np.int64))
            return max(header.next_offset, int(decode_records(section, self._wanted).offsets[0]))
        except _DAMAGE:
            return header.next_offset


def _count_up_to(
    window: BatchWindow, indexes: npt.NDArray[np.int64], error: SegmentLogError, done: int
) -> int:
    """Count the batches up to the one that an error names, which is included."""
    if error.position_bytes is None:
        return len(indexes)
    starts = window.starts[indexes] + window.position_bytes
    return max(int(np.searchsorted(starts, error.position_bytes, side="right")), done + 1)


def _damaged_batch(window: BatchWindow, index: int, end_offset: int, error: SegmentLogError) -> DamagedRange:
    header = window.header(index)
    return DamagedRange(
        window.path,
        header.position_bytes,
        header.end_position_bytes,
        header.base_offset,
        end_offset,
        str(error.args[0]),
        type(error),
    )


_log = logging.getLogger(__name__)
# How often a span is located again without progress: a cleaner rarely replaces a segment.
_ATTEMPTS: Final = 5
# Small files are fetched ahead, up to this many times the bytes that a request costs.
_COSTS_AHEAD: Final = 8
_MOST_AHEAD: Final = 32


class _SegmentOrder:
    """Order of the segments that a task reads, to notice those that do not belong to one log.

    A batch that reaches into the next segment is damage, which a `SpanReader` finds. What is noticed here has no wrong
    byte: offsets that are missing up to the next segment, and leader epochs that go back.
    """

    def __init__(self) -> None:
        self._directory = ""
        self._epoch = -1

    def check(self, window: BatchWindow, span: LogSpan) -> None:
        """Warn if the first leader epoch of a window is lower than the one that was read last."""
        first, last = window.headers[0], window.headers[-1]
        if first["magic"] != MAGIC_V2 or last["magic"] != MAGIC_V2:
            self._epoch = -1
            return
        epoch = int(first["leader_epoch"])
        if span.directory == self._directory and 0 <= epoch < self._epoch:
            _log.warning(
                "%s: leader epochs go back from %d to %d at offset %d of %s-%d. Its segments may be those of several "
                "logs, as after files of two copies were merged, or a topic was created anew.",
                *(visible(window.path), self._epoch, epoch, first["base_offset"], span.topic, span.partition),
            )
        self._directory, self._epoch = span.directory, int(last["leader_epoch"])

    def forget(self) -> None:
        """Forget what was seen, because damage followed it."""
        self._epoch = -1

    @staticmethod
    def check_end(filesystem: ReadableFileSystem, window: BatchWindow, span: LogSpan) -> None:
        """Warn if offsets are missing after the last window of a closed segment, in a log that is not compacted.

        A log is compacted if the cleaner's checkpoint names it, or if offsets are missing elsewhere in the window.
        """
        end_offset, next_offset = span.segment_end_offset, window.next_offset
        if end_offset is None or span.end_offset < end_offset or next_offset >= end_offset:
            return
        if span.topic in INTERNAL_TOPICS or _may_be_compacted(window):
            return
        root = LogDirectoryFiles(filesystem, os.path.dirname(span.directory))
        if (span.topic, span.partition) in root.cleaner_offsets:
            return
        _log.warning(
            "%s: offsets %d to %d of %s-%d are missing before the next segment, though the log does not look compacted. "
            "A segment may be lost.",
            *(visible(window.path), next_offset, end_offset - 1, span.topic, span.partition),
        )


def _may_be_compacted(window: BatchWindow) -> bool:
    """Return True if offsets are missing within or between the batches of a window, or may be, as in older formats."""
    is_legacy = (window.headers["magic"] != MAGIC_V2).any()
    has_gaps = (window.base_offsets[1:] != window.last_offsets[:-1] + 1).any()
    return bool(is_legacy or window.has_holes or has_gaps)


def read_task(filesystem: ReadableFileSystem, task: ScanTask, schema: pa.Schema) -> Generator[pa.RecordBatch]:
    """Read a task's rows as `read_tasks` does."""
    return read_tasks(filesystem, (task,), schema)


def read_tasks(
    filesystem: ReadableFileSystem,
    tasks: Iterable[ScanTask],
    schema: pa.Schema,
    notes: ReadNotes | None = None,
    *,
    by_headers: bool = False,
) -> Generator[pa.RecordBatch]:
    """Read the rows of tasks, in the order of their spans and offsets.

    Args:
        filesystem: Where to read.
        tasks: As planned by `plan_scan`.
        schema: The columns to read, of `record_schema` or `typed_schema`.
        notes: Those of a larger read, which reports them.
        by_headers: Trust headers, because only the number of rows is wanted, and damage fails the read.

    Yields:
        Record batches of exactly that schema, none empty, each of at most 65,536 rows; or, by headers, of any rows.

    Raises:
        CorruptRecordError: A batch is damaged.
        BatchTooLargeError: A batch is, or inflates to, more than the limit.
        UnsupportedFormatError: A batch names an unknown codec.
        TimestampRangeError: A timestamp does not fit the column.
        DataLossError: Offsets were deleted since the read was planned.
        LogTruncationError: The log was truncated or deleted since the read was planned.
        ValueDecodeError: A key or value does not decode.
    """
    found = notes or ReadNotes()
    try:
        for task in tasks:
            rows = TypedRows(schema, task.settings, found)
            reader = _TaskReader(filesystem, task, rows.stored_schema, found, by_headers)
            yield from rows.decoded(reader.read_all(task.spans))
    finally:
        if notes is None:
            found.report()


class _TaskReader:
    """Reads spans one after the other, with the same buffers."""

    def __init__(
        self,
        filesystem: ReadableFileSystem,
        task: ScanTask,
        schema: pa.Schema,
        notes: ReadNotes,
        by_headers: bool,
    ) -> None:
        self._filesystem = filesystem
        self._by_headers = by_headers
        self._settings = task.settings
        predicate = task.settings.predicate
        needed = schema_with_condition(schema, predicate)
        wanted = wanted_fields(needed)
        self._filter: PredicateFilter | None = None
        if predicate is not None:
            from storage_core.scan.row_filter import PredicateFilter  # noqa: PLC0415  (slow to import)

            self._filter = PredicateFilter(schema, predicate, task.settings, notes)
        self._rows: RowMaker = (self._filter or RecordBatchBuilder(schema, task.settings, notes)).batches
        if task.settings.mode == "DROPMALFORMED" and "timestamp" in needed.names:
            self._rows = partial(fitting_rows, self._rows)
        self._damage = DamageReporter(schema, task.settings)
        self._records = RecordReader(SectionMaker(task.settings.max_batch_bytes, wanted), wanted)
        self._truncations_bytes = dict(task.settings.truncations_bytes)
        largest_bytes = max((span.size_bytes for span in task.spans), default=0)
        self._buffer = WindowBuffer(min(WINDOW_BYTES, largest_bytes))
        self._order = _SegmentOrder()
        # The offset after what was read of the present span.
        self._next_offset = 0
        # The last offset and the CRC of the last batch that was read of it.
        self._last_batch: tuple[int, int] | None = None

    def read_all(self, spans: Iterable[LogSpan]) -> Iterator[pa.RecordBatch]:
        """Read spans one after the other. Where a request takes long, the next small ones are fetched meanwhile."""
        left = iter(spans)
        ahead: deque[tuple[LogSpan, ReadableFile | None]] = deque()
        try:
            while self._fetch_ahead(left, ahead):
                yield from self._read_as_planned(*ahead.popleft())
        finally:
            for _, opened in ahead:
                if opened is not None:
                    opened.close()

    def _fetch_ahead(
        self, left: Iterator[LogSpan], ahead: deque[tuple[LogSpan, ReadableFile | None]]
    ) -> bool:
        """Add the next span, and those that may be fetched ahead. Return False if none is left."""
        size_bytes = sum(span.size_bytes for span, _ in ahead)
        room_bytes = 1
        while size_bytes < room_bytes and len(ahead) < _MOST_AHEAD and (span := next(left, None)) is not None:
            opened = None
            cost_bytes = self._filesystem.traits_of(span.directory).request_cost_bytes
            if 0 < span.size_bytes <= cost_bytes:
                # The read of the span reports what is gone.
                with contextlib.suppress(SegmentLogError):
                    opened = open_span(self._filesystem, span)
                    opened.expect_reads(span.position_bytes, span.end_position_bytes)
            ahead.append((span, opened))
            size_bytes += max(span.size_bytes, 1)
            room_bytes = _COSTS_AHEAD * cost_bytes
        return bool(ahead)

    def _read_as_planned(self, span: LogSpan, opened: ReadableFile | None = None) -> Iterator[pa.RecordBatch]:
        """Read a span as the log was at planning. A truncation since then ends it."""
        try:
            for batch in self._read(span, opened):
                # Its bytes were read before this check, so they were not written after a truncation.
                self._require_same_history(span)
                yield batch
            self._require_same_history(span)
        except _TruncatedError as truncated:
            self._report_truncation(span, truncated.offset)
        except SegmentLogError as error:
            # Bytes read during a truncation may look like any damage.
            offset = self._truncated_to(span, span.end_offset if error.offset is None else error.offset)
            if offset is None:
                raise
            self._report_truncation(span, offset)

    def _read(self, span: LogSpan, ahead: ReadableFile | None) -> Iterator[pa.RecordBatch]:
        pending = [span]
        self._last_batch = None
        attempts = _ATTEMPTS
        while pending:
            self._next_offset = pending[0].start_offset
            try:
                with ahead or open_span(self._filesystem, pending[0]) as opened:
                    ahead = None
                    yield from self._read_file(opened, pending[0], by_headers=self._by_headers)
                del pending[0]
            except FileReplacedError as error:
                has_moved = self._next_offset > pending[0].start_offset
                attempts = _ATTEMPTS if has_moved else attempts - 1
                replaced = None if has_moved else self._replaced_since_listing(pending[0], error)
                if replaced is not None:
                    pending[0] = replaced
                else:
                    pending = self._find_again(span, self._next_offset, attempts)

    def _read_file(
        self, opened: ReadableFile, span: LogSpan, *, by_headers: bool
    ) -> Iterator[pa.RecordBatch]:
        by_headers = by_headers and (self._filter is None or self._filter.takes_all(span))
        reader = SpanReader(
            opened,
            span,
            # A batch may be read between two windows of headers.
            WindowBuffer(self._buffer.size_bytes) if by_headers else self._buffer,
            self._settings.max_batch_bytes,
            trusts_headers=by_headers,
            # Where a request takes long, windows that are fetched ahead come sooner than one header after the other.
            with_bytes=not by_headers or self._filesystem.traits_of(span.directory).request_cost_bytes > 0,
        )
        report = None if self._damage.is_fatal else partial(self._damage.report, span=span)
        is_sure = False
        has_damage = False
        last_window: BatchWindow | None = None
        for part in reader.parts():
            if isinstance(part, DamagedRange):
                # A cleaner may have replaced the segment between listing and opening.
                if not is_sure and self._is_another_segment(span):
                    raise _StaleListingError("Expected the segment that was listed, found another one.")
                is_sure = True
                self._require_same_history(span, part.start_offset)
                yield from self._damage.report(part, span)
                next_offset = part.end_offset
                has_damage = True
                self._order.forget()
            else:
                if not has_damage:
                    last_window = part.window
                    self._order.check(last_window, span)
                decoded = part.decoded
                if self._filter is not None and self._damage.is_fatal:
                    decoded = self._filter.may_match(part.window.headers, decoded, span)
                if by_headers:
                    yield from self._counted(opened, part, span)
                else:
                    yield from self._records.batches(
                        part.window,
                        decoded,
                        lambda section, columns: self._rows(section, columns, span),
                        report,
                    )
                next_offset = part.next_offset
                last = part.window.headers[part.end - 1]
                self._last_batch = (next_offset - 1, int(last["crc"])) if last["magic"] == MAGIC_V2 else None
            self._next_offset = max(self._next_offset, next_offset)
        if last_window is not None and not has_damage:
            self._order.check_end(self._filesystem, last_window, span)

    def _counted(self, opened: ReadableFile, part: WindowPart, span: LogSpan) -> Iterator[pa.RecordBatch]:
        """Yield as many rows as the headers of a part tell, and read the batches whose headers do not."""
        count, untold = count_by_headers(part, span, self._settings.max_batch_bytes)
        if count:
            yield pa.RecordBatch.from_arrays([pa.nulls(count)], names=["offset"])
        # The order of the whole part is checked.
        order, self._order = self._order, _SegmentOrder()
        for run in np.split(untold, np.flatnonzero(np.diff(untold) > 1) + 1) if len(untold) else ():
            window = part_of(part.window, int(run[0]), int(run[-1]) + 1)
            within = dataclasses.replace(
                span,
                start_offset=max(span.start_offset, int(window.base_offsets[0])),
                end_offset=min(span.end_offset, window.next_offset),
                position_bytes=window.position_bytes + int(window.starts[0]),
                end_position_bytes=window.position_bytes + window.end,
            )
            yield from self._read_file(opened, within, by_headers=False)
        self._order = order

    def _is_another_segment(self, span: LogSpan) -> bool:
        """Return True if the segment now ends at another offset than at planning."""
        log = self._present_log(span, span.start_offset)
        if log is None or span.segment_end_offset is None:
            return False
        base_offsets = log.segments.base_offsets
        next_index = bisect.bisect_right(base_offsets, span.base_offset)
        return next_index < len(base_offsets) and base_offsets[next_index] != span.segment_end_offset

    def _replaced_since_listing(self, span: LogSpan, error: FileReplacedError) -> LogSpan | None:
        """Find a span in the file that a cleaner replaced while the read was planned.

        The planned file then is the replacement: it was examined after the listing that told where the segment ends. If
        a second pass has replaced that one, too, the file left reaches beyond this end, and is no segment of the listing.
        """
        if not isinstance(error, _StaleListingError) or span.file_name.endswith(DELETED_SUFFIX):
            return None
        name = span.file_name + DELETED_SUFFIX
        status = self._filesystem.status(os.path.join(span.directory, name))
        if status is None or not status.is_regular_file:
            return None
        return dataclasses.replace(
            span,
            file_name=name,
            position_bytes=0,
            end_position_bytes=status.size_bytes,
            version=status.version,
            file_size_bytes=status.size_bytes,
            segment_end_bytes=status.size_bytes,
        )

    def _has_last_batch(self, log: PartitionLog, span: LogSpan) -> bool:
        """Return True if a log has the batch that was read last of a file that is gone, so that what follows belongs to it.

        A cleaner may have removed it from a file that is not fixed.
        """
        if self._last_batch is None or not self._filesystem.traits_of(span.directory).are_files_fixed:
            return True
        last_offset, crc = self._last_batch
        index = log.segment_index_for(last_offset)
        if index is None:
            return True
        found = log.read_segment(index, lambda segment: segment.locate_offset(last_offset)).found
        return found is not None and (found.last_offset, found.crc) == (last_offset, crc)

    def _find_again(self, span: LogSpan, next_offset: int, attempts: int) -> list[LogSpan]:
        """Locate the rest of a span in the present files."""
        if next_offset >= span.end_offset:
            return []
        if not attempts:
            self._report_loss(span, next_offset, "their segment replaced repeatedly while they were read")
            return []
        spans: list[LogSpan] = []
        is_same = True
        try:
            log = self._present_log(span, next_offset)
            if log is not None:
                if not log.segments:
                    # What was planned is gone: that is data loss, whatever checkpoints say.
                    log.end_with_valid_batches()
                is_same = self._has_last_batch(log, span)
                start_offset = max(next_offset, log.log_start_offset)
                is_complete = (
                    bool(log.segments)
                    and start_offset == next_offset
                    and log.log_end_offset >= span.end_offset
                )
                wanted = PartitionRange(
                    log,
                    start_offset,
                    span.end_offset,
                    AbortedTransactions(span.aborted_transactions),
                    is_first=span.is_first and start_offset == span.start_offset,
                )
                spans = list(locate_spans(wanted)) if is_same else []
                is_complete = is_complete and (bool(spans) or self._may_be_cleaned(log))
        except (DataLossError, FileNotFoundError):
            # Replaced again meanwhile: the next attempt begins with the planned file.
            return [dataclasses.replace(span, start_offset=next_offset)]
        if log is None:
            self._report_loss(
                span,
                next_offset,
                "the partition's directory gone since the read was planned",
                is_away=self._filesystem.status(os.path.dirname(span.directory), follow_symlinks=True)
                is None,
            )
        elif not is_same:
            self._report_loss(
                span, next_offset, "another version of its segment, with other records than were read before"
            )
        elif not is_complete:
            present = (
                f"that the log now has offsets {log.log_start_offset} to {log.log_end_offset}"
                if log.segments
                else "no segment of the log left"
            )
            self._report_loss(span, next_offset, f"{present}: data was deleted or truncated")
        elif spans and spans[0].directory != span.directory:
            _log.info(
                "%s was moved to remote storage, and is read from %s.", span.file_name, spans[0].directory
            )
        else:
            _log.warning(
                "Offsets %d to %d of %s-%d are not read from the files that were planned: %s was replaced, and the "
                "old file was deleted, as cleaning does. Records that a later one superseded meanwhile are left out; the "
                "later one may be after the end of this read. Read again to see it, in Spark with a new load().",
                *(next_offset, span.end_offset - 1, span.topic, span.partition, span.file_name),
            )
        return spans

    def _may_be_cleaned(self, log: PartitionLog) -> bool:
        """Return True if all records of a segment that is gone may be compacted. A live broker's checkpoint says it afterwards."""
        return not self._filesystem.traits_of(log.path).are_files_fixed or log.directory.is_compacted

    def _present_log(self, span: LogSpan, next_offset: int) -> PartitionLog | None:
        if self._filesystem.status(span.directory, follow_symlinks=True) is None:
            return None
        found = find_partitions(self._filesystem, [span.directory], follow_symlinks=True)
        if not found:
            return None
        settings = self._settings
        directory = found[0].without_checkpoints() if settings.ignore_checkpoints else found[0]
        load = partial(
            PartitionLog.load,
            self._filesystem,
            use_indexes=settings.use_indexes,
            max_batch_bytes=settings.max_batch_bytes,
            skip_damage=settings.mode != "FAILFAST",
        )
        log = load(directory)
        if not settings.remote_storage or next_offset >= log.log_start_offset:
            return log
        directory = with_present_remote_half(self._filesystem, directory, settings.remote_storage)
        return join_halves(self._filesystem, log, directory.remote, load)

    def _require_same_history(self, span: LogSpan, begun_up_to: int | None = None) -> None:
        offset = self._truncated_to(span, begun_up_to)
        if offset is not None:
            raise _TruncatedError(offset)

    def _truncated_to(self, span: LogSpan, begun_up_to: int | None = None) -> int | None:
        """Look for a truncation of the log since planning.

        A truncation that had begun by then counts if it goes to ``begun_up_to``, where damage was found, or lower.

        Returns:
            The offset that the log was truncated to; None if it is not in the span, or there was none.
        """
        root = os.path.dirname(span.directory)
        since_bytes = self._truncations_bytes.get(root)
        if since_bytes is None:
            return None
        offset = truncated_to(
            self._filesystem, root, span.topic, span.partition, since_bytes, begun_up_to=begun_up_to
        )
        return offset if offset is not None and offset < span.end_offset else None

    def _report_truncation(self, span: LogSpan, offset: int) -> None:
        report_data_loss(
            f"Expected to read offsets {span.start_offset} to {span.end_offset - 1} of {span.topic}-{span.partition} as "
            f"they were when the read was planned, found that the log was truncated to offset {offset} since then, or "
            "deleted: these offsets may belong to other records now.",
            fails=self._settings.fail_on_data_loss,
            advice="Read again. If it was interrupted, opening the log directory for writing completes it.",
            then="The read continues after them",
            error_type=LogTruncationError,
            path=span.directory,
            offset=offset,
            last_offset=span.end_offset - 1,
        )

    def _report_loss(self, span: LogSpan, next_offset: int, found: str, *, is_away: bool = False) -> None:
        report_data_loss(
            f"Expected to read offsets {next_offset} to {span.end_offset - 1} of {span.topic}-{span.partition}, "
            f"found {found}.",
            # Records on a volume that is away are not lost.
            fails=self._settings.fail_on_data_loss or is_away,
            advice=(
                "Its log directory is gone, too: mount or restore it, and read again."
                if is_away
                else "Set failOnDataLoss to false to read the records left."
            ),
            then="The read continues with the records left",
            path=span.directory,
            offset=next_offset,
            last_offset=span.end_offset - 1,
        )


class _StaleListingError(FileReplacedError):
    """File that is not the segment that was listed."""


class _TruncatedError(Exception):
    """Truncation of the log within a span since planning."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


def read_schema(options: ReadOptions, formats: Iterable[ColumnFormat] = ()) -> pa.Schema:
    """Return the schema of the columns that the options ask for, decoded by formats that were planned for them."""
    schema = record_schema(
        include_headers=options.include_headers,
        include_metadata=options.include_metadata,
        corrupt_record_column=options.corrupt_record_column if options.mode == "PERMISSIVE" else None,
    )
    return typed_schema(project(schema, options.columns), formats)
