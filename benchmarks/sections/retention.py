"""Retention over very many segments: of one log, and of many."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.one_core import run_on_one_core
from benchmarks.progress import tell
from benchmarks.records import FIRST_TIMESTAMP_MS
from benchmarks.results import Finding, SectionResult, Target, at_most
from benchmarks.scratch import new_directory
from benchmarks.settings import Settings
from benchmarks.timing import spread
from benchmarks.writing.directories import TOPIC, make_topic, settle

if TYPE_CHECKING:
    from storage_core import LogDirectory

_SEGMENTS = 100_000
_MANY_LOGS = 100
_BATCHES_PER_SEGMENT = 2
_SEGMENTS_APART_MS = 1_000
_PART_DUE = 100
_RETENTION_MS = 604_800_000
# Longer than the section takes: nothing is removed meanwhile.
_DELETE_DELAY_MS = 3_600_000

_METHOD = f"""\
Segments of {_BATCHES_PER_SEGMENT} one-record batches with offset index and time index, {_SEGMENTS_APART_MS / 1000:.0f} s
apart, written by the benchmark into logs that `LogDirectory` made. Retention by time and by size, of which only the
first is ever exceeded. The time is that of `LogDirectory.apply_retention` with the directory open: when *nothing is
due*; when a hundredth of the segments is; then when *everything is due*, so that each log begins anew with an empty
segment. Files are renamed, and their removal follows after `file.delete.delay.ms`. *Bare renames* gives all files that
were renamed yet another name, with `os.rename` alone. One core, directory entries in the system's cache; `sync` runs
before, outside of the time. *Log files opened* are counted by Python's audit events, the new segments' among them. What
removes segments has one round."""


@dataclass(frozen=True, slots=True)
class _Step:
    """How long each of some looks at the logs took, and how many log files were opened for all of them."""

    seconds: tuple[float, ...]
    logs_opened: int


def run(settings: Settings) -> SectionResult:
    """Measure one log and many."""
    segments = settings.scaled(_SEGMENTS)
    findings: list[Finding] = []
    raw: dict[str, Any] = {}
    for logs in (1, _MANY_LOGS):
        tell(f"retention, {segments:,} segments, logs: {logs}")
        scratch = new_directory(settings.scratch_directory, "retention")
        steps, renaming_s = run_on_one_core(
            _measure, scratch / "logs", logs, segments // logs, settings.repetitions
        )
        subject = f"{segments:,} segments in {logs} log{'s'[: logs - 1]}"
        findings += [_finding(name, subject, step, at_most(2)) for name, step in steps.items()]
        findings.append(Finding("bare renames", subject, spread([renaming_s]), "s"))
        raw[subject] = {
            **{f"{name}, s": step.seconds for name, step in steps.items()},
            "bare renames, s": renaming_s,
        }
    return SectionResult("retention", "Retention over many segments", _METHOD, tuple(findings), raw)


def _finding(name: str, subject: str, step: _Step, target: Target) -> Finding:
    return Finding(
        name, subject, spread(step.seconds), "s", target, f"log files opened: {step.logs_opened:,}"
    )


def _measure(root: Path, logs: int, segments: int, rounds: int) -> tuple[dict[str, _Step], float]:
    """Return what each step took, and bare renames of as many files. Runs in a process of its own."""
    from storage_core import LogConfig, LogDirectory

    _make_logs(root, logs, segments)
    config = LogConfig(
        retention_ms=_RETENTION_MS, retention_bytes=1 << 50, file_delete_delay_ms=_DELETE_DELAY_MS
    )
    some = max(segments // _PART_DUE, 1)
    count_opened = _counting_opened_logs()
    with LogDirectory.open(root, config=config) as directory:
        steps = {
            "nothing is due": _step(directory, 0, 0, rounds, count_opened),
            "a hundredth is due": _step(directory, some, logs * some, 1, count_opened),
            "everything is due": _step(directory, segments, logs * (segments - some), 1, count_opened),
        }
        settle()
        renaming_s = _rename_all(root)
    return steps, renaming_s


def _make_logs(root: Path, logs: int, segments: int) -> None:
    from benchmarks.synthetic import write_tiny_segments

    make_topic(root, logs)
    # They say that the logs are empty; without them a log reaches as far as its files.
    for checkpoint in root.glob("*-checkpoint"):
        checkpoint.unlink()
    for partition in range(logs):
        write_tiny_segments(
            root / f"{TOPIC}-{partition}",
            segments,
            batches_per_segment=_BATCHES_PER_SEGMENT,
            milliseconds_apart=_SEGMENTS_APART_MS,
            exist_ok=True,
        )


def _step(
    directory: LogDirectory, due: int, expected: int, rounds: int, count_opened: Callable[[], int]
) -> _Step:
    """Apply retention at the moment at which this many segments of each log are too old."""
    now_ms = FIRST_TIMESTAMP_MS + _RETENTION_MS + due * _SEGMENTS_APART_MS
    opened_before = count_opened()
    seconds = []
    for _ in range(rounds):
        settle()
        started = time.perf_counter()
        removed = directory.apply_retention(now_ms)
        seconds.append(time.perf_counter() - started)
        found = sum(map(len, removed.values()))
        if found != expected:
            raise RuntimeError(f"Expected {expected} segments to be removed, found {found}.")
    return _Step(tuple(seconds), count_opened() - opened_before)


def _rename_all(root: Path) -> float:
    names = [str(path) for path in root.glob("*/*.deleted")]
    started = time.perf_counter()
    for name in names:
        os.rename(name, f"{name}.again")
    return time.perf_counter() - started


def _counting_opened_logs() -> Callable[[], int]:
    """Count the log files that this process opens from now on; the function tells how many there were."""
    count = 0

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event == "open" and isinstance(arguments[0], str) and arguments[0].endswith(".log"):
            count += 1

    sys.addaudithook(hear)
    return lambda: count
