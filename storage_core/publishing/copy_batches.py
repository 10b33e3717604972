"""Copying staged batches to their place in a log; their offsets and epochs are put in on the way.

Bytes are not looked at but for the headers: each holds the CRC of its batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from storage_core.errors import CorruptRecordError
from storage_core.publishing.batch_heads import PLACE_BYTES, BatchHeads, batch_heads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.checkpoint.commit_journal import PackRange
    from storage_core.filesystem import OpenFile, WritableFile

__all__ = ["copy_batches", "write_places"]

# Of smaller batches, one write for many of them costs less than one for each.
_SMALL_BATCH_BYTES: Final = 8 * 1024
_BUFFER_BYTES: Final = 256 * 1024


def copy_batches(
    pack: OpenFile,
    staged: PackRange,
    log: WritableFile,
    position_bytes: int,
    base_offset: int | None,
    leader_epoch: int,
) -> Iterator[BatchHeads]:
    """Copy a range of a staged file to a position in a log.

    Args:
        pack: The staged file.
        staged: Which part of it.
        log: Where to write.
        position_bytes: Where in it the first batch goes.
        base_offset: The first batch's offset, behind which the others follow; None: they have theirs already.
        leader_epoch: The epoch that they get.

    Yields:
        What was written, some batches at a time, by their headers and positions in the log.

    Raises:
        CorruptRecordError: They are not whole batches.
        StorageError: The file system refused.
    """
    end_bytes = staged.position_bytes + staged.size_bytes
    if end_bytes > pack.status.size_bytes:
        raise CorruptRecordError(
            f"Expected whole batches in {staged.size_bytes} bytes of a staged file, found a file of "
            f"{pack.status.size_bytes} bytes. Abort the job, and write it again.",
            path=pack.path,
            position_bytes=staged.position_bytes,
        )
    moved_bytes = position_bytes - staged.position_bytes
    for heads in batch_heads(pack, staged.position_bytes, end_bytes):
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
    """Write base offset and epoch of batches that stand in a file already, where they stand."""
    places = heads.places()
    for number, position_bytes in enumerate(heads.positions_bytes.tolist()):
        file.write_at([places[number * PLACE_BYTES : (number + 1) * PLACE_BYTES]], position_bytes)


def _copy_with_places(pack: OpenFile, log: WritableFile, heads: BatchHeads, moved_bytes: int) -> None:
    """Copy small batches, some of them at a time."""
    places = np.frombuffer(heads.places(), np.uint8).reshape(-1, PLACE_BYTES)
    ends_bytes = heads.positions_bytes + heads.sizes_bytes
    first = 0
    while first < len(places):
        start_bytes = int(heads.positions_bytes[first])
        # At least one.
        stop = max(first + 1, int(ends_bytes.searchsorted(start_bytes + _BUFFER_BYTES, "right")))
        size_bytes = int(ends_bytes[stop - 1]) - start_bytes
        data = np.frombuffer(bytearray(pack.read_at(size_bytes, start_bytes - moved_bytes)), np.uint8)
        rows = heads.positions_bytes[first:stop, None] - start_bytes + np.arange(PLACE_BYTES)
        data[rows] = places[first:stop]
        log.write_at([data.data], start_bytes)
        first = stop
