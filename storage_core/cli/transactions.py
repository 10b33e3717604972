"""`segmentlog transactions`: who left a transaction open, since when, and the line that aborts it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from storage_core.cli.flags import (
    ALL_TOPICS,
    BOUND_FLAGS,
    TOPIC_FLAGS,
    ReadCommand,
    output_flag,
    paths_argument,
    quiet_flag,
    read_flags,
    zone_of,
)
from storage_core.cli.output import DAMAGE, Output, printable, progress, rows_of
from storage_core.views.texts import duration_text

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from storage_core.options import ReadOptions

# As in storage_core.views.transactions, which imports pyarrow; the help shows it.
_BOOTSTRAP_SERVER: Final = "localhost:9092"
_MOST_COMMANDS: Final = 100
_NARROWING: Final = (*TOPIC_FLAGS, *BOUND_FLAGS, "where")
_FLAG_TEXTS: Final = {
    **ALL_TOPICS,
    "where": "A condition that transactions must meet, as `topic = 'orders' AND offset >= 100 AND timestamp < '-1 hour'`: "
    "`topic`, `partition`, `offset` and `timestamp` (of the first record) compared with literals, with `AND`, `OR`, `NOT`.",
}


@click.command("transactions", cls=ReadCommand)
@paths_argument
@read_flags(
    *_NARROWING,
    "timeZone",
    "failOnDataLoss",
    "ignoreCheckpoints",
    "useIndexes",
    "followSymlinks",
    texts=_FLAG_TEXTS,
)
@click.option("--open", "is_open", is_flag=True, help="Those without a marker. The default.")
@click.option("--committed", "is_committed", is_flag=True, help="Those that were committed.")
@click.option("--aborted", "is_aborted", is_flag=True, help="Those that were aborted.")
@click.option("--all", "-a", "are_all", is_flag=True, help="All transactions.")
@click.option(
    "--longest",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only the N that took longest, or are open longest, the longest first; of all, unless states are chosen.",
)
@click.option(
    "--older-than", metavar="INTERVAL", help="Only those that took longer, or are open longer, such as 10m."
)
@click.option(
    "--max-age",
    metavar="INTERVAL",
    help="End with status 1 if a transaction is open longer, whatever else is shown: transaction.max.timeout.ms of a "
    "broker is 15m.",
)
@click.option(
    "--now",
    metavar="TIME",
    help="When ages are counted to, such as the time at which the broker died.  [default: the clock]",
)
@click.option(
    "--bootstrap-server",
    metavar="HOST:PORT",
    default=_BOOTSTRAP_SERVER,
    show_default=True,
    help="The broker in the commands that abort transactions.",
)
@output_flag()
@quiet_flag
def command(  # noqa: PLR0913, PLR0917  (one for each flag)
    paths: tuple[str, ...],
    options: dict[str, object],
    is_open: bool,
    is_committed: bool,
    is_aborted: bool,
    are_all: bool,
    longest: int | None,
    older_than: str | None,
    max_age: str | None,
    now: str | None,
    bootstrap_server: str,
    output: Output,
    quiet: bool,
) -> None:
    """Show transactions, those that are open unless told otherwise, from the log alone.

    An open transaction keeps consumers with isolation.level=read_committed from reading past its first record. It hangs
    if its producer is gone and no coordinator knows it: then nothing but the printed command ends it. On the directory
    of a running broker, one that is open may also be at work. Offsets that are committed in transactions
    (sendOffsetsToTransaction) are in __consumer_offsets, which is looked at, too.
    """
    from storage_core.options import options_of  # noqa: PLC0415
    from storage_core.options.values import parse_interval_ms, parse_timestamp_ms  # noqa: PLC0415
    from storage_core.views.transactions import ABORTED, COMMITTED, OPEN  # noqa: PLC0415

    chosen = {OPEN: is_open, COMMITTED: is_committed, ABORTED: is_aborted}
    states = frozenset(state for state, is_chosen in chosen.items() if is_chosen or are_all)
    if not states:
        states = frozenset(chosen) if longest is not None else frozenset({OPEN})
    now_ms = int(time.time() * 1000)
    if now is not None:
        now_ms = parse_timestamp_ms("--now", now, zone_of(options), now_ms)
    query = _Query(
        options_of(paths, {**options, "view": "transactions"}),
        states,
        longest,
        None if older_than is None else parse_interval_ms("--older-than", older_than),
        now_ms,
        bootstrap_server,
        is_narrowed=older_than is not None or not options.keys().isdisjoint(_NARROWING),
        is_quiet=quiet,
    )
    most_ms = None if max_age is None else parse_interval_ms("--max-age", max_age)
    _print(output, query, zone_of(options))
    if most_ms is not None and query.oldest_ms > most_ms:
        message = (
            f"Expected no transaction to be open for more than {max_age}, found one that is open for "
            f"{duration_text(query.oldest_ms)}."
        )
        click.echo(printable(f"segmentlog: {message}"), err=True)
        raise SystemExit(DAMAGE)


@dataclass(slots=True)
class _Query:
    """The transactions that are asked for.

    Attributes:
        longest: How many at most, those that took longest; None for all, in the order of the view.
        least_ms: How long they took at least.
        is_narrowed: Whether more than the states says which are asked for.
        oldest_ms: The age of the oldest open transaction that was met, whether it is asked for or not.
    """

    options: ReadOptions
    states: frozenset[str]
    longest: int | None
    least_ms: int | None
    now_ms: int
    bootstrap_server: str
    is_narrowed: bool
    is_quiet: bool
    oldest_ms: int = -1

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the selected transactions with all columns of the view."""
        batches = map(self._chosen, self._rows())
        if self.longest is None:
            yield from batches
            return
        import pyarrow as pa  # noqa: PLC0415

        longest: pa.Table | None = None
        for batch in batches:
            table = pa.Table.from_batches([batch])
            longest = _longest(table if longest is None else pa.concat_tables([longest, table]), self.longest)
        if longest is not None:
            yield from longest.to_batches()

    def _rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the transactions that meet the condition; only open ones if no others are asked for."""
        from storage_core.tier import open_file_system  # noqa: PLC0415
        from storage_core.views.transactions import OPEN, TRANSACTIONS_VIEW, plan_transactions  # noqa: PLC0415
        from storage_core.views.view import ViewTask, check_condition, read_view_task  # noqa: PLC0415

        filesystem, condition = open_file_system(self.options.storage), self.options.where
        check_condition(TRANSACTIONS_VIEW, condition)
        parts = plan_transactions(
            filesystem,
            self.options,
            only_open=self.states == {OPEN},
            now_ms=self.now_ms,
            bootstrap_server=self.bootstrap_server,
        )
        with progress("Transactions", sum(each.part.size_bytes for each in parts), self.is_quiet) as advance:
            for part in parts:
                task = ViewTask("transactions", part, condition)
                yield from read_view_task(filesystem, task, TRANSACTIONS_VIEW.schema)
                advance(part.part.size_bytes)

    def _chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.compute as pc  # noqa: PLC0415

        ages_ms = pc.max(batch.column("ageMs")).as_py()
        self.oldest_ms = max(self.oldest_ms, -1 if ages_ms is None else ages_ms)
        is_chosen = pc.is_in(batch.column("state"), pa.array(sorted(self.states)))
        if self.least_ms is not None:
            is_long = pc.greater_equal(_lengths_ms(batch), self.least_ms)
            is_chosen = pc.and_(is_chosen, pc.fill_null(is_long, fill_value=False))
        return batch.filter(is_chosen)


def _lengths_ms(rows: pa.RecordBatch | pa.Table) -> pa.Array:
    """Return how long each transaction took, or has been open, in milliseconds."""
    import pyarrow.compute as pc  # noqa: PLC0415

    return pc.coalesce(rows.column("ageMs"), rows.column("durationMs"))


def _longest(rows: pa.Table, count: int) -> pa.Table:
    import pyarrow.compute as pc  # noqa: PLC0415

    order = pc.sort_indices(_lengths_ms(rows), sort_keys=[("", "descending")])
    return rows.take(order[:count])


def _print(output: Output, query: _Query, zone: dt.tzinfo) -> None:
    from storage_core.views.transactions import ABORTED, COMMITTED, OPEN, TRANSACTIONS_VIEW  # noqa: PLC0415

    if output.format != "table":
        output.write_batches(TRANSACTIONS_VIEW.schema, query.batches())
        return
    import pyarrow as pa  # noqa: PLC0415

    names = [f"{name} ({zone})" if name == "started" else name for name in _SHOWN]
    schema = pa.schema([(name, pa.int64() if name == "records" else pa.string()) for name in names])
    commands: list[str] = []
    is_any = query.states == {OPEN, COMMITTED, ABORTED}
    states = "" if is_any else f"{' or '.join(sorted(query.states))} "
    rows = _table_rows(query.batches(), schema, commands, zone)
    nothing = f"No {states}transactions{' match' if query.is_narrowed else ''}."
    output.write_batches(schema, rows, nothing=nothing)
    if commands:
        click.echo("\nWhat aborts an open transaction whose producer is gone:")
        for line in commands[:_MOST_COMMANDS]:
            click.echo(printable(line))
    if len(commands) > _MOST_COMMANDS:
        click.echo(f"and {len(commands) - _MOST_COMMANDS:,} more: see abortCommand of --output jsonl.")


# The columns of the table.
_SHOWN: Final = ("partition", "producer", "state", "offsets", "started", "lasted", "records")


def _table_rows(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, commands: list[str], zone: dt.tzinfo
) -> Iterator[pa.RecordBatch]:
    """Yield rows for people, and add to ``commands`` what aborts the open transactions."""
    import pyarrow as pa  # noqa: PLC0415

    for batch in batches:
        commands += batch.column("abortCommand").drop_null().to_pylist()
        lengths_ms = _lengths_ms(batch).to_pylist()
        rows = [
            (
                f"{row['topic']}-{row['partition']}",
                f"{row['producerId']} ({row['producerEpoch']})",
                row["state"],
                _offsets(row),
                _to_the_minute(row["startTimestamp"]),
                None if length_ms is None else duration_text(length_ms),
                row["recordCount"],
            )
            for row, length_ms in zip(rows_of(batch, zone), lengths_ms, strict=True)
        ]
        yield pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def _offsets(row: dict[str, Any]) -> str:
    """Write the offsets of a transaction: ``10-15``, ``10-`` while it is open, ``15`` if there is only the marker."""
    first, marker = row["firstOffset"], row["markerOffset"]
    if first is None:
        return str(marker)
    return f"{first}-" if marker is None else f"{first}-{marker}"


def _to_the_minute(time: str | None) -> str | None:
    return None if time is None else ":".join(time.replace("T", " ").split(":")[:2])
