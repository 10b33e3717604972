"""Times in options: what they mean where Spark would ask its session, and what looks like a mistake."""

from __future__ import annotations

import logging

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import LongType, StructType

from spark_segmentlog import SegmentLogDataSource
from storage_core import read_table
from storage_core.filesystem import FileSystem
from storage_core.scan import parse_read_options, plan_scan

OFFSETS = StructType().add("offset", LongType())


def reader(**options):
    return SegmentLogDataSource(CaseInsensitiveDict({"path": "/a", **options})).reader(OFFSETS)


@pytest.mark.parametrize(
    "where",
    [
        "timestamp >= '2026-03-06'",
        "offset > 3 AND NOT (timestamp < '2026-03-06 12:00:00' OR key = 'k')",
        "timestamp BETWEEN '2026-03-06T00:00:00Z' AND '2026-03-07'",
    ],
)
def test_a_time_without_a_zone_is_said_to_be_utc(caplog, where):
    with caplog.at_level(logging.WARNING):
        reader(where=where)
    assert [message.split(": ")[0] for message in caplog.messages] == [
        "where compares with a time that names no zone"
    ]
    assert "spark.sql.session.timeZone" in caplog.messages[0]
    assert "option timeZone" in caplog.messages[0]


@pytest.mark.parametrize(
    "options",
    [
        {"where": "timestamp >= '2026-03-06T00:00:00Z'"},
        {"where": "timestamp >= '2026-03-06 00:00:00+02:00'"},
        {"where": "timestamp >= '-10 minutes'"},
        {"where": "timestamp >= '2026-03-06'", "timeZone": "UTC"},
        {"where": "key = '2026-03-06'"},
        {"startingTimestamp": "2026-03-06T00:00:00"},
    ],
)
def test_nothing_is_said_of_times_with_a_zone(caplog, options):
    with caplog.at_level(logging.WARNING):
        reader(**options)
    assert caplog.messages == []


SECONDS = "1700000000"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("startingTimestamp", SECONDS),
        ("endingTimestamp", SECONDS),
        ("startingOffsetsByTimestamp", f'{{"b":{{"0":{SECONDS}}}}}'),
        ("endingOffsetsByTimestamp", f'{{"b":{SECONDS}}}'),
    ],
)
def test_a_time_in_seconds_is_a_warning_that_names_the_year(logs, caplog, option, value):
    options = parse_read_options({"path": logs, "subscribe": "b", option: value})
    with caplog.at_level(logging.WARNING):
        plan_scan(FileSystem(), options)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"{option} is 1700000000 milliseconds, which is 1970-01-20.")


@pytest.mark.parametrize("value", ["1700000000000", "2023-11-14T22:13:20Z", "1000"])
def test_nothing_is_said_of_milliseconds(logs, caplog, value):
    with caplog.at_level(logging.WARNING):
        read_table(logs, subscribe="b", starting_timestamp=value)
    assert caplog.messages == []
