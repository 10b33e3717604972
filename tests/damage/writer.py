"""Writes small logs of every format with their indexes, snapshots and checkpoints, as a broker does."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field

from crc32c import crc32c

from tests.damage.base_log import BaseLog
from tests.damage.legacy import message, wrapper
from tests.record.encoding import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, Batch, Record

ABORT, COMMIT = 0, 1
_START_MS = 1_600_000_000_000


@dataclass
class _Segment:
    base_offset: int
    data: bytearray = field(default_factory=bytearray)
    index: bytearray = field(default_factory=bytearray)
    times: list[tuple[int, int]] = field(default_factory=list)
    aborted: bytearray = field(default_factory=bytearray)
    largest: tuple[int, int] = (-1, 0)
    since_entry_bytes: int = 0


class PartitionWriter:
    """Appends entries to one partition and tracks the rows that a read must return."""

    def __init__(self, topic, partition, *, seed=0, base_offset=0, index_interval_bytes=700):
        self.topic_partition = (topic, partition)
        self.next_offset = base_offset
        self.rows = {}
        self.hidden = set()
        self.inner_rows = set()
        self.open = {}
        self.segments = [_Segment(base_offset)]
        self.snapshots = {}
        self._random = random.Random(f"{topic}-{partition}-{seed}")
        self._index_interval_bytes = index_interval_bytes
        self._clock_ms = _START_MS
        self._producers = set()
        self._writers = {}

    def records(self, count, *, value_bytes=40, gaps=(), with_headers=True):
        """Random records, some without key or value, that skip the offset deltas in ``gaps``."""
        made = []
        for delta in range(count):
            self._clock_ms += self._random.randrange(50)
            if delta in gaps:
                continue
            offset = self.next_offset + delta
            key = self._random.choice([None, b"", f"k{offset % 7}".encode(), f"key-{offset}".encode()])
            value = self._random.choice(
                [None, self._random.randbytes(self._random.randrange(value_bytes + 1))]
            )
            if value is not None and self._random.random() < 0.3:
                value = b"v" * value_bytes
            headers = ()
            if with_headers and self._random.random() < 0.4:
                headers = tuple((b"h%d" % n, self._random.choice([None, b"", b"x" * n])) for n in range(3))
            made.append(Record(delta, self._clock_ms - self._random.randrange(20), key, value, headers))
        return tuple(made)

    def batch(
        self, count=3, *, codec=0, append_time=False, transactional=None, producer=None, gaps=(), **shape
    ):
        """Append a v2 batch of random records; without records it is one that compaction has emptied."""
        records = self.records(count, gaps=gaps, **shape)
        producer = transactional if transactional is not None else producer
        if transactional is not None:
            self._producers.add(producer)
            self.open.setdefault(producer, self.next_offset)
        batch = Batch(
            records, self.next_offset, codec, leader_epoch=3, last_offset_delta=count - 1,
            attributes=LOG_APPEND_TIME * append_time | TRANSACTIONAL * (transactional is not None),
            max_timestamp_ms=self._clock_ms + 5 if append_time else None,
            producer_id=-1 if producer is None else producer, producer_epoch=-1 if producer is None else 0,
            base_sequence=-1 if producer is None else self.next_offset,
        )  # fmt: skip
        for offset, timestamp_ms, key, value, headers in batch.rows:
            named = tuple((name.decode(), content) for name, content in headers)
            self.rows[offset] = (timestamp_ms, int(append_time), key, value, named)
        return self._append(batch.encode(), self.next_offset + count - 1, batch.max_timestamp_ms)

    def marker(self, producer, kind):
        """End a transaction."""
        first = self.open.pop(producer, None)
        if kind == ABORT and first is not None:
            stable = min(self.open.values(), default=self.next_offset + 1)
            self.segments[-1].aborted += struct.pack(">hqqqq", 0, producer, first, self.next_offset, stable)
            self.hidden |= {
                offset for offset in self.rows if offset >= first and self._writers.get(offset) == producer
            }
        record = Record(0, self._clock_ms, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 7))
        batch = Batch(
            (record,), self.next_offset, leader_epoch=3, attributes=TRANSACTIONAL | CONTROL,
            producer_id=producer, producer_epoch=0,
        )  # fmt: skip
        return self._append(batch.encode(), self.next_offset, self._clock_ms)

    def transactional(self, producer, count=2, **shape):
        """Append a batch of a transaction."""
        first = self.next_offset
        self.batch(count, transactional=producer, **shape)
        for offset in range(first, self.next_offset):
            self._writers[offset] = producer
        return self

    def messages(self, magic, count=3, *, codec=0, append_time=False, gaps=(), inner_magic=None, **shape):
        """Append messages of v0 or v1, singly or in a compressed wrapper, whose inner messages may have the other format."""
        inner_magic = magic if inner_magic is None else inner_magic
        records = self.records(count, gaps=gaps, with_headers=False, **shape)
        wrapper_ms = max((record.timestamp_ms for record in records), default=-1) + 5 * append_time
        inner = b""
        for record in records:
            offset = self.next_offset + record.offset_delta
            timestamp_ms = -1 if inner_magic == 0 else record.timestamp_ms
            row_ms = wrapper_ms if append_time and inner_magic else timestamp_ms
            self.rows[offset] = (row_ms, -1 if magic == 0 else int(append_time), record.key, record.value, ())
            if not codec:
                attributes = LOG_APPEND_TIME * append_time
                data = message(
                    magic, offset, record.key, record.value, timestamp_ms=row_ms, attributes=attributes
                )
                self._append(data, offset, row_ms, moves=False)
                continue
            inner_offset = offset if magic == 0 else record.offset_delta
            inner += message(inner_magic, inner_offset, record.key, record.value, timestamp_ms=timestamp_ms)
        if codec:
            last = self.next_offset + records[-1].offset_delta
            data = wrapper(
                magic,
                codec,
                last,
                inner,
                timestamp_ms=wrapper_ms if magic else -1,
                is_append_time=append_time,
            )
            self._append(data, last, wrapper_ms if magic else -1, moves=False)
        self.next_offset += count
        return self

    def skip(self, count):
        """Leave a gap, as compaction does when it removes whole batches."""
        self.next_offset += count
        return self

    def raw(self, data, last_offset, timestamp_ms=_START_MS):
        """Append bytes as they are."""
        return self._append(data, last_offset, timestamp_ms)

    def _append(self, data, last_offset, timestamp_ms, *, moves=True):
        segment = self.segments[-1]
        position = len(segment.data)
        if timestamp_ms > segment.largest[0]:
            segment.largest = (timestamp_ms, last_offset)
        if segment.since_entry_bytes > self._index_interval_bytes:
            segment.index += struct.pack(">ii", last_offset - segment.base_offset, position)
            self._time_entry(segment)
            segment.since_entry_bytes = 0
        segment.since_entry_bytes += len(data)
        segment.data += data
        if moves:
            self.next_offset = last_offset + 1
        return self

    @staticmethod
    def _time_entry(segment):
        if segment.largest[0] >= 0 and (not segment.times or segment.times[-1][0] < segment.largest[0]):
            segment.times.append(segment.largest)

    def roll(self):
        """Close the segment and begin the next one."""
        self._time_entry(self.segments[-1])
        self.snapshots[self.next_offset] = self._snapshot()
        self.segments.append(_Segment(self.next_offset))
        return self

    def _snapshot(self):
        covered = struct.pack(">i", len(self._producers))
        for producer in sorted(self._producers):
            first = self.open.get(producer, -1)
            covered += struct.pack(
                ">qhiqiqiq", producer, 0, 0, self.next_offset - 1, 0, self._clock_ms, 7, first
            )
        return struct.pack(">hI", 1, crc32c(covered)) + covered

    def files(self, *, is_clean, with_indexes=True):
        """Return the partition's files by name."""
        made = {
            "leader-epoch-checkpoint": f"0\n1\n3 {self.segments[0].base_offset}\n".encode(),
            "partition.metadata": b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n",
        }
        if is_clean:
            self._time_entry(self.segments[-1])
            self.snapshots[self.next_offset] = self._snapshot()
        for segment in self.segments:
            stem = f"{segment.base_offset:020d}"
            is_preallocated = not is_clean and segment is self.segments[-1]
            times = b"".join(
                struct.pack(">qi", ms, offset - segment.base_offset) for ms, offset in segment.times
            )
            made[f"{stem}.log"] = bytes(segment.data) + bytes(600 * is_preallocated)
            if with_indexes:
                made[f"{stem}.index"] = bytes(segment.index) + bytes(400 * is_preallocated)
                made[f"{stem}.timeindex"] = times + bytes(480 * is_preallocated)
            if segment.aborted and with_indexes:
                made[f"{stem}.txnindex"] = bytes(segment.aborted)
        for offset, content in self.snapshots.items():
            made[f"{offset:020d}.snapshot"] = content
        return made

    @property
    def committed(self):
        stable = min(self.open.values(), default=self.next_offset)
        return frozenset(offset for offset in self.rows if offset not in self.hidden and offset < stable)


class LogWriter:
    """Combines partitions into a log directory."""

    def __init__(self, name, *, is_clean=True, root=""):
        self.name = name
        self.is_clean = is_clean
        self.partitions = []
        self._root = root

    def partition(self, topic="events", partition=0, **shape):
        """Begin a partition."""
        self.partitions.append(PartitionWriter(topic, partition, **shape))
        return self.partitions[-1]

    def files(self, *, log_starts=None, high_watermarks=None, with_indexes=True):
        """Return all files of the directory by path."""
        made = {
            "meta.properties": b"version=1\ncluster.id=abc\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAg\n"
        }
        if self.is_clean:
            made[".kafka_cleanshutdown"] = b'{"version":0,"brokerEpoch":7}'
        ends = {each.topic_partition: each.next_offset for each in self.partitions}
        recovery = ends if self.is_clean else dict.fromkeys(ends, 0)
        made["recovery-point-offset-checkpoint"] = _checkpoint(recovery)
        made["replication-offset-checkpoint"] = _checkpoint(ends | (high_watermarks or {}))
        made["log-start-offset-checkpoint"] = _checkpoint(log_starts or {})
        for each in self.partitions:
            folder = "{}-{}".format(*each.topic_partition)
            for name, content in each.files(is_clean=self.is_clean, with_indexes=with_indexes).items():
                made[f"{folder}/{name}"] = content
        return {f"{self._root}{name}": content for name, content in made.items()}

    def build(self, **shape):
        """Return the log in the form that the campaign uses."""
        log_starts = shape.get("log_starts") or {}
        rows = {}
        committed = {}
        for each in self.partitions:
            start = log_starts.get(each.topic_partition, 0)
            rows[each.topic_partition] = {o: row for o, row in sorted(each.rows.items()) if o >= start}
            committed[each.topic_partition] = frozenset(o for o in each.committed if o >= start)
        inner_rows = frozenset(row for each in self.partitions for row in each.inner_rows)
        return BaseLog(self.name, self.files(**shape), rows, committed, inner_rows=inner_rows)


def _checkpoint(offsets):
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()
