"""Kafka log segments as files: read by column and written as a durable log, without a broker.

>>> import storage_core
>>> table = storage_core.read_table("examples/data", subscribe="clicks", columns=["offset"])
>>> table.num_rows
1200
"""

from typing import TYPE_CHECKING

from storage_core import errors
from storage_core.errors import SegmentLogError
from storage_core.lazy_imports import lazy_imports
from storage_core.log_config import LogConfig

if TYPE_CHECKING:
    from storage_core.filesystem import FileSystem, IoStatistics
    from storage_core.log import (
        AppendInfo,
        CleanerConfig,
        CleanerStatistics,
        EpochEndOffset,
        Log,
        LogDirectory,
        OffsetAndTimestamp,
        OpenTransaction,
        Transaction,
    )
    from storage_core.record import ProducerSequence
    from storage_core.scan import (
        ReadOptions,
        ScanExplanation,
        ScanPlan,
        explain,
        parse_read_options,
        plan_scan,
    )
    from storage_core.tier import open_file_system
    from storage_core.views import count_records, read_batches, read_table

__all__ = [
    "AppendInfo",
    "CleanerConfig",
    "CleanerStatistics",
    "EpochEndOffset",
    "FileSystem",
    "IoStatistics",
    "Log",
    "LogConfig",
    "LogDirectory",
    "OffsetAndTimestamp",
    "OpenTransaction",
    "ProducerSequence",
    "ReadOptions",
    "ScanExplanation",
    "ScanPlan",
    "SegmentLogError",
    "Transaction",
    "__version__",
    "count_records",
    "errors",
    "explain",
    "open_file_system",
    "parse_read_options",
    "plan_scan",
    "read_batches",
    "read_table",
]

# The one place of the version: pyproject.toml, the command and `spark_segmentlog` take it from here.
__version__ = "0.1.0"

__getattr__, __dir__ = lazy_imports(
    __name__,
    "storage_core.filesystem",
    "storage_core.scan",
    "storage_core.tier",
    "storage_core.views",
    "storage_core.record",
    "storage_core.log",
)
