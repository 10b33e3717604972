"""The jars of Apache Kafka, fetched by Maven into a cache that later runs share."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

_POM = Path(__file__).with_name("pom.xml")
_POM_NAMESPACE = {"pom": "http://maven.apache.org/POM/4.0.0"}


def _kafka_version() -> str:
    version = ET.parse(_POM).findtext("pom:properties/pom:kafka.version", namespaces=_POM_NAMESPACE)
    if version is None:
        raise RuntimeError(f"{_POM} names no kafka.version.")
    return version


KAFKA_VERSION = _kafka_version()


def kafka_jars() -> Path:
    """The directory that holds the broker's jars; fetched on first use.

    Raises:
        RuntimeError: Maven is missing or could not fetch them; the message says what to do.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "segmentlog"
    jars = cache / f"kafka-{KAFKA_VERSION}"
    if jars.is_dir():
        return jars
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f".kafka-{KAFKA_VERSION}.lock", "w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        if not jars.is_dir():
            _fetch(jars)
    return jars


def _fetch(jars: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise RuntimeError(
            "Maven (mvn) was not found. It fetches the Kafka broker; install Maven 3.8 or later."
        )
    # Fill a temporary directory and rename it when complete, so that the final directory is always complete.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=jars.parent) as scratch:
        # Maven creates its target directory next to the POM, which must not be in the checkout.
        pom = shutil.copy(_POM, scratch)
        filled = Path(scratch) / "jars"
        command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={filled}"]
        result = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if result.returncode != 0:
            raise RuntimeError(f"Maven could not fetch Kafka {KAFKA_VERSION}:\n{result.stdout[-3000:]}")
        filled.rename(jars)


def java_command() -> str:
    """The ``java`` of ``JAVA_HOME``, else of ``PATH``."""
    home = os.environ.get("JAVA_HOME")
    if home and os.access(Path(home) / "bin" / "java", os.X_OK):
        return str(Path(home) / "bin" / "java")
    java = shutil.which("java")
    if java is None:
        raise RuntimeError("Java was not found. Install Java 17, or set JAVA_HOME.")
    return java
