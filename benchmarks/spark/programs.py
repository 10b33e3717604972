"""The programs that only benchmarks and tests need: parts of Spark that are not in PySpark, and the PySparks that fit them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import NamedTuple

from benchmarks.progress import tell
from benchmarks.settings import CHECKOUT, Settings

_POM = Path(__file__).with_name("pom.xml")
# PySpark, what it brings, and how the checkout is installed: another PySpark has its own, and the checkout is on the path.
_LEFT_OUT = ("pyspark", "py4j", "__editable__", "segmentlog", "spark_segmentlog")


class Connector(NamedTuple):
    """A part of Spark that users add to it: it must match their Spark."""

    artifact: str
    spark_version: str


KAFKA_SOURCE = Connector("spark-sql-kafka-0-10_2.13", "4.0.0")
SPARK_AVRO = Connector("spark-avro_2.13", "4.2.0")


def python_for(connector: Connector, settings: Settings) -> Path:
    """Return a Python with the PySpark of a connector's version, which pip installs on first use."""
    directory = settings.programs_directory / f"pyspark-{connector.spark_version}"
    python = directory / "bin" / "python"
    complete = directory / "complete"
    if not complete.exists():
        tell(f"installing pyspark {connector.spark_version}")
        venv.create(directory, with_pip=True, clear=True)
        _run([str(python), "-m", "pip", "install", "-q", f"pyspark=={connector.spark_version}"])
        complete.touch()
    return python


def jars_of(connector: Connector, settings: Settings) -> str:
    """Return the setting ``spark.jars`` with a connector and what it needs, which Maven fetches on first use."""
    directory = settings.programs_directory / f"{connector.artifact}-{connector.spark_version}"
    if not directory.is_dir():
        settings.programs_directory.mkdir(parents=True, exist_ok=True)
        # Filled under another name and renamed when complete: a directory of that name is whole.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=settings.programs_directory) as scratch:
            # Maven leaves a target folder beside the POM, and the checkout stays clean.
            pom = shutil.copy(_POM, scratch)
            filled = Path(scratch) / "jars"
            wanted = [f"-Dconnector={connector.artifact}", f"-Dspark.version={connector.spark_version}"]
            goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={filled}"]
            _run(["mvn", "-q", "-B", "-f", str(pom), *wanted, *goal])
            filled.rename(directory)
    return ",".join(map(str, sorted(directory.glob("*.jar"))))


def python_path_for(scratch: Path) -> str:
    """Return the ``PYTHONPATH`` that gives another PySpark the checkout and the other packages of this environment.

    Args:
        scratch: A new directory, which takes links to the packages.
    """
    scratch.mkdir(parents=True)
    for path in Path(sys.prefix, "lib").glob("python3*/site-packages/*"):
        if not path.name.startswith(_LEFT_OUT):
            (scratch / path.name).symlink_to(path)
    return os.pathsep.join([str(CHECKOUT), str(scratch)])


def _run(command: list[str]) -> None:
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(
            f"Failed with status {result.returncode}: {' '.join(command)}\n{result.stdout[-3000:]}"
        )
