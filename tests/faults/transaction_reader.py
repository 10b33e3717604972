"""A process that reads logs beside the one that writes them, and judges each read by their ledger.

Started as ``python -m tests.faults.transaction_reader``. It reads a line ``<folder> <seed>``, and then, again and again, the
log whose folder stands in ``<folder>/current``. It writes a line to stdout for each read that was right,
``<isolation level> <way>``, and ends with the first that was wrong: ``wrong <what>``.

`WAYS` is how it reads: each is a function of a file system, the log directory and the isolation level.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage_core import LogDirectory, read_table
from storage_core.errors import DataLossError
from storage_core.filesystem import DirectoryEntry, FileStatus, FileSystem, OpenFile
from storage_core.scan import parse_read_options, plan_scan, project, read_task, record_schema
from tests.faults.session import TOPIC
from tests.faults.transacting import LEDGER, LOGS
from tests.faults.transaction_ledger import READ_COMMITTED, READ_UNCOMMITTED, LedgerFile, Rows, problems

__all__ = ["CURRENT", "WAYS", "Dawdling"]

CURRENT = "current"
_COLUMNS = ("offset", "value")


class Dawdling(FileSystem):
    """The real file system, read by somebody who stops in the middle now and then.

    Args:
        stop_seconds: Says how long to stop in front of a look at a path.
    """

    def __init__(self, stop_seconds: Callable[[str], float]) -> None:
        super().__init__()
        self._stop_seconds = stop_seconds

    def walk_directory(self, path: str) -> Iterator[DirectoryEntry]:
        self._dawdle(path)
        return super().walk_directory(path)

    def status(self, path: str, *, follow_symlinks: bool = False) -> FileStatus | None:
        self._dawdle(path)
        return super().status(path, follow_symlinks=follow_symlinks)

    def open(self, path: str) -> OpenFile:
        self._dawdle(path)
        return super().open(path)

    def _dawdle(self, path: str) -> None:
        seconds = self._stop_seconds(path)
        if seconds:
            time.sleep(seconds)


def in_one(filesystem: FileSystem, root: str, level: str, **options: object) -> Rows:
    table = read_table(root, filesystem=filesystem, columns=_COLUMNS, isolation_level=level, **options)
    return _rows(table.to_batches())


def planned_and_read_later(filesystem: FileSystem, root: str, level: str) -> Rows:
    options: dict[str, Any] = {"path": root, "isolation_level": level, "max_records_per_partition": 20}
    plan = plan_scan(filesystem, parse_read_options(options))
    time.sleep(0.02)
    schema = project(record_schema(), _COLUMNS)
    return _rows(batch for task in plan.tasks for batch in read_task(filesystem, task, schema))


def open_log(filesystem: FileSystem, root: str, level: str) -> Rows:
    with LogDirectory.open(root, read_only=True, filesystem=filesystem) as logs:
        return _rows(logs.get(TOPIC).read(columns=list(_COLUMNS), isolation_level=level))


def _rows(batches: Iterable[pa.RecordBatch]) -> Rows:
    return [
        row for batch in batches for row in zip(*(batch[name].to_pylist() for name in _COLUMNS), strict=True)
    ]


WAYS: dict[str, Callable[[FileSystem, str, str], Rows]] = {
    "in one": in_one,
    "without indexes": partial(in_one, use_indexes=False),
    "in pieces": partial(in_one, max_records_per_partition=3),
    "by a condition": partial(in_one, where="timestamp > '1970-01-01T00:00:00Z'"),
    "PERMISSIVE": partial(in_one, mode="PERMISSIVE"),
    "planned and read later": planned_and_read_later,
    "an open log": open_log,
}


def read_for_ever(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    current, shared = None, LedgerFile("")
    while True:
        now = (folder / CURRENT).read_text(encoding="utf-8")
        if now != current:
            current, shared = now, LedgerFile(Path(now) / LEDGER)
        # What reads with indexes can be wrong in more ways.
        way = rng.choice(("in one", *WAYS))
        level = rng.choice((READ_COMMITTED, READ_COMMITTED, READ_UNCOMMITTED))
        before = shared.catch_up().now()
        try:
            rows = WAYS[way](Dawdling(lambda _: _stop_seconds(rng)), str(Path(now) / LOGS), level)
        except DataLossError:
            # The log directory was opened or closed at each of ten looks. It says so, and nothing was returned.
            _say(f"again {way}")
            continue
        after = shared.catch_up().now()
        if way == "an open log" and level == READ_COMMITTED:
            # Its end is below the checkpointed high watermark: it may miss what is new.
            before = {}
        found = problems(rows, before, after, level)
        if found:
            _say(f"wrong {way}, {level}, seed {seed}, {now}: {found}")
            return
        _say(f"{level} {way}")


def _stop_seconds(rng: random.Random) -> float:
    return rng.random() * 0.04 if rng.random() < 0.02 else 0.0


def _say(text: str) -> None:
    os.write(1, text.encode() + b"\n")


if __name__ == "__main__":
    _say("ready")
    where, number = sys.stdin.readline().rsplit(maxsplit=1)
    read_for_ever(Path(where), int(number))
