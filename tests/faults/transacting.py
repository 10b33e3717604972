"""A process that transacts in a log until it is killed, and notes in a ledger what a reader may make of it.

Started as ``python -m tests.faults.transacting``. It reads a line ``<folder> <seed>``, goes on with the log directory
``<folder>/logs`` and the ledger ``<folder>/ledger``, and writes a line to stdout for each step that it has done.

`STEPS` is what it does: each is a function of the life and a source of chance, with a weight. Whoever adds one notes in
the ledger, before and after, what it means for readers.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from storage_core.filesystem import FileSystem
from tests.faults.transaction_ledger import LedgerFile
from tests.faults.transactional_life import TransactionalLife

__all__ = ["LEDGER", "LOGS", "STEPS"]

LOGS = "logs"
LEDGER = "ledger"
_PRODUCERS = (1, 2, 3)


def plain(life: TransactionalLife, rng: random.Random) -> None:
    life.plain(*_sizes(rng), flush=rng.random() < 0.2)


def begin_or_append(life: TransactionalLife, rng: random.Random) -> None:
    """Append to a producer's transaction; it begins with its first rows."""
    producer_id = rng.choice(_PRODUCERS)
    unit = next((unit for unit, each in life.transactions.items() if each.producer_id == producer_id), None)
    life.append(life.begin(producer_id) if unit is None else unit, *_sizes(rng))


def end(life: TransactionalLife, rng: random.Random) -> None:
    """Commit or abort a transaction; most of them are aborted, because it is their rows that must not be seen."""
    if life.transactions:
        ending = life.commit if rng.random() < 0.4 else life.abort
        ending(rng.choice(sorted(life.transactions)), flush=rng.random() < 0.3)


def roll(life: TransactionalLife, rng: random.Random) -> None:
    life.roll()


def checkpoint(life: TransactionalLife, rng: random.Random) -> None:
    life.log.flush()
    life.checkpoint()


def close_and_open(life: TransactionalLife, rng: random.Random) -> None:
    """Transactions stay open over it, until they are settled. Often one is aborted in a new segment right behind it."""
    if rng.random() < 0.5:
        life.roll()
    life.close()
    # So that a reader begins when all is closed.
    time.sleep(rng.random() * 0.02)
    life.open(rng.choice(("tail", "kafka")))
    life.settle()
    if rng.random() < 0.7:
        unit = life.begin(rng.choice(_PRODUCERS))
        life.append(unit, *_sizes(rng))
        life.abort(unit)


STEPS: dict[Callable[[TransactionalLife, random.Random], None], int] = {
    plain: 3,
    begin_or_append: 8,
    end: 6,
    roll: 2,
    checkpoint: 2,
    close_and_open: 4,
}


def _sizes(rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.choice((0, 10, 60, 300)) for _ in range(rng.randint(1, 4)))


def transact_for_ever(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    shared = LedgerFile(folder / LEDGER)
    ledger = shared.catch_up()
    life = TransactionalLife(
        FileSystem(),
        str(folder / LOGS),
        ledger,
        note=shared.append,
        first_unit=max(ledger.now(), default=0),
    )
    life.open(rng.choice(("tail", "kafka")))
    life.settle()
    _say("begun")
    while True:
        (step,) = rng.choices(list(STEPS), list(STEPS.values()))
        step(life, rng)
        _say(step.__name__)


def _say(text: str) -> None:
    os.write(1, text.encode() + b"\n")


if __name__ == "__main__":
    _say("ready")
    where, number = sys.stdin.readline().rsplit(maxsplit=1)
    transact_for_ever(Path(where), int(number))
