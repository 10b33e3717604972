"""Opening a log directory: after a crash, and after a clean stop with very many segments."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.one_core import run_on_one_core
from benchmarks.progress import tell
from benchmarks.records import FIRST_TIMESTAMP_MS
from benchmarks.results import Finding, SectionResult, at_least, at_most
from benchmarks.scratch import new_directory
from benchmarks.settings import Settings
from benchmarks.timing import spread

if TYPE_CHECKING:
    import pyarrow as pa

_RECORDS = 8_000_000
_RECORDS_AT_ONCE = 500_000
_VALUE_SIZE_BYTES = 100
_BATCH_SIZE_BYTES = 16_384
_SEGMENTS = 10_000
_CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
_RECOVERY_POINTS = "recovery-point-offset-checkpoint"
_INDEX_SUFFIXES = (".index", ".timeindex")

_METHOD = f"""\
One process bound to one core; files in the page cache, written by `Log.append`. *Recovery* opens a log of
{_RECORDS:,} records of {_VALUE_SIZE_BYTES} B in batches of {_BATCH_SIZE_BYTES} B without its clean-shutdown marker,
recovery points and indexes: every CRC is checked, every index made anew. *Opening* takes a directory of one partition
that was closed cleanly. Both are `LogDirectory.open`, without what closing takes."""


def run(settings: Settings) -> SectionResult:
    """Measure recovery and opening."""
    findings: list[Finding] = []
    raw: dict[str, Any] = {}
    count, segments = settings.scaled(_RECORDS), settings.scaled(_SEGMENTS)
    scratch = new_directory(settings.scratch_directory, "recovery")
    tell("recovery of one log")
    size_bytes, seconds = run_on_one_core(_measure_recovery, scratch / "crashed", count, settings.repetitions)
    raw["recovery, s"] = seconds
    rates = [size_bytes / each / 1e9 for each in seconds]
    subject = f"{size_bytes / 1e6:,.0f} MB"
    findings.append(Finding("recovery", subject, spread(rates), "GB/s", at_least(1)))
    tell("opening of many segments")
    seconds = run_on_one_core(_measure_opening, scratch / "clean", segments, settings.repetitions)
    raw["opening, s"] = seconds
    findings.append(Finding("opening", f"{segments:,} segments", spread(seconds), "s", at_most(1)))
    return SectionResult("recovery", "Opening a log directory", _METHOD, tuple(findings), raw)


def _measure_recovery(root: Path, count: int, rounds: int) -> tuple[int, list[float]]:
    """Size of the log, and how long each recovery took. Runs in a process of its own."""
    from storage_core import LogConfig, LogDirectory

    config = LogConfig(batch_size=_BATCH_SIZE_BYTES)
    with LogDirectory.open(root, config=config) as logs:
        log = logs.create("events")
        for start in range(0, count, _RECORDS_AT_ONCE):
            log.append(_table(start, min(_RECORDS_AT_ONCE, count - start)))
    size_bytes = sum(path.stat().st_size for path in root.glob("*/*.log"))

    def crash() -> None:
        for name in (_CLEAN_SHUTDOWN_FILE, _RECOVERY_POINTS):
            (root / name).unlink(missing_ok=True)
        for suffix in _INDEX_SUFFIXES:
            for path in root.glob(f"*/*{suffix}"):
                path.unlink()

    return size_bytes, _time_opening(root, count, rounds, crash)


def _measure_opening(root: Path, segments: int, rounds: int) -> list[float]:
    """Return how long each opening took. Runs in a process of its own."""
    from benchmarks.unflushed import UnflushedFileSystem
    from storage_core import LogConfig, LogDirectory

    records = _table(0, 1)
    with LogDirectory.open(root, config=LogConfig(), filesystem=UnflushedFileSystem()) as logs:
        log = logs.create("events")
        for _ in range(segments - 1):
            log.append(records)
            log.roll()
        log.append(records)
    found = sum(name.endswith(".log") for name in os.listdir(root / "events-0"))
    if found != segments:
        raise RuntimeError(f"Expected {segments} segments, found {found}.")
    return _time_opening(root, segments, rounds, lambda: None)


def _time_opening(root: Path, count: int, rounds: int, prepare: Callable[[], None]) -> list[float]:
    from storage_core import LogDirectory

    seconds = []
    for round_number in range(rounds + 1):
        prepare()
        started = time.perf_counter()
        logs = LogDirectory.open(root)
        taken = time.perf_counter() - started
        with logs:
            found = logs.get("events").log_end_offset
        if found != count:
            raise RuntimeError(f"Expected {count} records, found {found}.")
        if round_number:
            seconds.append(taken)
    return seconds


def _table(start: int, count: int) -> pa.Table:
    import pyarrow as pa

    values = pa.array([b"%0*d" % (_VALUE_SIZE_BYTES, number) for number in range(start, start + count)])
    times = pa.array(range(FIRST_TIMESTAMP_MS + start, FIRST_TIMESTAMP_MS + start + count), pa.int64())
    return pa.table({"value": values, "timestamp": times})
