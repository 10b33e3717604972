"""Shows results: a plain table for the terminal, docs/benchmarks.md with its chart, and the table in README.md."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.missed_targets import why_missed
from benchmarks.overview import chart, comparisons, table
from benchmarks.results import Finding, SectionResult
from benchmarks.sections import SECTION_NAMES
from benchmarks.settings import CHECKOUT

DOCUMENT_PATH = CHECKOUT / "docs" / "benchmarks.md"
CHART_PATH = CHECKOUT / "docs" / "benchmarks.svg"
README_PATH = CHECKOUT / "README.md"

_START, _END = "<!-- performance -->\n", "<!-- /performance -->"
_CHART = "![How many times as fast as its peers segmentlog is]({})\n"

_INTRODUCTION = """\
# Benchmarks

How many times as fast as its peers segmentlog is, on the same data, the same machine and in the same rounds.
"""

_READING = """\
## How to read the figures

Every figure is the median of the rounds, with the lowest and the highest round in brackets. Contenders ran in turn in
the same rounds on the same machine; a ratio is taken in each round, and the median is that of these ratios. Rounds in which the
peer took more than 15 % longer than in its own quickest round are noise: they are repeated, up to as often as there are
rounds, and *dropped*. Our own times have no say in that. *Verdict* says whether the median meets the target; figures
without a target are informative. Absolute figures depend on the machine, ratios less so.

Each round writes to a directory of its own, and nothing is deleted before a section is over: a file system that has just deleted
many files is slow to make new ones.

`make bench ARGS=--write-docs` writes this page, its chart and the table in README.md: do not edit them.
`make bench ARGS="decode --write-docs"` runs one section; `--data-set 100b-none-small` and `--part backlog` take less of it, and `--quick` a twentieth of the data, for trying.
"""

_DATA_INTRODUCTION = """\
## Data

Produced by librdkafka (confluent-kafka) into a local Apache Kafka broker: 10-byte keys, values of half random, half
repetitive text, four partitions a topic, timestamps 1 ms apart. Sizes are those on disk.

| data set | records | size on disk | batches | median batch | records in it |
|---|--:|--:|--:|--:|--:|
"""


def latest_results(directory: Path) -> list[SectionResult]:
    """Return the newest stored result of each section, in the sections' order.

    Raises:
        FileNotFoundError: No section has a result.
    """
    # The names end in a date, so the last in order is the newest. A section's name may begin with that of another one.
    newest = [sorted(directory.glob(f"{name}-[0-9]*.json"))[-1:] for name in SECTION_NAMES]
    results = [
        SectionResult.from_json(json.loads(paths[0].read_text(encoding="utf-8"))) for paths in newest if paths
    ]
    if not results:
        raise FileNotFoundError(f"Expected results in {directory}; run the benchmarks first.")
    return results


def document(results: Sequence[SectionResult]) -> str:
    """Return the whole of docs/benchmarks.md."""
    machines = {_machine(result.circumstances) for result in results}
    is_one_machine = len(machines) == 1
    parts = [_INTRODUCTION, overview(results, "benchmarks.svg"), _summary(results), _READING]
    if is_one_machine:
        parts.append(f"Machine: {machines.pop()}\n")
    parts += [_section(result, with_machine=not is_one_machine) for result in results]
    parts.append(_data(results))
    return "\n".join(part for part in parts if part)


def overview(results: Sequence[SectionResult], chart_link: str) -> str:
    """Return the comparisons that matter: the table, then the chart."""
    return f"{_START}{table(comparisons(results))}\n{_CHART.format(chart_link)}{_END}\n"


def write_documents(results: Sequence[SectionResult]) -> None:
    """Write docs/benchmarks.md and its chart, and replace the overview in README.md.

    Raises:
        ValueError: The page has a section without a result.
    """
    headings = re.findall("^## (.*)$", DOCUMENT_PATH.read_text(encoding="utf-8"), re.MULTILINE)
    page = document(results)
    if lost := [heading for heading in headings if f"## {heading}\n" not in page]:
        raise ValueError(
            f"Expected a result of each section of the page; found none of: {', '.join(lost)}. Run them."
        )
    DOCUMENT_PATH.write_text(page, encoding="utf-8")
    CHART_PATH.write_text(chart(comparisons(results)), encoding="utf-8")
    before, _, rest = README_PATH.read_text(encoding="utf-8").partition(_START)
    after = rest.partition(f"{_END}\n")[2]
    README_PATH.write_text(before + overview(results, "docs/benchmarks.svg") + after, encoding="utf-8")


def text_table(result: SectionResult) -> str:
    """Return a section's findings for the terminal."""
    rows = [_cells(finding) for finding in result.findings]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(6)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join([f"{result.title}", *lines, ""])


def _summary(results: Sequence[SectionResult]) -> str:
    judged = [
        (result.section, finding)
        for result in results
        for finding in result.findings
        if finding.target is not None
    ]
    missed = [(section, finding) for section, finding in judged if finding.verdict == "missed"]
    lines = [f"{len(judged) - len(missed)} of {len(judged)} targets met."]
    if missed:
        lines += ["", "| missed | on | result | target | why |", "|---|---|--:|--:|---|"]
        lines += [
            f"| {finding.measure} | {finding.subject} | {_figure(finding)} | {_target(finding)} | "
            f"{why_missed(section, finding) or 'not known'} |"
            for section, finding in missed
        ]
    return "\n".join(lines) + "\n"


def _section(result: SectionResult, *, with_machine: bool) -> str:
    lines = [f"## {result.title}", "", result.method, "", _occasion(result.circumstances), ""]
    if with_machine:
        lines += [f"Machine: {_machine(result.circumstances)}", ""]
    lines += ["| measure | data | result | target | verdict | details |", "|---|---|--:|--:|---|---|"]
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
    shown = f"{median} {finding.unit}" if low == high else f"{median} {finding.unit} ({low}–{high})"
    dropped = figure.dropped_rounds
    return f"{shown}, {dropped} round{'s'[: dropped - 1]} dropped" if dropped else shown


def _target(finding: Finding) -> str:
    return "" if finding.target is None else f"{finding.target.sign} {finding.target.value:g} {finding.unit}"


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 20 else f"{value:.2f}"
