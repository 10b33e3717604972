"""The batch reader without Spark: it plans, reads, filters, and closes its files."""

from __future__ import annotations

import dataclasses
import gc
import pickle
import threading

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_segmentlog.reader import PushdownReader, SegmentLogReader
from spark_segmentlog.schema import ProjectedColumn, projected_columns, source_schema
from storage_core.filesystem import FileSystem
from storage_core.options.predicate import And, Comparison
from storage_core.scan import parse_read_options, plan_scan, read_task
from storage_core.scan.read_ahead import read_ahead
from storage_core.scan.spans import record_schema
from tests.descriptors import open_below


def reader_of(path, *names, kind=SegmentLogReader, **options):
    parsed = parse_read_options({"path": path, **options})
    if names:
        return kind(parsed, tuple(map(ProjectedColumn, names)))
    return kind(parsed, projected_columns(source_schema(parsed), parsed))


def read_all(reader):
    """Plan and read as Spark does: pickle the reader, plan, then pickle each partition separately."""
    in_tasks = pickle.loads(cloudpickle.dumps(reader))
    partitions = reader.partitions()
    assert isinstance(partitions, list)
    return [
        batch for partition in partitions for batch in in_tasks.read(pickle.loads(pickle.dumps(partition)))
    ]


def test_batches_have_the_schema_that_spark_expects(logs):
    batches = read_all(reader_of(logs, includeHeaders=True, includeMetadata=True))
    expected = record_schema(include_headers=True, include_metadata=True)
    assert all(batch.schema.equals(expected) for batch in batches)
    assert sum(batch.num_rows for batch in batches) == 210


def test_columns_come_in_the_order_and_with_the_flags_asked_for(logs):
    parsed = parse_read_options({"path": logs})
    reader = SegmentLogReader(parsed, (ProjectedColumn("offset", nullable=False), ProjectedColumn("key")))
    for batch in read_all(reader):
        assert batch.schema.equals(
            pa.schema([pa.field("offset", pa.int64(), nullable=False), pa.field("key", pa.binary())])
        )


def test_batches_stay_as_they_are_while_later_ones_are_decoded(logs, records_of):
    # A thread decodes the next batches while Spark holds this one.
    table = pa.Table.from_batches(read_all(reader_of(logs, "offset", "key", "value", subscribe="a")))
    records = records_of(100) * 2
    assert table["offset"].to_pylist() == [*range(100)] * 2
    assert table["key"].to_pylist() == [record.key for record in records]
    assert table["value"].to_pylist() == [record.value for record in records]


@pytest.mark.parametrize("partition", [InputPartition(None), None], ids=["without value", "none, before 4.2"])
def test_what_spark_passes_for_an_empty_plan_has_no_rows(logs, partition):
    reader = reader_of(logs, endingOffsets='{"b":{"0":0}}', subscribe="b")
    assert reader.partitions() == []
    assert list(reader.read(partition)) == []


@pytest.mark.parametrize("predicate", [None, Comparison("partition", ">=", 0)])
def test_an_early_end_closes_the_files_and_ends_the_thread(logs, predicate):
    reader = reader_of(logs, subscribe="a", kind=PushdownReader)
    reader._predicate = predicate
    batches = reader.read(reader.partitions()[0])
    next(batches)
    batches.close()
    assert open_below(logs) == []
    assert not any(thread.name.startswith("segmentlog-read-ahead") for thread in threading.enumerate())


def test_an_abandoned_read_closes_its_files(logs):
    reader = reader_of(logs, subscribe="a")
    batches = reader.read(reader.partitions()[0])
    next(batches)
    del batches
    gc.collect()
    assert open_below(logs) == []


def test_the_pickled_reader_is_small(logs):
    reader = reader_of(logs, includeHeaders=True, includeMetadata=True)
    before = cloudpickle.dumps(reader)
    reader.partitions()
    assert len(before) < 4000
    # Results of planning go into the partitions: the reader is pickled before planning.
    assert len(cloudpickle.dumps(reader)) == len(before)


def test_only_the_reader_for_pushdown_overrides_push_filters():
    # Spark fails every read of a reader that does, unless its configuration allows pushdown.
    assert [kind for kind in SegmentLogReader.__mro__ if "pushFilters" in vars(kind)] in (
        [],
        [DataSourceReader],
    )
    assert "pushFilters" in vars(PushdownReader)


@pytest.mark.parametrize("names", [("value",), ("offset", "value"), ("key", "value", "topic", "partition")])
def test_a_predicate_is_applied_exactly_and_its_columns_are_dropped_again(logs, names):
    reader = reader_of(logs, *names, kind=PushdownReader)
    reader._predicate = And((Comparison("partition", "=", 1), Comparison("key", ">=", b"k98")))
    table = pa.Table.from_batches(read_all(reader))
    assert table.column_names == list(names)
    assert table["value"].to_pylist() == [b"v98"]


@pytest.mark.parametrize("kind", [SegmentLogReader, PushdownReader])
def test_a_condition_of_the_options_is_applied_in_tasks(logs, kind):
    reader = reader_of(logs, "value", kind=kind, where="key >= 'k9' AND topic = 'a' AND partition = 0")
    table = pa.Table.from_batches(read_all(reader))
    assert table["value"].to_pylist() == [b"v91", b"v92", b"v94", None, b"v97", b"v98"]


def test_a_filter_and_a_condition_must_both_be_met(logs):
    reader = reader_of(logs, "value", kind=PushdownReader, where="key >= 'k9' AND partition = 0")
    reader._predicate = Comparison("offset", "<", 93)
    table = pa.Table.from_batches(read_all(reader))
    assert table["value"].to_pylist() == [b"v91", b"v92"]


def test_a_predicate_prunes_the_plan(logs):
    def planned_bytes(predicate):
        reader = reader_of(logs, kind=PushdownReader)
        reader._predicate = predicate
        return sum(partition.value.size_bytes for partition in reader.partitions())

    everything = planned_bytes(None)
    assert 0 < planned_bytes(Comparison("topic", "=", "b")) < everything / 10
    assert 0 < planned_bytes(Comparison("partition", "=", 1)) < everything / 2
    # Small segments are read as a whole.
    assert 0 < planned_bytes(Comparison("offset", ">=", 90)) < everything / 2
    assert planned_bytes(Comparison("offset", "<", 0)) == 0


def test_a_consumer_that_stops_early_has_only_a_few_batches_read(new_logs, records_of):
    # `show()` and `limit(5)` close the reader after its first batch.
    record = dataclasses.replace(records_of(1)[0], value=bytes(1 << 20))
    new_logs.write("a", 0, [record] * 64, batch_size=1)
    plan = plan_scan(FileSystem(), parse_read_options({"path": new_logs.path}))
    filesystem = FileSystem()
    schema = record_schema(include_headers=False, include_metadata=False)
    batches = read_ahead(lambda task: read_task(filesystem, task, schema), plan.tasks, room_bytes=2 << 20)
    next(batches)
    batches.close()
    assert filesystem.statistics.bytes_read <= 40 << 20
