"""Staged batches: opens their files, reads their headers, gives them offsets and a leader epoch, and copies them to a log.

The header holds all that this takes. The bytes after it are neither parsed nor changed: no CRC covers the fields that
are assigned.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from storage_core.commit_files.stage_names import data_suffix_of
from storage_core.errors import CorruptRecordError
from storage_core.record.batch_header import (
    HEADER_SIZE_BYTES,
    LOG_OVERHEAD_BYTES,
    batch_fingerprint,
    batch_sizes_bytes,
)
from storage_core.segment.batch_windows import MOST_HOPS, hop_over_batches
from storage_core.segment.file_names import LOG_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from storage_core.commit_files.journal import StagedFileRange
    from storage_core.filesystem import FileSystem, OpenFile, WritableFile


PLACE_BYTES: Final = 16
"""The header's first bytes hold base offset, length and leader epoch, which the CRC does not cover."""
# Many smaller batches are written with one call.
_SMALL_BATCH_BYTES: Final = 8 * 1024
_BUFFER_BYTES: Final = 256 * 1024
# One for each task of most jobs.
_MOST_OPEN_PACKS: Final = 128
# Half a kilobyte each, if each is a piece of its own.
_MOST_KEPT_BATCHES: Final = 1 << 16
# Several chunks per thread, so that a slow chunk does not delay the rest.
_CHUNKS_PER_THREAD: Final = 8
_Int64Array = npt.NDArray[np.int64]
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, eq=False)
class BatchHeads:
    """The headers of adjacent batches in a file, a structured array of `HEADER_DTYPE`, and their positions there."""

    positions_bytes: _Int64Array
    headers: npt.NDArray[Any]

    @classmethod
    def joined(cls, parts: Sequence[BatchHeads]) -> BatchHeads:
        """Concatenate parts, at least one, that are adjacent in the file."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.positions_bytes for part in parts]),
            np.concatenate([part.headers for part in parts]),
        )

    @property
    def start_bytes(self) -> int:
        """The position of the first batch."""
        return int(self.positions_bytes[0])

    @property
    def size_bytes(self) -> int:
        """The size of all batches."""
        last_bytes = int(self.headers["batch_length"][-1]) + LOG_OVERHEAD_BYTES
        return int(self.positions_bytes[-1]) + last_bytes - self.start_bytes

    @property
    def offset_count(self) -> int:
        """The number of offsets that the batches span, without gaps between them."""
        return int(self.headers["last_offset_delta"].sum(dtype=np.int64)) + len(self.headers)

    def placed(self, base_offset: int | None, leader_epoch: int) -> BatchHeads:
        """Return the batches with a leader epoch and consecutive offsets. None keeps the offsets that they have."""
        headers = self.headers.copy()
        headers["leader_epoch"] = leader_epoch
        if base_offset is not None:
            counts = headers["last_offset_delta"] + np.int64(1)
            headers["base_offset"] = base_offset + (np.cumsum(counts) - counts)
        return BatchHeads(self.positions_bytes, headers)

    def moved(self, by_bytes: int) -> BatchHeads:
        """Return the same batches at positions shifted by a number of bytes."""
        return BatchHeads(self.positions_bytes + by_bytes, self.headers)

    def places(self) -> bytes:
        """Return the first `PLACE_BYTES` of each header, back to back."""
        rows = np.frombuffer(self.headers.tobytes(), np.uint8).reshape(-1, HEADER_SIZE_BYTES)
        return rows[:, :PLACE_BYTES].tobytes()


class StagedFiles:
    """The staged files of a job while it is committed. Threads may share it. `close` it.

    A pack file has pieces of many partitions, so it stays open, and the headers that are checked before the journal is
    written are kept for the copy; both up to a limit.
    """

    def __init__(self, filesystem: FileSystem, root: str) -> None:
        self._filesystem = filesystem
        self._root = root
        self._packs: dict[str, OpenFile] = {}
        self._heads: dict[tuple[str, int], Sequence[BatchHeads]] = {}
        self._kept_batches = 0
        self._lock = threading.Lock()

    def open(self, file: str) -> contextlib.AbstractContextManager[OpenFile]:
        """Open the file that holds the batches, given its name without suffix, for a ``with`` block.

        Raises:
            FileNotFoundError: It does not exist (also a LogDirectoryError).
        """
        with self._lock:
            pack = self._packs.get(file)
            if pack is None:
                suffix = data_suffix_of(file)
                opened = self._filesystem.open(f"{self._root}/{file}{suffix}")
                if suffix == LOG_SUFFIX or len(self._packs) >= _MOST_OPEN_PACKS:
                    return opened
                pack = self._packs[file] = opened
        return contextlib.nullcontext(pack)

    def keep_heads(self, file: str, position_bytes: int, heads: Sequence[BatchHeads]) -> None:
        """Keep the headers of the batches from a position on, unless too many are kept."""
        with self._lock:
            self._kept_batches += sum(len(each.headers) for each in heads)
            if self._kept_batches <= _MOST_KEPT_BATCHES:
                self._heads[file, position_bytes] = heads

    def take_heads(self, file: str, position_bytes: int) -> Sequence[BatchHeads] | None:
        """Give up the headers that were kept of a position; None without."""
        return self._heads.pop((file, position_bytes), None)

    def close(self) -> None:
        """Close the files. They can be opened again."""
        while self._packs:
            self._packs.popitem()[1].close()


def batch_heads(file: OpenFile | WritableFile, start_bytes: int, end_bytes: int) -> Iterator[BatchHeads]:
    """Read the headers of the v2 batches between two positions, up to some thousand at a time.

    Raises:
        CorruptRecordError: Bytes are not a v2 batch, or the last batch is truncated.
    """
    while start_bytes < end_bytes:
        found = hop_over_batches(file, start_bytes, end_bytes)
        found_end_bytes = start_bytes if found is None else start_bytes + found.end
        if found is None or (found_end_bytes < end_bytes and len(found.headers) < MOST_HOPS):
            raise _no_batch(file.path, found_end_bytes)
        positions_bytes = start_bytes + found.starts
        wrong = np.flatnonzero(found.headers["last_offset_delta"] < 0)
        if len(wrong):
            raise _no_batch(file.path, int(positions_bytes[wrong[0]]))
        yield BatchHeads(positions_bytes, found.headers)
        start_bytes = found_end_bytes


def fingerprint(heads: Iterable[BatchHeads], found: int = 0) -> int:
    """Return the fingerprint of batches, continuing from ``found``, that of the batches before them."""
    for each in heads:
        found = batch_fingerprint(each.headers, found)
    return found


def _no_batch(path: str, position_bytes: int) -> CorruptRecordError:
    return CorruptRecordError(
        "Expected a complete record batch of format v2 in a staged file, found something else. Abort the job and "
        "write again.",
        path=path,
        position_bytes=position_bytes,
    )


def copy_batches(
    pack: OpenFile,
    staged: StagedFileRange,
    log: WritableFile,
    position_bytes: int,
    base_offset: int | None,
    leader_epoch: int,
    known: Iterable[BatchHeads] | None = None,
) -> Iterator[BatchHeads]:
    """Copy a range of a staged file to a position in a log file, and assign offsets and leader epoch.

    Offsets count from ``base_offset`` on. None keeps those that the batches have. The headers are read unless they are
    ``known``.

    Yields:
        The headers of the batches that were written, some at a time, with their positions in the log file.

    Raises:
        CorruptRecordError: The range does not consist of complete batches.
    """
    end_bytes = staged.position_bytes + staged.size_bytes
    if end_bytes > pack.status.size_bytes:
        raise CorruptRecordError(
            f"Expected {staged.size_bytes} bytes of complete batches in a staged file, found a file of "
            f"{pack.status.size_bytes} bytes. Abort the job and write again.",
            path=pack.path,
            position_bytes=staged.position_bytes,
        )
    moved_bytes = position_bytes - staged.position_bytes
    for heads in known or batch_heads(pack, staged.position_bytes, end_bytes):
        placed = heads.placed(base_offset, leader_epoch).moved(moved_bytes)
        if placed.size_bytes < _SMALL_BATCH_BYTES * len(placed.headers):
            _copy_with_places(pack, log, placed, moved_bytes)
        else:
            start_bytes = placed.start_bytes
            log.copy_from(pack, start_bytes - moved_bytes, placed.size_bytes, start_bytes)
            write_places(log, placed)
        if base_offset is not None:
            base_offset += heads.offset_count
        yield placed


def write_places(file: WritableFile, heads: BatchHeads) -> None:
    """Overwrite base offset and leader epoch of batches in place."""
    places = heads.places()
    for number, position_bytes in enumerate(heads.positions_bytes.tolist()):
        file.write_at([places[number * PLACE_BYTES : (number + 1) * PLACE_BYTES]], position_bytes)


def _copy_with_places(pack: OpenFile, log: WritableFile, heads: BatchHeads, moved_bytes: int) -> None:
    """Copy small batches, several with each write."""
    places = np.frombuffer(heads.places(), np.uint8).reshape(-1, PLACE_BYTES)
    ends_bytes = heads.positions_bytes + batch_sizes_bytes(heads.headers)
    first = 0
    while first < len(places):
        start_bytes = int(heads.positions_bytes[first])
        # At least one batch.
        stop = max(first + 1, int(ends_bytes.searchsorted(start_bytes + _BUFFER_BYTES, "right")))
        size_bytes = int(ends_bytes[stop - 1]) - start_bytes
        data = np.frombuffer(bytearray(pack.read_at(size_bytes, start_bytes - moved_bytes)), np.uint8)
        rows = heads.positions_bytes[first:stop, None] - start_bytes + np.arange(PLACE_BYTES)
        data[rows] = places[first:stop]
        log.write_at([data.data], start_bytes)
        first = stop


def in_parallel(work: Callable[[_Item], _Result], items: Sequence[_Item], max_threads: int) -> list[_Result]:
    """Call a function for all items with some threads, and return the results in order.

    The first error that a call raises is raised here, and calls that have not started are cancelled.
    """
    threads = min(max_threads, len(items))
    if threads <= 1:
        return [work(item) for item in items]
    size = -(-len(items) // (threads * _CHUNKS_PER_THREAD))
    chunks = [items[start : start + size] for start in range(0, len(items), size)]
    with ThreadPoolExecutor(threads, thread_name_prefix="segmentlog-commit") as pool:
        done = pool.map(lambda chunk: [work(item) for item in chunk], chunks)
        return [result for results in done for result in results]
