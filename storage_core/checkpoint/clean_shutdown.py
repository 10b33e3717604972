"""``.kafka_cleanshutdown``: every log under this root was flushed and closed (Kafka's ``CleanShutdownFileHandler``).

A broker deletes it before it opens the first log, and writes it after it closed the last. Its
content (JSON with the broker's epoch; nothing at all before Kafka 3) does not matter here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage_core.filesystem import FileSystem

__all__ = ["CLEAN_SHUTDOWN_FILE", "has_clean_shutdown_file"]

CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"


def has_clean_shutdown_file(filesystem: FileSystem, root: str) -> bool:
    """Whether the log directory ``root`` was shut down cleanly.

    Raises:
        UnreadableError: This user may not look into it.
    """
    return filesystem.status(os.path.join(root, CLEAN_SHUTDOWN_FILE)) is not None
