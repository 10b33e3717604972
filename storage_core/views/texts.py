"""Values as JSON can hold them, and sizes, durations and counts as texts for people."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

_TIMESTAMP: Final = "timestamp_ms"
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_KIBI: Final = 1024
_SIZE_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
_TIME_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms"))
_PLURALS: Final = {"batch": "batches", "directory": "directories"}


def json_value(value: Any) -> Any:
    """Convert a value to one that JSON can hold.

    Dataclasses are objects whose keys are those of `key_of`. Bytes that are UTF-8 are text, others ``{"base64": …}``.
    Bytes of a file name that are not UTF-8 become escapes, as in views. Times are those of UTC.
    """
    if isinstance(value, str):
        return escaped_surrogates(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in dataclasses.fields(value)]
        return {key_of(name): _field_value(name, getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {escaped_surrogates(str(name)): json_value(each) for name, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [json_value(each) for each in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _bytes_value(bytes(value))
    return value


def json_text(value: object, *, indent: int | None = None, is_ascii: bool = False) -> str:
    """Return JSON of a `json_value` in which all that a terminal would interpret or hide is an escape."""
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent)
    if text.isprintable():
        return text
    return "".join(each if each == "\n" or each.isprintable() else json.dumps(each)[1:-1] for each in text)


def key_of(name: str) -> str:
    """Return the key of a dataclass's field, as a view would name it: ``maxTimestamp`` for ``max_timestamp_ms``."""
    first, *others = (name.removesuffix("_ms") if name.endswith(_TIMESTAMP) else name).split("_")
    return first + "".join(each.title() for each in others)


def _field_value(name: str, value: Any) -> Any:
    return timestamp_text(value) if name.endswith(_TIMESTAMP) else json_value(value)


def timestamp_text(timestamp_ms: int | None, zone: dt.tzinfo = dt.UTC) -> str | None:
    """Write a time as ISO-8601 with its zone.

    Returns:
        The text; the milliseconds as text where no calendar has the time; None for None.
    """
    if timestamp_ms is None:
        return None
    try:
        moment = (_EPOCH + dt.timedelta(milliseconds=timestamp_ms)).astimezone(zone)
    except OverflowError:
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def escaped_surrogates(text: str) -> str:
    r"""Escape the bytes of a file name that are not UTF-8, which Python holds as surrogates: ``\xff``."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _bytes_value(value: bytes) -> object:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def size_text(size_bytes: float) -> str:
    """Write a number of bytes in its largest unit: ``1.5 MiB``."""
    unit = 0
    while size_bytes >= _KIBI and unit + 1 < len(_SIZE_UNITS):
        size_bytes /= _KIBI
        unit += 1
    return f"{size_bytes:,.0f} bytes" if unit == 0 else f"{size_bytes:,.1f} {_SIZE_UNITS[unit]}"


def duration_text(duration_ms: int) -> str:
    """Write a duration in its two largest units: ``3 d 4 h``, ``12 s 500 ms``."""
    sign, rest_ms = ("-", -duration_ms) if duration_ms < 0 else ("", duration_ms)
    for (unit_ms, unit), (next_ms, next_unit) in pairwise(_TIME_UNITS):
        if rest_ms >= unit_ms:
            rest = rest_ms % unit_ms // next_ms
            return f"{sign}{rest_ms // unit_ms} {unit}" + (f" {rest} {next_unit}" if rest else "")
    return f"{sign}{rest_ms} ms"


def count_text(number: int, what: str) -> str:
    """Write a number of things: ``1 segment``, ``1,200 segments``."""
    return f"{number:,} {what if number == 1 else _PLURALS.get(what, f'{what}s')}"
