"""The producer snapshots of one log on disk (the files of Kafka's ``ProducerStateManager``)."""

from __future__ import annotations

import logging
import os
from bisect import insort
from typing import TYPE_CHECKING

from storage_core.checkpoint import read_producer_snapshot
from storage_core.checkpoint.producer_snapshot import write_producer_snapshot
from storage_core.errors import CorruptSnapshotError
from storage_core.segment.file_names import (
    DELETED_SUFFIX,
    SNAPSHOT_SUFFIX,
    base_offset_of,
    snapshot_file_name,
)
from storage_core.segment.renaming import rename_if_there

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from storage_core.checkpoint import ProducerStateEntry
    from storage_core.filesystem import FileSystem

__all__ = ["ProducerSnapshots"]

_log = logging.getLogger(__name__)


class ProducerSnapshots:
    """The snapshot files of a partition directory, by offset.

    Args:
        filesystem: Where they stand.
        directory: The partition's directory.
        read_only: Files are neither written nor deleted: they are merely not looked at any more.
        file_names: The regular files in the directory, if they are known: then it is not listed again.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        directory: str,
        *,
        read_only: bool = False,
        file_names: Iterable[str] | None = None,
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._read_only = read_only
        if file_names is None:
            file_names = (
                entry.name for entry in filesystem.list_directory(directory) if entry.is_regular_file
            )
        self._offsets = sorted({offset for name in file_names if (offset := _offset_of(name)) is not None})

    @property
    def offsets(self) -> tuple[int, ...]:
        """The offsets of all snapshots, ascending."""
        return tuple(self._offsets)

    @property
    def latest_offset(self) -> int | None:
        """The offset of the newest snapshot."""
        return self._offsets[-1] if self._offsets else None

    def path(self, offset: int) -> str:
        """Where the snapshot of an offset stands, or would."""
        return os.path.join(self._directory, snapshot_file_name(offset))

    def read_latest(self) -> tuple[int, tuple[ProducerStateEntry, ...]] | None:
        """Read the newest snapshot that can be read; those that cannot are deleted.

        Returns:
            Its offset and its entries; None if there is none.

        Raises:
            UnreadableError: This user may not read it.
        """
        while self._offsets:
            offset = self._offsets[-1]
            try:
                entries = read_producer_snapshot(self._filesystem, self.path(offset))
            except CorruptSnapshotError as error:
                _log.warning("Deleted a producer snapshot, and took an older one or the log: %s", error)
                entries = None
            if entries is not None:
                return offset, entries
            self.delete(offset)
        return None

    def write(self, offset: int, entries: Iterable[ProducerStateEntry], *, flush: bool = True) -> None:
        """Write the snapshot of an offset; one that is there is replaced.

        Without a flush, a crash may leave a torn one, which is then found out by its CRC.

        Raises:
            StorageError: The file could not be written.
        """
        if self._read_only:
            return
        write_producer_snapshot(self._filesystem, self.path(offset), tuple(entries), flush=flush)
        if offset not in self._offsets:
            insort(self._offsets, offset)

    def delete(self, offset: int) -> None:
        """Delete the snapshot of an offset, if there is one."""
        if offset not in self._offsets:
            return
        if not self._read_only:
            self._filesystem.delete(self.path(offset))
        self._offsets.remove(offset)

    def delete_outside(self, log_start_offset: int, log_end_offset: int) -> None:
        """Delete the snapshots at the log start or before it, and those behind the log end, for good."""
        self._delete_for_good(
            [each for each in self._offsets if not log_start_offset < each <= log_end_offset]
        )

    def delete_all(self) -> None:
        """Delete every snapshot, for good."""
        self._delete_for_good(self.offsets)

    def delete_strays(self, segment_base_offsets: Collection[int]) -> None:
        """Delete the snapshots that begin no segment, but for the newest one if no segment begins behind it."""
        bases = set(segment_base_offsets)
        strays = [offset for offset in self._offsets if offset not in bases]
        if strays and (not bases or strays[-1] >= max(bases)):
            strays.pop()
        for offset in strays:
            self.delete(offset)

    def mark_deleted(self, offsets: Iterable[int]) -> list[str]:
        """Rename the snapshots of deleted segments to ``.deleted``, as far as there are any.

        Returns:
            The new paths, which are to be deleted some time later.
        """
        marked = frozenset(self._offsets).intersection(offsets)
        self._offsets = [offset for offset in self._offsets if offset not in marked]
        paths = [self.path(offset) for offset in sorted(marked)]
        if not self._read_only:
            for path in paths:
                # One that is gone already need not be removed.
                rename_if_there(self._filesystem, path, path + DELETED_SUFFIX)
        return [path + DELETED_SUFFIX for path in paths]

    def _delete_for_good(self, offsets: Sequence[int]) -> None:
        """A snapshot that a crash brings back must not tell of records in whose place others stand by then."""
        for offset in offsets:
            self.delete(offset)
        if offsets and not self._read_only:
            self._filesystem.flush_directory(self._directory)


def _offset_of(name: str) -> int | None:
    return base_offset_of(name) if name.endswith(SNAPSHOT_SUFFIX) else None
