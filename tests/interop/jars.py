"""The jars of Apache Kafka, fetched by Maven into a cache that later runs share, and the JVMs that run them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_HERE = Path(__file__).parent
_POM = _HERE / "pom.xml"
_POM_NAMESPACE = {"pom": "http://maven.apache.org/POM/4.0.0"}
# A JVM that lives for minutes spends more on optimising its code than it gains.
QUICK_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def _kafka_version() -> str:
    version = ET.parse(_POM).findtext("pom:properties/pom:kafka.version", namespaces=_POM_NAMESPACE)
    if version is None:
        raise RuntimeError(f"{_POM} names no kafka.version.")
    return version


KAFKA_VERSION = _kafka_version()


def kafka_jars() -> Path:
    """Return the directory that holds the broker's jars, which are fetched on first use.

    Raises:
        RuntimeError: Maven is missing or could not fetch them; the message says what to do.
    """
    return cached(f"kafka-{KAFKA_VERSION}", _fetch)


def fetched_jar(artifact: str) -> Path:
    """Return one jar without those that it needs, fetched on first use.

    Args:
        artifact: As Maven names it: group, name, version, type and classifier.

    Raises:
        RuntimeError: Maven is missing or could not fetch it; the message says what to do.
    """
    arguments = ["dependency:copy", f"-Dartifact={artifact}"]
    _, name, version, _, classifier = artifact.split(":")
    folder = cached(f"{name}-{version}-{classifier}", lambda jars: _run_maven(arguments, jars, artifact))
    (jar,) = folder.glob("*.jar")
    return jar


def cached(name: str, fetch: Callable[[Path], None]) -> Path:
    """Return a directory of the cache, which a function fills on first use.

    It fills a temporary one, which is renamed when it is complete, so that the final one is always complete.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "segmentlog"
    kept = cache / name
    if not kept.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with only_process(cache / f".{name}.lock"):
            if not kept.is_dir():
                with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache) as scratch:
                    filled = Path(scratch) / "filled"
                    filled.mkdir()
                    fetch(filled)
                    filled.rename(kept)
    return kept


def run_fetching(command: Sequence[str], what: str, **variables: str) -> None:
    """Run a command that fetches something.

    Raises:
        RuntimeError: It failed; the message says how.
    """
    result = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )
    if result.returncode != 0:
        raise RuntimeError(f"{command[0]} could not fetch {what}:\n{result.stdout[-3000:]}")


@contextlib.contextmanager
def only_process(lock: Path) -> Iterator[None]:
    """Wait until no other process holds a lock, and hold it in the block."""
    with open(lock, "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def _fetch(jars: Path) -> None:
    # Maven creates its target directory next to the POM, which must not be in the checkout.
    pom = shutil.copy(_POM, jars.parent)
    arguments = ["-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"]
    _run_maven(arguments, jars, f"Kafka {KAFKA_VERSION}")


def _run_maven(arguments: Sequence[str], jars: Path, what: str) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise RuntimeError(
            f"Maven (mvn) was not found. It fetches {what} for the tests; install Maven 3.8 or later."
        )
    run_fetching([maven, "-q", "-B", *arguments, f"-DoutputDirectory={jars}"], what)


def java_command() -> str:
    """Return the ``java`` of ``JAVA_HOME``, else of ``PATH``."""
    home = os.environ.get("JAVA_HOME")
    if home and os.access(Path(home) / "bin" / "java", os.X_OK):
        return str(Path(home) / "bin" / "java")
    java = shutil.which("java")
    if java is None:
        raise RuntimeError("Java was not found. Install Java 17, or set JAVA_HOME.")
    return java


def kept_by_first_start() -> Path:
    """Return where the first broker leaves its loaded classes and the files of a new log directory.

    They are beside the jars that they come from, and hold for one Java.
    """
    java = Path(java_command()).resolve()
    identity = hashlib.sha256(f"{java} {java.stat().st_mtime_ns}".encode()).hexdigest()[:16]
    return kafka_jars() / f"first-start-{identity}"


def kafka_command(
    program: str, *arguments: str, options: Sequence[str] = ("-Xmx256m", *QUICK_JVM)
) -> list[str]:
    """Return the command that runs a class of Kafka, or a Java program of this folder, named without suffix."""
    classes = [f"{kafka_jars()}/*"]
    if (_HERE / f"{program}.java").exists():
        classes.append(str(_compiled(program)))
    archive = kept_by_first_start() / "classes.jsa"
    sharing = [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []
    # An archive that does not fit is ignored: this may not mix with a tool's output.
    quiet = ["-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    return [java_command(), *sharing, *quiet, *options, "-cp", ":".join(classes), program, *arguments]


def _compiled(program: str) -> Path:
    """Return the directory with the classes of a program of this folder, which is compiled on first use."""
    source = _HERE / f"{program}.java"
    classes = kafka_jars() / f"{program}-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}"
    if not classes.is_dir():
        with tempfile.TemporaryDirectory(prefix=".compile-", dir=classes.parent) as scratch:
            made = Path(scratch) / "classes"
            subprocess.run(["javac", "-d", made, "-cp", f"{kafka_jars()}/*", source], check=True)
            # Another process may have been quicker.
            with contextlib.suppress(OSError):
                made.rename(classes)
    return classes
