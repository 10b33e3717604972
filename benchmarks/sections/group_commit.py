"""Many threads that append small records and wait for the disk, compared with one such thread."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.own_process import run_watched
from benchmarks.progress import tell
from benchmarks.records import FIRST_TIMESTAMP_MS
from benchmarks.results import Finding, SectionResult, at_least
from benchmarks.scratch import new_directory
from benchmarks.settings import Settings
from benchmarks.timing import Series, ratio, spread
from benchmarks.writing.directories import TOPIC

_THREADS = 64
_APPENDS_OF_A_THREAD = 300
_APPENDS_ALONE = 1_000
_VALUE_SIZE_BYTES = 100

_METHOD = f"""\
One log. Each thread calls `Log.append(acks="all")` with one record of {_VALUE_SIZE_BYTES} B at a time, and the next only
when that has returned: {_APPENDS_OF_A_THREAD} times each of {_THREADS} threads, {_APPENDS_ALONE:,} times one thread.
*fsyncs* are all calls that the process makes between the first append and the last. At the end every record has an
offset of its own, without a gap."""


@dataclass(frozen=True, slots=True)
class _Run:
    """One round of this many threads."""

    seconds: float
    appends: int
    fsyncs: int


def run(settings: Settings) -> SectionResult:
    """Measure many threads and one, in turn."""
    many: list[_Run] = []
    alone: list[_Run] = []
    tell(f"group commit, {_THREADS} threads and one")
    scratch = new_directory(settings.scratch_directory, "group-commit")
    for number in range(settings.repetitions):
        for runs, threads, appends in (
            (many, _THREADS, settings.scaled(_APPENDS_OF_A_THREAD)),
            (alone, 1, settings.scaled(_APPENDS_ALONE)),
        ):
            root = scratch / f"{threads}-threads-{number}"
            found, _ = run_watched({}, _measure, root, threads, appends)
            runs.append(found)
    subject = f"{_THREADS} threads"
    slow, fast = (Series(tuple(each.seconds for each in runs), runs[0].appends) for runs in (alone, many))
    findings = (
        Finding(
            "appends : fsyncs",
            subject,
            spread([each.appends / each.fsyncs for each in many]),
            "×",
            at_least(20),
            f"{many[0].appends:,} appends in a round",
        ),
        Finding("appends", subject, spread(_rates(many)), "1/s"),
        Finding("appends", "1 thread", spread(_rates(alone)), "1/s"),
        Finding("appends/s, of those of one thread", subject, ratio(slow, fast), "×"),
    )
    raw = {
        name: [{"seconds": each.seconds, "appends": each.appends, "fsyncs": each.fsyncs} for each in runs]
        for name, runs in ((subject, many), ("1 thread", alone))
    }
    return SectionResult("group_commit", "Group commit", _METHOD, findings, raw)


def _rates(runs: list[_Run]) -> list[float]:
    return [each.appends / each.seconds for each in runs]


def _measure(root: Path, threads: int, appends: int) -> _Run:
    """Runs in a process of its own."""
    import pyarrow as pa

    from storage_core import LogDirectory

    record = pa.record_batch(
        {
            "value": pa.array([b"." * _VALUE_SIZE_BYTES], pa.binary()),
            "timestamp": pa.array([FIRST_TIMESTAMP_MS], pa.int64()),
        }
    )
    count_fsyncs = _counting_fsyncs()
    with LogDirectory.open(root) as logs, ThreadPoolExecutor(threads) as pool:
        log = logs.create(TOPIC)
        log.append(record, acks="all")
        everybody_is_there = threading.Barrier(threads + 1)

        def append() -> list[int]:
            everybody_is_there.wait()
            return [log.append(record, acks="all").first_offset for _ in range(appends)]

        offsets = [pool.submit(append) for _ in range(threads)]
        before = count_fsyncs()
        everybody_is_there.wait()
        started = time.perf_counter()
        found = sorted(itertools.chain.from_iterable(each.result() for each in offsets))
        seconds = time.perf_counter() - started
        fsyncs = count_fsyncs() - before
    if found != list(range(1, threads * appends + 1)):
        raise RuntimeError(f"Expected {threads * appends} offsets without a gap, found {len(set(found))}.")
    return _Run(seconds, threads * appends, fsyncs)


def _counting_fsyncs() -> Callable[[], int]:
    """Count this process's fsyncs from now on; the returned function tells how many there were."""
    lock = threading.Lock()
    count = 0

    def counting(flush: Callable[[Any], None]) -> Callable[[Any], None]:
        def counted(descriptor: Any) -> None:
            nonlocal count
            with lock:
                count += 1
            flush(descriptor)

        return counted

    os.fsync, os.fdatasync = counting(os.fsync), counting(os.fdatasync)
    return lambda: count
