"""``partition.metadata``: the topic id of a partition directory (Kafka's ``PartitionMetadataFile``).

Two lines, the second without a line end:

    version: 0
    topic_id: <16 bytes as URL-safe base64 without padding>
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING

from storage_core.checkpoint._small_file import (
    INT32_MAX,
    decode_text,
    parse_integer,
    read_small_file,
    replace_file,
    split_lines,
)
from storage_core.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from storage_core.filesystem import FileSystem

__all__ = [
    "PARTITION_METADATA",
    "is_topic_id",
    "parse_partition_metadata",
    "partition_metadata_bytes",
    "read_partition_metadata",
    "write_partition_metadata",
]

PARTITION_METADATA = "partition.metadata"

_VERSION = 0
_LIMIT_BYTES = 4096
# Java's \s.
_SEPARATOR = re.compile(r":[ \t\n\x0b\f\r]+")
_TOPIC_ID = re.compile(r"([A-Za-z0-9_-]{22})(==)?")
_ZERO_ID = "A" * 22


def is_topic_id(text: object) -> bool:
    """Whether a text is a topic's id as Kafka's ``Uuid`` writes it, padding left out, and not the one that stands for none."""
    return (
        isinstance(text, str)
        and _TOPIC_ID.fullmatch(text) is not None
        and _canonical(text) == text != _ZERO_ID
    )


def read_partition_metadata(filesystem: FileSystem, path: str) -> str | None:
    """Read the topic id (22 characters); None if the file does not exist.

    Raises:
        CorruptCheckpointError: The file cannot be parsed.
        UnreadableError: This user may not read it.
    """
    data = read_small_file(filesystem, path, _LIMIT_BYTES)
    return None if data is None else parse_partition_metadata(data, path)


def parse_partition_metadata(data: bytes, path: str) -> str:
    """Parse the content of ``partition.metadata``; the names before the colons are not looked at.

    Raises:
        CorruptCheckpointError: Something in it is not as the format says.
    """
    lines = split_lines(decode_text(data, path))
    version_text = _value(lines[0]) if lines else None
    version = None if version_text is None else parse_integer(version_text, INT32_MAX)
    # Kafka takes higher versions too, so that a downgraded broker still starts.
    if version is None or version < 0:
        raise _malformed(path, "'version: 0' in line 1", lines[:1])
    topic_id_text = _value(lines[1]) if len(lines) > 1 else None
    match = None if topic_id_text is None else _TOPIC_ID.fullmatch(topic_id_text)
    if match is None:
        raise _malformed(path, "'topic_id: <22 characters of base64>' in line 2", lines[1:2])
    topic_id = _canonical(match[1])
    if topic_id == _ZERO_ID:
        raise _malformed(path, "a topic id other than zero", lines[1:2])
    return topic_id


def write_partition_metadata(filesystem: FileSystem, path: str, topic_id: str) -> None:
    """Replace ``partition.metadata`` by one with this topic id (22 characters).

    Raises:
        CorruptCheckpointError: It is no topic id, or the zero id; nothing was written.
        StorageError: The file system refused.
    """
    replace_file(filesystem, path, partition_metadata_bytes(topic_id, path))


def partition_metadata_bytes(topic_id: str, path: str) -> bytes:
    """The content of ``partition.metadata``.

    Raises:
        CorruptCheckpointError: It is no topic id, or the zero id.
    """
    data = f"version: {_VERSION}\ntopic_id: {topic_id}".encode()
    if parse_partition_metadata(data, path) != topic_id:
        raise _malformed(path, "a topic id as Kafka writes it", [topic_id])
    return data


def _canonical(topic_id: str) -> str:
    """The last character holds only two bits of the id: encoded again, so that ids compare as text."""
    return base64.urlsafe_b64encode(base64.urlsafe_b64decode(topic_id[:22] + "==")).decode("ascii")[:22]


def _value(line: str) -> str | None:
    # Exactly one separator: a second one makes the line malformed, as in Kafka.
    _, *values = _SEPARATOR.split(line)
    return values[0] if len(values) == 1 else None


def _malformed(path: str, expected: str, lines: list[str]) -> CorruptCheckpointError:
    found = repr(lines[0][:80]) if lines else "the end of the file"
    message = f"Expected {expected}, found {found}. The file is damaged: restore it, or remove it."
    return CorruptCheckpointError(message, path=path)
