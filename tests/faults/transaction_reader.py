"""A reader next to the process that writes the log; the ledger judges each read.

As a separate process, a fork of `killed_process` calls `main`. It reads a line ``<folder> <seed>``, and then
repeatedly reads the log whose folder is named in ``<folder>/current``. For each correct read it prints
``<isolation level> <way>``, or ``truncated <way>`` if the read reported a truncation. The first wrong read ends it
with ``wrong <what>``.

`WAYS` lists the ways to read: functions of a file system, the log directory and the isolation level. `OWN_WAYS` lists
the ways in which the writing process reads its own log.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage_core import Log, LogDirectory, read_table
from storage_core.errors import LogClosedError, LogTruncationError, SegmentLogError
from storage_core.filesystem import FileSystem
from storage_core.scan import parse_read_options, plan_scan, project, read_task, record_schema
from tests.faults.observed_filesystem import ObservedFileSystem
from tests.faults.session import TOPIC
from tests.faults.transaction_ledger import READ_COMMITTED, READ_UNCOMMITTED, LedgerFile, Rows, judge

CURRENT = "current"
LOGS = "logs"
LEDGER = "ledger"
_COLUMNS = ["offset", "value"]
# It may pause before these calls.
_STOPS = frozenset({"walk_directory", "status", "open", "open_for_writing", "rename"})

Batches = Iterable[pa.RecordBatch]


def pausing_filesystem(stop_seconds: Callable[[str], float]) -> FileSystem:
    """Return the real file system with occasional pauses during reads.

    Args:
        stop_seconds: Returns how long to pause before a call on a path.
    """

    def tell(call: str) -> None:
        name, _, path = call.partition(" ")
        if name in _STOPS and (seconds := stop_seconds(path)):
            time.sleep(seconds)

    filesystem = ObservedFileSystem()
    filesystem.tell = tell
    return filesystem


def in_one(filesystem: FileSystem, root: str, level: str, **options: object) -> Batches:
    table = read_table(root, filesystem=filesystem, columns=_COLUMNS, isolation_level=level, **options)
    return table.to_batches()


def planned_and_read_later(filesystem: FileSystem, root: str, level: str, **options: object) -> Batches:
    """Plan and read as in Spark: the tasks of a plan go to other processes."""
    options |= {"path": root, "isolation_level": level, "max_records_per_partition": 20}
    plan = plan_scan(filesystem, parse_read_options(options))
    tasks = pickle.dumps(plan.tasks)
    time.sleep(0.02)
    schema = project(record_schema(), _COLUMNS)
    for task in pickle.loads(tasks):
        yield from read_task(filesystem, task, schema)


def open_log(filesystem: FileSystem, root: str, level: str, **options: Any) -> Batches:
    with LogDirectory.open(root, read_only=True, filesystem=filesystem) as logs:
        yield from own_log(logs.get(TOPIC), level, **options)


def own_log(log: Log, level: str, **options: Any) -> Batches:
    return log.read(columns=_COLUMNS, isolation_level=level, **options)


WAYS: dict[str, Callable[[FileSystem, str, str], Batches]] = {
    "in one": in_one,
    "in one, without indexes": partial(in_one, use_indexes=False),
    "in pieces": partial(in_one, max_records_per_partition=3),
    "by a condition": partial(in_one, where="timestamp > '1970-01-01T00:00:00Z'"),
    "PERMISSIVE": partial(in_one, mode="PERMISSIVE"),
    "planned and read later": planned_and_read_later,
    "planned and read later, without indexes": partial(planned_and_read_later, use_indexes=False),
    "an open log": open_log,
    "an open log, without indexes": partial(open_log, use_indexes=False),
}
OWN_WAYS: dict[str, Callable[[Log, str], Batches]] = {
    "its own log": own_log,
    "its own log, without indexes": partial(own_log, use_indexes=False),
}


def rows_of(batch: pa.RecordBatch) -> Rows:
    return list(zip(*(batch[name].to_pylist() for name in _COLUMNS), strict=True))


class Reader:
    """Reads the log of a folder and judges the result.

    Args:
        folder: Holds the log directory and the ledger.
        rng: Chooses the time and the way of each read, and its pauses.
        log: The log, for the process that has opened it for writing.
    """

    def __init__(self, folder: Path, rng: random.Random, log: Callable[[], Log] | None = None) -> None:
        self._root = str(folder / LOGS)
        self._shared = LedgerFile(folder / LEDGER)
        self._rng = rng
        self._filesystem = pausing_filesystem(lambda _: self.stop_seconds())
        self._log = log
        self._ways = tuple(WAYS) if log is None else (*WAYS, *(tuple(OWN_WAYS) * 6))

    def stop_seconds(self) -> float:
        """Return how long to pause before a call; usually not at all."""
        return self._rng.random() * 0.04 if self._rng.random() < 0.02 else 0.0

    def read(self) -> str:
        """Read once and return the outcome.

        Raises:
            AssertionError: The read was wrong.
            LogClosedError: The log was closed.
        """
        # Reads with indexes can go wrong in more ways.
        way = self._rng.choice(("in one", *self._ways))
        level = self._rng.choice((READ_COMMITTED, READ_COMMITTED, READ_UNCOMMITTED))
        begin = self._shared.catch_up().moment()
        rows: Rows = []
        error = None
        try:
            for batch in self._batches(way, level):
                rows += rows_of(batch)
                time.sleep(self.stop_seconds())
        except LogClosedError:
            raise
        except SegmentLogError as caught:
            error = caught
        # The committed rows of an open log end at the checkpointed high watermark.
        is_behind = way.startswith("an open log") and level == READ_COMMITTED
        wrong = judge(rows, self._shared.catch_up(), begin, level, error, may_miss_what_is_new=is_behind)
        assert not wrong, f"{way}, {level}, {self._root}: {wrong}"
        if error is None:
            return f"{level} {way}"
        return f"truncated {way}" if isinstance(error, LogTruncationError) else f"again {way}"

    def _batches(self, way: str, level: str) -> Batches:
        if way in OWN_WAYS:
            assert self._log is not None
            return OWN_WAYS[way](self._log(), level)
        return WAYS[way](self._filesystem, self._root, level)


def read_forever(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    current = reader = None
    while True:
        now = (folder / CURRENT).read_text(encoding="utf-8")
        if reader is None or now != current:
            current, reader = now, Reader(Path(now), rng)
        try:
            _say(reader.read())
        except AssertionError as error:
            _say(f"wrong, seed {seed}: {error}")
            return


def _say(text: str) -> None:
    os.write(1, text.encode() + b"\n")


def main() -> None:
    _say("ready")
    where, number = sys.stdin.readline().rsplit(maxsplit=1)
    read_forever(Path(where), int(number))
