"""`segmentlog convert`: records as Parquet files by topic and day."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import click

from storage_core.cli.flags import (
    FORMAT_FLAGS,
    RECORD_FLAGS,
    ReadCommand,
    output_flag,
    paths_argument,
    quiet_flag,
    read_flags,
)
from storage_core.cli.output import new_table, printable, progress
from storage_core.views.texts import count_text, size_text

if TYPE_CHECKING:
    from rich.console import Console

    from storage_core.cli.output import Output
    from storage_core.dump.convert import Conversion, ConvertedFile


@click.command("convert", cls=ReadCommand)
@paths_argument
@click.option(
    "--to",
    "target",
    required=True,
    type=click.Path(),
    metavar="OUT",
    help="The directory to write to: a new or an empty one, outside of DIR...",
)
@read_flags(*RECORD_FLAGS, *FORMAT_FLAGS, "columns", "includeHeaders", "includeMetadata")
@click.option(
    "--compression",
    type=click.Choice(["zstd", "snappy", "gzip", "lz4", "none"]),
    default="zstd",
    show_default=True,
    help="How the pages of files are compressed.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="How many threads decode; otherwise two where batches are large or of gzip.",
)
@click.option("--overwrite", is_flag=True, help="Replace what an earlier conversion wrote to OUT.")
@output_flag("table", "json", "jsonl")
@quiet_flag
def command(
    paths: tuple[str, ...],
    options: dict[str, Any],
    target: str,
    compression: Any,
    threads: int | None,
    overwrite: bool,
    output: Output,
    quiet: bool,
) -> None:
    """Write the records of DIR... to OUT/topic=.../date=YYYY-MM-DD/part-00000.parquet.

    Days are those of UTC; records without a timestamp go to date=__HIVE_DEFAULT_PARTITION__. Files have the columns of a
    read but the topic, which the path tells. All files appear at the end, and OUT/_SUCCESS last; a conversion that fails
    leaves none.
    """
    from storage_core.dump.convert import ConvertSettings, convert  # noqa: PLC0415
    from storage_core.options import options_of  # noqa: PLC0415
    from storage_core.scan.plan import plan_scan  # noqa: PLC0415
    from storage_core.scan.typed_columns import plan_formats  # noqa: PLC0415
    from storage_core.tier import open_file_system  # noqa: PLC0415

    parsed = options_of(paths, options)
    filesystem = open_file_system(parsed.storage)
    plan = plan_scan(filesystem, parsed, formats=plan_formats(filesystem, parsed))
    settings = ConvertSettings(compression=compression, is_overwriting=overwrite)
    with progress("converting", plan.planned_bytes, quiet) as advance:
        done = convert(filesystem, plan, parsed, target, settings, advance, threads)
    output.write_report(done, lambda console: _render(console, done))


def _render(console: Console, done: Conversion) -> None:
    by_topic: defaultdict[str, list[ConvertedFile]] = defaultdict(list)
    for file in done.files:
        by_topic[file.topic].append(file)
    table = new_table(("topic", "days", "files", "rows", "size"), left=("topic",))
    for topic, files in by_topic.items():
        numbers = (len({file.date for file in files}), len(files), sum(file.rows for file in files))
        size_bytes = sum(file.size_bytes for file in files)
        table.add_row(topic, *(f"{number:,}" for number in numbers), size_text(size_bytes))
    if done.files:
        console.print(table)
    console.print(
        f"{count_text(done.rows, 'row')} in {count_text(len(done.files), 'file')}, {done.size_bytes:,} bytes: "
        f"{printable(done.target)}",
        soft_wrap=True,
    )
