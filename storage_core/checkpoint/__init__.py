"""The small files beside the segments, as Kafka's ``storage.internals.checkpoint`` knows them.

A missing file reads as nothing (None or empty); a malformed one raises. What is written is flushed, and so is its
directory: it is there after a crash.
"""

from __future__ import annotations

from storage_core.checkpoint.clean_shutdown import (
    CLEAN_SHUTDOWN_FILE,
    clean_shutdown_status,
    delete_clean_shutdown_file,
    has_clean_shutdown_file,
    read_clean_shutdown_file,
    write_clean_shutdown_file,
)
from storage_core.checkpoint.leader_epoch_checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    EpochEntry,
    read_leader_epoch_checkpoint,
    write_leader_epoch_checkpoint,
)
from storage_core.checkpoint.meta_properties import META_PROPERTIES, MetaProperties, read_meta_properties
from storage_core.checkpoint.offset_checkpoint import (
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from storage_core.checkpoint.partition_metadata import (
    PARTITION_METADATA,
    read_partition_metadata,
    write_partition_metadata,
)
from storage_core.checkpoint.producer_snapshot import (
    ProducerStateEntry,
    producer_snapshot_bytes,
    read_producer_snapshot,
    write_producer_snapshot,
)

__all__ = [
    "CLEANER_OFFSET_CHECKPOINT",
    "CLEAN_SHUTDOWN_FILE",
    "LEADER_EPOCH_CHECKPOINT",
    "LOG_START_OFFSET_CHECKPOINT",
    "META_PROPERTIES",
    "PARTITION_METADATA",
    "RECOVERY_POINT_CHECKPOINT",
    "REPLICATION_OFFSET_CHECKPOINT",
    "EpochEntry",
    "MetaProperties",
    "ProducerStateEntry",
    "clean_shutdown_status",
    "delete_clean_shutdown_file",
    "has_clean_shutdown_file",
    "producer_snapshot_bytes",
    "read_clean_shutdown_file",
    "read_leader_epoch_checkpoint",
    "read_meta_properties",
    "read_offset_checkpoint",
    "read_partition_metadata",
    "read_producer_snapshot",
    "write_clean_shutdown_file",
    "write_leader_epoch_checkpoint",
    "write_offset_checkpoint",
    "write_partition_metadata",
    "write_producer_snapshot",
]
