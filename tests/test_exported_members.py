"""The surface, name by name: what is added to or taken from it is decided, not slipped in."""

from __future__ import annotations

import importlib
import inspect

import pytest

EXPORTED = {
    "storage_core": [
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
        "InvalidProducerEpochError",
        "InvalidRecordError",
        "InvalidTimestampError",
        "InvalidTxnStateError",
        "LogClosedError",
        "LogDirectoryError",
        "LogDirectoryLockedError",
        "LogFailedError",
        "LogForkedError",
        "LogReadOnlyError",
        "LogTruncationError",
        "NotWritableError",
        "OffsetOutOfRangeError",
        "OffsetOverflowError",
        "OffsetsOutOfOrderError",
        "OptionError",
        "OutOfOrderSequenceError",
        "ProducerError",
        "RecordBatchTooLargeError",
        "RecordError",
        "RecordTooLargeError",
        "RecoveryWouldDiscardError",
        "ReplicaConflictError",
        "SegmentLogError",
        "StorageError",
        "TimestampNotFoundError",
        "TimestampRangeError",
        "TransactionCoordinatorFencedError",
        "UnreadableError",
        "UnsupportedFormatError",
    ],
    "storage_core.filesystem": [
        "BytesLike",
        "DirectoryEntry",
        "ExaminedEntry",
        "FileLock",
        "FileStatus",
        "FileSystem",
        "IoStatistics",
        "OpenFile",
        "OwningProcess",
        "PooledFile",
        "PreparedFlush",
        "WritableFile",
        "WriteStream",
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
        "read_records",
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
    "storage_core.views": [
        "VIEW_NAMES",
        "View",
        "ViewTask",
        "find_view",
        "plan_view",
        "read_table",
        "read_view_task",
        "view_schema",
    ],
    "storage_core.log": [
        "AppendInfo",
        "CleanerConfig",
        "CleanerStatistics",
        "EpochEndOffset",
        "Log",
        "LogDirectory",
        "OffsetAndTimestamp",
        "OpenTransaction",
        "Transaction",
    ],
    "spark_segmentlog": ["Lag", "SegmentLogDataSource", "__version__", "lag", "register"],
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
    "storage_core.LogDirectory.delete": ["self", "topic", "partition"],
    "storage_core.LogDirectory.forget_versions": ["self", "txn_app_id"],
    "storage_core.LogDirectory.alter_config": ["self", "topic", "config"],
    "storage_core.Log.alter_config": ["self", "config"],
    "storage_core.Log.append": [
        "self",
        "records",
        "acks",
        "leader_epoch",
        "producer",
        "is_transactional",
        "origin",
    ],
    "storage_core.Log.append_as_leader": ["self", "batches", "flush", "leader_epoch", "origin"],
    "storage_core.Log.append_batches": ["self", "batches", "flush", "leader_epoch"],
    "storage_core.Log.assign_epoch_start_offset": ["self", "leader_epoch"],
    "storage_core.Log.transaction": ["self", "producer_id", "flush"],
    "storage_core.Log.open_transactions": ["self"],
    "storage_core.Log.abort_transaction": ["self", "producer_id", "flush"],
    "storage_core.Log.end_transaction": [
        "self",
        "producer_id",
        "producer_epoch",
        "is_abort",
        "coordinator_epoch",
        "transaction_version",
        "flush",
    ],
    "storage_core.Log.read": [
        "self",
        "start_offset",
        "end_offset",
        "isolation_level",
        "max_bytes",
        "options",
    ],
    "storage_core.Log.clean": ["self", "config", "now_ms"],
    "storage_core.LogDirectory.clean": ["self", "config", "now_ms"],
    "storage_core.Log.fetch": [
        "self",
        "start_offset",
        "max_size_bytes",
        "isolation_level",
        "min_one_message",
    ],
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
        "ignore_checkpoints",
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
        "view",
        "as_of_ms",
        "exact",
        "assumes_zone",
    ],
    "storage_core.AppendInfo": [
        "first_offset",
        "last_offset",
        "max_timestamp_ms",
        "offset_of_max_timestamp",
        "size_bytes",
        "batch_count",
        "log_append_time_ms",
        "is_duplicate",
    ],
    "storage_core.OpenTransaction": ["producer_id", "producer_epoch", "first_offset", "last_timestamp_ms"],
    "storage_core.ProducerSequence": ["producer_id", "producer_epoch", "base_sequence"],
    "storage_core.CleanerConfig": [
        "dedupe_buffer_size",
        "io_buffer_size",
        "io_buffer_load_factor",
        "io_max_bytes_per_second",
        "backoff_ms",
        "max_decompressed_batch_bytes",
    ],
    "storage_core.CleanerStatistics": [
        "topic",
        "partition",
        "start_offset",
        "end_offset",
        "bytes_read",
        "bytes_written",
        "records_before",
        "records_after",
        "invalid_records",
        "map_bytes_read",
        "map_records_read",
        "map_size",
        "map_utilization",
        "segments_before",
        "segments_after",
        "started_ms",
        "map_built_ms",
        "ended_ms",
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

# The classes that each error can be caught as.
PARENTS = {
    "AppendError": ["SegmentLogError"],
    "BatchTooLargeError": ["CorruptError"],
    "CommitInDoubtError": ["SegmentLogError"],
    "CorruptCheckpointError": ["CorruptError"],
    "CorruptError": ["SegmentLogError"],
    "CorruptIndexError": ["CorruptError"],
    "CorruptRecordError": ["CorruptError"],
    "CorruptSnapshotError": ["CorruptError"],
    "DataLossError": ["SegmentLogError"],
    "InvalidProducerEpochError": ["ProducerError"],
    "InvalidRecordError": ["AppendError"],
    "InvalidTimestampError": ["AppendError"],
    "InvalidTxnStateError": ["ProducerError"],
    "LogClosedError": ["NotWritableError"],
    "LogDirectoryError": ["SegmentLogError"],
    "LogDirectoryLockedError": ["LogDirectoryError"],
    "LogFailedError": ["NotWritableError"],
    "LogForkedError": ["NotWritableError"],
    "LogReadOnlyError": ["NotWritableError"],
    "LogTruncationError": ["DataLossError"],
    "NotWritableError": ["SegmentLogError"],
    "OffsetOutOfRangeError": ["SegmentLogError"],
    "OffsetOverflowError": ["AppendError"],
    "OffsetsOutOfOrderError": ["AppendError"],
    "OptionError": ["SegmentLogError", "ValueError"],
    "OutOfOrderSequenceError": ["ProducerError"],
    "ProducerError": ["AppendError"],
    "RecordBatchTooLargeError": ["AppendError"],
    "RecordTooLargeError": ["AppendError"],
    "RecoveryWouldDiscardError": ["SegmentLogError"],
    "ReplicaConflictError": ["LogDirectoryError"],
    "SegmentLogError": ["Exception"],
    "StorageError": ["SegmentLogError"],
    "TimestampNotFoundError": ["OffsetOutOfRangeError"],
    "TimestampRangeError": ["SegmentLogError"],
    "TransactionCoordinatorFencedError": ["ProducerError"],
    "UnreadableError": ["LogDirectoryError"],
    "UnsupportedFormatError": ["SegmentLogError"],
}


def member(name):
    module, _, attribute = name.rpartition(".")
    if module.endswith((".Log", ".LogDirectory")):
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


@pytest.mark.parametrize("error", PARENTS)
def test_the_parents_of_an_error(error):
    found = getattr(importlib.import_module("storage_core.errors"), error)
    assert [parent.__name__ for parent in found.__bases__] == PARENTS[error]


def test_every_error_has_its_parents_pinned():
    module = importlib.import_module("storage_core.errors")
    exported = [getattr(module, name) for name in module.__all__]
    errors = {each.__name__ for each in exported if isinstance(each, type) and issubclass(each, Exception)}
    assert errors == set(PARENTS)
