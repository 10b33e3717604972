"""Decoding message formats v0 and v1 to Arrow on one core, compared with the record parser of kafka-python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.legacy_logs import LegacyLog, ensure_legacy_logs
from benchmarks.one_core import run_on_one_core
from benchmarks.progress import tell
from benchmarks.results import Finding, SectionResult, at_least
from benchmarks.settings import Settings
from benchmarks.timing import Series, interleave, ratio

_OURS = "segmentlog"
_KAFKA_PYTHON_ARROW = "kafka-python to Arrow"
_KAFKA_PYTHON_ITERATION = "kafka-python bare iteration"

_METHOD = """\
Logs in the formats before Kafka 0.11, encoded by kafka-python (no broker of today writes them), one partition each.
Uncompressed, each message is separate; with gzip, a wrapper holds about 16 KiB of messages. Otherwise as in the
section on decoding: one core, files in the page cache, every CRC checked; segmentlog checks those inside the wrappers
too, as Kafka's consumers do."""


def run(settings: Settings) -> SectionResult:
    """Measure every format and codec."""
    findings: list[Finding] = []
    raw: dict[str, Any] = {}
    for log in ensure_legacy_logs(settings):
        tell(f"legacy {log.topic}")
        series = run_on_one_core(_measure, log, settings.repetitions)
        findings += _findings(log, series)
        raw[log.topic] = {"series": {name: one.to_json() for name, one in series.items()}}
    return SectionResult("legacy", "Message formats v0 and v1", _METHOD, tuple(findings), raw)


def _measure(log: LegacyLog, rounds: int) -> dict[str, Series]:
    """Runs in a process of its own."""
    from benchmarks.peers import record_parsers
    from benchmarks.segmentlog_reading import count_rows
    from storage_core.filesystem import FileSystem

    inputs = [log.as_input()]
    kafka_python = record_parsers.kafka_python_parser()
    series = interleave(
        {
            _OURS: lambda: count_rows(FileSystem(), Path(log.directory), subscribe=log.topic),
            _KAFKA_PYTHON_ARROW: lambda: record_parsers.build_arrow(kafka_python, inputs),
            _KAFKA_PYTHON_ITERATION: lambda: record_parsers.iterate(kafka_python, inputs),
        },
        warm_up_rounds=1,
        rounds=rounds,
        peers=[_KAFKA_PYTHON_ARROW, _KAFKA_PYTHON_ITERATION],
    )
    for name, one in series.items():
        if one.records != log.records:
            raise RuntimeError(f"Expected {log.records} records from {name}, found {one.records}.")
    return series


def _findings(log: LegacyLog, series: Mapping[str, Series]) -> list[Finding]:
    targets = {
        _KAFKA_PYTHON_ARROW: at_least(3),
        # The harder reading of the target: kafka-python without the work of building columns.
        _KAFKA_PYTHON_ITERATION: at_least(3),
    }
    ours = series[_OURS]
    return [
        Finding(
            f"segmentlog : {peer}",
            log.description,
            ratio(series[peer], ours),
            "×",
            target,
            f"{ours.records_per_second / 1e6:.2f} : {series[peer].records_per_second / 1e6:.2f} M records/s",
        )
        for peer, target in targets.items()
    ]
