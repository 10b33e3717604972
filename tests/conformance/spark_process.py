"""Spark, classic and Connect, for the ways of reading."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from conformance.spark_worker import REPLY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from pyspark.sql import DataFrame, SparkSession

_REPOSITORY = Path(__file__).resolve().parents[2]
_WORKER = Path(__file__).with_name("spark_worker.py")
# Generous: the first query of a session takes seconds, and longer on a busy machine.
_TIMEOUT_SECONDS = 400.0


class SparkReadError(Exception):
    """What Spark raised for a read."""


class SparkWriteError(Exception):
    """What Spark raised for a write of what it read."""


class ClassicSpark:
    """The Spark session of this process."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def read(self, path: str | Path, options: Mapping[str, Any]) -> pa.Table:
        """Read ``path`` with ``spark.read.format("segmentlog")``.

        Args:
            path: A log directory.
            options: Read options by their snake_case names.

        Raises:
            SparkReadError: Spark raised an error; the message holds its text.
        """
        try:
            return self._load(path, options).toArrow()
        except Exception as error:
            raise SparkReadError(f"{type(error).__name__}: {error}") from error

    def stream(self, path: str | Path, options: Mapping[str, Any]) -> pa.Table:
        """Read ``path`` with ``spark.readStream.format("segmentlog")``, all micro-batches that there are now.

        Args:
            path: A log directory.
            options: Read options by their snake_case names.
        """
        tables: list[pa.Table] = []
        frame = self._session.readStream.format("segmentlog").options(**_words(options)).load(str(path))
        query = frame.writeStream.foreachBatch(lambda batch, _: tables.append(batch.toArrow())).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        return pa.concat_tables(tables)

    def copy(
        self, path: str | Path, options: Mapping[str, Any], target: Path, write_options: Mapping[str, Any]
    ) -> None:
        """Append what `read` would give to another log directory, in one job.

        Args:
            path: A log directory.
            options: Read options by their snake_case names.
            target: The log directory that is written to.
            write_options: Likewise.

        Raises:
            SparkWriteError: Spark raised an error; the message holds its text.
        """
        try:
            writer = self._load(path, options).write.format("segmentlog").mode("append")
            writer.options(**_words(write_options)).save(str(target))
        except Exception as error:
            raise SparkWriteError(f"{type(error).__name__}: {error}") from error

    def _load(self, path: str | Path, options: Mapping[str, Any]) -> DataFrame:
        return self._session.read.format("segmentlog").options(**_words(options)).load(str(path))


class ConnectSpark:
    """A Spark Connect session in a process of its own, ``spark_worker.py``. Use as a context manager."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._output = scratch / "rows.arrow"
        self._replies: queue.Queue[str | None] = queue.Queue()
        # Spark's Python workers import the packages from the source tree, installed or not.
        path = os.pathsep.join(filter(None, [str(_REPOSITORY), os.environ.get("PYTHONPATH")]))
        environment = {
            "SPARK_LOCAL_IP": "127.0.0.1",
            **os.environ,
            "PYTHONPATH": path,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            # The server then picks a free port: other processes of a run have servers, too.
            "SPARK_TESTING": "1",
        }
        # Leftovers of another session in this run would choose the kind of session.
        for name in ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE"):
            environment.pop(name, None)
        self._errors = (scratch / "stderr").open("w+b")
        self._process = subprocess.Popen(
            [sys.executable, str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=scratch,
            env=environment,
            text=True,
        )
        self._reader = threading.Thread(target=self._collect_replies, daemon=True)
        self._reader.start()
        try:
            self._next_reply()
        except BaseException:
            self.stop()
            raise

    def read(self, path: str | Path, options: Mapping[str, Any]) -> pa.Table:
        """Read ``path`` as `ClassicSpark.read` does."""
        reply = self._ask({"path": str(path), "options": _words(options), "output": str(self._output)})
        if "error" in reply:
            raise SparkReadError(reply["error"])
        with pa.OSFile(str(self._output)) as source, pa.ipc.open_stream(source) as stream:
            return stream.read_all()

    def run(self, program: str, **names: Any) -> Any:
        """Run a program that knows ``spark`` and these names; return what it calls ``answers``."""
        reply = self._ask({"program": program, "names": names})
        if "error" in reply:
            raise SparkReadError(reply["error"])
        return reply["answers"]

    def stop(self) -> None:
        """End the session and its process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(10)
        self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _collect_replies(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(REPLY_PREFIX):
                self._replies.put(line.removeprefix(REPLY_PREFIX))
        self._replies.put(None)

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._next_reply()

    def _next_reply(self) -> dict[str, Any]:
        try:
            line = self._replies.get(timeout=_TIMEOUT_SECONDS)
        except queue.Empty:
            line = None
        if line is None:
            self._errors.flush()
            said = (self._scratch / "stderr").read_text(errors="replace")[-3000:]
            raise RuntimeError(f"Spark Connect gave no answer. Its last words:\n{said}")
        reply: dict[str, Any] = json.loads(line)
        return reply


def _words(options: Mapping[str, Any]) -> dict[str, str]:
    return {_camel_case(name): str(value) for name, value in options.items()}


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
