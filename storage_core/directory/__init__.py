"""Log directories and the partitions in them: which exist, and which offsets they hold."""

from __future__ import annotations

from storage_core.directory.discovery import find_partitions
from storage_core.directory.log_directory_files import (
    CLUSTER_METADATA_TOPIC,
    INTERNAL_TOPICS,
    LogDirectoryFiles,
    PartitionDirectory,
    check_topic_partition,
    parse_partition_directory_name,
)
from storage_core.directory.partition_log import PartitionLog, ProducerSnapshot, SegmentSequence

__all__ = [
    "CLUSTER_METADATA_TOPIC",
    "INTERNAL_TOPICS",
    "LogDirectoryFiles",
    "PartitionDirectory",
    "PartitionLog",
    "ProducerSnapshot",
    "SegmentSequence",
    "check_topic_partition",
    "find_partitions",
    "parse_partition_directory_name",
]
