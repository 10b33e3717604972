"""What compaction makes of segments: which records survive, and how their batches look then (Kafka's ``Cleaner``)."""

from storage_core.compaction.cleaner import build_offset_map, clean_into
from storage_core.compaction.offset_map import MAP_SLOT_BYTES, OffsetMap
from storage_core.compaction.values import (
    CleanedTransactions,
    CleanRules,
    CleanStatistics,
    LastRecord,
    MapStatistics,
)

__all__ = [
    "MAP_SLOT_BYTES",
    "CleanRules",
    "CleanStatistics",
    "CleanedTransactions",
    "LastRecord",
    "MapStatistics",
    "OffsetMap",
    "build_offset_map",
    "clean_into",
]
