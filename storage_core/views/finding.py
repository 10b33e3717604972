"""What is wrong in a directory, or worth knowing: the findings of `verify`, `inventory`, `index rebuild` and `report`.

Severities:

    damage      something contradicts a checksum, the log, or what a broker has recorded
    unreadable  this user may not read it, or it is not a file: its content is not known
    suspect     it may be damage, or have a reason that the directory does not tell, such as a gap in the offsets
    warning     it is sound, and needs attention, such as a log directory that was not shut down
    unclean     a crash leaves this behind, and a broker repairs it when it starts, without loss of flushed records
    note        worth knowing
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

Severity = Literal["damage", "unreadable", "suspect", "warning", "unclean", "note"]
SEVERITIES: Final[tuple[Severity, ...]] = get_args(Severity)
"""The worst first."""
Action = Literal[
    "unnoticed",
    "rebuild index",
    "truncate",
    "remove",
    "reset",
    "complete",
    "set aside",
    "refuse",
    "not known",
]
"""What a broker does about a finding when it starts.

``unnoticed``: nothing, because it does not look. ``set aside``: it renames the directory to ``-stray``, and serves an empty
partition. ``refuse``: it does not start, or, if it has other log directories and a file cannot be read, without this one.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be, or worth knowing.

    Attributes:
        kind: What it is about, in a word or two. Of `verify`: ``batch``, ``record``, ``tail``, ``gap``, ``offset index``,
            ``time index``, ``transaction index``, ``leader epoch``, ``sequence``, ``snapshot``, ``checkpoint``,
            ``metadata``, ``file`` or ``nothing verified``.
        file: Path of the file or directory; empty if it is about several. Of a transaction or a group, the partition.
        start_byte: The first byte concerned; None for the whole file.
        start_offset: The first offset concerned; None if there is none.
    """

    severity: Severity
    kind: str
    file: str
    reason: str
    action: Action = "unnoticed"
    action_offset: int | None = None
    start_byte: int | None = None
    end_byte: int | None = None
    start_offset: int | None = None
    end_offset: int | None = None


Verdict = Literal["damage", "unreadable", "suspect", "unclean", "sound"]


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    """Return the worst severity of findings: ``sound`` if there are at most warnings and notes."""
    severities = {each.severity for each in findings}
    for verdict in get_args(Verdict):
        if verdict in severities:
            return cast("Verdict", verdict)
    return "sound"


def has_severity(severity: Severity, findings: Iterable[Finding]) -> bool:
    """Return True if a finding has a severity."""
    return any(each.severity == severity for each in findings)


def by_severity(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings, the worst first."""
    return tuple(sorted(findings, key=lambda each: SEVERITIES.index(each.severity)))


def sentence(clause: str) -> str:
    """Return a clause with a capital letter and a full stop."""
    return f"{clause[0].upper()}{clause[1:].rstrip('.')}."
