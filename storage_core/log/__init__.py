"""The log itself: append, index, roll, recover (Kafka's ``storage.internals.log``)."""

from storage_core.log.log import Log
from storage_core.log.log_append import AppendInfo
from storage_core.log.log_directory import LogDirectory
from storage_core.log.log_time import OffsetAndTimestamp

__all__ = ["AppendInfo", "Log", "LogDirectory", "OffsetAndTimestamp"]
