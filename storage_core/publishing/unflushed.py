"""``.segmentlog-unflushed`` in a root: the last commit has left it unflushed, and nobody was at work since.

A job that flushes nothing leaves its log directory like that of a running broker: without the marker of a clean
shutdown, so that whoever opens it next recovers its logs. Only the next such job need not: as long as the machine
runs, what was written is there. Two lines, JSON and its CRC:

    {"version":1,"generation":8,"boot":"<id of this run of the machine>","checkpoints":[[<inode>,<ms>,<bytes>],…]}

The generation is that of the last commit. The checkpoints are those that a broker writes while it runs. Where there
is no such file, or one that does not fit, the root is recovered.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

from storage_core.checkpoint import (
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
)
from storage_core.checkpoint.commits_file import OWN_PREFIX
from storage_core.checkpoint.json_fields import json_file_bytes
from storage_core.errors import LogDirectoryError, SegmentLogError

if TYPE_CHECKING:
    from storage_core.filesystem import FileSystem

__all__ = [
    "UNFLUSHED_FILE",
    "forget_unflushed",
    "is_as_left_unflushed",
    "note_unflushed",
]

UNFLUSHED_FILE: Final = f"{OWN_PREFIX}unflushed"

_VERSION: Final = 1
# Linux gives each run of the machine one; the file says that it is empty.
_BOOT_ID_FILE: Final = "/proc/sys/kernel/random/boot_id"
_LONGEST_BOOT_ID_BYTES: Final = 64
_BOOT_ID: Final = re.compile(rb"[0-9A-Za-z-]{1,64}")
_LIMIT_BYTES: Final = 4096


def note_unflushed(filesystem: FileSystem, root: str, generation: int) -> None:
    """Note that a commit has left the root unflushed. Where the machine has no id, nothing is noted.

    Raises:
        StorageError: The file system refused.
    """
    data = _note(filesystem, root, generation)
    if data is not None:
        with filesystem.open_for_writing(os.path.join(root, UNFLUSHED_FILE), create=True) as file:
            file.truncate(0)
            file.write_at([data], 0)


def is_as_left_unflushed(filesystem: FileSystem, root: str, generation: int) -> bool:
    """Whether the root is as the commit with a generation, which did not flush, has left it in this run of the machine."""
    try:
        data = filesystem.read_file(os.path.join(root, UNFLUSHED_FILE), _LIMIT_BYTES)
    except LogDirectoryError:
        return False
    return data is not None and data == _note(filesystem, root, generation)


def forget_unflushed(filesystem: FileSystem, root: str) -> None:
    """Have the root recovered by whoever writes next, unless it is clean.

    Raises:
        StorageError: The file system refused.
    """
    filesystem.delete(os.path.join(root, UNFLUSHED_FILE))


def _note(filesystem: FileSystem, root: str, generation: int) -> bytes | None:
    boot_id = _boot_id_of_machine(filesystem)
    if boot_id is None:
        return None
    checkpoints = [
        _identity(filesystem, os.path.join(root, name))
        for name in (RECOVERY_POINT_CHECKPOINT, REPLICATION_OFFSET_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT)
    ]
    return json_file_bytes(
        {"version": _VERSION, "generation": generation, "boot": boot_id, "checkpoints": checkpoints}
    )


def _identity(filesystem: FileSystem, path: str) -> list[Any] | None:
    status = filesystem.status(path)
    return None if status is None else [status.inode, status.modified_ms, status.size_bytes]


def _boot_id_of_machine(filesystem: FileSystem) -> str | None:
    """What this run of the machine goes by; None where it does not tell."""
    try:
        with filesystem.open(_BOOT_ID_FILE) as file:
            data = file.read_at(_LONGEST_BOOT_ID_BYTES, 0).strip()
    except SegmentLogError:
        return None
    return data.decode("ascii") if _BOOT_ID.fullmatch(data) else None
