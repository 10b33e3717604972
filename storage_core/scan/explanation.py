"""What a read would open, read and skip: `explain`.

An explanation consists of values that can be printed, compared and written as JSON.
"""

from __future__ import annotations

import dataclasses
import html
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from operator import sub
from typing import TYPE_CHECKING, Any, Final, Unpack

from storage_core.errors import CorruptError, UnsupportedFormatError
from storage_core.filesystem import IoStatistics
from storage_core.options import options_of
from storage_core.options.keywords import with_options
from storage_core.scan.plan import ScanPlan, plan_scan
from storage_core.scan.spans import LogSpan
from storage_core.scan.typed_columns import plan_formats
from storage_core.tier import open_file_system
from storage_core.values.column_format import schema_words

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from storage_core.directory import PartitionDirectory, PartitionLog
    from storage_core.options.keywords import ReadKeywords
    from storage_core.scan.offset_ranges import PartitionRange
    from storage_core.segment import SegmentReader
    from storage_core.values.column_format import ColumnFormat


_SPANS_SHOWN: Final = 20
_ROWS_SHOWN: Final = 1_000
_HEADER: Final = ("partition", "offsets read", "of offsets", "segments", "bytes", "batches")


@dataclass(frozen=True, slots=True)
class SpanExplanation:
    """A piece of a log file that a task reads. Ends are exclusive.

    Attributes:
        file_size_bytes: The size of the log file; of the last segment, up to the log end.
        skipped_before_bytes: How many bytes between the previous piece and this one are not read.
        skipped_after_bytes: How many bytes after the last piece of the file are not read; 0 for other pieces.
        batches: How many batches it has, in mode FAILFAST up to the first damage.
    """

    file: str
    file_size_bytes: int
    position_bytes: int
    end_position_bytes: int
    skipped_before_bytes: int
    skipped_after_bytes: int
    start_offset: int
    end_offset: int
    batches: int
    task: int

    @property
    def size_bytes(self) -> int:
        """Size of the piece in bytes."""
        return self.end_position_bytes - self.position_bytes


@dataclass(frozen=True, slots=True)
class PartitionExplanation:
    """Part of a partition that is read. If its log was not opened, the fields of the log are None.

    Attributes:
        skipped: Why the partition is not read; None if it is.
        log_end_offset: The log end offset; None also if damage hides it.
        start_offset: The first offset that the options ask for.
        end_offset: The first offset after those that they ask for.
        read_start_offset: The first offset that is read, after pruning by a condition.
        read_end_offset: The first offset after those that are read.
        segments_before: How many segments before the first one that is read are skipped.
        segments_after: How many segments after the last one that is read are skipped.
        remote_segments: How many of the segments are in remote storage, the oldest ones.
        local_start_offset: The first offset that is read from a local directory; None if all are.
    """

    topic: str
    partition: int
    directory: str
    skipped: str | None
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    start_offset: int | None = None
    end_offset: int | None = None
    read_start_offset: int | None = None
    read_end_offset: int | None = None
    segments: int | None = None
    segments_opened: int = 0
    segments_before: int = 0
    segments_after: int = 0
    total_bytes: int | None = None
    spans: tuple[SpanExplanation, ...] = ()
    remote_segments: int = 0
    local_start_offset: int | None = None

    @property
    def planned_bytes(self) -> int:
        """Number of bytes that are read."""
        return sum(span.size_bytes for span in self.spans)

    @property
    def segments_skipped(self) -> int | None:
        """Number of segments that are not read. None if the log was not opened."""
        return None if self.segments is None else self.segments - self.segments_opened


@dataclass(frozen=True, slots=True)
class TaskExplanation:
    """Work of one task."""

    spans: int
    size_bytes: int
    batches: int


@dataclass(frozen=True, slots=True)
class ColumnExplanation:
    """Column that is decoded, and the schema that it is read with.

    Attributes:
        type: Type of the column.
        subject: Subject of the schema that it is read with; None, like version and id, if it is not in the registry.
        message: Protobuf's message type.
        not_read: A line for each schema of the registry whose values are not read, with the reason.
    """

    column: str
    type: str
    subject: str | None = None
    version: int | None = None
    schema_id: int | None = None
    message: str | None = None
    not_read: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """Describe the column for people."""
        read_by = ""
        if self.schema_id is not None:
            read_by = f" by {schema_words(self.subject, self.version, self.schema_id, self.message)}"
        yield f"{self.column} is read{read_by} as {self.type}"
        for line in self.not_read:
            yield f"  not read: {line}"


@dataclass(frozen=True, slots=True)
class ScanTotals:
    """Totals of a read; segments and bytes of partitions that were not opened do not count.

    Of what was found, ``partitions_read``, ``segments_opened`` (that is, log files) and ``planned_bytes`` are read, in
    pieces of log files (``spans``).
    """

    partitions: int
    partitions_read: int
    segments: int
    segments_opened: int
    spans: int
    tasks: int
    total_bytes: int
    planned_bytes: int
    batches: int


@dataclass(frozen=True, slots=True, repr=False)
class ScanExplanation:
    """Files and bytes that a read opens, reads and skips, partition by partition.

    Attributes:
        partitions: Every partition that was found, by topic and number.
        planning: The file system operations of the planning, without those that count batches.
        columns: The columns that are not read as bytes.
    """

    partitions: tuple[PartitionExplanation, ...]
    tasks: tuple[TaskExplanation, ...]
    totals: ScanTotals
    planning: IoStatistics
    columns: tuple[ColumnExplanation, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as dicts, lists, strings and numbers."""
        plain: dict[str, Any] = _plain(dataclasses.asdict(self))
        return plain

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Return a table for notebooks, without the pieces of log files."""
        rows = [_row(each) for each in self.partitions[:_ROWS_SHOWN]]
        if len(self.partitions) > _ROWS_SHOWN:
            rows.append((f"and {len(self.partitions) - _ROWS_SHOWN} more partitions",))
        notes = "<br>".join(map(html.escape, self._notes()))
        return f"<table>{_html_row(_HEADER, 'th')}{''.join(map(_html_row, rows))}</table><p>{notes}</p>"

    def _lines(self) -> Iterator[str]:
        rows = [_HEADER, *map(_row, self.partitions)]
        columns = zip(*(row for row in rows if len(row) == len(_HEADER)), strict=True)
        widths = [max(map(len, column)) for column in columns]
        widths[0] = max(len(row[0]) for row in rows)
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        yield lines[0]
        for line, partition in zip(lines[1:], self.partitions, strict=True):
            yield line
            if partition.skipped is None and partition.local_start_offset is not None:
                place = f"to offset {partition.local_start_offset} from remote storage"
                yield f"  {partition.remote_segments} segments up {place}"
            for span in partition.spans[:_SPANS_SHOWN]:
                yield f"  {_span_line(span)}"
            if len(partition.spans) > _SPANS_SHOWN:
                yield f"  and {len(partition.spans) - _SPANS_SHOWN} more pieces"
        yield from self._notes()

    def _notes(self) -> Iterator[str]:
        for column in self.columns:
            yield from column.lines()
        totals = self.totals
        yield (
            f"{totals.partitions_read} of {totals.partitions} partitions, {totals.segments_opened} of "
            f"{totals.segments} segments, {totals.planned_bytes} of {totals.total_bytes} bytes, "
            f"{totals.batches} batches in {totals.spans} pieces for {totals.tasks} tasks"
        )
        planning = self.planning
        yield (
            f"planning opened {planning.files_opened} files, listed {planning.directories_listed} directories "
            f"and read {planning.bytes_read} bytes"
        )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(content) for name, content in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _name(partition: PartitionExplanation) -> str:
    return f"{partition.topic}-{partition.partition}"


def _row(partition: PartitionExplanation) -> tuple[str, ...]:
    """Return the cells of a partition: its name, and why it is not read, or what is."""
    if partition.skipped is not None:
        return _name(partition), f"not read: {partition.skipped}"
    return (
        _name(partition),
        f"{partition.read_start_offset} to {partition.read_end_offset}",
        f"{partition.log_start_offset} to {partition.log_end_offset}",
        f"{partition.segments_opened} of {partition.segments}",
        f"{partition.planned_bytes} of {partition.total_bytes}",
        str(sum(span.batches for span in partition.spans)),
    )


def _html_row(row: tuple[str, ...], tag: str = "td") -> str:
    """Return a row of an HTML table; its last cell takes the place of those that it lacks."""
    *cells, last = map(html.escape, row)
    whole = "".join(f"<{tag}>{cell}</{tag}>" for cell in cells)
    return f'<tr>{whole}<{tag} colspan="{len(_HEADER) - len(cells)}">{last}</{tag}></tr>'


def _span_line(span: SpanExplanation) -> str:
    name = span.file.rpartition("/")[2]
    return (
        f"{name}  bytes {span.position_bytes} to {span.end_position_bytes} of {span.file_size_bytes}, offsets "
        f"{span.start_offset} to {span.end_offset}, {span.batches} batches, task {span.task}"
    )


_NOT_ASKED_FOR = "the options do not ask for it"
_RULED_OUT = "the condition rules it out"
_NOTHING_LEFT = "the condition leaves none of the offsets"
_NOTHING_THERE = "there are no offsets in the range asked for"
_Numbered = tuple[int, "LogSpan"]


@with_options
def explain(
    *paths: str | os.PathLike[str], filesystem: object = None, **options: Unpack[ReadKeywords]
) -> ScanExplanation:
    """Plan a read as `read_table` does, and say what it would open and skip.

    Headers are walked to count the batches, which reads more than planning does.

    Args:
        paths: Log directories, folders of them, or partition directories.
        filesystem: Where to look, as for `read_table`.
        options: As for `read_table`.

    Raises:
        OptionError: An option is unknown or wrong.
        SegmentLogError: These directories cannot give what the options ask for.
    """
    parsed = options_of(paths, options)
    opened = open_file_system(parsed.storage, filesystem)
    before = dataclasses.astuple(opened.statistics)
    plan = plan_scan(opened, parsed, formats=plan_formats(opened, parsed))
    planning = IoStatistics(*map(sub, dataclasses.astuple(opened.statistics), before))
    return explain_plan(plan, planning)


def explain_plan(plan: ScanPlan, planning: IoStatistics) -> ScanExplanation:
    """Explain what a plan opens and skips, and which file system operations the planning took."""
    spans: defaultdict[tuple[str, int], list[_Numbered]] = defaultdict(list)
    for number, task in enumerate(plan.tasks):
        for span in task.spans:
            spans[span.topic, span.partition].append((number, span))
    read = {(each.log.topic, each.log.partition): each for each in plan.partitions}
    partitions = [
        _partition(resolved, read.get(name), spans[name])
        for resolved in plan.resolution.partitions
        for name in [(resolved.log.topic, resolved.log.partition)]
    ]
    partitions += [_not_looked_at(each, _NOT_ASKED_FOR) for each in plan.resolution.not_asked_for]
    partitions += [_not_looked_at(each, _RULED_OUT) for each in plan.resolution.ruled_out]
    partitions.sort(key=lambda each: (each.topic, each.partition))
    tasks = _tasks(plan, partitions)
    columns = tuple(map(_column, plan.formats))
    return ScanExplanation(tuple(partitions), tasks, _totals(partitions, tasks), planning, columns)


def _column(column_format: ColumnFormat) -> ColumnExplanation:
    reader = column_format.reader
    return ColumnExplanation(
        column_format.column,
        str(column_format.arrow_type),
        reader.subject,
        reader.version,
        reader.schema_id,
        None if reader.message is None else str(reader.message),
        tuple(column_format.ignored()),
    )


def _not_looked_at(directory: PartitionDirectory, reason: str) -> PartitionExplanation:
    return PartitionExplanation(directory.topic, directory.partition, directory.path, reason)


def _partition(
    resolved: PartitionRange, read: PartitionRange | None, numbered: Sequence[_Numbered]
) -> PartitionExplanation:
    log = resolved.log
    skipped = None
    if not numbered:
        skipped = _NOTHING_THERE if resolved.start_offset >= resolved.end_offset else _NOTHING_LEFT
        if read is not None and read == resolved:
            # Offsets in which there is no batch.
            skipped = _NOTHING_THERE
    bases = log.segments.base_offsets
    remote = sum(log.source_of(index)[0].directory.root.is_remote for index in range(len(bases)))
    opened = sorted({log.segment_index_for(span.start_offset) or 0 for _, span in numbered})
    return PartitionExplanation(
        log.topic,
        log.partition,
        log.path,
        skipped,
        log.log_start_offset,
        _log_end_offset(log),
        resolved.start_offset,
        resolved.end_offset,
        None if read is None else read.start_offset,
        None if read is None else read.end_offset,
        len(bases),
        len(opened),
        opened[0] if opened else 0,
        len(bases) - 1 - opened[-1] if opened else 0,
        sum(log.read_segment(index, lambda segment: segment.size_bytes) for index in range(len(bases))),
        _spans(log, numbered),
        remote,
        bases[remote] if 0 < remote < len(bases) else None,
    )


def _log_end_offset(log: PartitionLog) -> int | None:
    try:
        return log.log_end_offset
    except (CorruptError, UnsupportedFormatError):
        return None


def _spans(log: PartitionLog, numbered: Sequence[_Numbered]) -> tuple[SpanExplanation, ...]:
    explained = []
    for place, (number, span) in enumerate(numbered):
        index = log.segment_index_for(span.start_offset) or 0
        size_bytes = log.read_segment(index, lambda segment: segment.size_bytes)
        before = numbered[place - 1][1] if place else None
        is_last = place + 1 == len(numbered) or not _is_same_file(numbered[place + 1][1], span)
        read_before_bytes = 0
        if before is not None and _is_same_file(before, span):
            read_before_bytes = before.end_position_bytes
        explained.append(
            SpanExplanation(
                f"{span.directory}/{span.file_name}",
                size_bytes,
                span.position_bytes,
                span.end_position_bytes,
                max(span.position_bytes - read_before_bytes, 0),
                max(size_bytes - span.end_position_bytes, 0) if is_last else 0,
                span.start_offset,
                span.end_offset,
                log.read_segment(index, partial(_batches, span=span)),
                number,
            )
        )
    return tuple(explained)


def _is_same_file(one: LogSpan, other: LogSpan) -> bool:
    return (one.base_offset, one.directory) == (other.base_offset, other.directory)


def _batches(segment: SegmentReader, span: LogSpan) -> int:
    """Count the batches of a span, as far as they can be walked."""
    count = 0
    try:
        for _ in segment.batches(span.position_bytes, span.end_position_bytes):
            count += 1
    except (CorruptError, UnsupportedFormatError):
        pass
    return count


def _tasks(plan: ScanPlan, partitions: Sequence[PartitionExplanation]) -> tuple[TaskExplanation, ...]:
    batches = [0] * len(plan.tasks)
    for partition in partitions:
        for span in partition.spans:
            batches[span.task] += span.batches
    return tuple(
        TaskExplanation(len(task.spans), task.size_bytes, count)
        for task, count in zip(plan.tasks, batches, strict=True)
    )


def _totals(partitions: Sequence[PartitionExplanation], tasks: Sequence[TaskExplanation]) -> ScanTotals:
    return ScanTotals(
        len(partitions),
        sum(bool(each.spans) for each in partitions),
        sum(each.segments or 0 for each in partitions),
        sum(each.segments_opened for each in partitions),
        sum(task.spans for task in tasks),
        len(tasks),
        sum(each.total_bytes or 0 for each in partitions),
        sum(each.planned_bytes for each in partitions),
        sum(task.batches for task in tasks),
    )
