"""The values of single write options, from the texts that Spark passes; Kafka's keys become a `LogConfig`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from storage_core.checkpoint.partition_metadata import is_topic_id
from storage_core.errors import OptionError
from storage_core.log.topic_ids import check_topic_partition
from storage_core.log_config import LogConfig
from storage_core.scan.option_values import parse_count, path_of

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "parse_config",
    "parse_partitions",
    "parse_path",
    "parse_topic",
    "parse_topic_ids",
    "parse_transaction",
]

_COMPRESSION: Final = "compression.type"
_LEVEL: Final = "compression.level"
_BATCH_SIZE: Final = "batch.size"
_DEFAULT_BATCH_SIZE_BYTES: Final = 128 * 1024
# Kafka's producers say so, its topics say uncompressed.
_NO_COMPRESSION: Final = "none"
_CODECS_WITH_LEVEL: Final = ("gzip", "lz4", "zstd")
_MAX_VERSION: Final = 2**63 - 1
_MAX_PARTITIONS: Final = 2**31 - 1


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
    """The topic of all rows; None: each row says its own."""
    topic = given.get("topic")
    if topic is None:
        return None
    topic = topic.strip()
    check_topic_partition(topic, 0)
    return topic


def parse_partitions(given: Mapping[str, str]) -> int | None:
    """How many partitions a new topic gets; None: nobody has said it."""
    if "partitions" not in given:
        return None
    count = parse_count("partitions", given["partitions"], "partitions")
    if count > _MAX_PARTITIONS:
        raise OptionError(f"partitions is {count}. Use at most {_MAX_PARTITIONS}.")
    return count


def parse_config(given: Mapping[str, str], config: Mapping[str, str]) -> LogConfig:
    """The configuration of the logs: Kafka's keys, with the options of its producers put in."""
    values: dict[str, Any] = {_BATCH_SIZE: _DEFAULT_BATCH_SIZE_BYTES, **config}
    if _BATCH_SIZE in given:
        values[_BATCH_SIZE] = given[_BATCH_SIZE]
    if _COMPRESSION in given:
        codec = given[_COMPRESSION].strip().lower()
        values[_COMPRESSION] = "uncompressed" if codec == _NO_COMPRESSION else codec
    parsed = LogConfig.from_dict(values)
    if parsed.message_timestamp_type != "CreateTime":
        raise OptionError(
            f"message.timestamp.type is {parsed.message_timestamp_type!r}, but rows keep the timestamps that they come "
            "with. Leave it out; without the column timestamp, rows get the time at which the job began."
        )
    if _LEVEL not in given:
        return parsed
    codec = parsed.compression_type
    if codec not in _CODECS_WITH_LEVEL:
        raise OptionError(
            f"compression.level is {given[_LEVEL]!r}, but compression.type {codec!r} has no level. Use it with "
            f"{', '.join(_CODECS_WITH_LEVEL)}, or leave it out."
        )
    level_key = f"compression.{codec}.level"
    if values.get(level_key, given[_LEVEL]) != given[_LEVEL]:
        raise OptionError(
            f"compression.level is {given[_LEVEL]!r} and {level_key} is {values[level_key]!r}. Give one of them."
        )
    return LogConfig.from_dict({**values, level_key: given[_LEVEL]})


def parse_transaction(given: Mapping[str, str]) -> tuple[str | None, int | None]:
    """Who numbers its writes, and the number of this one; None if nobody does."""
    app_id, version = given.get("txnAppId"), given.get("txnVersion")
    if app_id is None and version is None:
        return None, None
    if app_id is None or version is None:
        missing = "txnAppId" if app_id is None else "txnVersion"
        raise OptionError(f"txnAppId and txnVersion go together, but {missing} is missing. Set both.")
    if not app_id.strip():
        raise OptionError("txnAppId is empty. Use a name that this application alone has.")
    text = version.strip()
    if not (text.isascii() and text.isdecimal()) or int(text[:20]) > _MAX_VERSION:
        raise OptionError(f"txnVersion is {version!r}. Use a whole number from 0 to {_MAX_VERSION}.")
    return app_id, int(text)


def parse_topic_ids(given: Mapping[str, str]) -> Mapping[str, str]:
    """The ids of new topics, by name."""
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
