"""A log together with its model: every operation applies to both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from storage_core import LogConfig, LogDirectory
from storage_core.errors import AppendError
from tests.faults.log_model import LogModel

if TYPE_CHECKING:
    from storage_core.filesystem import FileSystem

ROOT = "/data"
TOPIC = "orders"
FIRST_TIMESTAMP_MS = 1_700_000_000_000

# Small, so that a few records fill a segment and add entries to its index.
CONFIG = LogConfig(internal_segment_bytes=1500, segment_index_bytes=240, index_interval_bytes=200)


@dataclass
class StillClock:
    """A clock that advances only when a test sets it."""

    time_ms: int = FIRST_TIMESTAMP_MS + 1_000_000_000

    def now_ms(self) -> int:
        return self.time_ms


def timestamp_of(value: bytes) -> int:
    """Return the timestamp for a value, which begins with the record's number."""
    return FIRST_TIMESTAMP_MS + 10 * int(value.split(b":", 1)[0])


def table_of(values: list[bytes]) -> pa.Table:
    """Return a table with these records, to append."""
    timestamps = pa.array([timestamp_of(value) for value in values], pa.timestamp("ms"))
    return pa.table({"value": pa.array(values, pa.binary()), "timestamp": timestamps})


def records_of(log, **options) -> list[tuple[int, bytes]]:
    """Offset and value of each record that a reader sees."""
    found = []
    for batch in log.read(columns=["offset", "value"], **options):
        found += zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
    return found


class Session:
    """One process that works on one log."""

    def __init__(
        self,
        filesystem: FileSystem,
        *,
        model: LogModel | None = None,
        recovery: str = "tail",
        first_number: int = 0,
        root: str = ROOT,
        config: LogConfig = CONFIG,
    ) -> None:
        self.filesystem = filesystem
        self.model = model or LogModel()
        self.recovery = recovery
        self.number = first_number
        self.root = root
        self.config = config
        self.clock = StillClock()

    def open(self) -> Session:
        """Open the log directory, and create the log if it does not exist."""
        self.logs = LogDirectory.open(
            self.root,
            filesystem=self.filesystem,
            recovery=self.recovery,
            config=self.config,
            clock=self.clock,
        )
        self.log = self.logs.get_or_create(TOPIC)
        return self

    def values(self, *sizes_bytes: int) -> list[bytes]:
        """Values of these sizes that were never used before."""
        made = []
        for size_bytes in sizes_bytes:
            made.append(b"%d:%s" % (self.number, b"v" * size_bytes))
            self.number += 1
        return made

    def append(self, *sizes_bytes: int, acks: int | str = 1) -> None:
        """Append one batch of records."""
        values, before = self.values(*sizes_bytes), self.model.history
        self.model.append(values)
        try:
            info = self.log.append(table_of(values), acks=acks)
        except AppendError:
            self.model.refuse(before)
            raise
        assert (info.first_offset, info.last_offset) == (before.end_offset, self.model.end_offset - 1)
        if acks in {-1, "all"}:
            self.model.flushed()
        else:
            self.model.written()

    def flush(self) -> None:
        """Flush the log."""
        self.log.flush()
        self.model.flushed()

    def roll(self) -> None:
        """Begin a new segment."""
        self.log.roll()

    def truncate_to(self, offset: int) -> None:
        """Drop all records from an offset on."""
        if offset < self.model.end_offset:
            self.model.truncate_to(offset)
        self.log.truncate_to(offset)
        self.model.truncated()

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop all records."""
        self.model.truncate_fully_and_start_at(offset)
        self.log.truncate_fully_and_start_at(offset)
        self.model.truncated()
        self.model.start_is_kept()

    def delete_records(self, offset: int) -> None:
        """Delete all records below an offset."""
        self.model.delete_records(offset)
        self.log.delete_records(offset)
        self.model.start_is_kept()

    def close(self) -> None:
        """Close everything."""
        self.logs.close()
        self.model.flushed()

    def reopen(self) -> None:
        """Close and open again: nothing changes."""
        self.close()
        self.open()
        self.model.reopened(self.log.log_end_offset)
        self.check()

    def check(self) -> None:
        """Check that the log matches the model."""
        assert records_of(self.log) == self.model.records
        assert self.log.log_start_offset == self.model.start_offset
        assert self.log.log_end_offset == self.model.end_offset
