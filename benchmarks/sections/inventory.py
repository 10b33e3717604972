"""`segmentlog inventory` of very many segments, from the start of its process to the end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import Finding, SectionResult, at_most
from benchmarks.scratch import new_directory
from benchmarks.settings import CHECKOUT, Settings
from benchmarks.timing import spread

_SEGMENTS = 100_000
_PARTITIONS = 100
_SEGMENTS_OF_ONE = "one partition"
_SEGMENTS_OF_MANY = f"{_PARTITIONS} partitions"

_METHOD = f"""\
`segmentlog inventory ROOT --output json` as a process of its own, Python's start included: wall-clock time, and the
largest resident memory as the kernel counts it. {_SEGMENTS:,} segments of three one-record batches, each with offset
index and time index, without a clean-shutdown marker, so that the end of each log is looked up. Beside it, in the same
rounds, `du -s`, which only adds up sizes. Directory entries and files are in the system's cache."""


def run(settings: Settings) -> SectionResult:
    """Measure the command."""
    segments = settings.scaled(_SEGMENTS)
    findings: list[Finding] = []
    raw: dict[str, Any] = {}
    scratch = new_directory(settings.scratch_directory, "inventory")
    roots = {_SEGMENTS_OF_MANY: scratch / "many", _SEGMENTS_OF_ONE: scratch / "one"}
    _make_root(roots[_SEGMENTS_OF_MANY], _PARTITIONS, segments // _PARTITIONS)
    _make_root(roots[_SEGMENTS_OF_ONE], 1, segments)
    for name, root in roots.items():
        subject = f"{segments:,} segments in {name}"
        inventory = [sys.executable, "-m", "storage_core.cli", "inventory", str(root), "--output", "json"]
        rounds = [(_run(inventory), _run(["du", "-s", str(root)])) for _ in range(settings.repetitions + 1)][
            1:
        ]
        seconds = [own[0] for own, _ in rounds]
        memory_mb = [own[1] / 1e6 for own, _ in rounds]
        du_seconds = [du[0] for _, du in rounds]
        raw[subject] = {"seconds": seconds, "memory, MB": memory_mb, "du, seconds": du_seconds}
        findings += [
            Finding("inventory", subject, spread(seconds), "s", at_most(10)),
            Finding("largest resident memory", subject, spread(memory_mb), "MB", at_most(300)),
            Finding("du -s", subject, spread(du_seconds), "s"),
        ]
    return SectionResult("inventory", "Inventory", _METHOD, tuple(findings), raw)


def _make_root(root: Path, partitions: int, segments: int) -> None:
    from benchmarks.synthetic import write_tiny_segments

    for partition in range(partitions):
        write_tiny_segments(root / f"events-{partition}", segments)
    (root / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=benchmark\n", encoding="utf-8")


def _run(command: Sequence[str]) -> tuple[float, int]:
    """Run a process; its seconds, and its largest resident memory in bytes."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=CHECKOUT)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}.")
    # Linux counts in KiB, macOS in bytes.
    return seconds, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
