"""Appending staged batches to the end of a segment, as a broker does it: the log file, and the entries of its indexes.

Everything is counted from the sizes in the journal. So it comes to the same however often it was begun.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint.stage_names import data_suffix_of
from storage_core.errors import CorruptError
from storage_core.publishing.batch_heads import BatchHeads
from storage_core.publishing.copy_batches import copy_batches
from storage_core.publishing.lost_files import lost_staged_file
from storage_core.segment.file_names import (
    log_file_name,
    offset_index_file_name,
    time_index_file_name,
    transaction_index_file_name,
)
from storage_core.segment.index_builder import IndexBuilder
from storage_core.segment.time_index import ENTRY_SIZE_BYTES as TIME_ENTRY_BYTES
from storage_core.segment.time_index import parse_time_entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from storage_core.checkpoint.commit_journal import AppendOperation
    from storage_core.filesystem import FileSystem, OpenFile, WritableFile
    from storage_core.log_config import LogConfig

__all__ = ["append_staged", "open_cut"]

_JOINED_BATCHES: Final = 1024


def append_staged(
    filesystem: FileSystem,
    root: str,
    directory: str,
    operation: AppendOperation,
    leader_epoch: int,
    config: LogConfig,
    *,
    keep_offsets: bool = False,
) -> list[str]:
    """Cut a segment's files to their journalled sizes, and append to them. Nothing is flushed.

    Args:
        filesystem: Where to read and write.
        root: The log directory, in which the staged files stand.
        directory: The partition's directory.
        operation: What to append, and where.
        leader_epoch: The epoch that the batches get.
        config: Says how far index entries lie apart, and how many there may be.
        keep_offsets: Whether the batches have the offsets already that they are to have.

    Returns:
        The files to be flushed.

    Raises:
        CorruptError: A file is shorter than the journal says, or a staged batch is damaged.
        StorageError: The file system refused.
    """
    segment = operation.segment_base_offset
    paths = [
        f"{directory}/{name(segment)}"
        for name in (log_file_name, offset_index_file_name, time_index_file_name)
    ]
    log_path, index_path, time_index_path = paths
    if not operation.size_before_bytes:
        # Of a segment that was deleted.
        filesystem.delete(f"{directory}/{transaction_index_file_name(segment)}")
    offset_entries, time_entries = bytearray(), bytearray()
    with open_cut(filesystem, time_index_path, operation.time_index_size_before_bytes) as time_index:
        indexes = _index_builder(time_index, operation, config)
        with open_cut(filesystem, log_path, operation.size_before_bytes) as log:
            offset = None if keep_offsets else operation.base_offset
            for heads in _joined(_appended(filesystem, root, operation, log, offset, leader_epoch)):
                timestamps_ms = heads.headers["max_timestamp_ms"]
                added = indexes.add(heads.last_offsets, timestamps_ms, heads.sizes_bytes, heads.start_bytes)
                offset_entries += added[0]
                time_entries += added[1]
        with open_cut(filesystem, index_path, operation.index_size_before_bytes) as index:
            index.write_at([offset_entries], operation.index_size_before_bytes)
        time_entries += indexes.last_entry()
        time_index.write_at([time_entries], operation.time_index_size_before_bytes)
    return paths


def _appended(
    filesystem: FileSystem,
    root: str,
    operation: AppendOperation,
    log: WritableFile,
    offset: int | None,
    leader_epoch: int,
) -> Iterator[BatchHeads]:
    """Append the ranges, one behind the other."""
    position_bytes = operation.size_before_bytes
    # Those of one file stand together.
    for file, ranges in groupby(operation.ranges, key=attrgetter("file")):
        with _open_staged(filesystem, f"{root}/{file}{data_suffix_of(file)}") as pack:
            for staged in ranges:
                for heads in copy_batches(pack, staged, log, position_bytes, offset, leader_epoch):
                    if offset is not None:
                        offset += heads.offset_count
                    yield heads
                position_bytes += staged.size_bytes


def _open_staged(filesystem: FileSystem, path: str) -> OpenFile:
    try:
        return filesystem.open(path)
    except FileNotFoundError as error:
        raise lost_staged_file(path) from error


def _joined(parts: Iterable[BatchHeads]) -> Iterator[BatchHeads]:
    """The same batches, more of them at a time: what is done with them takes as long for one as for many."""
    pending: list[BatchHeads] = []
    count = 0
    for heads in parts:
        pending.append(heads)
        count += len(heads.headers)
        if count >= _JOINED_BATCHES:
            yield BatchHeads.joined(pending)
            pending, count = [], 0
    if pending:
        yield BatchHeads.joined(pending)


def open_cut(filesystem: FileSystem, path: str, size_bytes: int) -> WritableFile:
    """Open a file, which is made if it is to be empty, and cut it to a size.

    Raises:
        CorruptError: It is shorter.
    """
    file = filesystem.open_for_writing(path, create=size_bytes == 0)
    try:
        found_bytes = file.size_bytes()
        if found_bytes > size_bytes:
            file.truncate(size_bytes)
    except BaseException:
        file.close()
        raise
    if found_bytes < size_bytes:
        file.close()
        raise CorruptError(
            f"Expected at least the {size_bytes} bytes that this file had when a commit began, found "
            f"{found_bytes}: somebody else has changed it since. Bring it back, then open the log directory "
            "again: the commit is completed then.",
            path=path,
        )
    return file


def _index_builder(time_index: WritableFile, operation: AppendOperation, config: LogConfig) -> IndexBuilder:
    """Goes on where the indexes end. The time index was completed when the log was closed."""
    segment, size_bytes = operation.segment_base_offset, operation.time_index_size_before_bytes
    last_time = None
    if size_bytes >= TIME_ENTRY_BYTES:
        data = time_index.read_at(TIME_ENTRY_BYTES, size_bytes - TIME_ENTRY_BYTES)
        last_time = parse_time_entry(data, segment)
    return IndexBuilder(
        segment,
        config,
        offset_index_bytes=operation.index_size_before_bytes,
        time_index_bytes=size_bytes,
        last_time=last_time,
    )
