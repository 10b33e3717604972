"""`segmentlog verify`: what is wrong with log directories, where, and what a broker would do about it when it starts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import click

from storage_core.cli.flags import (
    ALL_TOPICS,
    TOPIC_FLAGS,
    ReadCommand,
    finding_text,
    jobs_flag,
    output_flag,
    paths_argument,
    quiet_flag,
    read_flags,
)
from storage_core.cli.output import DAMAGE, INPUT_OUTPUT, Output, new_table, printable, progress
from storage_core.views.texts import count_text, json_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from rich.console import Console
    from rich.table import Table

    from storage_core.check.partition_check import PartitionReport
    from storage_core.check.verify import VerifyReport
    from storage_core.views.finding import Finding


_STYLES: Final = {
    "damage": "bold red",
    "unreadable": "bold red",
    "suspect": "yellow",
    "unclean": "cyan",
    "note": "dim",
    "sound": "green",
}
_MOST_FINDINGS: Final = 200
_MOST_PARTITIONS: Final = 50


@click.command("verify", cls=ReadCommand)
@paths_argument
@click.option("--deep", "is_deep", is_flag=True, help="Decompress and decode every record.")
@click.option("--indexes-only", is_flag=True, help="Say only what is wrong with index files.")
@click.option(
    "--notes",
    "with_notes",
    is_flag=True,
    help="Also list what is only worth knowing, such as files that await their removal.",
)
@read_flags(*TOPIC_FLAGS, "maxDecompressedBatchBytes", "followSymlinks", texts=ALL_TOPICS)
@jobs_flag
@output_flag()
@quiet_flag
@click.pass_context
def command(  # noqa: PLR0913, PLR0917  (one for each flag)
    context: click.Context,
    paths: tuple[str, ...],
    is_deep: bool,
    indexes_only: bool,
    with_notes: bool,
    options: dict[str, object],
    jobs: int,
    output: Output,
    quiet: bool,
) -> None:
    """Check every checksum, the order of offsets, indexes, leader epochs, sequences, transactions and checkpoints.

    Each finding says where it is and what a broker would do about it when it starts: nothing, because it does not look
    ("unnoticed"), rebuild an index, truncate the log, remove a segment, or refuse to start.

    \b
    damage      something contradicts a checksum, the log, or a checkpoint: status 1
    unreadable  it cannot be read, so what is in it is not known: status 3, also beside damage
    suspect     it may be damage, or have a reason that the directory does not tell, as a gap in the offsets
    unclean     a crash leaves this behind, and a broker repairs it without loss of flushed records
    """  # noqa: D301  (click's mark of a paragraph that is not folded)
    if is_deep and indexes_only:
        raise click.UsageError("Give either --deep or --indexes-only.")
    from storage_core.check.verify import plan_verification, verify  # noqa: PLC0415
    from storage_core.options import options_of  # noqa: PLC0415
    from storage_core.tier import open_file_system  # noqa: PLC0415

    parsed = options_of(paths, options)
    filesystem = open_file_system(parsed.storage)
    plan = plan_verification(filesystem, parsed, is_deep=is_deep)
    with progress("Verifying", plan.size_bytes, quiet) as advance:
        report = verify(filesystem, plan, jobs=jobs, indexes_only=indexes_only, advance=advance)
    if output.format in ("csv", "jsonl", "arrow"):
        rows = _rows(report, with_notes=with_notes)
        output.write_batches(rows.schema, rows.to_batches())
    else:
        output.write_report(report, lambda console: _render(console, report, with_notes=with_notes))
    if report.counts["unreadable"]:
        context.exit(INPUT_OUTPUT)
    if report.counts["damage"]:
        context.exit(DAMAGE)


def _schema() -> pa.Schema:
    import pyarrow as pa  # noqa: PLC0415

    text, number = pa.string(), pa.int64()
    return pa.schema(
        [
            ("topic", text),
            ("partition", pa.int32()),
            ("severity", text),
            ("kind", text),
            ("file", text),
            ("startByte", number),
            ("endByte", number),
            ("startOffset", number),
            ("endOffset", number),
            ("action", text),
            ("actionOffset", number),
            ("reason", text),
        ]
    )


def _listed(report: VerifyReport, *, with_notes: bool) -> Iterator[tuple[PartitionReport | None, Finding]]:
    """List the findings to show. Those of a log directory itself have no partition."""
    for root in report.roots:
        for finding in root.findings:
            if with_notes or finding.severity != "note":
                yield None, finding
    for partition in report.partitions:
        for finding in partition.findings:
            if with_notes or finding.severity != "note":
                yield partition, finding


def _rows(report: VerifyReport, *, with_notes: bool) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415

    rows = [
        {
            "topic": None if partition is None else partition.topic,
            "partition": None if partition is None else partition.partition,
            **json_value(finding),
        }
        for partition, finding in _listed(report, with_notes=with_notes)
    ]
    return pa.Table.from_pylist(rows, schema=_schema())


def _render(console: Console, report: VerifyReport, *, with_notes: bool) -> None:
    # What all log directories have in common says nothing.
    shared = _shared_folder([each.path for each in report.roots])
    console.print(_partition_table(report, shared))
    findings = list(_listed(report, with_notes=with_notes))
    if findings:
        console.print()
        console.print(_finding_table(findings[:_MOST_FINDINGS], shared))
    if len(findings) > _MOST_FINDINGS:
        console.print(f"and {len(findings) - _MOST_FINDINGS:,} more: --output jsonl or csv has all.")
    console.print(f"\n{_summary(report)}", style=_STYLES[report.verdict])


def _shared_folder(paths: Sequence[str]) -> str:
    """Return the folder that all paths are in, or the one path itself, with a slash at its end."""
    # commonpath would take a slash from a URI.
    shared = os.path.commonprefix([f"{path}/" for path in paths])  # noqa: RUF071  (cut at a slash below)
    return shared[: shared.rfind("/") + 1]


def _without_folder(path: str, folder: str) -> str:
    return f"{path}/".removeprefix(folder).rstrip("/") or "."


def _partition_table(report: VerifyReport, shared: str) -> Table:
    from rich.text import Text  # noqa: PLC0415

    columns = (
        "partition",
        "verdict",
        "segments",
        "batches",
        "log start",
        "log end",
        "at its next start, a broker",
    )
    table = new_table(columns, left=("partition", "verdict", "at its next start, a broker"))
    # Those with findings first, in the order of the report.
    partitions = sorted(report.partitions, key=lambda each: each.verdict == "sound")
    refused = {each.path for each in report.roots if each.is_refused}
    for each in partitions[:_MOST_PARTITIONS]:
        table.add_row(
            printable(_without_folder(each.path, shared)),
            Text(each.verdict, _STYLES[each.verdict]),
            f"{each.segment_count:,}",
            f"{each.batch_count:,}",
            str(each.log_start_offset),
            str(each.log_end_offset),
            printable(
                "does not start with its log directory"
                if os.path.dirname(each.path) in refused
                else each.at_start
            ),
        )
    if len(partitions) > _MOST_PARTITIONS:
        table.add_row(f"and {len(partitions) - _MOST_PARTITIONS:,} more")
    return table


def _finding_table(findings: list[tuple[PartitionReport | None, Finding]], shared: str) -> Table:
    from rich.text import Text  # noqa: PLC0415

    texts = ("severity", "kind", "file", "broker", "reason")
    table = new_table(("severity", "kind", "file", "bytes", "offsets", "broker", "reason"), left=texts)
    for _, each in findings:
        table.add_row(
            Text(each.severity, _STYLES[each.severity]),
            each.kind,
            printable(_without_folder(each.file, shared)),
            _range(each.start_byte, each.end_byte),
            _range(each.start_offset, each.end_offset),
            each.action if each.action_offset is None else f"{each.action} to {each.action_offset}",
            finding_text(each.reason),
        )
    return table


def _range(start: int | None, end: int | None) -> str:
    """Return a range in words that both ends belong to."""
    if start is None:
        return ""
    return str(start) if end is None or end <= start + 1 else f"{start} to {end - 1}"


def _summary(report: VerifyReport) -> str:
    partitions = report.partitions
    size_bytes = sum(each.size_bytes for each in partitions)
    checked = (
        f"{count_text(len(partitions), 'partition')}, "
        f"{count_text(sum(each.segment_count for each in partitions), 'segment')}, "
        f"{count_text(sum(each.batch_count for each in partitions), 'batch')}, {size_bytes:,} bytes of log"
    )
    counts = [f"{count:,} {severity}" for severity, count in report.counts.items() if count]
    verdict = "Sound" if report.verdict == "sound" else report.verdict.capitalize()
    return f"{verdict}: {checked}; findings: {', '.join(counts) or 'none'}."
