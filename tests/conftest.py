"""What all tests share: the conformance matrix at the end of a run."""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

# At the end of the path: only the package `conformance` is meant to be found there.
sys.path.append(str(Path(__file__).parent))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--matrix-markdown",
        metavar="FILE",
        help="write the conformance matrix as Markdown to FILE, between its conformance-matrix markers if it has them",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # The processes of a run exchange reports in UTF-8, but hostile names in log lines are not.
    report.sections = [
        (title, text.encode("utf-8", "backslashreplace").decode()) for title, text in report.sections
    ]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    from conformance.matrix import Matrix, write_markdown

    matrix = Matrix.from_reports(chain.from_iterable(terminalreporter.stats.values()))
    if not matrix.cells:
        return
    terminalreporter.section("conformance matrix")
    for line in matrix.text():
        terminalreporter.write_line(line)
    if path := config.getoption("--matrix-markdown"):
        write_markdown(matrix, Path(path))
        terminalreporter.write_line(f"Markdown written to {path}")
