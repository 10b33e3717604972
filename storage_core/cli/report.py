"""`segmentlog report`: one HTML page about log directories."""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import TYPE_CHECKING

import click

from storage_core.cli.flags import (
    ALL_TOPICS,
    TOPIC_FLAGS,
    ReadCommand,
    jobs_flag,
    paths_argument,
    quiet_flag,
    read_flags,
)
from storage_core.cli.output import DAMAGE, INPUT_OUTPUT, printable, progress

if TYPE_CHECKING:
    from storage_core.filesystem import ReadableFileSystem
    from storage_core.options import ReadOptions


@click.command("report", cls=ReadCommand)
@paths_argument
@click.option(
    "--output",
    "-o",
    "target",
    required=True,
    type=click.Path(allow_dash=True),
    metavar="FILE",
    help="The file to write, outside of DIR...; - for standard output.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Read no log file as a whole: leave out checks, rates over time, and transactions.",
)
@read_flags(*TOPIC_FLAGS, "maxDecompressedBatchBytes", "followSymlinks", texts=ALL_TOPICS)
@jobs_flag
@quiet_flag
def command(
    paths: tuple[str, ...], target: str, quick: bool, options: dict[str, object], jobs: int, quiet: bool
) -> None:
    """Write one self-contained HTML page about DIR...: what needs attention first, then what is there.

    Findings, an inventory, sizes and rates over time per topic, a map of the damage in each log, transactions, groups and
    their lag. The page needs no network, and names in it run no script.

    Exit status: 1 if there is damage, 3 if something could not be read; the page is written all the same.
    """
    from storage_core.options import options_of  # noqa: PLC0415
    from storage_core.options.paths import path_to_write  # noqa: PLC0415
    from storage_core.report.report import make_report  # noqa: PLC0415
    from storage_core.report.report_page import page_of  # noqa: PLC0415
    from storage_core.scan.resolve import split_paths  # noqa: PLC0415
    from storage_core.tier import open_file_system  # noqa: PLC0415

    parsed = options_of(paths, options)
    filesystem = open_file_system(parsed.storage)
    if target != "-":
        target = path_to_write(target)
        _check_target(filesystem, parsed, target)
    total_bytes = None if quick or quiet else _bytes_to_read(filesystem, parsed)
    with progress("examining", total_bytes, quiet) as advance:
        made = make_report(filesystem, parsed, is_quick=quick, jobs=jobs, advance=advance)
    page = page_of(made).encode()
    if target == "-":
        sys.stdout.buffer.write(page)
    else:
        # The page is as private as the directories, and nobody sees half of it.
        with filesystem.local.replacing(target, like=split_paths(filesystem, parsed.paths)) as file:
            file.write_at([page], 0)
        counts = Counter(each.severity for each in made.findings)
        found = ", ".join(f"{count:,} {severity}" for severity, count in counts.items())
        click.echo(printable(f"{target}: {found or 'nothing to report'}"))
    if not made.is_complete:
        raise SystemExit(INPUT_OUTPUT)
    if made.has_damage:
        raise SystemExit(DAMAGE)


def _bytes_to_read(filesystem: ReadableFileSystem, options: ReadOptions) -> int | None:
    """Return how many bytes will be read, for the progress bar.

    Returns:
        None if nobody sees it, or a file cannot be read: that is a finding later on.
    """
    from storage_core.check.verify import plan_verification  # noqa: PLC0415
    from storage_core.errors import SegmentLogError  # noqa: PLC0415

    if not sys.stderr.isatty():
        return None
    try:
        return 2 * plan_verification(filesystem, options).size_bytes
    except SegmentLogError:
        return None


def _check_target(filesystem: ReadableFileSystem, options: ReadOptions, target: str) -> None:
    """Refuse a file that would be in what is examined, before that takes hours."""
    from storage_core.errors import OptionError  # noqa: PLC0415
    from storage_core.scan.resolve import split_paths  # noqa: PLC0415
    from storage_core.views.roots import find_roots, require_outside  # noqa: PLC0415

    roots = find_roots(filesystem, options.paths, follow_symlinks=options.follow_symlinks)
    sources = [*split_paths(filesystem, options.paths), *(root.path for root in roots if root.is_whole)]
    require_outside(filesystem, os.path.abspath(target), sources)
    folder = os.path.dirname(os.path.abspath(target))
    status = filesystem.status(folder, follow_symlinks=True)
    if status is None or not status.is_directory:
        raise OptionError(f"Expected a directory to write {target} to, found none: {folder}.")
    present = filesystem.status(target, follow_symlinks=True)
    if present is not None and not present.is_regular_file:
        raise OptionError(f"Expected a file to write to, found a directory or a special file: {target}.")
