"""What the commit takes of a job whose pieces are large: they become segments by a link."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.peers.timed_segmentlog import FORMAT_NAME, TIMES_OPTION
from benchmarks.progress import tell
from benchmarks.results import Finding, at_most
from benchmarks.scratch import give_back_space, new_directory
from benchmarks.settings import Settings
from benchmarks.spark.session import SparkProcess, WriteJob
from benchmarks.timing import spread
from benchmarks.writing.directories import TOPIC, rows_in, settle
from benchmarks.writing.rows import frame_of

LARGE_VALUE_BYTES = 1000

_JOB_BYTES = 1 << 30
_PARTITIONS = 4


def measure_large_pieces(
    settings: Settings,
    master: str,
    bootstrap_servers: str,  # noqa: ARG001  (as the other parts are called)
    ours: SparkProcess,
    kafka: SparkProcess,  # noqa: ARG001
) -> tuple[list[Finding], dict[str, Any]]:
    """Measure the commit's share of each write, the first of which is not counted."""
    tell("write 1 GiB")
    rows = settings.scaled(_JOB_BYTES // LARGE_VALUE_BYTES)
    times: dict[str, list[tuple[float, float]]] = {"commit": [], "none": []}
    segments = 0
    scratch = new_directory(settings.scratch_directory, "large")
    for round_number in range(settings.repetitions + 1):
        for flush, measured in times.items():
            root = new_directory(scratch, flush)
            both = _write(ours, root, rows, flush)
            segments = len(list(root.glob("*/*.log")))
            give_back_space(root)
            if round_number:
                measured.append(both)
    subject = f"{master}, {rows * LARGE_VALUE_BYTES / 2**30:.2f} GiB, {segments} segments in {_PARTITIONS} partitions"
    findings = [
        Finding(
            f"the commit's share of a job in large pieces, flush={flush}",
            subject,
            spread([100 * commit / whole for commit, whole in both]),
            "%",
            at_most(5),
            f"{spread([commit for commit, _ in both]).median:.3f} of "
            f"{spread([whole for _, whole in both]).median:.2f} s",
        )
        for flush, both in times.items()
    ]
    return findings, {f"flush={flush}, commit and whole, s": both for flush, both in times.items()}


def _write(session: SparkProcess, root: Path, rows: int, flush: str) -> tuple[float, float]:
    """Seconds of the commit, and of the whole write."""
    times = root.with_name(f"{root.name}.times")
    options = {"topic": TOPIC, "partitions": str(_PARTITIONS), "flush": flush, TIMES_OPTION: str(times)}
    settle()
    whole = session.run(
        WriteJob(FORMAT_NAME, frame_of(rows, value_bytes=LARGE_VALUE_BYTES), options, str(root))
    )
    found = rows_in(root)
    if found != rows:
        raise RuntimeError(f"Expected {rows} rows, found {found}.")
    return float(times.read_text(encoding="utf-8")), whole
