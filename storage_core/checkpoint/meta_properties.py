"""``meta.properties`` in a log directory's root: which broker of which cluster owns it (Kafka's ``MetaProperties``).

Java properties text. Version 0 (or no version): ``broker.id`` and ``cluster.id``, both optional.
Version 1: ``node.id`` and ``cluster.id``. Both: ``directory.id``, optional.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_core.checkpoint._small_file import INT32_MAX, parse_integer, read_small_file
from storage_core.errors import CorruptCheckpointError
from storage_core.java_properties import parse_java_properties

if TYPE_CHECKING:
    from storage_core.filesystem import FileSystem

__all__ = ["META_PROPERTIES", "MetaProperties", "parse_meta_properties", "read_meta_properties"]

META_PROPERTIES = "meta.properties"

_LIMIT_BYTES = 64 * 1024


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
    try:
        properties = dict(parse_java_properties(data.decode("latin-1")))
    except ValueError as error:
        raise CorruptCheckpointError(f"{error} Restore the file.", path=path) from error
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
