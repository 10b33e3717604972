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
JOB = Path(__file__).with_name("cluster_job.py")
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

    def submit(self, folder, *mode, python, options=(), installed=False):
        """Run cluster_job.py by `spark-submit` in a folder, without any package of Spark's; return its answers.

        The driver has our packages on its path if they are `installed`, else it gets them as its workers do.
        """
        answers = folder / "answers.json"
        path = str(PACKAGES[0].parent)
        if installed:
            options = [f"--conf=spark.executorEnv.PYTHONPATH={path}", *options]
        done = subprocess.run(
            [
                SPARK_HOME / "bin" / "spark-submit", "--master", self.master, "--driver-memory", "512m",
                "--executor-memory", "512m", "--conf", "spark.ui.enabled=false", *options, JOB,
                folder / "logs", answers, *mode,
            ],
            env={
                **self._environment,
                **({"PYTHONPATH": path} if installed else {}),
                "PYSPARK_PYTHON": str(python),
                "PYSPARK_DRIVER_PYTHON": str(python),
            },
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )  # fmt: skip
        assert answers.exists(), done.stderr[-5000:]
        return json.loads(answers.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Return a Python that has what we need, but not our packages."""
    folder = tmp_path_factory.mktemp("bare") / "environment"
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for entry in Path(np.__file__).parents[1].iterdir():
        if not OURS.match(entry.name):
            (packages / entry.name).symlink_to(entry)
    return folder


def copy_packages(to):
    for package in PACKAGES:
        shutil.copytree(package, to / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGES[0].parent / "pyspark_segmentlog.py", to)


def expected(*, killed=False):
    return {"rows": 10000, "keys": 10000, "partitions": [0, 1, 2], "restored": True, "killed": killed}


def test_the_package_is_installed_on_the_workers(cluster, tmp_path):
    answers = cluster.submit(tmp_path, python=sys.executable, installed=True)
    assert answers.pop("from") == str(PACKAGES[0].parent)
    assert answers == expected()


def test_an_executor_is_killed_while_it_writes(cluster, tmp_path):
    answers = cluster.submit(tmp_path, "killed", python=sys.executable, installed=True)
    assert answers.pop("from") == str(PACKAGES[0].parent)
    assert answers == expected(killed=True)


def test_a_zip_is_sent_with_the_job(cluster, bare, tmp_path):
    copy_packages(tmp_path / "packages")
    archive = shutil.make_archive(str(tmp_path / "segmentlog"), "zip", tmp_path / "packages")
    answers = cluster.submit(tmp_path, python=bare / "bin" / "python", options=["--py-files", archive])
    assert answers.pop("from").endswith("segmentlog.zip")
    assert answers == expected()


def test_a_packed_environment_is_sent_with_the_job(cluster, bare, tmp_path):
    # It is unpacked where the job is submitted, too: the driver plans with the same command.
    packed = tmp_path / "environment"
    shutil.copytree(bare, packed, symlinks=True)
    (packages,) = packed.glob("lib/python*/site-packages")
    copy_packages(packages)
    with tarfile.open(tmp_path / "environment.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(packed, ".")
    answers = cluster.submit(
        tmp_path, python="./environment/bin/python",
        options=["--archives", f"{tmp_path}/environment.tar.gz#environment"],
    )  # fmt: skip
    assert answers.pop("from") == str(packages)
    assert answers == expected()
