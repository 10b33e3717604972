"""The table of the matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from conformance.matrix import CELL_PROPERTY, CHECKS_PROPERTY, Matrix, write_markdown

if TYPE_CHECKING:
    from pathlib import Path


def report(cell: str, outcome: str, checks: int = 0) -> pytest.TestReport:
    properties = [(CELL_PROPERTY, cell), (CHECKS_PROPERTY, checks)]
    return pytest.TestReport("x", ("x", 0, "x"), {}, outcome, None, "call", user_properties=properties)  # type: ignore[arg-type]


def cells(matrix: Matrix) -> dict[tuple[str, str], str]:
    heading, *rows = matrix.rows()
    return {(row[0], column): text for row in rows for column, text in zip(heading, row, strict=True)}


def test_checks_of_the_ways_of_a_column_are_added_up() -> None:
    reports = [report("txn|splits", "passed", 5), report("txn|splits", "passed", 7), object()]

    assert cells(Matrix.from_reports(reports))["txn", "splits"] == "✓ 12"


def test_one_failed_way_fails_the_cell() -> None:
    reports = [report("txn|splits", "passed", 5), report("txn|splits", "failed")]

    assert cells(Matrix.from_reports(reports))["txn", "splits"] == "✗ 1"


def test_cells_without_a_test_say_why() -> None:
    found = cells(Matrix.from_reports([report("txn|unchanged", "passed", 1)]))

    assert found["txn", "errors"] == "-"
    assert found["txn", "table"] == "not run"


def test_a_column_of_other_tests_is_shown_where_they_ran() -> None:
    here, elsewhere = report("txn|table", "passed", 3), report("txn|of others", "passed", 5)

    assert "of others" not in Matrix.from_reports([here]).rows()[0]
    assert Matrix.from_reports([elsewhere]).rows() == [["case", "of others"], ["txn", "✓ 5"]]
    assert cells(Matrix.from_reports([here, elsewhere]))["txn", "table"] == "✓ 3"
    assert Matrix.from_reports([here, elsewhere]).rows()[0][-1] == "of others"


def test_markdown_goes_between_the_markers(tmp_path: Path) -> None:
    file = tmp_path / "conformance.md"
    file.write_text("before\n<!-- conformance-matrix -->\nold\n<!-- /conformance-matrix -->\nafter\n")

    write_markdown(Matrix.from_reports([report("txn|table", "passed", 3)]), file)

    text = file.read_text()
    assert text.startswith("before\n<!-- conformance-matrix -->\n| case | table |")
    assert "| `txn` | ✓ 3 |" in text
    assert "old" not in text
    assert text.endswith("<!-- /conformance-matrix -->\nafter\n")
