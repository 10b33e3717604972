"""Starts a Spark session in a process of its own and gives it jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from benchmarks.settings import CHECKOUT, Settings
from benchmarks.spark.programs import KAFKA_SOURCE, SPARK_AVRO, jars_of, python_for, python_path_for

_SHIPPED_CONFIGURATION = CHECKOUT / "conf" / "spark-defaults.conf"
_REPLY_PREFIX = "benchmark-reply "

# Whether two sources gave the same rows. Sums do not depend on the order of rows.
_FINGERPRINT = (
    "count(1) AS records",
    "sum(offset) AS offsets",
    "sum(partition) AS partitions",
    "sum(crc32(key)) AS keys",
    "sum(crc32(value)) AS values",
    "sum(unix_millis(timestamp) % 1000003) AS timestamps",
    "sum(timestampType) AS timestampTypes",
)
# The same for every session. The heap is generous, so that garbage collection is not measured.
_COMMON_CONFIGURATION = {
    "spark.driver.memory": "3g",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
}


@dataclass(frozen=True, slots=True)
class Job:
    """One read, into Spark's noop sink or into one row of aggregates.

    Attributes:
        format: Format of the source.
        options: Options of the source.
        path: Path that is loaded.
        select: Expressions of SQL; all columns if empty.
        aggregates: Expressions of SQL over these; if empty, every row goes into the sink.
        avro_schema: What the function ``by_fastavro`` decodes values with, if the job uses it.
    """

    format: str
    options: Mapping[str, str] = field(default_factory=dict)
    path: str | None = None
    select: Sequence[str] = ()
    aggregates: Sequence[str] = ()
    avro_schema: str = ""

    def to_json(self) -> str:
        """Return one line for the worker."""
        return json.dumps(
            {
                "format": self.format,
                "options": dict(self.options),
                "path": self.path,
                "select": list(self.select),
                "aggregates": list(self.aggregates),
                "avro_schema": self.avro_schema,
                "action": "read",
            }
        )


@dataclass(frozen=True, slots=True)
class Frame:
    """Rows that a session makes from their numbers: ``spark.range`` and expressions in SQL over ``id``."""

    rows: int
    columns: Sequence[str]
    input_partitions: int = 4
    is_cached: bool = False


@dataclass(frozen=True, slots=True)
class WriteJob:
    """One write of a frame, in mode ``append``."""

    format: str
    frame: Frame
    options: Mapping[str, str] = field(default_factory=dict)
    path: str | None = None

    def to_json(self) -> str:
        """Return one line for the worker."""
        frame = {
            "rows": self.frame.rows,
            "columns": list(self.frame.columns),
            "input_partitions": self.frame.input_partitions,
            "is_cached": self.frame.is_cached,
        }
        return json.dumps(
            {
                "format": self.format,
                "options": dict(self.options),
                "path": self.path,
                "frame": frame,
                "action": "write",
            }
        )


@dataclass(frozen=True, slots=True)
class StreamJob:
    """One streaming query; ``stream`` is an action of `benchmarks.spark.streams`, and ``more`` what it asks for."""

    stream: str
    format: str
    options: Mapping[str, str] = field(default_factory=dict)
    path: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return one line for the worker."""
        return json.dumps(
            {
                "action": "stream",
                "stream": self.stream,
                "format": self.format,
                "options": dict(self.options),
                "path": self.path,
                **self.more,
            }
        )


class SparkProcess:
    """A Spark session elsewhere. Use as a context manager."""

    def __init__(
        self,
        name: str,
        python: Path,
        configuration: Mapping[str, str],
        settings: Settings,
        python_path: str = str(CHECKOUT),
    ) -> None:
        self.configuration = dict(configuration)
        self._name = name
        self._python = python
        self._python_path = python_path
        self._log_path = settings.size_directory / "spark" / f"{name}.log"
        self._temporary_directory = settings.scratch_directory
        self._process: subprocess.Popen[str] | None = None
        self.version = ""

    @property
    def process_id(self) -> int:
        """Of the driver's Python; the Java machine and the workers descend from it."""
        assert self._process is not None
        return self._process.pid

    def run(self, job: Job | WriteJob) -> float:
        """Run a job to its end; the seconds from ``load`` to the last row, or those of ``save``."""
        return float(self._ask(job)["seconds"])

    def stream(self, job: StreamJob) -> dict[str, Any]:
        """Run a streaming query; what its action answers."""
        return self._ask(job)

    def aggregates(self, job: Job) -> dict[str, int]:
        """Run a job with aggregates, and return them by name."""
        answer: dict[str, int] = self._ask(job)["aggregates"]
        return answer

    def fingerprint(self, job: Job) -> dict[str, int]:
        """Count and sums of the rows that the job reads."""
        return self.aggregates(replace(job, aggregates=_FINGERPRINT))

    def __enter__(self) -> Self:
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._log_path, "w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [str(self._python), "-m", "benchmarks.spark.worker", json.dumps(self.configuration)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=CHECKOUT,
                env=self._environment(),
            )
        try:
            self.version = str(self._answer()["version"])
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _environment(self) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
        return {
            **environment,
            "PYSPARK_PYTHON": str(self._python),
            "PYSPARK_DRIVER_PYTHON": str(self._python),
            # Workers need the packages under test too.
            "PYTHONPATH": self._python_path,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(self._temporary_directory),
        }

    def _ask(self, job: Job | WriteJob | StreamJob) -> dict[str, Any]:
        requests, _ = self._pipes()
        requests.write(job.to_json() + "\n")
        requests.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        _, replies = self._pipes()
        for line in replies:
            if line.startswith(_REPLY_PREFIX):
                answer: dict[str, Any] = json.loads(line.removeprefix(_REPLY_PREFIX))
                if "error" in answer:
                    raise RuntimeError(f"Spark session {self._name} failed: {answer['error']}")
                return answer
        tail = self._log_path.read_text(errors="replace")[-3000:]
        raise RuntimeError(f"Spark session {self._name} ended. The end of its log:\n{tail}")

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        process = self._process
        assert process is not None, "Use the session as a context manager."
        assert process.stdin is not None
        assert process.stdout is not None
        return process.stdin, process.stdout

    def _end(self) -> None:
        requests, replies = self._pipes()
        process, self._process = self._process, None
        assert process is not None
        # The worker ends with its input, and takes the Java machine with it.
        requests.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        replies.close()


def segmentlog_session(settings: Settings, master: str) -> SparkProcess:
    """Start a session under this environment's Spark with the settings that the product ships."""
    name = f"segmentlog-{_plain(master)}"
    return SparkProcess(name, Path(sys.executable), _configuration(master), settings)


def kafka_source_session(settings: Settings, master: str) -> SparkProcess:
    """Start a session with Spark's own Kafka source."""
    configuration = _configuration(master) | {"spark.jars": jars_of(KAFKA_SOURCE, settings)}
    name = f"kafka-{_plain(master)}"
    return SparkProcess(name, python_for(KAFKA_SOURCE, settings), configuration, settings)


def spark_avro_session(settings: Settings, master: str, packages: Path) -> SparkProcess:
    """Start a session with Spark's functions for Avro, segmentlog and the peers.

    Args:
        settings: The run.
        master: Spark's master.
        packages: A new directory, which takes links to this environment's packages.
    """
    configuration = _configuration(master) | {"spark.jars": jars_of(SPARK_AVRO, settings)}
    python = python_for(SPARK_AVRO, settings)
    name = f"avro-{_plain(master)}"
    return SparkProcess(name, python, configuration, settings, python_path_for(packages))


def _configuration(master: str) -> dict[str, str]:
    return {**_shipped_configuration(), **_COMMON_CONFIGURATION, "spark.master": master}


def _shipped_configuration() -> dict[str, str]:
    lines = _SHIPPED_CONFIGURATION.read_text(encoding="utf-8").splitlines()
    settings = [line.split(None, 1) for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return {setting[0]: setting[1].strip() for setting in settings if len(setting) == 2}


def _plain(master: str) -> str:
    return master.replace("[", "").replace("]", "")
