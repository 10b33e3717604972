"""``.kafka_cleanshutdown``: every log under this root was flushed and closed (Kafka's ``CleanShutdownFileHandler``).

A broker deletes it before it opens the first log, and writes it after it closed the last. Its
content (JSON with the broker's epoch; nothing at all before Kafka 3) does not matter here: what
is written has no epoch, as a broker that had none.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage_core.filesystem import FileSystem

__all__ = [
    "CLEAN_SHUTDOWN_FILE",
    "delete_clean_shutdown_file",
    "has_clean_shutdown_file",
    "write_clean_shutdown_file",
]

CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"

_CONTENT = b'{"version":0,"brokerEpoch":-1}'


def has_clean_shutdown_file(filesystem: FileSystem, root: str) -> bool:
    """Whether the log directory ``root`` was shut down cleanly.

    Raises:
        UnreadableError: This user may not look into it.
    """
    return filesystem.status(os.path.join(root, CLEAN_SHUTDOWN_FILE)) is not None


def write_clean_shutdown_file(filesystem: FileSystem, root: str) -> None:
    """Say that every log under ``root`` was flushed and closed: for good when this returns.

    It is written in place, as Kafka does: of this file the existence counts.

    Raises:
        StorageError: The file system refused.
    """
    with filesystem.open_for_writing(os.path.join(root, CLEAN_SHUTDOWN_FILE), create=True) as file:
        file.truncate(0)
        file.write_at([_CONTENT], 0)
        file.flush()
    filesystem.flush_directory(root)


def delete_clean_shutdown_file(filesystem: FileSystem, root: str) -> bool:
    """Say no more that ``root`` was shut down cleanly: for good when this returns. False if nothing said so.

    Raises:
        StorageError: The file system refused.
    """
    was_there = filesystem.delete(os.path.join(root, CLEAN_SHUTDOWN_FILE))
    # Also without the file: whoever deleted it may have crashed before its flush.
    filesystem.flush_directory(root)
    return was_there
