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
    format_topic_partitions,
    parse_assignment,
    parse_offsets,
    parse_partition_timestamps,
)

NOW_MS = 1_767_225_600_000


def parse(**given):
    options = parse_read_options({"path": "/a", **given}, now_ms=NOW_MS)
    return options.starting, options.ending


def test_defaults():
    assert parse() == (EarliestBound(), LatestBound())


def test_names_in_any_case():
    assert parse(startingOffsets=" Earliest ", endingOffsets="LATEST") == (EarliestBound(), LatestBound())


def test_offsets_of_both_ends():
    start, end = parse(
        startingOffsets='{"a":"earliest","b":{"0":5}}', endingOffsets='{"a":{"0":7},"b":"latest"}'
    )
    assert start == OffsetsBound({("b", 0): 5}, {"a": -2})
    assert end == OffsetsBound({("a", 0): 7}, {"b": -1})


def test_timestamps_of_both_ends():
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


# -- Offsets, timestamps and partitions in JSON --------


def test_assignment():
    assert parse_assignment("assign", ' {"topicA":[1,0,1],"topicB":[2]} ') == {
        "topicA": (0, 1),
        "topicB": (2,),
    }
    assert parse_assignment("assign", {"topicA": range(2)}) == {"topicA": (0, 1)}


@pytest.mark.parametrize("value", ["topicA", "", "[0]", "{}", '{"topicA":[]}', {}])
def test_assignment_of_nothing(value):
    with pytest.raises(
        OptionError, match=r"No topicpartitions to assign as specified value for option 'assign'"
    ):
        parse_assignment("assign", value)


@pytest.mark.parametrize(
    "value",
    [
        '{"topicA"',
        '{"topicA":0}',
        '{"topicA":["0"]}',
        '{"topicA":[-1]}',
        '{"topicA":[true]}',
        '{"topicA":[2147483648]}',
        '{"topicA":[0],"topicA":[1]}',
        ["topicA"],
        7,
    ],
)
def test_malformed_assignment(value):
    with pytest.raises(OptionError, match=r'Expected e\.g\. \{"topicA":\[0,1\],"topicB":\[0,1\]\}, got '):
        parse_assignment("assign", value)


def test_offsets():
    values = parse_offsets("startingOffsets", '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}')
    assert values == OffsetsBound({("topicA", 0): 23, ("topicA", 1): -1, ("topicB", 0): -2})


def test_offsets_of_whole_topics():
    values = parse_offsets("startingOffsets", '{"topicA":"earliest","topicB":{"0":23},"topicC":"LATEST"}')
    assert values.by_partition == {("topicB", 0): 23}
    assert values.by_topic == {"topicA": -2, "topicC": -1}


def test_offsets_as_python_values():
    assert parse_offsets("startingOffsets", {"topicA": {0: 5, "1": 6}}).by_partition == {
        ("topicA", 0): 5,
        ("topicA", 1): 6,
    }


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("nonsense", "this is not JSON"),
        ("[" * 100_000, "this is not JSON"),
        ("[]", "not an object of topics"),
        ('{"topicA":"newest"}', "'newest'"),
        ('{"topicA":5}', "5"),
        ('{"topicA":{"x":5}}', "'x'"),
        ('{"topicA":{"-1":5}}', "'-1'"),
        ('{"topicA":{"0":"5"}}', "'5'"),
        ('{"topicA":{"0":5.0}}', "5.0"),
        ('{"topicA":{"0":true}}', "True"),
        ('{"topicA":{"0":-3}}', "-3 is not an offset"),
        ('{"topicA":{"0":9223372036854775808}}', "is not an offset"),
        ('{"topicA":{"0":1,"0":2}}', "'0' is given twice"),
        ({1: {0: 5}}, "a topic is not a text"),
    ],
)
def test_malformed_offsets(value, reason):
    with pytest.raises(OptionError) as raised:
        parse_offsets("startingOffsets", value)
    message = str(raised.value)
    assert message.startswith('Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got ')
    assert "startingOffsets" in message
    assert reason in message
    assert len(message) < 1000


def test_timestamps():
    values = parse_partition_timestamps(
        "startingOffsetsByTimestamp", '{"topicA":{"0":1000},"topicB":7}', dt.UTC, 0
    )
    assert values == TimestampsBound({("topicA", 0): 1000}, {"topicB": 7})


def test_malformed_timestamps():
    expected = r'Expected e\.g\. \{"topicA": \{"0": 123456789, "1": 123456789\}, "topicB": .*\}, got x'
    with pytest.raises(OptionError, match=expected):
        parse_partition_timestamps("startingOffsetsByTimestamp", "x", dt.UTC, 0)


def test_topic_partitions_in_messages():
    assert format_topic_partitions({("b", 1), ("a", 10), ("a", 2)}) == "[a-2, a-10, b-1]"
    many = format_topic_partitions({("a", number) for number in range(60)})
    assert many.endswith("a-49 and 10 more]")
