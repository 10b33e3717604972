"""Arguments that commands share: directories, the options of reads as flags, the format of the output.

A read option has its name in kebab case as flag, `--starting-timestamp`, and its text of the table of options as help.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from storage_core.cli.output import OUTPUT_FORMATS, Output, OutputFormat, printable
from storage_core.options import READ_OPTIONS
from storage_core.options.column_choice import FORMAT_OPTIONS
from storage_core.options.option import Option
from storage_core.options.read_options import TOPIC_OPTIONS
from storage_core.options.storage_options import KEY_FILE, MAPPING

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable

    from click.shell_completion import CompletionItem

    from storage_core.options import ReadOptions

_Function = TypeVar("_Function", bound="Callable[..., Any]")
_OPTIONS: Final = {option.name: option for option in READ_OPTIONS}
_STORAGE_PARAMETER: Final = "storage_options"
_FORMULAS: Final = "segmentlog.csv_formulas"
# Not parts of a path, as in /data/mode=full.
_NAMES: Final = re.compile(r"(?<![\w./-])([a-z]+(?:[A-Z][a-z]+)*)\b(?!/)(=| is ')?")
_PLACE: Final = re.compile(r" \[[^\[\]]*\]$")
_WORDS: Final = re.compile(r"`([^`]+)`")
_SENTENCE_END: Final = re.compile(r"(?<=\.) (?=[A-Z])")
_SECTIONS: Final = ("Options", "What to read", "Typed values", "Storage")
_NOT_OF_COMMANDS: Final = re.compile(r"\b(?:stream|Spark|DataFrame)\b")

TOPIC_FLAGS: Final = TOPIC_OPTIONS
BOUND_FLAGS: Final = (
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingAt",
)
RECORD_FLAGS: Final = (
    *TOPIC_FLAGS,
    *BOUND_FLAGS,
    "remoteStorage",
    "where",
    "timeZone",
    "isolationLevel",
    "mode",
    "failOnDataLoss",
    "maxTimestampDisorder",
    "maxDecompressedBatchBytes",
    "ignoreCheckpoints",
    "useIndexes",
    "followSymlinks",
)
"""The options of a read of records."""
FORMAT_FLAGS: Final = (*(option.name for option in FORMAT_OPTIONS), "schemasPath", "schemasTopic")
"""The options that give keys and values a type."""

ALL_TOPICS: Final = {
    "subscribe": "Topics to look at, comma separated, internal ones too.",
    "assign": """Partitions to look at, as `{"topicA":[0,1]}`. Only one of """
    "`subscribe`, `subscribePattern` and `assign` may be given; with none, every topic, internal ones too.",
}
"""Help of `TOPIC_FLAGS` for commands that look at internal topics unless told otherwise."""


class ReadCommand(click.Command):
    """Shows its own options first, and those of reads in sections of their own."""

    def __init__(self, name: str | None, **settings: Any) -> None:
        super().__init__(name, epilog="See docs/cli.md.", **settings)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group of options."""
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        for title in _SECTIONS:
            records = [each.get_help_record(ctx) for each in options if _section(str(each.name)) == title]
            shown = [record for record in records if record is not None]
            if shown:
                with formatter.section(title):
                    formatter.write_dl(shown)


def _section(parameter: str) -> str:
    if parameter == _STORAGE_PARAMETER or parameter.startswith("read_remote"):
        return "Storage"
    if parameter.startswith(("read_value", "read_key", "read_schemas")):
        return "Typed values"
    return "What to read" if parameter.startswith("read_") else "Options"


def _checked_paths(
    _context: click.Context, _parameter: click.Parameter, paths: tuple[str, ...]
) -> tuple[str, ...]:
    if "" in paths:
        raise click.BadParameter("found an empty path. Name a directory.")
    return paths


def _storage_options(
    _context: click.Context, _parameter: click.Parameter, pairs: tuple[str, ...]
) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in pairs:
        name, is_pair, value = pair.partition("=")
        # A message must not show a value, nor one that was given without a name.
        if not is_pair or options.setdefault(name, value) != value:
            fault = f"{name} has two values" if is_pair else "found no '='"
            raise click.BadParameter(f"{fault}. Use NAME=VALUE, each name once.")
    return options


paths_argument = click.argument(
    "paths",
    metavar="DIR...",
    nargs=-1,
    required=True,
    type=click.Path(file_okay=True),
    callback=_checked_paths,
)
"""Log directories, folders of them, or partition directories, as ``paths``."""

quiet_flag = click.option("--quiet", "-q", is_flag=True, help="No progress.")
"""``quiet``: whether progress is left out."""

jobs_flag = click.option(
    "--jobs",
    "-j",
    type=click.IntRange(min=1),
    default=lambda: os.cpu_count() or 1,
    metavar="N",
    help="How many processes share the work.  [default: one per processor]",
)
"""``jobs``: how many processes share the work."""


def output_flag(*formats: OutputFormat) -> Callable[[_Function], _Function]:
    """Add ``output``: an `Output` of one of these formats, of all if none is named."""
    choices = formats or OUTPUT_FORMATS
    output = click.option(
        "--output",
        "-o",
        type=click.Choice(choices),
        default="table",
        show_default=True,
        callback=lambda context, _parameter, value: Output(value, context.meta.get(_FORMULAS, False)),
        help="How the result is printed.",
    )
    if "csv" not in choices:
        return output
    formulas = click.option(
        "--csv-formulas",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=lambda context, _parameter, value: context.meta.update({_FORMULAS: value}),
        help="Leave CSV cells that begin with = + - @ as they are. Without it, an apostrophe keeps a spreadsheet from running "
        "them as formulas.",
    )
    return lambda function: output(formulas(function))


def read_flags(
    *names: str, texts: Mapping[str, str] = MappingProxyType({})
) -> Callable[[_Function], _Function]:
    """Add ``options``: the read options that are given, by their documented names, for `storage_core.options`.

    Those that reach an object store are among them. ``texts`` has the help of those that mean something else to the command than to a read of records.
    """
    chosen = [_OPTIONS[name] for name in (*names, KEY_FILE)]
    parameters = {_parameter(option): option.name for option in chosen}

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def with_options(**given: Any) -> Any:
            values = {name: given.pop(parameter) for parameter, name in parameters.items()}
            values[MAPPING] = given.pop(_STORAGE_PARAMETER) or None
            options = {name: value for name, value in values.items() if value is not None}
            if options.keys().isdisjoint(TOPIC_FLAGS):
                return function(options=options, **given)
            from storage_core.scan.resolve import matches_required  # noqa: PLC0415

            with matches_required():
                return function(options=options, **given)

        decorated: Any = click.option(
            "--storage-option",
            _STORAGE_PARAMETER,
            metavar="NAME=VALUE",
            multiple=True,
            callback=_storage_options,
            help="How to reach an object store, such as s3.endpoint=http://host:9000; may be repeated. Leave credentials to the "
            "environment: other users see command lines.",
        )(with_options)
        for option in reversed(chosen):
            decorated = click.option(
                flag_of(option.name),
                _parameter(option),
                metavar=_metavar(option),
                default=None,
                shell_complete=functools.partial(_complete, _WORDS.findall(option.kind.text)),
                help=_help(option, texts.get(option.name, option.doc)),
            )(decorated)
        found: _Function = decorated
        return found

    return decorate


def zone_of(options: Mapping[str, object]) -> dt.tzinfo:
    """Return the time zone that ``--time-zone`` names; UTC if it is not given.

    Raises:
        OptionError: No such zone is known.
    """
    from storage_core.options.values import parse_time_zone  # noqa: PLC0415

    return parse_time_zone("timeZone", options.get("timeZone", "UTC"))


def require_local(options: ReadOptions) -> None:
    """Raise `OptionError` if what is changed in place is in an object store."""
    from storage_core.filesystem import FileSystem  # noqa: PLC0415
    from storage_core.options.paths import path_to_change  # noqa: PLC0415
    from storage_core.scan.resolve import split_paths  # noqa: PLC0415

    for path in split_paths(FileSystem(), options.paths):
        path_to_change(path)


def with_flags(message: str, command: click.Command | None) -> str:
    """Return a message of the library in which options have the names that they have as flags of a command.

    Names that are words of English or may be topics, such as ``mode``, are taken for options only before a value. What
    is in brackets at the end says where it was found, and stays as it is.
    """
    flags = {flag for parameter in getattr(command, "params", ()) for flag in parameter.opts}

    def renamed(found: re.Match[str]) -> str:
        name, value = found[1], found[2] or ""
        is_option = name in _OPTIONS and flag_of(name) in flags and (value or not name.islower())
        return flag_of(name) + value if is_option else found[0]

    place = _PLACE.search(message)
    end = place.start() if place else len(message)
    return _NAMES.sub(renamed, message[:end]) + message[end:]


def finding_text(text: str) -> str:
    """Return what a command found, on one line, with options by the names of its flags."""
    return printable(with_flags(text, click.get_current_context().command))


def flag_of(name: str) -> str:
    """Return the flag of a read option: ``--starting-timestamp`` of ``startingTimestamp``."""
    return "--" + re.sub("(?=[A-Z])", "-", name).lower()


def _parameter(option: Option) -> str:
    return "read_" + flag_of(option.name).removeprefix("--").replace("-", "_")


def _metavar(option: Option) -> str:
    text = option.kind.text
    words = [word for word in _WORDS.findall(text) if word != "JSON"]
    return "|".join(words) if words and "JSON" not in text else text.replace("`", "").upper()


def _help(option: Option, doc: str) -> str:
    def shown(word: re.Match[str]) -> str:
        name, sign, value = word[1].partition("=")
        return (flag_of(name) if name in _OPTIONS else name) + sign + value

    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", doc)
    text = " ".join(each for each in _SENTENCE_END.split(text) if not _NOT_OF_COMMANDS.search(each))
    # Options are flags here, and Markdown's backticks are noise in a terminal.
    text = _WORDS.sub(shown, text)
    return f"{text}  [default: {option.default}]" if option.default else text


def _complete(
    words: list[str], _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem  # noqa: PLC0415

    return [CompletionItem(word) for word in words if word.lower().startswith(incomplete.lower())]
