"""A process that runs transactions on a log until it is killed, and records the expected content in a ledger.

A fork of `killed_process` calls `main`. It reads a line ``<folder> <seed>``, continues with the log directory
``<folder>/logs`` and the ledger ``<folder>/ledger``, and prints a line for each completed step. After the step's name,
separated by tabs, come the reads that a concurrent thread of this process has made. If something is wrong, the last
line is ``wrong <what>``.

`STEPS` lists the steps with their weights: each is a function of the life and a random source. A new step must note
its consequences for readers in the ledger, before and after it acts.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa

from storage_core.errors import LogClosedError, LogForkedError
from tests.faults.forked import in_child
from tests.faults.transaction_ledger import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    LedgerFile,
    Rows,
    judge,
)
from tests.faults.transaction_reader import LEDGER, LOGS, OWN_WAYS, Reader, pausing_filesystem, rows_of
from tests.faults.transactional_life import TransactionalLife

_PRODUCERS = (1, 2, 3)


def plain(life: TransactionalLife, rng: random.Random) -> None:
    life.plain(*_sizes(rng), flush=rng.random() < 0.2)


def begin_or_append(life: TransactionalLife, rng: random.Random) -> None:
    """Append to a producer's transaction, which begins with its first rows."""
    producer_id = rng.choice(_PRODUCERS)
    unit = next((unit for unit, each in life.transactions.items() if each.producer_id == producer_id), None)
    life.append(life.begin(producer_id) if unit is None else unit, *_sizes(rng))


def end(life: TransactionalLife, rng: random.Random) -> None:
    """Commit or abort a transaction; most abort, because it is their rows that must stay hidden."""
    if life.transactions:
        ending = life.commit if rng.random() < 0.4 else life.abort
        ending(rng.choice(sorted(life.transactions)), flush=rng.random() < 0.3)


def roll(life: TransactionalLife, rng: random.Random) -> None:
    life.roll()


def checkpoint(life: TransactionalLife, rng: random.Random) -> None:
    life.log.flush()
    life.checkpoint()


def close_and_open(life: TransactionalLife, rng: random.Random) -> None:
    """Transactions stay open until they are settled. Often one is aborted in a new segment right afterwards."""
    if rng.random() < 0.5:
        life.roll()
    life.close()
    # Lets a reader start while everything is closed.
    time.sleep(rng.random() * 0.02)
    life.open(rng.choice(("tail", "kafka")))
    life.settle()
    if rng.random() < 0.7:
        unit = life.begin(rng.choice(_PRODUCERS))
        life.append(unit, *_sizes(rng))
        life.abort(unit)


def truncate(life: TransactionalLife, rng: random.Random) -> None:
    """Truncate the end of the log, sometimes inside a batch. Markers go, too."""
    offset = max(0, life.log.log_end_offset - rng.choice((1, 3, 8, 20, 60)))
    life.truncate_to(offset, is_commit=lambda: rng.random() < 0.4)


def fork(life: TransactionalLife, rng: random.Random) -> None:
    """Let a forked child try every operation that changes the log: each is refused, and reads work."""
    # Arrow's locks would hang the child if another thread were reading during the fork.
    with life.reading:
        begin, before = life.ledger.moment(), _contents(life.root)
        taken, rows = in_child(partial(_change_and_read, life))
        assert not taken, f"a forked process was allowed to {taken}"
        assert _contents(life.root) == before, "a forked process has changed files"
    for level, found in rows.items():
        wrong = judge(found, life.ledger, begin, level, may_miss_what_is_new=level == READ_COMMITTED)
        assert not wrong, f"a forked process, {level}: {wrong}"


def _change_and_read(life: TransactionalLife) -> tuple[list[str], dict[str, Rows]]:
    """Try every forbidden operation in a child, then read. Return the operations that succeeded, and the rows."""
    log, logs, rows = life.log, life.logs, pa.table({"value": [b"0:0:of a child"]})
    changes: dict[str, Callable[[], object]] = {
        "append": lambda: log.append(rows),
        "flush": log.flush,
        "roll": log.roll,
        "truncate_to": lambda: log.truncate_to(1),
        "truncate_fully_and_start_at": lambda: log.truncate_fully_and_start_at(1000),
        "delete_records": lambda: log.delete_records(-1),
        "begin a transaction": lambda: log.transaction(_PRODUCERS[0]),
        "close the log": log.close,
        "checkpoint": logs.checkpoint,
        "close": logs.close,
    }
    for unit, transaction in life.transactions.items():
        changes |= {
            f"append to {unit}": partial(transaction.append, rows),
            f"commit {unit}": transaction.commit,
        }
    taken = []
    for name, change in changes.items():
        with contextlib.suppress(LogForkedError):
            change()
            taken.append(name)
    with logs:
        pass
    return taken, {
        level: [row for batch in OWN_WAYS["its own log"](log, level) for row in rows_of(batch)]
        for level in (READ_COMMITTED, READ_UNCOMMITTED)
    }


def _contents(root: str) -> dict[str, bytes]:
    files = (Path(folder, name) for folder, _, names in os.walk(root) for name in names)
    return {str(file.relative_to(root)): file.read_bytes() for file in files}


STEPS: dict[Callable[[TransactionalLife, random.Random], None], int] = {
    plain: 3,
    begin_or_append: 8,
    end: 6,
    roll: 2,
    checkpoint: 2,
    close_and_open: 4,
    truncate: 3,
    fork: 1,
}


def _sizes(rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.choice((0, 10, 60, 300)) for _ in range(rng.randint(1, 4)))


class ReadingBeside:
    """A thread that reads the log in the writer's process.

    Args:
        folder: Holds the log directory and the ledger.
        rng: For the thread alone.
        life: The owner of the log, once it is open.
    """

    def __init__(self, folder: Path, rng: random.Random, life: TransactionalLife) -> None:
        self.life = life
        self.reads: collections.deque[str] = collections.deque()
        self.reader = Reader(folder, rng, lambda: life.log)
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with _reporting_errors():
            while True:
                try:
                    with self.life.reading:
                        self.reads.append(self.reader.read())
                except LogClosedError:
                    pass
                # Gives the lock to a waiting thread.
                time.sleep(0.001)


def transact_forever(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    shared = LedgerFile(folder / LEDGER)
    ledger = shared.catch_up()
    life = TransactionalLife(
        pausing_filesystem(lambda path: stop_seconds(path)),  # noqa: PLW0108  (is defined below)
        str(folder / LOGS),
        ledger,
        note=shared.append,
        first_unit=max(ledger.now(), default=0),
    )
    beside = ReadingBeside(folder, random.Random(seed + 1), life)
    stops = random.Random(seed + 2)

    def stop_seconds(path: str) -> float:
        if threading.current_thread() is beside.thread:
            return beside.reader.stop_seconds()
        # Lets a reader see a half-done truncation, or a kill interrupt it.
        return stops.random() * 0.02 if ledger.is_truncating and stops.random() < 0.2 else 0.0

    life.open(rng.choice(("tail", "kafka")))
    life.settle()
    beside.thread.start()
    _say("begun")
    while True:
        (step,) = rng.choices(list(STEPS), list(STEPS.values()))
        step(life, rng)
        _say("\t".join([step.__name__, *(beside.reads.popleft() for _ in range(len(beside.reads)))]))


@contextlib.contextmanager
def _reporting_errors() -> Iterator[None]:
    try:
        yield
    except BaseException:  # noqa: BLE001  (told)
        _say(f"wrong in the process that writes: {traceback.format_exc()!r}")
        # The test expects a killed process.
        os.kill(os.getpid(), signal.SIGKILL)


def _say(text: str) -> None:
    os.write(1, text.encode() + b"\n")


def main() -> None:
    _say("ready")
    where, number = sys.stdin.readline().rsplit(maxsplit=1)
    with _reporting_errors():
        transact_forever(Path(where), int(number))
