"""The data source with injected failures: its writer dies or fails where the option ``failing`` says so.

    FailingSource, option ``failing``: JSON, as {"write": "kill", "attempts": 1}

Workers and drivers import this module by name.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import TaskContext

from spark_segmentlog import SegmentLogDataSource
from spark_segmentlog.writer import SegmentLogWriter
from storage_core.commit import staging
from storage_core.filesystem import FileSystem
from tests.faults.faulty_filesystem import Fault, FaultyCalls

NUMBERS = {"full": errno.ENOSPC, "broken": errno.EIO}


class FailingSource(SegmentLogDataSource):
    """``format("failing")``."""

    @classmethod
    def name(cls) -> str:
        return "failing"

    def __init__(self, options) -> None:
        super().__init__({name: text for name, text in options.items() if name.lower() != "failing"})
        self._failing = json.loads(options.get("failing", "{}"))

    def writer(self, schema, overwrite):
        return FailingWriter(super().writer(schema, overwrite)._plan, self._failing)


class FailingWriter(SegmentLogWriter):
    """A writer that fails as configured.

    Args:
        plan: The write.
        failing: The failures. ``write`` and ``commit`` name one: ``kill`` (SIGKILL), ``raise``, ``full`` (no space
            left) or ``broken`` (I/O errors) from system call ``at`` on; ``write`` also ``limit`` (a file size limit),
            ``commit`` also ``little space``. A ``write`` fails once something is staged, in the first ``attempts``
            attempts at task 0.
    """

    def __init__(self, plan, failing) -> None:
        super().__init__(plan)
        self._failing = failing

    def write(self, iterator):
        kind, context = self._failing.get("write"), TaskContext.get()
        is_due = context.partitionId() == 0 and context.attemptNumber() < self._failing.get("attempts", 1)
        if kind is None or not is_due:
            return super().write(iterator)
        # Write files while rows arrive, even if there are few.
        staging._LEAST_BLOCK_BYTES = 1000
        if kind == "limit":
            return self._write_little(iterator)
        if kind in NUMBERS:
            with FaultyCalls(Fault(NUMBERS[kind], self._failing["at"], is_lasting=True)):
                return super().write(iterator)
        return super().write(self._until_staged(iterator, kind))

    def _write_little(self, iterator):
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        # Python ignores SIGXFSZ, so writes fail with EFBIG.
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
        try:
            return super().write(iterator)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    def _until_staged(self, iterator, kind) -> Iterator:
        yield from iterator
        wait_for(Path(self._plan.root), f"-0-{TaskContext.get().taskAttemptId()}.pack")
        # Spark does not stop the other tasks when the job fails.
        wait_for(Path(self._plan.root), "-1-*.manifest")
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("the task ends here")

    def commit(self, messages) -> None:
        kind, at = self._failing.get("commit"), self._failing.get("at", 1)
        if kind is None:
            super().commit(messages)
        elif kind == "little space":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(FileSystem, "free_bytes", lambda files, path: 1000)
                super().commit(messages)
        elif kind in NUMBERS:
            with FaultyCalls(Fault(NUMBERS[kind], at, is_lasting=True)):
                super().commit(messages)
        else:
            with EndingCalls(at, kind):
                super().commit(messages)


class EndingCalls(FaultyCalls):
    """Raises, or kills the process, right before a mutating call."""

    def __init__(self, at: int, kind: str) -> None:
        super().__init__()
        self._at = at
        self._kind = kind

    def _is_due(self, name, arguments) -> bool:
        super()._is_due(name, arguments)
        if self.count == self._at:
            if self._kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("the commit ends here")
        return False


def wait_for(root: Path, end: str) -> None:
    """Wait until a staged file with this name has content."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        for path in root.glob(f".segmentlog-stage-*{end}"):
            if path.stat().st_size:
                return
        time.sleep(0.005)
    raise AssertionError(f"no staged file {end} in {root}")
