"""What ``where`` costs, and what it saves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.data_sets import DataSet, data_sets
from benchmarks.log_files import describe_log_files
from benchmarks.one_core import run_on_one_core
from benchmarks.producing import ensure_data_sets
from benchmarks.progress import tell
from benchmarks.results import Finding, SectionResult, at_least
from benchmarks.settings import Settings
from benchmarks.timing import Series, interleave, speed

_UNFILTERED = "unfiltered"
# Keys are ten digits in no order, evenly spread.
_CONDITIONS = {
    "one key": "key = '0000000000'",
    "1 % of the keys": "key < '0100000000'",
    "50 % of the keys": "key < '5000000000'",
    "every key": "key >= '0'",
    "key prefix, 10 %": "key LIKE '7%'",
}

_METHOD = """\
All seven columns of the rows that match a condition on the key, compared with the same read without a condition, on one core
in the same rounds. The figure is the speed: the time without a condition divided by that with it. Every batch is read,
checked and decompressed in both."""


def run(settings: Settings) -> SectionResult:
    """Measure every data set."""
    log_directory = ensure_data_sets(settings)
    findings: list[Finding] = []
    raw: dict[str, Any] = {}
    for data_set in data_sets(settings):
        tell(f"conditions {data_set.name}")
        series = run_on_one_core(_measure, data_set, log_directory, settings.repetitions)
        findings += _findings(data_set, series)
        raw[data_set.name] = {
            "on_disk": describe_log_files(data_set.log_files(log_directory)),
            "series": {name: one.to_json() for name, one in series.items()},
        }
    return SectionResult("conditions", "Reading with a condition", _METHOD, tuple(findings), raw)


def _measure(data_set: DataSet, log_directory: Path, rounds: int) -> dict[str, Series]:
    """Runs in a process of its own."""
    from benchmarks.segmentlog_reading import count_rows
    from storage_core.filesystem import FileSystem

    def read(where: str | None) -> int:
        options = {} if where is None else {"where": where}
        return count_rows(FileSystem(), log_directory, subscribe=data_set.name, **options)

    contenders = {_UNFILTERED: lambda: read(None)}
    for name, where in _CONDITIONS.items():
        contenders[name] = lambda where=where: read(where)
    return interleave(contenders, warm_up_rounds=1, rounds=rounds, peers=[_UNFILTERED])


def _findings(data_set: DataSet, series: Mapping[str, Series]) -> list[Finding]:
    whole = series[_UNFILTERED]
    findings = []
    for name in _CONDITIONS:
        one = series[name]
        findings.append(
            Finding(
                f"speed with a condition: {name}",
                data_set.description(),
                speed(whole, one),
                "×",
                at_least(0.8),
                f"{one.records:,} of {whole.records:,} rows",
            )
        )
    return findings
