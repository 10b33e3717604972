"""``meta.properties`` in a log directory's root: which broker of which cluster owns it (Kafka's ``MetaProperties``).

Java properties text. Version 0 (or no version): ``broker.id`` and ``cluster.id``, both optional.
Version 1: ``node.id`` and ``cluster.id``. Both: ``directory.id``, optional.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_core.checkpoint._small_file import INT32_MAX, parse_integer, read_small_file
from storage_core.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.filesystem import FileSystem

__all__ = ["META_PROPERTIES", "MetaProperties", "parse_meta_properties", "read_meta_properties"]

META_PROPERTIES = "meta.properties"

_LIMIT_BYTES = 64 * 1024
_BLANKS = " \t\f"
_LINE_END = re.compile(r"\r\n|\n|\r")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.)|$)", re.DOTALL)
_ESCAPED_BLANKS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """Who owns a log directory. What the file does not say is None."""

    version: int
    node_id: int | None
    cluster_id: str | None
    directory_id: str | None


def read_meta_properties(filesystem: FileSystem, path: str) -> MetaProperties | None:
    """Read ``meta.properties``; None if it does not exist.

    Raises:
        CorruptCheckpointError: The file cannot be parsed.
        UnreadableError: This user may not read it.
    """
    data = read_small_file(filesystem, path, _LIMIT_BYTES)
    return None if data is None else parse_meta_properties(data, path)


def parse_meta_properties(data: bytes, path: str) -> MetaProperties:
    """Parse the content of ``meta.properties``.

    Raises:
        CorruptCheckpointError: The version is unknown, or a property is missing or no number.
    """
    # Java reads property files as ISO 8859-1, in which every byte is a character.
    properties = dict(_properties(data.decode("latin-1")))
    version = _integer(properties, "version", path)
    if version is None:
        version = 0
    if version not in (0, 1):
        message = f"Expected version 0 or 1 in {META_PROPERTIES}, found {version}. A newer Kafka wrote it."
        raise CorruptCheckpointError(message, path=path)
    node_id = _integer(properties, "broker.id" if version == 0 else "node.id", path)
    cluster_id = properties.get("cluster.id")
    if version == 1 and (node_id is None or cluster_id is None):
        missing = "node.id" if node_id is None else "cluster.id"
        message = f"Expected {missing} in {META_PROPERTIES} of version 1, found none. Restore the file."
        raise CorruptCheckpointError(message, path=path)
    return MetaProperties(version, node_id, cluster_id, properties.get("directory.id"))


def _integer(properties: dict[str, str], name: str, path: str) -> int | None:
    text = properties.get(name)
    if text is None:
        return None
    value = parse_integer(text, INT32_MAX)
    if value is None:
        message = f"Expected a whole number as {name}, found {text[:80]!r}. Restore the file."
        raise CorruptCheckpointError(message, path=path)
    return value


def _properties(text: str) -> Iterator[tuple[str, str]]:
    for line in _logical_lines(text):
        key_end = _key_end(line)
        rest = line[key_end:].lstrip(_BLANKS)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANKS)
        yield _unescape(line[:key_end]), _unescape(rest)


def _logical_lines(text: str) -> Iterator[str]:
    """Join lines that end in an odd number of backslashes; leave out comments and blank lines."""
    pending: str | None = None
    for natural_line in _LINE_END.split(text):
        line = natural_line.lstrip(_BLANKS)
        if pending is None and (not line or line[0] in "#!"):
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
    return _ESCAPE.sub(_unescaped, text)


def _unescaped(match: re.Match[str]) -> str:
    if match[1] is not None:
        return chr(int(match[1], 16))
    character = match[2] or ""
    return _ESCAPED_BLANKS.get(character, character)
