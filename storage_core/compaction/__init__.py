"""Log compaction: which records a pass retains, and the batches that hold them (Kafka's ``Cleaner``)."""

from storage_core.compaction.cleaned_transactions import CleanedTransactions
from storage_core.compaction.cleaner import (
    CleanRules,
    CleanStatistics,
    LastRecord,
    MapStatistics,
    build_offset_map,
    clean_into,
)
from storage_core.compaction.offset_map import MAP_SLOT_BYTES, OffsetMap

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
