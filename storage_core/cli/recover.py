"""`segmentlog recover`: a directory that a broker loads, with everything that can be saved of another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from storage_core.cli.flags import (
    ALL_TOPICS,
    TOPIC_FLAGS,
    ReadCommand,
    finding_text,
    output_flag,
    quiet_flag,
    read_flags,
    require_local,
)
from storage_core.cli.output import DAMAGE, Output, new_table, printable, progress
from storage_core.options.paths import is_uri
from storage_core.views.texts import count_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from storage_core.recover.missing_offsets import LeftOut
    from storage_core.recover.recover import RecoveryReport
    from storage_core.recover.recovery_plan import Policy

_MOST_SHOWN = 100
_FLAG_TEXTS: Final = {
    **ALL_TOPICS,
    "remoteStorage": "Where the older segments of tiered topics are. OTHER then has these topics as a whole, for a broker "
    "without tiered storage.",
}


@click.command("recover", cls=ReadCommand)
@click.argument("path", metavar="DIR", type=click.Path())
@click.option(
    "--to",
    "target",
    metavar="OTHER",
    type=click.Path(),
    help="The new directory; it must not exist, or be empty.",
)
@click.option(
    "--policy",
    type=click.Choice(["kafka", "tail", "salvage"]),
    default="kafka",
    show_default=True,
    help="kafka keeps what a broker's own recovery keeps. tail cuts off no more than a torn end, and refuses if more "
    "would go. salvage keeps every valid batch; gaps stay gaps.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be kept and left out. Nothing is written.")
@click.option(
    "--link/--no-link",
    default=True,
    show_default=True,
    help="Link closed segments that do not change, instead of copying them. With --no-link the two directories share "
    "no file, whatever happens to either.",
)
@click.option(
    "--manifest", metavar="FILE", type=click.Path(), help="Where to write what was left out, as JSON."
)
@click.option("--in-place", is_flag=True, help="Change DIR itself, which no broker has open. Needs --aside.")
@click.option(
    "--aside",
    metavar="COPIES",
    type=click.Path(),
    help="With --in-place, a new directory for copies of what is cut, written before the first change.",
)
@read_flags(*TOPIC_FLAGS, "remoteStorage", "maxDecompressedBatchBytes", texts=_FLAG_TEXTS)
@output_flag("table", "json", "jsonl")
@quiet_flag
def command(  # noqa: PLR0913, PLR0917  (one for each flag)
    path: str,
    target: str | None,
    policy: Policy,
    dry_run: bool,
    link: bool,
    manifest: str | None,
    in_place: bool,
    aside: str | None,
    options: dict[str, object],
    output: Output,
    quiet: bool,
) -> None:
    """Make a log directory that a broker loads, with everything that can be saved of DIR.

    DIR is one log directory, or one partition's, that no broker is using; it is only read. Indexes, leader epochs,
    producer snapshots and checkpoints are made again where they are missing or wrong. OTHER appears when it is complete,
    with a clean-shutdown marker and a manifest of what was left out. Run it as the broker's user, who will own OTHER.

    Exit status: 0 every offset from log start to log end is accounted for, and a broker would serve it; 1 something is left
    out, missing, damaged, or would not be served; 2 refused; 3 input or output.
    """
    _check_usage(target, in_place, aside, manifest, dry_run)
    from storage_core.options import options_of  # noqa: PLC0415
    from storage_core.recover.recover import recover  # noqa: PLC0415
    from storage_core.recover.recover_in_place import recover_in_place  # noqa: PLC0415
    from storage_core.tier import open_file_system  # noqa: PLC0415
    from storage_core.views.roots import log_bytes  # noqa: PLC0415

    parsed = options_of([path], options)
    filesystem = open_file_system(parsed.storage)
    is_link_given = click.get_current_context().get_parameter_source("link") is not ParameterSource.DEFAULT
    if link and is_link_given and is_uri(parsed.paths[0]):
        raise click.UsageError(
            "--link is for a local DIR: files of an object store are copied. Leave it out."
        )
    if in_place and parsed.remote_storage:
        raise click.UsageError(
            "--remote-storage is for a new directory, with --to. Leave it out with --in-place."
        )
    if in_place:
        require_local(parsed)
    # Each byte is read once, and copied.
    total = log_bytes(filesystem, parsed) * (1 if dry_run or in_place else 2)
    with progress("Recovering", total, quiet) as advance:
        if in_place and not dry_run:
            report = recover_in_place(filesystem.local, parsed, str(aside), policy=policy, advance=advance)
        else:
            report = recover(
                filesystem,
                parsed,
                target,
                policy=policy,
                link=link,
                manifest=manifest,
                is_dry_run=dry_run,
                is_in_place=in_place,
                advance=advance,
            )
    output.write_report(report, lambda console: _show(console, report))
    if not report.is_complete:
        click.get_current_context().exit(DAMAGE)


def _check_usage(
    target: str | None, in_place: bool, aside: str | None, manifest: str | None, dry_run: bool
) -> None:
    if in_place:
        if target is not None or manifest is not None:
            raise click.UsageError("With --in-place there is no --to, and the manifest goes to --aside.")
        if aside is None and not dry_run:
            raise click.UsageError("--in-place needs --aside COPIES, a directory for copies of what is cut.")
    elif aside is not None:
        raise click.UsageError("--aside is only for --in-place.")
    elif target is None and not dry_run:
        raise click.UsageError("Give --to OTHER, or --in-place with --aside COPIES, or --dry-run.")


def _show(console: Console, report: RecoveryReport) -> None:
    columns = ("partition", "log start", "log end", "records", "bytes", "left out", "rebuilt")
    table = new_table(columns, left=("partition",))
    for each in report.partitions:
        table.add_row(
            printable(f"{each.topic}-{each.partition}"),
            f"{each.log_start_offset:,}",
            f"{each.log_end_offset:,}",
            f"{each.record_count:,}",
            f"{each.size_bytes:,}",
            f"{len(each.left_out):,}" if each.left_out else "",
            f"{len(each.rebuilt):,}" if each.rebuilt else "",
        )
    console.print(table)
    _show_ranges(console, report, "Left out", lambda each: each.left_out)
    _show_ranges(console, report, "Damaged, and kept as a broker keeps it", lambda each: each.damaged)
    _show_compacted(console, report)
    if report.left_out_files:
        console.print("\nNot taken over:")
        for file in report.left_out_files[:_MOST_SHOWN]:
            console.print(f"  {printable(file.path)}: {finding_text(file.reason)}")
    if report.unserved:
        console.print("\nA broker would not serve:")
        for file in report.unserved[:_MOST_SHOWN]:
            console.print(f"  {printable(file.path)}: {finding_text(file.reason)}")
    console.print(f"\n{_summary(report)}")


def _show_ranges(
    console: Console, report: RecoveryReport, title: str, ranges_of: Callable[..., tuple[LeftOut, ...]]
) -> None:
    ranges = [(each, found) for each in report.partitions for found in ranges_of(each)]
    if not ranges:
        return
    console.print(f"\n{title}:")
    for each, found in ranges[:_MOST_SHOWN]:
        offsets = (
            f"offsets {found.start_offset} to {found.end_offset - 1}"
            if found.end_offset > found.start_offset
            else f"at offset {found.start_offset}"
        )
        console.print(
            printable(
                f"  {each.topic}-{each.partition}/{found.file}: {_bytes_of(found)}, {offsets}, "
                f"{count_text(found.record_count, 'record')} in valid batches. {finding_text(found.reason)}"
            )
        )
    if len(ranges) > _MOST_SHOWN:
        console.print(f"  and {len(ranges) - _MOST_SHOWN:,} more; the manifest has all.")


def _show_compacted(console: Console, report: RecoveryReport) -> None:
    partitions = [each for each in report.partitions if each.compacted]
    if partitions:
        console.print(
            "\nRemoved by a compaction, says the cleaner checkpoint; a lost segment would look the same:"
        )
    for each in partitions[:_MOST_SHOWN]:
        offsets = sum(gap.end_offset - gap.start_offset for gap in each.compacted)
        start_offset, end_offset = each.compacted[0].start_offset, each.compacted[-1].end_offset
        name = printable(f"{each.topic}-{each.partition}")
        console.print(
            f"  {name}: {count_text(offsets, 'offset')} between {start_offset} and {end_offset - 1}, at the ends of segments"
        )


def _bytes_of(found: LeftOut) -> str:
    if found.start_byte == found.end_byte:
        return f"from byte {found.start_byte} on"
    return f"bytes {found.start_byte} to {found.end_byte - 1}"


def _summary(report: RecoveryReport) -> str:
    records = sum(each.record_count for each in report.partitions)
    lost = "Something was left out, or is damaged: see above."
    if report.is_complete:
        lost = "Nothing was lost."
        compacted = sum(
            gap.end_offset - gap.start_offset for each in report.partitions for gap in each.compacted
        )
        if compacted:
            lost += f" Counted as compacted, as after a lost segment: {count_text(compacted, 'offset')}, see above."
    elif not any(each.left_out or each.damaged for each in report.partitions):
        lost = "A broker would not serve everything: see above."
    where = "Nothing was written." if report.target is None else f"Recovered to {printable(report.target)}."
    partitions = count_text(len(report.partitions), "partition")
    return f"{partitions}, {count_text(records, 'record')}. {lost} {where}"
