"""Putting offsets and a leader epoch into a staged segment, in place: no CRC covers them.

The offsets are counted from what is not changed, so doing it twice is harmless.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from storage_core.errors import CorruptRecordError
from storage_core.publishing.batch_heads import batch_heads, fingerprint
from storage_core.record.batch_header import LOG_OVERHEAD_BYTES
from storage_core.segment.file_names import LOG_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.filesystem import FileSystem, WritableFile
    from storage_core.publishing.batch_heads import BatchHead

__all__ = ["StagedSegment", "patch_segment"]

# Base offset, batch length, leader epoch: one write a batch.
_PATCHED: Final = struct.Struct(">qii")


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """A large piece, and where it goes.

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


def patch_segment(filesystem: FileSystem, root: str, segment: StagedSegment, *, flush: bool) -> None:
    """Give the batches of a staged segment their offsets and their epoch.

    Raises:
        CorruptRecordError: It is not what was staged.
        StorageError: The file system refused.
    """
    path = os.path.join(root, segment.file + LOG_SUFFIX)
    with filesystem.open_for_writing(path) as file:
        end = _End(segment.base_offset)
        if file.size_bytes() != segment.size_bytes:
            raise _not_as_staged(path, segment)
        found = fingerprint(_patched(file, segment, end))
        if found != segment.fingerprint or end.offset != segment.base_offset + segment.offset_count:
            raise _not_as_staged(path, segment)
        if flush:
            file.flush()


@dataclass(slots=True)
class _End:
    offset: int


def _patched(file: WritableFile, segment: StagedSegment, end: _End) -> Iterator[BatchHead]:
    for head in batch_heads(file, segment.size_bytes):
        base_offset = head.base_offset if segment.keep_offsets else end.offset
        if (head.base_offset, head.leader_epoch) != (base_offset, segment.leader_epoch):
            patched = _PATCHED.pack(base_offset, head.size_bytes - LOG_OVERHEAD_BYTES, segment.leader_epoch)
            file.write_at([patched], head.position_bytes)
        end.offset = base_offset + head.last_offset_delta + 1
        yield head


def _not_as_staged(path: str, segment: StagedSegment) -> CorruptRecordError:
    return CorruptRecordError(
        f"Expected the {segment.size_bytes} bytes of batches that a task has staged, with the fingerprint "
        f"{segment.fingerprint:08x} and {segment.offset_count} offsets, found something else. Abort the job, and "
        "write it again.",
        path=path,
    )
