"""This version compared with an earlier one: the same reads, in turn, in two processes on one core."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from benchmarks.data_sets import data_sets
from benchmarks.log_files import describe_log_files
from benchmarks.producing import ensure_data_sets
from benchmarks.progress import tell
from benchmarks.results import Finding, SectionResult, at_most
from benchmarks.settings import CHECKOUT, Settings
from benchmarks.timing import Series, Timed, interleave, share

_READS = ("all columns", "offset and timestamp", "1 % of the offsets", "1 % of the time")

_METHOD = """\
The reading half as it was at commit {commit}, and as it is now, in two processes bound to one core, in turn. CPU time of
planning and reading: this version's as a share of the earlier one's, so that more than 1 is slower."""


def run(settings: Settings) -> SectionResult:
    """Measure every data set."""
    log_directory = ensure_data_sets(settings)
    commit = settings.earlier
    if not commit:
        raise ValueError("Expected --earlier COMMIT: what to compare this version with.")
    earlier = _check_out(commit, settings.scratch_directory / "earlier")
    findings: list[Finding] = []
    raw: dict[str, Any] = {}
    with _Worker(CHECKOUT) as present, _Worker(earlier) as past:
        for data_set in data_sets(settings):
            tell(f"earlier {data_set.name}")
            on_disk = describe_log_files(data_set.log_files(log_directory))
            raw[data_set.name] = {"on_disk": on_disk, "series": {}}
            for read in _READS:
                series = _measure(present, past, log_directory, data_set.name, read, settings.repetitions)
                findings.append(_finding(read, data_set.description(), series))
                raw[data_set.name]["series"][read] = {name: one.to_json() for name, one in series.items()}
    return SectionResult(
        "earlier", "Compared with the earlier version", _METHOD.format(commit=commit), tuple(findings), raw
    )


def _measure(
    present: _Worker, past: _Worker, log_directory: Path, topic: str, read: str, rounds: int
) -> dict[str, Series]:
    task = {"path": str(log_directory), "topic": topic, "read": read}
    # More rounds than elsewhere: a few per cent are looked for.
    return interleave(
        {"now": lambda: present.run(task), "then": lambda: past.run(task)},
        warm_up_rounds=1,
        rounds=2 * rounds + 1,
    )


def _finding(read: str, subject: str, series: Mapping[str, Series]) -> Finding:
    now, then = series["now"], series["then"]
    return Finding(
        f"CPU time, now : then, {read}",
        subject,
        share(now, then),
        "×",
        at_most(1.03),
        f"{now.median_s * 1000:.1f} : {then.median_s * 1000:.1f} ms, {now.records:,} rows",
    )


def _check_out(commit: str, directory: Path) -> Path:
    """Put the package of a commit, and nothing else of it, into a directory."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "archive", commit, "storage_core"], cwd=CHECKOUT, capture_output=True, check=True
    )
    subprocess.run(["tar", "-x"], cwd=directory, input=archive.stdout, check=True)
    return directory


class _Worker:
    """A process that reads with the package of one directory; see `benchmarks.earlier_worker`."""

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

    def run(self, task: Mapping[str, str]) -> Timed:
        """Have the worker do one read."""
        answer = self._ask(task)
        return Timed(answer["seconds"], answer["rows"])

    def _ask(self, task: Mapping[str, str]) -> dict[str, Any]:
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
