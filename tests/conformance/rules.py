"""What this version reads of each case: the one table that later versions extend.

A case that is not named here is expected to be read in full, in every way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CASES", "OFFSET_FIELDS", "READ_COMMITTED", "READ_UNCOMMITTED", "CaseRules", "rules_of"]

READ_UNCOMMITTED = "read_uncommitted"
READ_COMMITTED = "read_committed"
OFFSET_FIELDS = ("log_start_offset", "end_offset", "high_watermark", "last_stable_offset")


@dataclass(frozen=True, slots=True)
class CaseRules:
    """What is expected of one case beside its records.

    Attributes:
        reads: How much of the case this version reads: all of it, the partitions that are wholly
            in format v2, or none yet. The matrix shows it.
        unsupported: Patterns of partition names, each with the magic that the error names.
        isolation_levels: The isolation levels that this version reads the case in.
        offsets: Those of the broker's offsets that this version gives for the case.
        has_time_lookups: Whether the broker was asked for offsets by timestamp.
        damaged: Whether batches are damaged: reads over them fail, reads beside them work.
    """

    reads: Literal["all", "v2 only", "later"] = "all"
    unsupported: Mapping[str, int] = field(default_factory=dict)
    isolation_levels: tuple[str, ...] = (READ_UNCOMMITTED, READ_COMMITTED)
    offsets: tuple[str, ...] = OFFSET_FIELDS
    has_time_lookups: bool = True
    damaged: bool = False

    def unsupported_magic(self, partition_name: str) -> int | None:
        """The magic that the error names for this partition; None if it is read."""
        for pattern, magic in self.unsupported.items():
            if fnmatchcase(partition_name, pattern):
                return magic
        return None

    def absence(self, column: str) -> str:
        """What the matrix shows where none of a column's ways applies."""
        comes_later = self.reads == "later" or (
            column == "committed" and READ_COMMITTED not in self.isolation_levels
        )
        return "later" if comes_later else "-"


# A killed broker's directory: the high watermark and the last stable offset that the broker answered
# come from its own recovery, which a read does not do yet.
_BEFORE_RECOVERY = CaseRules(
    isolation_levels=(READ_UNCOMMITTED,),
    offsets=("log_start_offset", "end_offset"),
)

CASES: Mapping[str, CaseRules] = {
    "corrupt-middle": CaseRules(damaged=True, has_time_lookups=False),
    "internal": CaseRules(has_time_lookups=False),
    "legacy-compact": CaseRules("later", unsupported={"lc0-*": 0, "lc1-*": 1}),
    "magic0": CaseRules("later", unsupported={"*": 0}),
    "magic1": CaseRules("later", unsupported={"*": 1}),
    "mixed-magic": CaseRules("later", unsupported={"*": 0}),
    "torn-tail": _BEFORE_RECOVERY,
    "unclean": _BEFORE_RECOVERY,
    "upgrade": CaseRules("v2 only", unsupported={"up0-plain-*": 0, "up1-plain-*": 1}),
}


def rules_of(case_name: str) -> CaseRules:
    """The rules of one case."""
    return CASES.get(case_name, CaseRules())
