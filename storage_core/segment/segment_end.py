"""Finding where the whole, valid batches of a log file end.

The last append before a crash may be torn: cut in its middle, or of full length with pages that
never reached the disk. Such a tail is the end of the log and no damage, provided that nothing
valid follows it.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from storage_core.errors import CorruptError
from storage_core.record.batch_search import LARGEST_BATCH_BYTES
from storage_core.segment.resynchronise import Resynchroniser
from storage_core.segment.tolerant_walk import TolerantWalk
from storage_core.segment.values import SegmentEnd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.filesystem import OpenFile
    from storage_core.segment.batch_walk import SkimmedBatch

__all__ = ["end_of_batches"]

_LOGGER: Final = logging.getLogger(__name__)
# How many batches at the end of a file may be damaged although their headers are not.
_REMEMBERED: Final = 65_536


def end_of_batches(
    log_file: OpenFile,
    base_offset: int,
    start_position_bytes: int,
    end_position_bytes: int,
    *,
    skip_damage: bool = False,
) -> SegmentEnd | None:
    """Where the batches from a boundary on end; None if not one of them is whole and valid.

    Args:
        log_file: The file.
        base_offset: The segment's base offset.
        start_position_bytes: The boundary.
        end_position_bytes: Where the file ends, or where nothing valid is known to follow.
        skip_damage: Whether a valid batch behind damage is an error, or the end lies behind it.

    Raises:
        CorruptRecordError: There is damage with a valid batch behind it.
    """
    # The size of a batch does not matter here: one that is too large for a reader is still no torn append.
    resynchroniser = Resynchroniser(log_file, base_offset, end_position_bytes, None, LARGEST_BATCH_BYTES)
    walk = TolerantWalk(log_file, base_offset, resynchroniser, skip_damage=skip_damage)
    batches = (walk if skip_damage else walk.raw).skim(start_position_bytes)
    last = _last_valid(batches, resynchroniser)
    if last is None:
        position_bytes, next_offset = start_position_bytes, base_offset
    else:
        _, position_bytes, _, last_offset, _ = last
        next_offset = last_offset + 1
    if resynchroniser.is_blank(position_bytes):
        return None if last is None else SegmentEnd(next_offset, position_bytes)
    found = resynchroniser.next_accepted(position_bytes, next_offset)
    # What is whole is not torn, even if its offsets are those of another place.
    is_damaged = found is not None or resynchroniser.is_intact(position_bytes)
    if is_damaged or resynchroniser.probe.is_exhausted:
        error = resynchroniser.damage_at(position_bytes, next_offset).error()
        if not skip_damage:
            raise error
        _LOGGER.warning("The log ends in front of damage: %s", error)
        if last is not None:
            # The damage belongs to the log, so that whoever reads it to its end is told.
            return SegmentEnd(next_offset, end_position_bytes)
    return None if last is None else SegmentEnd(next_offset, position_bytes)


def _last_valid(batches: Iterator[SkimmedBatch], resynchroniser: Resynchroniser) -> SkimmedBatch | None:
    """The last batch whose CRC is right."""
    walked: deque[SkimmedBatch] = deque(maxlen=_REMEMBERED)
    # What was walked before an error is in the queue.
    with contextlib.suppress(CorruptError):
        walked.extend(batches)
    return next((batch for batch in reversed(walked) if resynchroniser.is_intact(batch[0])), None)
