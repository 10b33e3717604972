"""Segments of a log and their indexes (Kafka's ``LogSegment``, ``OffsetIndex``, ``TimeIndex``, ``TransactionIndex``)."""

from storage_core.segment.damage import DamagedRange
from storage_core.segment.damage_scanner import DamageScanner
from storage_core.segment.file_names import (
    AbortedTransaction,
    OffsetPosition,
    SegmentEnd,
    TimestampOffset,
    base_offset_of,
)
from storage_core.segment.offset_index import OffsetIndex
from storage_core.segment.segment_reader import SegmentReader
from storage_core.segment.time_index import TimeIndex
from storage_core.segment.transaction_index import TransactionIndex

__all__ = [
    "AbortedTransaction",
    "DamageScanner",
    "DamagedRange",
    "OffsetIndex",
    "OffsetPosition",
    "SegmentEnd",
    "SegmentReader",
    "TimeIndex",
    "TimestampOffset",
    "TransactionIndex",
    "base_offset_of",
]
