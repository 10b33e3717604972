"""Offset checkpoints in a log directory's root (Kafka's ``OffsetCheckpointFile``).

Text, version 0, one line ``<topic> <partition> <offset>`` per partition:

    recovery-point-offset-checkpoint    first offset not known to be flushed; absent means 0
    log-start-offset-checkpoint         log start, only where it is above the first segment's base offset
    replication-offset-checkpoint       high watermark
    cleaner-offset-checkpoint           first offset not yet compacted
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_core.checkpoint._checkpoint_file import (
    MAX_CHECKPOINT_BYTES,
    entry_fields,
    malformed_line,
    write_checkpoint,
)
from storage_core.checkpoint._small_file import INT32_MAX, INT64_MAX, parse_integer, read_small_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from storage_core.filesystem import FileSystem

__all__ = [
    "CLEANER_OFFSET_CHECKPOINT",
    "LOG_START_OFFSET_CHECKPOINT",
    "RECOVERY_POINT_CHECKPOINT",
    "REPLICATION_OFFSET_CHECKPOINT",
    "parse_offset_checkpoint",
    "read_offset_checkpoint",
    "write_offset_checkpoint",
]

RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
REPLICATION_OFFSET_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT = "cleaner-offset-checkpoint"


def read_offset_checkpoint(filesystem: FileSystem, path: str) -> dict[tuple[str, int], int]:
    """Read an offset checkpoint; a missing file has no entries.

    Returns:
        The offset of each (topic, partition).

    Raises:
        CorruptCheckpointError: The file cannot be parsed.
        UnreadableError: This user may not read it.
    """
    data = read_small_file(filesystem, path, MAX_CHECKPOINT_BYTES)
    return {} if data is None else parse_offset_checkpoint(data, path)


def parse_offset_checkpoint(data: bytes, path: str) -> dict[tuple[str, int], int]:
    """Parse the content of an offset checkpoint. Of two lines for one partition the later counts.

    Raises:
        CorruptCheckpointError: Something in it is not as the format says.
    """
    offsets: dict[tuple[str, int], int] = {}
    for line_number, (topic, partition_text, offset_text) in entry_fields(data, path, 3):
        partition = parse_integer(partition_text, INT32_MAX)
        offset = parse_integer(offset_text, INT64_MAX)
        if partition is None or offset is None:
            line = f"{topic} {partition_text} {offset_text}"
            raise malformed_line(path, line_number, line, "'<topic> <partition> <offset>'")
        offsets[topic, partition] = offset
    return offsets


def write_offset_checkpoint(
    filesystem: FileSystem, path: str, offsets: Mapping[tuple[str, int], int]
) -> None:
    """Replace an offset checkpoint by one with the offset of each (topic, partition).

    Kafka writes them in the order of its hash map; here they are sorted.

    Raises:
        StorageError: The file system refused.
    """
    lines = (f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items()))
    write_checkpoint(filesystem, path, lines)
