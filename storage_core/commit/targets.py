"""Whether what a commit is to write to can be written to. Asked before the journal: behind it, it is too late to fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from storage_core.checkpoint import (
    CLEANER_OFFSET_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
)
from storage_core.checkpoint._small_file import TEMPORARY_SUFFIX
from storage_core.checkpoint.commit_journal import COMMIT_JOURNAL, AppendOperation
from storage_core.checkpoint.commits_file import COMMITS_FILE
from storage_core.errors import LogDirectoryError, StorageError
from storage_core.segment.file_names import (
    log_file_name,
    offset_index_file_name,
    snapshot_file_name,
    time_index_file_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from storage_core.checkpoint.commit_journal import JournalledPartition
    from storage_core.filesystem import FileSystem

__all__ = ["require_root", "require_space", "require_targets"]

# What is appended to; what is replaced is written under another name first.
_ROOT_FILES: Final = (
    COMMITS_FILE,
    *(
        name + TEMPORARY_SUFFIX
        for name in (
            COMMIT_JOURNAL,
            RECOVERY_POINT_CHECKPOINT,
            REPLICATION_OFFSET_CHECKPOINT,
            LOG_START_OFFSET_CHECKPOINT,
            CLEANER_OFFSET_CHECKPOINT,
        )
    ),
)
# Of each partition: a directory, indexes, a snapshot, epochs, each rounded up by the file system.
_SMALL_FILES_BYTES: Final = 24 * 1024
# Of the root: interlock, journal, commits, marker, and a checkpoint that takes the place of another.
_NEW_FILES_OF_ROOT: Final = 5
# A snapshot, epochs; of a new one its directory and its metadata, too.
_NEW_FILES_OF_PARTITION: Final = 2
_NEW_FILES_OF_NEW_PARTITION: Final = 4
_FILES_OF_SEGMENT: Final = 3


def require_root(filesystem: FileSystem, root: str) -> None:
    """Refuse a log directory whose own files this user may not write to.

    Raises:
        UnreadableError: This user may not write to one of them, or to the directory.
        LogDirectoryError: In the place of one of them stands something else.
    """
    filesystem.require_writable(root)
    for name in _ROOT_FILES:
        _require_file(filesystem, f"{root}/{name}")


def require_targets(filesystem: FileSystem, root: str, partitions: Iterable[JournalledPartition]) -> None:
    """Refuse what this user may not write to, and partitions into whose directories nothing can be linked.

    Raises:
        UnreadableError: This user may not write to a directory, or to a file that is written to.
        LogDirectoryError: A partition's directory is on another file system than the root, or in the place of a file
            stands something else.
    """
    require_root(filesystem, root)
    status = filesystem.status(root, follow_symlinks=True)
    device = None if status is None else status.device
    for partition in partitions:
        if partition.is_new or not partition.operations:
            continue
        directory = f"{root}/{partition.topic}-{partition.partition}"
        filesystem.require_writable(directory)
        status = filesystem.status(directory)
        if status is not None and status.device != device:
            raise LogDirectoryError(
                "Expected the directory of a partition on the file system of its log directory, found it on another "
                "one, to which staged files cannot be linked. Write to the log directory that is on that one, or move "
                "the partition's directory.",
                path=directory,
            )
        for operation in partition.operations:
            if isinstance(operation, AppendOperation):
                for name in (log_file_name, offset_index_file_name, time_index_file_name):
                    filesystem.require_writable(f"{directory}/{name(operation.segment_base_offset)}")
        for file_name in (
            LEADER_EPOCH_CHECKPOINT,
            LEADER_EPOCH_CHECKPOINT + TEMPORARY_SUFFIX,
            snapshot_file_name(partition.log_end_after),
        ):
            _require_file(filesystem, f"{directory}/{file_name}")


def require_space(filesystem: FileSystem, root: str, partitions: Sequence[JournalledPartition]) -> None:
    """Refuse to begin what the disk has no room for: bytes, or files where it takes only so many.

    What a quota of this user allows, no file system says.

    Raises:
        StorageError: There is too little.
    """
    operations = [operation for partition in partitions for operation in partition.operations]
    appends = [operation for operation in operations if isinstance(operation, AppendOperation)]
    needed_bytes = len(partitions) * _SMALL_FILES_BYTES
    needed_bytes += sum(staged.size_bytes for operation in appends for staged in operation.ranges)
    free_bytes = filesystem.free_bytes(root)
    if free_bytes < needed_bytes:
        raise StorageError(
            f"Expected {needed_bytes} bytes of free space for the commit, found {free_bytes}. Free some, and write "
            "again.",
            path=root,
        )
    # What is linked is there already, but tmpfs takes each name for a file.
    new_segments = len(operations) - sum(operation.size_before_bytes > 0 for operation in appends)
    needed_files = _NEW_FILES_OF_ROOT + _FILES_OF_SEGMENT * new_segments
    for partition in partitions:
        needed_files += _NEW_FILES_OF_NEW_PARTITION if partition.is_new else _NEW_FILES_OF_PARTITION
        needed_files += 0 if partition.operations else _FILES_OF_SEGMENT
    free_files = filesystem.free_files(root)
    if free_files is not None and free_files < needed_files:
        raise StorageError(
            f"Expected room for {needed_files} more files (inodes) for the commit, found room for {free_files}. Delete "
            "some files on this file system, and write again.",
            path=root,
        )


def _require_file(filesystem: FileSystem, path: str) -> None:
    status = filesystem.status(path)
    if status is None:
        return
    if not status.is_regular_file:
        raise LogDirectoryError(
            "Expected a regular file, or nothing, where a commit writes one, found something else. Move it away.",
            path=path,
        )
    filesystem.require_writable(path)
