"""Where a read of one partition starts and stops.

Nothing is read that the answer does not need: a partition's end, which takes a walk over the
tail of its last segment, is looked up only if the range is not known to lie below it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_core.cached_property import cached_property
from storage_core.errors import LogDirectoryError, OffsetOutOfRangeError, OptionError, TimestampNotFoundError
from storage_core.scan.bounds import (
    Bound,
    EarliestBound,
    LatestBound,
    OffsetsBound,
    TimestampBound,
    TimestampsBound,
)
from storage_core.scan.isolation import last_stable_offset
from storage_core.scan.offset_json import EARLIEST_OFFSET, LATEST_OFFSET

if TYPE_CHECKING:
    from storage_core.directory import PartitionLog
    from storage_core.scan.options import ReadOptions

__all__ = ["ResolvedPartition", "resolve_partition"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResolvedPartition:
    """A partition to read, and which offsets of it: ``end_offset`` is exclusive."""

    log: PartitionLog
    start_offset: int
    end_offset: int


def resolve_partition(log: PartitionLog, options: ReadOptions) -> ResolvedPartition:
    """Turn both bounds into offsets of one partition, which they must name.

    Raises:
        OptionError: The start lies behind the end.
        OffsetOutOfRangeError: Offsets are asked for that are not there.
        TimestampNotFoundError: No record is as young as the starting timestamp.
        LogDirectoryError: The high watermark is asked for, and not known.
    """
    return _PartitionResolver(log, options).resolve()


class _PartitionResolver:
    """Turns both bounds of one partition into offsets."""

    def __init__(self, log: PartitionLog, options: ReadOptions) -> None:
        self._log = log
        self._options = options
        self._name = f"{log.topic}-{log.partition}"

    def resolve(self) -> ResolvedPartition:
        start_offset = self._start_offset()
        end_offset = self._end_offset()
        if start_offset > end_offset:
            self._check_inverted(start_offset, end_offset)
            start_offset = end_offset
        return ResolvedPartition(self._log, start_offset, end_offset)

    @cached_property
    def _limit_offset(self) -> int:
        """What ``latest`` means; nothing is read at or behind it."""
        log, options = self._log, self._options
        limit_offset = log.log_end_offset
        if options.ending_at == "highWatermark":
            high_watermark = log.high_watermark
            if high_watermark is None:
                raise LogDirectoryError(
                    f"endingAt=highWatermark needs the high watermark of {self._name}, and no "
                    "replication-offset-checkpoint beside the partition names it. Use endingAt=logEnd.",
                    path=log.path,
                )
            limit_offset = high_watermark
        if options.isolation_level == "read_committed":
            limit_offset = last_stable_offset(log, limit_offset)
        return limit_offset

    @property
    def _limit_name(self) -> str:
        if self._options.isolation_level == "read_committed":
            return "last stable offset"
        return "high watermark" if self._options.ending_at == "highWatermark" else "log end offset"

    def _is_within_limit(self, offset: int) -> bool:
        is_plain = self._options.ending_at == "logEnd" and self._options.isolation_level == "read_uncommitted"
        segments = self._log.segments
        # Nothing but the listing says that the log reaches to its last segment.
        if is_plain and segments and offset <= segments.base_offsets[-1]:
            return True
        return offset <= self._limit_offset

    def _start_offset(self) -> int:
        requested = _requested(self._options.starting, self._log)
        if isinstance(requested, TimestampBound):
            return self._start_at_timestamp(requested.timestamp_ms)
        log_start_offset = self._log.log_start_offset
        if requested == EARLIEST_OFFSET:
            return log_start_offset
        if requested == LATEST_OFFSET:
            return self._limit_offset
        if requested < log_start_offset:
            self._report_loss(requested, log_start_offset, f"the log starts at offset {log_start_offset}")
            return log_start_offset
        return requested

    def _start_at_timestamp(self, timestamp_ms: int) -> int:
        found = self._log.offset_for_timestamp(timestamp_ms, self._limit_offset)
        if found is not None:
            return found.offset
        if self._options.starting_timestamp_strategy == "latest":
            return self._limit_offset
        raise TimestampNotFoundError(
            f"No offset matched from request of topic-partition {self._name} and timestamp {timestamp_ms}. "
            "Set startingOffsetsByTimestampStrategy=latest to read nothing from such partitions.",
            path=self._log.path,
        )

    def _end_offset(self) -> int:
        requested = _requested(self._options.ending, self._log)
        if isinstance(requested, TimestampBound):
            found = self._log.offset_for_timestamp(requested.timestamp_ms, self._limit_offset)
            return self._limit_offset if found is None else found.offset
        if requested == LATEST_OFFSET:
            return self._limit_offset
        if requested == EARLIEST_OFFSET:
            return self._log.log_start_offset
        if not self._is_within_limit(requested):
            limit_offset = self._limit_offset
            self._report_loss(limit_offset, requested, f"the {self._limit_name} is {limit_offset}")
            return limit_offset
        return requested

    def _report_loss(self, start_offset: int, end_offset: int, reason: str) -> None:
        message = (
            "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Could not read records in offset "
            f"[{start_offset}, {end_offset}) for topic partition {self._name}: {reason}."
        )
        if self._options.fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"{message} Set failOnDataLoss to false to read what there is.", path=self._log.path
            )
        _log.warning("%s Reading goes on without them, because failOnDataLoss is false.", message)

    def _check_inverted(self, start_offset: int, end_offset: int) -> None:
        """Pass over a range that data loss has turned around; anything else is a mistake."""
        log = self._log
        is_lost = end_offset < log.log_start_offset or not self._is_within_limit(start_offset)
        if is_lost and not self._options.fail_on_data_loss:
            _log.warning(
                "Nothing is read of %s: its offsets go from %d to %d, and a range from %d to %d was asked for.",
                self._name,
                log.log_start_offset,
                self._limit_offset,
                start_offset,
                end_offset,
            )
            return
        raise OptionError(
            f"[RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] The resolved start offset {start_offset} is greater "
            f"than the resolved end offset {end_offset} for topic {log.topic} partition {log.partition}. "
            "Start with an earlier offset or timestamp, or end with a later one."
        )


def _requested(bound: Bound, log: PartitionLog) -> int | TimestampBound:
    """What a bound asks for in one partition: an offset, -1 or -2, or a timestamp."""
    topic_partition = log.directory.topic_partition
    match bound:
        case EarliestBound():
            return EARLIEST_OFFSET
        case LatestBound():
            return LATEST_OFFSET
        case OffsetsBound(offsets, topic_offsets):
            return offsets.get(topic_partition, topic_offsets.get(log.topic, LATEST_OFFSET))
        case TimestampBound():
            return bound
        case TimestampsBound(timestamps_ms, topic_timestamps_ms):
            return TimestampBound(
                timestamps_ms[topic_partition]
                if topic_partition in timestamps_ms
                else topic_timestamps_ms[log.topic]
            )
