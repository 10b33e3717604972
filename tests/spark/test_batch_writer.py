"""The batch writer: rows routed and staged in tasks, published by one commit; without Spark, then in a session."""

from __future__ import annotations

import itertools
import os
import pickle
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import compute
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import functions
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

import storage_core
from spark_segmentlog import SegmentLogDataSource
from spark_segmentlog.write_options import write_options
from spark_segmentlog.write_planning import plan_write
from storage_core.errors import InvalidRecordError, LogDirectoryError, OptionError, UnreadableError
from storage_core.filesystem import FileSystem
from storage_core.partitioning import partition_for_key

KINDS = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "headers": ArrayType(StructType().add("key", StringType()).add("value", BinaryType())),
}
# What murmur2 of Kafka's own tests makes of these keys, without sign, modulo 12.
PARTITIONS_OF_12 = {
    b"21": 0,
    b"foobar": 6,
    b"a-little-bit-long-string": 8,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": 5,
    b"abc": 3,
}


def writer_of(path, *columns, overwrite=False, **options):
    """Make a writer for some columns; ``__`` stands for a dot."""
    given = {"path": str(path), **{name.replace("__", "."): text for name, text in options.items()}}
    schema = StructType()
    for name in columns:
        schema.add(name, KINDS[name])
    return SegmentLogDataSource(CaseInsensitiveDict(given)).writer(schema, overwrite=overwrite)


def sent(thing):
    """As it arrives in another process."""
    return pickle.loads(pickle.dumps(thing))


def stage(writer, batches, task=0, attempt=0):
    """Run a task as Spark does."""

    class Context:
        def partitionId(self):  # noqa: N802
            return task

        def taskAttemptId(self):  # noqa: N802
            return attempt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyspark.TaskContext.get", Context)
        return sent(sent(writer).write(iter(batches)))


def write(writer, *tasks):
    """Write as Spark does, with a list of batches for each task."""
    messages = [stage(writer, batches, task, 10 + task) for task, batches in enumerate(tasks)]
    assert all(isinstance(message, WriterCommitMessage) for message in messages)
    sent(writer).commit(messages)


def batch(**columns):
    return pa.record_batch(columns)


def rows(path, **options):
    """What is to be read, by topic, partition and offset."""
    table = storage_core.read_table(path, include_headers=True, **options)
    return table.sort_by([("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")])


def staged_files(path):
    return [name for name in os.listdir(path) if name.startswith(".segmentlog-stage")]


@pytest.fixture
def root(tmp_path):
    return tmp_path / "written" / "logs"


def test_it_takes_arrow_batches(root):
    assert isinstance(writer_of(root, "value", topic="t"), DataSourceArrowWriter)


def test_every_column_comes_back(root):
    headers = [[("a", b"1"), ("a", None)], None, []]
    given = batch(
        key=pa.array([b"k", None, b""]),
        value=pa.array([b"v", b"", None]),
        topic=pa.array(["t", "u", "t"]),
        partition=pa.array([1, 0, 1], pa.int32()),
        timestamp=pa.array([1_700_000_000_000_999, -1, 7_000], pa.timestamp("us", "America/New_York")),
        headers=pa.array(headers, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    )
    write(writer_of(root, *given.schema.names, partitions="2"), [given])
    found = rows(root)
    assert found["topic"].to_pylist() == ["t", "t", "u"]
    assert found["partition"].to_pylist() == [1, 1, 0]
    assert found["offset"].to_pylist() == [0, 1, 0]
    assert found["key"].to_pylist() == [b"k", b"", None]
    assert found["value"].to_pylist() == [b"v", None, b""]
    # Milliseconds, rounded down.
    assert found["timestamp"].cast(pa.int64()).to_pylist() == [1_700_000_000_000_000, 7_000, -1_000]
    assert found["headers"].to_pylist() == [
        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        None,
        None,
    ]


@pytest.mark.parametrize("text", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("data", [pa.binary(), pa.large_binary()])
def test_texts_become_utf_8_whatever_the_width_of_their_offsets(root, text, data):
    schema = StructType().add("key", StringType()).add("value", BinaryType()).add("topic", StringType())
    source = SegmentLogDataSource(CaseInsensitiveDict({"path": str(root)}))
    given = batch(
        key=pa.array(["ä", None], text),
        value=pa.array([b"\xff", b"v"], data),
        topic=pa.array(["t"] * 2, text),
    )
    write(source.writer(schema, overwrite=False), [given])
    assert rows(root)["key"].to_pylist() == ["ä".encode(), None]
    assert rows(root)["value"].to_pylist() == [b"\xff", b"v"]


def test_a_record_without_a_timestamp_gets_that_of_the_job(root):
    before_us = int(time.time() * 1000) * 1000
    writer = writer_of(root, "value", "timestamp", topic="t")
    after_us = int(time.time() * 1000) * 1000
    write(writer, [batch(value=[b"v"], timestamp=pa.array([None], pa.timestamp("us", "UTC")))])
    write(writer_of(root, "value", topic="t"), [batch(value=[b"v"])])
    first, second = rows(root)["timestamp"].cast(pa.int64()).to_pylist()
    assert before_us <= first <= after_us <= second


def test_keyed_rows_go_where_kafkas_producer_puts_them(root):
    keys = list(PARTITIONS_OF_12)
    write(writer_of(root, "key", "value", topic="t", partitions="12"), [batch(key=keys, value=keys)])
    found = rows(root)
    assert (
        dict(zip(found["key"].to_pylist(), found["partition"].to_pylist(), strict=True)) == PARTITIONS_OF_12
    )


def test_keyless_rows_stay_in_a_partition_until_a_batch_is_full(root):
    given = batch(value=[b"x" * 92] * 400)
    write(writer_of(root, "value", topic="t", partitions="4", batch__size="10000"), [given])
    counts = rows(root).group_by("partition").aggregate([("value", "count")])["value_count"].to_pylist()
    assert sorted(counts) == [100, 100, 100, 100]


def test_round_robin_and_random_pass_over_keys(root, tmp_path):
    given = batch(key=[b"k"] * 40, value=[b"v"] * 40)
    write(writer_of(root, "key", "value", topic="t", partitions="4", partitioner="roundRobin"), [given])
    counts = rows(root).group_by("partition").aggregate([("value", "count")])["value_count"].to_pylist()
    assert counts == [10, 10, 10, 10]
    other = tmp_path / "random"
    write(writer_of(other, "key", "value", topic="t", partitions="4", partitioner="random"), [given])
    assert len(set(rows(other)["partition"].to_pylist())) == 4


def test_a_partition_column_wins_where_it_is_not_null(root):
    given = batch(key=[b"abc", b"abc"], value=[b"1", b"2"], partition=pa.array([7, None], pa.int32()))
    write(writer_of(root, "key", "value", "partition", topic="t", partitions="12"), [given])
    assert rows(root)["partition"].to_pylist() == [3, 7]


def test_the_topic_option_beats_the_column(root):
    write(writer_of(root, "value", "topic", topic="t"), [batch(value=[b"v"], topic=["u"])])
    assert rows(root)["topic"].to_pylist() == ["t"]


def test_a_topic_that_is_there_keeps_its_partitions(root):
    write(writer_of(root, "key", "value", topic="t", partitions="12"), [batch(key=[b"abc"], value=[b"1"])])
    write(writer_of(root, "key", "value", topic="t", partitions="5"), [batch(key=[b"abc"], value=[b"2"])])
    assert rows(root)["partition"].to_pylist() == [3, 3]
    assert sum(name.startswith("t-") for name in os.listdir(root)) == 12


def test_a_new_topic_has_all_of_its_partitions(root):
    write(writer_of(root, "value", "topic", partitions="3"), [batch(value=[b"v"] * 2, topic=["t", "u"])])
    found = sorted(name for name in os.listdir(root) if name[0] in "tu")
    assert found == ["t-0", "t-1", "t-2", "u-0", "u-1", "u-2"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"topic": pa.array(["t", None])},
            "^null topic present in the data. Use the topic option for setting a default topic.",
        ),
        ({"topic": ["t", "a/b"]}, "as the name of a topic, found 'a/b'"),
        ({"topic": ["t", ".."]}, "as the name of a topic, found '..'"),
        (
            {"topic": ["t", "t"], "partition": pa.array([0, 2], pa.int32())},
            "^Partition 2 of topic t with partition count 2",
        ),
        ({"topic": ["t", "t"], "partition": pa.array([0, -1], pa.int32())}, "^Invalid partition: -1."),
    ],
)
def test_rows_that_fit_nowhere_fail_their_task_and_leave_nothing(root, columns, message):
    writer = writer_of(root, "value", *columns, partitions="2")
    with pytest.raises((InvalidRecordError, OptionError), match=message):
        writer.write(iter([batch(value=[b"1", b"2"], **columns)]))
    assert staged_files(root) == []


def test_a_record_that_is_too_large_leaves_nothing(root):
    writer = writer_of(root, "value", topic="t", max__message__bytes="1000")
    with pytest.raises(storage_core.SegmentLogError, match=r"max\.message\.bytes"):
        writer.write(iter([batch(value=[b"x" * 2000])]))
    assert staged_files(root) == []


@pytest.mark.parametrize("columns", [{}, {"key": pa.array([b"k", None], pa.binary())}])
def test_rows_of_a_compacted_topic_have_keys(root, columns):
    writer = writer_of(root, "value", *columns, topic="t", cleanup__policy="delete,compact")
    with pytest.raises(InvalidRecordError, match=r"^Compacted topic cannot accept message without key"):
        writer.write(iter([batch(value=[b"1", b"2"], **columns)]))
    assert staged_files(root) == []
    write(
        writer_of(root, "key", "value", topic="t", cleanup__policy="compact"),
        [batch(key=[b"k"], value=[b"1"])],
    )
    assert rows(root)["key"].to_pylist() == [b"k"]


def test_a_file_that_is_named_like_a_partition_is_none(root):
    write(writer_of(root, "value", topic="u"), [batch(value=[b"1"])])
    (root / "t-0").write_bytes(b"")
    with pytest.raises(LogDirectoryError, match=r"found something\. Move it away\. .*/t-0"):
        write(writer_of(root, "value", topic="t"), [batch(value=[b"1"])])
    assert rows(root)["topic"].to_pylist() == ["u"]
    write(writer_of(root, "value", topic="u"), [batch(value=[b"2"])])
    assert rows(root)["value"].to_pylist() == [b"1", b"2"]


def test_partitions_that_may_stand_on_another_disk_are_not_made(root):
    write(
        writer_of(root, "value", "partition", topic="t", partitions="3"),
        [batch(value=[b"1"], partition=pa.array([0], pa.int32()))],
    )
    for name in os.listdir(root / "t-1"):
        (root / "t-1" / name).unlink()
    (root / "t-1").rmdir()
    writer = writer_of(root, "value", "partition", topic="t")
    with pytest.raises(
        InvalidRecordError,
        match=r"Partition 1 of topic t is not in this log directory, which holds its partitions 0, 2\.",
    ):
        writer.write(iter([batch(value=[b"1"], partition=pa.array([1], pa.int32()))]))
    write(writer, [batch(value=[b"2"], partition=pa.array([2], pa.int32()))])
    assert rows(root)["partition"].to_pylist() == [0, 2]


def test_a_brokers_disk_may_hold_the_first_partitions_of_a_topic_only(root):
    """Keys are hashed over all partitions that the cluster has, or they lie where no producer puts them."""
    write(writer_of(root, "value", topic="t", partitions="2"), [batch(value=[b"1"])])
    (root / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=4L6g3nShT-eMCtK--X86sw\n")
    options = {"topic": "t", "brokerDirectory": "true", "partitions": "6"}
    writer = writer_of(root, "key", "value", **options)
    with pytest.raises(
        InvalidRecordError, match=r"^Partition [2-5] of topic t is not .* holds its partitions 0, 1\."
    ):
        writer.write(iter([batch(key=[b"%d" % number for number in range(50)], value=[b"v"] * 50)]))
    places = {key: partition_for_key(key, 6) for key in (b"k%d" % number for number in range(40))}
    here = [key for key, place in places.items() if place < 2]
    write(writer_of(root, "key", "value", **options), [batch(key=here, value=[b"v"] * len(here))])
    found = rows(root).filter(compute.field("key").is_valid())
    assert {row["key"]: row["partition"] for row in found.to_pylist()} == {key: places[key] for key in here}


def test_nothing_is_visible_before_the_commit(root):
    writer = writer_of(root, "value", topic="t")
    message = stage(writer, [batch(value=[b"1"])])
    assert [name for name in os.listdir(root) if name.startswith("t-")] == []
    writer.commit([message])
    assert rows(root)["value"].to_pylist() == [b"1"]
    assert staged_files(root) == []


def test_rows_stand_in_the_order_of_the_tasks(root):
    writer = writer_of(root, "value", topic="t")
    messages = [
        stage(writer, [batch(value=[b"%d" % task])], task, attempt)
        for task, attempt in ((2, 5), (0, 6), (1, 7))
    ]
    writer.commit([messages[1], messages[2], messages[0]])
    assert rows(root)["value"].to_pylist() == [b"0", b"1", b"2"]


def test_of_two_attempts_at_a_task_the_one_counts_that_spark_names(root):
    writer = writer_of(root, "value", topic="t")
    stage(writer, [batch(value=[b"first"])], 0, 1)
    message = stage(writer, [batch(value=[b"second"])], 0, 2)
    stage(writer, [batch(value=[b"late"])], 0, 3)
    writer.commit([message])
    assert rows(root)["value"].to_pylist() == [b"second"]
    assert staged_files(root) == []


def test_tasks_side_by_side_fill_different_partitions(root):
    given = [batch(value=[b"1"])]
    write(writer_of(root, "value", topic="t", partitions="3"), given, given, given)
    assert rows(root)["partition"].to_pylist() == [0, 1, 2]


def test_two_jobs_that_make_a_topic_with_other_partitions_do_not_mix(root):
    first = writer_of(root, "value", topic="t", partitions="3")
    second = writer_of(root, "value", topic="t", partitions="5")
    messages = [stage(writer, [batch(value=[b"v"])]) for writer in (first, second)]
    first.commit(messages[:1])
    with pytest.raises(OptionError, match=r"another job has made it meanwhile"):
        second.commit(messages[1:])
    second.abort(messages[1:])
    assert rows(root).num_rows == 1
    assert staged_files(root) == []


def test_a_task_without_rows_stages_nothing(root):
    writer = writer_of(root, "value", topic="t")
    messages = [writer.write(iter([])), writer.write(iter([batch(value=pa.array([], pa.binary()))]))]
    assert staged_files(root) == []
    writer.commit(messages)
    assert not (root / "t-0").exists()


def test_an_abort_removes_what_was_staged_and_commits_nothing(root):
    writer = writer_of(root, "value", topic="t")
    message = writer.write(iter([batch(value=[b"1"])]))
    assert staged_files(root)
    sent(writer).abort([None, message])
    assert staged_files(root) == []
    assert not (root / "t-0").exists()


def test_an_abort_behind_the_commit_takes_nothing_back(root):
    writer = writer_of(root, "value", topic="t")
    message = writer.write(iter([batch(value=[b"1"])]))
    writer.commit([message])
    sent(writer).abort([message])
    assert rows(root)["value"].to_pylist() == [b"1"]


def test_a_commit_that_is_repeated_adds_nothing(root):
    writer = writer_of(root, "value", topic="t")
    message = writer.write(iter([batch(value=[b"1"])]))
    for _ in range(2):
        sent(writer).commit([message])
    assert rows(root)["value"].to_pylist() == [b"1"]


def test_a_version_that_is_committed_is_not_written_again(root):
    given = {"topic": "t", "txnAppId": "app", "txnVersion": "7"}
    write(writer_of(root, "value", **given), [batch(value=[b"1"])])
    again = writer_of(root, "value", **given)
    taken = iter([batch(value=[b"2"]), batch(value=[b"3"])])
    message = again.write(taken)
    # Spark waits until somebody has taken the rows.
    assert next(taken, None) is None
    again.commit([message])
    assert rows(root)["value"].to_pylist() == [b"1"]
    write(writer_of(root, "value", **given | {"txnVersion": "8"}), [batch(value=[b"2"])])
    assert rows(root)["value"].to_pylist() == [b"1", b"2"]


def test_an_overwrite_begins_at_the_old_end_of_every_partition(root):
    write(
        writer_of(root, "value", "partition", topic="t", partitions="2"),
        [batch(value=[b"1", b"2", b"3"], partition=pa.array([0, 1, 1], pa.int32()))],
    )
    write(writer_of(root, "value", topic="u"), [batch(value=[b"u"])])
    new = batch(value=[b"4"], partition=pa.array([0], pa.int32()))
    write(writer_of(root, "value", "partition", topic="t", overwrite=True), [new])
    found = rows(root)
    assert found["topic"].to_pylist() == ["t", "u"]
    assert found["value"].to_pylist() == [b"4", b"u"]
    assert found["offset"].to_pylist() == [1, 0]


def test_an_overwrite_without_rows_empties_the_topic_that_the_options_name(root):
    write(writer_of(root, "value", topic="t"), [batch(value=[b"1"])])
    write(writer_of(root, "value", topic="t", overwrite=True), [])
    assert rows(root).num_rows == 0


def test_offsets_are_preserved(root):
    given = batch(
        value=[b"1", b"2", b"3"],
        partition=pa.array([1, 1, 0], pa.int32()),
        offset=pa.array([100, 105, 3], pa.int64()),
    )
    options = {"topic": "t", "partitions": "2", "preserveOffsets": "true"}
    write(writer_of(root, *given.schema.names, **options), [given])
    found = rows(root)
    assert found["offset"].to_pylist() == [3, 100, 105]
    assert found["value"].to_pylist() == [b"3", b"1", b"2"]


@pytest.mark.parametrize("column", ["offset", "partition"])
def test_preserved_offsets_and_their_partitions_are_never_null(root, column):
    columns = {"offset": pa.array([5], pa.int64()), "partition": pa.array([0], pa.int32())}
    columns[column] = pa.array([None], columns[column].type)
    writer = writer_of(root, "value", "offset", "partition", topic="t", preserveOffsets="true")
    with pytest.raises(InvalidRecordError, match=f"^null {column} present in the data. With preserveOffsets"):
        writer.write(iter([batch(value=[b"1"], **columns)]))


def test_the_bounds_of_the_logs_that_rows_come_from_are_restored(root, new_logs, records_of):
    new_logs.write("t", 0, records_of(10), base_offset=40)
    new_logs.write("t", 2, records_of(10), base_offset=7)
    new_logs.write("u", 0, records_of(10))
    table = rows(new_logs.path, subscribe="t", ending_offsets='{"t":{"0":45,"2":9}}')
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "headers"]
    writer = writer_of(root, *names, preserveOffsets="true", offsetsFrom=new_logs.path)
    write(writer, table.select(names).to_batches())
    assert rows(root).select(names).equals(table.select(names))
    assert sorted(name for name in os.listdir(root) if name[0] in "tu") == ["t-0", "t-2"]
    with storage_core.LogDirectory.open(root) as logs:
        bounds = [(log.log_start_offset, log.log_end_offset) for log in (logs.get("t", 0), logs.get("t", 2))]
    assert bounds == [(40, 50), (7, 17)]


def bounds_of(path):
    with storage_core.LogDirectory.open(path) as logs:
        return {
            f"{log.topic}-{log.partition}": (log.log_start_offset, log.log_end_offset) for log in logs.logs()
        }


@pytest.fixture
def source_without_rows(tmp_path):
    """Of one topic, and of an internal one, all records are deleted, of another none; a third never had any."""
    path = tmp_path / "source"
    with storage_core.LogDirectory.open(path) as logs:
        for name in ("gone", "kept", "__consumer_offsets"):
            logs.create(name).append(pa.table({"value": [b"1", b"2", b"3"]}))
        logs.get("gone").delete_records(3)
        logs.get("__consumer_offsets").delete_records(3)
        logs.create("empty")
    return path


def test_a_topic_whose_records_are_all_gone_is_restored(root, source_without_rows):
    """Otherwise it would begin at 0 again, and a group that was at its end would miss what comes."""
    names = ["value", "topic", "partition", "offset"]
    writer = writer_of(root, *names, preserveOffsets="true", offsetsFrom=str(source_without_rows))
    write(writer, rows(source_without_rows).select(names).to_batches())
    assert bounds_of(root) == {"gone-0": (3, 3), "kept-0": (0, 3)}


@pytest.mark.parametrize(("topic", "bounds"), [("gone", (3, 3)), ("kept", (0, 3)), ("empty", (0, 0))])
def test_the_topic_that_is_named_is_restored_without_rows(root, source_without_rows, topic, bounds):
    options = {"topic": topic, "preserveOffsets": "true", "offsetsFrom": str(source_without_rows)}
    write(writer_of(root, "value", "partition", "offset", **options))
    assert bounds_of(root) == {f"{topic}-0": bounds}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overwrite": True, "preserveOffsets": "true"}, "preserveOffsets does not go with mode overwrite"),
        ({"preserveOffsets": "true", "offsetsFrom": "{logs}"}, "which has no topic 't'. It has a, b."),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_made(root, logs, options, message):
    options = {
        name: text.format(logs=logs) if isinstance(text, str) else text for name, text in options.items()
    }
    with pytest.raises(OptionError, match=message):
        writer_of(root, "value", "offset", "partition", topic="t", **options)
    assert not root.exists()


def test_a_path_with_a_comma_counts_as_one_only_if_it_is_there(tmp_path):
    path = tmp_path / "a,b"
    with pytest.raises(OptionError, match=r"a,b' names several directories, or one that is not there"):
        writer_of(path, "value", topic="t")
    path.mkdir()
    write(writer_of(path, "value", topic="t"), [batch(value=[b"1"])])
    assert rows(path)["value"].to_pylist() == [b"1"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: Path(path, "meta.properties").write_text("version=1\n"), "belongs to a broker"),
        (lambda path: Path(path, "photos").mkdir(), "photos"),
    ],
)
def test_a_directory_of_somebody_else_is_refused(tmp_path, make, message):
    make(tmp_path)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(LogDirectoryError, match=message):
        writer_of(tmp_path, "value", topic="t")
    assert [name for name in sorted(os.listdir(tmp_path)) if name != ".lock"] == before


def test_a_wrong_frame_is_refused_before_anything_is_made(root):
    with pytest.raises(InvalidRecordError, match=r"^Required attribute 'value' not found"):
        writer_of(root, "key", topic="t")
    assert not root.exists()


@pytest.mark.parametrize("below", ["", "new", "new/er"])
def test_a_path_in_a_partitions_directory_is_refused(root, below):
    write(writer_of(root, "value", topic="t"), [batch(value=[b"1"])])
    with pytest.raises(LogDirectoryError, match=f"found a path in a partition of one. Write to {root} with"):
        writer_of(root / "t-0" / below, "value", topic="t")
    assert not (root / "t-0" / "new").exists()


def test_a_log_directory_may_have_the_name_of_a_partition(tmp_path):
    path = tmp_path / "disk-1" / "logs-2"
    write(writer_of(path, "value", topic="t"), [batch(value=[b"1"])])
    assert rows(path)["value"].to_pylist() == [b"1"]


def test_a_directory_above_need_not_be_listed(tmp_path):
    class PassedThrough(FileSystem):
        def list_directory(self, path):
            if path == str(tmp_path / "tenant-7"):
                raise UnreadableError("User nobody may not list this path.", path=path)
            return super().list_directory(path)

    path = tmp_path / "tenant-7" / "logs"
    options = write_options(CaseInsensitiveDict({"path": str(path), "topic": "t"}))
    schema = StructType().add("value", BinaryType())
    assert plan_write(PassedThrough(), schema, options, is_overwrite=False).root == str(path)


def test_rows_are_written_while_spark_is_asked_for_more(root):
    """The iterator gives its last batch only when a staged file is there: an encoder that waits for it never ends."""
    seen = []

    def batches():
        for _ in range(40):
            yield batch(value=[b"x" * 1000] * 1000)
        deadline = time.monotonic() + 60
        while not seen and time.monotonic() < deadline:
            seen.extend(staged_files(root))
            time.sleep(0.001)
        yield batch(value=[b"last"])

    writer = writer_of(root, "value", topic="t", flush="none")
    writer.commit([writer.write(batches())])
    assert seen
    assert rows(root).num_rows == 40_001


def test_ignored_options_are_one_log_line_without_their_values(root, caplog):
    writer_of(root, "value", topic="t", kafka__acks="all", subscribe="secret")
    messages = [record.message for record in caplog.records if record.name.startswith("spark_segmentlog")]
    assert len(messages) == 1
    assert "ignored kafka.acks, subscribe," in messages[0]
    assert "secret" not in messages[0]


# In a session


@pytest.fixture
def save(root):
    def save_with(frame, mode="append", **options):
        writer = frame.write.format("segmentlog").mode(mode)
        for name, text in options.items():
            writer = writer.option(name.replace("__", "."), text)
        writer.save(str(root))

    return save_with


@pytest.fixture
def frame(spark):
    """Rows 0 to 999 in four tasks: key, value, and two topics in turn."""
    number = functions.col("id")
    return spark.range(0, 1000, 1, 4).select(
        functions.concat(functions.lit("k"), number).alias("key"),
        number.cast("string").alias("value"),
        functions.when(number % 2 == 0, "even").otherwise("odd").alias("topic"),
    )


def clear_line(error):
    """The line of an error in the driver or a task that says what is wrong."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    return next(line for line in reversed(lines) if "Error: " in line)


@pytest.mark.spark
def test_a_frame_is_appended_and_overwritten(frame, save, root):
    save(frame, partitions=3)
    save(frame, kafka__compression__type="zstd")
    found = rows(root)
    assert sorted(found["value"].to_pylist()) == sorted([b"%d" % number for number in range(1000)] * 2)
    by_key = found.group_by(["key"]).aggregate([("partition", "count_distinct"), ("topic", "count_distinct")])
    assert set(by_key["partition_count_distinct"].to_pylist()) == {1}
    save(frame.limit(10), mode="overwrite", topic="even")
    found = rows(root)
    assert found.group_by("topic").aggregate([("value", "count")]).to_pylist() == [
        {"topic": "even", "value_count": 10},
        {"topic": "odd", "value_count": 1000},
    ]


@pytest.mark.spark
def test_what_a_task_wrote_before_it_failed_counts_once(spark, save, root):
    failed = root.parent / "failed"
    failed.parent.mkdir()

    def fail_once(batches):
        from pyspark import TaskContext

        context = TaskContext.get()
        for number, each in enumerate(batches):
            yield each
            if number and context.partitionId() == 1 and context.attemptNumber() == 0:
                failed.touch()
                raise RuntimeError("the first attempt ends here")

    numbers = spark.range(0, 60_000, 1, 2).select(functions.col("id").cast("string").alias("value"))
    save(numbers.mapInArrow(fail_once, "value string"), topic="t", partitions=2, batch__size=1000)
    assert failed.exists()
    assert sorted(map(int, rows(root)["value"].to_pylist())) == list(range(60_000))
    assert staged_files(root) == []


@pytest.mark.spark
@pytest.mark.parametrize(
    ("columns", "kind", "message"),
    [
        (
            ["1 AS value", "'t' AS topic"],
            AnalysisException,
            "value attribute unsupported type int. value must be a(n)",
        ),
        (["'v' AS value"], AnalysisException, "topic option required when no 'topic' attribute is present."),
        (["'k' AS key", "'t' AS topic"], AnalysisException, "Required attribute 'value' not found"),
        (
            ["'v' AS value", "CAST(NULL AS STRING) AS topic"],
            PythonException,
            "null topic present in the data.",
        ),
        (
            ["'v' AS value", "'t' AS topic", "1 AS partition"],
            PythonException,
            "Partition 1 of topic t with partition count 1 is not present.",
        ),
    ],
)
def test_errors_name_the_mistake_and_nothing_is_visible(spark, save, root, columns, kind, message):
    with pytest.raises(kind) as raised:
        save(spark.range(1).selectExpr(*columns))
    assert clear_line(raised.value).partition("Error: ")[2].startswith(message)
    assert not root.exists() or not any(name.startswith("t-") for name in os.listdir(root))


@pytest.mark.spark
def test_spark_itself_refuses_other_save_modes(frame, save, root):
    for mode in ("errorifexists", "ignore"):
        with pytest.raises(AnalysisException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
            save(frame, mode=mode)
    assert not root.exists()


@pytest.mark.spark
def test_insert_into_a_temporary_view(spark, save, root):
    save(spark.sql("SELECT 'old' AS value, 't' AS topic"))
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW written USING segmentlog OPTIONS (path '{root}', subscribe 't')"
    )
    spark.sql("INSERT INTO written (value, topic) VALUES (CAST('new' AS BINARY), 't'), (NULL, 'u')")
    assert rows(root).select(["topic", "offset", "value"]).to_pylist() == [
        {"topic": "t", "offset": 0, "value": b"old"},
        {"topic": "t", "offset": 1, "value": b"new"},
        {"topic": "u", "offset": 0, "value": None},
    ]
    spark.sql("INSERT OVERWRITE written SELECT * FROM written WHERE (offset) = 0")
    found = rows(root).select(["topic", "offset", "value"]).to_pylist()
    assert found[0] == {"topic": "t", "offset": 2, "value": b"old"}
    spark.catalog.dropTempView("written")


@pytest.mark.spark
def test_timestamps_do_not_depend_on_the_sessions_zone(spark, save, root, conf):
    conf("spark.sql.session.timeZone", "America/New_York")
    save(spark.sql("SELECT 'v' AS value, timestamp_micros(1700000000123999) AS timestamp"), topic="t")
    assert rows(root)["timestamp"].cast(pa.int64()).to_pylist() == [1_700_000_000_123_000]


@pytest.mark.spark
def test_large_types_are_taken(spark, save, root, conf):
    conf("spark.sql.execution.arrow.useLargeVarTypes", "true")
    save(
        spark.sql(
            "SELECT 'k' AS key, CAST('v' AS BINARY) AS value, array(named_struct('key', 'h', 'value', CAST('1' AS BINARY))) AS headers"
        ),
        topic="t",
    )
    found = rows(root)
    assert (found["key"].to_pylist(), found["value"].to_pylist()) == ([b"k"], [b"v"])
    assert found["headers"].to_pylist() == [[{"key": "h", "value": b"1"}]]


@pytest.mark.spark
def test_a_directory_is_restored_with_its_offsets(spark, save, root, new_logs, records_of):
    for partition, base in itertools.product((0, 1), (40, 90)):
        new_logs.write("t", partition, records_of(20), base_offset=base)
    read = spark.read.format("segmentlog").option("includeHeaders", "true").load(new_logs.path)
    save(read, preserveOffsets="true", offsetsFrom=new_logs.path)
    assert rows(root).equals(rows(new_logs.path))
