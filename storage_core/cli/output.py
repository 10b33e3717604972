"""What commands print: tables for people, JSON, CSV or Arrow for programs, and progress on standard error.

Names, keys and values are hostile input: printed to a terminal, control characters could rewrite what it shows.
"""

from __future__ import annotations

import contextlib
import csv
import datetime as dt
import os
import re
import sys
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, get_args

from storage_core.errors import visible
from storage_core.progress import advancing
from storage_core.views.texts import count_text, escaped_surrogates, json_text, json_value, timestamp_text

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

    import pyarrow as pa
    from rich.console import Console
    from rich.table import Table


DAMAGE: Final = 1
"""Exit status: there is damage, or a check failed."""
USAGE: Final = 2
"""Exit status: the arguments are wrong, or what is asked for is refused."""
INPUT_OUTPUT: Final = 3
"""Exit status: something cannot be read or written."""

OutputFormat: TypeAlias = Literal["table", "json", "jsonl", "csv", "arrow"]
OUTPUT_FORMATS: Final[tuple[OutputFormat, ...]] = get_args(OutputFormat)
# Python's surrogates for bytes of file names that are not UTF-8.
_BYTES_IN_NAMES: Final = range(0xDC80, 0xDD00)
# A formula of a spreadsheet begins with one of these.
_FORMULA_STARTS: Final = ("=", "+", "-", "@")
_PADDING: Final = re.compile(" +\n")
_ROWS_IN_A_TABLE: Final = 1_000
_UNFOLDED_WIDTH: Final = 10_000


def printable(text: str) -> str:
    r"""Return a text on one line whose control and invisible characters are escapes (``\n``, ``\e``, ``\u200b``)."""
    return text if text.isprintable() else "".join(map(_printable, text))


def _printable(character: str) -> str:
    if ord(character) in _BYTES_IN_NAMES:
        # As in JSON and views.
        return escaped_surrogates(character)
    return "\\e" if character == "\x1b" else visible(character)


@dataclass(frozen=True, slots=True)
class Output:
    """Destination and format of a command's result.

    Attributes:
        has_formulas: Leave cells of CSV as they are that a spreadsheet would run as formulas.
    """

    format: OutputFormat = "table"
    has_formulas: bool = False

    def write_batches(
        self,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        *,
        zone: dt.tzinfo = dt.UTC,
        nothing: str | None = None,
    ) -> None:
        """Print rows as they come; a table shows only the first thousand, in a time zone, and JSON is one list.

        Without rows, a table is ``nothing``, or its header if that is None.
        """
        match self.format:
            case "arrow":
                _write_arrow(schema, batches)
            case "csv":
                _write_csv(schema, batches, has_formulas=self.has_formulas)
            case "jsonl":
                for row in _rows(batches):
                    _write_json_line(row)
            case "json":
                _write_json_list(_rows(batches))
            case "table":
                _write_table(schema, batches, zone, nothing)

    def write_report(self, report: object, render: Callable[[Console], None]) -> None:
        """Print a typed report: as JSON, or rendered for people."""
        if self.format == "table":
            render(console())
        elif self.format == "json":
            sys.stdout.write(_json(json_value(report), indent=2) + "\n")
        else:
            _write_json_line(json_value(report))


def console(*, is_error: bool = False) -> Console:
    """Return a rich console that prints data as it is: no markup, no highlighting, no folded lines.

    Tables are folded to the width of a terminal. In a file or a pipe, each row is one line.
    """
    from rich.console import Console  # noqa: PLC0415

    stream: IO[str] = sys.stderr if is_error else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _UNFOLDED_WIDTH
    if not stream.isatty():
        stream = cast("IO[str]", _Unpadded(stream))
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False, soft_wrap=True)


class _Unpadded:
    """A stream that leaves out the spaces with which rich fills the lines of a table."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write whole lines, as rich does."""
        return self._stream.write(_PADDING.sub("\n", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def rows_of(batch: pa.RecordBatch, zone: dt.tzinfo = dt.UTC) -> list[dict[str, Any]]:
    """Return rows as JSON can hold them. Times become text at once: a log may have some that no `datetime` can hold."""
    import pyarrow as pa  # noqa: PLC0415

    columns = [
        _times_as_text(each, zone) if pa.types.is_timestamp(each.type) else each for each in batch.columns
    ]
    rows: list[dict[str, Any]] = json_value(
        pa.RecordBatch.from_arrays(columns, batch.schema.names).to_pylist()
    )
    return rows


def _times_as_text(times: pa.Array, zone: dt.tzinfo) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415

    times_us = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64()).to_pylist()
    return pa.array(
        [timestamp_text(None if each is None else each // 1000, zone) for each in times_us], pa.string()
    )


def _rows(batches: Iterable[pa.RecordBatch], zone: dt.tzinfo = dt.UTC) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from rows_of(batch, zone)


def _json(value: object, *, indent: int | None = None) -> str:
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    return json_text(value, indent=indent, is_ascii=not is_unicode)


def _write_json_line(value: object) -> None:
    sys.stdout.write(_json(value) + "\n")


def _write_json_list(rows: Iterable[object]) -> None:
    separator = "["
    for row in rows:
        sys.stdout.write(f"{separator}\n  {_json(row)}")
        separator = ","
    sys.stdout.write("[]\n" if separator == "[" else "\n]\n")


def _write_csv(schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, has_formulas: bool) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(schema.names)
    for row in _rows(batches):
        writer.writerow([_csv_cell(value, has_formulas=has_formulas) for value in row.values()])


def _csv_cell(value: object, *, has_formulas: bool) -> object:
    if not isinstance(value, str):
        return _cell(value)
    # An apostrophe in front makes a spreadsheet take a cell for text.
    is_quoted = value.startswith(_FORMULA_STARTS) and not has_formulas
    return ("'" if is_quoted else "") + printable(value)


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, dict)):
        return _json(value)
    return value


def _write_arrow(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    import click  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415

    stream: IO[bytes] = sys.stdout.buffer
    if stream.isatty():
        raise click.UsageError("--output arrow is binary: redirect it to a file or a program.")
    with pa.ipc.new_stream(stream, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def new_table(columns: Iterable[str], *, left: Container[str] = ()) -> Table:
    """Return a table without rows. Columns are right-aligned, as numbers, except those in ``left``."""
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right", overflow="fold")
    return table


def _write_table(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], zone: dt.tzinfo, nothing: str | None
) -> None:
    table = new_table(schema.names, left=[field.name for field in schema if not _is_number(field.type)])
    count = 0
    for row in _rows(batches, zone):
        count += 1
        if count <= _ROWS_IN_A_TABLE:
            table.add_row(*(shown(value) for value in row.values()))
    target = console()
    target.print(nothing if nothing is not None and not count else table)
    if count > _ROWS_IN_A_TABLE:
        more = count_text(count - _ROWS_IN_A_TABLE, "more row")
        target.print(f"and {more}: --output jsonl, csv or arrow has all.")


def shown(value: object) -> str:
    """Write a value as a cell of a table for people; null is empty."""
    if value is None:
        return ""
    if isinstance(value, str):
        return printable(value)
    return printable(str(_cell(value)))


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa  # noqa: PLC0415

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def progress(
    description: str, total: int | None, quiet: bool
) -> contextlib.AbstractContextManager[Callable[[int], None]]:
    """Show progress in bytes on standard error, with rate and time left, while the block runs; only on a terminal.

    Yields:
        A function that takes how many bytes were done since its last call.
    """
    is_shown = not quiet and sys.stderr.isatty()
    return advancing(is_shown, total, printable(description), console(is_error=True) if is_shown else None)
