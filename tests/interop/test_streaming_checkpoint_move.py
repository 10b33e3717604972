"""A checkpoint moves from Spark's own Kafka source to ours and back, and goes on at the same records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.settings import Settings, default_cache_directory
from benchmarks.spark.programs import kafka_source_jars, kafka_source_python
from tests.interop.broker import KafkaBroker
from tests.interop.clients import create_topic, new_producer, wait_for_high_watermarks

pytestmark = pytest.mark.spark
REPOSITORY = Path(__file__).parents[2]
_TIMEOUT_S = 300


@pytest.fixture(scope="module")
def programs():
    """The Python and the jars of the connector; pip and Maven fetch them on the first use."""
    settings = Settings(quick=True, repetitions=1, cache_directory=default_cache_directory())
    return kafka_source_python(settings), kafka_source_jars(settings)


def produce(broker, first, count):
    producer = new_producer(broker)
    for number in range(first, first + count):
        producer.produce("moved", b"%d" % number, partition=number % 2)
    assert producer.flush(_TIMEOUT_S) == 0


def test_from_the_kafka_source_to_ours_and_back(programs, tmp_path):
    python, jars = programs
    # The connector's Python has no packages of ours: those of this one, without its PySpark, are behind its own.
    packages = tmp_path / "packages"
    packages.mkdir()
    for path in Path(sys.prefix, "lib").glob("python3*/site-packages/*"):
        if not path.name.startswith(("pyspark", "py4j", "__editable__", "segmentlog", "spark_segmentlog")):
            (packages / path.name).symlink_to(path)

    def run(source):
        done = subprocess.run(
            [
                str(python), str(REPOSITORY / "tests" / "interop" / "checkpoint_mover.py"), source,
                str(tmp_path / "checkpoint"), str(broker.log_directory), broker.bootstrap_servers,
                ",".join(map(str, jars)),
            ],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYSPARK_PYTHON": str(python),
                "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(packages)]),
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith("ROWS ")]
        assert lines, done.stderr[-3000:]
        return [value for _, _, value in json.loads(lines[0].removeprefix("ROWS "))]

    def values(first, count):
        return [
            str(number)
            for partition in (0, 1)
            for number in range(first, first + count)
            if number % 2 == partition
        ]

    with KafkaBroker(tmp_path / "broker", {"replica.high.watermark.checkpoint.interval.ms": 200}) as broker:
        create_topic(broker, "moved", 2)
        for number, source in enumerate(("kafka", "segmentlog", "kafka", "segmentlog")):
            produce(broker, 10 * number, 10)
            wait_for_high_watermarks(broker, {("moved", 0): 5 * number + 5, ("moved", 1): 5 * number + 5})
            assert run(source) == values(10 * number, 10), source
