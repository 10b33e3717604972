"""SIGKILL of a process that appends, transacts, cleans and retains: no record is lost, and none comes back."""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from storage_core import LogDirectory
from tests.damage.campaign import fast_folder
from tests.faults.counting import cases
from tests.faults.keeper import KEEPER_CONFIG, key_and_value_at
from tests.faults.killed_process import warm_processes
from tests.faults.session import TOPIC

KILLS = 15
SOAK_KILLS = 1_000
KILLS_PER_LOG = 5
KEEPER = "tests.faults.keeper"


class Ledger:
    """What was acknowledged of one log, over several processes."""

    def __init__(self) -> None:
        # By offset, whether a record counts: it was appended outside of transactions, or committed.
        self.counts: dict[int, bool] = {}
        self.start_offset = self.end_offset = 0
        self.done: Counter[str] = Counter()

    def take(self, lines: list[str]) -> None:
        """Take what a process has said."""
        for line in lines:
            start, end, first, what = line.split()
            self.done[what] += 1
            if what != "kept":
                # Of these, the last one is the marker.
                data_end = int(end) - (what == "committed")
                self.counts.update(dict.fromkeys(range(int(first), data_end), what != "aborted"))
            assert int(start) >= self.start_offset
            assert int(end) >= self.end_offset
            self.start_offset, self.end_offset = int(start), int(end)

    def check(self, log, name: str) -> None:
        """Check the log after the end of the process."""
        assert log.log_start_offset >= self.start_offset, name
        assert log.log_end_offset >= self.end_offset, f"{name}: what was acknowledged is gone"
        for transaction in log.open_transactions():
            log.abort_transaction(transaction.producer_id)
        found, committed = records_of(log), records_of(log, isolation_level="read_committed")
        for offset, pair in found.items():
            assert pair == key_and_value_at(offset), f"{name}: offset {offset}"
        # What was under way has happened, or not.
        known_end = self.end_offset
        self.counts.update({offset: offset in committed for offset in found if offset >= known_end})
        assert not [offset for offset in committed if not self.counts[offset]], (
            f"{name}: aborted records count"
        )
        latest = {
            key_and_value_at(offset)[0]: offset for offset, counts in sorted(self.counts.items()) if counts
        }
        for key, offset in latest.items():
            there = [each for each, pair in committed.items() if pair[0] == key]
            if offset < log.log_start_offset:
                assert there == [], f"{name}: {key} is back at {there}"
            elif key_and_value_at(offset)[1] is not None or there:
                assert there[-1:] == [offset], f"{name}: {key} ends at {there}, not at {offset}"
        self.start_offset, self.end_offset = log.log_start_offset, log.log_end_offset


def records_of(log, **options) -> dict[int, tuple[bytes, bytes | None]]:
    return {
        row["offset"]: (row["key"], row["value"])
        for batch in log.read(columns=["offset", "key", "value"], **options)
        for row in batch.to_pylist()
    }


def kill_many(count: int, seed: int) -> Counter[str]:
    """Kill processes; return what they had done."""
    rng = random.Random(seed)
    done: Counter[str] = Counter()
    with (
        warm_processes(KEEPER) as keepers,
        tempfile.TemporaryDirectory(dir=fast_folder(), prefix="segmentlog-kill-") as folder,
    ):
        for number in range(count):
            if number % KILLS_PER_LOG == 0:
                root = str(Path(folder) / str(number))
                Path(root).mkdir()
                ledger = Ledger()
            keeper = next(keepers)
            keeper.begin(root, str(rng.randrange(1 << 30)))
            keeper.wait_for_lines(rng.choice([1, 3, 10, 50, 100]))
            keeper.listen(rng.random() * 0.02)
            ledger.take(keeper.kill())
            with LogDirectory.open(
                root, config=KEEPER_CONFIG, recovery=rng.choice(["tail", "kafka"])
            ) as logs:
                ledger.check(logs.get(TOPIC, 0), f"seed {seed}, kill {number}")
            done += ledger.done
            ledger.done.clear()
    return done


def test_kill_of_a_process_that_keeps_a_log(record_property):
    done = kill_many(KILLS, seed=1)
    record_property(cases("SIGKILL of a process that appends, transacts, cleans and retains"), KILLS)
    assert min(done[what] for what in ("plain", "committed", "aborted", "kept")) > 5


@pytest.mark.soak
def test_kill_of_a_process_that_keeps_a_log_many_times(capsys):
    done = kill_many(SOAK_KILLS, seed=int(time.time()))
    with capsys.disabled():
        print(f"\n{SOAK_KILLS} kills: {dict(done)}")
