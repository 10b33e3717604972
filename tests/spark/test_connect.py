"""The source through Spark Connect, in a separate process: a process can hold only one kind of session."""

from __future__ import annotations

import pytest

PROGRAM = """
answers = {"session": type(spark).__module__}
frame = spark.read.format("segmentlog").option("subscribe", "a").load(path)
answers["columns"] = frame.columns
answers["count"] = frame.count()
frame.createOrReplaceTempView("records")
answers["sql"] = [list(row) for row in spark.sql(
    "SELECT partition, max(offset) FROM records GROUP BY partition ORDER BY partition"
).collect()]
answers["limit"] = len(frame.limit(3).collect())
try:
    spark.read.format("segmentlog").option("startingOfset", "earliest").load(path).count()
except Exception as error:
    answers["error"] = str(error)
stream = spark.readStream.format("segmentlog").option("subscribe", "a").option("startingOffsets", "earliest").load(path)
copy = stream.select("topic", "partition", "value").writeStream.format("segmentlog").option("partitions", 2)
query = copy.option("checkpointLocation", f"{folder}/checkpoint").start(f"{folder}/copied")
query.processAllAvailable()
query.stop()
answers["copied"] = spark.read.format("segmentlog").load(f"{folder}/copied").count()
"""


@pytest.mark.spark
def test_a_connect_session_reads_as_a_classic_one(connect_spark, logs, tmp_path):
    answers = connect_spark.run(PROGRAM, path=logs, folder=str(tmp_path))
    error = answers.pop("error")
    assert answers == {
        "session": "pyspark.sql.connect.session",
        "columns": ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"],
        "count": 200,
        "sql": [[0, 99], [1, 99]],
        "limit": 3,
        "copied": 200,
    }
    assert "OptionError: Unknown option 'startingofset'. Did you mean 'startingOffsets'?" in error
