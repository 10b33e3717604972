"""The counts of a campaign, as text and as a table for ``docs/reliability.md``."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.damage.unprovable import KINDS

if TYPE_CHECKING:
    from tests.damage.campaign import Case
    from tests.damage.observation import Verdict
    from tests.damage.reads import Outcome

START_MARKER = "<!-- damage-campaign -->"
END_MARKER = "<!-- /damage-campaign -->"


@dataclass
class KindCount:
    """How often a change that breaks no rule happened, and how FAILFAST reads ended."""

    happened: int = 0
    reported: int = 0
    unchanged: int = 0
    unnoticed: int = 0


@dataclass
class Totals:
    """Counts over all cases."""

    cases: int = 0
    mutations: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    kinds: dict[str, KindCount] = field(default_factory=lambda: {kind: KindCount() for kind in KINDS})
    rows: int = 0
    damage_rows: int = 0
    bytes_read_factor: float = 0.0
    cases_with_values: int = 0
    values_taken: int = 0

    def count(self, case: Case, outcome: Outcome, verdict: Verdict) -> None:
        """Count one case."""
        self.cases += 1
        self.mutations.update(mutation.kind for mutation in case.mutations)
        self.modes[case.read.mode] += 1
        self.errors[type(outcome.error).__name__ if outcome.error else "none"] += 1
        self.rows += len(outcome.rows)
        self.damage_rows += len(outcome.damage)
        if case.log.inner_rows and case.read.mode != "FAILFAST":
            self.cases_with_values += 1
            self.values_taken += verdict.has_inner_rows
        factor = outcome.bytes_read / max(sum(map(len, case.files.values())), 1)
        self.bytes_read_factor = max(self.bytes_read_factor, factor)

    def count_kinds(self, kinds: set[str], *, is_error: bool, is_changed: bool) -> None:
        """Count a case with a single mutation that was read in FAILFAST."""
        for kind in kinds:
            count = self.kinds[kind]
            count.happened += 1
            count.reported += is_error
            count.unnoticed += is_changed and not is_error
            count.unchanged += not is_changed and not is_error

    def text(self) -> str:
        """Return the text for a terminal."""
        lines = [f"{self.rows:,} rows and {self.damage_rows:,} damage rows came out"]
        lines.append(f"at most {self.bytes_read_factor:.0f} times the bytes of a directory were read")
        for name, counts in (
            ("mutations", self.mutations),
            ("modes", self.modes),
            ("ended with", self.errors),
        ):
            lines.append(f"{name}: {_listed(counts)}")
        lines += [f"{count} {KINDS[kind]}" for kind, count in self.kinds.items()]
        lines.append(self._values_text())
        return "\n".join(lines)

    def markdown(self, logs: int) -> str:
        """Return the table."""
        lines = [
            f"{self.cases:,} cases over {logs} logs: {_listed(self.modes)}. {self.rows:,} rows came out.",
            "",
        ]
        lines += [
            "| What happened | cases | an error | same rows | other rows, unnoticed |",
            "|---|--:|--:|--:|--:|",
        ]
        lines += [
            f"| {KINDS[kind]} | {count.happened:,} | {count.reported:,} | {count.unchanged:,} | {count.unnoticed:,} |"
            for kind, count in self.kinds.items()
        ]
        return "\n".join([*lines, "", self._values_text()]) + "\n"

    def _values_text(self) -> str:
        return (
            f"Of a log whose values are batches with offsets that fit, {self.cases_with_values:,} cases were read in "
            f"`DROPMALFORMED` and `PERMISSIVE`; in {self.values_taken:,} a value came out as a row of the log."
        )


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{kind} {count:,}" for kind, count in counts.most_common())


def write_table(path: Path, table: str) -> None:
    """Put the table between the markers of a document."""
    before, start, rest = path.read_text(encoding="utf-8").partition(START_MARKER)
    _, end, after = rest.partition(END_MARKER)
    if not (start and end):
        raise ValueError(f"{path}: expected {START_MARKER} and {END_MARKER}")
    path.write_text(f"{before}{start}\n{table}{end}{after}", encoding="utf-8")
