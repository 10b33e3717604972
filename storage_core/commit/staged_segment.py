"""A staged segment: the batches of one partition with their indexes, ready to be given its place in a log.

Index entries are relative to its base offset, so that they stay right when it gets another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from storage_core.segment.file_names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from storage_core.segment.index_builder import IndexBuilder

if TYPE_CHECKING:
    from storage_core.commit.open_files import OpenFiles
    from storage_core.log_config import LogConfig
    from storage_core.record.record_batches import RecordBatches

__all__ = ["StagedSegment"]

# So much of an index is kept before it is written.
_SPILL_BYTES: Final = 4096


class _IndexFile:
    """The entries of an index, written some at a time."""

    def __init__(self, files: OpenFiles, name: str) -> None:
        self._files = files
        self._name = name
        self._written_bytes = 0
        self._kept = bytearray()

    def add(self, entries: bytes) -> None:
        """Add entries."""
        self._kept += entries
        if len(self._kept) >= _SPILL_BYTES and self._written_bytes + len(self._kept) > _SPILL_BYTES:
            self._write()

    def complete(self) -> None:
        """Write what is left; make the file if there was nothing."""
        self._write()

    def _write(self) -> None:
        if not self._written_bytes:
            self._files.create(self._name)
        self._files.write(self._name, [bytes(self._kept)], self._written_bytes)
        self._written_bytes += len(self._kept)
        self._kept.clear()


class StagedSegment:
    """A segment that batches are appended to until it is sealed.

    Args:
        files: Where its files are made.
        base_name: Their name without suffix.
        base_offset: What its index entries count from.
        config: Where index entries are due, and how many there may be.
    """

    def __init__(self, files: OpenFiles, base_name: str, base_offset: int, config: LogConfig) -> None:
        self.size_bytes = 0
        self._files = files
        self._name = base_name + LOG_SUFFIX
        self._indexes = IndexBuilder(base_offset, config)
        self._offsets = _IndexFile(files, base_name + OFFSET_INDEX_SUFFIX)
        self._times = _IndexFile(files, base_name + TIME_INDEX_SUFFIX)
        files.create(self._name)

    @property
    def has_full_index(self) -> bool:
        """Whether an index takes no more entries: then a segment ends."""
        return self._indexes.is_full

    def append(self, batches: RecordBatches) -> None:
        """Write batches behind the last, with their final distance from the base offset.

        Raises:
            StorageError: The file system refused.
        """
        offset_entries, time_entries = self._indexes.add(
            batches.last_offsets, batches.headers["max_timestamp_ms"], batches.sizes_bytes, self.size_bytes
        )
        self._files.write(self._name, batches.pieces, self.size_bytes)
        self._offsets.add(offset_entries)
        self._times.add(time_entries)
        self.size_bytes += batches.size_bytes

    def seal(self) -> None:
        """Complete the indexes, as a broker does when it closes a segment."""
        self._times.add(self._indexes.last_entry())
        self._times.complete()
        self._offsets.complete()
