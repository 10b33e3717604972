"""The surface, name by name: what is added to or taken from it is decided, not slipped in."""

from __future__ import annotations

import importlib
import inspect

import pytest

EXPORTED = {
    "storage_core": [
        "AppendInfo",
        "FileSystem",
        "IoStatistics",
        "Log",
        "LogConfig",
        "LogDirectory",
        "OffsetAndTimestamp",
        "ReadOptions",
        "ScanExplanation",
        "ScanPlan",
        "SegmentLogError",
        "errors",
        "explain",
        "parse_read_options",
        "plan_scan",
        "read_table",
    ],
    "storage_core.errors": [
        "AppendError",
        "BatchTooLargeError",
        "CommitInDoubtError",
        "CorruptCheckpointError",
        "CorruptError",
        "CorruptIndexError",
        "CorruptRecordError",
        "CorruptSnapshotError",
        "DataLossError",
        "InvalidRecordError",
        "InvalidTimestampError",
        "LogClosedError",
        "LogDirectoryError",
        "LogDirectoryLockedError",
        "LogFailedError",
        "LogReadOnlyError",
        "NotWritableError",
        "OffsetOutOfRangeError",
        "OffsetOverflowError",
        "OffsetsOutOfOrderError",
        "OptionError",
        "RecordBatchTooLargeError",
        "RecordTooLargeError",
        "RecoveryWouldDiscard",
        "ReplicaConflictError",
        "SegmentLogError",
        "StorageError",
        "TimestampNotFoundError",
        "TimestampRangeError",
        "UnreadableError",
        "UnsupportedFormatError",
    ],
    "storage_core.filesystem": [
        "BytesLike",
        "DirectoryEntry",
        "FileLock",
        "FileStatus",
        "FileSystem",
        "IoStatistics",
        "OpenFile",
        "WritableFile",
    ],
    "storage_core.scan": [
        "LogSpan",
        "Predicate",
        "ReadOptions",
        "ReadSettings",
        "ScanExplanation",
        "ScanPlan",
        "ScanTask",
        "explain",
        "parse_read_options",
        "plan_scan",
        "project",
        "read_table",
        "read_task",
        "record_schema",
    ],
    "storage_core.partitioning": [
        "DefaultPartitioner",
        "KeyedRows",
        "Partitioner",
        "PartitionerState",
        "RandomPartitioner",
        "RangeAssignor",
        "RoundRobinAssignor",
        "RoundRobinPartitioner",
        "Subscription",
        "TopicPartition",
        "murmur2",
        "murmur2_column",
        "partition_for_key",
        "partition_rows",
        "to_positive",
    ],
    "storage_core.log": ["AppendInfo", "Log", "LogDirectory", "OffsetAndTimestamp"],
    "spark_segmentlog": ["SegmentLogDataSource", "__version__", "register"],
    "pyspark_segmentlog": ["DefaultSource"],
}

PARAMETERS = {
    "storage_core.read_table": ["paths", "filesystem", "options"],
    "storage_core.explain": ["paths", "filesystem", "options"],
    "storage_core.plan_scan": ["filesystem", "options", "predicate"],
    "storage_core.parse_read_options": ["raw", "now_ms"],
    "storage_core.scan.read_task": ["filesystem", "task", "schema"],
    "storage_core.scan.record_schema": ["include_headers", "include_metadata", "corrupt_record_column"],
    "storage_core.scan.project": ["schema", "columns"],
    "storage_core.LogDirectory.open": [
        "path",
        "read_only",
        "recovery",
        "config",
        "broker_directory",
        "filesystem",
        "clock",
    ],
    "storage_core.LogDirectory.create": ["self", "topic", "partition", "config", "topic_id"],
    "storage_core.Log.append": ["self", "records", "acks", "flush", "leader_epoch"],
    "storage_core.Log.append_batches": ["self", "batches", "flush"],
    "storage_core.Log.read": [
        "self",
        "start_offset",
        "end_offset",
        "isolation_level",
        "max_bytes",
        "options",
    ],
    "storage_core.Log.fetch": ["self", "start_offset", "max_size_bytes", "isolation", "min_one_message"],
    "spark_segmentlog.register": ["spark"],
}

FIELDS = {
    "storage_core.ReadOptions": [
        "paths",
        "subscribe",
        "subscribe_pattern",
        "assign",
        "starting",
        "ending",
        "starting_timestamp_strategy",
        "isolation_level",
        "fail_on_data_loss",
        "min_partitions",
        "max_records_per_partition",
        "max_bytes_per_partition",
        "ending_at",
        "use_indexes",
        "max_decompressed_batch_bytes",
        "include_headers",
        "include_metadata",
        "columns",
        "follow_symlinks",
        "filter_pushdown",
        "where",
        "max_timestamp_disorder_ms",
        "mode",
        "corrupt_record_column",
    ],
    "storage_core.AppendInfo": [
        "first_offset",
        "last_offset",
        "max_timestamp_ms",
        "offset_of_max_timestamp",
        "size_bytes",
        "batch_count",
        "log_append_time_ms",
    ],
    "storage_core.OffsetAndTimestamp": ["offset", "timestamp_ms", "leader_epoch"],
    "storage_core.IoStatistics": [
        "bytes_read",
        "reads",
        "files_opened",
        "directories_listed",
        "files_examined",
        "bytes_written",
        "writes",
        "flushes",
    ],
    "storage_core.ScanPlan": ["tasks", "partitions", "resolution"],
    "storage_core.ScanExplanation": ["partitions", "tasks", "totals", "planning"],
    "storage_core.scan.ScanTask": ["spans", "settings"],
}


def member(name):
    module, _, attribute = name.rpartition(".")
    if attribute in ("open", "create", "append", "append_batches", "read", "fetch"):
        return getattr(member(module), attribute)
    return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("name", EXPORTED)
def test_the_names(name):
    module = importlib.import_module(name)
    assert module.__all__ == EXPORTED[name]
    for exported in module.__all__:
        assert hasattr(module, exported)


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_parameters(name):
    assert list(inspect.signature(member(name)).parameters) == PARAMETERS[name]


@pytest.mark.parametrize("name", FIELDS)
def test_the_fields(name):
    assert list(member(name).__dataclass_fields__) == FIELDS[name]
