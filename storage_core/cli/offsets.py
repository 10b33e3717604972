"""`segmentlog offsets`: where consumer groups are, or were at a time, and a plan that sets them back there."""

from __future__ import annotations

import csv
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from storage_core.cli.flags import (
    TOPIC_FLAGS,
    ReadCommand,
    output_flag,
    paths_argument,
    quiet_flag,
    read_flags,
    zone_of,
)
from storage_core.cli.output import Output, printable, progress
from storage_core.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa


# These columns fit a terminal. The other formats have all.
_SHOWN: Final = ("group", "groupType", "topic", "partition", "offset", "lag", "note", "commitTime")
_IN_A_PLAN: Final = (
    "group",
    "groupType",
    "isExpired",
    "topic",
    "partition",
    "offset",
    "logEndOffset",
    "note",
)
_SHARE: Final = "share"
# Notes of `storage_core.views.group_offsets` after which a plan deserves a look.
_ODD: Final = ("log not found", "beyond log end", "below log start")
_FLAG_TEXTS: Final = {
    "asOf": "Show the offsets as they were at this time: epoch milliseconds, ISO-8601, or relative (-10 minutes).",
    "subscribe": "Only offsets in these topics, comma separated.",
    "subscribePattern": "Only offsets in topics whose name has a match of this pattern.",
    "assign": """Only offsets in these partitions, as `{"topicA":[0,1]}`. Only one of `subscribe`, `subscribePattern` and """
    "`assign` may be given; with none, offsets in every topic.",
    "where": "A condition that rows must meet, as `topic = 'orders' AND partition IN (0, 1) AND timestamp < '-1 hour'`: "
    "`topic`, `partition`, `offset` and `timestamp` (the time of the commit) compared with literals, with `AND`, `OR`, "
    "`NOT`.",
    "mode": "What a damaged batch does: fail the command, or be left out with a warning. A record that cannot be read is "
    "left out and counted, unless FAILFAST is asked for.",
}


@click.command("offsets", cls=ReadCommand)
@paths_argument
@click.option(
    "--group", "-g", "groups", multiple=True, metavar="GROUP", help="Only this group; may be repeated."
)
@read_flags(
    *("asOf", *TOPIC_FLAGS, "where", "timeZone", "mode", "maxDecompressedBatchBytes", "followSymlinks"),
    texts=_FLAG_TEXTS,
)
@click.option(
    "--reset-plan",
    is_flag=True,
    help="Print the CSV that kafka-consumer-groups.sh --reset-offsets --from-file takes: run it with the same --group, "
    "if one is given here, else with --all-groups.",
)
@output_flag()
@quiet_flag
def command(
    paths: tuple[str, ...],
    groups: tuple[str, ...],
    options: dict[str, object],
    reset_plan: bool,
    output: Output,
    quiet: bool,
) -> None:
    """Show what groups have committed, from __consumer_offsets and, for share groups, __share_group_state.

    DIR is the log directory of each broker that coordinates the groups. The lag is shown for partitions whose logs are
    in the same directories. With --as-of, offsets and lags are those of that time, as far as compaction has left them.
    """
    if reset_plan and output.format not in ("table", "csv"):
        raise OptionError(
            f"--reset-plan prints CSV of its own, found --output {output.format}. Leave it out."
        )
    offsets = _CommittedOffsets(paths, groups, options, is_quiet=quiet)
    rows = offsets.rows()
    if reset_plan:
        _print_reset_plan(rows.select(_IN_A_PLAN).to_pylist(), has_group=len(groups) != 1)
    else:
        shown = rows.select(_SHOWN) if output.format == "table" else rows
        output.write_batches(shown.schema, shown.to_batches(), zone=zone_of(options))
    for line in offsets.notes():
        click.echo(printable(f"segmentlog: {line}"), err=True)


class _CommittedOffsets:
    """The offsets that are asked for, of all groups if none is named."""

    def __init__(
        self, paths: Sequence[str], groups: tuple[str, ...], options: dict[str, object], *, is_quiet: bool
    ) -> None:
        from storage_core.options import options_of  # noqa: PLC0415
        from storage_core.tier import open_file_system  # noqa: PLC0415
        from storage_core.views.group_offsets import GROUP_OFFSETS_VIEW, plan_group_offsets  # noqa: PLC0415
        from storage_core.views.view import check_condition  # noqa: PLC0415

        parsed = options_of(paths, {**options, "view": "group_offsets"})
        check_condition(GROUP_OFFSETS_VIEW, parsed.where)
        self.groups = groups
        self.schema: pa.Schema = GROUP_OFFSETS_VIEW.schema
        self._condition = parsed.where
        self._selects_topics = parsed.names_topics
        self._filesystem = open_file_system(parsed.storage)
        self._parts = plan_group_offsets(
            self._filesystem, parsed, fails_on_records="mode" in options and parsed.mode == "FAILFAST"
        )
        self._is_quiet = is_quiet
        # The groups found, each with its partition of __consumer_offsets; None for share groups.
        self._owners: dict[str, int | None] = {}

    def rows(self) -> pa.Table:
        """Return their rows with all columns of the view, by group, topic and partition."""
        import pyarrow as pa  # noqa: PLC0415

        from storage_core.scan.resolve import report_no_match  # noqa: PLC0415

        rows = pa.Table.from_batches(self._batches(), self.schema)
        if not len(rows) and self._selects_topics:
            report_no_match("The chosen topics and partitions have no committed offset here.")
        return rows.sort_by([(name, "ascending") for name in ("group", "topic", "partition")])

    def _batches(self) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.compute as pc  # noqa: PLC0415

        from storage_core.views.group_offsets import OFFSETS_TOPIC  # noqa: PLC0415
        from storage_core.views.view import ViewTask, read_view_task  # noqa: PLC0415

        groups = pa.array(self.groups, pa.string())
        with progress(
            "Group offsets", sum(each.part.size_bytes for each in self._parts), self._is_quiet
        ) as advance:
            for part in self._parts:
                task = ViewTask("group_offsets", part, self._condition)
                owner = part.part.partition if part.part.topic == OFFSETS_TOPIC else None
                for batch in read_view_task(self._filesystem, task, self.schema):
                    self._owners |= dict.fromkeys(batch.column("group").to_pylist(), owner)
                    yield batch.filter(pc.is_in(batch.column("group"), groups)) if self.groups else batch
                advance(part.part.size_bytes)

    def notes(self) -> Iterator[str]:
        """Yield a line about each group without offsets."""
        from storage_core.views.group_offsets import OFFSETS_TOPIC, offsets_partition  # noqa: PLC0415

        present = {each.part.partition for each in self._parts if each.part.topic == OFFSETS_TOPIC}
        count = self._partition_count(present)
        for group in self.groups:
            if group in self._owners:
                continue
            found = f"no offset of group {group} is found"
            if count is None:
                yield f"{found}: how many partitions {OFFSETS_TOPIC} has, and so which has the group, is not known."
                continue
            owner = offsets_partition(group, count)
            reason = "has none of it" if owner in present else "is not in these directories"
            yield f"{found}: {OFFSETS_TOPIC}-{owner} (of {count} partitions) {reason}."

    def _partition_count(self, present: set[int]) -> int | None:
        """Work out how many partitions ``__consumer_offsets`` has, from the partitions of the groups found.

        Returns:
            The number; None if the groups do not tell.
        """
        from storage_core.views.group_offsets import DEFAULT_PARTITION_COUNT, offsets_partition  # noqa: PLC0415

        owners = [(group, owner) for group, owner in self._owners.items() if owner is not None]
        is_gapless = present == set(range(len(present)))
        counts = (len(present), DEFAULT_PARTITION_COUNT) if is_gapless else (DEFAULT_PARTITION_COUNT,)
        for count in counts:
            if owners and all(offsets_partition(group, count) == owner for group, owner in owners):
                return count
        return None


def _print_reset_plan(rows: Iterable[dict[str, Any]], *, has_group: bool) -> None:
    """Print the plan as the tool's own `--export` writes it: without the group if exactly one is named."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    left_out: dict[str, set[str]] = {}
    noted: dict[str, list[str]] = {}
    for row in rows:
        reason = _why_not_in_a_plan(row, has_group=has_group)
        if reason is not None:
            left_out.setdefault(reason, set()).add(row["group"])
            continue
        if row["note"] in _ODD:
            noted.setdefault(row["note"], []).append(_described(row))
        place = [row["topic"], row["partition"], row["offset"]]
        cells = [row["group"], *place] if has_group else place
        # The tool needs the names as they are; a terminal must not see them.
        writer.writerow([printable(str(each)) for each in cells] if sys.stdout.isatty() else cells)
    for line in _left_out_lines(left_out.items()):
        click.echo(printable(f"segmentlog: {line}"), err=True)
    for note, places in noted.items():
        more = f", and {len(places) - 1:,} more" if len(places) > 1 else ""
        click.echo(
            printable(f"segmentlog: in the plan, but check first: {note}: {places[0]}{more}."), err=True
        )


def _described(row: dict[str, Any]) -> str:
    end = "" if row["logEndOffset"] is None else f", log end {row['logEndOffset']}"
    return f"group {row['group']}, {row['topic']}-{row['partition']}, offset {row['offset']}{end}"


def _why_not_in_a_plan(row: dict[str, Any], *, has_group: bool) -> str | None:
    if row["groupType"] == _SHARE:
        return "kafka-consumer-groups.sh does not reset share groups"
    if row["isExpired"]:
        return "its offsets have expired"
    if has_group and not {"\n", "\r"}.isdisjoint(row["group"]):
        return "the tool reads plans line by line, and its name has a line end; name it with --group"
    return None


def _left_out_lines(left_out: Iterable[tuple[str, set[str]]]) -> Iterator[str]:
    for reason, groups in left_out:
        yield f"not in the plan: {', '.join(sorted(groups))}: {reason}."
