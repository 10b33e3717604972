"""What a commit does in the directory of one partition. To do it twice is harmless."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    producer_snapshot_bytes,
    read_leader_epoch_checkpoint,
    write_leader_epoch_checkpoint,
)
from storage_core.checkpoint.commit_journal import LinkOperation
from storage_core.checkpoint.partition_metadata import partition_metadata_bytes
from storage_core.errors import CorruptCheckpointError, CorruptError
from storage_core.publishing.append import append_staged
from storage_core.publishing.link import link_staged
from storage_core.segment.file_names import (
    log_file_name,
    offset_index_file_name,
    snapshot_file_name,
    time_index_file_name,
)

if TYPE_CHECKING:
    from storage_core.checkpoint import EpochEntry
    from storage_core.checkpoint.commit_journal import JournalledPartition
    from storage_core.filesystem import FileSystem
    from storage_core.log_config import LogConfig

__all__ = ["flush_published", "publish_partition"]

_MAX_SNAPSHOT_BYTES: Final = 16 * 1024 * 1024


def publish_partition(
    filesystem: FileSystem,
    root: str,
    partition: JournalledPartition,
    config: LogConfig,
    *,
    is_flushed: bool = True,
) -> list[str]:
    """Do what the journal says of one partition. Nothing of it is flushed here.

    Args:
        filesystem: Where to read and write.
        root: The log directory.
        partition: What to do.
        config: Of its topic.
        is_flushed: Whether it is flushed afterwards. If not, the log is recovered, which makes a first epoch file from its
            batches; a changed one is flushed here: torn, it would keep everybody from opening the log.

    Returns:
        The files that `flush_published` is to flush, the partition's directory last.

    Raises:
        CorruptError: The partition is not as it was when the commit began.
        StorageError: The file system refused.
    """
    directory = f"{root}/{partition.topic}-{partition.partition}"
    written: list[str] = []
    if partition.is_new:
        written += _make_directory(filesystem, directory, partition)
    for operation in partition.operations:
        if isinstance(operation, LinkOperation):
            link_staged(filesystem, root, directory, operation)
        else:
            written += append_staged(
                filesystem,
                root,
                directory,
                operation,
                partition.leader_epoch,
                config,
                keep_offsets=partition.keep_offsets,
            )
    written += _put_snapshot(filesystem, directory, partition)
    written += _put_epochs(filesystem, directory, partition, is_flushed=is_flushed)
    return [*dict.fromkeys(written), directory] if written or partition.operations else []


def flush_published(filesystem: FileSystem, paths: list[str]) -> None:
    """Bring what was published in one partition to the disk.

    Raises:
        StorageError: The file system refused.
    """
    if paths:
        for path in paths[:-1]:
            with filesystem.open_for_writing(path) as file:
                file.flush()
        filesystem.flush_directory(paths[-1])


def _make_directory(filesystem: FileSystem, directory: str, partition: JournalledPartition) -> list[str]:
    if filesystem.status(directory) is None:
        filesystem.make_directory(directory)
    written = []
    if partition.topic_id is not None:
        path = f"{directory}/{PARTITION_METADATA}"
        _put_file(filesystem, path, partition_metadata_bytes(partition.topic_id, path))
        written.append(path)
    if not partition.operations:
        # A log without any segment is none.
        for name in (log_file_name, offset_index_file_name, time_index_file_name):
            path = f"{directory}/{name(partition.log_end_after)}"
            _put_file(filesystem, path, b"")
            written.append(path)
    return written


def _put_snapshot(filesystem: FileSystem, directory: str, partition: JournalledPartition) -> list[str]:
    source = partition.snapshot_from
    if source is None or partition.log_end_after == partition.log_end_before:
        return []
    content: bytes | None
    if not isinstance(source, int):
        content = producer_snapshot_bytes(())
    else:
        content = filesystem.read_file(f"{directory}/{snapshot_file_name(source)}", _MAX_SNAPSHOT_BYTES)
    if content is None:
        raise CorruptError(
            f"Expected the snapshot of the producers at offset {source}, which was there when a commit began, found none. Bring it back, "
            "then open the log directory again: the commit is completed then.",
            path=directory,
        )
    path = f"{directory}/{snapshot_file_name(partition.log_end_after)}"
    _put_file(filesystem, path, content)
    return [path]


def _put_epochs(
    filesystem: FileSystem, directory: str, partition: JournalledPartition, *, is_flushed: bool
) -> list[str]:
    if not partition.epochs_after or partition.log_end_after == partition.log_end_before:
        return []
    path = os.path.join(directory, LEADER_EPOCH_CHECKPOINT)
    known: tuple[EpochEntry, ...] | None
    try:
        known = read_leader_epoch_checkpoint(filesystem, path)
    except CorruptCheckpointError:
        # Torn while this was done before.
        known = None
    if not is_flushed and known == ():
        return []
    if known != partition.epochs_after:
        write_leader_epoch_checkpoint(filesystem, path, partition.epochs_after, flush=not is_flushed)
    # Also if it was written before: by whom, and whether it was flushed, is not known.
    return [path]


def _put_file(filesystem: FileSystem, path: str, content: bytes) -> None:
    with filesystem.open_for_writing(path, create=True) as file:
        # What stands there was begun by the same commit.
        size_bytes = file.size_bytes()
        if size_bytes == len(content) and file.read_at(size_bytes, 0) == content:
            return
        if size_bytes:
            file.truncate(0)
        file.write_at([content], 0)
