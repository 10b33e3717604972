"""`segmentlog inventory`: what log directories hold, what fills the disk, and what does not belong there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, get_args, get_origin, get_type_hints

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
    zone_of,
)
from storage_core.cli.output import DAMAGE, INPUT_OUTPUT, Output, new_table, printable, progress
from storage_core.views.texts import count_text, json_value, key_of, size_text, timestamp_text

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa
    from rich.console import Console
    from rich.table import Table

    from storage_core.views.finding import Finding
    from storage_core.views.inventory import Inventory, RootSummary
    from storage_core.views.partitions import FileTally, PartitionSummary


_Column: TypeAlias = "tuple[str, Callable[[Any], str]]"
"""A heading, after # that of a column of numbers, and the text of a cell."""
_MOST_KINDS: Final = 8
_MOST_FINDINGS: Final = 50
_FLAG_TEXTS: Final = {
    **ALL_TOPICS,
    "timeZone": "Zone of the times in tables: `UTC`, `Europe/Berlin`, `+02:00`.",
}
_STYLES: Final = {"damage": "bold red", "unreadable": "bold red", "warning": "yellow", "note": "dim"}


@click.command("inventory", cls=ReadCommand)
@paths_argument
@click.option(
    "--partitions", "-p", "by_partition", is_flag=True, help="A line for each partition's directory."
)
@click.option(
    "--exact",
    is_flag=True,
    help="Read the header of every batch: exact numbers of records and batches, all times, codecs and formats.",
)
@read_flags(*TOPIC_FLAGS, "remoteStorage", "timeZone", "followSymlinks", texts=_FLAG_TEXTS)
@output_flag()
@quiet_flag
@click.pass_context
def command(
    context: click.Context,
    paths: tuple[str, ...],
    by_partition: bool,
    exact: bool,
    options: dict[str, object],
    output: Output,
    quiet: bool,
) -> None:
    """Show what log directories hold: topics, partitions, segments, sizes, times, codecs, formats and replicas.

    Without --exact, only names and sizes, and the first and the last batch of each partition are looked at: offsets are
    counted instead of records, from log start to log end, and codecs and formats are those of these two batches.

    Internal topics are shown, too, unless topics are chosen.

    json is the whole report; jsonl and csv have a line for each topic, or with --partitions for each directory.

    Exit status: 1 if something contradicts its format, 3 if something could not be read; both are named. An unclean
    shutdown, strays and foreign files are named, and end with 0.
    """
    from storage_core.options import options_of  # noqa: PLC0415
    from storage_core.tier import open_file_system  # noqa: PLC0415
    from storage_core.views.inventory import inventory  # noqa: PLC0415

    parsed, zone = options_of(paths, options), zone_of(options)
    filesystem = open_file_system(parsed.storage)
    with progress("Reading headers" if exact else "Listing", None, quiet) as advance:
        found = inventory(filesystem, parsed.paths, options=parsed, exact=exact, on_bytes=advance)
    if output.format in ("table", "json"):
        report = {**json_value(found), "findings": [_finding_value(each) for each in found.findings]}
        output.write_report(report, lambda console: _render(console, found, zone, by_partition=by_partition))
    else:
        _print_lines(output, found, by_partition=by_partition)
    if not found.is_complete:
        context.exit(INPUT_OUTPUT)
    if found.has_damage:
        context.exit(DAMAGE)


def _finding_value(finding: Finding) -> dict[str, object]:
    """Return a finding for JSON, without a broker's action, bytes and offsets, which an inventory never knows."""
    return {
        "severity": finding.severity,
        "kind": finding.kind,
        "message": finding.reason,
        "path": finding.file or None,
    }


def _print_lines(output: Output, found: Inventory, *, by_partition: bool) -> None:
    """Print a line for each topic or partition, with what a line can hold."""
    import pyarrow as pa  # noqa: PLC0415

    from storage_core.views.inventory import TopicSummary  # noqa: PLC0415
    from storage_core.views.partitions import PartitionSummary  # noqa: PLC0415
    from storage_core.views.view import Column, batches_of_rows  # noqa: PLC0415

    hints = get_type_hints(PartitionSummary if by_partition else TopicSummary)
    hints.pop("files", None)
    columns = [Column(key_of(name), _arrow_type(name, hint), "") for name, hint in hints.items()]
    rows = found.partitions if by_partition else found.topics
    values = ([getattr(row, name) for name in hints] for row in rows)
    output.write_batches(
        pa.schema([(each.name, each.type) for each in columns]), batches_of_rows(columns, values)
    )


def _arrow_type(name: str, hint: Any) -> pa.DataType:
    """Return the type of a column for a field of a dataclass."""
    import pyarrow as pa  # noqa: PLC0415

    from storage_core.views.view import TIMESTAMP  # noqa: PLC0415

    if name.endswith("timestamp_ms"):
        return TIMESTAMP
    inner = get_args(hint)[0] if get_args(hint) else hint
    kind = {str: pa.string(), int: pa.int64(), bool: pa.bool_()}[inner]
    return pa.list_(kind) if get_origin(hint) is tuple else kind


def _short_time(timestamp_ms: int | None, zone: dt.tzinfo) -> str:
    """Return a time for people, without fractions."""
    return (timestamp_text(timestamp_ms, zone) or "").partition(".")[0].replace("T", " ")


def _render(console: Console, found: Inventory, zone: dt.tzinfo, *, by_partition: bool) -> None:
    for root in found.roots:
        console.print(_root_line(root))
    if by_partition:
        title = "Directories of partitions"
        table = _table(found.partitions, [*_partition_columns(found, zone)])
    else:
        title = "Topics, the largest first"
        largest = sorted(found.topics, key=lambda topic: -topic.allocated_bytes)
        table = _table(largest, [*_topic_columns(found, zone)])
    for heading, content in ((title, table), ("What fills the disk", _space_table(found.files))):
        console.print(f"\n{heading}", style="bold")
        console.print(content)
    _print_findings(console, found.findings)


def _root_line(root: RootSummary) -> str:
    if root.unreadable is not None:
        return f"{printable(root.path)}: could not be read"
    parts = ["remote storage"] if root.is_remote else []
    if root.node_id is not None:
        parts.append(f"broker {root.node_id}")
    if root.cluster_id is not None:
        parts.append(f"cluster {printable(root.cluster_id)}")
    if root.directory_id is not None:
        parts.append(f"directory {printable(root.directory_id)}")
    if root.is_clean is not None:
        parts.append("clean shutdown" if root.is_clean else "no clean shutdown")
    parts.append(
        f"{count_text(root.partition_count, 'partition')}, {count_text(root.segment_count, 'segment')}"
    )
    used = f"{size_text(root.size_bytes)}, {size_text(root.allocated_bytes)} on disk"
    parts.append(used if root.free_bytes is None else f"{used}, {size_text(root.free_bytes)} free")
    return f"{printable(root.path)}: {'; '.join(parts)}"


def _table(rows: Iterable[Any], columns: Sequence[_Column]) -> Table:
    names = [heading.removeprefix("#") for heading, _ in columns]
    table = new_table(names, left=[heading for heading, _ in columns if not heading.startswith("#")])
    for row in rows:
        table.add_row(*(text_of(row) for _, text_of in columns))
    return table


def _topic_columns(found: Inventory, zone: dt.tzinfo) -> Iterator[_Column]:
    yield "topic", lambda each: printable(each.topic)
    yield "#partitions", lambda each: f"{each.partition_count:,}"
    if any(topic.directory_count > topic.partition_count for topic in found.topics):
        yield "#directories", lambda each: f"{each.directory_count:,}"
    if any(topic.remote_segment_count for topic in found.topics):
        yield "#remote segments", lambda each: f"{each.remote_segment_count:,}"
        yield "#remote size", lambda each: size_text(each.remote_log_bytes)
        yield "#remote offsets", lambda each: f"{each.remote_offset_count:,}"
    yield from _shared_columns(found, zone)


def _partition_columns(found: Inventory, zone: dt.tzinfo) -> Iterator[_Column]:
    yield "partition", lambda each: f"{printable(each.topic)}-{each.partition}"
    yield "state", _state
    yield "#log start", lambda each: _number(each.log_start_offset)
    yield "#log end", lambda each: _number(each.log_end_offset)
    yield "#high watermark", lambda each: _number(each.high_watermark)
    yield "#epoch", lambda each: _number(each.leader_epoch)
    yield from _shared_columns(found, zone)
    if len(found.roots) > 1:
        yield "root", lambda each: printable(each.root)


def _shared_columns(found: Inventory, zone: dt.tzinfo) -> Iterator[_Column]:
    """Yield the columns that topics and partitions have alike."""
    yield "#segments", lambda each: f"{each.segment_count:,}"
    yield "#size", lambda each: size_text(each.size_bytes)
    yield "#on disk", lambda each: size_text(each.allocated_bytes)
    if found.is_exact:
        yield "#records", lambda each: _number(each.record_count)
        yield "#batches", lambda each: _number(each.batch_count)
    else:
        yield "#offsets", lambda each: _number(each.offset_count)
    yield f"first ({zone})", lambda each: _short_time(each.min_timestamp_ms, zone)
    yield f"last ({zone})", lambda each: _short_time(each.max_timestamp_ms, zone)
    yield "codecs", lambda each: " ".join(each.codecs)
    yield "format", lambda each: " ".join(f"v{magic}" for magic in each.magics)


def _state(summary: PartitionSummary) -> str:
    if summary.unreadable is not None:
        return "unreadable"
    if summary.damage:
        return "damaged"
    is_copy = summary.state == "live" and not summary.is_read
    return "replica" if is_copy else summary.state


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _space_table(files: Sequence[FileTally]) -> Table:
    table = new_table(("kind of file", "files", "size", "on disk"), left=("kind of file",))
    largest = sorted(files, key=lambda tally: -tally.allocated_bytes)
    for tally in largest[:_MOST_KINDS]:
        table.add_row(
            tally.kind + (f" {tally.leftover}" if tally.leftover else ""),
            f"{tally.count:,}",
            size_text(tally.size_bytes),
            size_text(tally.allocated_bytes),
        )
    others = largest[_MOST_KINDS:]
    if others:
        table.add_row(
            "others",
            f"{sum(tally.count for tally in others):,}",
            size_text(sum(tally.size_bytes for tally in others)),
            size_text(sum(tally.allocated_bytes for tally in others)),
        )
    return table


def _print_findings(console: Console, findings: Sequence[Finding]) -> None:
    if not findings:
        return
    console.print("\nFindings", style="bold")
    for finding in findings[:_MOST_FINDINGS]:
        # Messages name their path where it is one.
        where = "" if finding.file in finding.reason else f" [{finding.file}]"
        console.print(
            f"{finding.severity}: {finding_text(finding.reason) + printable(where)}",
            style=_STYLES[finding.severity],
        )
    more = len(findings) - _MOST_FINDINGS
    if more > 0:
        console.print(f"and {count_text(more, 'more finding')}: --output json has all.")
