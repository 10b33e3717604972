"""`segmentlog dump`: the content of files, in the words of `kafka-dump-log.sh` or as JSON lines."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from storage_core.cli.flags import (
    FORMAT_FLAGS,
    RECORD_FLAGS,
    TOPIC_FLAGS,
    ReadCommand,
    finding_text,
    flag_of,
    read_flags,
)
from storage_core.cli.output import DAMAGE, INPUT_OUTPUT, USAGE, printable
from storage_core.dump import DumpOptions, LogDump, RecordFormat
from storage_core.dump.dump_log import SUFFIXES
from storage_core.dump.log_text import DEFAULT_MAX_MESSAGE_BYTES, MAX_INT32, LogText, open_log
from storage_core.errors import CorruptError, LogDirectoryError, OptionError, UnreadableError
from storage_core.filesystem import FileSystem, ReadableFileSystem, RoutedFileSystem, absolute_path
from storage_core.options import options_of
from storage_core.options.paths import path_to_read
from storage_core.options.storage_options import OF_STORAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from storage_core.dump.record_json import BytesFormat


_DECODERS: Final = {
    "offsets": "__consumer_offsets",
    "transaction-log": "__transaction_state",
    "cluster-metadata": "__cluster_metadata",
    "remote-log-metadata": "__remote_log_metadata",
    "share-group-state": "__share_group_state",
}
# The read options that choose files as well as records.
_CHOOSING_TOPICS: Final = (*TOPIC_FLAGS, "followSymlinks")
_JSON: Final = "jsonl"


def _refuse_class(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None and not context.resilient_parsing:
        raise click.UsageError(
            f"{parameter.opts[0]} names a Java class, which runs only in kafka-dump-log.sh. Leave it out, and use --bytes "
            "hex or base64 for what is no text.",
            context,
        )


def _class_option(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        name,
        metavar="CLASS",
        is_flag=False,
        flag_value="",
        default=None,
        expose_value=False,
        callback=_refuse_class,
        help="Refused: it names a Java class.",
    )


def _decoder_flags(function: Callable[..., None]) -> Callable[..., None]:
    """Add a flag for each decoder; ``decoder`` is the first that is given, in the order of the tool."""

    @functools.wraps(function)
    def with_decoder(**given: Any) -> None:
        chosen = [name for name in _DECODERS if given.pop(_parameter(name))]
        function(decoder=chosen[0] if chosen else None, **given)

    decorated: Callable[..., None] = with_decoder
    for name, topic in reversed(_DECODERS.items()):
        decorated = click.option(
            f"--{name}-decoder", _parameter(name), is_flag=True, help=f"Decode the records of {topic}."
        )(decorated)
    return decorated


def _parameter(decoder: str) -> str:
    return f"decoder_{decoder}".replace("-", "_")


@click.command("dump", cls=ReadCommand)
@click.argument("paths", metavar="[FILE|DIR]...", nargs=-1, type=click.Path())
@click.option("--files", metavar="FILE,...", help="The files, separated by commas.")
@click.option("--print-data-log", is_flag=True, help="Print keys and values, too. Each decoder implies it.")
@click.option("--deep-iteration", is_flag=True, help="Print each record's offset, timestamp and sizes.")
@click.option("--skip-record-metadata", is_flag=True, help="Leave these out.")
@click.option(
    "--max-bytes",
    type=click.IntRange(0, MAX_INT32),
    default=MAX_INT32,
    metavar="N",
    help="Only the batches within the first N bytes of a log.",
)
@click.option(
    "--max-message-size",
    type=click.IntRange(0, MAX_INT32),
    default=DEFAULT_MAX_MESSAGE_BYTES,
    show_default=True,
    metavar="N",
    help="The largest batch that an offset index may point to.",
)
@click.option(
    "--verify-index-only", is_flag=True, help="Compare indexes with their logs, and print no entries."
)
@click.option(
    "--index-sanity-check", is_flag=True, help="Check indexes as a broker's start does, and print no entries."
)
@_decoder_flags
@_class_option("--key-decoder-class")
@_class_option("--value-decoder-class")
@click.option(
    "--output",
    "-o",
    type=click.Choice(["text", _JSON]),
    default="text",
    show_default=True,
    help="The text of kafka-dump-log.sh, or an object per record with everything.",
)
@click.option(
    "--bytes",
    "bytes_format",
    type=click.Choice(["utf8", "base64", "hex"]),
    default="utf8",
    show_default=True,
    help='With jsonl: keys and values as text (as {"base64": …} if they are no UTF-8), or encoded.',
)
@click.option("--raw", is_flag=True, help="Print control characters to a terminal as they are.")
@read_flags(*RECORD_FLAGS, *FORMAT_FLAGS)
def command(  # noqa: PLR0913  (one for each flag)
    *,
    paths: tuple[str, ...],
    files: str | None,
    print_data_log: bool,
    deep_iteration: bool,
    skip_record_metadata: bool,
    max_bytes: int,
    max_message_size: int,
    verify_index_only: bool,
    index_sanity_check: bool,
    decoder: str | None,
    output: str,
    bytes_format: BytesFormat,
    raw: bool,
    options: dict[str, object],
) -> None:
    """Print the content of log files, indexes and snapshots: FILE..., or all of them in DIR....

    The text is that of kafka-dump-log.sh 4.1, byte for byte, also of damaged files: it ends where that tool fails. A
    directory's files are dumped one after the other, whatever one of them is like. With --output jsonl, records of DIR...
    are read as all other commands read them, by bounds and conditions; those of FILE... as they are, damaged or not.

    To a terminal, control characters are printed as escapes; to a pipe or a file, bytes as they are. The exit status is 1
    if a CRC is wrong, bytes are left over, or an index disagrees with its log.
    """
    named = [path_to_read(path) for path in (*(files.split(",") if files is not None else ()), *paths)]
    if not named:
        raise click.UsageError("There is nothing to dump: name files or directories.")
    filesystem = _file_system(named, options)
    directories = [path for path in named if _is_directory(filesystem, path)]
    plain_files = [path for path in named if path not in directories]
    _check_read_options(options, output, directories, plain_files)
    is_for_terminal = sys.stdout.isatty() and not raw
    if output == _JSON:
        if verify_index_only or index_sanity_check:
            raise click.UsageError("--output jsonl prints records; of indexes there is only text.")
        lines = _JsonLines(filesystem, bytes_format, decoder, max_bytes, is_for_terminal=is_for_terminal)
        is_damaged = lines.write_files(plain_files)
        if directories:
            lines.write_records(directories, options)
        status = DAMAGE if is_damaged else 0
    else:
        record_format = None
        has_content = print_data_log or decoder is not None
        if has_content or deep_iteration:
            record_format = RecordFormat(has_content, not skip_record_metadata, decoder)
        dump_options = DumpOptions(
            record_format, max_bytes, max_message_size, verify_index_only, index_sanity_check
        )
        dump = LogDump(filesystem, dump_options, _report_error)
        found = list(_files_in(filesystem, directories, options)) if directories else []
        status = _write_text(dump, plain_files, found, is_for_terminal=is_for_terminal)
    if status:
        raise SystemExit(status)


def _check_read_options(
    options: dict[str, object], output: str, directories: list[str], plain_files: list[str]
) -> None:
    for name in (each for each in options if each not in OF_STORAGE):
        if not directories:
            raise click.UsageError(
                f"{flag_of(name)} chooses among the topics of a directory; {printable(plain_files[0])} is none."
            )
        if output != _JSON and name not in _CHOOSING_TOPICS:
            raise click.UsageError(f"{flag_of(name)} chooses records, not files: add --output jsonl.")


def _file_system(named: list[str], options: dict[str, object]) -> ReadableFileSystem:
    """Open the file system of these names. It shows tiers, unless each name is a file's."""
    storage = options_of(named, {name: options[name] for name in OF_STORAGE if name in options}).storage
    filesystem = RoutedFileSystem(storage, FileSystem())
    if all((status := filesystem.status(path)) and status.is_regular_file for path in named):
        return filesystem
    from storage_core.tier import open_file_system  # noqa: PLC0415  (numpy takes long to import)

    return open_file_system(storage)


def _is_directory(filesystem: ReadableFileSystem, path: str) -> bool:
    status = filesystem.status(path, follow_symlinks=True)
    return status is not None and status.is_directory


def _files_in(
    filesystem: ReadableFileSystem, directories: list[str], options: dict[str, object]
) -> Iterator[str]:
    """Find the files of the partitions that are asked for, by name."""
    from storage_core.views.roots import find_roots, require_listed, selected_locations  # noqa: PLC0415

    parsed = options_of(directories, options)
    roots = find_roots(filesystem, parsed.paths, follow_symlinks=parsed.follow_symlinks)
    require_listed(roots)
    for location in selected_locations(filesystem, roots, parsed):
        for entry in filesystem.list_directory(location.path):
            if entry.name.endswith(SUFFIXES):
                yield os.path.join(location.path, entry.name)


def _write_text(dump: LogDump, files: list[str], in_directories: list[str], *, is_for_terminal: bool) -> int:
    """Print files as the tool does; those of directories go on after one at which it fails.

    Returns:
        The exit status.
    """
    failures: set[int] = set()
    try:
        for path in files:
            _write(dump.file(path), is_for_terminal=is_for_terminal)
        for path in in_directories:
            try:
                _write(dump.file(path), is_for_terminal=is_for_terminal)
            except (CorruptError, LogDirectoryError, OptionError) as error:
                failures.add(INPUT_OUTPUT if isinstance(error, UnreadableError) else DAMAGE)
                _report_error(finding_text(f"segmentlog: {error}"))
    finally:
        for line in dump.report.lines():
            _report_error(line)
    if failures or dump.report.has_damage:
        return max(failures, default=DAMAGE)
    return USAGE if dump.report.has_unknown else 0


def _write(pieces: Iterable[bytes], *, is_for_terminal: bool) -> None:
    stream = sys.stdout.buffer
    for piece in pieces:
        stream.write(_escaped(piece) if is_for_terminal else piece)


def _escaped(piece: bytes) -> bytes:
    return "\n".join(map(printable, piece.decode(errors="replace").split("\n"))).encode()


def _report_error(line: str) -> None:
    click.echo(printable(line), err=True)


class _JsonLines:
    """Prints records as JSON lines."""

    def __init__(
        self,
        filesystem: ReadableFileSystem,
        bytes_format: BytesFormat,
        decoder: str | None,
        max_bytes: int,
        *,
        is_for_terminal: bool,
    ) -> None:
        from storage_core.internal_records.internal_records import MESSAGE_DECODERS  # noqa: PLC0415

        self._filesystem = filesystem
        self._bytes_format: BytesFormat = bytes_format
        self._decoder = None if decoder is None else MESSAGE_DECODERS[decoder]
        self._max_bytes = max_bytes
        self._is_for_terminal = is_for_terminal

    def write_files(self, paths: list[str]) -> bool:
        """Print the records of files; say whether one is damaged."""
        is_damaged = False
        for path in paths:
            if not path.endswith((".log", ".checkpoint")):
                raise click.UsageError(
                    f"--output jsonl prints records, and {printable(path)} has none: give .log files or directories."
                )
            is_damaged |= self._write_file(path)
        return is_damaged

    def _write_file(self, path: str) -> bool:
        from storage_core.directory import parse_partition_directory_name  # noqa: PLC0415
        from storage_core.dump.record_json import RecordObjects  # noqa: PLC0415

        name = parse_partition_directory_name(os.path.basename(os.path.dirname(absolute_path(path))))
        records = RecordObjects(
            path,
            None if name is None else (name.topic, name.partition),
            self._bytes_format,
            self._decoder,
            is_ascii=self._is_for_terminal,
        )
        with open_log(self._filesystem, path) as log_file:
            end_bytes = min(log_file.status.size_bytes, self._max_bytes)
            log_text = LogText(log_file, end_bytes, records)
            _write(log_text.pieces(), is_for_terminal=False)
        left_bytes = end_bytes - log_text.valid_bytes
        if not left_bytes or self._max_bytes != MAX_INT32:
            return log_text.has_damage
        _report_error(f"Found {left_bytes} invalid bytes at the end of {path}")
        return True

    def write_records(self, directories: list[str], options: dict[str, object]) -> None:
        """Print the records that a read gives."""
        from storage_core.dump.record_json import READ_COLUMNS, json_line, read_objects  # noqa: PLC0415
        from storage_core.scan.plan import plan_scan  # noqa: PLC0415
        from storage_core.scan.read import read_task  # noqa: PLC0415
        from storage_core.scan.spans import project, record_schema, typed_schema  # noqa: PLC0415
        from storage_core.scan.typed_columns import plan_formats  # noqa: PLC0415

        parsed = options_of(directories, {**options, "includeHeaders": True, "includeMetadata": True})
        formats = plan_formats(self._filesystem, parsed)
        schema = project(record_schema(include_headers=True, include_metadata=True), READ_COLUMNS)
        schema = typed_schema(schema, formats)
        for task in plan_scan(self._filesystem, parsed, formats=formats).tasks:
            for batch in read_task(self._filesystem, task, schema):
                for found in read_objects(batch, self._bytes_format, self._decoder):
                    sys.stdout.buffer.write(json_line(found, is_ascii=self._is_for_terminal))
