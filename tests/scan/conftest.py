"""A builder of small log directories, written by hand from the format so that it shares no code with the package."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c

from storage_core.filesystem import FileSystem
from storage_core.scan.options import parse_read_options
from storage_core.scan.resolve import resolve

if TYPE_CHECKING:
    from pathlib import Path

ABORT, COMMIT = 0, 1
TRANSACTIONAL, CONTROL = 0x10, 0x20


def varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def record(offset_delta: int, timestamp_delta_ms: int, key: bytes | None, value: bytes) -> bytes:
    body = b"\0" + varint(timestamp_delta_ms) + varint(offset_delta)
    body += varint(-1) if key is None else varint(len(key)) + key
    body += varint(len(value)) + value + varint(0)
    return varint(len(body)) + body


def batch(base_offset, records, *, last_offset_delta, attributes=0, timestamps_ms=(0, 0), producer_id=-1):
    first_timestamp_ms, max_timestamp_ms = timestamps_ms
    is_sequenced = producer_id >= 0 and not attributes & CONTROL
    checked = struct.pack(
        ">hiqqqhii",
        attributes,
        last_offset_delta,
        first_timestamp_ms,
        max_timestamp_ms,
        producer_id,
        0 if producer_id >= 0 else -1,
        0 if is_sequenced else -1,
        len(records),
    ) + b"".join(records)
    return struct.pack(">qiibI", base_offset, 9 + len(checked), 0, 2, crc32c(checked)) + checked


@dataclass
class Segment:
    base_offset: int
    data: bytearray = field(default_factory=bytearray)
    aborted: list[tuple[int, int, int, int]] = field(default_factory=list)


class PartitionBuilder:
    """Appends batches, and keeps account of transactions as a broker does."""

    def __init__(self, root: Path, topic: str, partition: int, base_offset: int = 0) -> None:
        self.root = root
        self.name = f"{topic}-{partition}"
        self.path = root / self.name
        self.next_offset = base_offset
        self.segments = [Segment(base_offset)]
        self.open: dict[int, int] = {}
        self.snapshots: dict[int, list[tuple[int, int, int]]] = {}

    @property
    def aborted(self) -> list[tuple[int, int, int, int]]:
        return [entry for segment in self.segments for entry in segment.aborted]

    def data(self, count=1, *, timestamp_ms=0, producer_id=-1, transactional=False) -> PartitionBuilder:
        if transactional:
            self.open.setdefault(producer_id, self.next_offset)
        records = [record(delta, 0, None, b"v") for delta in range(count)]
        attributes = TRANSACTIONAL if transactional else 0
        times = (timestamp_ms, timestamp_ms)
        return self._append(
            records, count, attributes=attributes, timestamps_ms=times, producer_id=producer_id
        )

    def transactional(self, producer_id, count=1, *, timestamp_ms=0) -> PartitionBuilder:
        return self.data(count, timestamp_ms=timestamp_ms, producer_id=producer_id, transactional=True)

    def abort(self, producer_id) -> PartitionBuilder:
        first_offset = self.open.pop(producer_id, None)
        if first_offset is not None:
            stable = min(self.open.values(), default=self.next_offset + 1)
            self.segments[-1].aborted.append((producer_id, first_offset, self.next_offset, stable))
        return self._marker(producer_id, ABORT)

    def commit(self, producer_id) -> PartitionBuilder:
        self.open.pop(producer_id, None)
        return self._marker(producer_id, COMMIT)

    def empty_control(self, producer_id) -> PartitionBuilder:
        return self._append([], 1, attributes=TRANSACTIONAL | CONTROL, producer_id=producer_id)

    def roll(self) -> PartitionBuilder:
        if self.segments[-1].data:
            self.take_snapshot()
            self.segments.append(Segment(self.next_offset))
        return self

    def skip(self, count) -> PartitionBuilder:
        self.next_offset += count
        return self

    def take_snapshot(self) -> PartitionBuilder:
        self.snapshots[self.next_offset] = [
            (producer_id, 0, first) for producer_id, first in self.open.items()
        ]
        return self

    def _marker(self, producer_id, kind) -> PartitionBuilder:
        records = [record(0, 0, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 7))]
        return self._append(records, 1, attributes=TRANSACTIONAL | CONTROL, producer_id=producer_id)

    def _append(self, records, count, **fields) -> PartitionBuilder:
        self.segments[-1].data += batch(self.next_offset, records, last_offset_delta=count - 1, **fields)
        self.next_offset += count
        return self

    def write(self, *, indexes=True, transaction_indexes=True, snapshots=True) -> PartitionBuilder:
        """Write the files; offset indexes are empty, as those of small segments are."""
        self.path.mkdir(parents=True, exist_ok=True)
        for segment in self.segments:
            stem = f"{segment.base_offset:020d}"
            (self.path / f"{stem}.log").write_bytes(segment.data)
            if indexes:
                (self.path / f"{stem}.index").write_bytes(b"")
            if transaction_indexes and segment.aborted:
                entries = (struct.pack(">hqqqq", 0, *entry) for entry in segment.aborted)
                (self.path / f"{stem}.txnindex").write_bytes(b"".join(entries))
        if snapshots:
            for offset, producers in self.snapshots.items():
                self.write_snapshot(offset, producers)
        return self

    def write_snapshot(self, offset, producers) -> PartitionBuilder:
        """Producers are (producer id, coordinator epoch, first offset of the open transaction or -1)."""
        checked = struct.pack(">i", len(producers))
        for producer_id, coordinator_epoch, first_offset in producers:
            checked += struct.pack(">qhiqiqiq", producer_id, 0, 0, 0, 0, 0, coordinator_epoch, first_offset)
        content = struct.pack(">hI", 1, crc32c(checked)) + checked
        (self.path / f"{offset:020d}.snapshot").write_bytes(content)
        return self


class LogRoot:
    """A log directory in the making."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.mkdir(parents=True, exist_ok=True)

    def partition(self, topic, partition=0, base_offset=0) -> PartitionBuilder:
        return PartitionBuilder(self.path, topic, partition, base_offset)

    def mark_clean(self) -> LogRoot:
        (self.path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}', encoding="utf-8")
        return self

    def checkpoint(self, file_name, offsets) -> LogRoot:
        """Write an offset checkpoint: offsets by (topic, partition)."""
        lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
        text = "\n".join(["0", str(len(lines)), *lines]) + "\n"
        (self.path / file_name).write_text(text, encoding="utf-8")
        return self


@pytest.fixture
def log_root(tmp_path):
    """An empty log directory, without a clean-shutdown marker."""
    return LogRoot(tmp_path / "logs")


@pytest.fixture
def new_log_root(tmp_path_factory):
    """Makes log directories, for tests that need a fresh one for each example."""
    return lambda: LogRoot(tmp_path_factory.mktemp("example") / "logs")


@pytest.fixture
def three_partitions(log_root):
    """orders-0 holds 0..9 at 1000..1009 ms in two segments, orders-1 is empty, payments-0 holds 100..104 at 2000 ms."""
    orders = log_root.partition("orders", 0)
    for number in range(10):
        orders.data(timestamp_ms=1000 + number)
        if number == 5:
            orders.roll()
    orders.write()
    log_root.partition("orders", 1).write()
    log_root.partition("payments", 0, base_offset=100).data(5, timestamp_ms=2000).write()
    log_root.partition("__consumer_offsets", 0).data().write()
    return log_root


@pytest.fixture
def ranges_of():
    """Resolves a read of a whole log directory to (start, end) by partition."""

    def ranges_of(log_root, **options):
        resolved = resolve(FileSystem(), parse_read_options({"path": str(log_root.path), **options}))
        return {
            f"{each.log.topic}-{each.log.partition}": (each.start_offset, each.end_offset)
            for each in resolved
        }

    return ranges_of
