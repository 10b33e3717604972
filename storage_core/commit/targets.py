"""Whether what a commit is to write to can be written to. Asked before the journal: behind it, it is too late to fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_core.checkpoint.commit_journal import AppendOperation
from storage_core.errors import LogDirectoryError
from storage_core.segment.file_names import log_file_name, offset_index_file_name, time_index_file_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from storage_core.checkpoint.commit_journal import JournalledPartition
    from storage_core.filesystem import FileSystem

__all__ = ["require_targets"]


def require_targets(filesystem: FileSystem, root: str, partitions: Iterable[JournalledPartition]) -> None:
    """Refuse partitions in whose directories this user may not write, or into which nothing can be linked.

    Raises:
        UnreadableError: This user may not write to a partition's directory, or to a file that is appended to.
        LogDirectoryError: A partition's directory is on another file system than the root.
    """
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
