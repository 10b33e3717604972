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

from storage_core.errors import CorruptRecordError, DataLossError, LogTruncationError
from tests.damage.campaign import fast_folder
from tests.faults.killed_process import KilledProcess, warm_processes
from tests.faults.soak import SOAK_SECONDS
from tests.faults.transaction_ledger import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Event,
    Ledger,
    Rows,
    judge,
    values_of,
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
        assert not wrong, wrong
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


def ledger_of(*events: Event) -> Ledger:
    ledger = Ledger()
    for event in events:
        ledger.note(event)
    return ledger


def rows(unit: int, first_offset: int, count: int) -> Rows:
    return list(enumerate(values_of(unit, 0, count), first_offset))


# Plain rows, a transaction that was aborted, and one that was committed.
EVENTS = (
    Event("append", 1, 0, 3), Event("appended", 1),
    Event("append", 2, 3, 2, producer_id=1), Event("appended", 2), Event("abort", 2, 5), Event("aborted", 2),
    Event("append", 3, 6, 2, producer_id=2), Event("appended", 3), Event("commit", 3, 8), Event("committed", 3),
)  # fmt: skip
TRUNCATED = (
    Event("truncate", -1, 5), Event("truncated", -1, 5),
    Event("commit", 2, 5), Event("committed", 2),
    Event("append", 4, 6, 2), Event("appended", 4),
)  # fmt: skip
PLAIN, ABORTED, COMMITTED, NEW = rows(1, 0, 3), rows(2, 3, 2), rows(3, 6, 2), rows(4, 6, 2)


@pytest.mark.parametrize(
    ("level", "found", "is_right"),
    [
        (READ_COMMITTED, PLAIN + COMMITTED, True),
        (READ_UNCOMMITTED, PLAIN + ABORTED + COMMITTED, True),
        # Of the other history.
        (READ_COMMITTED, PLAIN + ABORTED + NEW, True),
        (READ_UNCOMMITTED, PLAIN + ABORTED + NEW, True),
        # Of both.
        (READ_COMMITTED, PLAIN + NEW, False),
        (READ_COMMITTED, PLAIN + ABORTED + COMMITTED, False),
        (READ_UNCOMMITTED, PLAIN + ABORTED + COMMITTED[:1] + NEW[1:], False),
        # Rows are lost.
        (READ_COMMITTED, PLAIN[1:] + COMMITTED, False),
        (READ_COMMITTED, PLAIN + COMMITTED[1:], False),
        (READ_UNCOMMITTED, PLAIN + COMMITTED, False),
        (READ_UNCOMMITTED, PLAIN[:2], False),
        (READ_UNCOMMITTED, [], False),
        # Twice, at another offset, and nothing at all.
        (READ_UNCOMMITTED, PLAIN + PLAIN[2:] + ABORTED + COMMITTED, False),
        (READ_UNCOMMITTED, PLAIN + ABORTED + [(7, COMMITTED[0][1]), (8, COMMITTED[1][1])], False),
        (READ_UNCOMMITTED, PLAIN + ABORTED + COMMITTED[:1] + [(7, None)], False),
    ],
)
def test_a_read_is_of_one_history(level, found, is_right):
    ledger = ledger_of(*EVENTS)
    begin = ledger.moment()
    for event in TRUNCATED:
        ledger.note(event)
    assert (judge(found, ledger, begin, level) == []) is is_right


def test_a_read_that_began_after_a_truncation_is_of_the_new_history():
    ledger = ledger_of(*EVENTS, *TRUNCATED)
    assert judge(PLAIN + ABORTED + NEW, ledger, ledger.moment(), READ_COMMITTED) == []
    assert judge(PLAIN + COMMITTED, ledger, ledger.moment(), READ_COMMITTED)


@pytest.mark.parametrize(
    ("error", "is_right"),
    [
        (LogTruncationError("", offset=5), True),
        (LogTruncationError("", offset=3), True),
        (LogTruncationError("", offset=6), False),
        (LogTruncationError(""), False),
        (DataLossError(""), True),
        (CorruptRecordError(""), False),
    ],
)
def test_an_error_is_right_where_the_log_was_truncated(error, is_right):
    ledger = ledger_of(*EVENTS)
    begin = ledger.moment()
    assert judge(PLAIN, ledger, begin, READ_COMMITTED, error) != []
    for event in TRUNCATED:
        ledger.note(event)
    assert (judge(PLAIN, ledger, begin, READ_COMMITTED, error) == []) is is_right
    # What came before it is of one history, too.
    assert judge(PLAIN + NEW, ledger, begin, READ_COMMITTED, error) != []
    assert judge(PLAIN[1:], ledger, begin, READ_UNCOMMITTED, error) != []


# -- The campaign --------


def test_readers_beside_a_process_that_transacts_and_is_killed():
    campaign = run(1, lives=LIVES, reads=READS)
    assert campaign.read_committed > READS / 3
    assert any("its own log" in name for name in campaign.reads)


@pytest.mark.soak
def test_readers_beside_a_process_that_transacts_and_is_killed_many_times(capsys):
    campaign = run(int(time.time()), lives=LIVES, reads=SOAK_READS, seconds=SOAK_SECONDS)
    with capsys.disabled():
        print(
            f"\n{campaign.reads.total()} reads, {campaign.read_committed} of them {READ_COMMITTED}; "
            f"{campaign.told} more were told of a truncation; {campaign.lives} lives\n{dict(campaign.steps)}"
        )
        for name, count in campaign.reads.most_common():
            print(f"{count:>8} {name}")
