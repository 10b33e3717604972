"""Whether all is there that a journal names: asked where the job did not flush, and somebody else is to finish it.

What was written is there as long as the machine runs, whoever was killed. After a power cut some of it may be torn
or missing, and then the commit cannot be completed. Where somebody has appended since, it must not be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from storage_core.checkpoint.commit_journal import AppendOperation, LinkOperation
from storage_core.checkpoint.stage_names import data_suffix_of
from storage_core.errors import CorruptError
from storage_core.publishing.link import is_published_copy
from storage_core.record.batch_fingerprint import batch_fingerprint
from storage_core.record.record_batches import RecordBatches
from storage_core.segment.file_names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    base_offset_of,
    snapshot_file_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.checkpoint.commit_journal import CommitJournal, JournalledPartition
    from storage_core.filesystem import FileSystem, OpenFile

__all__ = ["is_whole"]

_WINDOW_BYTES: Final = 1024 * 1024


def is_whole(filesystem: FileSystem, root: str, journal: CommitJournal) -> bool:
    """Whether a commit can be completed: all that it names is whole, and nothing else stands where it goes.

    All bytes are read, and their CRCs checked.

    Raises:
        UnreadableError: This user may not read something.
        StorageError: The file system refused.
    """
    try:
        for partition in journal.partitions:
            _Check(filesystem, root, partition).run()
    except (CorruptError, FileNotFoundError):
        return False
    return True


class _Check:
    """Of one partition. What is wrong is raised."""

    def __init__(self, filesystem: FileSystem, root: str, partition: JournalledPartition) -> None:
        self._filesystem = filesystem
        self._root = root
        self._partition = partition
        self._directory = f"{root}/{partition.topic}-{partition.partition}"
        # How long the log files are that are written to, once all is done.
        self._ends_bytes: dict[int, int] = {}
        self._linked: dict[int, dict[str, str]] = {}

    def run(self) -> None:
        partition = self._partition
        if not partition.is_new:
            self._require_there(self._directory)
        if isinstance(partition.snapshot_from, int) and partition.log_end_after != partition.log_end_before:
            self._require_there(f"{self._directory}/{snapshot_file_name(partition.snapshot_from)}")
        for operation in partition.operations:
            if isinstance(operation, LinkOperation):
                self._link(operation)
            else:
                self._append(operation)
        self._require_no_others()

    def _link(self, operation: LinkOperation) -> None:
        """The staged segment, or what was published of it, has its batches at their places, and both indexes."""
        target = f"{self._directory}/{operation.base_offset:020d}"
        stem = f"{self._root}/{operation.file}"
        is_copy = is_published_copy(self._filesystem, stem, target)
        paths = {
            suffix: target + suffix
            if is_copy and self._filesystem.status(target + suffix) is not None
            else stem + suffix
            for suffix in (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        }
        for path in paths.values():
            self._require_there(path)
        found, next_offset = 0, operation.base_offset
        with self._filesystem.open(paths[LOG_SUFFIX]) as log:
            for batches in _batches(log, 0, operation.size_bytes, next_offset):
                found = batch_fingerprint(batches.headers, found)
                # No CRC covers what was patched.
                next_offset = _next_offset(
                    log.path, batches, next_offset, has_gaps=self._partition.keep_offsets
                )
                if (batches.headers["leader_epoch"] != self._partition.leader_epoch).any():
                    raise CorruptError("Expected batches of another leader epoch.", path=log.path)
        if found != operation.fingerprint:
            raise CorruptError("Expected a staged segment with another fingerprint.", path=paths[LOG_SUFFIX])
        self._ends_bytes[operation.base_offset] = operation.size_bytes
        self._linked[operation.base_offset] = paths

    def _append(self, operation: AppendOperation) -> None:
        """The ranges are whole, and so is what they are appended to."""
        segment = operation.segment_base_offset
        linked = self._linked.get(segment)
        stem = f"{self._directory}/{segment:020d}"
        paths = linked or {suffix: stem + suffix for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)}
        for suffix, size_bytes in (
            (OFFSET_INDEX_SUFFIX, operation.index_size_before_bytes),
            (TIME_INDEX_SUFFIX, operation.time_index_size_before_bytes),
        ):
            # What is to be empty is made.
            if size_bytes:
                self._require_there(paths[suffix], size_bytes)
        if linked is None and operation.size_before_bytes:
            next_offset = segment
            with self._filesystem.open(stem + LOG_SUFFIX) as log:
                for batches in _batches(log, 0, operation.size_before_bytes, next_offset):
                    next_offset = _next_offset(log.path, batches, next_offset, has_gaps=True)
            if next_offset > operation.base_offset:
                raise CorruptError("Expected a log that ends where a commit begins.", path=stem + LOG_SUFFIX)
        next_offset = operation.base_offset if self._partition.keep_offsets else 0
        for staged in operation.ranges:
            end_bytes = staged.position_bytes + staged.size_bytes
            with self._filesystem.open(f"{self._root}/{staged.file}{data_suffix_of(staged.file)}") as pack:
                for batches in _batches(pack, staged.position_bytes, end_bytes, 0):
                    if self._partition.keep_offsets:
                        next_offset = _next_offset(pack.path, batches, next_offset, has_gaps=True)
        appended_bytes = sum(staged.size_bytes for staged in operation.ranges)
        self._ends_bytes[segment] = operation.size_before_bytes + appended_bytes

    def _require_there(self, path: str, size_bytes: int = 0) -> None:
        status = self._filesystem.status(path)
        if status is None or status.size_bytes < size_bytes:
            raise CorruptError(f"Expected at least {size_bytes} bytes.", path=path)

    def _require_no_others(self) -> None:
        """Nobody has appended to the log since: what a power cut brings back may be the journal of a job that was through."""
        if self._filesystem.status(self._directory) is None:
            return
        for entry in self._filesystem.list_directory(self._directory):
            base_offset = base_offset_of(entry.name) if entry.name.endswith(LOG_SUFFIX) else None
            if base_offset is None:
                continue
            path = f"{self._directory}/{entry.name}"
            end_bytes = self._ends_bytes.get(base_offset)
            if end_bytes is None:
                is_others = base_offset > self._partition.log_end_before
            else:
                status = self._filesystem.status(path)
                is_others = status is not None and status.size_bytes > end_bytes
            if is_others:
                raise CorruptError("Expected no more than the job itself has written.", path=path)


def _batches(file: OpenFile, start_bytes: int, end_bytes: int, next_offset: int) -> Iterator[RecordBatches]:
    """Whole batches with right CRCs, from one position to another one."""
    window_bytes = _WINDOW_BYTES
    while start_bytes < end_bytes:
        data = file.read_at(min(window_bytes, end_bytes - start_bytes), start_bytes)
        batches = RecordBatches.parse(data, path=file.path, lowest_offset=next_offset)
        if batches.count:
            yield batches
            start_bytes += batches.size_bytes
            next_offset = batches.next_offset
        elif len(data) < window_bytes:
            raise CorruptError("Expected whole batches.", path=file.path, position_bytes=start_bytes)
        else:
            window_bytes *= 2


def _next_offset(path: str, batches: RecordBatches, next_offset: int, *, has_gaps: bool) -> int:
    """The offset behind some batches, which begin at an offset, or behind it."""
    gaps = batches.headers["base_offset"] - np.append(next_offset, batches.last_offsets[:-1] + 1)
    if (gaps < 0).any() or (gaps.any() and not has_gaps):
        raise CorruptError("Expected batches with other offsets.", path=path)
    return batches.next_offset
