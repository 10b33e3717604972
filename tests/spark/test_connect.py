"""The source through Spark Connect, in a separate process: a process can hold only one kind of session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
from pyspark.sql import SparkSession
from tests.spark_settings import SPARK_SETTINGS

path = sys.argv[1]
builder = SparkSession.builder.remote("local[2]")
for name, value in SPARK_SETTINGS.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
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
query = copy.option("checkpointLocation", os.path.abspath("checkpoint")).start(os.path.abspath("copied"))
query.processAllAvailable()
query.stop()
answers["copied"] = spark.read.format("segmentlog").load(os.path.abspath("copied")).count()
print("ANSWERS " + json.dumps(answers))
spark.stop()
"""


def test_a_connect_session_reads_as_a_classic_one(logs, tmp_path):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # The server then picks a free port.
        "SPARK_TESTING": "1",
    }
    for name in ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, logs],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS ")]
    assert lines, done.stderr[-3000:]
    answers = json.loads(lines[0].removeprefix("ANSWERS "))
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
