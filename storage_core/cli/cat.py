"""`segmentlog cat`: records on standard output, in a format of kcat or as JSON lines, once or as they come."""

from __future__ import annotations

import errno
import functools
import os
import select
import sys
import time
from typing import TYPE_CHECKING

import click

from storage_core.cli.flags import FORMAT_FLAGS, RECORD_FLAGS, ReadCommand, paths_argument, read_flags

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from storage_core.directory import PartitionDirectory
    from storage_core.directory.visibility import CommitMonitor
    from storage_core.dump.record_text import RecordText
    from storage_core.filesystem import ReadableFileSystem
    from storage_core.options import ReadOptions
    from storage_core.scan.plan import ScanPlan
    from storage_core.scan.spans import ScanTask
    from storage_core.values.column_format import ColumnFormat


@click.command("cat", cls=ReadCommand)
@paths_argument
@read_flags(*RECORD_FLAGS, *FORMAT_FLAGS)
@click.option(
    "--format",
    "-f",
    "template",
    metavar="FORMAT",
    help=r"As kcat's -f: %s value, %S its length, %R its length as 4 bytes, %k key, %K its length, %T timestamp in ms, "
    r"%h headers, %t topic, %p partition, %o offset, %%; \n \r \t \e \xNN.  [default: %s and the delimiter]",
)
@click.option("--json", "-J", "is_json", is_flag=True, help="JSON lines; short for --output jsonl.")
@click.option(
    "--output",
    "-o",
    type=click.Choice(["text", "jsonl"]),
    default="text",
    show_default=True,
    help="Text by the format, or a JSON object per line with kcat's names: topic, partition, offset, tstype, ts, "
    "headers, key, payload.",
)
@click.option(
    "--delimiter",
    "-D",
    default=r"\n",
    show_default=True,
    metavar="TEXT",
    help="What follows each record without --format.",
)
@click.option(
    "--key-delimiter", "-K", metavar="TEXT", help="Print keys, too, and this between key and value."
)
@click.option("--null", "-Z", "is_null_shown", is_flag=True, help="Print NULL for a null key or value.")
@click.option(
    "--max-count", "-c", type=click.IntRange(min=0), metavar="N", help="End after this many records."
)
@click.option(
    "--last",
    "-n",
    type=click.IntRange(min=0),
    metavar="N",
    help="Begin with the last N offsets of each partition; 0 with --follow: only with what comes.",
)
@click.option(
    "--follow",
    "-F",
    is_flag=True,
    help="Go on with what is appended, of new partitions and topics, too, until Ctrl-C. Records that are deleted before "
    "they are read, or truncated, are a warning, unless --fail-on-data-loss true is given.",
)
@click.option(
    "--poll-interval",
    type=click.FloatRange(min=0, min_open=True),
    default=0.5,
    show_default=True,
    metavar="SECONDS",
    help="How often --follow looks for what is new.",
)
@click.option("--raw", is_flag=True, help="Print control characters of records to a terminal as they are.")
def command(  # noqa: PLR0913, PLR0917  (one for each flag)
    paths: tuple[str, ...],
    options: dict[str, object],
    template: str | None,
    is_json: bool,
    output: str,
    delimiter: str,
    key_delimiter: str | None,
    is_null_shown: bool,
    max_count: int | None,
    last: int | None,
    follow: bool,
    poll_interval: float,
    raw: bool,
) -> None:
    """Print the records of DIR..., by topic, partition and offset.

    To a terminal, control characters of records are printed as escapes; to a pipe or a file, their bytes as they are.
    """
    from storage_core.options import options_of  # noqa: PLC0415

    is_json = is_json or output == "jsonl"
    if is_json and (template is not None or key_delimiter is not None):
        raise click.UsageError("--format and --key-delimiter are for text, not for JSON lines.")
    if template is not None and key_delimiter is not None:
        raise click.UsageError("--key-delimiter is for the default format: write it into --format.")
    text = _record_text(
        template if template is not None else _default_template(delimiter, key_delimiter),
        is_json=is_json,
        is_null_shown=is_null_shown,
        is_for_terminal=sys.stdout.isatty() and not raw,
    )
    if follow:
        parsed = options_of(paths, {"failOnDataLoss": False, **options})
        batches = _followed(parsed, text, last, poll_interval)
    else:
        batches = _read(options_of(paths, options), text, last, max_count)
    _print(batches, text, max_count)


def _default_template(delimiter: str, key_delimiter: str | None) -> str:
    from storage_core.dump.record_text import literal_text  # noqa: PLC0415

    keys = "" if key_delimiter is None else f"%k{literal_text(key_delimiter)}"
    return f"{keys}%s{literal_text(delimiter)}"


def _record_text(template: str, *, is_json: bool, is_null_shown: bool, is_for_terminal: bool) -> RecordText:
    from storage_core.dump.record_text import JsonLines, delimited_text  # noqa: PLC0415

    if is_json:
        return JsonLines(is_for_terminal)
    return delimited_text(template, null=b"NULL" if is_null_shown else b"", is_for_terminal=is_for_terminal)


def _schema(text: RecordText, formats: Iterable[ColumnFormat]) -> pa.Schema:
    from storage_core.scan.spans import project, record_schema, typed_schema  # noqa: PLC0415

    schema = project(record_schema(include_headers=True), tuple(sorted({*text.columns, "offset"})))
    return typed_schema(schema, formats)


def _read(
    options: ReadOptions, text: RecordText, last: int | None, max_count: int | None
) -> Iterator[pa.RecordBatch]:
    from storage_core.scan.plan import plan_ranges, plan_scan  # noqa: PLC0415
    from storage_core.scan.read import read_tasks  # noqa: PLC0415
    from storage_core.scan.typed_columns import plan_formats  # noqa: PLC0415
    from storage_core.tier import open_file_system  # noqa: PLC0415

    filesystem = open_file_system(options.storage)
    formats = plan_formats(filesystem, options)

    def tasks() -> Iterator[ScanTask]:
        if last is None and max_count is not None:
            yield from _tasks_in_turn(filesystem, options, formats)
            return
        plan = plan_scan(filesystem, options, formats=formats)
        if last is None:
            yield from plan.tasks
            return
        for each in plan.resolution.partitions:
            wanted = each.part(max(each.start_offset, each.end_offset - last), each.end_offset)
            yield from plan_ranges(filesystem, (wanted,), options, formats=formats).tasks

    yield from read_tasks(filesystem, tasks(), _schema(text, formats))


def _tasks_in_turn(
    filesystem: ReadableFileSystem, options: ReadOptions, formats: tuple[ColumnFormat, ...]
) -> Iterator[ScanTask]:
    """Plan partition by partition: the first records are printed before the last partitions are looked at."""
    from storage_core.directory.consistent import read_consistently  # noqa: PLC0415
    from storage_core.directory.visibility import CommitMonitor  # noqa: PLC0415
    from storage_core.options.bounds import warn_of_seconds  # noqa: PLC0415
    from storage_core.scan.plan import plan_ranges  # noqa: PLC0415
    from storage_core.scan.resolve import (  # noqa: PLC0415
        directories_to_open,
        find_directories,
        resolve_partition,
        select_partitions,
    )

    def find(watch: CommitMonitor) -> dict[tuple[str, int], PartitionDirectory]:
        selected = select_partitions(find_directories(filesystem, options, watch), options)
        return {each.topic_partition: each for each in directories_to_open(selected, options, options.where)}

    warn_of_seconds(options.starting, options.ending)
    watch = CommitMonitor(filesystem)
    directories = read_consistently(watch, find)
    known = dict(watch.known)

    def plan(topic_partition: tuple[str, int], watch: CommitMonitor) -> ScanPlan:
        nonlocal directories, known
        if watch.known != known:
            # A commit became visible since they were found.
            directories, known = find(watch), dict(watch.known)
        directory = directories.get(topic_partition)
        wanted = () if directory is None else (resolve_partition(filesystem, directory, options),)
        return plan_ranges(filesystem, wanted, options, formats=formats)

    for topic_partition in tuple(directories):
        yield from read_consistently(watch, functools.partial(plan, topic_partition)).tasks


def _followed(
    options: ReadOptions, text: RecordText, last: int | None, poll_interval_s: float
) -> Iterator[pa.RecordBatch]:
    from storage_core.dump.follow import LogFollower  # noqa: PLC0415
    from storage_core.scan.typed_columns import PinnedFormats  # noqa: PLC0415
    from storage_core.tier import open_file_system  # noqa: PLC0415

    filesystem = open_file_system(options.storage)
    formats = PinnedFormats(filesystem, options)
    schema = _schema(text, formats.formats)
    follower = LogFollower(filesystem, options, schema, last=last, formats=formats)
    while True:
        yield from follower.read_new()
        sys.stdout.buffer.flush()
        _wait(poll_interval_s)


def _wait(seconds: float) -> None:
    """Wait, but stop as soon as nobody reads the output any more."""
    if not hasattr(select, "poll"):
        time.sleep(seconds)
        return
    poll = select.poll()
    # Errors are always reported: a pipe that the reader has closed is one.
    poll.register(sys.stdout.fileno(), 0)
    if poll.poll(seconds * 1000):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _print(batches: Iterator[pa.RecordBatch], text: RecordText, max_count: int | None) -> None:
    left = max_count
    if left == 0:
        return
    stream = sys.stdout.buffer
    for batch in batches:
        wanted = batch if left is None else batch.slice(0, left)
        stream.write(text.render(wanted))
        if left is not None:
            left -= len(wanted)
            if not left:
                return
