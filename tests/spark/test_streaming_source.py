"""`spark.readStream.format("segmentlog")`: what Spark's engine makes of the source."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition

import spark_segmentlog
from spark_segmentlog.data_source import SegmentLogDataSource
from spark_segmentlog.stream_reader import HAS_ADMISSION_CONTROL, RefusedStreamReader
from tests.log.logs import append, open_directory

pytestmark = pytest.mark.spark
needs_admission_control = pytest.mark.skipif(
    not HAS_ADMISSION_CONTROL, reason="Spark tells a source the trigger from 4.2 on"
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def growing(path):
    """Yield an open log directory; ten records to a segment."""
    with open_directory(path) as opened:
        yield opened


class Run:
    """Runs of one query, each until there is nothing left, or until it fails."""

    def __init__(self, spark, checkpoint, path, **options):
        self.spark = spark
        self.checkpoint = Path(checkpoint)
        self.options = {"startingOffsets": "earliest", **options}
        self.path = str(path)
        self.batches: list[list[tuple[str, int, int]]] = []

    def start(self, **trigger):
        reader = self.spark.readStream.format("segmentlog").options(**self.options)
        frame = reader.load(self.path).select("topic", "partition", "offset")
        writer = frame.writeStream.option("checkpointLocation", str(self.checkpoint))
        if trigger:
            writer = writer.trigger(**trigger)
        return writer.foreachBatch(self._keep).start()

    def _keep(self, frame, number):
        self.batches.append(sorted(tuple(row) for row in frame.collect()))

    def new_batches(self, **trigger):
        before = len(self.batches)
        query = self.start(**trigger)
        try:
            if trigger:
                query.awaitTermination()
            else:
                query.processAllAvailable()
        finally:
            query.stop()
        return self.batches[before:]

    def forget_last_commit(self):
        """Leave the checkpoint as a driver does that is killed before it notes that a batch is done."""
        files = self.checkpoint / "commits"
        last = max(
            (each for each in files.iterdir() if each.name.isdecimal()), key=lambda each: int(each.name)
        )
        last.unlink()
        (files / f".{last.name}.crc").unlink()

    def offsets(self, number):
        return (self.checkpoint / "offsets" / str(number)).read_text().splitlines()[-1]


@pytest.fixture
def run(spark, path, tmp_path):
    def make(**options):
        return Run(spark, tmp_path / "checkpoint", path, **options)

    return make


def orders(*offsets):
    return [("orders", 0, offset) for offset in offsets]


def test_what_is_appended_comes_in_later_batches_and_runs(growing, run):
    log = growing.create("orders")
    append(log, 3)
    running = run()
    query = running.start()
    try:
        query.processAllAvailable()
        append(log, 2)
        query.processAllAvailable()
    finally:
        query.stop()
    assert running.batches == [orders(0, 1, 2), orders(3, 4)]
    append(log, 25)
    assert running.new_batches() == [orders(*range(5, 30))]


@pytest.mark.thorough
def test_offsets_in_the_checkpoint_are_those_of_the_kafka_source(growing, run):
    append(growing.create("orders"), 3)
    append(growing.create("clicks"), 1)
    running = run()
    running.new_batches()
    assert json.loads(running.offsets(0)) == {"clicks": {"0": 1}, "orders": {"0": 3}}


@pytest.mark.thorough
def test_a_checkpoint_in_the_compact_form_of_the_kafka_source_goes_on(growing, run):
    log = growing.create("orders")
    append(log, 3)
    running = run()
    running.new_batches()
    path = running.checkpoint / "offsets" / "0"
    path.write_text(path.read_text().replace('{"orders": {"0": 3}}', '{"orders":{"0":3}}'))
    path.with_name(".0.crc").unlink()
    append(log, 2)
    assert [batch for batch in running.new_batches() if batch] == [orders(3, 4)]


@pytest.mark.thorough
def test_the_first_batch_of_a_query_that_starts_at_the_latest_offset_notes_it(growing, run):
    log = growing.create("orders")
    append(log, 3)
    running = run(startingOffsets="latest")
    assert running.new_batches() == [[]]
    # Killed in the first batch; when the query starts again, there is more.
    running.forget_last_commit()
    append(log, 2)
    assert [batch for batch in running.new_batches() if batch] == [orders(3, 4)]


@pytest.mark.thorough
def test_a_batch_that_is_repeated_has_the_same_rows(growing, run):
    log = growing.create("orders")
    append(log, 3)
    running = run()
    running.new_batches()
    running.forget_last_commit()
    append(log, 2)
    assert running.new_batches() == [orders(0, 1, 2), orders(3, 4)]


@pytest.mark.thorough
@needs_admission_control
def test_available_now_reads_many_batches_and_ends(growing, run):
    append(growing.create("orders"), 25)
    running = run(maxOffsetsPerTrigger="10", minOffsetsPerTrigger="10")
    batches = running.new_batches(availableNow=True)
    assert [row for batch in batches for row in batch] == orders(*range(25))
    assert len(batches) == 3
    assert running.new_batches(availableNow=True) == []


@pytest.mark.thorough
@needs_admission_control
def test_once_has_no_limits(growing, run):
    append(growing.create("orders"), 25)
    assert run(maxOffsetsPerTrigger="10").new_batches(once=True) == [orders(*range(25))]


@pytest.mark.thorough
@pytest.mark.skipif(HAS_ADMISSION_CONTROL, reason="what earlier versions do instead")
def test_available_now_is_one_batch(growing, run):
    append(growing.create("orders"), 25)
    running = run(maxOffsetsPerTrigger="10")
    assert running.new_batches(availableNow=True) == [orders(*range(10))]
    assert running.new_batches(availableNow=True) == [orders(*range(10, 20))]


@pytest.mark.thorough
@needs_admission_control
def test_the_lag_is_what_the_query_has_not_read_yet(growing, run):
    append(growing.create("orders"), 25)
    running = run(maxOffsetsPerTrigger="10")
    query = running.start()
    try:
        query.processAllAvailable()
        progress = {each["batchId"]: each for each in query.recentProgress}
    finally:
        query.stop()
    assert spark_segmentlog.lag(progress[0]).records == 15
    assert spark_segmentlog.lag(progress[2]).records == 0


@pytest.mark.thorough
def test_retention_before_a_batch_is_read_is_data_loss(growing, run):
    log = growing.create("orders")
    append(log, 15)
    running = run(maxOffsetsPerTrigger="5")
    assert running.new_batches()[0] == orders(*range(5))
    append(log, 20)
    log.delete_records(22)
    with pytest.raises(Exception, match=r"offset \[15, 22\) for topic partition orders-0"):
        running.new_batches()
    running.options["failOnDataLoss"] = "false"
    batches = running.new_batches()
    assert [row for batch in batches for row in batch] == orders(*range(22, 35))


@pytest.mark.thorough
def test_headers_conditions_and_columns_are_those_of_a_batch(spark, growing, tmp_path, path):
    append(growing.create("orders"), 12)
    rows = []
    query = (
        spark.readStream.format("segmentlog")
        .options(
            startingOffsets="earliest", includeHeaders="true", where="offset >= 9", columns="offset,headers"
        )
        .load(str(path))
        .writeStream.foreachBatch(lambda frame, _: rows.extend(tuple(row) for row in frame.collect()))
        .start()
    )
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert rows == [(9, None), (10, None), (11, None)]


@pytest.mark.cases(2, 4)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
        ({"maxOffsetsPerTriger": "5"}, "Did you mean 'maxOffsetsPerTrigger'"),
        ({"filterPushdown": "true"}, "Option 'filterPushdown' is for batch reads"),
        ({"startingOffsets": '{"orders":{"5":0}}'}, "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED"),
    ],
)
def test_mistakes_reach_the_user(growing, run, options, message):
    append(growing.create("orders"), 1)
    with pytest.raises(Exception, match=message) as raised:
        run(**options).new_batches()
    assert "UnboundLocalError" not in str(raised.value)


@pytest.mark.thorough
def test_a_stream_of_a_directory_that_jobs_commit_to(spark, path, run):
    running = run()
    rows = spark.range(10).selectExpr("cast(id as string) as value")
    for number in range(3):
        rows.write.format("segmentlog").mode("append").option("topic", "orders").save(str(path))
        assert [row for batch in running.new_batches() for row in batch] == orders(
            *range(10 * number, 10 * number + 10)
        )


@pytest.mark.parametrize("written", ['{"orders":{"0":10}}', "{'orders': {'0': 10}}", {"orders": {"0": 10}}])
def test_the_lag_of_a_report_as_any_pyspark_writes_it(written):
    report = {"sources": [{"endOffset": written, "latestOffset": {"orders": {"0": 25}, "clicks": {"0": 1}}}]}
    assert spark_segmentlog.lag(report).records_by_partition == {("orders", 0): 15, ("clicks", 0): 1}
    with pytest.raises(ValueError, match="Give the path of the log directory, too"):
        spark_segmentlog.lag({"sources": [{"endOffset": written, "latestOffset": "None"}]})


class TestWithoutSpark:
    """What Spark's engine calls, called directly."""

    def test_the_lag_in_bytes_is_looked_up_in_the_directory(self, growing, path):
        append(growing.create("orders"), 25)
        lag = spark_segmentlog.lag({"sources": [{"endOffset": '{"orders":{"0":10}}'}]}, path)
        assert (lag.records, lag.bytes) == (15, 1500)
        assert lag.records_by_partition == {("orders", 0): 15}

    @staticmethod
    def reader(path, **options):
        source = SegmentLogDataSource({"path": str(path), **options})
        return source.streamReader(source.schema())

    def test_a_reader_that_is_refused_says_so_in_its_first_call(self, path):
        refused = self.reader_of_wrong_options(path)
        assert isinstance(refused, RefusedStreamReader)
        for call in (
            refused.initialOffset,
            refused.latestOffset,
            lambda: refused.partitions({}, {}),
            lambda: refused.read(InputPartition(None)),
        ):
            with pytest.raises(ValueError, match="ending offset not valid in streaming queries"):
                call()

    @staticmethod
    def reader_of_wrong_options(path):
        source = SegmentLogDataSource({"path": str(path), "endingOffsets": "latest"})
        return source.streamReader(source.schema())

    def test_an_idle_source_returns_the_start_itself(self, growing, path):
        append(growing.create("orders"), 3)
        reader = self.reader(path, startingOffsets="earliest")
        start = {"orders": {"0": 3}}
        assert reader.latestOffset(start, None) is start

    def test_notices_come_once_a_query(self, growing, path, caplog):
        reader = self.reader(path, **{"kafka.bootstrap.servers": "b:9092"})
        with caplog.at_level(logging.WARNING):
            reader.initialOffset()
            reader.latestOffset()
        assert [record.name for record in caplog.records].count("spark_segmentlog.stream_reader") == 1
        assert "ignored kafka.bootstrap.servers, which concern brokers or catalogs" in caplog.text
