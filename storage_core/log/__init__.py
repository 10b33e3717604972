"""The log itself: append, index, roll, recover (Kafka's ``storage.internals.log``)."""

from storage_core.log.append import AppendInfo
from storage_core.log.leader_epoch_cache import EpochEndOffset
from storage_core.log.log import Log
from storage_core.log.log_cleaner import CleanerConfig, CleanerStatistics
from storage_core.log.log_directory import LogDirectory
from storage_core.log.log_read import OffsetAndTimestamp
from storage_core.log.transaction import OpenTransaction, Transaction

__all__ = [
    "AppendInfo",
    "CleanerConfig",
    "CleanerStatistics",
    "EpochEndOffset",
    "Log",
    "LogDirectory",
    "OffsetAndTimestamp",
    "OpenTransaction",
    "Transaction",
]
