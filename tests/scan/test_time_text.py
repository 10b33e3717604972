from __future__ import annotations

import datetime as dt
import zoneinfo

import pytest

from storage_core.errors import OptionError
from storage_core.scan.time_text import parse_time_zone, parse_timestamp_ms

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
    with pytest.raises(OptionError, match=r"no unit of a fixed length.*days or weeks"):
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
