"""The view ``group_offsets``: what consumer groups have committed, out of ``__consumer_offsets`` and ``__share_group_state``.

The logs are replayed as a coordinator loads them (Kafka's ``OffsetMetadataManager`` and ``ShareCoordinatorShard``): the last
record of a key counts, a tombstone removes it, and offsets that a transaction committed (KIP-447) count from its marker on.
All records of a group are in one partition of ``__consumer_offsets``, so each partition is a task.

As of a time means: without the records and markers that have a later timestamp. Compaction keeps the last record of each key
only, so a look into the past is complete as far as the cleaner has not been there (``min.compaction.lag.ms``).

A broker forgets offsets of a group without members after ``offsets.retention.minutes``, which no log tells, and writes a
tombstone then. Until that is written the offset counts. Only old clients say themselves when an offset expires.
"""

from __future__ import annotations

import dataclasses
import heapq
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

import pyarrow as pa

from storage_core.checkpoint import PARTITION_METADATA, read_partition_metadata
from storage_core.directory import PartitionDirectory, find_partitions
from storage_core.directory.consistent import read_consistently
from storage_core.directory.visibility import CommitMonitor
from storage_core.errors import CorruptError, CorruptRecordError, LogDirectoryError, UnsupportedFormatError
from storage_core.filesystem import ReadableFileSystem
from storage_core.internal_records.internal_records import (
    CoordinatorRecord,
    UnknownRecordTypeError,
    read_group_record,
    read_share_record,
)
from storage_core.options import RECORDS
from storage_core.options.bounds import (
    Bound,
    EarliestBound,
    LatestBound,
    OffsetsBound,
    TimestampBound,
    TimestampsBound,
)
from storage_core.options.java_pattern import compile_java_pattern
from storage_core.record.batch_header import CONTROL_FLAG
from storage_core.scan import ReadOptions, ScanTask
from storage_core.scan.offset_ranges import PartitionRange
from storage_core.scan.plan import plan_ranges
from storage_core.scan.read import read_task
from storage_core.scan.resolve import split_paths
from storage_core.scan.spans import project, record_schema
from storage_core.views.span_headers import PartitionSpans
from storage_core.views.view import TIMESTAMP, Column, View, present_ranges, rows_read, tolerating_damage

OFFSETS_TOPIC: Final = "__consumer_offsets"
SHARE_STATE_TOPIC: Final = "__share_group_state"
DEFAULT_PARTITION_COUNT: Final = 50
"""Kafka's default of ``offsets.topic.num.partitions``."""
CLASSIC, CONSUMER, SHARE, STREAMS = "classic", "consumer", "share", "streams"

_log = logging.getLogger(__name__)
# The first bytes of keys tell the type of a group coordinator's record: an offset, or a group of some kind.
_OFFSET_TYPES: Final = frozenset({b"\0\0", b"\0\1"})
_GROUP_TYPES: Final = {b"\0\2": CLASSIC, b"\0\3": CONSUMER, b"\0\x0b": SHARE, b"\0\x11": STREAMS}
_SHARE_PARTITIONS: Final = b"\0\x0f"
# Likewise for a share coordinator.
_SHARE_SNAPSHOT, _SHARE_UPDATE = b"\0\0", b"\0\1"
_TYPE_BYTES: Final = 2
_STRING_LENGTH_BYTES: Final = 2
_UNKNOWN: Final = -1
_LAG_COLUMNS: Final = frozenset({"logStartOffset", "logEndOffset", "lag", "note"})
NO_LOG, BEYOND_END, BELOW_START = "log not found", "beyond log end", "below log start"
ONLY_MARKERS = "only markers"
# A longer lag is not examined: a log has few markers between records.
_MOST_MARKERS: Final = 1_000
# fmt: off
_COLUMNS: Final = (
    Column("group", pa.string(), "The group's id."),
    Column("groupType", pa.string(), "`consumer` (KIP-848), `share` (KIP-932) or `streams` (KIP-1071); `classic` for "
           "all others, those without members too."),
    Column("topic", pa.string(), "The topic; null if a share group's records have only its id, and nothing in the "
           "directories names it."),
    Column("topicId", pa.string(), "The topic's id, if the record has it."),
    Column("partition", pa.int32(), "The partition."),
    Column("offset", pa.int64(), "The offset that the group reads next; of a share group, its start offset."),
    Column("leaderEpoch", pa.int32(), "Leader epoch of the last record that was read, if the client said it."),
    Column("metadata", pa.string(), "What the client noted with the offset; null for a share group."),
    Column("commitTime", TIMESTAMP, "When it was committed, by the coordinator's clock."),
    Column("expireTime", TIMESTAMP, "When it expires, if an old client said so; usually null: then "
           "`offsets.retention.minutes` of the broker decides."),
    Column("isExpired", pa.bool_(), "Whether `expireTime` has passed, and only the broker's tombstone is missing."),
    Column("logStartOffset", pa.int64(), "The partition's log start; null if its log is not in these directories."),
    Column("logEndOffset", pa.int64(), "The partition's log end; with `asOf`, its first offset with a later timestamp. "
           "Null like `logStartOffset`."),
    Column("lag", pa.int64(), "`logEndOffset` minus `offset`."),
    Column("note", pa.string(), "`log not found` (in these directories), `beyond log end`, `below log start`, or `only "
           "markers` if the lag has no record that a consumer would get, only markers of transactions; else null."),
)
# fmt: on


def offsets_partition(group: str, partition_count: int = DEFAULT_PARTITION_COUNT) -> int:
    """Return the partition of ``__consumer_offsets`` that has all records of a group (Kafka's ``partitionFor``)."""
    code_units = group.encode("utf-16-be", "surrogatepass")
    hash_code = 0
    for high, low in zip(code_units[::2], code_units[1::2], strict=True):
        hash_code = (hash_code * 31 + (high << 8 | low)) % (1 << 32)
    if hash_code >= 1 << 31:
        hash_code = (1 << 32) - hash_code
    # Java's smallest int has no absolute value; Kafka takes 0.
    return 0 if hash_code == 1 << 31 else hash_code % partition_count


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """An offset that a group has committed.

    Attributes:
        topic: None if only its id is known.
        offset: The next offset to read; None if a share group has not begun.
        leader_epoch: None if the client did not say it.
        commit_timestamp_ms: By the coordinator's clock.
        expire_timestamp_ms: None if the broker's retention decides.
    """

    group: str
    group_type: str
    topic: str | None
    topic_id: str | None
    partition: int
    offset: int | None
    leader_epoch: int | None
    metadata: str | None
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None = None

    def is_expired(self, now_ms: int) -> bool:
        """Return True if a client gave it an expiry time and that has passed."""
        return self.expire_timestamp_ms is not None and self.expire_timestamp_ms <= now_ms


@dataclass(frozen=True, slots=True)
class GroupOffsetsTask:
    """One partition of ``__consumer_offsets`` or ``__share_group_state``.

    Attributes:
        part: All of it, to look for markers.
        fails_on_records: Raise an error at a record that cannot be read, instead of a warning at the end.
    """

    part: PartitionSpans
    scans: tuple[ScanTask, ...]
    options: ReadOptions
    now_ms: int
    fails_on_records: bool

    @property
    def as_of_ms(self) -> int | None:
        """The time in milliseconds after which records and markers do not count; None for no limit."""
        return self.options.as_of_ms


def plan_group_offsets(
    filesystem: ReadableFileSystem,
    options: ReadOptions,
    *,
    now_ms: int | None = None,
    fails_on_records: bool | None = None,
) -> list[GroupOffsetsTask]:
    """Plan a task for each partition of the two internal topics.

    Records that cannot be read are errors with ``mode=FAILFAST``, unless ``fails_on_records`` says otherwise.

    Raises:
        LogDirectoryError: The directories have no such partition.
        SegmentLogError: They cannot be read.
    """
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    if fails_on_records is None:
        fails_on_records = options.mode == "FAILFAST"
    ranges = _ranges_of(filesystem, options, lambda each: each.topic in (OFFSETS_TOPIC, SHARE_STATE_TOPIC))
    if not ranges:
        raise LogDirectoryError(
            f"Expected partitions of {OFFSETS_TOPIC} or {SHARE_STATE_TOPIC}, found none. Name the log directories of the "
            "brokers that coordinate the groups.",
            path=", ".join(options.paths),
        )
    return [
        _plan_partition(filesystem, wanted, options, now_ms, fails_on_records=fails_on_records)
        for wanted in ranges
    ]


def _directories(
    filesystem: ReadableFileSystem, options: ReadOptions, monitor: CommitMonitor | None = None
) -> list[PartitionDirectory]:
    paths = split_paths(filesystem, options.paths)
    return find_partitions(filesystem, paths, follow_symlinks=options.follow_symlinks, monitor=monitor)


def _ranges_of(
    filesystem: ReadableFileSystem,
    options: ReadOptions,
    is_wanted: Callable[[PartitionDirectory], bool],
    ending: Bound = LatestBound(),  # noqa: B008  (frozen)
) -> tuple[PartitionRange, ...]:
    """Resolve all offsets of the wanted partitions up to a bound. Partitions that are deleted meanwhile are left out."""
    whole = dataclasses.replace(
        tolerating_damage(options),
        starting=EarliestBound(),
        ending=ending,
        isolation_level="read_uncommitted",
        where=None,
    )

    def resolved(watch: CommitMonitor) -> tuple[PartitionRange, ...]:
        return present_ranges(filesystem, filter(is_wanted, _directories(filesystem, whole, watch)), whole)

    return read_consistently(CommitMonitor(filesystem), resolved)


def _plan_partition(
    filesystem: ReadableFileSystem,
    wanted: PartitionRange,
    options: ReadOptions,
    now_ms: int,
    *,
    fails_on_records: bool,
) -> GroupOffsetsTask:
    records = dataclasses.replace(
        options,
        view=RECORDS,
        where=None,
        columns=None,
        isolation_level="read_uncommitted",
        include_metadata=True,
        min_partitions=None,
        max_records_per_partition=None,
        max_bytes_per_partition=None,
    )
    return GroupOffsetsTask(
        PartitionSpans.of(wanted, options),
        tuple(plan_ranges(filesystem, (wanted,), records).tasks),
        dataclasses.replace(options, where=None),
        now_ms,
        fails_on_records,
    )


def read_group_offsets(filesystem: ReadableFileSystem, task: GroupOffsetsTask) -> list[GroupOffset]:
    """Read the offsets that are committed in one partition, by group, topic and partition.

    Memory is taken for the offsets that groups have at a time, not for all that they ever committed.

    Raises:
        CorruptRecordError: A batch is damaged, with ``mode=FAILFAST``; or a record is, if the task fails on records.
        UnsupportedFormatError: A record is of a later version than Kafka 4.1 writes, if the task fails on records.
        DataLossError: A segment was deleted or replaced since the task was planned.
    """
    refused = _Refused(task)
    offsets_in = _share_offsets if task.part.topic == SHARE_STATE_TOPIC else _committed_offsets
    found = list(offsets_in(filesystem, task, refused))
    refused.warn()
    is_wanted = _selection(task.options)
    return sorted(
        (each for each in found if is_wanted(each)),
        key=lambda each: (each.group, each.topic or "", each.topic_id or "", each.partition),
    )


class _Record(NamedTuple):
    """A record that may count: its key after the type, and the producer of the transaction that it belongs to."""

    type_bytes: bytes
    key: bytes
    value: bytes | None
    offset: int
    timestamp_ms: int
    producer_id: int | None

    def read(
        self, read: Callable[[bytes, bytes | None], CoordinatorRecord], refused: _Refused
    ) -> CoordinatorRecord | None:
        """Parse the record.

        Returns:
            The record; None if it cannot be read and is left out.
        """
        try:
            return read(self.type_bytes + self.key, self.value)
        except UnknownRecordTypeError:
            return None
        except (CorruptRecordError, UnsupportedFormatError) as error:
            refused.add(str(error.args[0]), self.offset, type(error))
            return None


@dataclass(slots=True)
class _Refused:
    """Counts the records of a task that cannot be read."""

    task: GroupOffsetsTask
    count: int = 0
    first: str = ""

    def add(
        self,
        reason: str,
        offset: int,
        kind: type[CorruptRecordError | UnsupportedFormatError] = CorruptRecordError,
    ) -> None:
        """Count a record, or raise an error if the task asks for that."""
        if self.task.fails_on_records:
            raise kind(
                f"Expected a record that a coordinator wrote to {self._name}. {reason} Set mode=DROPMALFORMED to go on "
                "without it.",
                offset=offset,
            )
        self.count += 1
        self.first = self.first or f"offset {offset}: {reason}"

    def warn(self) -> None:
        """Say how many records were left out."""
        if self.count:
            _log.warning(
                "%d records of %s cannot be read and are left out. The first is at %s",
                *(self.count, self._name, self.first),
            )

    @property
    def _name(self) -> str:
        return f"{self.task.part.topic}-{self.task.part.partition}"


def _records(
    filesystem: ReadableFileSystem, task: GroupOffsetsTask, types: frozenset[bytes], refused: _Refused
) -> Iterator[_Record]:
    """Yield records of the given types, up to ``asOf``, in log order."""
    schema = project(record_schema(include_metadata=True), ("key", "value", "offset", "_metadata"))
    for scan in task.scans:
        for batch in read_task(filesystem, scan, schema):
            metadata = batch.column("_metadata")
            rows = zip(
                batch.column("key").to_pylist(),
                batch.column("value").to_pylist(),
                batch.column("offset").to_pylist(),
                metadata.field("timestampMs").to_pylist(),
                metadata.field("producerId").to_pylist(),
                metadata.field("isTransactional").to_pylist(),
                strict=True,
            )
            for key, value, offset, timestamp_ms, producer_id, is_transactional in rows:
                if task.as_of_ms is not None and timestamp_ms is not None and timestamp_ms > task.as_of_ms:
                    continue
                if key is None or len(key) < _TYPE_BYTES:
                    refused.add("It has no key with a type.", offset)
                elif key[:_TYPE_BYTES] in types:
                    yield _Record(
                        key[:_TYPE_BYTES],
                        key[_TYPE_BYTES:],
                        value,
                        offset,
                        timestamp_ms,
                        producer_id if is_transactional else None,
                    )


class _Marker(NamedTuple):
    """The end of a transaction."""

    offset: int
    producer_id: int
    is_abort: bool


def _markers(filesystem: ReadableFileSystem, task: GroupOffsetsTask) -> Iterator[_Marker]:
    """Yield the markers up to the time that counts, in the order of the log."""
    for chunk in task.part.chunks(filesystem):
        for index in (chunk.window.headers["attributes"] & CONTROL_FLAG).nonzero()[0].tolist():
            header = chunk.window.header(index)
            if task.as_of_ms is not None and header.max_timestamp_ms > task.as_of_ms:
                continue
            marker = chunk.marker(index)
            if marker is not None:
                yield _Marker(header.last_offset, header.producer_id, marker.is_abort)


@dataclass(slots=True)
class _CommittedOffsets:
    """Committed offsets of a partition of ``__consumer_offsets`` during a replay, by key without type.

    Attributes:
        pending: Those that are part of a transaction without a marker so far, by producer.
    """

    committed: dict[bytes, _Record] = field(default_factory=dict)
    pending: dict[int, dict[bytes, _Record]] = field(default_factory=dict)
    group_types: dict[bytes, bytes] = field(default_factory=dict)

    def apply(self, record: _Record) -> None:
        """Account for a record."""
        if record.type_bytes not in _OFFSET_TYPES:
            self._apply_group(record)
        elif record.value is None:
            for offsets in (self.committed, *self.pending.values()):
                offsets.pop(record.key, None)
        elif record.producer_id is not None:
            self.pending.setdefault(record.producer_id, {})[record.key] = record
        else:
            self.committed[record.key] = record

    def _apply_group(self, record: _Record) -> None:
        if record.value is not None:
            self.group_types[record.key] = record.type_bytes
        elif self.group_types.get(record.key) == record.type_bytes:
            # A group that changes its protocol leaves a tombstone of the other type.
            del self.group_types[record.key]

    def type_of_group(self, record: _Record) -> str:
        """Return the type of the group that committed an offset."""
        # A key begins with the length and the bytes of the group's id, which alone are the key of the group.
        size_bytes = _STRING_LENGTH_BYTES + int.from_bytes(record.key[:_STRING_LENGTH_BYTES], "big")
        type_bytes = self.group_types.get(record.key[:size_bytes])
        return CLASSIC if type_bytes is None else _GROUP_TYPES[type_bytes]

    def end_transaction(self, marker: _Marker) -> None:
        """Account for a marker."""
        offsets = self.pending.pop(marker.producer_id, {})
        if marker.is_abort:
            return
        for key, record in offsets.items():
            known = self.committed.get(key)
            # The coordinator goes by the offsets of records, as compaction does.
            if known is None or record.offset > known.offset:
                self.committed[key] = record


def _committed_offsets(
    filesystem: ReadableFileSystem, task: GroupOffsetsTask, refused: _Refused
) -> Iterator[GroupOffset]:
    replay = _CommittedOffsets()
    records = _records(filesystem, task, _OFFSET_TYPES | _GROUP_TYPES.keys(), refused)
    markers = _markers(filesystem, task)
    merged: Iterator[_Record | _Marker] = heapq.merge(records, markers, key=attrgetter("offset"))
    for each in merged:
        if isinstance(each, _Marker):
            replay.end_transaction(each)
        else:
            replay.apply(each)
    for record in replay.committed.values():
        parsed = record.read(read_group_record, refused)
        if parsed is not None:
            yield _group_offset(parsed, replay.type_of_group(record))


def _group_offset(parsed: CoordinatorRecord, group_type: str) -> GroupOffset:
    key, value = parsed.key, parsed.value or {}
    return GroupOffset(
        key["group"],
        group_type,
        key["topic"],
        value.get("topicId"),
        key["partition"],
        value["offset"],
        _known(value.get("leaderEpoch", _UNKNOWN)),
        value["metadata"],
        value["commitTimestamp"],
        _known(value.get("expireTimestamp", _UNKNOWN)),
    )


def _known(value: int) -> int | None:
    return None if value == _UNKNOWN else value


@dataclass(slots=True)
class _ShareState:
    """A share group's state of a partition: a snapshot, and the changes of the updates since then.

    Attributes:
        snapshot: None if the log has only updates.
        first_update: Tells the group and the partition then.
        refused: The first update that cannot be parsed. Only at the end is it known whether it counts.
    """

    timestamp_ms: int
    snapshot: _Record | None = None
    first_update: CoordinatorRecord | None = None
    refused: _Record | None = None
    start_offset: int = _UNKNOWN
    leader_epoch: int = _UNKNOWN

    def update(self, record: _Record) -> None:
        """Account for an update: it has only what has changed."""
        self.timestamp_ms = record.timestamp_ms
        try:
            parsed = read_share_record(record.type_bytes + record.key, record.value)
        except UnknownRecordTypeError:
            return
        except (CorruptRecordError, UnsupportedFormatError):
            self.refused = self.refused or record
            return
        if parsed.value is None:
            return
        self.first_update = self.first_update or parsed
        if parsed.value["startOffset"] != _UNKNOWN:
            self.start_offset = parsed.value["startOffset"]
        if parsed.value["leaderEpoch"] != _UNKNOWN:
            self.leader_epoch = parsed.value["leaderEpoch"]

    def offset(self, refused: _Refused) -> GroupOffset | None:
        """Return the group's offset, without the topic's name.

        Returns:
            The offset; None if no record can be parsed.
        """
        snapshot = None if self.snapshot is None else self.snapshot.read(read_share_record, refused)
        if self.refused is not None:
            self.refused.read(read_share_record, refused)
        parsed = self.first_update if snapshot is None or snapshot.value is None else snapshot
        if parsed is None or parsed.value is None:
            return None
        start_offset, leader_epoch = (
            parsed.value[name] if updated == _UNKNOWN else updated
            for name, updated in (("startOffset", self.start_offset), ("leaderEpoch", self.leader_epoch))
        )
        key = parsed.key
        return GroupOffset(
            key["groupId"],
            SHARE,
            None,
            key["topicId"],
            key["partition"],
            _known(start_offset),
            _known(leader_epoch),
            None,
            self.timestamp_ms,
        )


def _share_offsets(
    filesystem: ReadableFileSystem, task: GroupOffsetsTask, refused: _Refused
) -> Iterator[GroupOffset]:
    # States by key without type.
    states: dict[bytes, _ShareState] = {}
    for record in _records(filesystem, task, frozenset({_SHARE_SNAPSHOT, _SHARE_UPDATE}), refused):
        if record.type_bytes == _SHARE_UPDATE:
            states.setdefault(record.key, _ShareState(record.timestamp_ms)).update(record)
        elif record.value is None:
            states.pop(record.key, None)
        else:
            states[record.key] = _ShareState(record.timestamp_ms, record)
    found = [each for each in (state.offset(refused) for state in states.values()) if each is not None]
    names = _topic_names(filesystem, task, {each.topic_id for each in found if each.topic_id is not None})
    for each in found:
        yield dataclasses.replace(each, topic=names.get(each.topic_id or ""))


def _topic_names(
    filesystem: ReadableFileSystem, task: GroupOffsetsTask, topic_ids: set[str]
) -> dict[str, str]:
    """Return topics by their ids, from their directories, or else from the notes of share coordinators."""
    names: dict[str, str] = {}
    directories = _directories(filesystem, task.options) if topic_ids else []
    for directory in {each.topic: each for each in directories}.values():
        try:
            topic_id = read_partition_metadata(filesystem, os.path.join(directory.path, PARTITION_METADATA))
        except CorruptError as error:
            _log.warning("The id of topic %s is not known: %s", directory.topic, error)
            continue
        if topic_id is not None:
            names[topic_id] = directory.topic
    if topic_ids <= names.keys():
        return names
    return {**dict(_noted_names(filesystem, task)), **names}


def _noted_names(filesystem: ReadableFileSystem, task: GroupOffsetsTask) -> Iterator[tuple[str, str]]:
    """Yield the ids and names of topics that coordinators have noted (``ShareGroupStatePartitionMetadata``)."""
    for wanted in _ranges_of(filesystem, task.options, lambda each: each.topic == OFFSETS_TOPIC):
        part = _plan_partition(
            filesystem, wanted, task.options, task.now_ms, fails_on_records=task.fails_on_records
        )
        # The partition's own task reports what cannot be read.
        refused = _Refused(part)
        for record in _records(filesystem, part, frozenset({_SHARE_PARTITIONS}), refused):
            parsed = record.read(read_group_record, refused)
            value = (parsed and parsed.value) or {}
            for topic in (*value.get("initializingTopics", ()), *value.get("initializedTopics", ())):
                yield topic["topicId"], topic["topicName"]


def _selection(options: ReadOptions) -> Callable[[GroupOffset], bool]:
    """Return a function that tests whether the options ask for an offset."""
    pattern = (
        None
        if options.subscribe_pattern is None
        else compile_java_pattern("subscribePattern", options.subscribe_pattern)
    )

    def is_wanted(each: GroupOffset) -> bool:
        if options.subscribe is not None and each.topic not in options.subscribe:
            return False
        if options.assign is not None and each.partition not in options.assign.get(each.topic or "", ()):
            return False
        if pattern is not None and (each.topic is None or not pattern.search(each.topic)):
            return False
        is_from_start = _is_at_or_after(options.starting, each, default=True)
        return is_from_start and not _is_at_or_after(options.ending, each, default=False)

    return is_wanted


def _is_at_or_after(bound: Bound, each: GroupOffset, *, default: bool) -> bool:
    match bound:
        case OffsetsBound(by_partition, by_topic):
            limit = by_partition.get(
                (each.topic or "", each.partition), by_topic.get(each.topic or "", _UNKNOWN)
            )
            return default if limit < 0 else each.offset is not None and each.offset >= limit
        case TimestampBound(timestamp_ms):
            return each.commit_timestamp_ms >= timestamp_ms
        case TimestampsBound(by_partition, by_topic):
            found = by_partition.get((each.topic or "", each.partition), by_topic.get(each.topic or ""))
            return default if found is None or found < 0 else each.commit_timestamp_ms >= found
        case _:
            return default


def log_ranges(
    filesystem: ReadableFileSystem, options: ReadOptions, committed: Iterable[GroupOffset]
) -> dict[tuple[str | None, int], PartitionRange]:
    """Return the ranges of the logs in which offsets are committed; as of a time, up to the first later timestamp."""
    topic_partitions = {(each.topic, each.partition) for each in committed if each.topic is not None}
    if not topic_partitions:
        return {}
    ending = LatestBound() if options.as_of_ms is None else TimestampBound(options.as_of_ms + 1)
    return {
        (found.topic, found.partition): found
        for found in _ranges_of(
            filesystem, options, lambda each: each.topic_partition in topic_partitions, ending
        )
    }


def _rows(
    filesystem: ReadableFileSystem, task: GroupOffsetsTask, wanted: frozenset[str]
) -> Iterator[tuple[object, ...]]:
    found = read_group_offsets(filesystem, task)
    logs = {} if _LAG_COLUMNS.isdisjoint(wanted) else log_ranges(filesystem, task.options, found)
    now_ms = task.now_ms if task.as_of_ms is None else task.as_of_ms
    for each in found:
        log = logs.get((each.topic, each.partition))
        note = _note(filesystem, each.offset, log, task.options) if "note" in wanted else None
        yield _row(each, log, note, now_ms)


def _note(
    filesystem: ReadableFileSystem, offset: int | None, log: PartitionRange | None, options: ReadOptions
) -> str | None:
    """Explain what is odd about a committed offset.

    Returns:
        A note; None if nothing is odd.
    """
    if log is None:
        return NO_LOG
    if offset is None:
        return None
    if offset > log.end_offset:
        return BEYOND_END
    if offset < log.start_offset:
        return BELOW_START
    if not 0 < log.end_offset - offset <= _MOST_MARKERS:
        return None
    rest = PartitionSpans.of(log.part(offset, log.end_offset), options)
    controls = [
        bool((chunk.window.headers["attributes"] & CONTROL_FLAG).all()) for chunk in rest.chunks(filesystem)
    ]
    return ONLY_MARKERS if controls and all(controls) else None


def _row(each: GroupOffset, log: PartitionRange | None, note: str | None, now_ms: int) -> tuple[object, ...]:
    lag = None if log is None or each.offset is None else log.end_offset - each.offset
    return (
        each.group,
        each.group_type,
        each.topic,
        each.topic_id,
        each.partition,
        each.offset,
        each.leader_epoch,
        each.metadata,
        each.commit_timestamp_ms,
        each.expire_timestamp_ms,
        each.is_expired(now_ms),
        None if log is None else log.start_offset,
        None if log is None else log.end_offset,
        lag,
        note,
    )


GROUP_OFFSETS_VIEW: Final = View(
    "group_offsets",
    "An offset that a consumer group has committed, now or as of a time.",
    _COLUMNS,
    plan_group_offsets,
    rows_read(_COLUMNS, _rows),
)
