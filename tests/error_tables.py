"""The tables in docs/errors.md, whose columns *error* and *raised when* are the classes' tree and docstrings.

Run ``python -m tests.error_tables --write docs/errors.md`` after a change of either.
"""

from __future__ import annotations

import argparse
import inspect
import re
from pathlib import Path

from storage_core import errors

_ROW = re.compile(r"^\| [└─ ]*`(\w+Error)` \|(.*)\| (.+) \|$", re.MULTILINE)
# Before the name of a class, by how many classes of errors are above it.
_BRANCHES = ("", "", "└ ", "└─ ")


def described_in(page: str) -> list[str]:
    """Return the classes that have a row, in order."""
    return [name for name, _, _ in _ROW.findall(page)]


def renewed(page: str) -> str:
    """Return the page with the current tree and docstrings."""
    return _ROW.sub(lambda row: f"| {_description(row[1])} | {row[3]} |", page)


def _description(name: str) -> str:
    """Return the name of a class on its branch, and the first paragraph of its docstring."""
    kind = getattr(errors, name)
    above = sum(issubclass(each, errors.SegmentLogError) for each in kind.__mro__) - 1
    summary = inspect.getdoc(kind).partition("\n\n")[0]
    return f"{_BRANCHES[above]}`{name}` | {' '.join(summary.replace('``', '`').split())}"


def main() -> None:
    """Write the columns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, required=True, metavar="FILE")
    page = parser.parse_args().write
    page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
