"""Finding where the whole, valid batches of a log file end.

The last append before a crash may be torn: cut in its middle, or of full length with pages that
never reached the disk. Such a tail is the end of the log and no damage, provided that nothing
valid follows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from crc32c import crc32c

from storage_core.errors import CorruptRecordError
from storage_core.record.batch_header import (
    CRC_START,
    HEADER_DTYPE,
    HEADER_SIZE_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_V2,
)
from storage_core.segment.batch_walk import PAGE_SIZE_BYTES, BatchWalk
from storage_core.segment.values import SegmentEnd

if TYPE_CHECKING:
    from storage_core.filesystem import OpenFile
    from storage_core.segment.batch_walk import SkimmedBatch

__all__ = ["crc_matches", "end_of_batches"]

_BLOCK_BYTES: Final = 1024 * 1024
# What one search may spend on CRCs: random bytes hardly ever look like a header, forged ones may.
_CRC_BUDGET_BYTES: Final = 256 * 1024 * 1024
_CRC_POSITION: Final = CRC_START - 4
# The attribute bits that Kafka has assigned; the others are zero.
_KNOWN_ATTRIBUTES: Final = 0x7F


def end_of_batches(
    log_file: OpenFile,
    base_offset: int,
    start_position_bytes: int,
    end_position_bytes: int,
) -> SegmentEnd | None:
    """Where the batches from a boundary on end; None if not one of them is whole and valid.

    Raises:
        UnsupportedFormatError: A message of format v0 or v1.
        CorruptRecordError: Bytes that are no batch, with a valid batch behind them.
    """
    batches: list[SkimmedBatch] = []
    error: CorruptRecordError | None = None
    try:
        for batch in BatchWalk(log_file, base_offset, end_position_bytes).skim(start_position_bytes):
            batches.append(batch)  # noqa: PERF402  (what was walked before an error is needed)
    except CorruptRecordError as found:
        error = found
    stop_bytes, next_offset = start_position_bytes, base_offset
    if batches:
        _, stop_bytes, _, last_offset, _ = batches[-1]
        next_offset = last_offset + 1
    # What follows a torn batch is that batch's own content, which may be a copy of other batches.
    lowest_offset = next_offset if error is None else 0
    valid_bytes = _find_batch(log_file, stop_bytes, end_position_bytes, lowest_offset)
    if valid_bytes is not None:
        raise error or CorruptRecordError(
            f"Expected a record batch, found bytes that are none, with a valid batch behind them at byte {valid_bytes}. "
            "The file is damaged here.",
            path=log_file.path,
            position_bytes=stop_bytes,
            end_position_bytes=valid_bytes,
            offset=next_offset,
        )
    for position_bytes, batch_end_bytes, _, last_offset, _ in reversed(batches):
        if crc_matches(log_file, position_bytes, batch_end_bytes):
            return SegmentEnd(last_offset + 1, batch_end_bytes)
    return None


def _find_batch(log_file: OpenFile, start_bytes: int, end_bytes: int, lowest_offset: int) -> int | None:
    """Position of a valid batch anywhere behind ``start_bytes``; None if there is none.

    A page of zeros ends the search: behind it is the rest of a preallocated file.
    """
    budget_bytes = _CRC_BUDGET_BYTES
    position_bytes = start_bytes
    block_bytes = PAGE_SIZE_BYTES
    while end_bytes - position_bytes >= HEADER_SIZE_BYTES:
        block = log_file.read_at(min(block_bytes, end_bytes - position_bytes), position_bytes)
        if len(block) < HEADER_SIZE_BYTES or not block.strip(b"\0"):
            return None
        for candidate, size_bytes in _candidates(block, end_bytes - position_bytes, lowest_offset):
            budget_bytes -= size_bytes
            found = position_bytes + candidate
            # Without budget the answer is unknown: better called damage than passed over.
            if budget_bytes < 0 or crc_matches(log_file, found, found + size_bytes):
                return found
        # Blocks overlap by what may be the beginning of a header.
        position_bytes += len(block) - HEADER_SIZE_BYTES + 1
        block_bytes = _BLOCK_BYTES
    return None


def _candidates(block: bytes, remaining_bytes: int, lowest_offset: int) -> list[tuple[int, int]]:
    """Places in a block that look like a batch's header, each with the batch's size."""
    values = np.frombuffer(block, np.uint8)
    starts = np.flatnonzero(
        values[MAGIC_POSITION : len(values) - HEADER_SIZE_BYTES + 1 + MAGIC_POSITION] == MAGIC_V2
    )
    gathered = values[starts[:, None] + np.arange(HEADER_SIZE_BYTES)]
    headers = gathered.view(HEADER_DTYPE).reshape(-1)
    sizes = headers["batch_length"].astype(np.int64) + LOG_OVERHEAD_BYTES
    plausible = (
        (sizes >= HEADER_SIZE_BYTES)
        & (sizes <= remaining_bytes - starts)
        & (headers["base_offset"] >= lowest_offset)
        & (headers["last_offset_delta"] >= 0)
        & (headers["record_count"] >= 0)
        & ((headers["attributes"] & ~_KNOWN_ATTRIBUTES) == 0)
    )
    return list(zip(starts[plausible].tolist(), sizes[plausible].tolist(), strict=True))


def crc_matches(log_file: OpenFile, position_bytes: int, end_position_bytes: int) -> bool:
    """Whether a batch's CRC is right. Read in blocks: what its header declares is not allocated."""
    stored = log_file.read_at(CRC_START - _CRC_POSITION, position_bytes + _CRC_POSITION)
    position_bytes += CRC_START
    computed = 0
    while position_bytes < end_position_bytes:
        block = log_file.read_at(min(_BLOCK_BYTES, end_position_bytes - position_bytes), position_bytes)
        if not block:
            return False
        computed = crc32c(block, computed)
        position_bytes += len(block)
    return computed == int.from_bytes(stored, "big")
