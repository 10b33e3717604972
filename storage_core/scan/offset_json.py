"""The JSON that Spark's Kafka options use for partitions, offsets and timestamps.

``{"topicA":[0,1]}`` names partitions, ``{"topicA":{"0":23,"1":-1}}`` gives one value each.
One value for all partitions of a topic, ``{"topicA":"earliest"}``, is accepted too. Python
callers may pass the same as a dict. The wording of the errors is that of Spark's source.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from storage_core.directory.partition_name import MAX_PARTITION
from storage_core.errors import OptionError
from storage_core.record.batch_header import MAX_OFFSET

__all__ = [
    "EARLIEST_OFFSET",
    "LATEST_OFFSET",
    "PartitionValues",
    "TopicPartition",
    "format_topic_partitions",
    "parse_assignment",
    "parse_partition_offsets",
    "parse_partition_timestamps",
]

TopicPartition = tuple[str, int]

LATEST_OFFSET = -1
EARLIEST_OFFSET = -2
_NAMED_OFFSETS = {"latest": LATEST_OFFSET, "earliest": EARLIEST_OFFSET}

_ASSIGNMENT_EXAMPLE = '{"topicA":[0,1],"topicB":[0,1]}'
_OFFSETS_EXAMPLE = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
_TIMESTAMPS_EXAMPLE = (
    '{"topicA": {"0": 123456789, "1": 123456789}, "topicB": {"0": 123456789, "1": 123456789}}'
)
_PARTITION_KEY = re.compile(r"[0-9]{1,10}")
_SHOWN_PARTITIONS = 50
_SHOWN_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class PartitionValues:
    """One number for each topic-partition, or for all partitions of a topic."""

    by_partition: Mapping[TopicPartition, int]
    by_topic: Mapping[str, int] = field(default_factory=dict)


class _UnexpectedValueError(Exception):
    """What the JSON holds is not what the option takes; becomes an OptionError with the example."""


def parse_assignment(option: str, value: object) -> dict[str, tuple[int, ...]]:
    """Parse the ``assign`` option: topics and their partitions.

    Raises:
        OptionError: It is no such JSON, or names no partition.
    """
    if isinstance(value, str) and not value.strip().startswith("{"):
        raise OptionError(
            f"No topicpartitions to assign as specified value for option '{option}' is '{value}'. "
            f"Expected e.g. {_ASSIGNMENT_EXAMPLE}"
        )
    try:
        assignment = {topic: _partition_list(partitions) for topic, partitions in _load_object(value).items()}
    except _UnexpectedValueError as error:
        raise _malformed(_ASSIGNMENT_EXAMPLE, option, value, error) from None
    if not any(assignment.values()):
        raise OptionError(
            f"No topicpartitions to assign as specified value for option '{option}' is '{_shown(value)}'. "
            f"Expected e.g. {_ASSIGNMENT_EXAMPLE}"
        )
    return assignment


def parse_partition_offsets(option: str, value: object) -> PartitionValues:
    """Parse offsets: numbers from 0, -1 for latest, -2 for earliest; by topic also by name.

    Raises:
        OptionError: It is no such JSON.
    """
    try:
        return _partition_values(value, _offset, _topic_offset)
    except _UnexpectedValueError as error:
        raise _malformed(_OFFSETS_EXAMPLE, option, value, error) from None


def parse_partition_timestamps(
    option: str, value: object, parse_time: Callable[[object], int]
) -> PartitionValues:
    """Parse timestamps, each by ``parse_time``.

    Raises:
        OptionError: It is no such JSON, or one of the times is none.
    """
    try:
        return _partition_values(value, parse_time, parse_time)
    except _UnexpectedValueError as error:
        raise _malformed(_TIMESTAMPS_EXAMPLE, option, value, error) from None


def format_topic_partitions(topic_partitions: object) -> str:
    """List topic-partitions for an error message, in order, and not without end."""
    names = [f"{topic}-{partition}" for topic, partition in sorted(topic_partitions)]  # type: ignore[call-overload]
    more = len(names) - _SHOWN_PARTITIONS
    if more > 0:
        names[_SHOWN_PARTITIONS:] = [f"and {more} more"]
    return f"[{', '.join(names)}]"


def _partition_values(
    value: object, parse_value: Callable[[object], int], parse_topic_value: Callable[[object], int]
) -> PartitionValues:
    by_partition: dict[TopicPartition, int] = {}
    by_topic: dict[str, int] = {}
    for topic, given in _load_object(value).items():
        if isinstance(given, Mapping):
            for key, number in given.items():
                by_partition[topic, _partition(key)] = parse_value(number)
        else:
            by_topic[topic] = parse_topic_value(given)
    return PartitionValues(by_partition, by_topic)


def _load_object(value: object) -> dict[str, object]:
    loaded = value
    if isinstance(value, str):
        try:
            loaded = json.loads(value, object_pairs_hook=_object_without_duplicates)
        except (ValueError, RecursionError) as error:
            raise _UnexpectedValueError(f"this is not JSON: {error}") from None
    if not isinstance(loaded, Mapping):
        raise _UnexpectedValueError("it is not an object of topics")
    if not all(isinstance(topic, str) for topic in loaded):
        raise _UnexpectedValueError("a topic is not a text")
    return dict(loaded)


def _object_without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    loaded = dict(pairs)
    if len(loaded) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _UnexpectedValueError(f"{twice!r} stands there twice")
    return loaded


def _partition_list(value: object) -> tuple[int, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, (list, tuple, set, frozenset, range)):
        raise _UnexpectedValueError("partitions are not a list")
    return tuple(sorted({_partition(item, text=False) for item in value}))


def _partition(value: object, *, text: bool = True) -> int:
    if text and isinstance(value, str) and _PARTITION_KEY.fullmatch(value.strip()):
        value = int(value)
    number = _integer(value)
    if not 0 <= number <= MAX_PARTITION:
        raise _UnexpectedValueError(f"{value!r} is no partition number")
    return number


def _offset(value: object) -> int:
    number = _integer(value)
    if not EARLIEST_OFFSET <= number <= MAX_OFFSET:
        raise _UnexpectedValueError(f"{number} is no offset: use -1 for latest, -2 for earliest")
    return number


def _topic_offset(value: object) -> int:
    named = _NAMED_OFFSETS.get(value.strip().lower()) if isinstance(value, str) else None
    if named is None:
        raise _UnexpectedValueError(f'a topic\'s value is {value!r}, not "earliest", "latest" or an object')
    return named


def _integer(value: object) -> int:
    if not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type]  # whatever is no integer raises
        except TypeError:
            pass
    raise _UnexpectedValueError(f"{value!r} is no whole number")


def _malformed(example: str, option: str, value: object, error: _UnexpectedValueError) -> OptionError:
    return OptionError(f"Expected e.g. {example}, got {_shown(value)} for {option}: {error}.")


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
