"""Shows results: a plain table for the terminal, and docs/benchmarks.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import Finding, SectionResult
from benchmarks.sections import SECTION_NAMES
from benchmarks.settings import CHECKOUT

__all__ = ["DOCUMENT_PATH", "document", "latest_results", "text_table"]

DOCUMENT_PATH = CHECKOUT / "docs" / "benchmarks.md"

_INTRODUCTION = """\
# Benchmarks

Written by `make bench ARGS=--write-docs`; do not edit. One section alone: `make bench ARGS="decode --write-docs"`.
`ARGS=--quick` takes a twentieth of the data, for trying.

Every figure is the median of the rounds, with the lowest and highest round in brackets. Things that are compared
ran in turn in the same rounds on the same machine. *Verdict* says whether the median keeps the target; figures
without a target are there to be known. Absolute figures depend on the machine; ratios do so less.
"""

_DATA_INTRODUCTION = """\
## Data

Produced by librdkafka (confluent-kafka) into a local Apache Kafka broker: 10-byte keys, values of half random, half
repetitive text, four partitions a topic, timestamps 1 ms apart. Sizes as they lie on disk.

| data set | records | size on disk | batches | median batch | records in it |
|---|--:|--:|--:|--:|--:|
"""


def latest_results(directory: Path) -> list[SectionResult]:
    """The newest stored result of each section, in the sections' order.

    Raises:
        FileNotFoundError: No section has a result.
    """
    # The names end in a date, so the last in order is the newest.
    newest = [sorted(directory.glob(f"{name}-*.json"))[-1:] for name in SECTION_NAMES]
    results = [
        SectionResult.from_json(json.loads(paths[0].read_text(encoding="utf-8"))) for paths in newest if paths
    ]
    if not results:
        raise FileNotFoundError(f"Expected results in {directory}; run the benchmarks first.")
    return results


def document(results: Sequence[SectionResult]) -> str:
    """The whole of docs/benchmarks.md."""
    machines = {_machine(result.circumstances) for result in results}
    is_one_machine = len(machines) == 1
    parts = [_INTRODUCTION, _summary(results)]
    if is_one_machine:
        parts.append(f"Machine: {machines.pop()}\n")
    parts += [_section(result, with_machine=not is_one_machine) for result in results]
    parts.append(_data(results))
    return "\n".join(part for part in parts if part)


def text_table(result: SectionResult) -> str:
    """A section's findings for the terminal."""
    rows = [_cells(finding) for finding in result.findings]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(6)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join([f"{result.title}", *lines, ""])


def _summary(results: Sequence[SectionResult]) -> str:
    judged = [finding for result in results for finding in result.findings if finding.target is not None]
    missed = [finding for finding in judged if finding.verdict == "missed"]
    lines = [f"{len(judged) - len(missed)} of {len(judged)} targets met."]
    if missed:
        lines += ["", "Missed:", ""]
        lines += [
            f"- {finding.measure}, {finding.subject}: {_figure(finding)}, target {_target(finding)}"
            for finding in missed
        ]
    return "\n".join(lines) + "\n"


def _section(result: SectionResult, *, with_machine: bool) -> str:
    lines = [f"## {result.title}", "", result.method, "", _occasion(result.circumstances), ""]
    if with_machine:
        lines += [f"Machine: {_machine(result.circumstances)}", ""]
    lines += ["| measure | data | result | target | verdict | behind it |", "|---|---|--:|--:|---|---|"]
    lines += [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in _cells(finding)) + " |"
        for finding in result.findings
    ]
    return "\n".join(lines) + "\n"


def _data(results: Sequence[SectionResult]) -> str:
    described = {
        name: entry["on_disk"]
        for result in results
        for name, entry in result.raw.items()
        if isinstance(entry, dict) and "on_disk" in entry
    }
    if not described:
        return ""
    rows = [
        f"| {name} | {on_disk['records']:,} | {on_disk['size_bytes'] / 1e6:.0f} MB | {on_disk['batches']:,} | "
        f"{on_disk['median_batch_bytes'] / 1024:.1f} KiB | {on_disk['median_batch_records']:.0f} |"
        for name, on_disk in described.items()
    ]
    return _DATA_INTRODUCTION + "\n".join(rows) + "\n"


def _machine(known: Mapping[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in known["packages"].items())
    return (
        f"{known['cores']} cores of {known['processor']}, {known['memory_gb']} GB; {known['system']}; "
        f"Python {known['python']}; {known['java']}; {known['broker']}; {packages}."
    )


def _occasion(known: Mapping[str, Any]) -> str:
    return (
        f"Measured {known['date']} at commit {known['commit']}, {known['repetitions']} rounds, "
        f"load average at the start {known['load_average']:.1f}."
    )


def _cells(finding: Finding) -> list[str]:
    return [
        finding.measure,
        finding.subject,
        _figure(finding),
        _target(finding),
        finding.verdict,
        finding.detail,
    ]


def _figure(finding: Finding) -> str:
    figure = finding.figure
    median, low, high = (_number(value) for value in (figure.median, figure.low, figure.high))
    return f"{median} {finding.unit}" if low == high else f"{median} {finding.unit} ({low}–{high})"


def _target(finding: Finding) -> str:
    return "" if finding.target is None else f"{finding.target.sign} {finding.target.value:g} {finding.unit}"


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 20 else f"{value:.2f}"
