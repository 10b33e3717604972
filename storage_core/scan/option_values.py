"""Parsing of single option values: from text, as Spark passes them, or from Python values."""

from __future__ import annotations

import json
import operator
import os
import re
import urllib.parse
from collections.abc import Iterable, Sequence
from typing import Final

from storage_core.errors import OptionError
from storage_core.scan.option_table import nearest_hint

__all__ = [
    "DEFAULT_MAX_DECOMPRESSED_BATCH_BYTES",
    "LARGEST_MAX_DECOMPRESSED_BATCH_BYTES",
    "parse_boolean",
    "parse_choice",
    "parse_columns",
    "parse_count",
    "parse_max_batch_bytes",
    "parse_paths",
    "parse_size_bytes",
    "parse_topics",
    "path_of",
]

DEFAULT_MAX_DECOMPRESSED_BATCH_BYTES: Final = 64 * 1024 * 1024
LARGEST_MAX_DECOMPRESSED_BATCH_BYTES: Final = 1024 * 1024 * 1024
"""Positions within a batch become Arrow's, which are 32 bits wide."""

_MAX_INTEGER = 2**63 - 1
_SIZE = re.compile(r"([0-9]{1,19})\s*(?:([kmgtp])(?:i?b)?|b)?", re.IGNORECASE)
_SIZE_SHIFTS = {"k": 10, "m": 20, "g": 30, "t": 40, "p": 50}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_NOT_LOCAL_SCHEMES = (
    "abfs",
    "abfss",
    "dbfs",
    "gs",
    "hdfs",
    "http",
    "https",
    "s3",
    "s3a",
    "s3n",
    "viewfs",
    "wasbs",
)


def parse_boolean(option: str, value: object) -> bool:
    """Parse ``true`` or ``false``."""
    if isinstance(value, bool):
        return value
    text = value.strip().lower() if isinstance(value, str) else None
    if text not in ("true", "false"):
        raise OptionError(f"{option} is {value!r}. Use true or false.")
    return text == "true"


def parse_choice(option: str, value: object, choices: Sequence[str]) -> str:
    """Parse one of a few words, in any case; returns it as documented."""
    text = value.strip().lower() if isinstance(value, str) else None
    for choice in choices:
        if choice.lower() == text:
            return choice
    raise OptionError(f"{option} is {value!r}. Use {' or '.join(choices)}.")


def parse_count(option: str, value: object, name_in_error: str) -> int:
    """Parse a positive whole number. The error's wording is that of Spark's Kafka source."""
    number: int | None = None
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", value):
        number = int(value)
    elif not isinstance(value, (bool, str)):
        number = _as_integer(value)
    if number is None or number > _MAX_INTEGER:
        raise OptionError(f"{option} is {value!r}. Use a whole number above 0.")
    if number <= 0:
        raise OptionError(f"{name_in_error} must be positive, but {option} is {value}.")
    return number


def parse_size_bytes(option: str, value: object) -> int:
    """Parse a positive size: bytes, or with a unit as in Spark's byte strings (``64k``, ``128mb``)."""
    number: int | None = None
    if isinstance(value, str):
        matched = _SIZE.fullmatch(value.strip())
        if matched:
            number = int(matched.group(1)) << _SIZE_SHIFTS.get((matched.group(2) or "").lower(), 0)
    elif not isinstance(value, bool):
        number = _as_integer(value)
    if number is None or not 0 < number <= _MAX_INTEGER:
        raise OptionError(
            f"{option} is {value!r}. Use a positive number of bytes, or a size such as 64k, 128m or 1g."
        )
    return number


def parse_max_batch_bytes(value: object) -> int:
    """Parse ``maxDecompressedBatchBytes``; None is its default."""
    if value is None:
        return DEFAULT_MAX_DECOMPRESSED_BATCH_BYTES
    size_bytes = parse_size_bytes("maxDecompressedBatchBytes", value)
    if size_bytes > LARGEST_MAX_DECOMPRESSED_BATCH_BYTES:
        raise OptionError(
            f"maxDecompressedBatchBytes is {value!r}. Use at most {LARGEST_MAX_DECOMPRESSED_BATCH_BYTES} bytes."
        )
    return size_bytes


def parse_topics(option: str, value: object) -> tuple[str, ...]:
    """Parse a comma separated list of topics; blanks and empty items do not count."""
    items = value.split(",") if isinstance(value, str) else _text_list(option, value, "topic names")
    topics = tuple(dict.fromkeys(item.strip() for item in items if item.strip()))
    if not topics:
        raise OptionError(f"No topics to subscribe to as specified value for option '{option}' is '{value}'")
    return topics


def parse_columns(option: str, value: object, known: Sequence[str]) -> tuple[str, ...]:
    """Parse column names: comma separated, or a JSON list.

    Raises:
        OptionError: A name is unknown or given twice, or there is none.
    """
    if isinstance(value, str):
        text = value.strip()
        items: list[str] = (
            _json_list(option, text, "column names") if text.startswith("[") else text.split(",")
        )
    else:
        items = _text_list(option, value, "column names")
    columns = tuple(item.strip() for item in items)
    if not any(columns):
        raise OptionError(f"{option} is {value!r}, which names no column. Use some of: {', '.join(known)}.")
    for index, column in enumerate(columns):
        if column not in known:
            raise OptionError(f"{option} names an unknown column '{column}'.{_column_hint(column, known)}")
        if column in columns[:index]:
            raise OptionError(f"{option} names '{column}' twice. Name each column once.")
    return columns


def _column_hint(column: str, known: Sequence[str]) -> str:
    if column == "headers":
        return " Set includeHeaders to true to have it."
    if column == "_metadata":
        return " Set includeMetadata to true to have it."
    return nearest_hint(column, known)


def parse_paths(option: str, value: object) -> tuple[str, ...]:
    """Parse ``path``: a text, a path object, or a list of them (also as JSON, as Spark passes lists).

    Texts are kept whole; whether a comma separates paths depends on what exists.
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
        path_of(path)
    return paths


def path_of(text: str) -> str:
    """The path that ``text`` names: itself, or what a ``file:`` URI says.

    Raises:
        OptionError: It is a URI of another scheme, or of another host.
    """
    matched = _SCHEME.match(text)
    scheme = matched.group(1).lower() if matched else text.partition(":")[0].lower()
    if scheme == "file" and text[len("file:") :].startswith("/"):
        return _file_uri_path(text)
    is_uri = matched is not None and ("://" in text[: matched.end() + 1] or scheme in _NOT_LOCAL_SCHEMES)
    if is_uri or (":" in text and scheme in _NOT_LOCAL_SCHEMES):
        raise OptionError(
            f"path {text!r} has the scheme '{scheme}'. Log directories stand on local or mounted "
            "file systems: copy or mount it, and give a path."
        )
    return text


def _file_uri_path(text: str) -> str:
    rest = text[len("file:") :]
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host.lower() not in ("", "localhost"):
            raise OptionError(f"path {text!r} names the host '{host}'. Use file:///<path>, or a plain path.")
        rest = slash + path
    return urllib.parse.unquote(rest)


def _json_list(option: str, text: str, what: str) -> list[str]:
    try:
        loaded: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{option} is {text!r}, which is no JSON list of {what}: {error}.") from None
    return _text_list(option, loaded, what)


def _text_list(option: str, value: object, what: str) -> list[str]:
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [item for item in value if isinstance(item, str)]
        if len(items) == len(value):
            return items
    raise OptionError(f"{option} is {value!r}. Use a text or a list of {what}.")


def _as_integer(value: object) -> int | None:
    try:
        return operator.index(value)  # type: ignore[arg-type]  # whatever is no integer raises
    except TypeError:
        return None
