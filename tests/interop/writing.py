"""Writing a log with `storage_core`, and the rows that a broker's consumer must read from it.

The expected rows follow from the input alone; the code under test does not contribute to them.
"""

from __future__ import annotations

import base64
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from storage_core import Log, LogConfig, LogDirectory
from tests.interop.clients import Row
from tests.interop.workload import BASE_TIMESTAMP_MS, Sendable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


CREATE_TIME, LOG_APPEND_TIME = 0, 1
DAY_MS = 24 * 60 * 60 * 1000

_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
    ]
)


class Clock:
    """Advances only when told to."""

    def __init__(self) -> None:
        # The log rejects records from the future.
        self._now_ms = BASE_TIMESTAMP_MS + 30 * DAY_MS

    def now_ms(self) -> int:
        return self._now_ms

    def set(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def advance(self, duration_ms: int) -> None:
        self._now_ms += duration_ms


def table_of(records: Iterable[Sendable]) -> pa.Table:
    """Return records as columns."""
    rows = [
        {
            "key": record.key,
            "value": record.value,
            "headers": [{"key": key, "value": value} for key, value in record.headers],
            "timestamp": record.timestamp_ms,
        }
        for record in records
    ]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def config_of(settings: Mapping[str, object]) -> LogConfig:
    """Return a log's configuration from topic settings with ``_`` for ``.``."""
    return LogConfig.from_dict({name.replace("_", "."): str(value) for name, value in settings.items()})


@dataclass(slots=True)
class Writing:
    """A log and its rows so far."""

    log: Log
    clock: Clock
    timestamp_type: int = CREATE_TIME
    rows: list[Row] = field(default_factory=list)
    next_offset: int = 0

    @property
    def loaded_end(self) -> int:
        """The log end after reloading: one more than the last record's offset, even after a cut inside a batch."""
        return self.rows[-1].offset + 1 if self.rows else self.next_offset

    def append(self, records: Iterable[Sendable], *, leader_epoch: int | None = None) -> None:
        """Append records as one table, and note the rows that they become."""
        some = list(records)
        info = self.log.append(table_of(some), leader_epoch=leader_epoch)
        assert (info.first_offset, info.last_offset) == (self.next_offset, self.next_offset + len(some) - 1)
        for record in some:
            timestamp_ms = record.timestamp_ms if self.timestamp_type == CREATE_TIME else self.clock.now_ms()
            headers = tuple(record.headers)
            self.rows.append(
                Row(
                    self.log.topic,
                    self.log.partition,
                    self.next_offset,
                    record.key,
                    record.value,
                    headers,
                    timestamp_ms,
                    self.timestamp_type,
                )
            )
            self.next_offset += 1

    def append_batches(self, batches: Iterable[bytes], records: Iterable[Sequence[Any]]) -> None:
        """Append existing batches, and note what a consumer read of them from their original log."""
        for batch in batches:
            self.log.append_batches(batch)
        for offset, timestamp_ms, timestamp_type, key, value, headers in records:
            place = (self.log.topic, self.log.partition, offset)
            named = tuple((header, _decoded(content)) for header, content in headers)
            self.rows.append(Row(*place, _decoded(key), _decoded(value), named, timestamp_ms, timestamp_type))
            self.next_offset = offset + 1

    def truncate_to(self, offset: int, *, rows_up_to: int) -> None:
        """Truncate inside a batch, which drops all of it: the rows end at its base offset."""
        self.log.truncate_to(offset)
        self.rows = [row for row in self.rows if row.offset < rows_up_to]
        self.next_offset = offset

    def delete_records(self, before_offset: int) -> None:
        """Raise the log start offset."""
        self.log.delete_records(before_offset)
        self.rows = [row for row in self.rows if row.offset >= before_offset]


def _decoded(content: str | None) -> bytes | None:
    return None if content is None else base64.b64decode(content)


@dataclass(frozen=True, slots=True)
class WrittenLog:
    """How one log is written.

    Attributes:
        write: Called with the new log.
        settings: The topic's, under Kafka's names with ``_`` for ``.``, for the log and the broker.
        own_settings: Further settings of the log, which a broker leaves to its producers.
        segments: The minimum number of segments for the case to be meaningful.
        starts_at: The expected log start offset.
        write_again: Called with the log after its directory was closed and reopened.
    """

    write: Callable[[Writing], None]
    settings: Mapping[str, object] = field(default_factory=dict)
    own_settings: Mapping[str, object] = field(default_factory=dict)
    segments: int = 1
    starts_at: int = 0
    write_again: Callable[[Writing], None] | None = None

    def make(self, logs: LogDirectory, topic: str, clock: Clock) -> Writing:
        """Write the log into a log directory."""
        is_append_time = self.settings.get("message_timestamp_type") == "LogAppendTime"
        timestamp_type = LOG_APPEND_TIME if is_append_time else CREATE_TIME
        writing = Writing(logs.create(topic, 0, self.config), clock, timestamp_type)
        self.write(writing)
        return writing

    @property
    def config(self) -> LogConfig:
        """The configuration of the log."""
        return config_of({**self.settings, **self.own_settings})


def append_in_groups(
    writing: Writing, records: Iterable[Sendable], *, leader_epoch: int | None = None
) -> None:
    """Append tables of varying size, like the batches of a broker's log."""
    iterator = iter(records)
    for size in itertools.cycle((1, 60, 7, 150)):
        some = list(itertools.islice(iterator, size))
        if not some:
            return
        writing.append(some, leader_epoch=leader_epoch)
