"""A checkpoint moves from Spark's own Kafka source to ours and back, and goes on at the same records."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import threading
from pathlib import Path

import pytest

from benchmarks.settings import Settings, default_cache_directory
from benchmarks.spark.programs import KAFKA_SOURCE, jars_of, python_for, python_path_for
from tests.interop.broker import KafkaBroker
from tests.interop.clients import create_topic, new_producer, wait_for_high_watermarks
from tests.interop.jars import QUICK_JVM

pytestmark = pytest.mark.spark
REPOSITORY = Path(__file__).parents[2]
_TIMEOUT_S = 300


@pytest.fixture(scope="module")
def programs():
    """Return the Python and the jars of the connector; pip and Maven fetch them on the first use."""
    settings = Settings(quick=True, repetitions=1, cache_directory=default_cache_directory())
    return python_for(KAFKA_SOURCE, settings), jars_of(KAFKA_SOURCE, settings)


def produce(broker, first, count):
    producer = new_producer(broker)
    for number in range(first, first + count):
        producer.produce("moved", b"%d" % number, partition=number % 2)
    assert producer.flush(_TIMEOUT_S) == 0


def test_from_the_kafka_source_to_ours_and_back(programs, tmp_path):
    python, jars = programs
    python_path = python_path_for(tmp_path / "packages")

    @contextlib.contextmanager
    def running():
        command = [str(python), str(REPOSITORY / "tests" / "interop" / "checkpoint_mover.py")]
        command += [str(tmp_path / "checkpoint"), str(broker.log_directory), broker.bootstrap_servers]
        with (
            open(tmp_path / "errors", "w") as errors,
            subprocess.Popen(
                [*command, jars],
                cwd=tmp_path,
                env={
                    **os.environ,
                    "JDK_JAVA_OPTIONS": " ".join(QUICK_JVM),
                    "PYSPARK_PYTHON": str(python),
                    "PYTHONPATH": python_path,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            ) as process,
        ):
            guard = threading.Timer(_TIMEOUT_S, process.kill)
            guard.daemon = True
            guard.start()
            yield process
            process.communicate()
            guard.cancel()

    def run(process, source):
        print(source, file=process.stdin, flush=True)
        lines = itertools.dropwhile(lambda line: not line.startswith("ROWS "), process.stdout)
        line = next(lines, None)
        assert line is not None, (tmp_path / "errors").read_text()[-3000:]
        return [value for _, _, value in json.loads(line.removeprefix("ROWS "))]

    def values(first, count):
        return [
            str(number)
            for partition in (0, 1)
            for number in range(first, first + count)
            if number % 2 == partition
        ]

    with KafkaBroker(tmp_path / "broker", {"replica.high.watermark.checkpoint.interval.ms": 200}) as broker:
        create_topic(broker, "moved", 2)
        # The Kafka source goes on in a process of its own.
        for first, sources in ((0, ("kafka", "segmentlog")), (2, ("kafka",))):
            with running() as process:
                for number, source in enumerate(sources, first):
                    produce(broker, 10 * number, 10)
                    end = 5 * number + 5
                    wait_for_high_watermarks(broker, {("moved", 0): end, ("moved", 1): end})
                    assert run(process, source) == values(10 * number, 10), source
