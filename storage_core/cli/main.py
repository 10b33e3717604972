"""The group of commands, and how each of them ends: its exit status, and one line about what went wrong.

A command's module is imported when the command runs: `segmentlog --help` imports click and nothing else.
"""

from __future__ import annotations

import difflib
import io
import logging
import os
import signal
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final, TextIO, cast

import click

from storage_core import __version__
from storage_core.cli.output import DAMAGE, INPUT_OUTPUT, USAGE, printable
from storage_core.errors import (
    CorruptError,
    LogDirectoryLockedError,
    OptionError,
    RecoveryWouldDiscardError,
    SegmentLogError,
    ValueDecodeError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


COMMANDS: Final = {
    "inventory": "What is here: topics, partitions, sizes, time ranges, strays.",
    "verify": "Check every checksum, index, sequence and checkpoint.",
    "recover": "Make a directory that a broker loads, with all that can be saved.",
    "dump": "Print the content of files, as kafka-dump-log.sh does.",
    "cat": "Print records; with --follow, those that come, too.",
    "index": "Rebuild index files.",
    "offsets": "Committed offsets of consumer groups, now or at a time.",
    "transactions": "Open, long and aborted transactions.",
    "schemas": "Schemas of a registry's topic; a lost registry as files or calls.",
    "plan": "What a read would open, read and skip.",
    "convert": "Write records to Parquet files by topic and day.",
    "report": "Write one HTML page about a directory.",
}
"""Each command is the object ``command`` of the module of its name, here with its help in one line."""
_INTERRUPTED: Final = 128 + signal.SIGINT
_MOST_REMEMBERED: Final = 1_000
# What click calls kinds of values, and plain words for them.
_KINDS: Final = {"integer range": "a whole number", "float range": "a number"}


class Group(click.Group):
    """Says which command may be meant, or that one comes first."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or fail with the one that may be meant."""
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            nearest = difflib.get_close_matches(name, known, n=1)
            hint = (
                f"Did you mean '{nearest[0]}'?"
                if nearest
                else f"Name one first: {ctx.command_path} {known[0]} DIR."
            )
            ctx.fail(f"No such command '{name}'. {hint}")
        return super().resolve_command(ctx, args)


class _Commands(Group):
    """Imports a command only to run it or to show its help."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's signature)
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  (likewise)
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"storage_core.cli.{cmd_name}").command
        command.short_help = COMMANDS[cmd_name]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}
)
@click.version_option(
    __version__, prog_name="segmentlog", message="%(prog)s %(version)s", help="Show the version."
)
def segmentlog() -> None:
    """Examine and repair directories of Kafka log segments: broker disks, snapshots, backups.

    DIR is a broker's log directory, a folder of several, or one partition directory. Nothing is written to it unless
    a command is told to work in place.

    Exit status: 0 fine, 1 damage or a check that fails, 2 wrong usage, 3 input or output.
    """


class _Warnings(logging.Handler):
    """Prints warnings of the library on standard error, each once: a command may look at a directory again and again."""

    def __init__(self, arguments: Sequence[str] | None) -> None:
        super().__init__(logging.WARNING)
        self._arguments = arguments
        self._printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message on one line, without control characters."""
        message = printable(" ".join(_with_flags(record.getMessage(), self._arguments).split()))
        if message not in self._printed:
            if len(self._printed) == _MOST_REMEMBERED:
                self._printed.clear()
            self._printed.add(message)
            click.echo(f"segmentlog: {message}", err=True)


def run(arguments: Sequence[str] | None = None) -> None:
    """Run a command and end the process with its exit status."""
    _check_streams()
    stdout, warnings = sys.stdout, _Warnings(arguments)
    logging.getLogger("storage_core").addHandler(warnings)
    try:
        status = _run_command(arguments)
        sys.stdout.flush()
    except SystemExit as exit_:
        # If nobody reads the pipe any more, click and rich exit with status 1; click also replaces the stream.
        if sys.stdout is stdout and not isinstance(exit_.__context__, BrokenPipeError):
            raise
        sys.stdout = stdout
        status = 0
    except click.UsageError as error:
        status = _fail(_usage_line(error, arguments), USAGE)
    except click.ClickException as error:
        status = _fail(error.format_message(), USAGE)
    except (click.Abort, KeyboardInterrupt):
        status = _INTERRUPTED
    except BrokenPipeError:
        # The reader has read enough, as in `| head`.
        status = 0
    except (OptionError, LogDirectoryLockedError, RecoveryWouldDiscardError) as error:
        # What is asked for is wrong, or refused.
        status = _fail(_with_flags(error, arguments), USAGE)
    except (CorruptError, ValueDecodeError) as error:
        status = _fail(_with_flags(error, arguments), DAMAGE)
    except (SegmentLogError, OSError) as error:
        status = _fail(_with_flags(error, arguments), INPUT_OUTPUT)
    finally:
        logging.getLogger("storage_core").removeHandler(warnings)
    _end(status)


def _run_command(arguments: Sequence[str] | None) -> int:
    """Run a command, and return the status with which it ended itself."""
    try:
        ended = segmentlog.main(
            args=None if arguments is None else list(arguments), prog_name="segmentlog", standalone_mode=False
        )
    except click.UsageError as error:
        # New in click 8.2: older ones print the help of a group without a command, and end with 0.
        if not isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
            raise
        click.echo(error.format_message())
        return 0
    return ended if isinstance(ended, int) else 0


def _usage_line(error: click.UsageError, arguments: Sequence[str] | None) -> str:
    # Some of click's errors do not say which command they are about.
    named = _command_of(arguments)
    command, command_path = (error.ctx.command, error.ctx.command_path) if error.ctx is not None else named
    message = error.format_message()
    for click_name, name in _KINDS.items():
        message = message.replace(f"not a valid {click_name}.", f"not {name}.")
    if isinstance(error, click.NoSuchOption):
        meant = _meant_flag(error.option_name, command)
        hint = f" Did you mean '{meant}'?" if meant else ""
        message = f"No such option '{error.option_name}'.{hint}"
    return f"{message} Try '{command_path} --help'."


def _meant_flag(flag: str, command: click.Command) -> str | None:
    """Return the flag of a command that is nearly this one, or that is called so in other tools."""
    from storage_core.cli.flags import flag_of  # noqa: PLC0415  (help needs none of it)
    from storage_core.options.read_options import meant_option  # noqa: PLC0415  (likewise)

    parameters = command.get_params(click.Context(command))
    known = [each for parameter in parameters for each in (*parameter.opts, *parameter.secondary_opts)]
    option = meant_option(flag.lstrip("-"))
    if option and flag_of(option) in known and f"{flag}s" not in known:
        return flag_of(option)
    nearest = difflib.get_close_matches(flag, known, n=1, cutoff=0.8)
    return nearest[0] if nearest else None


def _with_flags(message: object, arguments: Sequence[str] | None) -> str:
    """Return the message of an error, or of a warning, in the words of the command that is run."""
    from storage_core.cli.flags import with_flags  # noqa: PLC0415  (help needs none of it)

    return with_flags(str(message), _command_of(arguments)[0])


def _command_of(arguments: Sequence[str] | None) -> tuple[click.Command, str]:
    """Return the command that arguments name, and its name with those of its groups."""
    command, path = cast("click.Command", segmentlog), "segmentlog"
    for argument in sys.argv[1:] if arguments is None else arguments:
        if not isinstance(command, click.Group):
            break
        below = command.get_command(click.Context(command), argument)
        if below is not None:
            command, path = below, f"{path} {argument}"
    return command, path


def _check_streams() -> None:
    """Make sure that there are streams to print to, whatever a caller has closed, and that they take every character."""
    if cast("TextIO | None", sys.stderr) is None:
        # Lives as long as the process.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if cast("TextIO | None", sys.stdout) is None:
        sys.exit(
            _fail("Standard output is closed. Redirect it: to /dev/null if nobody reads it.", INPUT_OUTPUT)
        )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Characters that the locale's encoding lacks become escapes.
            stream.reconfigure(errors="backslashreplace")


def _fail(message: str, status: int) -> int:
    click.echo(f"segmentlog: {printable(' '.join(message.split()))}", err=True)
    return status


def _end(status: int) -> None:
    """End the process; standard output may be closed already, which is no error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Otherwise the interpreter reports the pipe once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)
