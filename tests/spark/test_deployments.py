"""A standalone cluster of two workers, started from PySpark's own `spark-class`, and the ways to send it the package."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import numpy as np
import pyspark
import pytest

import spark_segmentlog
import storage_core

pytestmark = [pytest.mark.spark, pytest.mark.versions]

SPARK_HOME = Path(pyspark.__file__).parent
PACKAGES = [Path(spark_segmentlog.__file__).parent, Path(storage_core.__file__).parent]
OURS = re.compile(r"(pyspark_segmentlog|spark_segmentlog|storage_core|__pycache__|.*\.pth$)")
LOG_TO_STDERR = """
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %m%n%ex
"""
# Read, write and restore. If asked to, the first task that writes kills its executor.
PROGRAM = """
import json, os, signal, sys
from pyspark.sql import SparkSession
import spark_segmentlog

place, is_killed = sys.argv[1], sys.argv[2:] == ["killed"]
spark = SparkSession.builder.getOrCreate()
spark_segmentlog.register(spark)


def parent(process):
    with open(f"/proc/{process}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("PPid:"))


def kill_executor_once(batches):
    for number, batch in enumerate(batches):
        yield batch
        if is_killed:
            try:
                os.mkdir(place + ".killed")
            except FileExistsError:
                continue
            # This process, the daemon that forked it, and the executor's JVM.
            os.kill(parent(os.getppid()), signal.SIGKILL)


def read(path):
    return spark.read.format("segmentlog").load(path)


def content(path):
    return sorted((row.partition, row.offset, bytes(row.key), bytes(row.value)) for row in read(path).collect())


ids = spark.range(0, 10000, 1, 4).selectExpr("CAST(id AS STRING) AS key", "concat('v', id) AS value")
rows = ids.mapInArrow(kill_executor_once, ids.schema)
rows.write.format("segmentlog").mode("append").options(topic="t", partitions="3").save(place + "/first")
written = content(place + "/first")
read(place + "/first").write.format("segmentlog").mode("append").options(
    preserveOffsets="true", offsetsFrom=place + "/first").save(place + "/second")
print("ANSWERS " + json.dumps({
    "rows": len(written),
    "keys": len({key for _, _, key, _ in written}),
    "partitions": sorted({partition for partition, *_ in written}),
    "restored": content(place + "/second") == written,
    "killed": os.path.exists(place + ".killed"),
    "from": os.path.dirname(os.path.dirname(spark_segmentlog.__file__)),
}))
spark.stop()
"""


class Cluster:
    """A master and two workers with one core each."""

    def __init__(self, folder):
        self.folder = folder
        configuration = folder / "conf"
        configuration.mkdir()
        (configuration / "log4j2.properties").write_text(LOG_TO_STDERR, encoding="utf-8")
        self._environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("SPARK_", "PYSPARK_"))
            },
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_CONF_DIR": str(configuration),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
        }
        self._processes = []
        name = "org.apache.spark.deploy."
        self.master = self._start(
            r"Starting Spark master at (spark://\S+)",
            f"{name}master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0",
        )  # fmt: skip
        for number in (1, 2):
            work = str(folder / f"work{number}")
            self._start(
                r"Successfully registered with master (\S+)",
                f"{name}worker.Worker", "--cores", "1", "--memory", "1g", "--webui-port", "0",
                "--work-dir", work, self.master,
            )  # fmt: skip

    def _start(self, said, *command):
        log = (self.folder / f"{len(self._processes)}.log").open("w+b")
        process = subprocess.Popen(
            [SPARK_HOME / "bin" / "spark-class", *command], env=self._environment, stderr=log, cwd=self.folder
        )
        self._processes.append((process, log))
        while True:
            found = re.search(said, Path(log.name).read_text(encoding="utf-8", errors="replace"))
            if found:
                return found[1]
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
            pytest.fail(Path(log.name).read_text(encoding="utf-8", errors="replace")[-3000:])

    def stop(self):
        for process, log in reversed(self._processes):
            process.kill()
            process.wait()
            log.close()

    def submit(self, program, *arguments, python, options=(), installed=False):
        """Run a program by `spark-submit`, without any package of Spark's; return its answers.

        The driver has our packages on its path if they are `installed`, else it gets them as its workers do.
        """
        path = str(PACKAGES[0].parent)
        if installed:
            options = [f"--conf=spark.executorEnv.PYTHONPATH={path}", *options]
        done = subprocess.run(
            [
                SPARK_HOME / "bin" / "spark-submit", "--master", self.master, "--driver-memory", "512m",
                "--executor-memory", "512m", "--conf", "spark.ui.enabled=false", *options, program, *arguments,
            ],
            env={
                **self._environment,
                **({"PYTHONPATH": path} if installed else {}),
                "PYSPARK_PYTHON": str(python),
                "PYSPARK_DRIVER_PYTHON": str(python),
            },
            cwd=program.parent,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS ")]
        assert lines, done.stderr[-5000:]
        return json.loads(lines[0].removeprefix("ANSWERS "))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A Python that has what we need, but not our packages."""
    folder = tmp_path_factory.mktemp("bare") / "environment"
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for entry in Path(np.__file__).parents[1].iterdir():
        if not OURS.match(entry.name):
            (packages / entry.name).symlink_to(entry)
    return folder


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


def copy_packages(to):
    for package in PACKAGES:
        shutil.copytree(package, to / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGES[0].parent / "pyspark_segmentlog.py", to)


def expected(answers, *, killed=False):
    return {
        "rows": 10000, "keys": 10000, "partitions": [0, 1, 2], "restored": True, "killed": killed,
        "from": answers["from"],
    }  # fmt: skip


def test_the_package_is_installed_on_the_workers(cluster, program, tmp_path):
    answers = cluster.submit(program, str(tmp_path / "logs"), python=sys.executable, installed=True)
    assert answers == expected(answers)


def test_an_executor_is_killed_while_it_writes(cluster, program, tmp_path):
    answers = cluster.submit(program, str(tmp_path / "logs"), "killed", python=sys.executable, installed=True)
    assert answers == expected(answers, killed=True)


def test_a_zip_is_sent_with_the_job(cluster, bare, program, tmp_path):
    copy_packages(tmp_path / "packages")
    archive = shutil.make_archive(str(tmp_path / "segmentlog"), "zip", tmp_path / "packages")
    answers = cluster.submit(
        program, str(tmp_path / "logs"), python=bare / "bin" / "python", options=["--py-files", archive]
    )
    assert answers["from"] != str(PACKAGES[0].parent)
    assert answers == expected(answers)


def test_a_packed_environment_is_sent_with_the_job(cluster, bare, program, tmp_path):
    # It is unpacked where the job is submitted, too: the driver plans with the same command.
    packed = tmp_path / "environment"
    shutil.copytree(bare, packed, symlinks=True)
    (packages,) = packed.glob("lib/python*/site-packages")
    copy_packages(packages)
    with tarfile.open(tmp_path / "environment.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(packed, ".")
    answers = cluster.submit(
        program, str(tmp_path / "logs"), python="./environment/bin/python",
        options=["--archives", f"{tmp_path}/environment.tar.gz#environment"],
    )  # fmt: skip
    assert answers["from"] == str(packages)
    assert answers == expected(answers)
