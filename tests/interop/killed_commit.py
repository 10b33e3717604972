"""A process that kills itself while it commits a job: one partition is published, the next one only in part.

As a script, it stages the rows of a job with two partitions and commits them.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from storage_core.filesystem import FileSystem

if TYPE_CHECKING:
    from collections.abc import Iterable

_REPOSITORY: Final = Path(__file__).resolve().parents[2]
ROWS_OF_KILLED_JOB: Final = 60


def commit_until_killed(root: Path, topic: str, version: int) -> None:
    """Start a process that commits rows to partitions 0 and 1 of a topic and dies halfway through its journal."""
    command = [sys.executable, "-m", "tests.interop.killed_commit", str(root), topic, str(version)]
    result = subprocess.run(command, cwd=_REPOSITORY, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == -signal.SIGKILL, result.stderr


def values_of_killed_job(topic: str, partition: int, version: int) -> Iterable[bytes]:
    """Return the values of the rows, in order."""
    return (f"killed {version}:{topic}:{partition}:{number}".encode() for number in range(ROWS_OF_KILLED_JOB))


class _DyingFileSystem(FileSystem):
    """Kills the process instead of linking the second partition's segment to its name."""

    def __init__(self) -> None:
        super().__init__()
        self._partitions: list[str] = []

    def link(self, source: str, target: str) -> None:
        partition = os.path.dirname(target)
        if partition not in self._partitions:
            self._partitions.append(partition)
        if len(self._partitions) == 2 and target.endswith(".log"):
            os.kill(os.getpid(), signal.SIGKILL)
        super().link(source, target)


def _commit(root: str, topic: str, version: str) -> None:
    from tests.commit.jobs import commit

    rows = {
        (topic, partition): [(None, value) for value in values_of_killed_job(topic, partition, int(version))]
        for partition in (0, 1)
    }
    commit(
        _DyingFileSystem(),
        root,
        f"{int(version):032x}",
        rows,
        broker_directory=True,
        txn_app_id="killed",
        txn_version=int(version),
    )


if __name__ == "__main__":
    _commit(*itertools.islice(sys.argv, 1, 4))
