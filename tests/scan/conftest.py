"""Builders of small log directories, which share no code with the package."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c

import storage_core.record.section as sections_module
import storage_core.scan.read as read_module
from storage_core.filesystem import FileSystem
from storage_core.options import parse_read_options
from storage_core.record.batch_window import walk_window
from storage_core.record.section import PADDING_BYTES
from storage_core.scan.plan import plan_scan
from storage_core.scan.read import read_task
from storage_core.scan.resolve import resolve
from storage_core.scan.spans import LogSpan, project, record_schema
from tests.record.encoding import CODECS, CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, Batch, Record
from tests.record.legacy_encoding import Wrapper

if TYPE_CHECKING:
    from pathlib import Path

CODEC_NAMES = tuple(CODECS)
ABORT, COMMIT = 0, 1


def record(offset_delta, timestamp_delta_ms, key, value, headers=()) -> bytes:
    named = tuple((name.encode(), content) for name, content in headers)
    return Record(offset_delta, timestamp_delta_ms, key, value, named).encode(0)


def batch(
    base_offset,
    records,
    *,
    last_offset_delta,
    attributes=0,
    timestamps_ms=(0, 0),
    producer_id=-1,
    producer_epoch=0,
    base_sequence=0,
    leader_epoch=0,
    codec=0,
    payload=None,
    record_count=None,
):
    """Return one v2 batch of encoded records; ``payload`` replaces the (compressed) records."""
    has_producer = producer_id >= 0
    return Batch(
        (),
        base_offset,
        codec,
        leader_epoch,
        attributes,
        last_offset_delta,
        *timestamps_ms,
        producer_id,
        producer_epoch if has_producer else -1,
        base_sequence if has_producer and not attributes & CONTROL else -1,
        count=len(records) if record_count is None else record_count,
        records_bytes=b"".join(records),
        payload=payload if records or payload is not None else b"",
    ).encode()


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
        self.transactional_ids: set[int] = set()
        self.snapshots: dict[int, list[tuple[int, int, int]]] = {}

    @property
    def aborted(self) -> list[tuple[int, int, int, int]]:
        return [entry for segment in self.segments for entry in segment.aborted]

    def data(self, count=1, *, timestamp_ms=0, producer_id=-1, transactional=False) -> PartitionBuilder:
        if transactional:
            self._begin(producer_id)
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
        # A broker also remembers the producers whose transactions have ended.
        self.snapshots[self.next_offset] = [
            (producer_id, 0, self.open.get(producer_id, -1)) for producer_id in sorted(self.transactional_ids)
        ]
        return self

    def _begin(self, producer_id) -> None:
        self.transactional_ids.add(producer_id)
        self.open.setdefault(producer_id, self.next_offset)

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


class RowLog(PartitionBuilder):
    """A partition that also keeps account of the rows that a read must give, with every column.

    Attributes:
        rows: Of every data record, by offset.
        places: Position, end position, base offset and last offset of every batch, by base offset of
            the segment.
    """

    def __init__(self, root: Path, topic: str = "events", partition: int = 0, base_offset: int = 0) -> None:
        super().__init__(root, topic, partition, base_offset)
        self.rows: list[dict] = []
        self.aborted_offsets: set[int] = set()
        self._topic = topic, partition

    @property
    def places(self) -> dict[int, list[tuple[int, int, int, int]]]:
        return {segment.base_offset: [place[:4] for place in walk(segment.data)] for segment in self.segments}

    @property
    def committed_rows(self) -> list[dict]:
        stable_offset = min(self.open.values(), default=self.next_offset)
        return [
            row
            for row in self.rows
            if row["offset"] not in self.aborted_offsets and row["offset"] < stable_offset
        ]

    def append(
        self,
        *records,
        last_offset_delta=None,
        append_time_ms=None,
        claimed_max_ms=None,
        transactional=False,
        **fields,
    ) -> RowLog:
        """Append one batch; without records it is one that compaction has emptied.

        With ``claimed_max_ms``, the header's max timestamp is not that of the records.
        """
        producer_id = fields.get("producer_id", -1)
        if transactional:
            self._begin(producer_id)
        if last_offset_delta is None:
            last_offset_delta = records[-1].offset_delta if records else 0
        attributes = TRANSACTIONAL * transactional + LOG_APPEND_TIME * (append_time_ms is not None)
        base_ms = records[0].timestamp_ms if records else -1
        max_ms = max((each.timestamp_ms for each in records), default=-1)
        if append_time_ms is not None:
            max_ms = append_time_ms
        elif claimed_max_ms is not None:
            max_ms = claimed_max_ms
        encoded = [
            record(each.offset_delta, each.timestamp_ms - base_ms, each.key, each.value, each.headers)
            for each in records
        ]
        position = len(self.segments[-1].data)
        for each in records:
            self.rows.append(self._row(each, position, attributes, append_time_ms, **fields))
        self._append(
            encoded, last_offset_delta + 1, attributes=attributes, timestamps_ms=(base_ms, max_ms), **fields
        )
        return self

    def old(self, *entries) -> RowLog:
        """Append messages and wrappers of format v0 and v1 at their own offsets."""
        for entry in entries:
            position = len(self.segments[-1].data)
            self.segments[-1].data += entry.encode()
            wrapped = entry.rows if isinstance(entry, Wrapper) else [entry.row]
            self.rows += [self._old_row(entry, position, wrapped[0][0], *each) for each in wrapped]
            self.next_offset = wrapped[-1][0] + 1
        return self

    def values(self, count, value=b"v", **fields) -> RowLog:
        """Append one batch of equal values; each record's timestamp is its offset."""
        first = self.next_offset
        return self.append(*(Record(delta, first + delta, None, value) for delta in range(count)), **fields)

    def abort(self, producer_id) -> RowLog:
        first_offset = self.open.get(producer_id, self.next_offset)
        self.aborted_offsets |= {
            row["offset"]
            for row in self.rows
            if row["offset"] >= first_offset
            and row["_metadata"]["isTransactional"]
            and row["_metadata"]["producerId"] == producer_id
        }
        return super().abort(producer_id)

    def _row(self, each, position, attributes, append_time_ms, *, codec=0, leader_epoch=0, **producer):
        producer_id = producer.get("producer_id", -1)
        sequence = producer.get("base_sequence", 0) + each.offset_delta
        timestamp_ms = each.timestamp_ms if append_time_ms is None else append_time_ms
        topic, partition = self._topic
        return {
            "key": each.key,
            "value": each.value,
            "topic": topic,
            "partition": partition,
            "offset": self.next_offset + each.offset_delta,
            "timestamp": timestamp_ms * 1000,
            "timestampType": int(append_time_ms is not None),
            "headers": [{"key": name, "value": content} for name, content in each.headers] or None,
            "_metadata": {
                "segment": f"{self.segments[-1].base_offset:020d}.log",
                "position": position,
                "batchOffset": self.next_offset,
                "leaderEpoch": leader_epoch,
                "producerId": producer_id,
                "producerEpoch": producer.get("producer_epoch", 0) if producer_id >= 0 else -1,
                "sequence": sequence % 2**31 if producer_id >= 0 else -1,
                "isTransactional": bool(attributes & TRANSACTIONAL),
                "compression": CODEC_NAMES[codec],
                "magic": 2,
                "timestampMs": timestamp_ms,
            },
        }

    def _old_row(self, entry, position, first_offset, offset, timestamp_ms, key, value, _):
        topic, partition = self._topic
        is_append_time = bool(entry.attributes & LOG_APPEND_TIME)
        return {
            "key": key,
            "value": value,
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "timestamp": timestamp_ms * 1000,
            "timestampType": int(is_append_time) if entry.magic else -1,
            "headers": None,
            "_metadata": {
                "segment": f"{self.segments[-1].base_offset:020d}.log",
                "position": position,
                "batchOffset": first_offset,
                "leaderEpoch": -1,
                "producerId": -1,
                "producerEpoch": -1,
                "sequence": -1,
                "isTransactional": False,
                "compression": CODEC_NAMES[getattr(entry, "codec", 0)],
                "magic": entry.magic,
                "timestampMs": timestamp_ms,
            },
        }

    def write(self, *, indexes=True, index_interval_bytes=4096, **others) -> RowLog:
        """Write the files, with the index entries that a broker makes."""
        super().write(indexes=indexes, **others)
        for segment in self.segments if indexes else ():
            offset_index, time_index = index_files(segment, index_interval_bytes)
            stem = self.path / f"{segment.base_offset:020d}"
            stem.with_suffix(".index").write_bytes(offset_index)
            stem.with_suffix(".timeindex").write_bytes(time_index)
        return self

    def log_path(self, base_offset=0) -> Path:
        return self.path / f"{base_offset:020d}.log"


def walk(data):
    """Position, end position, base offset, last offset and largest timestamp of every batch.

    Of a wrapper the base offset is its last one.
    """
    position = 0
    while position < len(data):
        base_offset, length, _, magic = struct.unpack_from(">qiib", data, position)
        if magic == 2:
            last_delta, _, largest_ms = struct.unpack_from(">iqq", data, position + 23)
        else:
            last_delta, largest_ms = 0, struct.unpack_from(">q", data, position + 18)[0] if magic else -1
        yield position, position + 12 + length, base_offset, base_offset + last_delta, largest_ms
        position += 12 + length


def index_files(segment: Segment, interval_bytes: int) -> tuple[bytes, bytes]:
    """Offset and time index by the rule of Kafka's ``SegmentReader.append``, and the last time entry of a roll."""
    offset_entries: list[tuple[int, int]] = []
    time_entries: list[tuple[int, int]] = [(-1, segment.base_offset)]
    since_entry_bytes = 0
    largest = time_entries[0]
    for position, end_position, _, last_offset, largest_ms in walk(segment.data):
        largest = max(largest, (largest_ms, last_offset), key=lambda entry: entry[0])
        if since_entry_bytes > interval_bytes:
            offset_entries.append((last_offset, position))
            time_entries.append(largest)
            since_entry_bytes = 0
        since_entry_bytes += end_position - position
    time_entries.append(largest)
    kept = [entry for before, entry in pairwise(time_entries) if entry[0] > before[0]]
    base = segment.base_offset
    return (
        b"".join(struct.pack(">ii", offset - base, position) for offset, position in offset_entries),
        b"".join(struct.pack(">qi", timestamp_ms, offset - base) for timestamp_ms, offset in kept),
    )


class LogRoot:
    """A log directory in the making."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.mkdir(parents=True, exist_ok=True)

    def partition(self, topic, partition=0, base_offset=0) -> PartitionBuilder:
        return PartitionBuilder(self.path, topic, partition, base_offset)

    def rows(self, topic="events", partition=0, base_offset=0) -> RowLog:
        return RowLog(self.path, topic, partition, base_offset)

    def mark_clean(self) -> LogRoot:
        (self.path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}', encoding="utf-8")
        return self

    def checkpoint(self, file_name, offsets) -> LogRoot:
        """Write an offset checkpoint: offsets by (topic, partition).

        As a broker does, which replaces the file: within a millisecond, only the inode tells two of one size apart.
        """
        lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
        text = "\n".join(["0", str(len(lines)), *lines]) + "\n"
        temporary = self.path / f"{file_name}.tmp"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self.path / file_name)
        return self


@pytest.fixture
def log_root(tmp_path):
    """Return an empty log directory, without a clean-shutdown marker."""
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
            for each in resolved.partitions
        }

    return ranges_of


class Scan:
    """A read that is planned, and whose tasks are read when the test says so."""

    def __init__(self, path, *, start=None, end=None, **options) -> None:
        self.filesystem = FileSystem()
        wanted = {"include_headers": True, "include_metadata": True, **options}
        # Offsets of partition 0 of the topic ``events``.
        if start is not None:
            wanted["starting_offsets"] = {"events": {"0": start}}
        if end is not None:
            wanted["ending_offsets"] = {"events": {"0": end}}
        parsed = parse_read_options({"path": str(path), **wanted})
        self.schema = project(
            record_schema(
                include_headers=parsed.include_headers,
                include_metadata=parsed.include_metadata,
                corrupt_record_column=parsed.corrupt_record_column if parsed.mode == "PERMISSIVE" else None,
            ),
            parsed.columns,
        )
        self.plan = plan_scan(self.filesystem, parsed)

    @property
    def spans(self):
        return [span for task in self.plan.tasks for span in task.spans]

    def batches(self):
        """Arrow batches of all tasks, one after the other, as they are asked for."""
        for task in self.plan.tasks:
            for found in read_task(self.filesystem, task, self.schema):
                found.validate(full=True)
                yield found

    def rows(self):
        return rows_of(pa.Table.from_batches(self.batches(), schema=self.schema))

    def offsets(self):
        return [offset for found in self.batches() for offset in found["offset"].to_pylist()]


def rows_of(table) -> list[dict]:
    """Return the rows of a table or batch; timestamps as microseconds, because Python's end with the year 9999."""
    table = pa.table(table)
    if "timestamp" in table.column_names:
        index = table.column_names.index("timestamp")
        table = table.set_column(index, "timestamp", table["timestamp"].cast(pa.int64()))
    return table.to_pylist()


@pytest.fixture
def scan():
    """Plans a read of a path, with headers and metadata unless options say otherwise."""
    return Scan


@pytest.fixture
def read_rows():
    """Reads a path to its end."""
    return lambda path, **options: Scan(path, **options).rows()


@pytest.fixture
def record_of():
    """Makes a record for `RowLog.append`."""
    return Record


@pytest.fixture
def batch_bytes():
    """Makes one batch, for logs that no broker would write."""
    return batch


@pytest.fixture
def record_bytes():
    """Makes one record, for `batch_bytes`."""
    return record


@pytest.fixture
def overwrite():
    """Change bytes of a file in place, as a failing disk does."""

    def overwrite(path, position, content):
        with path.open("r+b") as file:
            file.seek(position)
            file.write(content)

    return overwrite


@pytest.fixture
def small_windows(monkeypatch):
    """Windows so small that the shortest logs have many, and batches that do not fit."""

    def use(size_bytes):
        monkeypatch.setattr(read_module, "WINDOW_BYTES", size_bytes)
        monkeypatch.setattr(sections_module, "WINDOW_BYTES", size_bytes)
        monkeypatch.setattr(sections_module, "_FULL_SECTION_BYTES", size_bytes * 3 // 4)

    return use


@pytest.fixture
def window_of():
    """Makes a window of whole batches, as if read from ``position_bytes`` of a file."""

    def window_of(data, position_bytes=0):
        buffer = np.zeros(len(data) + PADDING_BYTES, np.uint8)
        buffer[: len(data)] = np.frombuffer(data, np.uint8)
        return walk_window("/logs/events-0/0.log", position_bytes, buffer, len(data))

    return window_of


@pytest.fixture
def span_of():
    """Makes a span of ``events-0``, of offsets 0 to 10 in bytes 0 to 1,000 unless told otherwise."""

    def span_of(**changes):
        fields = {
            "topic": "events",
            "partition": 0,
            "directory": "/logs/events-0",
            "base_offset": 0,
            "file_name": f"{0:020d}.log",
            "start_offset": 0,
            "end_offset": 10,
            "position_bytes": 0,
            "end_position_bytes": 1000,
            "version": 7,
        }
        return LogSpan(**(fields | changes))

    return span_of
