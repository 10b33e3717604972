"""The log itself: append, index, roll, recover (Kafka's ``storage.internals.log``)."""

from storage_core.log.cleaner_config import CleanerConfig
from storage_core.log.cleaner_statistics import CleanerStatistics
from storage_core.log.leader_epoch_cache import EpochEndOffset
from storage_core.log.log import Log
from storage_core.log.log_append import AppendInfo
from storage_core.log.log_directory import LogDirectory
from storage_core.log.log_time import OffsetAndTimestamp
from storage_core.log.open_transactions import OpenTransaction
from storage_core.log.transaction import Transaction

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
