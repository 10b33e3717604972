"""Parse single option values: text, as Spark passes it, or Python values.

Times may be epoch milliseconds, ISO-8601, SQL timestamps or relative to now. A value that does not fit its option is an
`OptionError`.
"""

from __future__ import annotations

import datetime as dt
import json
import operator
import os
import re
import zoneinfo
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, get_args

from storage_core.config import LONG_MAX
from storage_core.errors import OptionError
from storage_core.options.option import Kind
from storage_core.options.paths import path_to_read

DEFAULT_MAX_DECOMPRESSED_BATCH_BYTES: Final = 64 * 1024 * 1024
LARGEST_MAX_DECOMPRESSED_BATCH_BYTES: Final = 1024 * 1024 * 1024
"""Positions within a batch become Arrow offsets, which have 32 bits."""
_SIZE = re.compile(r"([0-9]{1,19})\s*(?:([kmgtp])(?:i?b)?|b)?", re.IGNORECASE)
_SIZE_SHIFTS = {"k": 10, "m": 20, "g": 30, "t": 40, "p": 50}


def parse_boolean(option: str, value: object) -> bool:
    """Parse ``true`` or ``false``."""
    if isinstance(value, bool):
        return value
    text = value.strip().lower() if isinstance(value, str) else None
    if text not in ("true", "false"):
        raise OptionError(f"{option} is {value!r}. Use true or false.")
    return text == "true"


def parse_choice(option: str, value: object, choices: Sequence[str]) -> str:
    """Parse one of a few choice_kind, in any case; return it as documented."""
    text = value.strip().lower() if isinstance(value, str) else None
    for choice in choices:
        if choice.lower() == text:
            return choice
    raise OptionError(f"{option} is {value!r}. Use {' or '.join(choices)}.")


def parse_count(option: str, value: object, name_in_error: str | None = None, *, least: int = 1) -> int:
    """Parse a positive whole number, or 0 if that is the least. The error's wording is that of Spark's Kafka source."""
    number: int | None = None
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", value):
        number = int(value)
    else:
        number = as_integer(value)
    if number is None or number > LONG_MAX:
        raise OptionError(f"{option} is {value!r}. Use a whole number above {least - 1}.")
    if number < least:
        wanted = "must be positive" if least else "must not be negative"
        raise OptionError(f"{name_in_error or option} {wanted}, but {option} is {value}.")
    return number


def parse_size_bytes(option: str, value: object) -> int:
    """Parse a positive size in bytes, or with a unit as in Spark's byte strings (``64k``, ``128mb``)."""
    number: int | None = None
    if isinstance(value, str):
        matched = _SIZE.fullmatch(value.strip())
        if matched:
            number = int(matched.group(1)) << _SIZE_SHIFTS.get((matched.group(2) or "").lower(), 0)
    else:
        number = as_integer(value)
    if number is None or not 0 < number <= LONG_MAX:
        raise OptionError(
            f"{option} is {value!r}. Use a positive number of bytes, or a size such as 64k, 128m or 1g."
        )
    return number


def parse_max_batch_bytes(option: str, value: object) -> int:
    """Parse a size that a decompressed batch may have."""
    size_bytes = parse_size_bytes(option, value)
    if size_bytes > LARGEST_MAX_DECOMPRESSED_BATCH_BYTES:
        raise OptionError(f"{option} is {value!r}. Use at most {LARGEST_MAX_DECOMPRESSED_BATCH_BYTES} bytes.")
    return size_bytes


def parse_topics(option: str, value: object) -> tuple[str, ...]:
    """Parse a comma separated list of topics; blanks and empty items are ignored."""
    items = value.split(",") if isinstance(value, str) else _text_list(option, value, "topic names")
    topics = tuple(dict.fromkeys(item.strip() for item in items if item.strip()))
    if not topics:
        raise OptionError(f"No topics to subscribe to as specified value for option '{option}' is '{value}'")
    return topics


def parse_topic(option: str, value: object) -> str:
    """Parse the name of one topic."""
    topics = parse_topics(option, value)
    if len(topics) > 1:
        raise OptionError(f"{option} is {value!r}. Name one topic.")
    return topics[0]


def parse_columns(option: str, value: object) -> tuple[str, ...]:
    """Parse names of columns: comma separated, or a JSON list."""
    if isinstance(value, str):
        text = value.strip()
        items = _json_list(option, text, "column names") if text.startswith("[") else text.split(",")
    else:
        items = _text_list(option, value, "column names")
    columns = tuple(item.strip() for item in items)
    if not any(columns):
        raise OptionError(f"{option} is {value!r}, which names no column. Name some, as in 'offset,value'.")
    for index, column in enumerate(columns):
        if column in columns[:index]:
            raise OptionError(f"{option} names '{column}' twice. Name each column once.")
    return columns


def parse_paths(option: str, value: object) -> tuple[str, ...]:
    """Parse ``path``: a text, a path object, or a list of them (also as JSON, as Spark passes lists).

    A text with commas is not split: whether they separate paths depends on which paths exist.
    """
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        text = value.strip()
        is_list = option == "paths" and text.startswith("[")
        items = _json_list(option, text, "paths") if is_list else [value]
    else:
        if isinstance(value, Iterable) and not isinstance(value, (bytes, dict)):
            value = [os.fspath(item) if isinstance(item, os.PathLike) else item for item in value]
        items = _text_list(option, value, "paths")
    paths = tuple(item for item in items if item.strip())
    for path in paths:
        if "\0" in path:
            raise OptionError(f"{option} {path!r} holds a NUL character.")
        path_to_read(path)
    return paths


def _json_list(option: str, text: str, what: str) -> list[str]:
    try:
        loaded: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{option} is {text!r}, which is not a JSON list of {what}: {error}.") from None
    return _text_list(option, loaded, what)


def _text_list(option: str, value: object, what: str) -> list[str]:
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [item for item in value if isinstance(item, str)]
        if len(items) == len(value):
            return items
    raise OptionError(f"{option} is {value!r}. Use a text or a list of {what}.")


def as_integer(value: object) -> int | None:
    """Convert an integer of Python or numpy.

    Returns:
        The integer; None for anything else, booleans included.
    """
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # raises if it is no integer
    except TypeError:
        return None


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_ONE_MICROSECOND = dt.timedelta(microseconds=1)
_UNITS_MS = {
    "ms": 1,
    "millisecond": 1,
    "s": 1_000,
    "sec": 1_000,
    "second": 1_000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
    "w": 604_800_000,
    "week": 604_800_000,
}
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_INTERVAL = re.compile(r"(?:[0-9]{1,15}\s*[a-z]+\s*)+", re.IGNORECASE)
_RELATIVE = re.compile(rf"-\s*({_INTERVAL.pattern})", re.IGNORECASE)
_RELATIVE_PART = re.compile(r"([0-9]+)\s*([a-z]+)", re.IGNORECASE)
# The texts that Spark casts to a timestamp, except years of other than four digits and times without a date.
_SQL_TIMESTAMP = re.compile(
    r"\+?([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?)? ?([A-Z+-].*)?)?)?)?)?"
)
_ZONE_OFFSET = re.compile(
    r"(?:UTC|GMT|UT)?([+-])(?:([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{2}))?)?|([0-9]{2})([0-9]{2})([0-9]{2})?)"
)
_UTC = ("Z", "UTC", "UT", "GMT")
_LARGEST_ZONE_OFFSET = dt.timedelta(hours=18)
# Spark trims blanks and all ASCII control characters below them.
_TRIMMED = "".join(map(chr, range(0x21)))


class ParsedTime(NamedTuple):
    """Time that was parsed, and how its text states it.

    Attributes:
        value: Since 1970, in milliseconds or microseconds, as the parser says.
        has_zone: Whether it is the same time in every zone.
    """

    value: int
    is_relative: bool = False
    has_zone: bool = True


def parse_timestamp_ms(option: str, value: object, zone: dt.tzinfo, now_ms: int) -> int:
    """Parse a time to milliseconds since 1970, as `parse_time` does."""
    return parse_time(option, value, zone, now_ms).value


def parse_time(option: str, value: object, zone: dt.tzinfo, now_ms: int) -> ParsedTime:
    """Parse a time to milliseconds since 1970.

    Args:
        option: Its name, for errors.
        value: Milliseconds, a ``datetime`` or ``date``, or a text: digits (milliseconds), ISO-8601, or ``-10 minutes``.
        zone: The zone of times that name none.
        now_ms: What relative times are relative to.
    """
    parsed = _parsed_time(option, value, zone, now_ms)
    timestamp_ms = parsed.value
    if timestamp_ms < 0:
        raise OptionError(
            f"The target time cannot be negative: {option} is {_shown(value)}. "
            "Leave the option out to read from the earliest offset."
        )
    if timestamp_ms > LONG_MAX:
        raise _not_a_time(option, value)
    return parsed


def _parsed_time(option: str, value: object, zone: dt.tzinfo, now_ms: int) -> ParsedTime:
    if isinstance(value, str):
        return _time_of_text(option, value.strip(), zone, now_ms)
    if isinstance(value, dt.datetime):
        return _time_of(value, zone)
    if isinstance(value, dt.date):
        return _time_of(dt.datetime(value.year, value.month, value.day), zone)  # noqa: DTZ001  (in the zone given)
    timestamp_ms = as_integer(value)
    if timestamp_ms is None:
        raise _not_a_time(option, value)
    return ParsedTime(timestamp_ms)


def _time_of_text(option: str, text: str, zone: dt.tzinfo, now_ms: int) -> ParsedTime:
    if _INTEGER.fullmatch(text):
        return ParsedTime(int(text))
    relative = _RELATIVE.fullmatch(text)
    if relative:
        # Records have no earlier timestamps than 1970: a longer interval means all of them.
        return ParsedTime(max(now_ms - _interval_ms(option, text, relative.group(1)), 0), is_relative=True)
    try:
        parsed = dt.datetime.fromisoformat(text)
    except ValueError:
        raise _not_a_time(option, text) from None
    return _time_of(parsed, zone)


def parse_sql_time(text: str, zone: dt.tzinfo, now_ms: int) -> ParsedTime | None:
    """Parse a text to microseconds since 1970 as Spark casts it, or as a time relative to now.

    Args:
        text: As ``2026-01-01``, ``2026-1-1 1:02``, ``2026-01-01T01:02:03.5+02:00``, ``-10 minutes``.
        zone: The zone of times that name none.
        now_ms: What relative times are relative to.

    Returns:
        The time; None if the text is no timestamp, or its year is not from 1 to 9999.
    """
    text = text.strip(_TRIMMED)
    relative = _RELATIVE.fullmatch(text)
    if relative:
        interval_ms = _interval_ms("a relative time", text, relative.group(1))
        return ParsedTime((now_ms - interval_ms) * 1_000, is_relative=True)
    matched = _SQL_TIMESTAMP.fullmatch(text)
    if matched is None:
        return None
    *fields, fraction, zone_text = matched.groups()
    year, month, day, hour, minute, second = (None if each is None else int(each) for each in fields)
    try:
        own_zone = zone if zone_text is None else _zone(zone_text)
        moment = dt.datetime(
            year or 0,
            1 if month is None else month,
            1 if day is None else day,
            hour or 0,
            minute or 0,
            second or 0,
            # Digits beyond microseconds are ignored.
            int((fraction or "").ljust(6, "0")[:6]),
            own_zone,
        )
        return ParsedTime((moment - _EPOCH) // _ONE_MICROSECOND, has_zone=zone_text is not None)
    except (ValueError, OverflowError, OSError, zoneinfo.ZoneInfoNotFoundError):
        return None


def _zone(text: str) -> dt.tzinfo:
    if text in _UTC:
        return dt.UTC
    fixed = _ZONE_OFFSET.fullmatch(text)
    if fixed is None:
        return zoneinfo.ZoneInfo(text)
    sign, *with_colons_and_without = fixed.groups()
    parts = [int(part) for part in with_colons_and_without if part is not None]
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    offset = dt.timedelta(hours=hours, minutes=minutes, seconds=seconds)
    if minutes > 59 or seconds > 59 or offset > _LARGEST_ZONE_OFFSET:  # noqa: PLR2004  (of an hour, of a minute)
        raise ValueError(text)
    return dt.timezone(offset if sign == "+" else -offset)


def parse_interval_ms(option: str, value: object) -> int:
    """Parse an interval to milliseconds: a ``timedelta``, milliseconds as a number or in digits, or ``1 hour 30 minutes``."""
    interval_ms: int | None = None
    if isinstance(value, dt.timedelta):
        interval_ms = -(-value // dt.timedelta(milliseconds=1))
    elif isinstance(value, str):
        text = value.strip()
        if _INTEGER.fullmatch(text):
            interval_ms = int(text)
        elif _INTERVAL.fullmatch(text):
            interval_ms = _interval_ms(option, text, text)
    else:
        interval_ms = as_integer(value)
    if interval_ms is None or not 0 <= interval_ms <= LONG_MAX:
        raise OptionError(
            f"{option} is {_shown(value)}. Use an interval such as '10 minutes' or '1 hour 30 minutes', "
            "or a number of milliseconds."
        )
    return interval_ms


def _interval_ms(option: str, text: str, parts: str) -> int:
    total_ms = 0
    for count, unit in _RELATIVE_PART.findall(parts):
        name = unit.lower()
        unit_ms = _UNITS_MS.get(name) or _UNITS_MS.get(name.removesuffix("s"))
        if unit_ms is None:
            raise OptionError(
                f"{option} is {text!r}, and {unit!r} is not a unit of a fixed length. "
                "Use milliseconds, seconds, minutes, hours, days or weeks, as in '10 minutes'."
            )
        total_ms += int(count) * unit_ms
    return total_ms


def _time_of(value: dt.datetime, zone: dt.tzinfo) -> ParsedTime:
    has_zone = value.tzinfo is not None
    microseconds = ((value if has_zone else value.replace(tzinfo=zone)) - _EPOCH) // _ONE_MICROSECOND
    # Rounded up to whole milliseconds, as records carry them: the first one at or after the value.
    return ParsedTime(-(-microseconds // 1_000), has_zone=has_zone)


def parse_time_zone(option: str, value: object) -> dt.tzinfo:
    """Look up a time zone: an IANA name (``Europe/Berlin``), ``UTC``, ``Z`` or ``+02:00``."""
    if isinstance(value, dt.tzinfo):
        return value
    text = value.strip() if isinstance(value, str) else ""
    try:
        return _zone(text.upper() if text.upper() in _UTC else text)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        raise OptionError(
            f"{option} is {_shown(value)}, which is no known time zone. "
            "Use a name such as 'Europe/Berlin', 'UTC', or an offset such as '+02:00'."
        ) from None


def _not_a_time(option: str, value: object) -> OptionError:
    return OptionError(
        f"Expected a single long value, got {_shown(value)}: {option} takes epoch milliseconds "
        "(1767225600000), ISO-8601 (2026-01-01T00:00:00Z) or a time relative to now (-10 minutes)."
    )


def _shown(value: object) -> str:
    return value if isinstance(value, str) and value.strip() else repr(value)


def value_kind(text: str, parse: Callable[[str, Any], object]) -> Kind:
    """Return the kind of a value that depends on nothing else."""
    return Kind(text, lambda option, value, _context: parse(option, value))


def choice_kind(literal: Any) -> Kind:
    """Return the kind of an option that takes the words of a `Literal`."""
    choices = get_args(literal)
    return value_kind(code_list(choices), partial(parse_choice, choices=choices))


def code_list(names: Iterable[str]) -> str:
    """List names as code, the last one after "or"."""
    *first, last = (f"`{name}`" for name in names)
    return f"{', '.join(first)} or {last}"


BOOLEAN = value_kind("boolean", parse_boolean)
COUNT = value_kind("count", parse_count)
SIZE = value_kind("size", parse_size_bytes)
INTERVAL = value_kind("interval", parse_interval_ms)
BATCH_SIZE = value_kind("size", parse_max_batch_bytes)
BATCH_SIZE_DEFAULT = f"{DEFAULT_MAX_DECOMPRESSED_BATCH_BYTES >> 20}m"
