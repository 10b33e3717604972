"""A process that commits a job, and is killed by SIGKILL at a call of the operating system or at some moment.

A fork of `killed_process` calls `main`. It reads a line ``<root> <version> <how> <number>``:

    call 17      it kills itself right before its 17th call that changes something; ``half``: within a write
    wait 3500    its parent kills it 3500 µs after it has begun
    never 0      it is not killed

It prints ``done <calls>``, or ``again`` if the version was there already.
"""

from __future__ import annotations

import os
import signal
import sys
import uuid
from pathlib import Path

from storage_core import FileSystem
from tests.commit.jobs import Rows, rows_of
from tests.commit.whole_jobs import Job
from tests.faults.faulty_filesystem import FaultyCalls

_PARTITIONS = 3


def job_of_version(version: int) -> Job:
    """Return a version's job: small and large pieces for old partitions, and each third time a topic of its own."""
    counts = [(0, 2), (1, 60 if version % 2 else 1), (2, version % 4)]
    old = rows_of(*[("t", partition, count) for partition, count in counts], name=f"v{version}")
    own: Rows = rows_of((f"own{version}", 0, 3), name=f"v{version}") if version % 3 == 0 else {}
    return Job(
        (old, own),
        {
            "new_partitions": {"t": _PARTITIONS, **({f"own{version}": 1} if own else {})},
            "txn_app_id": "app",
            "txn_version": version,
            "threads": 3,
            "flush": version % 5 != 0,
        },
    )


class _Killing(FaultyCalls):
    """Counts calls that change something, and ends the process at one of them."""

    def __init__(self, at: int, *, is_within: bool) -> None:
        super().__init__()
        self._at = at
        self._is_within = is_within

    def _is_due(self, name, arguments) -> bool:
        super()._is_due(name, arguments)
        if self.count == self._at:
            if self._is_within and name == "pwritev":
                descriptor, pieces, position_bytes = arguments
                data = b"".join(bytes(piece) for piece in pieces)
                os.pwrite(descriptor, data[: len(data) // 2], position_bytes)
            if self._is_within and name == "copy_file_range":
                source, target, count, start, position_bytes = arguments
                os.copy_file_range(source, target, max(1, count // 2), start, position_bytes)
            os.kill(os.getpid(), signal.SIGKILL)
        return False


def _commit(root: str, version: int, at: int, *, is_within: bool) -> str:
    with _Killing(at, is_within=is_within) as calls:
        was_new = job_of_version(version).run(FileSystem(), uuid.uuid4().hex, root)
    return f"done {calls.count}" if was_new else "again"


def main() -> None:
    folder, version, how, number = sys.stdin.readline().rsplit(maxsplit=3)
    Path(folder).mkdir(parents=True, exist_ok=True)
    at = int(number) if how in {"call", "half"} else 0
    print(_commit(folder, int(version), at, is_within=how == "half"), flush=True)
