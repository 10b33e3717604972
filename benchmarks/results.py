"""What a section found: figures with their targets and verdicts, as plain values and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.timing import Spread


@dataclass(frozen=True, slots=True)
class Target:
    """A bound that a figure should keep. ``sign`` is ``≥`` or ``≤``."""

    sign: str
    value: float

    def is_met_by(self, figure: float) -> bool:
        """Return whether ``figure`` keeps the bound."""
        return figure >= self.value if self.sign == "≥" else figure <= self.value


def at_least(value: float) -> Target:
    """Return a lower bound."""
    return Target("≥", value)


def at_most(value: float) -> Target:
    """Return an upper bound."""
    return Target("≤", value)


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure.

    Attributes:
        measure: What was measured, in words.
        subject: On which data.
        figure: Median and range.
        unit: ``×``, ``%``, ``s``, ``µs`` or ``MB``.
        target: None where the figure is only informative.
        detail: The absolute figures of a ratio.
    """

    measure: str
    subject: str
    figure: Spread
    unit: str
    target: Target | None = None
    detail: str = ""

    @property
    def verdict(self) -> str:
        """``met`` or ``missed`` by the median; empty without a target."""
        if self.target is None:
            return ""
        return "met" if self.target.is_met_by(self.figure.median) else "missed"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "measure": self.measure,
            "subject": self.subject,
            "median": self.figure.median,
            "low": self.figure.low,
            "high": self.figure.high,
            "dropped_rounds": self.figure.dropped_rounds,
            "unit": self.unit,
            "target": None if self.target is None else [self.target.sign, self.target.value],
            "detail": self.detail,
            "verdict": self.verdict,
        }

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> Finding:
        """Return the inverse of `to_json`."""
        target = None if plain["target"] is None else Target(*plain["target"])
        figure = Spread(plain["median"], plain["low"], plain["high"], plain.get("dropped_rounds", 0))
        return Finding(plain["measure"], plain["subject"], figure, plain["unit"], target, plain["detail"])


@dataclass(frozen=True, slots=True)
class SectionResult:
    """All that one section found, and the circumstances.

    Attributes:
        section: Its name on the command line.
        title: Its heading.
        method: How it was measured; shown above the table.
        findings: The figures.
        raw: Every single time and count.
        circumstances: Machine, versions, commit, date; filled in by the run.
    """

    section: str
    title: str
    method: str
    findings: tuple[Finding, ...]
    raw: Mapping[str, Any] = field(default_factory=dict)
    circumstances: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "section": self.section,
            "title": self.title,
            "method": self.method,
            "findings": [finding.to_json() for finding in self.findings],
            "raw": dict(self.raw),
            "circumstances": dict(self.circumstances),
        }

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> SectionResult:
        """Return the inverse of `to_json`."""
        findings = tuple(Finding.from_json(finding) for finding in plain["findings"])
        return SectionResult(
            plain["section"], plain["title"], plain["method"], findings, plain["raw"], plain["circumstances"]
        )
