"""What a verification finds: findings, and the reports that they are in.

Severities:

    damage      something contradicts a checksum, the log, or what a broker has recorded
    unreadable  this user may not read it, or it is no file: what is in it is not known
    suspect     it may be damage, or may have a reason that the directory does not tell: a gap in the offsets
    unclean     a crash leaves this behind, and a broker repairs it when it starts, without loss of flushed records
    note        worth knowing
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Iterable

    from storage_core.check.broker_start import BrokerStart


Severity = Literal["damage", "unreadable", "suspect", "unclean", "note"]
SEVERITIES: Final[tuple[Severity, ...]] = get_args(Severity)
"""The worst first."""
Verdict = Literal["damage", "unreadable", "suspect", "unclean", "sound"]
Action = Literal[
    "unnoticed", "rebuild index", "truncate", "remove", "reset", "complete", "set aside", "refuse"
]
"""What a broker does about a finding when it starts.

``unnoticed`` is nothing, because it does not look. ``set aside`` is a rename to ``-stray``: it serves an empty partition.
``refuse``: it does not start, or, if it has other log directories and the fault is in reading a file, without this one.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be.

    Attributes:
        kind: What it is about: ``batch``, ``record``, ``tail``, ``gap``, ``offset index``, ``time index``,
            ``transaction index``, ``leader epoch``, ``sequence``, ``snapshot``, ``checkpoint``, ``metadata`` or ``file``.
        file: Path of the file.
        start_byte: The first byte concerned; None for the whole file.
        end_byte: The position after the last.
        start_offset: The first offset concerned; None if there is none.
        end_offset: The offset after the last.
        action: What a broker would do about it when it starts.
        action_offset: The offset to which it truncates.
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


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    """The worst severity of findings; ``sound`` if there are none but notes."""
    severities = {each.severity for each in findings}
    for severity in SEVERITIES:
        if severity in severities and severity != "note":
            return severity
    return "sound"


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """What was found out about one partition.

    Attributes:
        verdict: The worst severity of its findings.
        topic_id: Of its ``partition.metadata``; None without one that can be read.
        is_clean: Whether the broker closed the log before it stopped.
        record_count: Records by the headers, markers included; of compressed messages v0 and v1, one for each set.
        log_start_offset: By checkpoint and segments.
        log_end_offset: The offset after the last valid batch.
        start: What a broker makes of it when it starts.
    """

    topic: str
    partition: int
    path: str
    verdict: Verdict
    topic_id: str | None
    is_clean: bool
    segment_count: int
    batch_count: int
    record_count: int
    size_bytes: int
    log_start_offset: int
    log_end_offset: int
    start: BrokerStart
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class RootReport:
    """What was found out about the own files of a log directory.

    Attributes:
        is_cluster_known: Whether its cluster's metadata is here, so that it is known what a broker sets aside.
    """

    path: str
    is_clean: bool
    findings: tuple[Finding, ...]
    is_cluster_known: bool = False

    @property
    def is_refused(self) -> bool:
        """Return True if a broker does not start with the log directory, whatever its partitions are like."""
        return any(each.action == "refuse" for each in self.findings)
