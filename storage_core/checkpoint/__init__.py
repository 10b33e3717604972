"""Kafka's small files next to the segments (its ``storage.internals.checkpoint``).

A missing file reads as None or empty. Reading a malformed one raises `CorruptCheckpointError`, or for a snapshot
`CorruptSnapshotError`; reading one that this user may not read raises `UnreadableError`. A written file and its
directory are flushed, so that it survives a crash. After a `StorageError`, a file is the old or the new one.
"""

from __future__ import annotations

from storage_core.checkpoint.partition_files import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    EpochEntry,
    ProducerStateEntry,
    is_topic_id,
    producer_snapshot_bytes,
    read_leader_epoch_checkpoint,
    read_partition_metadata,
    read_producer_snapshot,
    write_leader_epoch_checkpoint,
    write_partition_metadata,
    write_producer_snapshot,
)
from storage_core.checkpoint.root_files import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    META_PROPERTIES,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    MetaProperties,
    clean_shutdown_status,
    delete_clean_shutdown_file,
    has_clean_shutdown_file,
    read_clean_shutdown_file,
    read_meta_properties,
    read_offset_checkpoint,
    write_clean_shutdown_file,
    write_offset_checkpoint,
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
    "is_topic_id",
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
