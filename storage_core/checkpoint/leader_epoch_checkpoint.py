"""The leader epochs of a partition (Kafka's ``LeaderEpochCheckpointFile`` and ``LeaderEpochFileCache``).

Text, version 0, one line ``<epoch> <start offset>`` per epoch, both ascending. Epochs are
assigned at election, so the last one may start at the log end and have no batch yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_core.checkpoint._checkpoint_file import (
    MAX_CHECKPOINT_BYTES,
    entry_fields,
    malformed_line,
    write_checkpoint,
)
from storage_core.checkpoint._small_file import INT32_MAX, INT64_MAX, parse_integer, read_small_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from storage_core.filesystem import FileSystem

__all__ = [
    "LEADER_EPOCH_CHECKPOINT",
    "EpochEntry",
    "parse_leader_epoch_checkpoint",
    "read_leader_epoch_checkpoint",
    "write_leader_epoch_checkpoint",
]

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"


@dataclass(frozen=True, slots=True)
class EpochEntry:
    """A leader epoch and the first offset written in it."""

    epoch: int
    start_offset: int


def read_leader_epoch_checkpoint(filesystem: FileSystem, path: str) -> tuple[EpochEntry, ...]:
    """Read ``leader-epoch-checkpoint``; a missing file has no entries.

    Raises:
        CorruptCheckpointError: The file cannot be parsed.
        UnreadableError: This user may not read it.
    """
    data = read_small_file(filesystem, path, MAX_CHECKPOINT_BYTES)
    return () if data is None else parse_leader_epoch_checkpoint(data, path)


def parse_leader_epoch_checkpoint(data: bytes, path: str) -> tuple[EpochEntry, ...]:
    """Parse the content of a leader epoch checkpoint.

    As in Kafka, an entry that is not above those before it in epoch and start offset takes their place.

    Raises:
        CorruptCheckpointError: Something in it is not as the format says.
    """
    entries: list[EpochEntry] = []
    for line_number, (epoch_text, start_text) in entry_fields(data, path, 2):
        epoch = parse_integer(epoch_text, INT32_MAX)
        start_offset = parse_integer(start_text, INT64_MAX)
        if epoch is None or start_offset is None or epoch < 0 or start_offset < 0:
            raise malformed_line(path, line_number, f"{epoch_text} {start_text}", "'<epoch> <start offset>'")
        _assign(entries, EpochEntry(epoch, start_offset))
    return tuple(entries)


def write_leader_epoch_checkpoint(
    filesystem: FileSystem, path: str, entries: Iterable[EpochEntry], *, flush: bool = True
) -> None:
    """Replace a leader epoch checkpoint by one with these entries, ascending in epoch and start offset.

    With ``flush=False`` the flush of the file and of its directory is left to the caller.

    Raises:
        StorageError: The file system refused.
    """
    write_checkpoint(
        filesystem, path, (f"{entry.epoch} {entry.start_offset}" for entry in entries), flush=flush
    )


def _assign(entries: list[EpochEntry], entry: EpochEntry) -> None:
    if entries and entry.epoch == entries[-1].epoch and entry.start_offset >= entries[-1].start_offset:
        return
    while entries and (entries[-1].epoch >= entry.epoch or entries[-1].start_offset >= entry.start_offset):
        entries.pop()
    entries.append(entry)
