"""Starts a Spark session in a process of its own and gives it jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from benchmarks.settings import CHECKOUT, Settings
from benchmarks.spark.programs import kafka_source_jars, kafka_source_python

_SHIPPED_CONFIGURATION = CHECKOUT / "conf" / "spark-defaults.conf"
_REPLY_PREFIX = "benchmark-reply "

# The same for every session. The heap is generous, so that garbage collection is not measured.
_COMMON_CONFIGURATION = {
    "spark.driver.memory": "3g",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
}


@dataclass(frozen=True, slots=True)
class Job:
    """One read. ``action`` is ``noop`` (every row into Spark's noop sink) or ``fingerprint``."""

    format: str
    options: Mapping[str, str] = field(default_factory=dict)
    path: str | None = None
    select: Sequence[str] = ()
    action: str = "noop"

    def to_json(self) -> str:
        """One line for the worker."""
        return json.dumps(
            {
                "format": self.format,
                "options": dict(self.options),
                "path": self.path,
                "select": list(self.select),
                "action": self.action,
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
        """One line for the worker."""
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
        """One line for the worker."""
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
        self, name: str, python: Path, configuration: Mapping[str, str], log_directory: Path
    ) -> None:
        self.configuration = dict(configuration)
        self._name = name
        self._python = python
        self._log_path = log_directory / f"{name}.log"
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

    def fingerprint(self, job: Job) -> dict[str, int]:
        """Count and sums of the rows that the job reads."""
        asked = Job(job.format, job.options, job.path, job.select, action="fingerprint")
        answer: dict[str, int] = self._ask(asked)["fingerprint"]
        return answer

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
            "PYTHONPATH": str(CHECKOUT),
            "SPARK_LOCAL_IP": "127.0.0.1",
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
    """A session under this environment's Spark with the settings that the product ships."""
    configuration = {**_shipped_configuration(), **_COMMON_CONFIGURATION, "spark.master": master}
    name = f"segmentlog-{_plain(master)}"
    return SparkProcess(name, Path(sys.executable), configuration, settings.size_directory / "spark")


def kafka_source_session(settings: Settings, master: str) -> SparkProcess:
    """A session with Spark's own Kafka source."""
    configuration = {
        **_shipped_configuration(),
        **_COMMON_CONFIGURATION,
        "spark.master": master,
        "spark.jars": ",".join(str(jar) for jar in kafka_source_jars(settings)),
    }
    python = kafka_source_python(settings)
    return SparkProcess(f"kafka-{_plain(master)}", python, configuration, settings.size_directory / "spark")


def _shipped_configuration() -> dict[str, str]:
    lines = _SHIPPED_CONFIGURATION.read_text(encoding="utf-8").splitlines()
    settings = [line.split(None, 1) for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return {setting[0]: setting[1].strip() for setting in settings if len(setting) == 2}


def _plain(master: str) -> str:
    return master.replace("[", "").replace("]", "")
