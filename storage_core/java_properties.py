r"""Text of Java properties files, as ``java.util.Properties.load`` reads it.

    # comment            also ! comment
    key=value            also key:value, key value, and blanks around the separator
    key=a value \
        that goes on     blanks at the beginning of a line are left out
    key=\u00e9\t          escapes; a backslash before any other character stands for that character
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["parse_java_properties"]

_BLANKS = " \t\f"
_LINE_END = re.compile(r"\r\n|\n|\r")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.)|$)", re.DOTALL)
_ESCAPED_BLANKS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_java_properties(text: str) -> Iterator[tuple[str, str]]:
    r"""Yield key and value of each property in order; of two with one key Java keeps the later.

    Raises:
        ValueError: A ``\u`` is not followed by four hexadecimal digits.
    """
    for line in _logical_lines(text):
        key_end = _key_end(line)
        rest = line[key_end:].lstrip(_BLANKS)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANKS)
        yield _unescape(line[:key_end]), _unescape(rest)


def _logical_lines(text: str) -> Iterator[str]:
    """Join lines that end in an odd number of backslashes; leave out comments and blank lines."""
    pending: str | None = None
    natural_lines = _LINE_END.split(text)
    if natural_lines[-1] == "":
        # Behind the last line end is no line.
        natural_lines.pop()
    for natural_line in natural_lines:
        line = natural_line.lstrip(_BLANKS)
        if not pending and (not line or line[0] in "#!"):
            pending = None
            continue
        line = (pending or "") + line
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2 == 1:
            pending = line[:-1]
            continue
        pending = None
        yield line
    if pending is not None:
        yield pending


def _key_end(line: str) -> int:
    position = 0
    while position < len(line) and line[position] not in "=: \t\f":
        position += 2 if line[position] == "\\" else 1
    return min(position, len(line))


def _unescape(text: str) -> str:
    unescaped = _ESCAPE.sub(_unescaped, text)
    # A character beyond 16 bits is escaped as two halves.
    return unescaped.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _unescaped(match: re.Match[str]) -> str:
    if match[1] is not None:
        return chr(int(match[1], 16))
    character = match[2] or ""
    if character == "u":
        found = match.string[match.start() : match.start() + 6]
        raise ValueError(f"Expected four hexadecimal digits behind \\u, found {found!r}.")
    return _ESCAPED_BLANKS.get(character, character)
