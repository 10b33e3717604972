"""Reads in a separate process that measures their memory and CPU time.

A helper process imports the package once and forks for each read, so that reads do not share memory and an endless
read can be stopped: the kernel sends a signal after `_MOST_CPU_SECONDS`. That limit is a watchdog, not a measure of
speed.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

_MOST_CPU_SECONDS = 20
_MOST_SECONDS_TO_FOLLOW = 1
# A single record without timestamp, value ``v``, at offset 7.
_ONE_BATCH = (
    "000000000000000700000039ffffffff0228cd2368000000000000ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"
    "000000010e00000001027600"
)


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of a read.

    Attributes:
        error: Class of the error that ended it; None if it returned a table.
        message: The error message.
        rows: Number of rows.
        offsets: Their offsets; None for a damage row.
        damage: The damage rows.
        cpu_seconds: CPU time.
        resident_bytes: The growth of the peak resident size during the read.
        allocated_bytes: Peak allocation of Python and numpy, touched or not; 0 if the read is too slow to trace it.
        bytes_read: Number of bytes read from files.
    """

    error: str | None
    message: str
    rows: int
    offsets: list[int | None]
    damage: list[dict[str, Any]]
    cpu_seconds: float
    resident_bytes: int
    allocated_bytes: int
    bytes_read: int


def can_measure_memory() -> bool:
    """Return whether this system reports a process's peak memory and can reset it."""
    return os.access("/proc/self/clear_refs", os.W_OK)


class MeasuringProcess:
    """Use as a context manager."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return self

    def __exit__(self, *details: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=300)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def read(self, *paths: str | os.PathLike[str], **options: Any) -> Measured:
        """`read_table` with these arguments.

        Raises:
            AssertionError: The read was stopped.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"paths": [os.fsencode(path).hex() for path in paths], "options": options}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert "ended by" not in answer, f"the read did not end by itself: {answer}"
        return Measured(**answer)


def _serve() -> None:
    # Load before the forks what a first read loads, so that it counts for none of them.
    _warm_up()
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            with os.fdopen(writing, "w") as output:
                json.dump(_measure(json.loads(line)), output)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as source:
            answer = source.read()
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) or not answer:
            answer = json.dumps({"ended by": status})
        print(answer, flush=True)


def _warm_up() -> None:
    with tempfile.TemporaryDirectory() as folder:
        partition = Path(folder, "events-0")
        partition.mkdir()
        (partition / f"{0:020d}.log").write_bytes(bytes.fromhex(_ONE_BATCH))
        result = _read([folder], {"include_metadata": True, "include_headers": True})
        assert result["offsets"] == [7], result


def _measure(request: dict[str, Any]) -> dict[str, Any]:
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_CPU_SECONDS, _MOST_CPU_SECONDS))
    signal.alarm(10 * _MOST_CPU_SECONDS)
    paths = [os.fsdecode(bytes.fromhex(path)) for path in request["paths"]]
    # First measure as is, then with traced allocations, which is many times slower.
    result = _read(paths, request["options"])
    result["allocated_bytes"] = 0
    if result["cpu_seconds"] < _MOST_SECONDS_TO_FOLLOW:
        tracemalloc.start()
        _read(paths, request["options"])
        result["allocated_bytes"] = tracemalloc.get_traced_memory()[1]
    return result


def _read(paths: list[str], options: dict[str, Any]) -> dict[str, Any]:
    import storage_core
    from storage_core.filesystem import FileSystem

    filesystem = FileSystem()
    result: dict[str, Any] = {"error": None, "message": "", "rows": 0, "offsets": [], "damage": []}
    before = _restart_peak()
    start = time.process_time()
    try:
        table = storage_core.read_table(*paths, filesystem=filesystem, **options)
    except Exception as error:  # noqa: BLE001  (reported, and judged by the test)
        result |= {"error": type(error).__name__, "message": str(error)}
    else:
        result["rows"] = table.num_rows
        if table.num_rows < 10_000 and "offset" in table.column_names:
            result["offsets"] = table["offset"].to_pylist()
        if "_corrupt_record" in table.column_names:
            result["damage"] = [json.loads(text) for text in table["_corrupt_record"].to_pylist() if text]
    result["cpu_seconds"] = time.process_time() - start
    result["resident_bytes"] = _peak() - before
    result["bytes_read"] = filesystem.statistics.bytes_read
    return result


def _restart_peak() -> int:
    if can_measure_memory():
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _peak()


def _peak() -> int:
    if not can_measure_memory():
        return 0
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    _serve()
