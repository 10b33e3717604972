"""Readers in other processes and in the same one, beside a process that opens a log, transacts, rolls, truncates, forks, closes
it, and is killed in between.

Each read is judged by the ledger of what was written: its rows are of one history, none was aborted under
``read_committed``, none is missing. If the log was truncated meanwhile, an error may say so instead.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.damage.campaign import fast_folder
from tests.faults.killed_process import KilledProcess, warm_processes
from tests.faults.soak import CAMPAIGN_SECONDS
from tests.faults.transaction_ledger import (
    READ_COMMITTED,
)
from tests.faults.transaction_reader import CURRENT

WRITER = "tests.faults.transacting"
READER = "tests.faults.transaction_reader"
LIVES = 4
READS = 120
# A life's number of steps depends on when it is killed, so the campaign continues until it has seen this many.
LEAST_STEPS = {"end": 6, "truncate": 3, "fork": 1}
SOAK_READS = 10_000
LIVES_PER_LOG = 5


class Campaign:
    """One writer after the other, and two readers beside all of them.

    Attributes:
        steps: What the writers have done, by its name.
        reads: How many reads were right, by isolation level and way.
        told: How many ended with an error because the log was truncated meanwhile.
        lives: How many writers were killed.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.steps: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()
        self.lives = self.told = 0
        self._folder = folder
        self._rng = random.Random(seed)
        self._readers: list[KilledProcess] = []

    @property
    def read_committed(self) -> int:
        return sum(count for name, count in self.reads.items() if name.startswith(READ_COMMITTED))

    def run(self, *, lives: int, reads: int, seconds: float = 0.0) -> None:
        """Continue for this many lives, reads and steps, and this long; fail at the first wrong read."""
        end = time.monotonic() + seconds
        with warm_processes(WRITER) as writers, warm_processes(READER) as readers:
            try:
                while (
                    self.lives < lives
                    or self.reads.total() < reads
                    or any(self.steps[name] < count for name, count in LEAST_STEPS.items())
                    # Readers that the machine has not let run yet.
                    or self.read_committed <= reads / 3
                    or not any("its own log" in name for name in self.reads)
                    or time.monotonic() < end
                ):
                    self._live(next(writers), readers)
                    self._listen()
            finally:
                for reader in self._readers:
                    reader.end()

    def _live(self, writer: KilledProcess, readers: Iterator[KilledProcess]) -> None:
        """Let a process work on the log for some steps, and kill it."""
        rng = self._rng
        log_number, life = divmod(self.lives, LIVES_PER_LOG)
        log = self._folder / str(log_number)
        log.mkdir(exist_ok=True)
        writer.begin(str(log), str(rng.randrange(1 << 30)))
        writer.wait_for_lines()
        if life == 0:
            self._show(log, readers)
        writer.wait_for_lines(rng.choice((5, 20, 60)))
        writer.listen(rng.random() * 0.02)
        for line in writer.kill():
            step, *reads = line.split("\t")
            self._count([step] if step.startswith("wrong") else reads)
            self.steps[step] += 1
        self.lives += 1

    def _show(self, log: Path, readers: Iterator[KilledProcess]) -> None:
        """Send the readers to a log, which is there by now."""
        path = self._folder / CURRENT
        path.with_suffix(".new").write_text(str(log), encoding="utf-8")
        os.replace(path.with_suffix(".new"), path)
        if not self._readers:
            self._readers = [next(readers) for _ in range(2)]
            for reader in self._readers:
                reader.begin(str(self._folder), str(self._rng.randrange(1 << 30)))

    def _listen(self) -> None:
        for reader in self._readers:
            self._count(reader.lines())
            assert reader.is_running, "a reader has failed: see what it has said"

    def _count(self, lines: list[str]) -> None:
        wrong = [line for line in lines if line.startswith("wrong")]
        assert not wrong, "\n".join(wrong)
        told = [line for line in lines if line.startswith(("truncated", "again"))]
        self.told += len(told)
        self.reads.update(line for line in lines if line not in told)


def run(seed: int, **until) -> Campaign:
    with tempfile.TemporaryDirectory(dir=fast_folder(), prefix="segmentlog-transactions-") as folder:
        campaign = Campaign(Path(folder), seed)
        try:
            campaign.run(**until)
        except AssertionError as error:
            error.add_note(f"seed {seed}, life {campaign.lives}")
            raise
    return campaign


# -- The judge itself --------


# -- The campaign --------


def test_readers_beside_a_process_that_transacts_and_is_killed():
    campaign = run(1, lives=LIVES, reads=READS)
    assert campaign.read_committed > READS / 3
    assert any("its own log" in name for name in campaign.reads)


@pytest.mark.soak
def test_readers_beside_a_process_that_transacts_and_is_killed_many_times(capsys):
    campaign = run(int(time.time()), lives=LIVES, reads=SOAK_READS, seconds=CAMPAIGN_SECONDS)
    with capsys.disabled():
        print(
            f"\n{campaign.reads.total()} reads, {campaign.read_committed} of them {READ_COMMITTED}; "
            f"{campaign.told} more were told of a truncation; {campaign.lives} lives\n{dict(campaign.steps)}"
        )
        for name, count in campaign.reads.most_common():
            print(f"{count:>8} {name}")
