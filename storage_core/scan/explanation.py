"""What a read opens, reads and passes over, as values that can be printed, compared and written as JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.filesystem import IoStatistics

__all__ = [
    "PartitionExplanation",
    "ScanExplanation",
    "ScanTotals",
    "SpanExplanation",
    "TaskExplanation",
]

_SPANS_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class SpanExplanation:
    """A piece of a log file that a task reads. Ends are exclusive.

    Attributes:
        file: Path of the log file.
        file_size_bytes: Its size, or of the last segment, where the log ends in it.
        position_bytes: Where the piece begins.
        end_position_bytes: Where it ends.
        skipped_before_bytes: How many bytes in front of it nobody reads.
        skipped_behind_bytes: How many bytes behind it nobody reads, if it is the last piece of the file.
        start_offset: The first offset wanted.
        end_offset: The first offset not wanted any more.
        batches: How many batches stand in it, up to the first damage in mode FAILFAST.
        task: Number of the task that reads it.
    """

    file: str
    file_size_bytes: int
    position_bytes: int
    end_position_bytes: int
    skipped_before_bytes: int
    skipped_behind_bytes: int
    start_offset: int
    end_offset: int
    batches: int
    task: int

    @property
    def size_bytes(self) -> int:
        """How many bytes the piece has."""
        return self.end_position_bytes - self.position_bytes


@dataclass(frozen=True, slots=True)
class PartitionExplanation:
    """What is read of one partition. Where its log was not looked at, what only the log tells is None.

    Attributes:
        topic: The topic.
        partition: The partition's number.
        directory: Its directory.
        skipped: Why nothing is read; None if something is.
        log_start_offset: The first offset of the log.
        log_end_offset: The offset behind its last batch; None too where damage hides it.
        start_offset: The first offset that the options ask for.
        end_offset: The offset behind the last one that they ask for.
        read_start_offset: The first offset that is read: a condition may leave out some.
        read_end_offset: The offset behind the last one that is read.
        segments: How many segments the log has.
        segments_opened: How many of them are read.
        segments_before: How many of the others stand in front of the first one that is read.
        segments_behind: How many of them stand behind the last one that is read.
        total_bytes: How many bytes its log files have.
        spans: What is read.
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
    segments_behind: int = 0
    total_bytes: int | None = None
    spans: tuple[SpanExplanation, ...] = ()

    @property
    def planned_bytes(self) -> int:
        """How many bytes are read."""
        return sum(span.size_bytes for span in self.spans)

    @property
    def segments_skipped(self) -> int | None:
        """How many segments are not read."""
        return None if self.segments is None else self.segments - self.segments_opened


@dataclass(frozen=True, slots=True)
class TaskExplanation:
    """What one task reads."""

    spans: int
    size_bytes: int
    batches: int


@dataclass(frozen=True, slots=True)
class ScanTotals:
    """What a read opens, and of how much; partitions that were not looked at have no segments and bytes here.

    Attributes:
        partitions: How many partitions were found.
        partitions_read: Of how many of them something is read.
        segments: How many segments those have that were looked at.
        segments_opened: How many of them, that is log files, are read.
        spans: In how many pieces.
        tasks: By how many tasks.
        total_bytes: How many bytes the log files have.
        planned_bytes: How many of them are read.
        batches: How many batches that are.
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


@dataclass(frozen=True, slots=True)
class ScanExplanation:
    """What a read with some options does, partition by partition.

    Attributes:
        partitions: Every partition that was found, by topic and number.
        tasks: The tasks, in their order.
        totals: All in all.
        planning: What finding this out, without counting batches, asked of the file system.
    """

    partitions: tuple[PartitionExplanation, ...]
    tasks: tuple[TaskExplanation, ...]
    totals: ScanTotals
    planning: IoStatistics

    def to_dict(self) -> dict[str, Any]:
        """The same as dicts, lists, texts and numbers."""
        plain: dict[str, Any] = _plain(dataclasses.asdict(self))
        return plain

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        header = ("partition", "offsets read", "of offsets", "segments", "bytes", "batches")
        rows = [header, *(_row(each) for each in self.partitions if each.skipped is None)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
        widths[0] = max([widths[0], *(len(_name(each)) for each in self.partitions)])
        layout = "  ".join(f"{{:<{width}}}" for width in widths)
        yield layout.format(*header).rstrip()
        for partition in self.partitions:
            if partition.skipped is not None:
                yield f"{_name(partition):<{widths[0]}}  not read: {partition.skipped}"
                continue
            yield layout.format(*_row(partition)).rstrip()
            for span in partition.spans[:_SPANS_SHOWN]:
                yield f"  {_span_line(span)}"
            if len(partition.spans) > _SPANS_SHOWN:
                yield f"  and {len(partition.spans) - _SPANS_SHOWN} more pieces"
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
    return (
        _name(partition),
        f"{partition.read_start_offset} to {partition.read_end_offset}",
        f"{partition.log_start_offset} to {partition.log_end_offset}",
        f"{partition.segments_opened} of {partition.segments}",
        f"{partition.planned_bytes} of {partition.total_bytes}",
        str(sum(span.batches for span in partition.spans)),
    )


def _span_line(span: SpanExplanation) -> str:
    name = span.file.rpartition("/")[2]
    return (
        f"{name}  bytes {span.position_bytes} to {span.end_position_bytes} of {span.file_size_bytes}, offsets "
        f"{span.start_offset} to {span.end_offset}, {span.batches} batches, task {span.task}"
    )
