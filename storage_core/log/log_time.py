"""Offsets for timestamps (Kafka's ``UnifiedLog.fetchOffsetByTimestamp``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from storage_core.errors import OptionError
from storage_core.log.leader_epoch_cache import epoch_for_offset
from storage_core.segment import TimestampOffset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.checkpoint import EpochEntry
    from storage_core.directory import PartitionLog

__all__ = ["OffsetAndTimestamp", "offset_for_timestamp"]

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5

_NONE: Final = -1


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """The answer to a look-up by time.

    Attributes:
        offset: The offset; -1 for the latest tiered one, of which there is none.
        timestamp_ms: The record's own timestamp; -1 where no record was asked for.
        leader_epoch: The epoch that the offset belongs to; None if it is not known.
    """

    offset: int
    timestamp_ms: int
    leader_epoch: int | None


def offset_for_timestamp(
    log: PartitionLog, timestamp_ms: int, epochs: Sequence[EpochEntry]
) -> OffsetAndTimestamp | None:
    """Look up a timestamp, or one of the negative numbers that Kafka gives a meaning.

    Args:
        log: The log as it is at this moment.
        timestamp_ms: From 0 on, the first record that young is looked for. -1: the log end; -2 and -4: the log
            start; -3: the first record with the largest timestamp, wherever the log starts; -5: the end of what
            was moved to another tier.
        epochs: The log's leader epochs.

    Returns:
        What was found; None if there is no such record.

    Raises:
        OptionError: Another negative number.
    """
    if timestamp_ms >= 0:
        return _answer(log.offset_for_timestamp(timestamp_ms), epochs)
    if timestamp_ms == LATEST:
        return _answer(TimestampOffset(_NONE, log.log_end_offset), epochs)
    if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        return _answer(TimestampOffset(_NONE, log.log_start_offset), epochs)
    if timestamp_ms == MAX_TIMESTAMP:
        return _answer(_offset_of_max_timestamp(log), epochs)
    if timestamp_ms == LATEST_TIERED:
        return OffsetAndTimestamp(_NONE, _NONE, None)
    raise OptionError(f"Expected a timestamp of 0 or more, or a number from -5 to -1, found {timestamp_ms}.")


def _offset_of_max_timestamp(log: PartitionLog) -> TimestampOffset | None:
    largest_ms, largest_index = _NONE, None
    last = len(log.segments) - 1
    # What is behind the log end in a file is not seen once the end is known.
    log_end_offset = log.log_end_offset
    for index in range(len(log.segments)):
        is_complete = index < last or log.is_clean
        found = log.ask(index, lambda segment: segment.largest_timestamp(is_complete=is_complete))  # noqa: B023
        if found.timestamp_ms > largest_ms:
            largest_ms, largest_index = found.timestamp_ms, index
    if largest_index is None:
        return None
    answer = log.ask(largest_index, lambda segment: segment.offset_for_timestamp(largest_ms))
    return answer if answer is not None and answer.offset < log_end_offset else None


def _answer(found: TimestampOffset | None, epochs: Sequence[EpochEntry]) -> OffsetAndTimestamp | None:
    if found is None:
        return None
    return OffsetAndTimestamp(found.offset, found.timestamp_ms, epoch_for_offset(epochs, found.offset))
