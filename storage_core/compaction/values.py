"""What a pass of the cleaner is told, and what it tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from storage_core.segment.segment_files import DEFAULT_MAX_BATCH_BYTES
from storage_core.segment.segment_windows import WINDOW_BYTES

__all__ = ["CleanRules", "CleanStatistics", "LastRecord", "MapStatistics", "Throttle"]

Throttle: TypeAlias = Callable[[int], None]
"""Is told how many bytes were read or written since it was last called. It may wait, or raise an error to give up."""


class LastRecord(NamedTuple):
    """What a log knows of an active producer.

    Attributes:
        last_data_offset: The last offset of its last data batch; None if there is only a marker of it.
        producer_epoch: Its epoch.
    """

    last_data_offset: int | None
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class CleanRules:
    """What decides what of a log survives, besides the offset map and the transactions.

    Attributes:
        now_ms: The time of the pass.
        delete_retention_ms: ``delete.retention.ms``: how long a tombstone or a marker stays from now on.
        legacy_delete_horizon_ms: Tombstones of formats v0 and v1 stay in segments that were changed after this.
        upper_bound_offset: The first offset that this pass leaves alone.
        last_records: What is known of the active producers, by producer id.
        window_bytes: How much of a segment is read at once, unless a batch is larger.
        max_batch_bytes: The most that a batch may inflate to.
    """

    now_ms: int
    delete_retention_ms: int
    legacy_delete_horizon_ms: int
    upper_bound_offset: int
    last_records: Mapping[int, LastRecord] = field(default_factory=dict)
    window_bytes: int = WINDOW_BYTES
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES


@dataclass(frozen=True, slots=True)
class MapStatistics:
    """What building an offset map took.

    Attributes:
        records_read: How many records were looked at.
        bytes_read: Size of their batches.
        is_full: Whether the map was full before the last record.
    """

    records_read: int
    bytes_read: int
    is_full: bool


@dataclass(frozen=True, slots=True)
class CleanStatistics:
    """What cleaning took and left. Add those of some groups of segments for those of a pass.

    Attributes:
        records_read: How many records were looked at; those of batches that were dropped unseen do not count.
        bytes_read: Size of all batches.
        records_retained: How many records are left.
        bytes_retained: Size of the batches that are left.
        invalid_records: How many records without a key were dropped.
    """

    records_read: int = 0
    bytes_read: int = 0
    records_retained: int = 0
    bytes_retained: int = 0
    invalid_records: int = 0

    def __add__(self, other: CleanStatistics) -> CleanStatistics:
        return CleanStatistics(
            self.records_read + other.records_read,
            self.bytes_read + other.bytes_read,
            self.records_retained + other.records_retained,
            self.bytes_retained + other.bytes_retained,
            self.invalid_records + other.invalid_records,
        )
