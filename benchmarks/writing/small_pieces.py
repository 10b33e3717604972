"""How many small pieces a commit publishes a second, without Spark."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.progress import tell
from benchmarks.results import Finding, at_least
from benchmarks.scratch import give_back_space, new_directory
from benchmarks.settings import Settings
from benchmarks.timing import spread
from benchmarks.writing.directories import TOPIC, rows_in, settle
from benchmarks.writing.staged_rows import make_job, new_job_id, routed_rows, stage

ROWS_IN_A_PIECE = 10

_PIECES = 10_000
# How many tasks stage them, and how they are flushed.
_VARIANTS = ((1, "commit"), (1, "none"), (10, "commit"))
# A round takes long: ten thousand partitions are made, twice.
_MOST_ROUNDS = 2


def measure_small_pieces(settings: Settings) -> tuple[list[Finding], dict[str, Any]]:
    """From one task and from several, with and without flushing, into new partitions and then into the same again."""
    pieces = settings.scaled(_PIECES)
    rates: dict[tuple[int, str, str], list[float]] = defaultdict(list)
    scratch = new_directory(settings.scratch_directory, "small")
    for round_number in range(min(settings.repetitions, _MOST_ROUNDS)):
        # In turn the other way round, so that none always follows the same neighbour.
        for tasks, flush in reversed(_VARIANTS) if round_number % 2 else _VARIANTS:
            tell(f"commit of {pieces:,} small pieces, {tasks} task(s), flush={flush}")
            for kind, rate in _commit_twice(new_directory(scratch, "root"), pieces, tasks, flush).items():
                rates[tasks, kind, flush].append(rate)
    findings = [
        Finding(
            f"commit of small pieces into {kind} partitions, flush={flush}",
            f"{pieces:,} pieces of {tasks} task{'s' if tasks > 1 else ''}, {pieces // tasks:,} partitions",
            spread(found),
            "pieces/s",
            at_least(500),
            f"{pieces / spread(found).median:.1f} s",
        )
        for (tasks, kind, flush), found in rates.items()
    ]
    raw = {f"{tasks} tasks, {kind}, flush={flush}": found for (tasks, kind, flush), found in rates.items()}
    return findings, {"small pieces/s": raw}


def _commit_twice(root: Path, pieces: int, tasks: int, flush: str) -> dict[str, float]:
    """Pieces a second of a commit that makes all partitions, and of one that appends to them."""
    from storage_core.filesystem import FileSystem

    filesystem = FileSystem()
    partitions = pieces // tasks
    rows = [list(routed_rows(partitions * ROWS_IN_A_PIECE, partitions)) for _ in range(tasks)]
    is_flushed = flush == "commit"
    rates = {}
    for kind, new_partitions in (("new", {TOPIC: partitions}), ("existing", {})):
        job_id = new_job_id()
        job = make_job(filesystem, root, job_id, new_partitions=new_partitions, flush=is_flushed)
        manifests = [
            stage(filesystem, root, job_id, each, task=task, flush=is_flushed)
            for task, each in enumerate(rows)
        ]
        settle()
        started = time.perf_counter()
        job.commit(manifests)
        rates[kind] = pieces / (time.perf_counter() - started)
    found = rows_in(root)
    if found != 2 * pieces * ROWS_IN_A_PIECE:
        raise RuntimeError(f"Expected {2 * pieces * ROWS_IN_A_PIECE} rows, found {found}.")
    give_back_space(root)
    return rates
