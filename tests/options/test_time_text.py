from __future__ import annotations

import datetime as dt
import zoneinfo

import pytest

from storage_core.errors import OptionError
from storage_core.options.values import (
    parse_interval_ms,
    parse_sql_time,
    parse_time,
    parse_time_zone,
    parse_timestamp_ms,
)

NOW_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


def parse(value, zone=dt.UTC, now_ms=NOW_MS):
    return parse_timestamp_ms("startingTimestamp", value, zone, now_ms)


@pytest.mark.parametrize(
    ("value", "expected_ms"),
    [
        (0, 0),
        (1000, 1000),
        ("1000", 1000),
        (" +1000 ", 1000),
        ("9223372036854775807", 2**63 - 1),
        ("2026-01-01T00:00:00Z", NOW_MS),
        ("2026-01-01", NOW_MS),
        ("2026-01-01 00:00:00.001", NOW_MS + 1),
        ("2026-01-01T02:00:00+02:00", NOW_MS),
        (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), NOW_MS),
        (dt.datetime(2026, 1, 1), NOW_MS),  # noqa: DTZ001  (the option timeZone decides)
        (dt.date(2026, 1, 1), NOW_MS),
        ("-10 minutes", NOW_MS - 600_000),
        ("-1 day", NOW_MS - 86_400_000),
        ("-1d", NOW_MS - 86_400_000),
        ("- 2 HOURS 30 min", NOW_MS - 9_000_000),
        ("-500 ms", NOW_MS - 500),
        ("-2 weeks", NOW_MS - 1_209_600_000),
        ("-0 seconds", NOW_MS),
        ("-100000 days", 0),
    ],
)
def test_points_in_time(value, expected_ms):
    assert parse(value) == expected_ms


def test_parts_of_a_millisecond_are_rounded_up():
    # The first record at or after that moment has a whole number of milliseconds.
    assert parse("2026-01-01T00:00:00.000001Z") == NOW_MS + 1


def test_times_without_a_zone_are_in_the_given_one():
    assert parse("2026-01-01T01:00:00", BERLIN) == NOW_MS
    assert parse(dt.datetime(2026, 7, 1, 2, 0), BERLIN) == parse("2026-07-01T00:00:00Z")  # noqa: DTZ001
    assert parse(dt.date(2026, 7, 1), BERLIN) == parse("2026-06-30T22:00:00Z")


@pytest.mark.parametrize(
    "value", ["", "soon", "1.5", 1.5, True, None, [], "10 minutes", "2026-13-01", "12345678901234567890"]
)
def test_anything_else_is_refused_in_the_words_of_spark(value):
    with pytest.raises(OptionError, match=r"Expected a single long value, got .*-10 minutes"):
        parse(value)


@pytest.mark.parametrize("value", [-1, "-1", "1969-12-31T23:59:59Z"])
def test_times_before_1970_are_refused(value):
    with pytest.raises(OptionError, match=r"target time cannot be negative: startingTimestamp is"):
        parse(value)


@pytest.mark.parametrize("value", ["-1 month", "-1 year 2 days", "-3 fortnights"])
def test_units_without_a_fixed_length_are_refused(value):
    with pytest.raises(OptionError, match=r"not a unit of a fixed length.*days or weeks"):
        parse(value)


@pytest.mark.parametrize(
    ("text", "offset_hours"), [("UTC", 0), ("Z", 0), ("gmt", 0), ("+02:00", 2), ("-0330", -3.5), ("GMT+2", 2)]
)
def test_fixed_zones(text, offset_hours):
    assert parse_time_zone("timeZone", text).utcoffset(None) == dt.timedelta(hours=offset_hours)


def test_named_zones():
    assert parse_time_zone("timeZone", " Europe/Berlin ") == BERLIN
    assert parse_time_zone("timeZone", BERLIN) is BERLIN


@pytest.mark.parametrize("text", ["", "Mars/Olympus", "../../etc/passwd", "Europe", "+25:00", "+99", 1, None])
def test_unknown_zones_are_refused(text):
    with pytest.raises(OptionError, match=r"timeZone is .*no known time zone"):
        parse_time_zone("timeZone", text)


# -- As Spark casts texts to timestamps --------


@pytest.mark.parametrize(
    ("text", "after_us"),
    [
        ("2026", 0),
        ("2026-1", 0),
        ("2026-01-1", 0),
        ("+2026-01-01", 0),
        (" \t2026-01-01\n", 0),
        ("2026-01-01 1", 3_600_000_000),
        ("2026-01-01T00:1", 60_000_000),
        ("2026-01-01 0:0:2", 2_000_000),
        ("2026-01-01 00:00:00.", 0),
        ("2026-01-01 00:00:00.5", 500_000),
        ("2026-01-01 00:00:00.0000019", 1),
        ("2026-01-01 00:00:00Z", 0),
        ("2026-01-01 00:00:00 Z", 0),
        ("2026-01-01 00:00:00UTC", 0),
        ("2026-01-01 01:00:00+1", 0),
        ("2026-01-01 01:00:00+01", 0),
        ("2026-01-01 01:30:00 +01:30", 0),
        ("2026-01-01 01:30:00+0130", 0),
        ("2026-01-01 01:03:00+1:3", 0),
        ("2026-01-01 01:02:03+01:02:03", 0),
        ("2025-12-31 23:00:00 GMT-1", 0),
        ("2025-12-31 06:00:00-18:00", 0),
        ("2026-01-01 01:00:00 Europe/Berlin", 0),
        # ISO-8601 has these too, though Spark wants seconds in front of a zone.
        ("2026-01-01T00:00Z", 0),
        ("2026-01-01T02:00+02:00", 0),
        ("-10 minutes", -600_000_000),
        ("- 1h 30 min", -5_400_000_000),
    ],
)
def test_sql_timestamps(text, after_us):
    assert parse_sql_time(text, dt.UTC, NOW_MS).value == NOW_MS * 1000 + after_us


def test_sql_timestamps_without_a_zone_are_in_the_given_one():
    assert parse_sql_time("2026-01-01 01", BERLIN, 0).value == NOW_MS * 1000
    # In the hour that summer time leaves out, and the first of the two that winter time makes one.
    assert parse_sql_time("2026-03-29 02:30:00", BERLIN, 0).value == 1_774_747_800_000_000
    assert parse_sql_time("2026-10-25 02:30:00", BERLIN, 0).value == 1_792_888_200_000_000


def test_sql_timestamps_at_the_ends_of_the_calendar():
    assert parse_sql_time("0001-01-01", dt.UTC, 0).value == -62_135_596_800_000_000
    assert parse_sql_time("9999-12-31 23:59:59.999999", dt.UTC, 0).value == 253_402_300_799_999_999
    assert parse_sql_time("9999-12-31 23:59:59.999999-18:00", dt.UTC, 0).value == 253_402_365_599_999_999


@pytest.mark.parametrize(
    "text",
    [
        "", "now", "yesterday", "01:02:03", "20260101", "2026-001", "2026-W01-1", "202-01-01", "12026-01-01", "0000-01-01",
        "-2026-01-01", "2026-13-01", "2026-02-30", "2026-01-01T", "2026-01-01t01:00", "2026/01/01", "2026-01-01  01:00",
        "2026-01-01 24:00", "2026-01-01 00:60", "2026-01-01 00:00:60", "2026-01-01 00:00:00z", "2026-01-01 00:00:00+19",
        "2026-01-01 00:00:00+01:60", "2026-01-01 00:00:00+013", "2026-01-01 00:00:00 Nowhere", "2026-01-01 00:00:00 ../x",
        "2026-01-01 00:00:00 Europe", "2026-01-01Z", "1767225600000", "2026-01-01 00:00:00,5", "٢٠٢٦",
    ],
)  # fmt: skip
def test_no_sql_timestamps(text):
    assert parse_sql_time(text, dt.UTC, NOW_MS) is None


def test_a_relative_sql_timestamp_has_units_of_a_fixed_length():
    with pytest.raises(OptionError, match="not a unit of a fixed length"):
        parse_sql_time("-3 months", dt.UTC, NOW_MS)


# -- Intervals --------


@pytest.mark.parametrize(
    ("value", "expected_ms"),
    [
        ("10 minutes", 600_000),
        (" 1 hour 30 min ", 5_400_000),
        ("2d", 172_800_000),
        ("0 ms", 0),
        ("1500", 1500),
        (1500, 1500),
        (0, 0),
        (dt.timedelta(seconds=2), 2000),
        (dt.timedelta(microseconds=1), 1),
    ],
)
def test_intervals(value, expected_ms):
    assert parse_interval_ms("maxTimestampDisorder", value) == expected_ms


@pytest.mark.parametrize(
    "value",
    [
        "",
        "soon",
        "-10 minutes",
        "-5",
        -5,
        1.5,
        True,
        None,
        "5 months",
        dt.timedelta(seconds=-1),
        "9" * 19,
        2**63,
    ],
)
def test_no_intervals(value):
    with pytest.raises(OptionError, match="maxTimestampDisorder"):
        parse_interval_ms("maxTimestampDisorder", value)


# -- What a text says of itself --------


@pytest.mark.parametrize(
    ("text", "is_relative", "has_zone"),
    [
        ("-10 minutes", True, True),
        ("2026-01-01T00:00:00Z", False, True),
        ("2026-01-01T00:00:00+02:00", False, True),
        ("2026-01-01T00:00:00", False, False),
        ("2026-01-01", False, False),
    ],
)
def test_a_time_says_whether_it_is_relative_and_names_a_zone(text, is_relative, has_zone):
    for parsed in (
        parse_time("startingTimestamp", text, dt.UTC, NOW_MS),
        parse_sql_time(text, dt.UTC, NOW_MS),
    ):
        assert (parsed.is_relative, parsed.has_zone) == (is_relative, has_zone)
