"""Bounds of a read: the six offset and timestamp options of Spark's Kafka source.

All that can be checked without the logs is checked here, in Spark's wording; what is wrong is an `OptionError`.

The JSON is that of Spark's options: ``{"topicA":[0,1]}`` names partitions, ``{"topicA":{"0":23,"1":-1}}``
gives one value each. One value for all partitions of a topic, ``{"topicA":"earliest"}``, is accepted too,
and Python callers may pass dicts.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from storage_core.config import INT_MAX, LONG_MAX
from storage_core.errors import OptionError, first_of
from storage_core.options.values import as_integer, parse_time

if TYPE_CHECKING:
    from collections.abc import Iterator


_log = logging.getLogger(__name__)
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
# The seconds of the years 2001 to 2286, which are milliseconds of early 1970.
_SECONDS = range(10**9, 10**10)


@dataclass(frozen=True, slots=True)
class EarliestBound:
    """Each partition's log start offset."""


@dataclass(frozen=True, slots=True)
class LatestBound:
    """Each partition's end, as ``endingAt`` and ``isolationLevel`` define it."""


@dataclass(frozen=True, slots=True)
class OffsetsBound:
    """One offset for each partition, or for all partitions of a topic; -1 is latest, -2 is earliest."""

    by_partition: Mapping[TopicPartition, int]
    by_topic: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TimestampBound:
    """In each partition the first offset whose record's timestamp is at or after this one.

    Attributes:
        is_relative: Whether the user gave it relative to the present.
    """

    timestamp_ms: int
    is_relative: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class TimestampsBound:
    """One `TimestampBound` for each partition, or for all partitions of a topic, in milliseconds.

    As for a broker, which Spark's Kafka source asks, -1 is the latest offset, and -2 the earliest. ``is_relative`` says
    whether the user gave any of them relative to the present.
    """

    by_partition: Mapping[TopicPartition, int]
    by_topic: Mapping[str, int] = field(default_factory=dict)
    is_relative: bool = field(default=False, compare=False)


_BoundByPartition = OffsetsBound | TimestampsBound
Bound = EarliestBound | LatestBound | OffsetsBound | TimestampBound | TimestampsBound


class _UnexpectedValueError(Exception):
    """The JSON does not fit the option; becomes an OptionError with an example."""


def parse_assignment(option: str, value: object) -> dict[str, tuple[int, ...]]:
    """Parse the ``assign`` option: topics and their partitions."""
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


def parse_offsets(option: str, value: object) -> Bound:
    """Parse ``earliest``, ``latest``, or offsets: numbers from 0, -1 for latest, -2 for earliest; for whole topics by name."""
    name = value.strip().lower() if isinstance(value, str) else None
    if name == "earliest":
        return EarliestBound()
    if name == "latest":
        return LatestBound()
    try:
        return OffsetsBound(*_partition_values(value, _offset, _topic_offset))
    except _UnexpectedValueError as error:
        raise _malformed(_OFFSETS_EXAMPLE, option, value, error) from None


def parse_timestamp(option: str, value: object, zone: dt.tzinfo, now_ms: int) -> TimestampBound:
    """Parse one time for all partitions."""
    parsed = parse_time(option, value, zone, now_ms)
    return TimestampBound(parsed.value, parsed.is_relative)


def parse_partition_timestamps(option: str, value: object, zone: dt.tzinfo, now_ms: int) -> TimestampsBound:
    """Parse times: those of `parse_timestamp`, -1 for latest, -2 for earliest."""
    relative = []

    def timestamp_ms(given: object) -> int:
        number = as_integer(given)
        if number in (LATEST_OFFSET, EARLIEST_OFFSET):
            return number
        parsed = parse_time(option, given, zone, now_ms)
        relative.append(parsed.is_relative)
        return parsed.value

    try:
        by_partition, by_topic = _partition_values(value, timestamp_ms, timestamp_ms)
    except _UnexpectedValueError as error:
        raise _malformed(_TIMESTAMPS_EXAMPLE, option, value, error) from None
    return TimestampsBound(by_partition, by_topic, any(relative))


def format_topic_partitions(topic_partitions: object) -> str:
    """List topic-partitions for an error message, in order; of many, the first ones."""
    names = [f"{topic}-{partition}" for topic, partition in sorted(topic_partitions)]  # type: ignore[call-overload]
    return f"[{first_of(names, _SHOWN_PARTITIONS)}]"


def _partition_values(
    value: object, parse_value: Callable[[object], int], parse_topic_value: Callable[[object], int]
) -> tuple[dict[TopicPartition, int], dict[str, int]]:
    """Return the values by partition, and those by topic."""
    by_partition: dict[TopicPartition, int] = {}
    by_topic: dict[str, int] = {}
    for topic, given in _load_object(value).items():
        if isinstance(given, Mapping):
            for key, number in given.items():
                by_partition[topic, _partition(key)] = parse_value(number)
        else:
            by_topic[topic] = parse_topic_value(given)
    return by_partition, by_topic


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
        raise _UnexpectedValueError(f"{twice!r} is given twice")
    return loaded


def _partition_list(value: object) -> tuple[int, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, (list, tuple, set, frozenset, range)):
        raise _UnexpectedValueError("partitions are not a list")
    return tuple(sorted({_partition(item, text=False) for item in value}))


def _partition(value: object, *, text: bool = True) -> int:
    if text and isinstance(value, str) and _PARTITION_KEY.fullmatch(value.strip()):
        value = int(value)
    number = _integer(value)
    if not 0 <= number <= INT_MAX:
        raise _UnexpectedValueError(f"{value!r} is not a partition number")
    return number


def _offset(value: object) -> int:
    number = _integer(value)
    if not EARLIEST_OFFSET <= number <= LONG_MAX:
        raise _UnexpectedValueError(f"{number} is not an offset: use -1 for latest, -2 for earliest")
    return number


def _topic_offset(value: object) -> int:
    named = _NAMED_OFFSETS.get(value.strip().lower()) if isinstance(value, str) else None
    if named is None:
        raise _UnexpectedValueError(f'a topic\'s value is {value!r}, not "earliest", "latest" or an object')
    return named


def _integer(value: object) -> int:
    number = as_integer(value)
    if number is None:
        raise _UnexpectedValueError(f"{value!r} is not a whole number")
    return number


def _malformed(example: str, option: str, value: object, error: _UnexpectedValueError) -> OptionError:
    return OptionError(f"Expected e.g. {example}, got {_shown(value)} for {option}: {error}.")


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def check_bounds(start: Bound, end: Bound) -> None:
    """Check both ends of a batch read.

    Raises:
        OptionError: It would start at the latest offset or end at the earliest; or the ends contradict each other.
    """
    _check_start(start)
    _check_end(end)
    _check_order(start, end)


def _check_start(start: Bound) -> None:
    if isinstance(start, LatestBound):
        raise OptionError(
            "starting offset can't be latest for batch queries on Kafka. Use 'earliest' or specific offsets."
        )
    if isinstance(start, OffsetsBound):
        for name in _named_with(start, LATEST_OFFSET):
            raise OptionError(
                f"startingOffsets for {name} can't be latest for batch queries on Kafka. "
                "Use -2 for earliest, or an offset."
            )


def _check_end(end: Bound) -> None:
    if isinstance(end, EarliestBound):
        raise OptionError(
            "ending offset can't be earliest for batch queries on Kafka. Use 'latest' or specific offsets."
        )
    if isinstance(end, OffsetsBound):
        for name in _named_with(end, EARLIEST_OFFSET):
            raise OptionError(
                f"ending offset for {name} can't be earliest for batch queries on Kafka. "
                "Use -1 for latest, or an offset."
            )


def _named_with(bound: OffsetsBound, offset: int) -> Iterator[str]:
    yield from (
        f"{topic}-{number}" for (topic, number), value in bound.by_partition.items() if value == offset
    )
    yield from (topic for topic, value in bound.by_topic.items() if value == offset)


def _check_order(start: Bound, end: Bound) -> None:
    if isinstance(start, OffsetsBound) and isinstance(end, OffsetsBound):
        _check_partitions(start, end, "offset")
    if isinstance(start, TimestampsBound) and isinstance(end, TimestampsBound):
        _check_partitions(start, end, "timestamp")


def _check_partitions(starts: _BoundByPartition, ends: _BoundByPartition, what: str) -> None:
    # A topic given as a whole on either side is compared with its partitions in `resolve`.
    whole_topics = starts.by_topic.keys() | ends.by_topic.keys()
    start_set = {pair for pair in starts.by_partition if pair[0] not in whole_topics}
    end_set = {pair for pair in ends.by_partition if pair[0] not in whole_topics}
    if start_set != end_set:
        raise OptionError(
            "[MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET] The specified start offset and "
            "end offset should have the same topic-partitions. "
            f"Topic-partitions for start offset: {format_topic_partitions(start_set)}, "
            f"topic-partitions for end offset: {format_topic_partitions(end_set)}."
        )
    where_start_and_end = [
        (f"topic {topic} partition {partition}", start, ends.by_partition.get((topic, partition), -1))
        for (topic, partition), start in starts.by_partition.items()
    ]
    where_start_and_end += [
        (f"topic {topic}", start, ends.by_topic.get(topic, -1)) for topic, start in starts.by_topic.items()
    ]
    for where, start, end in where_start_and_end:
        # Latest and earliest are negative numbers and cannot be compared.
        if start > end >= 0:
            raise OptionError(
                f"[UNRESOLVED_START_{what.upper()}_GREATER_THAN_END_{what.upper()}] The specified start {what} "
                f"{start} is greater than the end {what} {end} for {where}."
            )


def warn_of_seconds(start: Bound, end: Bound) -> None:
    """Log bounds that look like seconds since 1970: as milliseconds, they silently read everything, or nothing."""
    for position, bound in (("starting", start), ("ending", end)):
        match bound:
            case TimestampBound(timestamp_ms):
                option, times_ms = f"{position}Timestamp", [timestamp_ms]
            case TimestampsBound(by_partition, by_topic):
                option = f"{position}OffsetsByTimestamp"
                times_ms = [*by_partition.values(), *by_topic.values()]
            case _:
                continue
        doubtful_ms = next((time_ms for time_ms in times_ms if time_ms in _SECONDS), None)
        if doubtful_ms is not None:
            date = dt.datetime.fromtimestamp(doubtful_ms / 1_000, dt.UTC).date()
            _log.warning(
                "%s is %d milliseconds, which is %s. If these are seconds, multiply them by 1000.",
                option,
                doubtful_ms,
                date,
            )
