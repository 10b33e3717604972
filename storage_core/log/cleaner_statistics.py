"""What a cleaning did (Kafka's ``CleanerStats``)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CleanerStatistics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerStatistics:
    """What one pass over one log did.

    Attributes:
        topic: The topic.
        partition: The partition's number.
        start_offset: The first offset that was dirty.
        end_offset: Up to where the log is clean now.
        bytes_read: Size of the batches that were cleaned.
        bytes_written: Size of what is left of them.
        records_before: How many records were looked at; those of batches that were dropped unseen do not count.
        records_after: How many records are left.
        invalid_records: How many records without a key were dropped.
        map_bytes_read: Size of the dirty batches, in which the last offset of each key was looked up first.
        map_records_read: How many records they had.
        map_size: How many keys there were among them.
        map_utilization: How full that made the memory for keys, from 0 to 1.
        segments_before: How many segments were cleaned.
        segments_after: How many took their place.
        started_ms: When it began.
        map_built_ms: When all keys were known.
        ended_ms: When it ended.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    bytes_read: int
    bytes_written: int
    records_before: int
    records_after: int
    invalid_records: int
    map_bytes_read: int
    map_records_read: int
    map_size: int
    map_utilization: float
    segments_before: int
    segments_after: int
    started_ms: int
    map_built_ms: int
    ended_ms: int

    def __str__(self) -> str:
        return (
            f"Cleaned {self.topic}-{self.partition} from offset {self.start_offset} to {self.end_offset} in "
            f"{self.ended_ms - self.started_ms} ms, {self.map_built_ms - self.started_ms} ms of it for "
            f"{self.map_size} keys in {self.map_bytes_read} bytes ({self.map_utilization:.1%} of the memory for "
            f"keys): {self.segments_before} segments with {self.records_before} records, {self.bytes_read} bytes, "
            f"became {self.segments_after} with {self.records_after} records, {self.bytes_written} bytes."
        )
