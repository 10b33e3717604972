from __future__ import annotations

import datetime as dt

import pytest

from storage_core.errors import OptionError
from storage_core.options.bounds import (
    OffsetsBound,
    TimestampsBound,
    format_topic_partitions,
    parse_assignment,
    parse_offsets,
    parse_partition_timestamps,
)


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
    assert many.endswith("a-49, and 10 more]")
