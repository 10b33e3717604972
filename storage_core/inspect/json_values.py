"""Reports and rows of views as JSON can hold them."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import Any


def json_value(value: Any) -> Any:
    """A value as JSON can hold it.

    Dataclasses are objects with the names of their fields in camel case, as columns of views have them. Bytes that are
    UTF-8 are text, others ``{"base64": …}``. Bytes of a file name that are not UTF-8 become escapes, as in views.
    """
    if isinstance(value, str):
        return escaped_surrogates(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            camel_case(each.name): json_value(getattr(value, each.name)) for each in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {escaped_surrogates(str(name)): json_value(each) for name, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [json_value(each) for each in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _bytes_value(bytes(value))
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value


def camel_case(name: str) -> str:
    """The name of a field as a column of a view has it: ``baseOffset`` of ``base_offset``."""
    first, *others = name.split("_")
    return first + "".join(each.title() for each in others)


def escaped_surrogates(text: str) -> str:
    r"""Text of a file name with bytes that are not UTF-8, which Python has as surrogates, as escapes: ``\xff``."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _bytes_value(value: bytes) -> object:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
