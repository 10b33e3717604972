"""Finishing, or undoing, what a crash interrupted in a partition's directory (the first passes of Kafka's ``LogLoader``).

    <file>.deleted    waits for its removal                          → removed
    <file>.cleaned    output of a compaction or split, not complete  → removed
    <file>.swap       complete output that is to replace originals   → takes their place, unless some of
                                                                       the output of a split is still .cleaned

Both kinds of recovery do the same here: each file has another one that holds its batches.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from storage_core.log.recovery_check import list_regular_files
from storage_core.segment import SegmentReader
from storage_core.segment.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    base_offset_of,
    log_file_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from storage_core.filesystem import FileSystem

__all__ = ["finish_interrupted_work"]

_log = logging.getLogger(__name__)

_INDEX_SUFFIXES: Final = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
# What Kafka's controllers keep beside their log.
_OTHER_DELETED: Final = ".checkpoint" + DELETED_SUFFIX
_TEMPORARY: Final = (
    "leader-epoch-checkpoint.tmp",
    "partition.metadata.tmp",
    ".snapshot.tmp",
    TRANSACTION_INDEX_SUFFIX + ".tmp",
)


def finish_interrupted_work(
    filesystem: FileSystem, path: str, file_names: Sequence[str] | None = None
) -> list[str]:
    """Bring a partition's directory to a state in which every file counts.

    Args:
        filesystem: Where to work.
        path: The partition's directory. Nobody else is at work there.
        file_names: The regular files in it, if they are known already.

    Returns:
        The names of the regular files that are left, in order.
    """
    if file_names is None:
        file_names = list_regular_files(filesystem, path)
    work = _Work(filesystem, path, dict.fromkeys(file_names))
    if work.has_swaps:
        # Whoever was killed may have left a `.swap` that the disk still knows as `.cleaned`: then, after a power cut, it
        # would be removed, and what it replaces is gone.
        filesystem.flush_directory(path)
    work.remove_leftovers()
    work.complete_swaps()
    work.remove_orphans()
    if work.has_changed:
        filesystem.flush_directory(path)
    return sorted(work.names)


class _Work:
    """The directory, and what was changed in it."""

    def __init__(self, filesystem: FileSystem, path: str, names: dict[str, None]) -> None:
        self.names = names
        self.has_changed = False
        self._filesystem = filesystem
        self._path = path

    @property
    def has_swaps(self) -> bool:
        """Whether complete output is there."""
        return bool(self._swaps())

    def remove_leftovers(self) -> None:
        """Remove what waits for its removal, and what is not complete."""
        cleaned = [name for name in self.names if name.endswith(CLEANED_SUFFIX)]
        cleaned_offsets = [offset for name in cleaned if (offset := base_offset_of(name)) is not None]
        if cleaned_offsets:
            # A split had not yet renamed all of its output, so the original still stands.
            first = min(cleaned_offsets)
            # Before the last `.cleaned` is gone: it is what tells that these are not to be completed.
            self._delete(name for name, offset in self._swaps() if offset >= first)
            self._filesystem.flush_directory(self._path)
        self._delete(cleaned)
        self._delete(
            name
            for name in list(self.names)
            if (name.endswith(DELETED_SUFFIX) and not name.endswith(_OTHER_DELETED))
            or name.endswith(_TEMPORARY)
        )

    def complete_swaps(self) -> None:
        """Let complete output take the place of what it replaces."""
        swaps = self._swaps()
        bases = [offset for name, offset in swaps if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
        if bases:
            # Also of one that is empty: the original of the same name goes with all of its files.
            start = min(bases)
            end = max(start + 1, *(self._end_offset(base_offset) for base_offset in bases))
            self._delete(
                name
                for name in list(self.names)
                if not name.endswith(SWAP_SUFFIX)
                and (offset := base_offset_of(name)) is not None
                and start <= offset < end
            )
            # A rename must not reach the disk before the deletions: without a `.swap`, nobody knows of them.
            self._filesystem.flush_directory(self._path)
        for name, _ in swaps:
            plain = name.removesuffix(SWAP_SUFFIX)
            self._filesystem.rename(os.path.join(self._path, name), os.path.join(self._path, plain))
            del self.names[name]
            self.names[plain] = None
            self.has_changed = True

    def remove_orphans(self) -> None:
        """Remove index files without a log file."""
        for name in list(self.names):
            if name.endswith(_INDEX_SUFFIXES):
                base_offset = base_offset_of(name)
                if base_offset is not None and log_file_name(base_offset) not in self.names:
                    _log.warning("Deleted %s: there is no log file that it belongs to.", self._of(name))
                    self._delete([name])

    def _swaps(self) -> list[tuple[str, int]]:
        return [
            (name, offset)
            for name in self.names
            if name.endswith(SWAP_SUFFIX) and (offset := base_offset_of(name)) is not None
        ]

    def _end_offset(self, base_offset: int) -> int:
        reader = SegmentReader(self._filesystem, self._path, base_offset, None, suffix=SWAP_SUFFIX)
        return reader.end().next_offset

    def _delete(self, names: Iterable[str]) -> None:
        for name in list(names):
            self._filesystem.delete(self._of(name))
            del self.names[name]
            self.has_changed = True

    def _of(self, name: str) -> str:
        return os.path.join(self._path, name)
