"""Putting offsets and a leader epoch into a staged segment, in place: no CRC covers them.

The offsets are counted from what is not changed, so doing it twice is harmless.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_core.errors import CorruptRecordError
from storage_core.publishing.batch_heads import BatchHeads, batch_heads, fingerprint
from storage_core.publishing.copy_batches import write_places
from storage_core.segment.file_names import LOG_SUFFIX

if TYPE_CHECKING:
    from storage_core.filesystem import FileSystem

__all__ = ["SegmentPatch", "patch_segment"]


@dataclass(frozen=True, slots=True)
class SegmentPatch:
    """A staged segment, and what it gets.

    Attributes:
        file: Its name without suffix.
        base_offset: The offset of its first batch.
        leader_epoch: The epoch that its batches get.
        size_bytes: Its size.
        fingerprint: That of its batches, as they were staged.
        offset_count: How many offsets they take.
        keep_offsets: Whether the batches have their offsets already.
    """

    file: str
    base_offset: int
    leader_epoch: int
    size_bytes: int
    fingerprint: int
    offset_count: int
    keep_offsets: bool


def patch_segment(filesystem: FileSystem, root: str, segment: SegmentPatch, *, flush: bool) -> None:
    """Give the batches of a staged segment their offsets and their epoch.

    Raises:
        CorruptRecordError: It is not what was staged.
        StorageError: The file system refused.
    """
    path = os.path.join(root, segment.file + LOG_SUFFIX)
    with filesystem.open_for_writing(path) as file:
        if file.size_bytes() != segment.size_bytes:
            raise _not_as_staged(path, segment)
        found, end_offset = 0, segment.base_offset
        for heads in batch_heads(file, 0, segment.size_bytes):
            placed = heads.placed(None if segment.keep_offsets else end_offset, segment.leader_epoch)
            is_changed = placed.headers != heads.headers
            if is_changed.any():
                write_places(file, BatchHeads(placed.positions_bytes[is_changed], placed.headers[is_changed]))
            found = fingerprint([heads], found)
            end_offset = int(placed.last_offsets[-1]) + 1
        if found != segment.fingerprint or end_offset != segment.base_offset + segment.offset_count:
            raise _not_as_staged(path, segment)
        if flush:
            file.flush()


def _not_as_staged(path: str, segment: SegmentPatch) -> CorruptRecordError:
    return CorruptRecordError(
        f"Expected the {segment.size_bytes} bytes of batches that a task has staged, with the fingerprint "
        f"{segment.fingerprint:08x} and {segment.offset_count} offsets, found something else. Abort the job, and "
        "write it again.",
        path=path,
    )
