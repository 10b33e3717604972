"""``.kafka_cleanshutdown``: every log under this root was flushed and closed (Kafka's ``CleanShutdownFileHandler``).

A broker deletes it before it opens the first log, and writes it after it closed the last. Its
content (JSON with the broker's epoch; nothing at all before Kafka 3) does not matter here. But a controller
compares the epoch, so who takes a broker's marker away puts the same one back; a new one has no epoch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from storage_core.errors import LogDirectoryError, UnreadableError

if TYPE_CHECKING:
    from storage_core.filesystem import FileStatus, FileSystem

__all__ = [
    "CLEAN_SHUTDOWN_FILE",
    "clean_shutdown_status",
    "delete_clean_shutdown_file",
    "has_clean_shutdown_file",
    "read_clean_shutdown_file",
    "write_clean_shutdown_file",
]

CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"

_WITHOUT_EPOCH = b'{"version":0,"brokerEpoch":-1}'
_LIMIT_BYTES = 4096


def has_clean_shutdown_file(filesystem: FileSystem, root: str) -> bool:
    """Whether the log directory ``root`` was shut down cleanly.

    Raises:
        UnreadableError: This user may not look into it.
    """
    return clean_shutdown_status(filesystem, root) is not None


def clean_shutdown_status(filesystem: FileSystem, root: str) -> FileStatus | None:
    """What tells this marker from one that was written before or after it; None without one.

    Raises:
        UnreadableError: This user may not look into the log directory.
    """
    return filesystem.status(os.path.join(root, CLEAN_SHUTDOWN_FILE))


def read_clean_shutdown_file(filesystem: FileSystem, root: str) -> bytes | None:
    """The marker as it stands there; None without one, or if it is none that a broker wrote.

    Raises:
        UnreadableError: This user may not read it.
    """
    try:
        return filesystem.read_file(os.path.join(root, CLEAN_SHUTDOWN_FILE), _LIMIT_BYTES)
    except UnreadableError:
        raise
    except LogDirectoryError:
        return None


def write_clean_shutdown_file(filesystem: FileSystem, root: str, content: bytes | None = None) -> None:
    """Say that every log under ``root`` was flushed and closed: for good when this returns.

    It is written in place, as Kafka does: of this file the existence counts.

    Args:
        filesystem: Where to write.
        root: The log directory.
        content: The marker that was there before; None for one without an epoch.

    Raises:
        StorageError: The file system refused.
    """
    with filesystem.open_for_writing(os.path.join(root, CLEAN_SHUTDOWN_FILE), create=True) as file:
        file.truncate(0)
        file.write_at([_WITHOUT_EPOCH if content is None else content], 0)
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
