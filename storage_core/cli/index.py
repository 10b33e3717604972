"""`segmentlog index rebuild`: the index files of log directories, built again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from storage_core.cli.flags import (
    ALL_TOPICS,
    TOPIC_FLAGS,
    ReadCommand,
    finding_text,
    output_flag,
    paths_argument,
    quiet_flag,
    read_flags,
    require_local,
)
from storage_core.cli.main import Group
from storage_core.cli.output import DAMAGE, Output, new_table, printable, progress
from storage_core.views.texts import count_text

if TYPE_CHECKING:
    from rich.console import Console

    from storage_core.check.index_rebuild import IndexReport, PartitionIndexes


@click.group("index", cls=Group)
def command() -> None:
    """Rebuild index files."""


@command.command("rebuild", cls=ReadCommand)
@paths_argument
@read_flags(*TOPIC_FLAGS, "maxDecompressedBatchBytes", "followSymlinks", texts=ALL_TOPICS)
@click.option(
    "--in-place", is_flag=True, help="Replace the files in the log directories, which no broker has open."
)
@click.option(
    "--to", "target", metavar="OTHER", type=click.Path(), help="Write the files to a new directory instead."
)
@click.option("--all", "is_all", is_flag=True, help="Rebuild sound indexes, too.")
@click.option(
    "--index-interval-bytes",
    type=click.IntRange(min=0),
    default=4096,
    show_default=True,
    metavar="BYTES",
    help="The topics' index.interval.bytes.",
)
@output_flag("table", "json", "jsonl")
@quiet_flag
def rebuild(
    paths: tuple[str, ...],
    options: dict[str, object],
    in_place: bool,
    target: str | None,
    is_all: bool,
    index_interval_bytes: int,
    output: Output,
    quiet: bool,
) -> None:
    """Build the index files again in which something is wrong, as a broker's recovery would.

    In place, each new file is complete on disk before it replaces the old one. A segment whose log is damaged is left
    alone: recover it first.
    """
    if in_place == (target is not None):
        raise click.UsageError("Give either --in-place or --to OTHER.")
    from storage_core.check.index_rebuild import rebuild_indexes  # noqa: PLC0415
    from storage_core.filesystem import FileSystem  # noqa: PLC0415
    from storage_core.log_config import LogConfig  # noqa: PLC0415
    from storage_core.options import options_of  # noqa: PLC0415
    from storage_core.views.roots import log_bytes  # noqa: PLC0415

    filesystem, parsed = FileSystem(), options_of(paths, options)
    require_local(parsed)
    with progress("Rebuilding", log_bytes(filesystem, parsed), quiet) as advance:
        report = rebuild_indexes(
            filesystem,
            parsed,
            target=target,
            is_all=is_all,
            config=LogConfig(index_interval_bytes=index_interval_bytes),
            advance=advance,
        )
    output.write_report(report, lambda console: _show(console, report))
    if any(each.not_rebuilt for each in report.partitions):
        click.get_current_context().exit(DAMAGE)


def _show(console: Console, report: IndexReport) -> None:
    table = new_table(("partition", "file", "fault"), left=("partition", "file", "fault"))
    for partition in report.partitions:
        for finding in partition.findings:
            table.add_row(
                printable(f"{partition.topic}-{partition.partition}"),
                printable(os.path.basename(finding.file)),
                finding_text(finding.reason),
            )
    if report.finding_count:
        console.print(table)
    for partition in report.partitions:
        for text in partition.not_rebuilt:
            name = printable(f"{partition.topic}-{partition.partition}")
            console.print(f"Not rebuilt: {name}: {finding_text(text)}")
    console.print(_summary(report.partitions))


def _summary(partitions: tuple[PartitionIndexes, ...]) -> str:
    segments = sum(each.segments for each in partitions)
    findings = sum(len(each.findings) for each in partitions)
    rebuilt = sum(len(each.rebuilt) for each in partitions)
    parts = [
        f"{count_text(len(partitions), 'partition')}, {count_text(segments, 'segment')}: "
        + (count_text(findings, "finding") if findings else "every index agrees with its log")
    ]
    if rebuilt:
        parts.append(f"the indexes of {count_text(rebuilt, 'segment')} rebuilt")
    return "; ".join(parts) + "."
