from __future__ import annotations

import datetime as dt

import pytest

from storage_core.errors import OptionError
from storage_core.options import parse_read_options
from storage_core.options.bounds import (
    EarliestBound,
    LatestBound,
    OffsetsBound,
    TimestampBound,
    TimestampsBound,
)

NOW_MS = 1_767_225_600_000


def parse(**given):
    options = parse_read_options({"path": "/a", **given}, now_ms=NOW_MS)
    return options.starting, options.ending


def test_defaults():
    assert parse() == (EarliestBound(), LatestBound())


def test_names_in_any_case():
    assert parse(startingOffsets=" Earliest ", endingOffsets="LATEST") == (EarliestBound(), LatestBound())


def test_offsets():
    start, end = parse(startingOffsets='{"a":{"0":5,"1":-2}}', endingOffsets='{"a":{"0":9,"1":-1}}')
    assert start == OffsetsBound({("a", 0): 5, ("a", 1): -2})
    assert end == OffsetsBound({("a", 0): 9, ("a", 1): -1})


def test_offsets_of_whole_topics():
    start, end = parse(
        startingOffsets='{"a":"earliest","b":{"0":5}}', endingOffsets='{"a":{"0":7},"b":"latest"}'
    )
    assert start == OffsetsBound({("b", 0): 5}, {"a": -2})
    assert end == OffsetsBound({("a", 0): 7}, {"b": -1})


def test_timestamps():
    start, end = parse(startingTimestamp="-1 day", endingTimestamp=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    assert start == TimestampBound(NOW_MS - 86_400_000)
    assert end == TimestampBound(NOW_MS)


def test_timestamps_by_partition():
    start, end = parse(
        startingOffsetsByTimestamp='{"a":{"0":1000,"1":"2026-01-01T00:00:00Z"}}',
        endingOffsetsByTimestamp='{"a":{"0":2000,"1":"-0 ms"}}',
    )
    assert start == TimestampsBound({("a", 0): 1000, ("a", 1): NOW_MS})
    assert end == TimestampsBound({("a", 0): 2000, ("a", 1): NOW_MS})


@pytest.mark.parametrize(("position", "index"), [("starting", 0), ("ending", 1)])
def test_the_more_specific_option_wins_and_the_others_are_not_looked_at(position, index):
    wrong = {f"{position}Offsets": "nonsense", f"{position}OffsetsByTimestamp": "nonsense"}
    bounds = parse(**wrong, **{f"{position}Timestamp": 5})
    assert bounds[index] == TimestampBound(5)
    bounds = parse(**{**wrong, f"{position}OffsetsByTimestamp": '{"a":{"0":7}}'})
    assert bounds[index] == TimestampsBound({("a", 0): 7})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingOffsets": "latest"}, "starting offset can't be latest for batch queries on Kafka"),
        (
            {"startingOffsets": '{"a":{"0":3,"1":-1}}'},
            "startingOffsets for a-1 can't be latest for batch queries on Kafka",
        ),
        ({"startingOffsets": '{"a":"latest"}'}, "startingOffsets for a can't be latest for batch"),
        ({"endingOffsets": "earliest"}, "ending offset can't be earliest for batch queries on Kafka"),
        (
            {"endingOffsets": '{"a":{"0":-2}}'},
            "ending offset for a-0 can't be earliest for batch queries on Kafka",
        ),
        ({"endingOffsets": '{"a":"earliest"}'}, "ending offset for a can't be earliest for batch"),
        ({"startingTimestamp": "noon"}, "Expected a single long value, got noon"),
        ({"endingTimestamp": ""}, "Expected a single long value, got ''"),
        (
            {"startingOffsets": "first"},
            'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got first',
        ),
        ({"endingOffsetsByTimestamp": "x"}, 'Expected e.g. {"topicA": {"0": 123456789'),
        ({"startingOffsetsByTimestamp": '{"a":{"0":-5}}'}, "The target time cannot be negative"),
    ],
)
def test_mistakes_in_one_bound(given, message):
    with pytest.raises(OptionError) as raised:
        parse(**given)
    assert message in str(raised.value)


@pytest.mark.parametrize(("option", "what"), [("Offsets", "OFFSET"), ("OffsetsByTimestamp", "TIMESTAMP")])
def test_both_ends_by_partition_must_fit(option, what):
    def parse_both(start, end):
        return parse(**{f"starting{option}": start, f"ending{option}": end})

    parse_both('{"a":{"0":5}}', '{"a":{"0":5}}')
    with pytest.raises(
        OptionError,
        match=r"\[MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET\].*: \[a-0\], .*: \[a-1\]\.",
    ):
        parse_both('{"a":{"0":5}}', '{"a":{"1":5}}')
    expected = (
        rf"\[UNRESOLVED_START_{what}_GREATER_THAN_END_{what}\] The specified start {what.lower()} 6 "
        rf"is greater than the end {what.lower()} 5 for topic a partition 0"
    )
    with pytest.raises(OptionError, match=expected):
        parse_both('{"a":{"0":6}}', '{"a":{"0":5}}')


def test_latest_and_earliest_are_not_compared():
    parse(startingOffsets='{"a":{"0":6,"1":-2}}', endingOffsets='{"a":{"0":-1,"1":0}}')


def test_timestamps_of_whole_topics_are_compared():
    with pytest.raises(OptionError, match="UNRESOLVED_START_TIMESTAMP_GREATER_THAN_END_TIMESTAMP"):
        parse(startingOffsetsByTimestamp={"a": 6}, endingOffsetsByTimestamp={"a": 5})
