"""`segmentlog plan`: what a read would open, read and skip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from storage_core.cli.flags import (
    FORMAT_FLAGS,
    RECORD_FLAGS,
    ReadCommand,
    output_flag,
    paths_argument,
    read_flags,
)
from storage_core.cli.output import new_table, printable
from storage_core.views.texts import count_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from storage_core.cli.output import Output
    from storage_core.scan.explanation import PartitionExplanation, ScanExplanation, SpanExplanation


@click.command("plan", cls=ReadCommand)
@paths_argument
@read_flags(*RECORD_FLAGS, *FORMAT_FLAGS, "minPartitions", "maxRecordsPerPartition", "maxBytesPerPartition")
@click.option("--pieces", is_flag=True, help="List each piece of a log file that is read.")
@output_flag("table", "json", "jsonl")
def command(paths: tuple[str, ...], options: dict[str, Any], pieces: bool, output: Output) -> None:
    """Say what a read of DIR... with these options would open, read and skip, without reading records."""
    from storage_core.scan.explanation import explain  # noqa: PLC0415

    explanation = explain(*paths, **options)
    output.write_report(explanation, lambda console: _render(console, explanation, has_pieces=pieces))


def _render(console: Console, explanation: ScanExplanation, *, has_pieces: bool) -> None:
    from rich.padding import Padding  # noqa: PLC0415

    read = [each for each in explanation.partitions if each.skipped is None]
    skipped = [each for each in explanation.partitions if each.skipped is not None]
    if read:
        console.print(_partitions_table(read))
    if skipped:
        console.print("\nNot read:", style="bold")
        console.print(Padding(_skipped_table(skipped), (0, 0, 0, 2), expand=False))
    if has_pieces and read:
        console.print("\nPieces of log files:", style="bold")
        console.print(Padding(_pieces_table(read), (0, 0, 0, 2), expand=False))
    for column in explanation.columns:
        console.print("")
        for line in column.lines():
            console.print(printable(line), soft_wrap=True, markup=False, highlight=False)
    totals, planning = explanation.totals, explanation.planning
    console.print(
        f"\n{totals.partitions_read:,} of {count_text(totals.partitions, 'partition')}, {totals.segments_opened:,} of "
        f"{count_text(totals.segments, 'segment')}, {totals.planned_bytes:,} of {totals.total_bytes:,} bytes, "
        f"{count_text(totals.batches, 'batch')} in {count_text(totals.spans, 'piece')} for "
        f"{count_text(totals.tasks, 'task')}.",
        soft_wrap=True,
    )
    console.print(
        f"Planning opened {count_text(planning.files_opened, 'file')}, listed "
        f"{count_text(planning.directories_listed, 'directory')} and read {planning.bytes_read:,} bytes.",
        soft_wrap=True,
    )


def _partitions_table(partitions: Sequence[PartitionExplanation]) -> Table:
    has_remote = any(each.remote_segments for each in partitions)
    remote = ("remote segments", "local from") if has_remote else ()
    columns = ("partition", "offsets read", "of offsets", "segments", *remote, "bytes", "batches")
    table = new_table(columns, left=("partition",))
    for each in partitions:
        local_start = "" if each.local_start_offset is None else f"{each.local_start_offset:,}"
        batches = sum(span.batches for span in each.spans)
        table.add_row(
            f"{each.topic}-{each.partition}",
            _range(each.read_start_offset, each.read_end_offset),
            _range(each.log_start_offset, each.log_end_offset),
            f"{each.segments_opened:,} of {each.segments or 0:,}",
            *((f"{each.remote_segments:,}", local_start) if has_remote else ()),
            f"{each.planned_bytes:,} of {each.total_bytes or 0:,}",
            f"{batches:,}",
        )
    return table


def _skipped_table(partitions: Sequence[PartitionExplanation]) -> Table:
    table = new_table(("partition", "because"), left=("partition", "because"))
    for each in partitions:
        table.add_row(f"{each.topic}-{each.partition}", each.skipped)
    return table


def _pieces_table(partitions: Sequence[PartitionExplanation]) -> Table:
    table = new_table(("file", "bytes", "of bytes", "offsets", "batches", "task"), left=("file",))
    for partition in partitions:
        for span in partition.spans:
            table.add_row(*_piece_row(partition, span))
    return table


def _piece_row(partition: PartitionExplanation, span: SpanExplanation) -> tuple[str, ...]:
    return (
        f"{partition.topic}-{partition.partition}/{span.file.rpartition('/')[2]}",
        _range(span.position_bytes, span.end_position_bytes),
        f"{span.file_size_bytes:,}",
        _range(span.start_offset, span.end_offset),
        f"{span.batches:,}",
        str(span.task),
    )


def _range(start: int | None, end: int | None) -> str:
    """Write a range whose end is exclusive; a side that damage hides is a question mark."""
    return " to ".join("?" if each is None else str(each) for each in (start, end))
