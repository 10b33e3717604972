"""The surface, name by name: what is added to or taken from it is decided, not slipped in."""

from __future__ import annotations

import importlib
import inspect

import pytest

EXPORTED = {
    "storage_core": [
        "FileSystem",
        "IoStatistics",
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
        "BatchTooLargeError",
        "CorruptCheckpointError",
        "CorruptError",
        "CorruptIndexError",
        "CorruptRecordError",
        "CorruptSnapshotError",
        "DataLossError",
        "LogDirectoryError",
        "OffsetOutOfRangeError",
        "OptionError",
        "ReplicaConflictError",
        "SegmentLogError",
        "TimestampNotFoundError",
        "TimestampRangeError",
        "UnreadableError",
        "UnsupportedFormatError",
    ],
    "storage_core.filesystem": ["DirectoryEntry", "FileStatus", "FileSystem", "IoStatistics", "OpenFile"],
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
    "storage_core.IoStatistics": [
        "bytes_read",
        "reads",
        "files_opened",
        "directories_listed",
        "files_examined",
    ],
    "storage_core.ScanPlan": ["tasks", "partitions", "resolution"],
    "storage_core.ScanExplanation": ["partitions", "tasks", "totals", "planning"],
    "storage_core.scan.ScanTask": ["spans", "settings"],
}


def member(name):
    module, _, attribute = name.rpartition(".")
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
