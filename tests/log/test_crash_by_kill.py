"""SIGKILL of a process that appends: what it was told is written is there."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

import pytest

from storage_core import LogDirectory
from storage_core.errors import LogDirectoryLockedError
from tests.damage.campaign import fast_folder
from tests.faults.appender import APPENDER_CONFIG, value_at
from tests.faults.counting import cases
from tests.faults.killed_process import warm_processes
from tests.faults.session import TOPIC, records_of

KILLS = 30
SOAK_KILLS = 1_000
# So that a log grows over several kills, and reading all of it stays quick.
KILLS_PER_LOG = 5
APPENDER = "tests.faults.appender"


def kill_many(count: int, seed: int) -> int:
    """Kill appenders; return how many records were acknowledged in all."""
    rng = random.Random(seed)
    acknowledged_in_all = 0
    with (
        warm_processes(APPENDER) as appenders,
        tempfile.TemporaryDirectory(dir=fast_folder(), prefix="segmentlog-kill-") as folder,
    ):
        for number in range(count):
            if number % KILLS_PER_LOG == 0:
                root = str(Path(folder) / str(number))
                Path(root).mkdir()
                last_end = 0
            appender = next(appenders)
            appender.begin(root, str(rng.randrange(1 << 30)))
            appender.wait_for_lines(rng.choice([1, 2, 3, 10, 50, 200]))
            appender.listen(rng.random() * 0.01)
            ends = list(map(int, appender.kill()))
            assert ends == sorted(ends)
            # What was there before is there.
            assert ends[0] >= last_end, f"kill {number}"
            acknowledged_in_all += ends[-1] - ends[0]
            recovery = rng.choice(["tail", "kafka"])
            with LogDirectory.open(root, config=APPENDER_CONFIG, recovery=recovery) as logs:
                log = logs.get(TOPIC, 0)
                last_end = log.log_end_offset
                assert last_end >= ends[-1], f"kill {number}: acknowledged records are gone"
                expected = [(offset, value_at(offset)) for offset in range(last_end)]
                assert records_of(log) == expected, f"kill {number}"
                at = rng.randrange(last_end) if last_end else 0
                assert records_of(log, start_offset=at) == expected[at:], f"kill {number}"
    return acknowledged_in_all


def test_kill_of_an_appending_process(record_property):
    record_property(cases("SIGKILL of an appending process"), KILLS)
    assert kill_many(KILLS, seed=1) > KILLS


@pytest.mark.soak
def test_kill_of_an_appending_process_many_times(capsys):
    acknowledged = kill_many(SOAK_KILLS, seed=int(time.time()))
    with capsys.disabled():
        print(f"\n{SOAK_KILLS} kills, {acknowledged:,} acknowledged records")


def test_a_writer_beside_a_writer_in_another_process_is_refused(tmp_path):
    with warm_processes(APPENDER) as appenders:
        holder = next(appenders)
        holder.begin(str(tmp_path), "hold")
        holder.wait_for_lines()
        with pytest.raises(LogDirectoryLockedError) as caught:
            LogDirectory.open(str(tmp_path), config=APPENDER_CONFIG)
        assert str(tmp_path) in str(caught.value)
        # To read is no harm.
        LogDirectory.open(str(tmp_path), read_only=True).close()
        holder.kill()
    # The lock ended with its holder.
    LogDirectory.open(str(tmp_path), config=APPENDER_CONFIG).close()
