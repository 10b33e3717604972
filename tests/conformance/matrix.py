"""The conformance matrix: gathers the result of each cell, and prints it.

Cells travel as ``user_properties`` of test reports, so that they also survive a run in several processes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from conformance.rules import rules_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

CELL_PROPERTY = "conformance cell"
CHECKS_PROPERTY = "conformance checks"
START_MARKER = "<!-- conformance-matrix -->"
END_MARKER = "<!-- /conformance-matrix -->"

LEGEND = "✓ n: n comparisons, all equal · ✗ n: n ways of reading failed · -: does not apply"


@dataclass(slots=True)
class _Cell:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    checks: int = 0

    def add(self, report: pytest.TestReport) -> None:
        """Count one phase of one test."""
        if report.failed:
            self.failed += 1
        elif report.skipped:
            self.skipped += 1
        elif report.when == "call":
            self.passed += 1
            self.checks += next(
                (count for name, count in report.user_properties if name == CHECKS_PROPERTY), 0
            )  # type: ignore[misc]


@dataclass(slots=True)
class Matrix:
    """Rows are cases, columns are groups of ways of reading."""

    cells: dict[tuple[str, str], _Cell] = field(default_factory=lambda: defaultdict(_Cell))

    @classmethod
    def from_reports(cls, reports: Iterable[object]) -> Matrix:
        """Gather the cells among a run's reports."""
        matrix = cls()
        for report in reports:
            if isinstance(report, pytest.TestReport):
                for name, value in report.user_properties:
                    if name == CELL_PROPERTY:
                        case, column = str(value).split("|")
                        matrix.cells[case, column].add(report)
        return matrix

    def rows(self) -> list[list[str]]:
        """Return the table as text: the first row is the heading."""
        # Imported here: it needs the packages under test, and a broken import must not hide the reports.
        from conformance.archives import case_names
        from conformance.ways import COLUMNS, WAYS

        cases = sorted({case for case, _ in self.cells})
        found = {column for _, column in self.cells}
        # Columns that other suites contribute are shown if they ran.
        elsewhere = sorted(found.difference(COLUMNS))
        columns = [*(COLUMNS if found.intersection(COLUMNS) else ()), *elsewhere]
        table = [["case", *columns]]
        for case in cases:
            rules = rules_of(case)
            # A case of another suite has only the cells that it contributes.
            own = WAYS if case in case_names() else ()
            applicable = {way.column for way in own if way.applies(rules)}
            applicable |= {column for column in columns if (case, column) in self.cells}
            table.append([case, *(self._text(case, column, column in applicable) for column in columns)])
        return table

    def _text(self, case: str, column: str, applies: bool) -> str:
        if not applies:
            return "-"
        cell = self.cells.get((case, column))
        if cell is None or not (cell.passed or cell.failed):
            return "not run"
        if cell.failed:
            return f"✗ {cell.failed}"
        return f"✓ {cell.checks}"

    def text(self) -> list[str]:
        """Lines for a terminal."""
        table = self.rows()
        widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
        return [*("  ".join(map(str.ljust, row, widths)).rstrip() for row in table), "", *LEGEND.split(" · ")]

    def markdown(self) -> str:
        """Return a Markdown table with its legend."""
        heading, *body = self.rows()
        lines = [_markdown_row(heading), _markdown_row(["---"] * len(heading))]
        lines += [_markdown_row([f"`{row[0]}`", *row[1:]]) for row in body]
        return "\n".join([*lines, "", LEGEND]) + "\n"


def write_markdown(matrix: Matrix, path: Path) -> None:
    """Write the matrix to ``path``: between the markers if the file has them, else as the whole file."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    before, start, rest = text.partition(START_MARKER)
    _, end, after = rest.partition(END_MARKER)
    text = f"{before}{start}\n{matrix.markdown()}{end}{after}" if start and end else matrix.markdown()
    path.write_text(text, encoding="utf-8")


def _markdown_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
