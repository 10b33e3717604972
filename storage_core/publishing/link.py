"""A staged segment becomes one of a log: its files get their second names, the log file last.

A link, no rename: POSIX does not say that the new name is on the disk when the old one is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_core.checkpoint._small_file import TEMPORARY_SUFFIX
from storage_core.errors import CorruptError
from storage_core.publishing.batch_heads import batch_heads, fingerprint
from storage_core.publishing.lost_files import lost_staged_file
from storage_core.segment.file_names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)

if TYPE_CHECKING:
    from storage_core.checkpoint.commit_journal import LinkOperation
    from storage_core.filesystem import FileStatus, FileSystem

__all__ = ["is_published_copy", "link_staged"]


def link_staged(filesystem: FileSystem, root: str, directory: str, operation: LinkOperation) -> None:
    """Link the files of a staged segment into a partition's directory, those that are not there yet.

    Raises:
        CorruptError: Another segment stands in its place.
        StorageError: The file system refused.
    """
    stem, target = f"{root}/{operation.file}", f"{directory}/{operation.base_offset:020d}"
    is_copy = is_published_copy(filesystem, stem, target)
    if is_copy:
        # Links do not survive every copy of a directory: what it holds tells.
        _require_published(filesystem, target + LOG_SUFFIX, operation)
    # Of a segment that was deleted.
    filesystem.delete(target + TRANSACTION_INDEX_SUFFIX)
    for suffix in (TIME_INDEX_SUFFIX, OFFSET_INDEX_SUFFIX, LOG_SUFFIX):
        there = filesystem.status(target + suffix)
        if there is not None and is_copy:
            continue
        try:
            _link(filesystem, stem + suffix, target + suffix, there)
        except FileNotFoundError as error:
            if filesystem.status(stem + suffix) is None:
                raise lost_staged_file(stem + suffix) from error
            raise


def is_published_copy(filesystem: FileSystem, stem: str, target: str) -> bool:
    """Whether a segment that is not empty, and no link to the staged one, stands in its place already.

    Args:
        filesystem: Where to look.
        stem: The staged segment, without suffix.
        target: Its place, without suffix.
    """
    found = filesystem.status(target + LOG_SUFFIX)
    return (
        found is not None
        and found.size_bytes > 0
        and not _is_same(found, filesystem.status(stem + LOG_SUFFIX))
    )


def _link(filesystem: FileSystem, source: str, target: str, there: FileStatus | None) -> None:
    if there is None:
        filesystem.link(source, target)
    elif not _is_same(there, filesystem.status(source)):
        # The empty last segment of the log makes room.
        filesystem.delete(target + TEMPORARY_SUFFIX)
        filesystem.link(source, target + TEMPORARY_SUFFIX)
        filesystem.rename(target + TEMPORARY_SUFFIX, target)


def _is_same(one: FileStatus, other: FileStatus | None) -> bool:
    return other is not None and (one.device, one.inode) == (other.device, other.inode)


def _require_published(filesystem: FileSystem, path: str, operation: LinkOperation) -> None:
    """Refuse to go on if a segment is not the one that was to be published here."""
    with filesystem.open(path) as file:
        is_long_enough = file.status.size_bytes >= operation.size_bytes
        found = 0
        if is_long_enough:
            try:
                found = fingerprint(batch_heads(file, 0, operation.size_bytes))
            except CorruptError:
                is_long_enough = False
    if not is_long_enough or found != operation.fingerprint:
        raise CorruptError(
            f"Expected no segment, an empty one, or the one that a commit publishes here, with {operation.size_bytes} "
            f"bytes and the fingerprint {operation.fingerprint:08x}, found another one: somebody else has written "
            "it since. Move it away, then open the log directory again: the commit is completed then.",
            path=path,
            offset=operation.base_offset,
        )
