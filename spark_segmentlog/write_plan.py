"""Plan a write on the driver: everything that can be checked without rows is checked here.

The columns are those of Spark's Kafka sink, checked in its words and in its order:

value      string or binary; null is a tombstone
key        string or binary; optional
topic      string; required unless the option ``topic`` names one
partition  int; optional, null leaves the choice to the partitioner; required with ``preserveOffsets``
headers    array<struct<key:string,value:binary>>; optional
timestamp  timestamp; optional, null is the time at which the job began
offset     bigint; only with ``preserveOffsets``, which requires it

Columns are found by their names as Spark compares them, without case unless ``spark.sql.caseSensitive`` is set, which
only tasks know. Others are ignored.
"""

from __future__ import annotations

import difflib
import os
import time
import uuid
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from storage_core.checkpoint import PARTITION_METADATA
from storage_core.commit.job import CommitJob
from storage_core.commit.job_context import JobSettings
from storage_core.directory import INTERNAL_TOPICS, find_partitions, parse_partition_directory_name
from storage_core.errors import (
    CorruptError,
    InvalidRecordError,
    LogDirectoryError,
    OptionError,
    UnreadableError,
)
from storage_core.scan.options import parse_read_options
from storage_core.scan.resolve import resolve, split_paths
from storage_core.segment import base_offset_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from spark_segmentlog.options import WriteOptions
    from storage_core.filesystem import FileSystem


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The partitions of a topic.

    Attributes:
        partition_count: How many it has, those on other disks included.
        present: Those in this log directory, if a broker may have others on another disk; None if all are here.
        is_new: Whether it has no directory yet.
    """

    partition_count: int
    present: frozenset[int] | None = None
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class WritePlan:
    """One write: all that tasks and the commit need. Travels pickled to both.

    Attributes:
        root: The log directory.
        job_id: Names the job, and the files that its tasks stage.
        options: What the user asked for.
        columns: The indexes of the columns in the DataFrame.
        time_ms: When the job began: the timestamp of records that have none.
        is_overwrite: Whether the rows replace the existing ones.
        is_committed: Whether this job's ``txnVersion`` was committed before, so that nothing is written.
        is_new_root: Whether the log directory did not exist before, or was empty.
        topics: Existing topics, and those of the directory whose offsets are restored.
        restored_offsets: Log start and log end of the partitions in that directory.
    """

    root: str
    job_id: str
    options: WriteOptions
    columns: WriteColumns
    time_ms: int
    is_overwrite: bool = False
    is_committed: bool = False
    is_new_root: bool = False
    topics: Mapping[str, TopicPlan] = field(default_factory=dict)
    restored_offsets: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

    def topic_plan(self, topic: str) -> TopicPlan:
        """The partitions of a topic, which may be new."""
        return self.topics.get(topic) or TopicPlan(self.options.partition_count, is_new=True)

    def settings(self, topics: Iterable[str] = ()) -> JobSettings:
        """The settings of the commit, given the topics of the rows."""
        options = self.options
        written = set(topics)
        makes_all_partitions = options.offsets_from is None or options.partitions is not None
        return JobSettings(
            job_id=self.job_id,
            mode="overwrite" if self.is_overwrite else "append",
            config=options.config,
            new_partitions={
                topic: plan.partition_count
                for topic in sorted(written)
                if (plan := self.topic_plan(topic)).is_new and makes_all_partitions
            },
            targeted_topics=() if options.topic is None or not self.is_overwrite else (options.topic,),
            txn_app_id=options.txn_app_id,
            txn_version=options.txn_version,
            topic_ids=options.topic_ids,
            broker_directory=options.broker_directory,
            preserve_offsets=options.preserve_offsets,
            restored_offsets=self._restored_offsets(written),
            flush=options.flush,
        )

    def _restored_offsets(self, written: set[str]) -> dict[tuple[str, int], tuple[int, int]]:
        """Of topics with rows, of the one that the options name, and of those whose records were all deleted.

        Other topics are not created: the DataFrame may hold only some of the source's topics. Internal topics must
        be read, or named.
        """
        bounds = self.restored_offsets
        with_records = {topic for (topic, _), (start, end) in bounds.items() if start < end}
        gone = {topic for (topic, _), (_, end) in bounds.items() if end} - with_records - INTERNAL_TOPICS
        restored = written | gone | {self.options.topic}
        return {partition: offsets for partition, offsets in bounds.items() if partition[0] in restored}


@dataclass(frozen=True, slots=True)
class WriteColumns:
    """The index of each column in the DataFrame; None if it is missing or unused.

    Attributes:
        in_other_case: The names of those columns whose names differ in case.
        in_two_cases: Names of those columns, each with another column's that differs in case only.
        look_alikes: Columns of the DataFrame that are left out, and the names that they may have been meant to have.
    """

    value: int
    key: int | None = None
    topic: int | None = None
    partition: int | None = None
    headers: int | None = None
    timestamp: int | None = None
    offset: int | None = None
    in_other_case: tuple[str, ...] = ()
    in_two_cases: tuple[tuple[str, str], ...] = ()
    look_alikes: tuple[tuple[str, str], ...] = ()

    @property
    def of_records(self) -> tuple[tuple[str, int], ...]:
        """The columns that become part of records: name and index."""
        places = {
            "value": self.value,
            "key": self.key,
            "timestamp": self.timestamp,
            "headers": self.headers,
            "offset": self.offset,
        }
        return tuple((name, place) for name, place in places.items() if place is not None)


def write_columns(schema: StructType, options: WriteOptions) -> WriteColumns:
    """Find the columns to write.

    Raises:
        InvalidRecordError: A column is missing, or of another type than records can have.
    """
    found = _Columns(schema)
    # The option takes precedence over the column, of whatever type.
    topic = found.place("topic") if options.topic is None else None
    if options.topic is None and topic is None:
        raise InvalidRecordError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    key = found.place("key")
    value = found.place("value")
    if value is None:
        raise InvalidRecordError("Required attribute 'value' not found.")
    columns = WriteColumns(
        value=value,
        key=key,
        topic=topic,
        headers=found.place("headers"),
        partition=found.place("partition"),
        timestamp=found.place("timestamp"),
        offset=found.place("offset") if options.preserve_offsets else None,
        in_other_case=found.in_other_case,
        in_two_cases=found.in_two_cases,
        look_alikes=found.look_alikes(),
    )
    if options.preserve_offsets:
        for name, place in (("offset", columns.offset), ("partition", columns.partition)):
            if place is None:
                raise InvalidRecordError(
                    f"Required attribute '{name}' not found. With preserveOffsets, each row must have its offset and "
                    "its partition: keep both columns of the read, or leave preserveOffsets out."
                )
    return columns


class _Columns:
    """The DataFrame's columns by name; of duplicates the first."""

    def __init__(self, schema: StructType) -> None:
        self._types: dict[str, tuple[int, DataType]] = {}
        self._spellings: defaultdict[str, list[str]] = defaultdict(list)
        self._used: dict[str, str] = {}
        for place, column in enumerate(schema.fields):
            if column.name not in self._types:
                self._types[column.name] = (place, column.dataType)
                self._spellings[column.name.lower()].append(column.name)

    def place(self, name: str) -> int | None:
        """The index of a column, with its type checked; None if it is missing."""
        spelling = self._spelling(name)
        if spelling is None:
            return None
        self._used[name] = spelling
        place, found = self._types[spelling]
        is_allowed, allowed = _ALLOWED[name]
        if not is_allowed(found):
            raise InvalidRecordError(
                f"{name} attribute unsupported type {found.simpleString()}. {name} must be a(n) {allowed}"
                f"{_ADVICE.get(name, '')}"
            )
        return place

    @property
    def in_other_case(self) -> tuple[str, ...]:
        """The columns found so far whose names differ in case."""
        return tuple(spelling for name, spelling in self._used.items() if spelling != name)

    @property
    def in_two_cases(self) -> tuple[tuple[str, str], ...]:
        """The columns found so far beside which there are others whose names differ in case only."""
        return tuple(
            (name, spelling)
            for name in self._used
            for spelling in self._spellings[name]
            if spelling != self._used[name]
        )

    def look_alikes(self) -> tuple[tuple[str, str], ...]:
        """The columns that are not used although a name is like one of ours: ``Key`` beside ``key``, or ``header``."""
        unused = [name for name in self._types if name not in self._used.values()]
        found = []
        for name in unused:
            lower = name.lower()
            if lower in self._used:
                found.append((name, lower))
            elif lower not in _COLUMNS_OF_READS:
                missing = _ALLOWED.keys() - self._used.keys()
                near = difflib.get_close_matches(lower, sorted(missing), n=1, cutoff=_LIKENESS)
                found += [(name, each) for each in near]
        return tuple(found)

    def _spelling(self, name: str) -> str | None:
        """A column's name in the DataFrame: the exact one, or else the only one in another case."""
        if name in self._types:
            return name
        spellings = self._spellings[name]
        if len(spellings) > 1:
            raise InvalidRecordError(
                f"Expected one column '{name}', found {' and '.join(map(repr, spellings))}, which are the same name to "
                f"Spark. Call the one to write '{name}', and drop the others."
            )
        return spellings[0] if spellings else None


def _is_bytes(kind: DataType) -> bool:
    return isinstance(kind, StringType | BinaryType)


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType)


def _is_int(kind: DataType) -> bool:
    return isinstance(kind, IntegerType)


def _is_long(kind: DataType) -> bool:
    return isinstance(kind, LongType)


def _is_timestamp(kind: DataType) -> bool:
    return isinstance(kind, TimestampType)


def _is_headers(kind: DataType) -> bool:
    """Nullable flags are ignored."""
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, type(field.dataType)) for field in kind.elementType.fields]
    return fields == [("key", StringType), ("value", BinaryType)]


_ALLOWED: Final[dict[str, tuple[Callable[[DataType], bool], str]]] = {
    "topic": (_is_text, "string"),
    "key": (_is_bytes, "string or binary"),
    "value": (_is_bytes, "string or binary"),
    "headers": (_is_headers, "array<struct<key:string,value:binary>>"),
    "partition": (_is_int, "int"),
    "timestamp": (_is_timestamp, "timestamp"),
    "offset": (_is_long, "bigint"),
}
# In lower case: what a read returns may be written, and what no record can have is left out without a word.
_COLUMNS_OF_READS: Final = frozenset({*_ALLOWED, "timestamptype", "_metadata"})
# header and headers, keys and key; but not event_timestamp and timestamp.
_LIKENESS: Final = 0.8
_ADVICE: Final = {
    "timestamp": ". Cast it, or drop it if it is not the time of the record.",
    "value": ". Cast it, or make it one text: to_json(struct(*)).",
}


def plan_write(
    filesystem: FileSystem, schema: StructType, options: WriteOptions, *, is_overwrite: bool
) -> WritePlan:
    """Check everything that can be checked without rows; create the log directory if it does not exist.

    Raises:
        SegmentLogError: The DataFrame, the options or the log directory do not allow this write.
    """
    columns = write_columns(schema, options)
    if is_overwrite and options.preserve_offsets:
        raise OptionError(
            "preserveOffsets does not go with mode overwrite, whose rows get the offsets after the existing ones. "
            "Use mode append, and an empty log directory."
        )
    root = _root(filesystem, options.path)
    restored = _source_offsets(filesystem, options)
    plan = WritePlan(
        root, uuid.uuid4().hex, options, columns, int(time.time() * 1000), is_overwrite=is_overwrite
    )
    status = filesystem.status(root, follow_symlinks=True)
    is_new_root = status is None or (status.is_directory and not filesystem.list_directory(root))
    is_committed = not CommitJob(filesystem, root, plan.settings()).begin()
    return replace(
        plan,
        is_new_root=is_new_root,
        is_committed=is_committed,
        topics=_topics(filesystem, root, restored, options),
        restored_offsets=restored,
    )


def _root(filesystem: FileSystem, path: str) -> str:
    """The log directory; tasks may run with another working directory."""
    if "," in path and filesystem.status(path, follow_symlinks=True) is None:
        raise OptionError(
            f"path {path!r} names several directories, or one that does not exist. A write goes to one log directory; "
            "if its name has a comma, create it first."
        )
    root = os.path.abspath(path)
    above = root
    while above != os.path.dirname(above):
        if parse_partition_directory_name(os.path.basename(above)) is not None and _holds_log(
            filesystem, above
        ):
            raise LogDirectoryError(
                f"Expected a log directory, found a path in a partition of one. Write to {os.path.dirname(above)} "
                "with the option topic, or to a directory elsewhere.",
                path=root,
            )
        above = os.path.dirname(above)
    return root


def _holds_log(filesystem: FileSystem, path: str) -> bool:
    status = filesystem.status(path, follow_symlinks=True)
    if status is None or not status.is_directory:
        return False
    try:
        entries = filesystem.list_directory(path)
    except UnreadableError:
        # A user may be allowed to traverse a directory, but not to list it.
        return False
    return any(
        entry.name == PARTITION_METADATA or base_offset_of(entry.name) is not None for entry in entries
    )


def _topics(
    filesystem: FileSystem, root: str, restored: Mapping[tuple[str, int], object], options: WriteOptions
) -> dict[str, TopicPlan]:
    names = (entry.name for entry in filesystem.list_directory(root) if entry.is_directory)
    parsed = [
        name
        for each in names
        if (name := parse_partition_directory_name(each)) is not None
        # Hidden directories may be another program's; others are partitions, or the job would have been refused.
        and (not each.startswith(".") or _holds_log(filesystem, os.path.join(root, each)))
    ]
    found = _by_topic((name.topic, name.partition) for name in parsed if name.suffix is None)
    # Other partitions of a cluster's topic may be on other brokers' disks.
    least_count = options.partition_count if options.broker_directory else 0
    plans = {topic: _topic_plan(numbers, least_count) for topic, numbers in found.items()}
    for topic, numbers in _by_topic(restored).items():
        if topic not in plans:
            known = _topic_plan(numbers, is_new=True)
            is_larger = (options.partitions or 0) >= known.partition_count
            plans[topic] = TopicPlan(options.partition_count, is_new=True) if is_larger else known
    return plans


def _topic_plan(numbers: set[int], least_count: int = 0, *, is_new: bool = False) -> TopicPlan:
    count = max(max(numbers) + 1, least_count)
    return TopicPlan(count, None if count == len(numbers) else frozenset(numbers), is_new)


def _by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, set()).add(partition)
    return found


def _source_offsets(filesystem: FileSystem, options: WriteOptions) -> dict[tuple[str, int], tuple[int, int]]:
    """Log start and log end of each partition under ``offsetsFrom``."""
    if options.offsets_from is None:
        return {}
    paths = split_paths(filesystem, [options.offsets_from])
    topics = sorted({directory.topic for directory in find_partitions(filesystem, paths)})
    if options.topic is not None:
        if options.topic not in topics:
            raise OptionError(
                f"offsetsFrom is {options.offsets_from!r}, which has no topic {options.topic!r}. It has "
                f"{', '.join(topics) or 'none'}."
            )
        topics = [options.topic]
    read_options = parse_read_options({"path": paths, "subscribe": topics or None})
    try:
        resolved = resolve(filesystem, read_options).partitions
    except CorruptError as error:
        # The end of a damaged log is not certain, so it must not be restored.
        raise OptionError(
            f"Expected offsetsFrom to name logs whose ends are certain, found damage: {error} Leave offsetsFrom out: "
            "each log then ends after its last row, and starts at its first one."
        ) from error
    return {each.log.directory.topic_partition: (each.start_offset, each.end_offset) for each in resolved}
