"""Where a read starts and stops: the six offset and timestamp options of Spark's Kafka source.

Of each end's three options the most specific wins and the others are not even looked at:
``startingTimestamp`` over ``startingOffsetsByTimestamp`` over ``startingOffsets``, likewise
for the end. What can be checked without the logs is checked here, in Spark's wording.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from storage_core.errors import OptionError
from storage_core.scan.offset_json import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    PartitionValues,
    TopicPartition,
    format_topic_partitions,
    parse_partition_offsets,
    parse_partition_timestamps,
)
from storage_core.scan.time_text import parse_timestamp_ms

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Mapping

__all__ = [
    "Bound",
    "EarliestBound",
    "LatestBound",
    "OffsetsBound",
    "TimestampBound",
    "TimestampsBound",
    "parse_bounds",
]


@dataclass(frozen=True, slots=True)
class EarliestBound:
    """Each partition's log start offset."""


@dataclass(frozen=True, slots=True)
class LatestBound:
    """Each partition's end, as ``endingAt`` and ``isolationLevel`` define it."""


@dataclass(frozen=True, slots=True)
class OffsetsBound:
    """One offset for each partition; -1 stands for latest, -2 for earliest.

    Attributes:
        offsets: Offset by (topic, partition).
        topic_offsets: Offset for all partitions of a topic.
    """

    offsets: Mapping[TopicPartition, int]
    topic_offsets: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TimestampBound:
    """In each partition the first offset whose record's timestamp is at or after this one."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class TimestampsBound:
    """As TimestampBound, with a timestamp for each partition.

    Attributes:
        timestamps_ms: Timestamp by (topic, partition).
        topic_timestamps_ms: Timestamp for all partitions of a topic.
    """

    timestamps_ms: Mapping[TopicPartition, int]
    topic_timestamps_ms: Mapping[str, int] = field(default_factory=dict)


Bound = EarliestBound | LatestBound | OffsetsBound | TimestampBound | TimestampsBound


def parse_bounds(given: Mapping[str, object], zone: dt.tzinfo, now_ms: int) -> tuple[Bound, Bound]:
    """Parse both ends of a batch read.

    Args:
        given: Option values by their documented names; other options may be among them.
        zone: The zone of times that name none.
        now_ms: What relative times are relative to.

    Returns:
        The start (default earliest) and the end (default latest, exclusive).

    Raises:
        OptionError: A value is malformed, a batch read starts at latest or ends at
            earliest, or the ends contradict each other.
    """
    start = _parse_end(given, "starting", EarliestBound(), zone, now_ms)
    end = _parse_end(given, "ending", LatestBound(), zone, now_ms)
    _check_start(start)
    _check_end(end)
    _check_order(start, end)
    return start, end


def _parse_end(
    given: Mapping[str, object], position: str, default: Bound, zone: dt.tzinfo, now_ms: int
) -> Bound:
    option = f"{position}Timestamp"
    if option in given:
        return TimestampBound(parse_timestamp_ms(option, given[option], zone, now_ms))
    option = f"{position}OffsetsByTimestamp"
    if option in given:
        values = _parse_timestamps(option, given[option], zone, now_ms)
        return TimestampsBound(values.by_partition, values.by_topic)
    option = f"{position}Offsets"
    if option in given:
        return _parse_offsets(option, given[option])
    return default


def _parse_timestamps(option: str, value: object, zone: dt.tzinfo, now_ms: int) -> PartitionValues:
    return parse_partition_timestamps(
        option, value, lambda time: parse_timestamp_ms(option, time, zone, now_ms)
    )


def _parse_offsets(option: str, value: object) -> Bound:
    name = value.strip().lower() if isinstance(value, str) else None
    if name == "earliest":
        return EarliestBound()
    if name == "latest":
        return LatestBound()
    values = parse_partition_offsets(option, value)
    return OffsetsBound(values.by_partition, values.by_topic)


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
    yield from (f"{topic}-{number}" for (topic, number), value in bound.offsets.items() if value == offset)
    yield from (topic for topic, value in bound.topic_offsets.items() if value == offset)


def _check_order(start: Bound, end: Bound) -> None:
    if isinstance(start, OffsetsBound) and isinstance(end, OffsetsBound):
        starts = PartitionValues(start.offsets, start.topic_offsets)
        ends = PartitionValues(end.offsets, end.topic_offsets)
        _check_same_partitions(starts, ends)
        _check_not_after(starts, ends, "offset")
    if isinstance(start, TimestampsBound) and isinstance(end, TimestampsBound):
        starts = PartitionValues(start.timestamps_ms, start.topic_timestamps_ms)
        ends = PartitionValues(end.timestamps_ms, end.topic_timestamps_ms)
        _check_same_partitions(starts, ends)
        _check_not_after(starts, ends, "timestamp")


def _check_same_partitions(starts: PartitionValues, ends: PartitionValues) -> None:
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


def _check_not_after(starts: PartitionValues, ends: PartitionValues, what: str) -> None:
    for (topic, partition), start in starts.by_partition.items():
        end = ends.by_partition.get((topic, partition), -1)
        # Latest and earliest are negative numbers and cannot be compared.
        if start > end >= 0:
            raise OptionError(
                f"[UNRESOLVED_START_{what.upper()}_GREATER_THAN_END_{what.upper()}] The specified start {what} "
                f"{start} is greater than the end {what} {end} for topic {topic} partition {partition}."
            )
    for topic, start in starts.by_topic.items():
        if start > ends.by_topic.get(topic, -1) >= 0:
            raise OptionError(
                f"[UNRESOLVED_START_{what.upper()}_GREATER_THAN_END_{what.upper()}] The specified start {what} "
                f"{start} is greater than the end {what} {ends.by_topic[topic]} for topic {topic}."
            )
