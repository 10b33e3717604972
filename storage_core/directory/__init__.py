"""Log directories and the partitions in them: which exist, and which offsets they hold."""

from __future__ import annotations

from storage_core.directory.discovery import find_partitions
from storage_core.directory.log_directory_files import (
    CLUSTER_METADATA_TOPIC,
    INTERNAL_TOPICS,
    LogDirectoryFiles,
    PartitionDirectory,
    PartitionDirectoryName,
    check_topic_partition,
    is_legal_topic_name,
    parse_partition_directory_name,
)
from storage_core.directory.partition_log import PartitionLog, ProducerSnapshot, SegmentSequence

__all__ = [
    "CLUSTER_METADATA_TOPIC",
    "INTERNAL_TOPICS",
    "LogDirectoryFiles",
    "PartitionDirectory",
    "PartitionDirectoryName",
    "PartitionLog",
    "ProducerSnapshot",
    "SegmentSequence",
    "check_topic_partition",
    "find_partitions",
    "is_legal_topic_name",
    "parse_partition_directory_name",
]
