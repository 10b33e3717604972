"""SIGKILL of a driver and its JVM during a write: the version's rows exist once or not at all."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage_core import LogDirectory, read_table
from storage_core.errors import LogDirectoryLockedError
from tests.faults.counting import cases
from tests.spark.killed_driver import ROWS_PER_VERSION, save_version

pytestmark = pytest.mark.spark

REPOSITORY = Path(__file__).parents[2]
KILLS = 3
SOAK_KILLS = 40
# Python alone, the JVM alone, or both.
TARGETS = ("both", "python", "jvm")


class Driver:
    """A driver in a separate session."""

    def __init__(self, root: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.killed_driver", str(root)], cwd=REPOSITORY,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
                 "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
            start_new_session=True,
        )  # fmt: skip
        self._jvm: int | None = None

    def wait_until_ready(self) -> None:
        said = self._process.stdout.readline().split()
        assert said[:1] == [b"ready"]
        self._jvm, self.write_seconds = int(said[1]), int(said[2]) / 1000

    def begin(self, version: int) -> None:
        self._process.stdin.write(b"%d\n" % version)

    def wait(self, seconds: float) -> bool:
        """Wait for the driver's answer; return whether it came."""
        return bool(select.select([self._process.stdout], [], [], seconds)[0])

    def kill(self, target: str) -> None:
        if target in {"both", "jvm"}:
            os.kill(self._jvm, signal.SIGKILL)
        if target in {"both", "python"}:
            self._process.kill()
        else:
            # End of input ends the driver.
            self._process.stdin.close()
        self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.stdout.close()
        self._process.stdin.close()


def settled_values(root: Path) -> list[bytes]:
    """Return all values, once no process of the driver holds the log directory."""
    if not root.exists():
        return []
    deadline = time.monotonic() + 300
    while True:
        try:
            LogDirectory.open(root).close()
            break
        except LogDirectoryLockedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    if not any(path.name.startswith("t-") for path in root.iterdir()):
        return []
    return sorted(read_table(root)["value"].to_pylist())


def expected(versions: int) -> list[bytes]:
    return sorted(
        b"%d:%d" % (version, number)
        for version in range(1, versions + 1)
        for number in range(ROWS_PER_VERSION)
    )


def kill_drivers(root: Path, count: int, seed: int) -> int:
    """Kill drivers, each of which repeats the version of the one before; return the version of the last."""
    rng = random.Random(seed)
    version = 1
    waiting = [Driver(root)]
    try:
        for number in range(count):
            driver = waiting.pop()
            if number + 1 < count:
                # It starts while the one before it works.
                waiting.append(Driver(root))
            driver.wait_until_ready()
            driver.begin(version)
            is_done = driver.wait(rng.random() * 1.2 * driver.write_seconds)
            driver.kill(TARGETS[number % len(TARGETS)])
            found = settled_values(root)
            assert found in (expected(version - 1), expected(version)), f"kill {number}"
            assert not is_done or found == expected(version), f"kill {number}"
            if rng.random() < 0.5 and found == expected(version):
                version += 1
    finally:
        for driver in waiting:
            driver.wait_until_ready()
            driver.kill("both")
    return version


def test_drivers_are_killed(spark, tmp_path, record_property):
    root = tmp_path / "logs"
    version = kill_drivers(root, KILLS, seed=5)
    for each in (version, version, version + 1):
        save_version(spark, str(root), each)
    assert settled_values(root) == expected(version + 1)
    record_property(cases("Spark: SIGKILL of the driver, the txnVersion repeated"), KILLS)


@pytest.mark.soak
def test_drivers_are_killed_many_times(spark, tmp_path, capsys):
    version = kill_drivers(tmp_path / "logs", SOAK_KILLS, seed=int(time.time()))
    save_version(spark, str(tmp_path / "logs"), version)
    assert settled_values(tmp_path / "logs") == expected(version)
    with capsys.disabled():
        print(f"\n{SOAK_KILLS} drivers killed, {version} versions")
