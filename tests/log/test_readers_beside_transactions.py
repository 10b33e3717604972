"""Readers in other processes beside one that opens a log, transacts, rolls, closes it, and is killed in between."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.counting import cases
from tests.faults.killed_process import KilledProcess, warm_processes
from tests.faults.soak import SOAK_SECONDS
from tests.faults.transaction_ledger import READ_COMMITTED
from tests.faults.transaction_reader import CURRENT

WRITER = "tests.faults.transacting"
READER = "tests.faults.transaction_reader"
LIVES = 5
READS = 120
SOAK_READS = 10_000
LIVES_PER_LOG = 5


class Campaign:
    """One writer after the other, and two readers beside all of them.

    Attributes:
        steps: What the writers have done, by its name.
        reads: How many reads were right, by isolation level and way.
        again: How many said that they could not agree with the writer.
        lives: How many writers were killed.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.steps: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()
        self.lives = self.again = 0
        self._folder = folder
        self._rng = random.Random(seed)
        self._readers: list[KilledProcess] = []

    @property
    def read_committed(self) -> int:
        return sum(count for name, count in self.reads.items() if name.startswith(READ_COMMITTED))

    def run(self, *, lives: int, reads: int, seconds: float = 0.0) -> None:
        """Go on until there were so many lives and reads, and the time is up; fail at the first wrong read."""
        end = time.monotonic() + seconds
        with warm_processes(WRITER) as writers:
            try:
                while self.lives < lives or self.reads.total() < reads or time.monotonic() < end:
                    self._live(next(writers))
                    self._listen()
            finally:
                for reader in self._readers:
                    reader.end()

    def _live(self, writer: KilledProcess) -> None:
        """Let a process work on the log for some steps, and kill it."""
        rng = self._rng
        log_number, life = divmod(self.lives, LIVES_PER_LOG)
        log = self._folder / str(log_number)
        log.mkdir(exist_ok=True)
        writer.begin(str(log), str(rng.randrange(1 << 30)))
        writer.wait_until_it_speaks()
        if life == 0:
            self._show(log)
        writer.wait_until_it_speaks(rng.choice((5, 20, 60)))
        writer.listen(rng.random() * 0.02)
        self.steps.update(writer.kill())
        self.lives += 1

    def _show(self, log: Path) -> None:
        """Send the readers to a log, which is there by now."""
        path = self._folder / CURRENT
        path.with_suffix(".new").write_text(str(log), encoding="utf-8")
        os.replace(path.with_suffix(".new"), path)
        if not self._readers:
            self._readers = [KilledProcess(READER) for _ in range(2)]
            for reader in self._readers:
                reader.begin(str(self._folder), str(self._rng.randrange(1 << 30)))

    def _listen(self) -> None:
        for reader in self._readers:
            lines = reader.lines()
            wrong = [line for line in lines if line.startswith("wrong")]
            assert not wrong, wrong
            assert reader.is_running, "a reader has failed: see what it has said"
            self.reads.update(line for line in lines if not line.startswith("again"))
            self.again += sum(line.startswith("again") for line in lines)


def run(seed: int, **until) -> Campaign:
    with tempfile.TemporaryDirectory(prefix="segmentlog-transactions-") as folder:
        campaign = Campaign(Path(folder), seed)
        try:
            campaign.run(**until)
        except AssertionError as error:
            error.add_note(f"seed {seed}, life {campaign.lives}")
            raise
    return campaign


def test_readers_beside_a_process_that_transacts_and_is_killed(record_property):
    campaign = run(1, lives=LIVES, reads=READS)
    record_property(
        cases("Readers in two processes beside one that transacts and is killed"), campaign.reads.total()
    )
    assert campaign.read_committed > READS / 3
    assert campaign.steps["end"] > 10


@pytest.mark.soak
def test_readers_beside_a_process_that_transacts_and_is_killed_many_times(capsys):
    campaign = run(int(time.time()), lives=LIVES, reads=SOAK_READS, seconds=SOAK_SECONDS)
    with capsys.disabled():
        print(
            f"\n{campaign.reads.total()} reads, {campaign.read_committed} of them {READ_COMMITTED}; "
            f"{campaign.again} to be repeated; {campaign.lives} lives\n{dict(campaign.steps)}"
        )
        for name, count in campaign.reads.most_common():
            print(f"{count:>8} {name}")
