"""LIMIT ends a task early: Spark stops reading, and the task's worker ends without a word."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from storage_core import LogDirectory
from tests.spark_settings import environment_of_a_user

pytestmark = [pytest.mark.spark, pytest.mark.thorough]

PROGRAM = """
import sys, warnings
warnings.simplefilter("ignore")
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[2]").config("spark.python.unix.domain.socket.enabled", sys.argv[2]).getOrCreate()
)
for topic in ("small", "large"):
    chosen = spark.read.format("segmentlog").option("subscribe", topic).load(sys.argv[1])
    assert len(chosen.limit(5).collect()) == 5
    chosen.select("offset").show(2)
print(spark.read.format("segmentlog").load(sys.argv[1]).count())
spark.stop()
"""


@pytest.fixture
def root(tmp_path):
    """Topics that fit into the buffers of a socket, so that the worker is done before Spark is, and that do not."""
    with LogDirectory.open(tmp_path / "logs") as logs:
        for topic, bytes_each in (("small", 100), ("large", 10_000)):
            records = pa.table({"value": [bytes(bytes_each)] * 2_000})
            for partition in range(2):
                logs.get_or_create(topic, partition).append(records)
    return tmp_path / "logs"


@pytest.mark.cases(0, 1)
@pytest.mark.parametrize("is_unix_socket", ["true", "false"])
def test_no_broken_pipe_is_printed(root, is_unix_socket):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(root), is_unix_socket],
        env=environment_of_a_user(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "8000"
    for noise in ("BrokenPipe", "ConnectionReset", "Traceback", "failed to flush", "crashed"):
        assert noise not in done.stderr
