"""Reads with random options, and their results."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import storage_core
from storage_core.filesystem import FileSystem

if TYPE_CHECKING:
    from pathlib import Path

    from tests.damage.base_log import BaseLog, TopicPartition
    from tests.damage.entries import Row

DAMAGE_COLUMN = "_corrupt_record"

# In the order of `Row`.
ROW_COLUMNS = ("timestamp", "timestampType", "key", "value", "headers")
_PLACE_COLUMNS = ("topic", "partition", "offset")


@dataclass(frozen=True)
class Condition:
    """A condition as text, and its meaning."""

    text: str
    holds: Callable[[str, int, int, Row], bool]


@dataclass(frozen=True)
class Read:
    """The options of a read.

    Attributes:
        mode: How to treat damage.
        committed: Whether aborted records are left out.
        offsets: The first requested offset and the offset after the last one, per partition; None for no bound.
        times: The same by time, in ms.
        ends_at_high_watermark: Whether the read ends at the checkpointed high watermark.
        columns: The requested value columns; the place is always returned.
        condition: A condition on the rows.
        others: Further options, which do not affect the rows.
    """

    mode: str = "FAILFAST"
    committed: bool = False
    offsets: tuple[tuple[TopicPartition, int | None, int | None], ...] = ()
    times: tuple[int | None, int | None] = (None, None)
    ends_at_high_watermark: bool = False
    columns: tuple[str, ...] = ROW_COLUMNS
    condition: Condition | None = None
    others: tuple[tuple[str, Any], ...] = ()

    @property
    def is_bounded(self) -> bool:
        return bool(self.offsets) or self.times != (None, None) or self.ends_at_high_watermark

    @property
    def is_split(self) -> bool:
        """Whether it is split into small pieces."""
        return any(name.startswith(("min_", "max_records", "max_bytes")) for name, _ in self.others)

    @property
    def has_times(self) -> bool:
        return self.times != (None, None)

    @property
    def with_metadata(self) -> bool:
        return ("include_metadata", True) in self.others

    def options(self) -> dict[str, Any]:
        """Return the options of `read_table`."""
        columns = [*_PLACE_COLUMNS, *self.columns]
        options: dict[str, Any] = dict(self.others) | self._bounds()
        if self.with_metadata:
            columns.append("_metadata")
        if self.mode != "FAILFAST":
            options["mode"] = self.mode
        if self.mode == "PERMISSIVE":
            columns.append(DAMAGE_COLUMN)
        if self.committed:
            options["isolation_level"] = "read_committed"
        if self.condition is not None:
            options["where"] = self.condition.text
        return {**options, "columns": columns, "include_headers": "headers" in columns}

    def _bounds(self) -> dict[str, Any]:
        bounds: dict[str, Any] = {}
        starts = {key: start for key, start, _ in self.offsets}
        ends = {key: end for key, _, end in self.offsets}
        for name, offsets, default in (("starting_offsets", starts, -2), ("ending_offsets", ends, -1)):
            if any(offset is not None for offset in offsets.values()):
                bounds[name] = _offsets_json(offsets, default)
        names = ("starting_timestamp", "ending_timestamp")
        bounds |= {name: time for name, time in zip(names, self.times, strict=True) if time is not None}
        if self.ends_at_high_watermark:
            bounds["ending_at"] = "highWatermark"
        return bounds


def _offsets_json(offsets: Mapping[TopicPartition, int | None], default: int) -> str:
    by_topic: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in offsets.items():
        by_topic.setdefault(topic, {})[str(partition)] = default if offset is None else offset
    return json.dumps(by_topic)


def draw_read(rng: random.Random, log: BaseLog) -> Read:
    """Return a read of a log with random options."""
    offsets: tuple[tuple[TopicPartition, int | None, int | None], ...] = ()
    times: tuple[int | None, int | None] = (None, None)
    bounds = rng.random()
    if bounds < 0.35:
        offsets = tuple((key, *_drawn_offsets(rng, log, key)) for key in log.rows)
    elif bounds < 0.5:
        times = _drawn_times(rng, log)
    others: dict[str, Any] = {"use_indexes": rng.random() < 0.75}
    if rng.random() < 0.15:
        name = rng.choice(("min_partitions", "max_records_per_partition", "max_bytes_per_partition"))
        others[name] = rng.choice((2, 3, 7)) if name != "max_bytes_per_partition" else rng.choice((300, 1500))
    if rng.random() < 0.3:
        others["fail_on_data_loss"] = False
    if rng.random() < 0.3:
        others["include_metadata"] = True
    if rng.random() < 0.3:
        others["max_decompressed_batch_bytes"] = 1 << 20
    if times[0] is not None and rng.random() < 0.7:
        others["starting_offsets_by_timestamp_strategy"] = "latest"
    columns = rng.choice(
        (ROW_COLUMNS, ROW_COLUMNS, ROW_COLUMNS, (), ("timestamp",), ("value",), ("key", "timestampType"))
    )
    return Read(
        mode=rng.choice(("FAILFAST", "FAILFAST", "FAILFAST", "DROPMALFORMED", "DROPMALFORMED", "PERMISSIVE", "PERMISSIVE")),
        committed=rng.random() < 0.35,
        offsets=offsets,
        times=times,
        ends_at_high_watermark=rng.random() < 0.1 and any("replication-offset" in path for path in log.files),
        columns=columns,
        condition=_drawn_condition(rng, log) if rng.random() < 0.2 else None,
        others=tuple(others.items()),
    )  # fmt: skip


def _drawn_offsets(rng: random.Random, log: BaseLog, key: TopicPartition) -> tuple[int | None, int | None]:
    borders = [entry.first_offset for entry in _entries(log, key)] or [0]
    drawn = sorted(max(rng.choice(borders) + rng.choice((-1, 0, 0, 1, 2)), 0) for _ in range(2))
    start, end = drawn
    choice = rng.random()
    return (None if choice < 0.2 else start, None if choice > 0.7 else end)


def _drawn_times(rng: random.Random, log: BaseLog) -> tuple[int | None, int | None]:
    known = [row[0] for rows in log.rows.values() for row in rows.values() if row[0] >= 0] or [1_000]
    start, end = sorted(rng.choice(known) + rng.choice((-1, 0, 0, 1)) for _ in range(2))
    return rng.choice(((start, None), (None, end), (start, end)))


def _drawn_condition(rng: random.Random, log: BaseLog) -> Condition:
    rows = [(offset, row) for found in log.rows.values() for offset, row in found.items()]
    offset, row = rng.choice(rows)
    millis = max(row[0], 0)
    moment = (
        datetime.fromtimestamp(millis / 1000, UTC).isoformat() if millis < 10**14 else "2020-01-01T00:00:00Z"
    )
    millis = round(datetime.fromisoformat(moment).timestamp() * 1000)
    key = f"k{rng.randrange(7)}".encode()
    return rng.choice((
        Condition(f"offset >= {offset}", lambda topic, partition, o, row: o >= offset),
        Condition(f"offset < {offset}", lambda topic, partition, o, row: o < offset),
        Condition("partition = 0 AND topic <> 'none'", lambda topic, partition, o, row: partition == 0),
        Condition("key IS NULL", lambda topic, partition, o, row: row[2] is None),
        Condition(f"key = '{key.decode()}'", lambda topic, partition, o, row: row[2] == key),
        Condition(f"key = '{key.decode()}' OR offset = {offset}",
                  lambda topic, partition, o, row: row[2] == key or o == offset),
        Condition(f"timestamp >= '{moment}'", lambda topic, partition, o, row: row[0] >= millis),
        Condition(f"timestamp < '{moment}'", lambda topic, partition, o, row: row[0] < millis),
    ))  # fmt: skip


def _entries(log: BaseLog, key: TopicPartition) -> list[Any]:
    return [entry for entries in log.entries.values() for entry in entries if entry.topic_partition == key]


@dataclass(frozen=True, slots=True)
class OutRow:
    """A returned row: its place, and the requested values."""

    topic_partition: TopicPartition
    offset: int
    values: tuple[Any, ...]
    metadata: dict[str, Any] | None


@dataclass
class Outcome:
    """The result of a read.

    Attributes:
        rows: In the order returned.
        damage: The damage rows, with their partition.
        error: The error that ended the read.
        bytes_read: The number of bytes read from all files.
    """

    rows: list[OutRow] = field(default_factory=list)
    damage: list[tuple[TopicPartition, dict[str, Any]]] = field(default_factory=list)
    error: BaseException | None = None
    bytes_read: int = 0


def run_read(folder: Path, log: BaseLog, read: Read) -> Outcome:
    """Read the directory that a log was written to."""
    filesystem = FileSystem()
    outcome = Outcome()
    try:
        table = storage_core.read_table(
            *(str(folder / root) for root in log.roots), filesystem=filesystem, **read.options()
        )
        _take_rows(table, read, outcome)
    except Exception as error:  # noqa: BLE001  (which errors may come is what the campaign is about)
        outcome.error = error
    outcome.bytes_read = filesystem.statistics.bytes_read
    return outcome


def _take_rows(table: pa.Table, read: Read, outcome: Outcome) -> None:
    table.validate(full=True)
    columns = {}
    for name in table.column_names:
        column = table.column(name)
        if name == "timestamp":
            column = column.cast(pa.int64())
        columns[name] = column.to_pylist()
    places = zip(columns["topic"], columns["partition"], columns["offset"], strict=True)
    damage = columns.get(DAMAGE_COLUMN) or [None] * table.num_rows
    metadata = columns.get("_metadata") or [None] * table.num_rows
    for number, (topic, partition, offset) in enumerate(places):
        if damage[number] is not None and offset is None:
            outcome.damage.append(((topic, partition), json.loads(damage[number])))
            continue
        values = tuple(_plain(name, columns[name][number]) for name in read.columns)
        outcome.rows.append(OutRow((topic, partition), offset, values, metadata[number]))


def _plain(name: str, value: Any) -> Any:
    """Return a value in the form that `Row` uses."""
    if name == "timestamp" and value is not None:
        return value // 1000 if value % 1000 == 0 else ("µs", value)
    if name == "headers":
        return tuple((header["key"], header["value"]) for header in value or ())
    return value
