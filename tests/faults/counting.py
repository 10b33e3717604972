"""Counts the cases of the crash safety tests, as tables for ``docs/reliability.md``::

    python -m tests.faults.counting --write docs/reliability.md
    python -m tests.faults.counting --write docs/reliability.md --only exactly-once

A test reports its number of cases with ``record_property(cases("Technique"), count)``.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

_PREFIX = "cases: "
# By table, which is the name in its markers.
_MODULES = {
    "crash-safety": (
        "tests/log/test_crash_at_every_call.py",
        "tests/log/test_crash_of_several_logs.py",
        "tests/log/test_crash_of_group_commit.py",
        "tests/log/test_crash_while_files_are_replaced.py",
        "tests/log/test_crash_tails.py",
        "tests/log/test_crash_failing_calls.py",
        "tests/faults/test_checkpoint_crashes.py",
        "tests/faults/test_simulated_filesystem.py",
    ),
    "life-of-a-log": (
        "tests/log/test_crash_of_retention.py",
        "tests/log/test_crash_of_log_deletion.py",
        "tests/log/test_crash_of_cleaning.py",
        "tests/log/test_crash_of_transactions.py",
        "tests/log/test_crash_of_leader_epochs.py",
        "tests/log/test_crash_failing_calls_of_a_life.py",
        "tests/log/test_damage_while_cleaning.py",
        "tests/log/test_crash_of_a_kept_log_by_kill.py",
        "tests/log/test_state_machine.py",
        "tests/compaction/test_against_reference.py",
    ),
    "exactly-once": (
        "tests/commit/test_crash_at_every_call.py",
        "tests/commit/test_crash_failing_calls.py",
        "tests/commit/test_exactly_once.py",
        "tests/commit/test_exactly_once_in_a_row.py",
        "tests/commit/test_exactly_once_by_kill.py",
        "tests/commit/test_exactly_once_unflushed.py",
    ),
    "exactly-once-in-spark": (
        "tests/spark/test_write_failures.py",
        "tests/spark/test_killed_drivers.py",
        "tests/spark/test_bad_writes.py",
    ),
}
# Modules in which each test is one case.
_BY_TEST = {
    "tests/faults/test_checkpoint_crashes.py": "A power cut while a checkpoint is replaced",
    "tests/faults/test_simulated_filesystem.py": "The simulated file system itself",
    "tests/spark/test_bad_writes.py": "Bad input: each a clear error, and no file touched",
}


def cases(technique: str) -> str:
    """Return the name of the property that counts the cases of a technique."""
    return f"{_PREFIX}{technique}"


class Counting:
    """A plugin that counts cases while tests run."""

    def __init__(self) -> None:
        self.cases: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.modules: dict[str, str] = {}
        self._failed_modules: dict[str, int] = defaultdict(int)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" or report.skipped:
            return
        module = report.nodeid.partition("::")[0]
        counted = {
            name.removeprefix(_PREFIX): count
            for name, count in report.user_properties
            if name.startswith(_PREFIX)
        }
        if module in _BY_TEST:
            counted = {_BY_TEST[module]: 1}
        for technique, count in counted.items():
            self.cases[technique] += count
            self.failures[technique] += report.failed
            self.modules.setdefault(technique, module)
        if report.failed and not counted:
            self._failed_modules[module] += 1

    def markdown(self) -> str:
        """Return the table."""
        lines = ["| technique | cases | failures | where |", "|---|--:|--:|---|"]
        lines += [
            f"| {technique} | {count:,} | {self.failures[technique]} | `{self.modules[technique]}` |"
            for technique, count in self.cases.items()
        ]
        lines += [
            f"| (without a count) | | {count} | `{module}` |"
            for module, count in self._failed_modules.items()
        ]
        return "\n".join(lines) + "\n"


def write_table(path: Path, name: str, table: str) -> None:
    """Put the table between its markers in a document."""
    start_marker, end_marker = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, start, rest = path.read_text(encoding="utf-8").partition(start_marker)
    _, end, after = rest.partition(end_marker)
    if not (start and end):
        raise ValueError(f"{path}: expected {start_marker} and {end_marker}")
    path.write_text(f"{before}{start}\n{table}{end}{after}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Count the cases of the crash safety tests.")
    parser.add_argument(
        "--write", metavar="FILE", type=Path, help="put each table between its markers in FILE"
    )
    parser.add_argument("--only", choices=tuple(_MODULES), help="make this table alone")
    arguments = parser.parse_args()
    status = 0
    for name in [arguments.only] if arguments.only else _MODULES:
        counting = Counting()
        status = (
            int(pytest.main(["-q", "--every-case", "-m", "not soak", *_MODULES[name]], plugins=[counting]))
            or status
        )
        print(counting.markdown())
        if arguments.write:
            write_table(arguments.write, name, counting.markdown())
    return status


if __name__ == "__main__":
    sys.exit(main())
