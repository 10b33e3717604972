"""The programs that only the benchmarks need: another PySpark, and Spark's Kafka source for it.

The Kafka source is that of Spark 4.0.0, under the PySpark of the same version: a connector must match its Spark.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import venv
from pathlib import Path
from xml.etree import ElementTree as ET

from benchmarks.progress import tell
from benchmarks.settings import Settings

_POM = Path(__file__).with_name("pom.xml")
_POM_NAMESPACE = {"pom": "http://maven.apache.org/POM/4.0.0"}


def _spark_version() -> str:
    version = ET.parse(_POM).findtext("pom:properties/pom:spark.version", namespaces=_POM_NAMESPACE)
    if version is None:
        raise RuntimeError(f"{_POM} names no spark.version.")
    return version


KAFKA_SOURCE_SPARK_VERSION = _spark_version()


def kafka_source_python(settings: Settings) -> Path:
    """A Python with the PySpark of the Kafka source's version; installed by pip on first use."""
    directory = settings.programs_directory / f"pyspark-{KAFKA_SOURCE_SPARK_VERSION}"
    python = directory / "bin" / "python"
    complete = directory / "complete"
    if not complete.exists():
        tell(f"installing pyspark {KAFKA_SOURCE_SPARK_VERSION}")
        venv.create(directory, with_pip=True, clear=True)
        _run([str(python), "-m", "pip", "install", "-q", f"pyspark=={KAFKA_SOURCE_SPARK_VERSION}"])
        complete.touch()
    return python


def kafka_source_jars(settings: Settings) -> list[Path]:
    """The Kafka source and what it needs; fetched by Maven on first use."""
    directory = settings.programs_directory / f"spark-kafka-source-{KAFKA_SOURCE_SPARK_VERSION}"
    if not directory.is_dir():
        settings.programs_directory.mkdir(parents=True, exist_ok=True)
        # Filled under another name and renamed when complete: a directory of that name is whole.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=settings.programs_directory) as scratch:
            # Maven leaves a target folder beside the POM, and the checkout stays clean.
            pom = shutil.copy(_POM, scratch)
            filled = Path(scratch) / "jars"
            goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={filled}"]
            _run(["mvn", "-q", "-B", "-f", str(pom), *goal])
            filled.rename(directory)
    return sorted(directory.glob("*.jar"))


def _run(command: list[str]) -> None:
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(
            f"Failed with status {result.returncode}: {' '.join(command)}\n{result.stdout[-3000:]}"
        )
