"""Values of configuration keys: from text or a Python value to the type and range of the key."""

from __future__ import annotations

import difflib
import operator
import re
from typing import Any, TypeAlias

from storage_core.config import INT_MAX, LONG_MAX, ConfigKey, ConfigKind
from storage_core.errors import OptionError

__all__ = ["LogConfigValue", "parse_config_value"]

LogConfigValue: TypeAlias = bool | int | float | str | tuple[str, ...]

# What Integer.parseInt, Long.parseLong and Double.parseDouble take of a decimal number.
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_DECIMAL = re.compile(r"[+-]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?")
_BLANKS = " \t\n\r\f"
_SHOWN_CHARACTERS = 80
_KIND_LIMITS = {ConfigKind.INT: INT_MAX, ConfigKind.LONG: LONG_MAX}


def parse_config_value(key: ConfigKey, given: Any) -> LogConfigValue:
    """Bring a value to the type of its key, as Kafka's ``ConfigDef`` does, and check its range.

    Raises:
        OptionError: It is of another type or out of range.
    """
    if key.kind is ConfigKind.BOOLEAN:
        return _boolean(key, given)
    if key.kind is ConfigKind.LIST:
        return tuple(_require_choice(key, word, given) for word in _words(key, given))
    if key.kind is ConfigKind.STRING:
        if not isinstance(given, str):
            raise _wrong(key, given)
        return _require_choice(key, given.strip(_BLANKS), given)
    number = _decimal(key, given) if key.kind is ConfigKind.DOUBLE else _integer(key, given)
    minimum = key.minimum if key.minimum is not None else number
    maximum = key.maximum if key.maximum is not None else number
    # Not a number is within no limits.
    if not minimum <= number <= maximum or number in key.excluded:
        raise _wrong(key, given)
    return number


def _boolean(key: ConfigKey, given: Any) -> bool:
    if isinstance(given, bool):
        return given
    word = given.strip(_BLANKS).lower() if isinstance(given, str) else ""
    if word not in {"true", "false"}:
        raise _wrong(key, given)
    return word == "true"


def _integer(key: ConfigKey, given: Any) -> int:
    value: int
    if isinstance(given, str):
        text = given.strip(_BLANKS)
        if not _INTEGER.fullmatch(text):
            raise _wrong(key, given)
        value = int(text)
    else:
        if isinstance(given, bool):
            raise _wrong(key, given)
        try:
            # Also an integer of numpy; no float, whose digits may be lost already.
            value = operator.index(given)
        except TypeError:
            raise _wrong(key, given) from None
    limit = _KIND_LIMITS[key.kind]
    if not -limit - 1 <= value <= limit:
        raise _wrong(key, given)
    return value


def _decimal(key: ConfigKey, given: Any) -> float:
    if isinstance(given, str):
        text = given.strip(_BLANKS)
        if not _DECIMAL.fullmatch(text):
            raise _wrong(key, given)
        return float(text)
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise _wrong(key, given)
    try:
        return float(given)
    except OverflowError:
        raise _wrong(key, given) from None


def _words(key: ConfigKey, given: Any) -> list[str]:
    if isinstance(given, str):
        text = given.strip(_BLANKS)
        return [word.strip(_BLANKS) for word in text.split(",")] if text else []
    if not isinstance(given, (list, tuple)) or not all(isinstance(word, str) for word in given):
        raise _wrong(key, given)
    return list(given)


def _require_choice(key: ConfigKey, word: str, given: Any) -> str:
    if key.choices and word not in key.choices:
        nearest = difflib.get_close_matches(word, key.choices, n=1)
        raise _wrong(key, given, f" Did you mean '{nearest[0]}'?" if nearest else "")
    return word


def _wrong(key: ConfigKey, given: Any, hint: str = "") -> OptionError:
    shown = repr(given)[:_SHOWN_CHARACTERS]
    return OptionError(
        f"Expected as {key.name} a value of type {key.kind.value} ({key.range_text}), found {shown}.{hint}"
    )
