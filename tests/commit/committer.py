"""A process whose children commit jobs and are killed by SIGKILL, at a call of the operating system or at some moment.

Started as ``python -m tests.commit.committer``. All imports are done once, and each child is a fork. It reads lines
``<root> <version> <how> <number>`` and answers each with a line that says what came of the child:

    call 17      killed right before its 17th call that changes something; ``half`` kills it within a write
    wait 3500    killed 3500 µs after it has begun
    never 0      not killed

The answer is ``done <calls>``, ``again`` (the version was there already), ``killed``, or ``failed <status>``.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from storage_core import FileSystem
from tests.commit.jobs import Rows, rows_of
from tests.commit.whole_jobs import Job
from tests.faults.faulty_filesystem import FaultyCalls

_PARTITIONS = 3
_job_numbers = itertools.count()


def job_of_version(version: int) -> Job:
    """The job of a version: small and large pieces for old partitions, and each third time a topic of its own."""
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


def _commit(root: str, version: int, at: int, *, is_within: bool) -> bytes:
    with _Killing(at, is_within=is_within) as calls:
        # No two runs have the same id.
        job_id = f"{os.getpid():016x}{next(_job_numbers):016x}"
        was_new = job_of_version(version).run(FileSystem(), job_id, root)
    return b"done %d" % calls.count if was_new else b"again"


def _child(root: str, version: int, at: int, *, is_within: bool, answer: int) -> None:
    status = 1
    try:
        os.write(answer, _commit(root, version, at, is_within=is_within))
        status = 0
    except BaseException:  # noqa: BLE001  (the child itself must report what it died of)
        traceback.print_exc()
    finally:
        os._exit(status)


def _run(root: str, version: int, how: str, number: int) -> bytes:
    reading, writing = os.pipe()
    process_id = os.fork()
    if process_id == 0:
        at = number if how in {"call", "half"} else 0
        _child(root, version, at, is_within=how == "half", answer=writing)
    os.close(writing)
    if how == "wait":
        time.sleep(number / 1e6)
        os.kill(process_id, signal.SIGKILL)
    _, status = os.waitpid(process_id, 0)
    with os.fdopen(reading, "rb") as file:
        said = file.read()
    if os.WIFSIGNALED(status):
        return b"killed"
    return said if status == 0 else b"failed %d" % status


def main() -> None:
    os.write(1, b"ready\n")
    for line in sys.stdin:
        root, version, how, number = line.rsplit(maxsplit=3)
        Path(root).mkdir(parents=True, exist_ok=True)
        next(_job_numbers)
        os.write(1, _run(root, int(version), how, int(number)) + b"\n")


if __name__ == "__main__":
    main()
