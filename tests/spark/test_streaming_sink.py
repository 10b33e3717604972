"""`df.writeStream.format("segmentlog")`: each micro-batch is in the log once, whatever is repeated."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import functions
from pyspark.sql.types import BinaryType, StructType

from spark_segmentlog import stream_writer
from spark_segmentlog.data_source import SegmentLogDataSource
from storage_core import LogDirectory, read_table
from storage_core.commit_files.commits_file import read_commits_file
from storage_core.errors import OptionError
from storage_core.filesystem import FileSystem
from tests.log.logs import append, open_directory

pytestmark = pytest.mark.spark


@pytest.fixture
def source(tmp_path):
    """Yield a log that a query reads."""
    with open_directory(tmp_path / "source") as logs:
        yield logs.create("orders")


class Sink:
    """Runs of a query from a directory of logs to another, each until there is nothing left, or until it fails."""

    def __init__(self, spark, folder):
        self.spark = spark
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        self.target = folder / "target"

    def frame(self, **options):
        reader = self.spark.readStream.format("segmentlog").options(startingOffsets="earliest", **options)
        return reader.load(str(self.folder / "source")).select("key", "value", "partition", "timestamp")

    def run(self, frame=None, *, mode="append", **options):
        writer = (self.frame() if frame is None else frame).writeStream.format("segmentlog").outputMode(mode)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        query = writer.options(**{"topic": "copied", **options}).start(str(self.target))
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        return str(query.id)

    def forget_last_commit(self):
        """Leave the checkpoint as a driver does that is killed before it notes that a batch is done."""
        files = self.checkpoint / "commits"
        last = max(
            (each for each in files.iterdir() if each.name.isdecimal()), key=lambda each: int(each.name)
        )
        last.unlink()
        (files / f".{last.name}.crc").unlink()

    def values(self):
        return [int(each) for each in read_table(self.target, subscribe="copied")["value"].to_pylist()]

    def commits(self):
        entries = read_commits_file(FileSystem(), str(self.target)).entries
        return [(each.txn_app_id, each.txn_version, each.query_id) for each in entries]

    def names(self):
        return sorted(path.name for path in Path(self.target).iterdir())


@pytest.fixture
def sink(spark, tmp_path):
    return Sink(spark, tmp_path)


@pytest.mark.thorough
def test_each_batch_is_appended_once_and_known_by_query_and_number(source, sink):
    append(source, 3)
    query_id = sink.run()
    append(source, 2)
    assert sink.run() == query_id
    assert sink.values() == [0, 1, 2, 3, 4]
    assert sink.commits() == [(query_id, 0, None), (query_id, 1, None)]


@pytest.mark.thorough
def test_a_batch_that_is_repeated_in_other_tasks_and_at_another_time_is_the_same(source, sink):
    append(source, 30)
    sink.run(sink.frame().select("value"), partitions="3")
    sink.forget_last_commit()
    sink.run(sink.frame(maxRecordsPerPartition="7").select("value"), partitions="3", partitioner="random")
    assert sorted(sink.values()) == list(range(30))
    assert len(sink.commits()) == 1


@pytest.mark.thorough
def test_a_checkpoint_that_is_older_than_the_output_skips_nothing_silently(source, sink):
    append(source, 3)
    sink.run()
    backup = sink.folder / "backup"
    shutil.copytree(sink.checkpoint, backup)
    append(source, 2)
    sink.run()
    append(source, 1)
    copied = Sink(sink.spark, sink.folder)
    copied.checkpoint = backup
    with pytest.raises(Exception, match=r"with the 2 rows that job .* has written, found 3 other rows"):
        copied.run()
    sink.run()
    shutil.rmtree(backup)
    shutil.copytree(sink.checkpoint, backup)
    append(source, 1)
    sink.run()
    shutil.rmtree(backup / "commits")
    shutil.rmtree(backup / "offsets")
    with pytest.raises(
        Exception, match=r"Expected batch 3 of the streaming query .* found batch 0: Spark repeats"
    ):
        copied.run()
    assert sink.values() == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.thorough
def test_rows_that_each_run_computes_anew_need_an_option(source, sink):
    append(source, 2)
    frame = sink.frame().withColumn("key", functions.expr("cast(uuid() as binary)"))
    sink.run(frame)
    sink.forget_last_commit()
    with pytest.raises(Exception, match="the option repeatedBatch=skip takes the batch for written"):
        sink.run(frame)
    sink.run(frame, repeatedBatch="skip")
    assert sink.values() == [0, 1]


@pytest.mark.thorough
def test_a_name_of_the_users_own_and_the_id_of_the_query_beside_it(source, sink):
    append(source, 3)
    query_id = sink.run(txnAppId="copier")
    assert sink.commits() == [("copier", 0, query_id)]
    sink.forget_last_commit()
    append(source, 1)
    sink.run(txnAppId="copier")
    assert sink.values() == [0, 1, 2, 3]


@pytest.mark.thorough
def test_a_new_query_under_an_old_name_is_an_error_and_skips_nothing_silently(source, sink):
    append(source, 3)
    first = sink.run(txnAppId="copier")
    sink.checkpoint = sink.folder / "another checkpoint"
    with pytest.raises(
        Exception, match=f"found that the streaming query {first} has written batch 0 with it"
    ):
        sink.run(txnAppId="copier")
    sink.run(txnAppId="another copier")
    assert sink.values() == [0, 1, 2, 0, 1, 2]


@pytest.mark.thorough
def test_options_and_columns_are_those_of_the_batch_writer(source, sink):
    append(source, 4)
    frame = sink.frame().select(
        functions.concat(
            functions.lit("topic-"), functions.col("value").cast("string").cast("int") % 2
        ).alias("topic"),
        functions.lit(2).alias("partition"),
        "value",
        "timestamp",
        functions.expr("array(struct('h' as key, value as value))").alias("headers"),
    )
    query = (
        frame.writeStream.format("segmentlog")
        .queryName("copies")
        .options(
            **{
                "checkpointLocation": str(sink.checkpoint),
                "partitions": "3",
                "compression.type": "zstd",
                "segment.bytes": str(2 << 20),
                "kafka.bootstrap.servers": "b:9092",
            }
        )
    )
    running = query.start(str(sink.target))
    try:
        running.processAllAvailable()
    finally:
        running.stop()
    table = read_table(sink.target, include_headers=True, include_metadata=True)
    assert sorted(zip(table["topic"].to_pylist(), table["partition"].to_pylist(), strict=True)) == [
        ("topic-0", 2),
        ("topic-0", 2),
        ("topic-1", 2),
        ("topic-1", 2),
    ]
    assert {each["compression"] for each in table["_metadata"].to_pylist()} == {"zstd"}
    assert [each[0]["key"] for each in table["headers"].to_pylist()] == ["h"] * 4


@pytest.mark.thorough
def test_the_topic_exists_after_a_batch_without_rows(source, sink):
    sink.run()
    with LogDirectory.open(sink.target) as logs:
        assert logs.get("copied").log_end_offset == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"txnVersion": "5"}, "txnVersion does not go with a stream"),
        ({"txnAppId": " "}, "txnAppId is empty"),
        ({"preserveOffsets": "true", "offsetsFrom": "/x"}, "offsetsFrom does not go with a stream"),
        ({"compresion.type": "zstd"}, "Did you mean 'compression.type'"),
    ],
)
def test_what_is_refused(tmp_path, options, message):
    source = SegmentLogDataSource({"path": str(tmp_path / "target"), "topic": "copied", **options})
    with pytest.raises(OptionError, match=message):
        source.streamWriter(StructType().add("value", BinaryType()), overwrite=False)


@pytest.mark.thorough
def test_complete_mode_is_refused_and_the_way_out_is_named(source, sink):
    append(source, 1)
    counts = sink.frame().groupBy("partition").count().selectExpr("cast(count as string) as value")
    with pytest.raises(Exception, match=r"Use writeStream\.foreachBatch with the batch writer"):
        sink.run(counts, mode="complete")


@pytest.mark.thorough
def test_the_batch_writer_in_foreach_batch_writes_each_batch_once(source, sink):
    append(source, 3)

    def write(frame, number):
        writer = frame.write.format("segmentlog").mode("append").option("topic", "copied")
        writer.options(txnAppId="copier", txnVersion=str(number)).save(str(sink.target))

    def run():
        writer = sink.frame().writeStream.option("checkpointLocation", str(sink.checkpoint))
        query = writer.foreachBatch(write).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    run()
    sink.forget_last_commit()
    append(source, 2)
    run()
    assert sink.values() == [0, 1, 2, 3, 4]


@pytest.mark.thorough
def test_a_task_that_fails_leaves_nothing_staged(source, sink):
    append(source, 3)
    failing = sink.frame().withColumn("topic", functions.expr("if(value like '%2', null, 'copied')"))
    writer = failing.writeStream.format("segmentlog").option("checkpointLocation", str(sink.checkpoint))
    query = writer.start(str(sink.target))
    with pytest.raises(Exception, match="null topic present in the data"):
        query.processAllAvailable()
    query.stop()
    assert not [name for name in sink.names() if "stage" in name]


def test_a_stream_without_a_path_says_how_a_table_gets_one():
    source = SegmentLogDataSource({"topic": "copied"})
    with pytest.raises(OptionError, match=r'option\("path", "/path"\) before \.toTable'):
        source.streamWriter(StructType().add("value", BinaryType()), overwrite=False)


class TestRunsThatAreStopped:
    """Attempts at one micro-batch, without Spark: each stages rows, and one of them commits."""

    @pytest.fixture
    def attempt(self, tmp_path, monkeypatch):
        def stage(query_id, batch_id):
            monkeypatch.setattr(stream_writer, "_micro_batch", lambda: (query_id, batch_id))
            source = SegmentLogDataSource({"path": str(tmp_path / "target"), "topic": "copied"})
            writer = source.streamWriter(StructType().add("value", BinaryType()), overwrite=False)
            return writer, writer.write(
                iter([pa.record_batch({"value": pa.array([b"1", b"2"], pa.binary())})])
            )

        return stage

    def staged_files(self, tmp_path):
        return sorted(path.name for path in (tmp_path / "target").glob(".segmentlog-stage-*"))

    def test_leave_nothing_once_the_batch_is_repeated(self, tmp_path, attempt):
        attempt("query", 0)
        # A task that was killed leaves no manifest.
        attempt("query", 0)
        for path in (tmp_path / "target").glob("*.manifest"):
            path.unlink()
        assert len(self.staged_files(tmp_path)) == 2
        writer, message = attempt("query", 0)
        writer.commit([message], 0)
        assert self.staged_files(tmp_path) == []
        assert len(read_table(tmp_path / "target")) == 2

    def test_do_not_take_the_files_of_another_query(self, tmp_path, attempt):
        other, others_message = attempt("another query", 0)
        writer, message = attempt("query", 0)
        writer.commit([message], 0)
        assert len(self.staged_files(tmp_path)) == 2
        other.commit([others_message], 0)
        assert self.staged_files(tmp_path) == []
        assert len(read_table(tmp_path / "target")) == 4
