"""What Spark shows of an error: a few lines, the message last, or with one of Spark's settings first."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from spark_segmentlog import SegmentLogDataSource
from storage_core.errors import LogDirectoryError

pytestmark = pytest.mark.spark

HIDE_TRACEBACK = "spark.sql.execution.pyspark.udf.hideTraceback.enabled"


def read(spark, path, **options):
    spark.read.format("segmentlog").options(**options).load(path).collect()


def write_without_value(spark, path):
    keys = spark.sql("SELECT 'k' AS key")
    keys.write.format("segmentlog").mode("append").option("topic", "t").save(path)


@pytest.fixture
def damaged_logs(new_logs, records_of):
    """Three batches of ten records. One byte of the first is wrong."""
    new_logs.write("a", 0, records_of(30))
    log = Path(new_logs.path, "a-0", f"{0:020}.log")
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    return new_logs.path


MISTAKES = {
    "a path that does not exist": (
        lambda spark, logs, damaged: read(spark, f"{logs}/nowhere"),
        "storage_core.errors.LogDirectoryError: Expected a Kafka log directory",
    ),
    "damage": (
        lambda spark, logs, damaged: read(spark, damaged),
        "storage_core.errors.CorruptRecordError: Expected a record batch with CRC",
    ),
    "rows without a value": (
        lambda spark, logs, damaged: write_without_value(spark, f"{damaged}-written"),
        "storage_core.errors.InvalidRecordError: Required attribute 'value' not found.",
    ),
}


def lines_of(error):
    """Return what Spark shows, without its own last line."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    return [line for line in lines if line and line != "SQLSTATE: 38000"]


@pytest.mark.thorough
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_message_is_the_last_of_a_few_lines(spark, logs, damaged_logs, mistake):
    make, message = MISTAKES[mistake]
    with pytest.raises(PySparkException) as raised:
        make(spark, logs, damaged_logs)
    lines = lines_of(raised.value)
    assert lines[-1].startswith(message)
    # Spark's own words, `Traceback`, and the one frame that raised it.
    assert len(lines) <= 5


@pytest.mark.thorough
@pytest.mark.parametrize("mistake", ["a path that does not exist", "damage"])
def test_without_tracebacks_the_message_comes_first(spark, logs, damaged_logs, conf, mistake):
    conf(HIDE_TRACEBACK, "true")
    make, message = MISTAKES[mistake]
    with pytest.raises(PySparkException) as raised:
        make(spark, logs, damaged_logs)
    text = " ".join(lines_of(raised.value))
    words_of_spark, _, _ = text.partition(message)
    assert message in text
    assert len(words_of_spark) < 100
    assert "Traceback" not in text


def test_the_traceback_goes_to_the_log(tmp_path, caplog):
    source = SegmentLogDataSource({"path": str(tmp_path / "nowhere")})
    reader = source.reader(source.schema())
    with caplog.at_level(logging.DEBUG, "spark_segmentlog"), pytest.raises(LogDirectoryError) as raised:
        reader.partitions()
    assert [entry.name for entry in raised.traceback][1:] == ["called_by_spark"]
    assert "find_partitions" in caplog.text
