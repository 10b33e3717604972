"""Staging into one file per partition, as a writer without a shared pack file must.

Everything except the files is the code under test. This file system replaces the pack file: it appends each
partition's batches to a separate file. A manifest from a previous run over the same rows says which bytes belong to
which partition.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from storage_core.filesystem import BytesLike, FileSystem, WritableFile

# As many open files and flushing threads as the code under test uses.
MOST_OPEN_FILES = 56
_FLUSHING_THREADS = 8
_PACK_SUFFIX = ".pack"
# POSIX guarantees no more buffers per call.
_MOST_BUFFERS = 1024


class FilePerPartition(FileSystem):
    """A file system without a pack file.

    Args:
        partitions: Where each partition's batches begin in the pack file, and the partition's number.
    """

    def __init__(self, partitions: Mapping[int, int]) -> None:
        super().__init__()
        self._starts = sorted(partitions)
        self._partitions = [partitions[start] for start in self._starts]
        self._pack: _PartitionFiles | None = None

    def open_for_writing(self, path: str, *, create: bool = False, like: Sequence[str] = ()) -> WritableFile:
        """Open a file, or the replacement of the pack file."""
        if not path.endswith(_PACK_SUFFIX):
            return super().open_for_writing(path, create=create, like=like)
        if self._pack is None:
            self._pack = _PartitionFiles(path, self._starts, self._partitions)
        return self._pack

    @property
    def file_count(self) -> int:
        """The number of files created instead of the pack file."""
        return 0 if self._pack is None else len(self._pack.paths)


class _PartitionFiles(WritableFile):
    """Presents one file per partition as a single file."""

    def __init__(self, path: str, starts: Sequence[int], partitions: Sequence[int]) -> None:
        self.path = path
        self.paths: dict[int, str] = {}
        self._starts = starts
        self._partitions = partitions
        self._open: OrderedDict[int, int] = OrderedDict()
        # The group of files has no descriptor.
        self._descriptor = -1

    def identity(self) -> tuple[int, int]:
        return 0, 0

    def size_bytes(self) -> int:
        return 0

    def write_at(self, pieces: Sequence[BytesLike], position_bytes: int) -> None:
        for partition, buffers in self._by_partition(pieces, position_bytes):
            descriptor = self._descriptor_of(partition)
            for start in range(0, len(buffers), _MOST_BUFFERS):
                group = buffers[start : start + _MOST_BUFFERS]
                if os.writev(descriptor, group) != sum(buffer.nbytes for buffer in group):
                    raise OSError(f"Expected {self.paths[partition]} to take all bytes.")

    def begin_flush(self, position_bytes: int, size_bytes: int) -> None:
        """Do nothing: no file gets enough data for an early flush to pay off."""

    def flush(self) -> None:
        """Flush every file, closed ones through a new descriptor."""
        self.close()
        with ThreadPoolExecutor(_FLUSHING_THREADS) as threads:
            for _ in threads.map(_flush, self.paths.values()):
                pass

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def _by_partition(
        self, pieces: Sequence[BytesLike], position_bytes: int
    ) -> Iterator[tuple[int, list[memoryview]]]:
        """Group adjacent pieces by partition. No piece belongs to two partitions."""
        number, buffers = -1, []
        for piece in pieces:
            found = bisect_right(self._starts, position_bytes) - 1
            if found != number and buffers:
                yield self._partitions[number], buffers
                buffers = []
            number = found
            buffers.append(memoryview(piece).cast("B"))
            position_bytes += buffers[-1].nbytes
        if buffers:
            yield self._partitions[number], buffers

    def _descriptor_of(self, partition: int) -> int:
        if partition in self._open:
            self._open.move_to_end(partition)
            return self._open[partition]
        while len(self._open) >= MOST_OPEN_FILES:
            os.close(self._open.popitem(last=False)[1])
        path = self.paths.setdefault(partition, f"{self.path}-{partition}")
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._open[partition] = descriptor
        return descriptor


def _flush(path: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
