"""Spark's options of a write: each is stated once, and all are parsed and checked together.

Kafka's keys for topics become a `LogConfig`. Unknown names are refused. A write ignores options of brokers and catalogs,
and those of a read: ``INSERT INTO`` a temporary view passes the options that the view was made with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

from spark_segmentlog.options import is_for_a_broker_or_catalog
from storage_core.checkpoint.partition_files import is_topic_id
from storage_core.commit import JobSpec
from storage_core.config import CONFIG_KEYS, INT_MAX, INTERNAL_KEYS, LONG_MAX
from storage_core.directory import check_topic_partition
from storage_core.errors import OptionError
from storage_core.log_config import LogConfig
from storage_core.options import READ_OPTIONS
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
from storage_core.options.paths import path_to_write
from storage_core.options.values import (
    BATCH_SIZE,
    BATCH_SIZE_DEFAULT,
    BOOLEAN,
    INTERVAL,
    choice_kind,
    code_list,
    parse_choice,
    parse_count,
    parse_paths,
    value_kind,
)

PartitionerName = Literal["default", "roundRobin", "random"]
# Spark passes them to a sink.
_OF_STREAMING_WRITES: Final = frozenset({"checkpointlocation", "queryname"})
_COMPRESSION: Final = "compression.type"
_LEVEL: Final = "compression.level"
_TIMESTAMP_LIMITS: Final = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
_BATCH_SIZE: Final = "batch.size"
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


def _text_kind(text: str) -> Kind:
    return value_kind(text, lambda _option, value: value)


def _flag_of(usual: str, other: str) -> Kind:
    """Return the kind of an option of two words: true for the usual one."""
    return value_kind(
        code_list((usual, other)), lambda option, value: parse_choice(option, value, (usual, other)) == usual
    )


def _parse_path(_option: str, paths: tuple[str, ...]) -> str:
    if len(paths) > 1:
        raise OptionError(
            f"A write goes to one log directory, but path names {len(paths)}: {', '.join(paths)}."
        )
    if not paths:
        raise OptionError(
            'No path is given. Name a log directory: .save("/path") or .option("path", "/path"); in SQL '
            "INSERT INTO t WITH (path = '/path') ..., or INSERT INTO a temporary view that was made with "
            "OPTIONS (path '/path') (Spark does not pass the options of CREATE TABLE to writes)."
        )
    return path_to_write(paths[0])


def _parse_topic(_option: str, value: str) -> str:
    topic = value.strip()
    check_topic_partition(topic, 0)
    return topic


def _parse_partitions(option: str, value: str) -> int:
    count = parse_count(option, value)
    if count > INT_MAX:
        raise OptionError(f"{option} is {count}. Use at most {INT_MAX}.")
    return count


def _parse_app_id(option: str, value: str) -> str:
    if not value.strip():
        raise OptionError(f"{option} is empty. Use a name that this application alone has.")
    return value


def _parse_txn_version(option: str, value: str) -> int:
    text = value.strip()
    if not (text.isascii() and text.isdecimal()) or int(text[:20]) > LONG_MAX:
        raise OptionError(f"{option} is {value!r}. Use a whole number from 0 to {LONG_MAX}.")
    return int(text)


def _parse_topic_ids(option: str, value: str) -> Mapping[str, str]:
    try:
        loaded: object = json.loads(value)
    except (ValueError, RecursionError):
        loaded = None
    if not isinstance(loaded, dict) or not all(isinstance(each, str) for each in loaded.values()):
        raise OptionError(
            f'{option} is {value!r}. Expected JSON as {{"topicA":"<22 characters>"}}, with the ids that '
            "kafka-topics.sh --describe shows."
        )
    for topic, topic_id in loaded.items():
        if not is_topic_id(topic_id):
            raise OptionError(
                f"{option} gives topic {topic!r} the id {topic_id!r}. Expected the 22 characters that "
                "kafka-topics.sh --describe shows as TopicId."
            )
    return loaded


# Each option has a line of values and its text, so that options compare by eye.
# fmt: off
WRITE_OPTIONS: Final[tuple[Option, ...]] = (
    Option("path", "path", value_kind("path", _parse_path), aliases=("paths",),
           doc="Required. The log directory; it is created if it does not exist."),
    Option("topic", "topic", value_kind("topic", _parse_topic),
           doc="The topic of every row, whatever the column `topic` says."),
    Option("partitions", "partitions", value_kind("count", _parse_partitions), "1",
           doc="How many partitions a new topic gets; an existing topic keeps its own. With `brokerDirectory`: how "
               "many the topic has in the cluster, if some are on other disks."),
    Option("partitioner", "partitioner", choice_kind(PartitionerName), "default",
           doc="Where rows go if their column `partition` is null or missing. `default`: by the hash of the key, as "
               "in Kafka's Java producer; without a key, to one partition until a batch is full."),
    Option("compression.type", "", _text_kind("`none`, `gzip`, `snappy`, `lz4` or `zstd`"), "none", aliases=("kafka.compression.type",),
           doc="How batches are compressed; also Kafka's words for topics, `uncompressed` and `producer`."),
    Option("compression.level", "", _text_kind("number"),
           doc="The level of that codec."),
    Option("batch.size", "", _text_kind("bytes"), "131072",
           doc="The most that a batch takes before it is compressed."),
    Option("maxDecompressedBatchBytes", "max_decompressed_batch_bytes", BATCH_SIZE, BATCH_SIZE_DEFAULT,
           doc="The largest batch, before it is compressed, that the readers of these rows take. A row that makes a larger "
               "one is refused: raise this, `max.message.bytes`, and the option of the same name of each read."),
    Option("flush", "flush", _flag_of("commit", "none"), "commit",
           doc="Whether everything is on disk before the rows become visible. `none` leaves it to the system: quicker, and "
               "the rows are visible at once, but a power cut may lose some of them. The directory is then left as by a "
               "running broker: the next broker or program that opens it, other than such a job, recovers its logs first."),
    Option("txnAppId", "txn_app_id", value_kind("text", _parse_app_id),
           doc="With `txnVersion`: the application that writes. A job does nothing if its version is not above the "
               "last one that this application has committed here."),
    Option("txnVersion", "txn_version", value_kind("number", _parse_txn_version),
           doc="With `txnAppId`: grows with each job."),
    Option("txnRetention", "txn_retention_ms", INTERVAL, "30 days",
           doc="How long at least the directory remembers the last `txnVersion` of an application, or the last batch "
               "of a stream. A job or batch that is repeated later is written again."),
    Option("repeatedBatch", "compares_rows", _flag_of("compare", "skip"), "compare", only="stream",
           doc="What a stream does with its last batch if Spark repeats it after a failure. `compare` compares its "
               "rows with those that were written, in any order, and fails if they differ. `skip` takes it as "
               "written, for queries whose rows differ in each run, as with `uuid()`."),
    Option("topicIds", "topic_ids", value_kind("JSON", _parse_topic_ids),
           doc='Ids of new topics, as a cluster knows them: `{"topicA":"<22 characters>"}`.'),
    Option("brokerDirectory", "broker_directory", BOOLEAN, "false",
           doc="Whether to write into a directory that belongs to a (stopped) broker."),
    Option("preserveOffsets", "preserve_offsets", BOOLEAN, "false",
           doc="Whether records get the offsets of the column `offset`, which must be above the existing ones."),
    Option("offsetsFrom", "offsets_from", _text_kind("paths"),
           doc="With `preserveOffsets`: the directory that the rows were read from; the start and end of its logs are "
               "restored, too."),
)
# fmt: on
_BY_KEY: Final = by_key(WRITE_OPTIONS)
_OF_JOB: Final = {option.field for option in WRITE_OPTIONS} & {each.name for each in fields(JobSpec)}
_DEFAULTS: Final = default_values(WRITE_OPTIONS) | {"topic_ids": {}}
_CONFIG_BY_KEY: Final = {option_key(key.name): key.name for key in (*CONFIG_KEYS, *INTERNAL_KEYS)}
_READ_BY_KEY: Final = {key: option.name for key, option in by_key(READ_OPTIONS).items()}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Choice of what to write, and how, as `WRITE_OPTIONS` fill it; made by `write_options`.

    Attributes:
        path: As given, or the path of a ``file:`` URI.
        job: The job, without what its log directory and its rows decide.
        config: The configuration of each topic that is written, ``batch.size`` included.
        timestamp_limits: The limits of timestamps that were given, and no others; None if none was.
        topic: The topic of all rows; None if each row names its own.
        partitions: How many partitions a new topic gets.
        makes_all_partitions: Whether it gets all of them, or only those that are restored.
        offsets_from: The paths of ``offsetsFrom``, as given.
        max_decompressed_batch_bytes: The largest batch, before compression, that readers of these rows accept.
    """

    path: str
    job: JobSpec
    config: LogConfig
    timestamp_limits: LogConfig | None
    topic: str | None
    partitions: int
    makes_all_partitions: bool
    partitioner: PartitionerName
    offsets_from: str | None
    max_decompressed_batch_bytes: int


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse and check the options of a batch write. Nothing is opened or looked up.

    Raises:
        OptionError: A name is unknown, a value is wrong, or options contradict each other.
    """
    parsed = _parse(options)
    if not parsed.job.compares_rows:
        raise OptionError(
            "repeatedBatch goes with a stream, whose last batch Spark may repeat. Leave it out."
        )
    return parsed


def stream_write_options(options: Mapping[str, str]) -> tuple[WriteOptions, str | None]:
    """Parse and check the options of a streaming write; raises as `write_options` does.

    Returns:
        What to write, and the name that the user gives to the query: ``txnAppId``, without a version, because each
        micro-batch has its number.
    """
    given = {option_key(name) for name in options}
    for name, why in (
        ("txnVersion", "the number of each micro-batch is its version"),
        ("offsetsFrom", "a stream has no rows of a whole directory"),
    ):
        if option_key(name) in given:
            raise OptionError(f"{name} does not go with a stream: {why}. Leave it out.")
    if not given & {"path", "paths"}:
        raise OptionError(
            'No path is given. Name a log directory: .start("/path"), or .option("path", "/path") before .toTable("name"), '
            "also for a table that exists, because Spark does not pass the options of a table to a stream."
        )
    own = {name: value for name, value in options.items() if name.lower() not in _OF_STREAMING_WRITES}
    parsed = _parse({**own, "txnVersion": "0"} if "txnappid" in given else own)
    job = replace(parsed.job, txn_app_id=None, txn_version=None)
    return replace(parsed, job=job), parsed.job.txn_app_id


def _parse(options: Mapping[str, str]) -> WriteOptions:
    for name in options:
        if name.lower() in _REJECTED_BY_WRITES:
            raise OptionError(_REJECTED_BY_WRITES[name.lower()])
    given, config = _split_catalog_options(options)
    values = _DEFAULTS | given_values(WRITE_OPTIONS, {"path": (), **given})
    if values["offsets_from"] is not None and not values["preserve_offsets"]:
        raise OptionError("offsetsFrom goes with preserveOffsets=true. Set both, or neither.")
    for name, other in (("txnAppId", "txnVersion"), ("txnVersion", "txnAppId")):
        if name in given and other not in given:
            raise OptionError(f"txnAppId and txnVersion go together, but {other} is missing. Set both.")
    log_config = _parse_config(given, config)
    of_job = {name: values.pop(name) for name in _OF_JOB}
    return WriteOptions(
        **values,
        job=JobSpec(config=log_config, **of_job),
        makes_all_partitions=values["offsets_from"] is None or "partitions" in given,
        config=log_config,
        timestamp_limits=_timestamp_limits(config),
    )


def _parse_config(given: Mapping[str, str], config: Mapping[str, str]) -> LogConfig:
    """Make the configuration of the logs from Kafka's topic-level keys and options named as those of its producers."""
    values: dict[str, Any] = {_BATCH_SIZE: _BY_KEY["batchsize"].default, **config}
    if _BATCH_SIZE in given:
        values[_BATCH_SIZE] = given[_BATCH_SIZE]
    if _COMPRESSION in given:
        values[_COMPRESSION] = given[_COMPRESSION].strip().lower()
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


def ignored_write_options(options: Mapping[str, str], *, is_stream: bool = False) -> tuple[str, ...]:
    """Return the names, never values, of the options that are accepted and have no effect."""
    names = [name for name in sorted(map(str.lower, options)) if _is_ignored_by_writes(name)]
    if is_stream:
        names = [name for name in names if name not in _OF_STREAMING_WRITES]
    return tuple(_READ_BY_KEY.get(option_key(name), name) for name in names)


def _is_ignored_by_writes(name: str) -> bool:
    key = option_key(name)
    if key in _BY_KEY or key in _CONFIG_BY_KEY:
        return False
    return is_for_a_broker_or_catalog(name.lower()) or key in _READ_BY_KEY


def _split_catalog_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split what Spark passes; leave out what is ignored.

    Returns:
        This source's own options, and Kafka's keys for topics, each by documented name.
    """
    own: list[tuple[str, str, object]] = []
    config: list[tuple[str, str, object]] = []
    for name, value in options.items():
        if _is_ignored_by_writes(name):
            continue
        key = option_key(name)
        if key in _BY_KEY:
            known = _BY_KEY[key].name
            own.append((name, known, parse_paths(name.lower(), value) if known == "path" else value))
        elif key in _CONFIG_BY_KEY:
            config.append((name, _CONFIG_BY_KEY[key], value))
        else:
            raise OptionError(f"Unknown option '{name}'.{nearest_hint(name, _known_names())}")
    return refuse_conflicting_names(own), refuse_conflicting_names(config)


def _known_names() -> list[str]:
    own = [option.name for option in WRITE_OPTIONS]
    return [*own, *(key.name for key in CONFIG_KEYS if key.name not in own)]
