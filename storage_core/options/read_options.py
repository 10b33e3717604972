"""Options of a read: each is stated once, and all are parsed and checked together.

Names and meanings are those of Spark's Kafka source where it has them. Every mistake is found here, before a directory is
read, and reported in one line.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from storage_core.errors import OptionError
from storage_core.options.bounds import (
    Bound,
    TimestampBound,
    TimestampsBound,
    check_bounds,
    parse_assignment,
    parse_offsets,
    parse_partition_timestamps,
    parse_timestamp,
)
from storage_core.options.column_choice import FORMAT_OPTIONS, ColumnChoice, Paths, split_columns, take_choice
from storage_core.options.java_pattern import compile_java_pattern
from storage_core.options.option import (
    Kind,
    Option,
    by_key,
    default_values,
    given_values,
    nearest_hint,
    option_key,
    refuse_conflicting_names,
)
from storage_core.options.predicate import Predicate, checked_predicate, columns_of
from storage_core.options.storage_options import KEY_FILE, MAPPING, StorageOptions, split_storage_options
from storage_core.options.values import (
    BATCH_SIZE,
    BATCH_SIZE_DEFAULT,
    BOOLEAN,
    COUNT,
    INTERVAL,
    SIZE,
    choice_kind,
    code_list,
    parse_choice,
    parse_columns,
    parse_count,
    parse_paths,
    parse_time_zone,
    parse_timestamp_ms,
    parse_topic,
    parse_topics,
    value_kind,
)
from storage_core.options.where import Condition, parse_where

if TYPE_CHECKING:
    import datetime as dt
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence


RECORDS: Final = "records"
"""The view that is a read of the records; `storage_core.views` makes the others."""


@dataclass(frozen=True, slots=True)
class ViewNames:
    """Names of a view: of its module, and of the columns that conditions call ``offset`` and ``timestamp``.

    Attributes:
        offset: The column that ``offset`` means in conditions; None if there is none.
        timestamp: The column that ``timestamp`` means in conditions; None if there is none.
        module: The module of `storage_core.views` that defines it; that of its name if empty.
    """

    offset: str | None = None
    timestamp: str | None = None
    module: str = ""

    @property
    def meanings(self) -> dict[str, str]:
        """Meanings of its columns in conditions, by name in lower case."""
        named = {self.offset: "offset", self.timestamp: "timestamp"}
        return {column.lower(): meaning for column, meaning in named.items() if column is not None}


VIEWS: Final[dict[str, ViewNames]] = {
    RECORDS: ViewNames("offset", "timestamp"),
    "batches": ViewNames("baseOffset", "maxTimestamp"),
    "segments": ViewNames("baseOffset", "maxTimestamp"),
    "partitions": ViewNames(),
    "index": ViewNames("offset", "timestamp", module="index_entries"),
    "transactions": ViewNames("firstOffset", "startTimestamp"),
    "producers": ViewNames("lastOffset", "lastTimestamp"),
    "epochs": ViewNames("startOffset"),
    "damage": ViewNames("startOffset"),
    "group_offsets": ViewNames(None, "commitTime"),
    "files": ViewNames(),
    "schemas": ViewNames("offset", "timestamp"),
}
"""What the rows of a read may be, by name of the view."""
IsolationLevel = Literal["read_uncommitted", "read_committed"]
EndingAt = Literal["logEnd", "highWatermark"]
StartingStrategy = Literal["error", "latest"]
DamageMode = Literal["FAILFAST", "DROPMALFORMED", "PERMISSIVE"]
"""Damage fails the read, is skipped, or is skipped and described in a row of its own."""
CORRUPT_RECORD_COLUMN: Final = "_corrupt_record"
"""The default name of the column that describes damage."""
_RECORD_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


@dataclass(frozen=True, slots=True)
class _Context:
    """Facts that the parsing of values depends on."""

    zone: dt.tzinfo
    now_ms: int
    view: str


def _time_kind(text: str, parse: Callable[[str, object, dt.tzinfo, int], object]) -> Kind:
    return Kind(text, lambda option, value, context: parse(option, value, context.zone, context.now_ms))


def _parse_condition(_option: str, value: object, context: _Context) -> Condition:
    if not isinstance(value, str):
        return Condition(checked_predicate(value))
    has_content = context.view == RECORDS
    names = VIEWS[context.view].meanings
    return parse_where(value, context.zone, context.now_ms, names, has_content=has_content)


def _parse_pattern(option: str, value: object) -> str:
    if not isinstance(value, str):
        raise OptionError(f"{option} is {value!r}. Use the text of a regular expression.")
    compile_java_pattern(option, value)
    return value.strip()


def _parse_corrupt_record_column(option: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise OptionError(f"{option} is {value!r}. Use the name of a column.")
    # Spark compares column names without regard to case.
    if value.lower() in {known.lower() for known in (*_RECORD_COLUMNS, "headers", "_metadata")}:
        raise OptionError(f"{option} is {value!r}, which is the name of a record's column. Use another one.")
    return value


# Each option has a line of values and its text, so that options compare by eye.
# fmt: off
READ_OPTIONS: Final[tuple[Option, ...]] = (
    Option("path", "paths", value_kind("paths", parse_paths), aliases=("paths",),
           doc="Required. One path or several: a Kafka log directory, a folder of them, or one partition directory. "
               "Several are a list, a glob (`/data/*/kafka-logs`, `/data/{a,b}`), or comma separated, unless the "
               "whole text exists. URIs of files and of [object stores](object-stores.md) work, too. Globs have "
               "Hadoop's syntax, but a literal `*` is `[*]`, not `\\*`; they follow symbolic links. Copies of one "
               "partition (of one cluster and topic id) are read as one log: what the preferred copy lacks comes "
               "from the others."),
    Option("remoteStorage", "remote_storage", value_kind("paths", parse_paths),
           doc="Where the older segments of tiered topics are; several paths are comma separated. Each topic is then "
               "read from its true log start: remote segments below the first local one, local segments from there "
               "on. A topic that no local directory has is read from remote storage alone."),
    Option("subscribe", "subscribe", value_kind("topics", parse_topics),
           doc="Topics to read, comma separated. Internal topics are read only if they are named here."),
    Option("subscribePattern", "subscribe_pattern", value_kind("Java regex", _parse_pattern),
           doc="Topics to read: those in whose name the pattern is found. It never matches internal topics."),
    Option("assign", "assign", value_kind("JSON", parse_assignment),
           doc='Partitions to read, as `{"topicA":[0,1]}`; those that do not exist are left out. Give only one of '
               "`subscribe`, `subscribePattern` and `assign`; without any, all topics but the internal ones are read."),
    Option("startingOffsets", "starting", value_kind("`earliest`, `latest` or JSON", parse_offsets), "earliest",
           doc='Where to start: `earliest`, or `{"topicA":{"0":23,"1":-2},"topicB":"earliest"}`, which names exactly '
               "the partitions that are read (-2 is earliest). A stream also takes `latest` (-1 in JSON), its "
               "default; only a new query uses this option."),
    Option("endingOffsets", "ending", value_kind("`latest` or JSON", parse_offsets), "latest", only="batch",
           doc='Where to stop, exclusive: `latest`, or `{"topicA":{"0":50,"1":-1}}` (-1 is latest).'),
    Option("startingOffsetsByTimestamp", "starting", _time_kind("JSON", parse_partition_timestamps),
           doc='A starting timestamp for each partition, `{"topicA":{"0":1000}}`; -1 is latest, -2 is earliest. '
               "Overrides `startingOffsets`."),
    Option("endingOffsetsByTimestamp", "ending", _time_kind("JSON", parse_partition_timestamps), only="batch",
           doc="An ending timestamp for each partition. Overrides `endingOffsets`."),
    Option("startingTimestamp", "starting", _time_kind("timestamp", parse_timestamp),
           doc="Start each partition at its first record at or after this time: epoch milliseconds, ISO-8601, or "
               "relative (`-10 minutes`). Overrides the other starting options."),
    Option("endingTimestamp", "ending", _time_kind("timestamp", parse_timestamp), only="batch",
           doc="Stop each partition at its first record at or after this time, or at its end if there is none. "
               "Overrides the other ending options."),
    Option("startingOffsetsByTimestampStrategy", "starting_timestamp_strategy", choice_kind(StartingStrategy), "error",
           doc="What to do with a partition that has no record at or after the starting timestamp: fail, or read nothing."),
    Option("timeZone", "zone", value_kind("time zone", parse_time_zone), "UTC",
           doc="The zone of times without one, such as `Europe/Berlin`. Spark does not tell a source "
               "`spark.sql.session.timeZone`."),
    Option("isolationLevel", "isolation_level", choice_kind(IsolationLevel), "read_uncommitted", aliases=("kafka.isolation.level",),
           doc="`read_committed` leaves out aborted transactions and stops before the first open one."),
    Option("failOnDataLoss", "fail_on_data_loss", BOOLEAN, "true",
           doc="Whether a read fails if offsets that it should read are not there; with `false`, it skips them with a "
               "warning. In a stream, the same goes for missing partitions; their offsets stay in the checkpoint."),
    Option("minPartitions", "min_partitions", COUNT,
           doc="Cut the offset ranges into at least about this many tasks."),
    Option("maxRecordsPerPartition", "max_records_per_partition",
           # Spark's Kafka source has this name in lower case in its message.
           value_kind("count", partial(parse_count, name_in_error="maxrecordsperpartition")),
           doc="Cut the offset ranges so that no task has more offsets."),
    Option("maxBytesPerPartition", "max_bytes_per_partition", SIZE,
           doc="About how many bytes of log a task reads (default: at most 128 MiB, less if there are idle processors), as "
               "`64m` or plain bytes."),
    Option("endingAt", "ending_at", choice_kind(EndingAt), "logEnd",
           doc="What `latest` means: `logEnd` is after the last whole batch; `highWatermark` is the offset up to "
               "which all in-sync replicas have the records, as a broker's checkpoint has it. A stream ends at the "
               "high watermark by default if there is one, else at the log end."),
    Option("ignoreCheckpoints", "ignore_checkpoints", BOOLEAN, "false",
           doc="Whether to read each log from its first segment to its last whole batch, whatever the checkpoint "
               "files of the log directory say: for an old copy beside newer checkpoints."),
    Option("useIndexes", "use_indexes", BOOLEAN, "true",
           doc="`false` walks every batch header instead of using index files."),
    Option("maxDecompressedBatchBytes", "max_decompressed_batch_bytes", BATCH_SIZE, BATCH_SIZE_DEFAULT,
           doc="The largest batch, decompressed, that is read; a larger one is an error. When decoded, a record "
               "counts as 32 bytes and a record header as 128."),
    Option("includeHeaders", "include_headers", BOOLEAN, "false", views=(RECORDS,),
           doc="Adds the column `headers`."),
    Option("includeMetadata", "include_metadata", BOOLEAN, "false", views=(RECORDS,),
           doc="Adds the column `_metadata`."),
    Option("columns", "columns", value_kind("names", parse_columns),
           doc="The columns to read, in this order; comma separated or a JSON list. A path such as `value.amount` reads only "
               "that field of a typed column."),
    *FORMAT_OPTIONS,
    Option("followSymlinks", "follow_symlinks", BOOLEAN, "false",
           doc="Whether partition directories that are symbolic links count."),
    Option("filterPushdown", "filter_pushdown", BOOLEAN, "false", only="batch",
           doc="Whether `df.filter(...)` reaches the reader. With `true`, one `load()` serves one filter."),
    Option("where", "where", Kind("condition", _parse_condition),
           doc="A condition that rows must meet, as `offset >= 100 AND timestamp < '2026-01-01T00:00:00Z' AND key = 'k1'`: "
               "topic, partition, offset, timestamp, key and value compared with literals (`=`, `!=`, `<`, `<=`, `>`, `>=`, "
               "`<=>`, `IN`, `BETWEEN`, `IS NULL`, `LIKE 'prefix%'`), with `AND`, `OR`, `NOT`. A timestamp may be "
               "relative (`'-10 minutes'`). Also used to skip data. A time without a zone is in `timeZone`; all else means "
               "what it means in Spark. There are no functions, casts or other columns, and keys and values have no type: for "
               "these, use `filter` on the DataFrame or table that was read."),
    Option("maxTimestampDisorder", "max_timestamp_disorder_ms", INTERVAL,
           doc="Your promise that no record is earlier by more than this (`10 minutes`) than any record before it in its "
               "partition: then a read with `timestamp < ...` in its condition ends at the first record that is later by this "
               "much, and one with `timestamp >= ...` starts after a record that is earlier by this much."),
    Option("mode", "mode", choice_kind(DamageMode), "FAILFAST",
           doc="What happens at a damaged range of a log file: `FAILFAST` fails the read, naming bytes and offsets; "
               "`DROPMALFORMED` goes on at the next valid batch, with a warning; `PERMISSIVE` also adds a row that "
               "describes the range."),
    Option("columnNameOfCorruptRecord", "corrupt_record_column", value_kind("column name", _parse_corrupt_record_column), CORRUPT_RECORD_COLUMN, views=(RECORDS,),
           doc="The last column with `mode=PERMISSIVE`: JSON with `file`, `topic`, `partition`, `startByte`, `endByte`, "
               "`startOffset`, `endOffset` (ends are exclusive, offsets bounds of what may be lost), `error` and `reason`. "
               "Null in the rows of records, unless a timestamp does not fit its column."),
    Option("view", "view", value_kind("name", partial(parse_choice, choices=tuple(VIEWS))), RECORDS, only="batch",
           doc=f"What the rows are: `{RECORDS}`, or {code_list([name for name in VIEWS if name != RECORDS])} ([Views](views.md))."),
    Option("asOf", "as_of_ms", _time_kind("timestamp", parse_timestamp_ms), only="batch", views=("group_offsets",),
           doc="With `view=group_offsets`: the offsets as they were at this time, instead of the latest."),
    Option("exact", "exact", BOOLEAN, "false", only="batch", views=("segments", "partitions"),
           doc="With `view=segments` or `view=partitions`: read every batch header, for the columns that need it."),
    Option("schemasPath", "schemas_paths", value_kind("paths", parse_paths), views=(RECORDS, "schemas"),
           doc="Where the schemas of typed values are, if not in the directories that are read: a log directory with the topic of "
               "a schema registry, or a folder of schema files named by id (`17.avsc`, `18.proto`, `19.json`), as "
               "`segmentlog schemas --export` writes it."),
    Option("schemasTopic", "schemas_topic", value_kind("topic", parse_topic), "_schemas", views=(RECORDS, "schemas"),
           doc="The topic of the schema registry (its setting `kafkastore.topic`); read with `registry` only if it is named."),
    Option(KEY_FILE, "storage", value_kind("path, or `id=path` pairs", lambda _option, value: value),
           doc="The private key, in PEM, that decrypts segments that Aiven's plugin has encrypted; for several keys, their ids and "
               "paths, such as `key-1=/keys/1.pem,key-2=/keys/2.pem`. Use absolute paths that every reading host has."),
    Option(MAPPING, "storage", value_kind("mapping", lambda _option, value: value),
           doc="How to reach an object store, in Python: a mapping of the names [below](#storage-options). In Spark and SQL each of "
               "them is an option of its own."),
    Option("maxOffsetsPerTrigger", "max_offsets", value_kind("count", partial(parse_count, least=0)), only="stream",
           doc="The most offsets in a micro-batch, shared among the partitions in proportion to what each of them has; 0 "
               "reads nothing."),
    Option("minOffsetsPerTrigger", "min_offsets", value_kind("count", partial(parse_count, least=0)), only="stream",
           doc="How many new offsets a micro-batch waits for, but not longer than `maxTriggerDelay`."),
    Option("maxTriggerDelay", "max_delay_ms", INTERVAL, "15m", only="stream",
           doc="The longest wait for `minOffsetsPerTrigger`."),
    Option("pollInterval", "poll_interval_ms", INTERVAL, only="stream",
           doc="How old a listing of an object store may be before the stream lists again (30 seconds by default). "
               "Local disks are looked at in each trigger."),
    Option("maxBytesPerTrigger", "max_bytes", SIZE, only="stream",
           doc="About the most bytes of log in a micro-batch, shared likewise. Each partition with new records gets "
               "at least one batch of records."),
)
# fmt: on
_TRIGGERS: Final = tuple(option for option in READ_OPTIONS if option.only == "stream")
_BY_KEY: Final = by_key(READ_OPTIONS)
# What the parsing of other options depends on.
_FIRST: Final = (_BY_KEY["view"], _BY_KEY["timezone"])
_OTHERS: Final = tuple(option for option in READ_OPTIONS if option.only != "stream" and option not in _FIRST)
_FIRST_DEFAULTS: Final = default_values(_FIRST)
_DEFAULTS: Final = default_values(_OTHERS)
_TRIGGER_DEFAULTS: Final = default_values(_TRIGGERS)
TOPIC_OPTIONS: Final = ("subscribe", "subscribePattern", "assign")
"""Options of which only one may be given."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Choice of what to read, and how, as `READ_OPTIONS` fill it; made by `parse_read_options`.

    Attributes:
        paths: As given; `storage_core.scan.resolve.split_paths` splits them at commas.
        remote_storage: Likewise, where the older segments of tiered topics are.
        ending: Where each partition stops, exclusive.
        where: Only rows for which it is true are read.
        max_timestamp_disorder_ms: A record is at most this much earlier than any record before it.
        corrupt_record_column: With mode PERMISSIVE, the column that describes damage.
        as_of_ms: The time as of which group offsets are wanted; None for the latest.
        exact: Whether a view walks every batch header for what file names and sizes do not tell.
        value: The type of the value.
        key: The type of the key.
        schemas_paths: Where the schemas of values are; None for the directories that are read.
        assumes_zone: Whether ``where`` has a time that neither it nor ``timeZone`` puts into a zone.
        storage: How to reach an object store.
    """

    paths: tuple[str, ...]
    remote_storage: tuple[str, ...] | None
    subscribe: tuple[str, ...] | None
    subscribe_pattern: str | None
    assign: Mapping[str, tuple[int, ...]] | None
    starting: Bound
    ending: Bound
    starting_timestamp_strategy: StartingStrategy
    isolation_level: IsolationLevel
    fail_on_data_loss: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_bytes_per_partition: int | None
    ending_at: EndingAt
    ignore_checkpoints: bool
    use_indexes: bool
    max_decompressed_batch_bytes: int
    include_headers: bool
    include_metadata: bool
    columns: tuple[str, ...] | None
    follow_symlinks: bool
    filter_pushdown: bool
    where: Predicate | None
    max_timestamp_disorder_ms: int | None
    mode: DamageMode
    corrupt_record_column: str
    view: str
    as_of_ms: int | None
    exact: bool
    value: ColumnChoice
    key: ColumnChoice
    schemas_paths: tuple[str, ...] | None
    schemas_topic: str
    assumes_zone: bool
    storage: StorageOptions

    @property
    def names_topics(self) -> bool:
        """True if one of `TOPIC_OPTIONS` is given."""
        return (self.subscribe, self.subscribe_pattern, self.assign) != (None, None, None)

    @property
    def typed_columns(self) -> tuple[ColumnChoice, ...]:
        """Choices of the columns that are read, and not as bytes."""
        wanted = ("value", "key") if self.columns is None else self.columns
        choices = (choice for choice in (self.value, self.key) if choice.column in wanted)
        return tuple(choice for choice in choices if choice.format != "bytes")

    @property
    def reads_framed_columns(self) -> bool:
        """True if a column is decoded by the schemas of a registry that its frames name."""
        return any(choice.format == "registry" for choice in self.typed_columns)


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """Limits of a micro-batch; None is no limit.

    Attributes:
        min_offsets: Fewer new offsets than this wait for more.
        max_bytes: About the most bytes of log.
        poll_interval_ms: How long listings are kept, where they are kept.
    """

    max_offsets: int | None
    min_offsets: int | None
    max_delay_ms: int
    max_bytes: int | None
    poll_interval_ms: int | None = None

    @property
    def are_given(self) -> bool:
        """True if there is any."""
        return any(each is not None for each in (self.max_offsets, self.min_offsets, self.max_bytes))


_NO_LIMITS: Final = TriggerLimits(**_TRIGGER_DEFAULTS)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Choice of what a stream reads, and how much at a time.

    Attributes:
        read: What to read. ``starting`` is where a new query starts, ``ending`` is the latest offset, and ``ending_at``
            is what the user asked for if ``is_end_given``.
        is_end_given: Whether the user says what the latest offset is.
    """

    read: ReadOptions
    limits: TriggerLimits = _NO_LIMITS
    is_end_given: bool = False

    @property
    def is_start_relative(self) -> bool:
        """True if the start is relative to the present, so that each start of the query would find another one."""
        start = self.read.starting
        return isinstance(start, (TimestampBound, TimestampsBound)) and start.is_relative


_OTHER_WORDS: Final = {
    "topic": "subscribe",
    "topics": "subscribe",
    "partition": "assign",
    "partitions": "assign",
    "filter": "where",
}


def find_option(name: str) -> Option:
    """Look up a read option by its name in any case, or in snake_case.

    Raises:
        OptionError: The option is unknown; the error suggests the nearest name.
    """
    option = _BY_KEY.get(option_key(name))
    if option is None:
        meant = meant_option(name)
        hint = (
            f" Did you mean '{meant}'?"
            if meant
            else nearest_hint(name, (known.name for known in READ_OPTIONS))
        )
        raise OptionError(f"Unknown option '{name}'.{hint}")
    return option


def meant_option(name: str) -> str | None:
    """Return the option that a word of other tools means; None if it is no such word."""
    return _OTHER_WORDS.get(option_key(name))


def parse_read_options(raw: Mapping[str, object], *, now_ms: int | None = None) -> ReadOptions:
    """Parse and check the options of a batch read. Nothing is opened or looked up.

    Args:
        raw: Values by name. Names may have any case, or be in snake_case; values are texts, as
            Spark passes them, or Python values (numbers, booleans, lists, dicts, datetimes).
            None means that the option is not given.
        now_ms: The time that relative times are relative to; the clock if None.

    Raises:
        OptionError: A name is unknown, a value is wrong, options contradict each other, or one is for streams.
    """
    storage, others = split_storage_options(raw)
    options, _ = _parse(refuse_conflicting_names(_named(others)), storage, now_ms, is_stream=False)
    check_bounds(options.starting, options.ending)
    return options


def parse_stream_options(raw: Mapping[str, object], *, now_ms: int | None = None) -> StreamOptions:
    """Parse and check the options of a streaming read, as `parse_read_options` does those of a batch read.

    Raises:
        OptionError: As there; or an option makes sense only for a batch.
    """
    storage, others = split_storage_options(raw)
    given = refuse_conflicting_names(_named(others))
    read, condition = _parse({"startingOffsets": "latest", **given}, storage, now_ms, is_stream=True)
    if condition is not None and condition.is_relative:
        raise OptionError(
            f"where is {given['where']!r}, which names a relative time: a batch that is repeated after a failure would "
            "have other rows. Name the time itself, or filter the DataFrame."
        )
    limits = TriggerLimits(**(_TRIGGER_DEFAULTS | given_values(_TRIGGERS, given)))
    most, least = limits.max_offsets, limits.min_offsets
    if most is not None and least is not None and least > most:
        raise OptionError(
            f"The value of minOffsetPerTrigger({least}) is higher than the maxOffsetsPerTrigger({most})."
        )
    return StreamOptions(read, limits, is_end_given="endingAt" in given)


def options_of(paths: Sequence[str | os.PathLike[str]], options: Mapping[str, object]) -> ReadOptions:
    """Parse the options of a call that takes paths by position and options by name.

    Raises:
        OptionError: An option is unknown or wrong, or paths are given twice.
    """
    raw = dict(options)
    if paths and "path" in raw:
        raise OptionError("Paths are given by position and again as path=. Give them once.")
    if paths:
        raw["path"] = list(paths)
    return parse_read_options(raw)


def _parse(
    given: Mapping[str, object], storage: StorageOptions, now_ms: int | None, *, is_stream: bool
) -> tuple[ReadOptions, Condition | None]:
    """Parse the options of batches and streams.

    Returns:
        The options; and the condition again, with what it says of times, if there is one.
    """
    chosen = [name for name in TOPIC_OPTIONS if name in given]
    if len(chosen) > 1:
        raise OptionError(
            "Only one of the following options can be specified for Kafka source: "
            f"{', '.join(TOPIC_OPTIONS)}, but {' and '.join(chosen)} are given."
        )
    first = _FIRST_DEFAULTS | given_values(_FIRST, given)
    view = first["view"]
    _refuse_misplaced(given, view, is_stream=is_stream)
    context = _Context(first["zone"], int(time.time() * 1000) if now_ms is None else now_ms, view)
    values = _DEFAULTS | given_values(_OTHERS, given, context) | {"storage": storage}
    condition: Condition | None = values.pop("where")
    paths: Paths = ()
    if view == RECORDS and values["columns"] is not None:
        values["columns"], paths = split_columns(values["columns"])
    options = ReadOptions(
        value=take_choice("value", values, paths),
        key=take_choice("key", values, paths),
        **values,
        view=view,
        where=None if condition is None else condition.predicate,
        assumes_zone=condition is not None and not condition.has_zones and "timeZone" not in given,
    )
    _check_together(options)
    return options, condition


def _check_together(options: ReadOptions) -> None:
    if not options.paths:
        raise OptionError(
            'No path is given. Name a log directory: .load("/path") or .option("path", "/path"); in SQL '
            "SELECT ... FROM t WITH (path = '/path') or CREATE TEMPORARY VIEW ... USING segmentlog "
            "OPTIONS (path '/path') (Spark does not pass the options of CREATE TABLE to reads)."
        )
    if options.ending_at == "highWatermark" and options.ignore_checkpoints:
        raise OptionError(
            "endingAt=highWatermark needs the checkpoint of high watermarks, and ignoreCheckpoints leaves it out. "
            "Give one of them."
        )
    for choice in (options.value, options.key):
        _check_format(options, choice)
    if options.view == RECORDS:
        _check_schemas(options)
    # Another view checks the names of columns itself.
    if options.columns is not None and options.view == RECORDS:
        _check_columns(options, options.columns)


def _check_format(options: ReadOptions, choice: ColumnChoice) -> None:
    choice.check()
    column = choice.column
    if choice.format != "bytes" and options.where is not None and column in columns_of(options.where):
        raise OptionError(
            f"where compares the bytes of the {column}, and {column}Format={choice.format} gives the column another type. "
            f"Filter the rows that are read, or read {column}Format=bytes."
        )


def _check_schemas(options: ReadOptions) -> None:
    """Refuse options that say where schemas are, if no column needs them."""
    choices = (options.value, options.key)
    is_given = {
        "schemasPath": options.schemas_paths is not None,
        "schemasTopic": options.schemas_topic != _DEFAULTS["schemas_topic"],
    }
    for name in (name for name, given in is_given.items() if given):
        if not any(each.format == "registry" or each.names_registered for each in choices):
            raise OptionError(
                f"{name} says where the schemas of a registry are, and no column is read by them. Set valueFormat or "
                f"keyFormat to registry, or leave {name} out."
            )


def _check_columns(options: ReadOptions, columns: Sequence[str]) -> None:
    known = list(_RECORD_COLUMNS)
    if options.include_headers:
        known.append("headers")
    if options.include_metadata:
        known.append("_metadata")
    if options.mode == "PERMISSIVE":
        known.append(options.corrupt_record_column)
    option_of = {"headers": "includeHeaders", "_metadata": "includeMetadata"}
    for column in columns:
        if column not in known:
            option = option_of.get(column)
            hint = f" Set {option} to true to have it." if option else nearest_hint(column, known)
            raise OptionError(f"columns names an unknown column '{column}'.{hint}")


def _refuse_misplaced(given: Mapping[str, object], view: str, *, is_stream: bool) -> None:
    """Refuse options that this kind of read, or this view, does not have."""
    for name, value in given.items():
        option = find_option(name)
        if option.only == "stream" and not is_stream:
            raise OptionError(f"Option '{name}' is for streams, and this is a batch read. Leave it out.")
        if option.field == "ending" and is_stream:
            what = "offset" if name == "endingOffsets" else "timestamp"
            raise OptionError(f"ending {what} not valid in streaming queries. Leave {name} out.")
        if option.is_default(value):
            continue
        if option.only == "batch" and is_stream:
            raise OptionError(f"Option '{name}' is for batch reads, and this is a stream. Leave it out.")
        if option.views == (RECORDS,) and view != RECORDS:
            raise OptionError(f"{name} is for records, and view={view} has none. Leave it out.")
        if option.views and view not in option.views:
            raise OptionError(
                f"{name} is for view={' or '.join(option.views)}, found view={view}. Leave it out."
            )


def _named(raw: Mapping[str, object]) -> Iterator[tuple[str, str, object]]:
    for name, value in raw.items():
        option = find_option(name).name
        if value is not None:
            # Parsed here, where the name tells whether the list form, `paths`, was used.
            yield name, option, parse_paths(name.lower(), value) if option == "path" else value
