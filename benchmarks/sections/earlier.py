"""This version compared with an earlier one: the same jobs, in turn, in two processes on one core."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from benchmarks.data_sets import data_sets
from benchmarks.producing import ensure_data_sets
from benchmarks.progress import tell
from benchmarks.results import Finding, SectionResult, at_most
from benchmarks.scratch import new_directory
from benchmarks.settings import CHECKOUT, Settings
from benchmarks.synthetic import write_tiny_segments
from benchmarks.timing import Series, Spread, Timed, interleave, share, spread

_READS = ("all columns", "offset and timestamp", "1 % of the offsets", "1 % of the time")

_PLANNED_SEGMENTS = 10_000
_WRITTEN_RECORDS = 1_000_000
_STAGED_PARTITIONS = (1, 100)
_SLOWER_AT_MOST = 1.03

_METHOD = """\
The package as it was at commit {commit}, and as it is now, in two processes bound to one core, in turn. CPU time of this
version as a share of the earlier one's, so that more than 1 is slower. *Reads* are planned and read whole; *append* is
`Log.append` of one table; *staging* is what one Spark task does for a `save()` with `flush=none`, without Spark;
*planning* is `plan_scan` with default options. *Median* is the median over the figures of its kind."""


def run(settings: Settings) -> SectionResult:
    """Measure reads of every data set, append, staging and planning."""
    log_directory = ensure_data_sets(settings)
    commit = settings.earlier
    if not commit:
        raise ValueError("Expected --earlier COMMIT: what to compare this version with.")
    earlier = _check_out(commit, new_directory(settings.scratch_directory, "earlier"))
    findings: list[Finding] = []
    raw: dict[str, Any] = {}

    def add(kind: str, subject: str, tasks: Mapping[str, dict[str, Any]]) -> None:
        shares = {}
        for name, task in tasks.items():
            tell(f"earlier {kind} {name}")
            series = _measure(present, past, task, settings.repetitions)
            shares[name] = share(series["now"], series["then"])
            raw[f"{kind}, {name}"] = {each: one.to_json() for each, one in series.items()}
            findings.append(_finding(kind, name, series, shares[name]))
        median = spread([each.median for each in shares.values()])
        findings.append(
            Finding(f"CPU time, now : then, {kind}, median", subject, median, "×", at_most(_SLOWER_AT_MOST))
        )

    scratch = new_directory(settings.scratch_directory, "now")
    with _Worker(CHECKOUT) as present, _Worker(earlier) as past:
        for read in _READS:
            task = {"job": "read", "path": str(log_directory), "read": read}
            add(
                read,
                "all data sets",
                {each.name: task | {"topic": each.name} for each in data_sets(settings)},
            )
        write = {"path": str(scratch), "records": settings.scaled(_WRITTEN_RECORDS)}
        add("append", f"{write['records']:,} records", {"1 partition": write | {"job": "append"}})
        add(
            "staging",
            f"{write['records']:,} records",
            {
                f"{each} partitions": write | {"job": "stage", "partitions": each}
                for each in _STAGED_PARTITIONS
            },
        )
        segments = settings.scaled(_PLANNED_SEGMENTS)
        write_tiny_segments(scratch / "planned" / "events-0", segments, batches_per_segment=3)
        add(
            "planning",
            f"{segments:,} segments",
            {"1 partition": {"job": "plan", "path": str(scratch / "planned")}},
        )
    return SectionResult(
        "earlier", "Compared with the earlier version", _METHOD.format(commit=commit), tuple(findings), raw
    )


def _measure(present: _Worker, past: _Worker, task: Mapping[str, Any], rounds: int) -> dict[str, Series]:
    # More rounds than elsewhere: a few per cent are looked for.
    return interleave(
        {"now": lambda: present.run(task), "then": lambda: past.run(task)},
        warm_up_rounds=1,
        rounds=2 * rounds + 1,
        peers=["then"],
    )


def _finding(kind: str, subject: str, series: Mapping[str, Series], shares: Spread) -> Finding:
    now, then = series["now"], series["then"]
    return Finding(
        f"CPU time, now : then, {kind}",
        subject,
        shares,
        "×",
        None,
        f"{now.median_s * 1000:.1f} : {then.median_s * 1000:.1f} ms, {now.records:,} records",
    )


def _check_out(commit: str, directory: Path) -> Path:
    """Put the packages of a commit, and nothing else of it, into a directory."""
    archive = subprocess.run(
        ["git", "archive", commit, "storage_core", "spark_segmentlog"],
        cwd=CHECKOUT,
        capture_output=True,
        check=True,
    )
    subprocess.run(["tar", "-x"], cwd=directory, input=archive.stdout, check=True)
    return directory


class _Worker:
    """A process that works with the packages of one directory; see `benchmarks.earlier_worker`."""

    def __init__(self, package_directory: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(package_directory)}
        program = CHECKOUT / "benchmarks" / "earlier_worker.py"
        self._process = subprocess.Popen(
            [sys.executable, str(program)],
            cwd=package_directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        found = Path(self._ask({})["package"]).resolve()
        if package_directory.resolve() not in found.parents:
            raise RuntimeError(f"Expected the package of {package_directory}, found {found}.")

    def run(self, task: Mapping[str, Any]) -> Timed:
        """Have the worker do one job."""
        answer = self._ask(task)
        return Timed(answer["seconds"], answer["records"])

    def _ask(self, task: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
