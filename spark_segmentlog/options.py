"""Spark's options as the values that a read and a write need, parsed and checked by pure functions.

Spark passes names in lower case and values as text, and adds options of its own; scripts keep options
that they set for Spark's Kafka source and sink. Options that select and bound a read are passed to
`parse_read_options`, Kafka's keys for topics become a `LogConfig`, and unknown names are refused. Options that only a
broker, a stream or a catalog could use are ignored. Options that would change the meaning of the read are refused in
the words of Spark's Kafka source. A write ignores those of a read, too: ``INSERT INTO`` a temporary view passes the
options that the view was made with.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from storage_core.checkpoint.partition_files import is_topic_id
from storage_core.config import CONFIG_KEYS, DEFAULT_TXN_RETENTION_MS, INT_MAX, INTERNAL_KEYS, LONG_MAX
from storage_core.errors import OptionError
from storage_core.log_config import LogConfig
from storage_core.options import (
    RECORDS,
    VIEWS,
    ReadOptions,
    StreamOptions,
    parse_read_options,
    parse_stream_options,
)
from storage_core.options.option import (
    READ_OPTIONS,
    TRIGGER_OPTIONS,
    WRITE_OPTIONS,
    names_by_key,
    nearest_hint,
    option_key,
)
from storage_core.options.values import (
    DEFAULT_MAX_DECOMPRESSED_BATCH_BYTES,
    parse_boolean,
    parse_choice,
    parse_count,
    parse_interval_ms,
    parse_max_batch_bytes,
    parse_paths,
    path_of,
)
from storage_core.options.where import parse_where

if TYPE_CHECKING:
    from collections.abc import Mapping


# Names in lower case, as Spark delivers them, with the spelling that users know.
_IGNORED: Final = {
    name.lower(): name
    for name in (
        # for a consumer of a broker, as all that begin with "kafka."
        "groupIdPrefix",
        "kafkaConsumer.pollTimeoutMs",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        # for streams; Spark's Kafka source ignores them in batch queries, too
        "checkpointLocation",
        *TRIGGER_OPTIONS,
        # added by CREATE TABLE, as all that begin with "option."
        "owner",
        "provider",
        "location",
    )
}
_TRIGGER_NAMES: Final = frozenset(map(str.lower, TRIGGER_OPTIONS))
_TWO_ZONES: Final = (dt.UTC, dt.timezone(dt.timedelta(hours=1)))
_IGNORED_PREFIXES: Final = ("kafka.", "option.")
# The only consumer option that changes what is read.
_ISOLATION_LEVEL: Final = "kafka.isolation.level"
# Both are given if, and only if, Spark asks for the schema of a CREATE TABLE.
_CATALOG: Final = frozenset({"owner", "provider"})
_DESERIALIZER: Final = (
    "Kafka option '{kind}.deserializer' is not supported as {kind}s are deserialized as byte arrays with "
    "ByteArrayDeserializer. Use DataFrame operations to explicitly deserialize the {kind}s."
)
_REJECTED_BY_READS: Final = {
    "kafka.auto.offset.reset": "Kafka option 'auto.offset.reset' is not supported. Instead set the source "
    "option 'startingOffsets' to 'earliest' or to offsets per partition to specify where to start.",
    "kafka.key.deserializer": _DESERIALIZER.format(kind="key"),
    "kafka.value.deserializer": _DESERIALIZER.format(kind="value"),
    "kafka.enable.auto.commit": "Kafka option 'enable.auto.commit' is not supported. Leave it out: "
    "no offsets are committed.",
    "kafka.interceptor.classes": "Kafka option 'interceptor.classes' is not supported. Leave it out.",
}

PartitionerName = Literal["default", "roundRobin", "random"]
# Spark passes them to a sink.
_OF_STREAMING_WRITES: Final = frozenset({"checkpointlocation", "queryname"})
_COMPRESSION: Final = "compression.type"
_LEVEL: Final = "compression.level"
_TIMESTAMP_LIMITS: Final = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
_BATCH_SIZE: Final = "batch.size"
_DEFAULT_BATCH_SIZE_BYTES: Final = 128 * 1024
# Kafka's producers say none, its topics say uncompressed.
_NO_COMPRESSION: Final = "none"
_CODECS_WITH_LEVEL: Final = ("gzip", "lz4", "zstd")
_SERIALIZER: Final = (
    "Kafka option '{kind}.serializer' is not supported as {kind}s are serialized with ByteArraySerializer. "
    "Leave it out: columns of bytes and of text are taken as they are."
)
_REJECTED_BY_WRITES: Final = {
    "kafka.key.serializer": _SERIALIZER.format(kind="key"),
    "kafka.value.serializer": _SERIALIZER.format(kind="value"),
    "kafka.partitioner.class": "Kafka option 'partitioner.class' is not supported. Set the option 'partitioner' to "
    "default, roundRobin or random, or give each row its partition in the column 'partition'.",
}

_OPTIONS_BY_KEY: Final = names_by_key(WRITE_OPTIONS)
_CONFIG_BY_KEY: Final = {option_key(key.name): key.name for key in (*CONFIG_KEYS, *INTERNAL_KEYS)}
_READ_BY_KEY: Final = names_by_key(READ_OPTIONS)


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Check all options of a batch read.

    Raises:
        OptionError: Naming the option, what was expected and what was found.
    """
    return parse_read_options(
        {name: value for name, value in _checked(options).items() if not _is_ignored_by_reads(name)}
    )


def stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Check all options of a streaming read; raises as `read_options` does."""
    return parse_stream_options(
        {name: value for name, value in _checked(options).items() if not _is_ignored_by_streams(name)}
    )


def _checked(options: Mapping[str, str]) -> dict[str, str]:
    """The options by their names in lower case, without those that only CREATE TABLE adds."""
    given = {name.lower(): value for name, value in options.items()}
    for name, message in _REJECTED_BY_READS.items():
        if name in given:
            raise OptionError(message)
    return _table_options(given) if _CATALOG.issubset(given) else given


def read_options_of_any_query(options: Mapping[str, str]) -> ReadOptions:
    """Check the options of a read that may be a batch or a stream.

    Raises:
        OptionError: Neither would accept them.
    """
    try:
        return read_options(options)
    except OptionError as error:
        if any(name.lower().startswith("ending") for name in options):
            raise
        # The batch's error may be about its start, which a stream accepts.
        try:
            return stream_options(options).read
        except OptionError as stream_error:
            raise (error if "view" in map(str.lower, options) else stream_error) from None


def read_notices(options: Mapping[str, str], *, is_stream: bool = False) -> list[str]:
    """What the user should know about options that are accepted."""
    notices = []
    if ignored := ignored_options(options, is_stream=is_stream):
        how, whose = (
            ("", "brokers or catalogs") if is_stream else (", in one batch", "brokers, streams or catalogs")
        )
        notices.append(f"segmentlog reads files{how}: ignored {', '.join(ignored)}, which concern {whose}.")
    if has_times_without_zone(options):
        notices.append(
            "where compares with a time that names no zone: it is read as UTC, whatever spark.sql.session.timeZone "
            "is. Name the zone in the text (2026-01-01T00:00:00Z), or set the option timeZone."
        )
    return notices


def has_times_without_zone(options: Mapping[str, str]) -> bool:
    """Whether the option ``where`` compares with a time that neither it nor ``timeZone`` puts into a zone.

    Spark reads such times in the session's zone, which a source is not told before its tasks run.
    """
    given = {name.lower(): value for name, value in options.items()}
    if "where" not in given or "timezone" in given:
        return False
    # At an instant that is the same for both, a difference comes from the zone.
    view = given.get("view", RECORDS).lower()
    here, elsewhere = (
        parse_where(given["where"], zone, 0, VIEWS.get(view, {}), has_content=view == RECORDS)
        for zone in _TWO_ZONES
    )
    return here != elsewhere


def ignored_options(options: Mapping[str, str], *, is_stream: bool = False) -> tuple[str, ...]:
    """Names, never values, of the options that are accepted and have no effect."""
    is_ignored = _is_ignored_by_streams if is_stream else _is_ignored_by_reads
    return tuple(_IGNORED.get(name, name) for name in sorted(map(str.lower, options)) if is_ignored(name))


def _is_for_a_broker_or_catalog(name: str) -> bool:
    """Whether only a broker, a stream or a catalog could use an option, by its name in lower case."""
    return name in _IGNORED or name.startswith(_IGNORED_PREFIXES)


def _is_ignored_by_reads(name: str) -> bool:
    return name != _ISOLATION_LEVEL and _is_for_a_broker_or_catalog(name)


def _is_ignored_by_streams(name: str) -> bool:
    return _is_ignored_by_reads(name) and name not in _TRIGGER_NAMES


def _table_options(given: Mapping[str, str]) -> dict[str, str]:
    """The OPTIONS (...) of a CREATE TABLE, without TBLPROPERTIES and COMMENT.

    Spark mixes them, but repeats each of OPTIONS as ``option.<name>``.
    """
    options = {name: value for name, value in given.items() if f"option.{name}" in given}
    # A table may be created without a path: Spark drops it anyway, and each query names its own.
    return {"path": given.get("path", "."), **options}


def parse_path(given: Mapping[str, str]) -> str:
    """The log directory."""
    path = given.get("path", "")
    if not path:
        raise OptionError(
            'No path is given. Name a log directory: .save("/path") or .option("path", "/path"); in SQL '
            "INSERT INTO t WITH (path = '/path') ..., or INSERT INTO a temporary view that was made with "
            "OPTIONS (path '/path') (Spark does not pass the options of CREATE TABLE to writes)."
        )
    return path_of(path)


def parse_topic(given: Mapping[str, str]) -> str | None:
    """The topic of all rows; None if each row names its own."""
    topic = given.get("topic")
    if topic is None:
        return None
    # Imported here, because the process in which Spark checks a read's options should start fast.
    from storage_core.directory import check_topic_partition  # noqa: PLC0415

    topic = topic.strip()
    check_topic_partition(topic, 0)
    return topic


def parse_partitions(given: Mapping[str, str]) -> int | None:
    """How many partitions a new topic gets; None if the option is not given."""
    if "partitions" not in given:
        return None
    count = parse_count("partitions", given["partitions"])
    if count > INT_MAX:
        raise OptionError(f"partitions is {count}. Use at most {INT_MAX}.")
    return count


def parse_config(given: Mapping[str, str], config: Mapping[str, str]) -> LogConfig:
    """The configuration of the logs: Kafka's topic-level keys, and options named as those of its producers."""
    values: dict[str, Any] = {_BATCH_SIZE: _DEFAULT_BATCH_SIZE_BYTES, **config}
    if _BATCH_SIZE in given:
        values[_BATCH_SIZE] = given[_BATCH_SIZE]
    if _COMPRESSION in given:
        codec = given[_COMPRESSION].strip().lower()
        values[_COMPRESSION] = "uncompressed" if codec == _NO_COMPRESSION else codec
    parsed = LogConfig.from_dict(values)
    if parsed.message_timestamp_type != "CreateTime":
        raise OptionError(
            f"message.timestamp.type is {parsed.message_timestamp_type!r}, but rows keep their timestamps. "
            "Leave it out; without the column timestamp, rows get the time at which the job began."
        )
    if _LEVEL not in given:
        return parsed
    codec = parsed.compression_type
    if codec not in _CODECS_WITH_LEVEL:
        found = (
            f"compression.type {given[_COMPRESSION]!r} has no level"
            if _COMPRESSION in given
            else "no codec is given"
        )
        raise OptionError(
            f"compression.level is {given[_LEVEL]!r}, but {found}. Set compression.type to "
            f"{', '.join(_CODECS_WITH_LEVEL[:-1])} or {_CODECS_WITH_LEVEL[-1]}, or leave the level out."
        )
    level_key = f"compression.{codec}.level"
    if values.get(level_key, given[_LEVEL]) != given[_LEVEL]:
        raise OptionError(
            f"compression.level is {given[_LEVEL]!r} and {level_key} is {values[level_key]!r}. Give one of them."
        )
    return LogConfig.from_dict({**values, level_key: given[_LEVEL]})


def _timestamp_limits(config: Mapping[str, str]) -> LogConfig | None:
    """Return the limits of timestamps; None if no option gives one.

    Kafka's default for the future does not count: rows of a test or a plan may lie there.
    """
    given = {name: value for name, value in config.items() if name in _TIMESTAMP_LIMITS}
    return LogConfig.from_dict({_TIMESTAMP_LIMITS[1]: LONG_MAX, **given}) if given else None


def parse_transaction(given: Mapping[str, str]) -> tuple[str | None, int | None]:
    """The application that numbers its writes, and the number of this one; None if they are not given."""
    app_id, version = given.get("txnAppId"), given.get("txnVersion")
    if app_id is None and version is None:
        return None, None
    if app_id is None or version is None:
        missing = "txnAppId" if app_id is None else "txnVersion"
        raise OptionError(f"txnAppId and txnVersion go together, but {missing} is missing. Set both.")
    if not app_id.strip():
        raise OptionError("txnAppId is empty. Use a name that this application alone has.")
    text = version.strip()
    if not (text.isascii() and text.isdecimal()) or int(text[:20]) > LONG_MAX:
        raise OptionError(f"txnVersion is {version!r}. Use a whole number from 0 to {LONG_MAX}.")
    return app_id, int(text)


def parse_topic_ids(given: Mapping[str, str]) -> Mapping[str, str]:
    """Ids of new topics, by name."""
    if "topicIds" not in given:
        return {}
    value = given["topicIds"]
    try:
        loaded: object = json.loads(value)
    except (ValueError, RecursionError):
        loaded = None
    if not isinstance(loaded, dict) or not all(isinstance(each, str) for each in loaded.values()):
        raise OptionError(
            f'topicIds is {value!r}. Expected JSON as {{"topicA":"<22 characters>"}}, with the ids that '
            "kafka-topics.sh --describe shows."
        )
    for topic, topic_id in loaded.items():
        if not is_topic_id(topic_id):
            raise OptionError(
                f"topicIds gives topic {topic!r} the id {topic_id!r}. Expected the 22 characters that "
                "kafka-topics.sh --describe shows as TopicId."
            )
    return loaded


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What to write, and how; see ``WRITE_OPTIONS`` for the meaning of each option.

    Attributes:
        path: As given, or the path of a ``file:`` URI.
        config: The configuration of each topic that is written, ``batch.size`` included.
        timestamp_limits: The limits of timestamps that were given, and no others; None if none was.
        flush: Whether everything is on disk before the rows become visible.
        compares_rows: Whether the rows of a repeated micro-batch must be those that were written.
        offsets_from: The paths of ``offsetsFrom``, as given.
        max_decompressed_batch_bytes: The largest batch, before compression, that readers of these rows accept.
    """

    path: str
    config: LogConfig
    timestamp_limits: LogConfig | None = None
    topic: str | None = None
    partitions: int | None = None
    partitioner: PartitionerName = "default"
    flush: bool = True
    txn_app_id: str | None = None
    txn_version: int | None = None
    txn_retention_ms: int = DEFAULT_TXN_RETENTION_MS
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    broker_directory: bool = False
    preserve_offsets: bool = False
    compares_rows: bool = True
    offsets_from: str | None = None
    max_decompressed_batch_bytes: int = DEFAULT_MAX_DECOMPRESSED_BATCH_BYTES

    @property
    def partition_count(self) -> int:
        """How many partitions a new topic gets."""
        return self.partitions or 1


def stream_write_options(options: Mapping[str, str]) -> tuple[WriteOptions, str | None]:
    """Parse and check the options of a streaming write; raises as `write_options` does.

    Returns:
        What to write, and the name that the user gives to the query: ``txnAppId``, without a version, because each
        micro-batch has its number.
    """
    given = {option_key(name): name for name in options if name.lower() not in _OF_STREAMING_WRITES}
    for name, why in (
        ("txnVersion", "the number of each micro-batch is its version"),
        ("offsetsFrom", "a stream has no rows of a whole directory"),
    ):
        if option_key(name) in given:
            raise OptionError(f"{name} does not go with a stream: {why}. Leave it out.")
    if not given.keys() & {"path", "paths"}:
        raise OptionError(
            'No path is given. Name a log directory: .start("/path"), or .option("path", "/path") before .toTable("name"), '
            "also for a table that exists, because Spark does not pass the options of a table to a stream."
        )
    own = {key: options[given.pop(key)] for key in ("txnappid", "repeatedbatch") if key in given}
    app_id = own.get("txnappid")
    if app_id is not None:
        parse_transaction({"txnAppId": app_id, "txnVersion": "0"})
    repeated = parse_choice("repeatedBatch", own.get("repeatedbatch", "compare"), ("compare", "skip"))
    batch = write_options({name: options[name] for name in given.values()})
    return replace(batch, compares_rows=repeated == "compare"), app_id


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse and check the options of a batch write. Nothing is opened or looked up.

    Raises:
        OptionError: A name is unknown, a value is wrong, or options contradict each other.
    """
    for name in options:
        if name.lower() in _REJECTED_BY_WRITES:
            raise OptionError(_REJECTED_BY_WRITES[name.lower()])
    given, config = _sorted_out(options)
    preserve_offsets = parse_boolean("preserveOffsets", given.get("preserveOffsets", False))
    offsets_from = given.get("offsetsFrom")
    if given.get("repeatedBatch", "compare") != "compare":
        raise OptionError(
            "repeatedBatch goes with a stream, whose last batch Spark may repeat. Leave it out."
        )
    if offsets_from is not None and not preserve_offsets:
        raise OptionError("offsetsFrom goes with preserveOffsets=true. Set both, or neither.")
    txn_app_id, txn_version = parse_transaction(given)
    return WriteOptions(
        path=parse_path(given),
        config=parse_config(given, config),
        timestamp_limits=_timestamp_limits(config),
        topic=parse_topic(given),
        partitions=parse_partitions(given),
        partitioner=cast(
            "PartitionerName",
            parse_choice(
                "partitioner", given.get("partitioner", "default"), ("default", "roundRobin", "random")
            ),
        ),
        flush=parse_choice("flush", given.get("flush", "commit"), ("commit", "none")) == "commit",
        txn_app_id=txn_app_id,
        txn_version=txn_version,
        txn_retention_ms=parse_interval_ms("txnRetention", given.get("txnRetention", "30 days")),
        topic_ids=parse_topic_ids(given),
        broker_directory=parse_boolean("brokerDirectory", given.get("brokerDirectory", False)),
        preserve_offsets=preserve_offsets,
        offsets_from=offsets_from,
        max_decompressed_batch_bytes=parse_max_batch_bytes(given.get("maxDecompressedBatchBytes")),
    )


def ignored_write_options(options: Mapping[str, str], *, is_stream: bool = False) -> tuple[str, ...]:
    """Names, never values, of the options that are accepted and have no effect."""
    names = [name for name in sorted(map(str.lower, options)) if _is_ignored_by_writes(name)]
    if is_stream:
        names = [name for name in names if name not in _OF_STREAMING_WRITES]
    return tuple(_READ_BY_KEY.get(option_key(name), name) for name in names)


def _is_ignored_by_writes(name: str) -> bool:
    key = option_key(name)
    if key in _OPTIONS_BY_KEY or key in _CONFIG_BY_KEY:
        return False
    return _is_for_a_broker_or_catalog(name.lower()) or key in _READ_BY_KEY


def _sorted_out(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """This source's own options, and Kafka's keys, by documented name."""
    given: dict[str, str] = {}
    config: dict[str, str] = {}
    for name, value in options.items():
        if _is_ignored_by_writes(name):
            continue
        key = option_key(name)
        if key in _OPTIONS_BY_KEY:
            known, target = _OPTIONS_BY_KEY[key], given
        elif key in _CONFIG_BY_KEY:
            known, target = _CONFIG_BY_KEY[key], config
        else:
            raise OptionError(f"Unknown option '{name}'.{nearest_hint(name, _known_names())}")
        text = _only_path(name, value) if known == "path" else value
        if target.setdefault(known, text).strip() != text.strip():
            raise OptionError(
                f"'{name}' and '{known}' are the same option, but they are given as {target[known]!r} and {text!r}. "
                "Give it once."
            )
    return given, config


def _known_names() -> list[str]:
    own = [spec.name for spec in WRITE_OPTIONS]
    return [*own, *(key.name for key in CONFIG_KEYS if key.name not in own)]


def _only_path(name: str, value: str) -> str:
    paths = parse_paths(name.lower(), value)
    if len(paths) > 1:
        raise OptionError(
            f"A write goes to one log directory, but {name} names {len(paths)}: {', '.join(paths)}."
        )
    return paths[0] if paths else ""
